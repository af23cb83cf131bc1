"""Every byte that is kept, read again: work folders, DVC's cache, outputs, records. What is damaged is named with what mends it."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from assets.paths import Paths
from grpo_core.checkpoint import MANIFEST, file_sha256
from grpo_core.work_folder import damages, reading
from pipelines.lock import LockError, file_md5, listing_md5, read_lock
from pipelines.processes import living_processes
from pipelines.records.dvc_cache import cache_folder, cached_listing, object_path
from pipelines.records.dvc_files import seen_files
from pipelines.records.files import NAMES, outs_key, record_path, seal
from pipelines.records.stage_files import stage_files
from pipelines.reproduction.inputs import tracked_files
from pipelines.upkeep.work_folders import work_folders

PROVENANCE = Path(".work") / "provenance"
OBJECT = re.compile(r"[0-9a-f]{2}/[0-9a-f]{30}(\.dir)?")
"""How DVC names an object within its cache; anything else there is on its way in."""
RESUMED = (
    "a training that is resumed or extended passes over it, goes on from the newest checkpoint that is whole and redoes the rest; "
    "of a finished one `dvc repro --force --single-item` makes all of it again, and `grpo prune --work all` forgets it"
)


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it was written."""

    problem: str
    """What and where."""
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"


@dataclass(slots=True)
class Report:
    """What was read, and what was found."""

    num_files: int = 0
    num_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was not looked at, and why that is no damage."""


@dataclass(frozen=True, slots=True)
class Output:
    """A file or folder whose hash DVC wrote down."""

    path: str
    md5: str
    maker: str
    """What makes or tracks it: a stage's target, or a `.dvc` file."""
    again: str
    """The command that makes it again, or says how a person can."""
    in_git: bool = False
    """Git keeps it instead of DVC."""


class Reader:
    """Reads files, each of them once however many names it has: DVC links outputs to its cache."""

    def __init__(self, root: Path, report: Report, progress: Callable[[int], None]) -> None:
        self.root = root
        self._report, self._progress = report, progress
        self._md5s: dict[tuple[int, int], str] = {}
        self._counted: set[tuple[int, int]] = set()
        self._objects: dict[str, bool | None] = {}

    def md5(self, path: Path) -> str:
        """The md5 of a file's bytes."""
        identity = self.count(path)
        if identity not in self._md5s:
            self._md5s[identity] = file_md5(path)
        return self._md5s[identity]

    def listing(self, folder: Path, expected: str) -> dict[str, str]:
        """Path within the folder → md5 of every file in it; of those alone that DVC sees, unless all together have the `expected` hash."""
        found = {file.relative_to(folder).as_posix(): self.md5(file) for file in files_in(folder)}
        if listing_md5(found) == expected:  # no need to wait for DVC
            return found
        seen = {file.relative_to(folder).as_posix() for file in seen_files(self.root, folder)}
        return {name: md5 for name, md5 in found.items() if name in seen}

    def object(self, md5: str) -> bool | None:
        """Whether DVC's cache holds what the hash names, byte for byte; None when it holds nothing there."""
        if md5 not in self._objects:
            path = object_path(self.root, md5)
            self._objects[md5] = self.md5(path) == md5.removesuffix(".dir") if path.is_file() else None
        return self._objects[md5]

    def count(self, path: Path) -> tuple[int, int]:
        """Count the file, unless it was counted under another name."""
        status = path.stat()
        identity = (status.st_dev, status.st_ino)
        if identity not in self._counted:
            self._counted.add(identity)
            self._report.num_files += 1
            self._report.num_bytes += status.st_size
            self._progress(status.st_size)
        return identity


def verify(root: Path, progress: Callable[[int], None] = lambda num_bytes: None) -> Report:
    """Read everything that is kept in the checkout; `progress` hears of every file's bytes. Nothing is written."""
    report = Report()
    reader = Reader(root, report, progress)
    for folder, _, _ in work_folders(root):
        check_work_folder(folder, reader, report)
    recorded = check_records(root, reader, report)
    note_missing_records(root, report)
    outputs = kept_outputs(root)
    now = {output.md5: output for output in outputs}
    check_objects({**now, **recorded, **now}, reader, report)  # a file of several folders is told as one of now
    held = being_written(root)
    for output in outputs:
        if held & {output.path, *map(str, Path(output.path).parents)}:
            report.notes.append(f"{output.path} is being made now: not looked at")
        else:
            check_output(output, reader, report)
    return report


def num_bytes(root: Path) -> int:
    """About how many bytes `verify` will read."""
    places = [*(folder for folder, _, _ in work_folders(root)), *(root / output.path for output in kept_outputs(root)), root / PROVENANCE]
    seen: dict[tuple[int, int], int] = {}
    for path in [file for place in places for file in files_in(place)] + [object_path(root, md5) for md5 in all_objects(root)]:
        if path.is_file():
            status = path.stat()
            seen[status.st_dev, status.st_ino] = status.st_size
    return sum(seen.values())


