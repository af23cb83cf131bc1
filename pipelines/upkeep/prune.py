"""What can be deleted to free disk, and the deleting: work folders, checkpoints, DVC cache objects, worktrees.

A run counts as needed when it is an experiment's policy, when the next `grpo run` would resume it, or when MLflow's registry has an alias
for it. Whatever goes is renamed aside first: stopped at any moment, a deletion leaves no half folder under a name that anything reads.
"""

import fcntl
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from assets.paths import SHARED, Paths
from grpo_core.work_folder import checkpoints, faults, step_of
from pipelines.dead_locks import release_dead
from pipelines.lock import read_lock
from pipelines.params import experiments
from pipelines.records.dvc_cache import object_path
from pipelines.records.files import Record, read_records, recorded_experiments
from pipelines.records.named_runs import named_runs
from pipelines.records.recorded_runs import is_there, run_ids_of_key
from pipelines.records.runs import EVALUATION, GATE, REVIEW, TRAINING, VERDICT, Run, RunError, find_run, related, trained_experiments
from pipelines.reproduction.worktree import LENT, remove_worktree
from pipelines.resume_state import is_taken, read_marker
from pipelines.upkeep.unused_objects import UnknownUse, disk_bytes, remove_objects, unused_objects
from pipelines.upkeep.work_folders import work_folders

if TYPE_CHECKING:
    from dvc.repo import Repo

LOCK = "lock"
"""Of a work folder; held while a training is at work in it."""


class PruneError(ValueError):
    """Nothing can be freed now."""


@dataclass(frozen=True, slots=True)
class Item:
    """A folder to delete."""

    label: str
    folder: Path
    lock: Path
    """Held by whoever works in it."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Outputs of a recorded stage that go with the unused objects of DVC's cache."""

    noun: str
    experiment: str | None
    run_key: str | None
    mlflow_run_id: str | None
    made: str
    """ISO 8601."""
    outputs: tuple[str, ...]


@dataclass(slots=True)
class Plan:
    """What would be deleted, by kind, and what stays for a reason worth telling."""

    keep_checkpoints: int
    whole_work: bool
    superseded: list[Item] = field(default_factory=list)
    """Work folders of finished runs that nothing needs."""
    interrupted: list[Item] = field(default_factory=list)
    """Work folders of runs that did not finish, and that the next run does not go on from."""
    needed: list[Item] = field(default_factory=list)
    """Checkpoints in work folders of needed runs, or those folders whole."""
    worktrees: list[Item] = field(default_factory=list)
    leftovers: list[Item] = field(default_factory=list)
    """What a deletion that was stopped had renamed aside."""
    objects: dict[str, int] = field(default_factory=dict)
    """Hash of an object in DVC's cache → bytes that it takes."""
    losses: list[Loss] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    @property
    def folders(self) -> list[Item]:
        return [*self.superseded, *self.interrupted, *self.needed, *self.worktrees, *self.leftovers]

    @property
    def num_bytes(self) -> int:
        return sum(item.num_bytes for item in self.folders) + sum(self.objects.values())

    @property
    def is_empty(self) -> bool:
        return not self.folders and not self.objects


@dataclass(frozen=True, slots=True)
class Needed:
    """Which runs are needed, by key."""

    runs: tuple[Run, ...]
    unknown: frozenset[str]
    """Experiments of which it is not known which run their policy came from."""

    @property
    def run_keys(self) -> set[str]:
        return {run.run_key for run in self.runs}


# ------------------------------------------------------------------------------------------------------------- the plan


def make_plan(root: Path, *, keep_checkpoints: int = 1, whole_work: bool = False) -> Plan:
    """Find what can go: of needed runs' work folders what is older than `keep_checkpoints` whole checkpoints, or with `whole_work` the folders."""
    plan, needed = Plan(keep_checkpoints, whole_work), needed_runs(root)
    for folder, noun, experiment in work_folders(root):
        _plan_work_folder(plan, root, needed, folder, noun, experiment)
    worktrees = [(folder, folder.with_name(f"{folder.name}.lock")) for folder in _folders(root / LENT)]
    plan.worktrees = [_item(folder, lock, folder.name) for folder, lock in worktrees if not _is_held(lock)]
    plan.leftovers = [_item(folder, folder / LOCK, folder.name.partition("-")[2]) for folder in _folders(trash(root))]
    try:
        with open_repo(root) as repo:
            plan.objects = {md5: disk_bytes(object_path(root, md5)) for md5 in sorted(unused_objects(repo, root, needed.runs))}
    except UnknownUse as error:
        plan.kept.append(f"all of DVC's cache: {error}")
    plan.losses = losses(root, plan.objects)
    return plan


