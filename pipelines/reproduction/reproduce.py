"""A recorded run made again from its snapshot and its inputs, apart from everything that could answer for it, and compared stage by stage."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from assets.paths import SHARED, Paths
from grpo_core.checkpoint import MANIFEST
from pipelines.lock import Entry, read_lock
from pipelines.processes import Group, terminal_for_stages
from pipelines.records.files import Record, read_record
from pipelines.records.provenance import cpu_model, library_version
from pipelines.records.runs import EVALUATION, REVIEW, TRAINING, UPSTREAM, Run, RunError
from pipelines.reproduction.inputs import InputError, restore_plain, restore_tracked, source_dependencies, tracked_files
from pipelines.reproduction.result import BITS, Reproduction, Row, environment_changes, explanation, plural, short
from pipelines.reproduction.worktree import Worktree, has_commit, whatever_comes, worktree

NEEDED = (*UPSTREAM, TRAINING)
"""Without these there is no policy; what comes after it may not have been made yet."""
NOUNS = (*NEEDED, EVALUATION, REVIEW)
GRACE_SECONDS = 10.0
"""What an interrupted stage gets: its work is thrown away."""
PACKAGES = ("assets", "grpo_core", "pipelines")

PROBE = """
import json, os, sys
from dataclasses import replace
from pathlib import Path
import assets, grpo_core, pipelines
from pipelines.params import experiments
from pipelines.reward_code import check_reward_functions
configs = list(experiments(Path.cwd()).values())
check_reward_functions(Path.cwd(), configs)
import torch
model, prompts, source = configs[0].model, configs[0].prompts, None
if model.path:
    from grpo_core.models import source_of
    lent = Path(sys.argv[1]) / model.path
    source = source_of(replace(model, path=str(lent)) if lent.exists() and not Path(model.path).exists() else model)