def files_in(place: Path) -> list[Path]:
    """The file itself, or every file of a folder, in order."""
    return [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())


# ------------------------------------------------------------------------------------------------------------- work folders


def check_work_folder(folder: Path, reader: Reader, report: Report) -> None:
    """Checkpoints, shards and logs against the hashes in the checkpoints' manifests."""
    try:
        with reading(folder):
            found = damages(folder)
            for file in files_in(folder):
                reader.count(file)
    except ValueError as error:  # somebody is at work in it
        report.notes.append(f"{folder.relative_to(reader.root)} was not looked at: {error}")
        return
    told: dict[str, Damage] = {}
    for problem in found:  # several checkpoints may vouch for one file
        told.setdefault(problem.partition(" was ")[0], Damage(problem.replace(f"{reader.root}/", ""), RESUMED))
    report.damages += told.values()


# ------------------------------------------------------------------------------------------------------------------ records


def check_records(root: Path, reader: Reader, report: Report) -> dict[str, Output]:
    """Every record's form and name; md5 → the output that it names."""
    named: dict[str, Output] = {}
    for path in sorted((root / PROVENANCE).rglob(NAMES)):
        reader.count(path)
        place = path.relative_to(root)
        try:
            record = json.loads(path.read_bytes())
            outs, noun, experiment = record["outs"], record["noun"], record["experiment"]
            key = outs_key(outs)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            report.damages.append(Damage(f"{place} is no record ({error})", "delete it: the next forced run of its stage writes it again"))
            continue
        if key != path.stem or record.get("sha256") != seal(record):
            why = f"the outputs that it names have the key {key}" if key != path.stem else "its sha256 is not that of its fields"
            report.damages.append(Damage(f"{place} was altered: {why}", "delete it: the next forced run of its stage writes it again"))
            continue
        maker = noun if experiment is None else f"{noun}@{experiment}"
        again = "`dvc fetch --all-commits` brings it from a remote if its dvc.lock was committed"
        named |= {md5: Output(out, md5, f"an earlier {maker}", again) for out, md5 in outs.items()}
    return named


def note_missing_records(root: Path, report: Report) -> None:
    """A note for every stage whose outputs in dvc.lock no record tells of: they may have come with a `dvc pull`."""
    for target, entry in read_lock(root).items():
        noun, _, experiment = target.partition("@")
        if not record_path(Paths(root, experiment or "default"), noun, entry.outs).is_file():
            report.notes.append(f"{target} has no record here of how it was made; the run's MLflow artifacts may hold a copy")


# --------------------------------------------------------------------------------------------------------------- DVC's cache


def all_objects(root: Path) -> list[str]:
    """The hashes that the objects in DVC's cache have by their names, in order."""
    files = cache_folder(root) / "files" / "md5"
    names = (path.relative_to(files).as_posix() for path in files.glob("??/*"))
    return sorted(name.replace("/", "", 1) for name in names if OBJECT.fullmatch(name))


def check_objects(named: Mapping[str, Output], reader: Reader, report: Report) -> None:
    """Every object of the cache by its bytes, whether or not one of the `named` outputs is or holds it."""
    places = {md5: (output.path, output) for md5, output in named.items()}
    for md5, output in named.items():
        if md5.endswith(".dir") and reader.object(md5):
            for name, child in (cached_listing(reader.root, md5) or {}).items():
                places.setdefault(child, (f"{output.path}/{name}", output))
    for md5 in all_objects(reader.root):
        if reader.object(md5) is False:
            report.damages.append(damaged_object(md5, *places[md5], reader) if md5 in places else nameless_object(md5, reader))


def damaged_object(md5: str, path: str, output: Output, reader: Reader) -> Damage:
    """An object whose bytes are not those that its name promises; a good copy in the workspace mends it at once."""
    shown, problem = damage_in_cache(md5, reader)
    problem = f"{problem} ({path} of {output.maker})"
    copy = reader.root / path
    if copy.is_file() and reader.md5(copy) == md5:
        return Damage(problem, f"the workspace has it whole: `cp --remove-destination {path} {shown}`")
    return Damage(problem, f"delete it, then {output.again}")


def nameless_object(md5: str, reader: Reader) -> Damage:
    """A damaged object that no output or record here names."""
    remedy = "delete it: no output and no record in this checkout names it, and `dvc fetch --all-commits` brings it from a remote if a commit does"
    return Damage(damage_in_cache(md5, reader)[1], remedy)