def needed_runs(root: Path) -> Needed:
    """The runs of the experiments' policies, and those with an alias in MLflow's registry."""
    runs, unknown = list(named_runs(root).values()), set()
    for experiment in trained_experiments(root, read_lock(root)):
        try:
            runs.append(find_run(root, experiment))
        except RunError:
            unknown.add(experiment)
    return Needed(tuple(runs), frozenset(unknown))


def _plan_work_folder(plan: Plan, root: Path, needed: Needed, folder: Path, noun: str, experiment: str | None) -> None:
    label = f"{experiment or noun} ({folder.name[:8]}), {_progress(folder)}"
    if _is_held(folder / LOCK):
        plan.kept.append(f"{label}: a training is at work in it")
    elif experiment in needed.unknown:
        plan.kept.append(f"{label}: which run the experiment's policy came from is not known; `dvc checkout` or `dvc pull` brings the policy back")
    elif folder.name in needed.run_keys:
        if plan.whole_work:
            plan.needed.append(_item(folder, folder / LOCK, label))
        else:
            old = old_checkpoints(folder, plan.keep_checkpoints)
            plan.needed += [_item(checkpoint, folder / LOCK, f"{label}: {checkpoint.name}") for checkpoint in old]
    elif reason := _reason_to_resume(root, folder, noun, experiment):
        if plan.whole_work:
            plan.needed.append(_item(folder, folder / LOCK, label))
        else:
            plan.kept.append(f"{label}: {reason}")
    else:
        (plan.superseded if read_marker(folder) else plan.interrupted).append(_item(folder, folder / LOCK, label))


def old_checkpoints(folder: Path, keep: int) -> list[Path]:
    """The checkpoints of a work folder that are older than its `keep` newest whole ones; none while fewer are whole."""
    found = checkpoints(folder)
    for place, checkpoint in enumerate(found, 1):
        keep -= not faults(folder, checkpoint)
        if keep == 0:
            return found[place:]
    return []


def _progress(folder: Path) -> str:
    """How far the training in a work folder got, and when."""
    newest = next(iter(checkpoints(folder)), None)
    when = datetime.fromtimestamp((newest or folder).stat().st_mtime).strftime("%Y-%m-%d %H:%M")
    return f"{'finished' if read_marker(folder) else 'interrupted'} at step {step_of(newest) if newest else 0}, {when}"


def _reason_to_resume(root: Path, folder: Path, noun: str, experiment: str | None) -> str | None:
    """Why the next run may go on in this work folder; None when it will not."""
    configs, paths = experiments(root), Paths(root, experiment or "default")
    if experiment is not None and experiment not in configs:
        return None
    if noun == "sft_checkpoint" and is_taken(paths, noun, folder):
        return None
    config = configs[experiment] if experiment else next(iter(configs.values()))
    try:
        key = import_module(f"assets.{noun}").work_folder(paths, config).name
    except (OSError, ValueError):
        return None if read_marker(folder) else "its inputs are not in data/ now, so it is not known whether the next run goes on in it"
    return "the next run goes on in it" if key == folder.name else None


def losses(root: Path, objects: Mapping[str, int]) -> list[Loss]:
    """Which outputs of which recorded stages these objects hold, the newest stage first."""
    found = []
    for record in all_records(root):
        outputs = [path for path in record["outs"] if any(md5 in objects for md5 in _hashes_below(record, path))]
        if outputs:
            training = record if record["noun"] == TRAINING else related(root, record).get(TRAINING, {}) if record["experiment"] else {}
            key = training.get("run_key")
            ids = run_ids_of_key(root, key, record["experiment"]) if key and is_there(root) else []
            found.append(Loss(record["noun"], record["experiment"], key, next(iter(ids), None), str(record["started"]), tuple(outputs)))
    return sorted(found, key=lambda loss: loss.made, reverse=True)