print(json.dumps({
    "files": {name: os.path.abspath(module.__file__) for name, module in list(sys.modules.items()) if getattr(module, "__file__", None)},
    "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    "model": model.path, "source": source, "prompts": [path for path in (prompts.path, prompts.heldout_path) if path],
}))
"""
"""Run as a stage would be, with the checkout as its argument: where its code comes from, what of the processor it may use, what pins the
starting model as it is now, and the files that its configuration names."""
READERS = ("prompts", "sft_checkpoint")
"""Nouns that read the files which the configuration names; all others read what stages made."""


class ReproduceError(ValueError):
    """A run that cannot be made again here."""


class StageFailed(ReproduceError):
    """A stage that ended with an error in the worktree."""


def reproduce(run: Run, *, into: Path | None = None, keep: bool = False, tell: Callable[[str], None] = print) -> Reproduction:
    """Make every recorded stage of `run` again in a worktree, up to the first that differs; `tell` hears what is done and found.

    Raises ReproduceError (or InputError, WorktreeError) when it cannot be made again at all. Nothing of the checkout is written.
    """
    nouns = recorded_stages(run)
    commit = run.records[TRAINING]["snapshot"]
    unrecorded = tuple(noun for noun in NOUNS if noun not in nouns)
    tell(f"run {run.run_key} of experiment {run.experiment!r}: {len(nouns)} recorded stages, snapshot {commit[:12]}")
    for line in [*other_snapshots(run, nouns), *(f"{noun} has no record (it was not made yet, or is not kept): left out" for noun in unrecorded)]:
        tell(f"note: {line}")
    with worktree(run.root, commit, run.run_key, into) as lent:
        tell(f"worktree: {lent.folder}")
        here = ask_worktree(run, lent)
        check_code(here["files"], lent)
        tell(f"code: {', '.join(PACKAGES)} and the reward functions are imported from the worktree")
        warned = compare_machine(run, nouns, here["cpu_capability"], tell)
        bring_inputs(run, nouns, lent, tell)
        unhashed = [] if check_model(run, here["model"], here["source"], tell) else [here["model"]]
        unhashed += [path for path in here["prompts"] if not has_hash(path, run, nouns, lent)]
        link_outside([here["model"], *here["prompts"]], lent)
        for path in unhashed:
            tell(f"note: nothing recorded the bytes of {path}: it is read as it is now")
        rows: list[Row] = []
        for noun in nouns:
            try:
                rows += make_again(run, noun, lent, warned, tell, unhashed if noun in READERS else ())
            except StageFailed:
                lent.keep = True
                raise
            if not all(row.identical for row in rows):
                break
        lent.keep = keep or not all(row.identical for row in rows)
    return Reproduction(tuple(rows), tuple(target(noun, run) for noun in nouns), unrecorded, lent.folder if lent.keep else None)


# ------------------------------------------------------------------------------------------------------ what there is to do


def target(noun: str, run: Run) -> str:
    """What `dvc repro` calls the stage."""
    return noun if noun in SHARED else f"{noun}@{run.experiment}"


def recorded_stages(run: Run) -> tuple[str, ...]:
    """The stages that can be made again, in order. Raises ReproduceError when the run cannot."""
    known = [noun for noun in NOUNS if noun in run.records and run.records[noun]["started"] is not None]
    missing = [noun for noun in NEEDED if noun not in known]
    if missing:
        raise ReproduceError(
            f"nothing says how {', '.join(missing)} of {run.label()} was made: it was made before records were kept, or elsewhere "
            "(work where it was made, or name its MLflow run id), or its records were deleted; `dvc repro --force` makes all anew, with records"
        )
    commit = run.records[TRAINING]["snapshot"]
    if commit is None:
        raise ReproduceError(
            f"{run.label()} was made outside a Git repository, so nothing kept its code: put the project under Git (`git init`, commit), then train again"
        )
    if not has_commit(run.root, commit):
        raise ReproduceError(
            f"the code of {run.label()} (snapshot {commit}) is not in this repository: `git fetch origin 'refs/grpo/*:refs/grpo/*'` brings it, "
            "once `git push origin 'refs/grpo/*'` was done where it was trained"
        )
    return tuple(known)


def other_snapshots(run: Run, nouns: tuple[str, ...]) -> list[str]:
    """Stages that were made by other code than the policy: they are made again by the policy's."""
    policy = run.records[TRAINING]["snapshot"]
    made = {noun: run.records[noun]["snapshot"] for noun in nouns}
    return [f"{noun} was made by snapshot {short(commit)}; here it is made by the policy's" for noun, commit in made.items() if commit != policy]


# ------------------------------------------------------------------------------------------------------------- before it starts