def damage_in_cache(md5: str, reader: Reader) -> tuple[str, str]:
    """Where the object lies, and what is wrong with it."""
    place = object_path(reader.root, md5)
    shown = str(place.relative_to(reader.root) if place.is_relative_to(reader.root) else place)
    return shown, f"{shown} in DVC's cache is damaged: its bytes have md5 {reader.md5(place)}"


# ------------------------------------------------------------------------------------------------------------------ outputs


def kept_outputs(root: Path) -> list[Output]:
    """What dvc.lock names, and what was given to DVC with `dvc add`."""
    outputs = []
    for target, entry in read_lock(root).items():
        metrics = declared_metrics(root, target)
        made = f"`dvc repro --force --single-item {target}` makes it again"
        for path, md5 in entry.outs.items():
            kept = f"`git checkout {path}` brings it back if it was committed" if path in metrics else f"`dvc pull {path}` brings it from a remote"
            outputs.append(Output(path, md5, target, f"{kept}, or {made}", path in metrics))
    return outputs + [
        Output(one.path, one.md5, one.dvc_file, f"`dvc pull {one.path}` brings it from a remote, or put the file back and `dvc add {one.path}`")
        for one in tracked_files(root)
    ]


def declared_metrics(root: Path, target: str) -> tuple[str, ...]:
    """Outputs of the target that Git keeps; none when dvc.yaml does not have the target any more."""
    stage, _, experiment = target.partition("@")
    try:
        return stage_files(root, stage, experiment).metrics
    except LockError:
        return ()


def check_output(output: Output, reader: Reader, report: Report) -> None:
    """An output in the workspace against its hash, and a checkpoint also against its manifest; lost when the cache lacks it, too."""
    place = reader.root / output.path
    if not place.exists():
        if not output.in_git and cached(output, output.path, reader):
            report.notes.append(f"{output.path} is not in the workspace: `dvc checkout {output.path}` brings it from the cache")
        else:
            problem = "is not in the workspace" if output.in_git else "is lost: neither the workspace nor DVC's cache has it whole"
            report.damages.append(Damage(f"{output.path} of {output.maker} {problem}", output.again))
        return
    found = reader.listing(place, output.md5) if place.is_dir() else {}
    if (listing_md5(found) if place.is_dir() else reader.md5(place)) != output.md5:
        altered = [f"{output.path}/{name}" for name in altered_files(place, found, output, reader)] or [output.path]
        report.damages += [Damage(f"{path} is not what {output.maker} wrote down: altered, missing or extra", remedy(path, output, reader)) for path in altered]
    elif output.md5.endswith(".dir") and (place / MANIFEST).is_file():
        unfit = list(unfit_files(place))
        report.damages += [Damage(f"{output.path}/{name} does not fit {MANIFEST}: it was altered before DVC took it", output.again) for name in unfit]


def altered_files(place: Path, found: Mapping[str, str], output: Output, reader: Reader) -> list[str]:
    """Files of a folder that differ from what DVC's cache lists, or without that from its manifest."""
    if not place.is_dir():
        return []
    if reader.object(output.md5):
        wanted = cached_listing(reader.root, output.md5) or {}
        return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    return sorted(unfit_files(place)) if (place / MANIFEST).is_file() else []


def unfit_files(folder: Path) -> Iterator[str]:
    """Files of a folder that are not those its manifest lists; the manifest itself when it cannot be read."""
    try:
        files = dict(json.loads((folder / MANIFEST).read_bytes())["files"])
    except (ValueError, KeyError, TypeError):
        yield MANIFEST
        return
    for name, sha256 in files.items():
        if not (folder / name).is_file() or file_sha256(folder / name) != sha256:
            yield name


def remedy(path: str, output: Output, reader: Reader) -> str:
    """How the file gets its bytes back; DVC believes a file whose time did not change, so it is deleted first."""
    if not output.in_git and cached(output, path, reader):
        return f"delete it, then `dvc checkout {output.path}`"
    return f"delete it, then {output.again}"


def cached(output: Output, path: str, reader: Reader) -> bool:
    """Whether DVC's cache holds the file whole."""
    if not reader.object(output.md5):
        return False
    if not output.md5.endswith(".dir"):
        return True
    files = cached_listing(reader.root, output.md5) or {}
    wanted = [files[name]] if (name := path.removeprefix(f"{output.path}/")) in files else list(files.values())
    return all(reader.object(md5) for md5 in wanted)


def being_written(root: Path) -> set[str]:
    """Outputs that a living `dvc` is making, by DVC's own lock file."""
    try:
        holders = json.loads((root / ".dvc" / "tmp" / "rwlock").read_bytes()).get("write", {})
    except (OSError, ValueError):
        return set()
    living = {process.pid for process in living_processes()}
    held = [Path(path) for path, holder in holders.items() if holder["pid"] in living]
    return {str(path.relative_to(root.resolve())) for path in held if path.is_relative_to(root.resolve())}
