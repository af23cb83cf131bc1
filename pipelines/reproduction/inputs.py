"""A run's inputs, brought into a worktree from where the checkout keeps them; every byte is read again on the way."""

import filecmp
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.lock import file_md5, listing_md5, read_yaml
from pipelines.records.dvc_cache import cached_listing, object_path
from pipelines.records.dvc_files import seen_files

SHOWN_FILES = 12


class InputError(ValueError):
    """An input that cannot be had as the run had it."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """An output of a `.dvc` file: what a person gave DVC with `dvc add`."""

    dvc_file: str
    """Relative to the repository root, as `path` is."""
    path: str
    md5: str


def tracked_files(root: Path) -> list[Tracked]:
    """What the `.dvc` files under data/ name, in order."""
    found = []
    for file in sorted((root / "data").rglob("*.dvc")):
        place = file.relative_to(root)
        for out in read_yaml(file).get("outs", []):
            if out.get("hash") != "md5" or "md5" not in out:
                raise InputError(f"{place} has no md5 of {out['path']} as DVC 3 writes it: `dvc add` it again")
            found.append(Tracked(str(place), str(place.parent / out["path"]), out["md5"]))
    return found


def source_dependencies(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Path → md5 of every dependency under data/ that no stage of the run made: a person's own files."""
    records = list(records)
    made = {path for record in records for path in record["outs"]}
    read = {path: md5 for record in records for path, md5 in record["deps"].items()}
    return {path: md5 for path, md5 in read.items() if not {path, *map(str, Path(path).parents)} & made}


def restore_tracked(tracked: Tracked, checkout: Path, project: Path) -> int:
    """Put what DVC keeps of the checkout's into the worktree `project`; the number of files.

    What the cache lacks is taken from the checkout's own files where these are the same, else from DVC's remote. Raises InputError that
    names what is damaged or missing.
    """
    if not object_path(checkout, tracked.md5).is_file() and dependency_md5(checkout, tracked.path) == tracked.md5:
        return restore_plain(tracked.path, tracked.md5, checkout, project)
    fetch([tracked.md5], checkout, tracked)
    target = project / tracked.path
    if not tracked.md5.endswith(".dir"):
        _copy(tracked.md5, target, checkout, tracked)
        return 1
    _check(object_path(checkout, tracked.md5), tracked.md5, checkout, tracked)
    files = cached_listing(checkout, tracked.md5)
    assert files is not None
    fetch(files.values(), checkout, tracked)
    for name, md5 in files.items():
        _copy(md5, target / name, checkout, tracked)
    return len(files)


def fetch(md5s: Iterable[str], checkout: Path, tracked: Tracked) -> None:
    """Bring objects that the checkout's cache lacks from DVC's default remote. Raises InputError when it cannot."""
    missing = [md5 for md5 in md5s if not object_path(checkout, md5).is_file()]
    if not missing:
        return
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from dvc_data.hashfile.hash_info import HashInfo

    reason = "the remote has not got it either"
    try:
        with Repo(str(checkout)) as repo:
            repo.cloud.pull([HashInfo("md5", md5) for md5 in missing])
    except DvcException as error:
        reason = " ".join(str(error).split())
    lacking = [md5 for md5 in missing if not object_path(checkout, md5).is_file()]
    if lacking:
        raise InputError(
            f"{tracked.path} cannot be restored: DVC's cache lacks {lacking[0]} ({len(lacking)} objects in all), and fetching failed ({reason}); "
            f"bring {tracked.path} back with the md5 {tracked.md5} and `dvc add {tracked.path}`"
        )


def restore_plain(path: str, md5: str, checkout: Path, project: Path) -> int:
    """Make `path` in the worktree what it is in the checkout, if that is the recorded one: Git and DVC need not keep all of it; the number of files copied.

    Raises InputError when neither the worktree's nor the checkout's is the recorded one.
    """
    found = dependency_md5(project, path)
    if found == md5:
        return 0
    here = dependency_md5(checkout, path)
    if here != md5:
        raise InputError(_lost(path, md5, here, found, checkout))
    wanted = {project / file.relative_to(checkout): file for file in _files(checkout / path)}
    for extra in set(_files(project / path)) - wanted.keys():
        extra.unlink()
    copied = [target for target, source in wanted.items() if not target.is_file() or not filecmp.cmp(source, target, shallow=False)]
    for target in copied:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(wanted[target], target)
    after = dependency_md5(project, path)
    if after != md5:
        raise InputError(f"{path} of this checkout changed while it was copied to {project}: its md5 was {md5}, the copy has {after}; try again")
    return len(copied)


def dependency_md5(root: Path, path: str) -> str | None:
    """The hash under which DVC knows the file or folder, from its bytes as they are now; None when it is not there."""
    place = root / path
    if not place.is_dir():
        return file_md5(place) if place.is_file() else None
    return listing_md5({file.relative_to(place).as_posix(): file_md5(file) for file in seen_files(root, place)})


def _copy(md5: str, target: Path, checkout: Path, tracked: Tracked) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(object_path(checkout, md5), target)
    _check(target, md5, checkout, tracked)


def _check(copy: Path, md5: str, checkout: Path, tracked: Tracked) -> None:
    """Raise InputError when the bytes are not those that the object's name promises."""
    found = file_md5(copy)
    if found != md5.removesuffix(".dir"):
        raise InputError(
            f"{object_path(checkout, md5)} in DVC's cache is damaged ({tracked.path}): by its name its md5 is {md5}, by its bytes {found}; "
            f"delete it, then `dvc pull {tracked.dvc_file}`, or put the file back as it was and `dvc add {tracked.path}`"
        )


def _files(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())


def _lost(path: str, md5: str, here: str | None, found: str | None, checkout: Path) -> str:
    """What is known of an input that is not the recorded one any more."""
    files = _files(checkout / path)
    shown = [f"  {file.relative_to(checkout)}: md5 {file_md5(file)}" for file in files[:SHOWN_FILES]]
    more = [f"  and {len(files) - SHOWN_FILES} more"] if len(files) > SHOWN_FILES else []
    return "\n".join(
        [
            f"{path} is not what the run was made from: recorded is md5 {md5}, this checkout has {here or 'nothing'}, the snapshot with what DVC "
            f"keeps has {found or 'nothing'}; bring the files back as they were. In this checkout:",
            *(shown or ["  no file"]),
            *more,
        ]
    )