def ask_worktree(run: Run, lent: Worktree) -> dict[str, Any]:
    """What a stage in the worktree would import and be given. Raises ReproduceError when the code cannot be imported there."""
    command, env = [sys.executable, "-c", PROBE, str(lent.checkout)], stage_environment(run, TRAINING, lent)
    result = subprocess.run(command, cwd=lent.project, env=env, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ReproduceError(f"the recorded code and configuration cannot be loaded in {lent.project}:\n{result.stderr.strip()}")
    return dict(json.loads(result.stdout.splitlines()[-1]))


def check_code(files: Mapping[str, str], lent: Worktree) -> None:
    """Raise ReproduceError when a module (name → file) is not the worktree's though it should be."""
    if foreign := strays(files, lent):
        raise ReproduceError(f"code would be imported from outside the worktree {lent.project}: {'; '.join(foreign)}")


def compare_machine(run: Run, nouns: tuple[str, ...], cpu_capability: str, tell: Callable[[str], None]) -> set[str]:
    """Tell how this machine and its libraries differ from the recorded ones; the differences."""
    libraries = {name for noun in nouns for name in run.records[noun]["libraries"]}
    here = {
        "python": platform.python_version(),
        "libraries": {name: library_version(name) for name in libraries},
        "cpu": cpu_model(),
        "cpu_capability": cpu_capability,
    }
    told: set[str] = set()
    for noun in nouns:
        told |= warn(environment_changes(run.records[noun], here, BITS), told, noun, tell)
    if not told:
        tell(f"environment: as recorded (Python {here['python']}, {len(libraries)} libraries, {here['cpu']}, {cpu_capability})")
    return told


def strays(files: Mapping[str, str], lent: Worktree) -> list[str]:
    """Modules that are not the worktree's though they should be: ours from anywhere else, any from the checkout outside its environment."""
    project, checkout, environment = lent.project.resolve(), lent.checkout.resolve(), Path(sys.prefix).resolve()
    places = {name: Path(file).resolve() for name, file in files.items()}
    outside = {name: file for name, file in places.items() if not file.is_relative_to(project)}
    return [
        f"{name} from {file}"
        for name, file in outside.items()
        if name.partition(".")[0] in PACKAGES or (file.is_relative_to(checkout) and not file.is_relative_to(environment))
    ]


def warn(changes: list[str], told: set[str], noun: str, tell: Callable[[str], None]) -> set[str]:
    """Tell the changes that were not told yet; all of them."""
    for change in changes:
        if change not in told:
            tell(f"warning: {change} ({noun}): bits may differ")
    return set(changes)


def stage_environment(run: Run, noun: str, lent: Worktree) -> dict[str, str]:
    """The environment of a stage: the worktree's, with every switch of the numeric libraries as it was recorded."""
    record = run.records[noun]
    switches = {name: value for part in ("threads", "determinism") for name, value in record[part].items() if name.isupper()}
    others = {name: value for name, value in os.environ.items() if name not in switches}
    return lent.environment({**others, **{name: str(value) for name, value in switches.items() if value is not None}})


def bring_inputs(run: Run, nouns: tuple[str, ...], lent: Worktree, tell: Callable[[str], None]) -> None:
    """Put the recorded inputs into the worktree, and take away every output that Git brought. Raises InputError when one is not the recorded one."""
    records = [run.records[noun] for noun in nouns]
    for path in {path for record in records for path in record["outs"]}:
        place = lent.project / path
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    for one in tracked_files(lent.project):
        tell(f"input {one.path}: md5 {short(one.md5)}, {plural(restore_tracked(one, run.root, lent.project), 'file')} that DVC keeps")
    for path, md5 in source_dependencies(records).items():
        copied = restore_plain(path, md5, run.root, lent.project)
        tell(f"input {path}: md5 {short(md5)} as recorded" + (f", {plural(copied, 'file')} copied from this checkout" if copied else ""))


def check_model(run: Run, path: str, source: str | None, tell: Callable[[str], None]) -> bool:
    """Whether fine-tuning starts from the model that it started from; False when what pinned that is not known. Raises InputError when it is another."""
    if not path:
        return True
    try:
        recorded = run.json(f"{Paths(Path()).sft_checkpoint}/{MANIFEST}")["parents"]["model"]
    except (RunError, KeyError):
        return False
    if recorded != source:
        raise InputError(f"model {path} is not what the run was made from: recorded is {recorded}, now it is {source}; bring its files back as they were")
    tell(f"input {path}: {source} as recorded")
    return True


def has_hash(path: str, run: Run, nouns: tuple[str, ...], lent: Worktree) -> bool:
    """Whether the file is one of the inputs, or in one, that were compared with their recorded hashes."""
    compared = {*source_dependencies(run.records[noun] for noun in nouns), *(one.path for one in tracked_files(lent.project))}
    place = Path(os.path.normpath(lent.project / path))
    return any(place.is_relative_to(lent.project / known) for known in compared)


def link_outside(paths: list[str], lent: Worktree) -> None:
    """Lend the worktree what the configuration names outside of what DVC and Git keep: a model's folder, a prompt file."""
    for path in filter(None, paths):
        place, source = lent.project / path, lent.checkout / path
        if not Path(path).is_absolute() and not place.exists() and source.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(source.resolve())


# -------------------------------------------------------------------------------------------------------------- a stage again


def make_again(run: Run, noun: str, lent: Worktree, warned: set[str], tell: Callable[[str], None], unhashed: Sequence[str] = ()) -> list[Row]:
    """Run one stage in the worktree and compare what it made; `unhashed` are files it reads that no hash was recorded of.

    Raises ReproduceError when it fails, or ran other code.
    """
    name, record = target(noun, run), run.records[noun]
    print(f"── {name}", file=sys.stderr, flush=True)
    started = time.monotonic()
    run_target(name, lent, stage_environment(run, noun, lent))
    again = own_record(run, noun, lent, read_lock(lent.project)[name])
    warned |= warn(environment_changes(record, again, BITS), warned, noun, tell)
    rows = compared(run, noun, again)
    if all(row.identical for row in rows):
        tell(f"{name}: identical ({plural(num_files(lent.project, rows), 'file')}, {time.monotonic() - started:.1f} s)")
    else:
        tell("\n".join([f"{name}: differs", *explanation(record, again, rows, unhashed)]))
    return rows


def compared(run: Run, noun: str, again: Record) -> list[Row]:
    """The stage's outputs, recorded and reproduced.

    The configuration of other experiments lies in the same folder. When it was written by another snapshot, only the files that this run
    read are compared.
    """
    record = run.records[noun]
    recorded, reproduced = record["outs"], again["outs"]
    if noun == "run_config" and record["snapshot"] != run.records[TRAINING]["snapshot"]:
        read = {path for other in run.records.values() for path in other["deps"]}
        recorded, reproduced = ({path: md5 for path, md5 in made["files"].items() if path in read} for made in (record, again))
    return [Row(target(noun, run), path, recorded.get(path), reproduced.get(path)) for path in sorted(recorded.keys() | reproduced.keys())]


def run_target(name: str, lent: Worktree, env: Mapping[str, str]) -> None:
    """`dvc repro` of one stage, which must do its work whatever DVC knows of it."""
    from pipelines.launcher import DVC_CHATTER, error_text

    program = Path(sys.executable).parent / "dvc"
    if not program.is_file():
        raise ReproduceError(f"no dvc beside {sys.executable}: install the project into this environment (`make install`)")
    with terminal_for_stages():
        chatter = re.compile(rf"{DVC_CHATTER.pattern}|^Running stage '|^> ")
        group = Group([str(program), "repro", "--force", "--single-item", name], cwd=lent.project, env=env, dropped=chatter)
        try:
            while (status := group.poll()) is None:
                time.sleep(0.05)
        except BaseException:
            whatever_comes(lambda: group.stop(GRACE_SECONDS))
            group.close()
            raise
        errors = group.close()
    if status != 0:
        raise StageFailed(f"{name} failed in the worktree {lent.project} (kept; `git worktree remove --force` it): {error_text(errors, status)}")


def own_record(run: Run, noun: str, lent: Worktree, entry: Entry) -> Record:
    """The record that the stage wrote in the worktree. Raises ReproduceError when there is none, or its code was not the worktree's."""
    record = read_record(Paths(lent.project, run.experiment), noun, entry.outs)
    if record is None:
        raise ReproduceError(f"{target(noun, run)} left no record under {lent.project / '.work'}: nothing says which code ran")
    code = Path(record["code"]).resolve()
    if not code.is_relative_to(lent.project.resolve()):
        raise ReproduceError(f"{target(noun, run)} imported its code from {code}, not from the worktree {lent.project}")
    return record


def num_files(project: Path, rows: list[Row]) -> int:
    places = [project / row.path for row in rows]
    return sum(sum(file.is_file() for file in place.rglob("*")) if place.is_dir() else 1 for place in places)