def all_records(root: Path) -> Iterator[Record]:
    """Every record of this checkout."""
    for noun in SHARED:
        yield from read_records(Paths(root), noun)
    for experiment in recorded_experiments(root):
        for noun in (TRAINING, EVALUATION, REVIEW, VERDICT, *GATE):
            yield from read_records(Paths(root, experiment), noun)


def _hashes_below(record: Record, path: str) -> set[str]:
    """The hash of an output and those of the files in it."""
    return {md5 for name, md5 in {**record["files"], **record["outs"]}.items() if name == path or name.startswith(f"{path}/")}


# --------------------------------------------------------------------------------------------------------- the deleting


def carry_out(root: Path, plan: Plan) -> int:
    """Delete what the plan names, but not what came into use meanwhile; returns the bytes freed. Raises `PruneError` while anything is at work."""
    freed = 0
    with open_repo(root) as repo, nothing_at_work(root, repo):
        now = make_plan(root, keep_checkpoints=plan.keep_checkpoints, whole_work=plan.whole_work)
        still = {item.folder for item in now.folders}
        for item in plan.folders:
            freed += _delete(root, item) if item.folder in still else 0
        doomed = plan.objects.keys() & now.objects.keys()
        if doomed:
            remove_objects(repo, doomed)
    return freed + sum(plan.objects[md5] for md5 in doomed)


@contextmanager
def nothing_at_work(root: Path, repo: "Repo") -> Iterator[None]:
    """DVC's own lock is held inside, so no stage can begin. Raises `PruneError` when one is at work already."""
    from dvc.lock import LockError

    try:
        repo.lock.lock()
    except LockError as error:
        raise PruneError("DVC is at work in this checkout: wait until it has ended, or stop it; nothing was deleted") from error
    try:
        if holders := stages_at_work(root):
            raise PruneError(f"a stage is at work ({'; '.join(sorted(holders))}): wait until it has ended, or stop it; nothing was deleted")
        yield
    finally:
        repo.lock.unlock()


def stages_at_work(root: Path) -> set[str]:
    """The living processes that hold files of a stage, also those of experiments that DVC runs in folders of their own."""
    locks = (root / ".dvc" / "tmp").rglob("rwlock")
    return {f"{command}, process {pid}" for lock in locks for pid, command in release_dead(lock.parent).items()}


@contextmanager
def open_repo(root: Path) -> "Iterator[Repo]":
    """DVC's view of the checkout; raises `PruneError` where DVC cannot work."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(root)) as repo:
            yield repo
    except DvcException as error:
        raise PruneError(f"DVC cannot tell what is in use: {' '.join(str(error).split())}; nothing was deleted") from error


def trash(root: Path) -> Path:
    """Where what is being deleted is renamed to."""
    return Paths(root).work / "deleted"


def _delete(root: Path, item: Item) -> int:
    """Delete a folder in which nobody works; the bytes freed, 0 when somebody does or when it has gone."""
    with _locked(item.lock) as free:
        if not free or not item.folder.is_dir():
            return 0
        aside = trash(root) / f"{uuid.uuid4().hex[:8]}-{item.folder.name}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        item.folder.rename(aside)
        shutil.rmtree(aside)
    if item.folder.parent == root / LENT:
        remove_worktree(root, item.folder)
    return item.num_bytes


@contextmanager
def _locked(lock: Path) -> Iterator[bool]:
    """Whether nobody else holds the lock; then it is ours inside the block."""
    if not lock.is_file():
        yield True
        return
    with lock.open() as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _is_held(lock: Path) -> bool:
    with _locked(lock) as free:
        return not free


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/") if path.is_dir())


def _item(folder: Path, lock: Path, label: str) -> Item:
    return Item(label, folder, lock, sum(disk_bytes(path) for path in folder.rglob("*")))
