"""Whether what a promotion would rest on is as the stages wrote it: dvc.lock, records, files and the report agree. Nothing is believed that was edited."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

from assets.paths import Paths
from pipelines.lock import Entry, read_lock, read_yaml
from pipelines.params import read_run_config
from pipelines.records.files import Record, read_record
from pipelines.records.runs import RunError, find_run
from pipelines.records.stage_files import StageFiles, stage_files
from pipelines.reproduction.inputs import dependency_md5

REPORT = "promotion_report"
JUDGING = ("heldout_eval", "champion_eval", "blind_review_set", "blind_review_verdict", REPORT)
"""Stages whose code must be that of now, too: what judged a policy is what is there to be read."""
MOVING = ("looks", "policies")
"""What a report counts over all experiments: it grows when another one is looked at, and the candidate's own number stays."""


class EvidenceError(ValueError):
    """Evidence that is not as it was written."""


@dataclass(frozen=True, slots=True)
class Made:
    """One stage that the report rests on."""

    noun: str
    target: str
    files: StageFiles


def check_evidence(root: Path, experiment: str) -> dict[str, Any]:
    """The promotion report of the experiment, once all of it was found as the stages wrote it. Raises `EvidenceError` that names everything that was not."""
    paths = Paths(root, experiment)
    lock, stages = read_lock(root), stages_before(root, REPORT, experiment)
    md5: Callable[[str], str | None] = cache(partial(dependency_md5, root))
    faults: list[str] = []
    for stage in stages:
        entry = lock.get(stage.target)
        faults += (
            [f"dvc.lock has no {stage.target}: it was never made"] if entry is None else [*file_faults(stage, entry, md5), *record_faults(paths, stage, entry)]
        )
    if not faults:
        faults = manifest_faults(paths)
    if faults:
        again = (
            f"make it again: `dvc repro {REPORT}@{experiment}` (with `--force --single-item TARGET` for one whose files were edited; `grpo verify` names them)"
        )
        raise EvidenceError("\n".join([f"the evidence for {experiment!r} is not as it was written:", *(f"  {fault}" for fault in faults), again]))
    return checked_report(paths)


def stages_before(root: Path, noun: str, experiment: str) -> list[Made]:
    """The stage, and before it every stage of dvc.yaml that it reads from, directly or not."""
    declared = read_yaml(root / "dvc.yaml")["stages"]
    known = {name: Made(name, f"{name}@{experiment}" if "foreach" in stage else name, stage_files(root, name, experiment)) for name, stage in declared.items()}
    if noun not in known:
        raise EvidenceError(f"{root / 'dvc.yaml'} has no stage {noun!r}: `git diff dvc.yaml` shows what was changed")
    found, wanted = {noun}, [noun]
    while wanted:
        read = known[wanted.pop()].files.deps
        makers = {name for name, stage in known.items() if any(_overlap(path, out) for path in read for out in _outputs(stage))} - found
        found |= makers
        wanted += makers
    return [stage for name, stage in known.items() if name in found]


def file_faults(stage: Made, entry: Entry, md5: Callable[[str], str | None]) -> list[str]:
    """What the stage read and wrote, by the bytes on disk, against dvc.lock."""
    judged_by = [path for path in entry.deps if not path.startswith("data/")] if stage.noun in JUDGING else []
    faults = [f"{path} of {stage.target} {_state(md5(path))}" for path in _outputs(stage) if md5(path) is None or md5(path) != entry.outs.get(path)]
    for path in (*stage.files.deps, *judged_by):
        if md5(path) is None or md5(path) != entry.deps.get(path):
            faults.append(f"{path} is not what {stage.target} was made from: {stage.target} is out of date, or a file or dvc.lock was edited")
    return faults


def record_faults(paths: Paths, stage: Made, entry: Entry) -> list[str]:
    """What dvc.lock says of the stage, against the sealed record that the stage wrote."""
    try:
        record = read_record(paths, stage.noun, entry.outs) or _logged_record(paths, stage, entry)
    except ValueError as error:
        return [str(error)]
    if record is None:
        return [
            f"no record tells that {stage.target} made what dvc.lock names: it was edited, or made elsewhere (`dvc repro --force --single-item {stage.target}`)"
        ]
    read = {path: md5 for path, md5 in entry.deps.items() if path.startswith("data/")}
    return [] if dict(record["deps"]) == read else [f"dvc.lock says that {stage.target} was made from other files than its record says: dvc.lock was edited"]


def manifest_faults(paths: Paths) -> list[str]:
    """The policy's weights against the hashes that were written with them."""
    from grpo_core.checkpoint import BrokenFolder, read_manifest

    try:
        read_manifest(paths.grpo_checkpoint)
    except BrokenFolder as error:
        return [str(error)]
    return []


def checked_report(paths: Paths) -> dict[str, Any]:
    """The report on disk, once the one that is made from its inputs now was found to be the same."""
    from assets.promotion_report import make_report

    kept: dict[str, Any] = json.loads(paths.promotion_report.read_bytes())
    made: dict[str, Any] = json.loads(json.dumps(make_report(paths, read_run_config(paths))))
    if differing := sorted(_differences(kept, made)):
        told = f"{paths.promotion_report.relative_to(paths.root)} is not what its inputs give now ({', '.join(differing)} differ)"
        raise EvidenceError(f"{told}: make it again with `dvc repro --force --single-item {REPORT}@{paths.experiment}`")
    return made


def _differences(kept: Mapping[str, Any], made: Mapping[str, Any]) -> Iterable[str]:
    return (name for name in kept.keys() | made.keys() if name not in MOVING and kept.get(name) != made.get(name))


def _logged_record(paths: Paths, stage: Made, entry: Entry) -> Record | None:
    """The record as MLflow holds it, where the stage ran on another machine."""
    try:
        record = find_run(paths.root, paths.experiment).records.get(stage.noun)
    except RunError:
        return None
    return record if record is not None and record["outs"] == entry.outs and record["started"] is not None else None


def _outputs(stage: Made) -> tuple[str, ...]:
    return (*stage.files.outs, *stage.files.metrics)


def _overlap(path: str, out: str) -> bool:
    one, other = PurePosixPath(path), PurePosixPath(out)
    return one.is_relative_to(other) or other.is_relative_to(one)


def _state(md5: str | None) -> str:
    return "is not in the workspace (`dvc checkout` brings it back)" if md5 is None else "is not what dvc.lock names: the file or dvc.lock was edited"
