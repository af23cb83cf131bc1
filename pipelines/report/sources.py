"""Where what a report shows lies: the files of a finished run, checked against their hashes, or the work folder of one that is under way."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from assets.lineage import Lineage, lineage
from assets.paths import Paths
from grpo_core.health.logged import alarms_so_far, halts
from grpo_core.params import parse_sections
from grpo_core.requirements import ConfigError
from pipelines.lineage.trace import outputs
from pipelines.records.files import Record
from pipelines.records.runs import RunError, find_run
from pipelines.resume_state import read_marker

MANIFEST = "manifest.json"


class ReportError(ValueError):
    """A report that cannot be written."""


@dataclass(frozen=True, slots=True)
class Sources:
    """One run's tables. What has not been made yet, or is not on this machine, is None."""

    paths: Paths
    run_key: str | None
    under_way: bool
    """The training has not ended (or was stopped): everything is as far as it has come."""
    halted_at: int | None
    """The step at which the health monitor ended it, where it has not come past that since."""
    made_from: Lineage
    records: Mapping[str, Record]
    """Noun → how it was made; empty when no record of the run is here."""
    files: Mapping[str, Path | None]
    """Repository-relative path of every output → where its bytes are."""
    metrics: pl.DataFrame
    rollouts: pl.LazyFrame | None
    rewards: pl.DataFrame | None
    exploits: pl.DataFrame | None
    select: pl.DataFrame | None
    prompts: pl.DataFrame | None
    heldout: pl.DataFrame | None
    summary: Mapping[str, Any] | None
    """Numbers of the held-out evaluation of these very weights."""
    alarms: Mapping[str, Any] | None
    """`num_steps` and `alarms`, as alarms.json has them, with those of the clock; None when health was not recorded."""


def find_sources(root: Path, experiment: str) -> Sources:
    """The run that the experiment's folder holds; without one the newest training that has not ended; else what DVC's cache still has of one.

    Raises `RunError` when the experiment was never trained here, `ReportError` when a file of it cannot be read.
    """
    paths = Paths(root, experiment)
    work = None if (paths.grpo_checkpoint / MANIFEST).is_file() else _unfinished(paths)
    try:
        return _finished(paths) if work is None else _under_way(paths, work)
    except pl.exceptions.PolarsError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ReportError(f"a table of experiment {experiment!r} cannot be read ({reason}): `grpo verify` says which file is damaged") from error


def _finished(paths: Paths) -> Sources:
    try:
        run = find_run(paths.root, paths.experiment)
    except RunError:
        if not (paths.grpo_checkpoint / MANIFEST).is_file():
            raise
        # Files that came here without records and dvc.lock: they are taken as they lie.
        return _gathered(paths, lineage(paths.experiment, {}, _in_workspace(paths.root)), {}, _in_workspace(paths.root))
    located = cache(run.file)
    return _gathered(paths, lineage(run.experiment, run.records, located), run.records, located)


def _gathered(paths: Paths, made_from: Lineage, records: Mapping[str, Record], located: Callable[[str], Path]) -> Sources:
    files = {path: _found(located, path) for path in outputs(paths.experiment)}
    # Git keeps the summary, DVC's cache does not: the record has it when the file is gone.
    recorded = _recorded(paths, records, paths.heldout_summary)
    if recorded is None and not records:
        recorded = _json(paths.heldout_summary)

    def at(path: Path) -> Path | None:
        return files.get(path.relative_to(paths.root).as_posix())

    curves, rollouts = at(paths.grpo_checkpoint / "metrics.jsonl"), at(paths.rollout_batches)
    heldout = _table(at(paths.heldout_completions))
    # Records chain by hashes; without them the answers themselves say which weights gave them.
    if heldout is not None and not records and not _of_policy(heldout, made_from):
        heldout, recorded = None, None
    return Sources(
        paths=paths,
        run_key=made_from.run_key,
        under_way=False,
        halted_at=None,
        made_from=made_from,
        records=records,
        files=files,
        metrics=pl.DataFrame() if curves is None else pl.read_ndjson(curves, infer_schema_length=None),
        rollouts=None if rollouts is None else pl.scan_parquet(rollouts),
        rewards=_table(at(paths.rewards)),
        exploits=_table(at(paths.exploits)),
        select=_table(at(paths.select_completions)),
        prompts=_table(at(paths.prompts)),
        heldout=heldout,
        summary=recorded,
        alarms=_alarms(paths, _json(paths.alarms) or _recorded(paths, records, paths.alarms)),
    )


def _under_way(paths: Paths, work: Path) -> Sources:
    """A training as far as it has come: a shard a step in its work folder, and the curves up to the last whole line."""
    made_from = lineage(paths.experiment, {}, _in_workspace(paths.root))
    whole = (work / "metrics.jsonl").read_bytes().rpartition(b"\n")[0]
    metrics = pl.read_ndjson(io.BytesIO(whole), infer_schema_length=None) if whole else pl.DataFrame()
    last = int(metrics["step"].max()) if "step" in metrics.columns else 0  # type: ignore[arg-type]  # an integer column with a row a line
    shards = {kind: sorted((work / kind).glob("step-*.parquet")) for kind in ("rollouts", "rewards", "select", "exploits")}
    tables = {kind: pl.read_parquet(found) if found else None for kind, found in shards.items() if kind != "rollouts"}
    halting = halts(work, after=last)
    told = [alarm for halt in halting for alarm in halt.alarms]
    try:
        alarms = alarms_so_far(work, parse_sections(made_from.config), told)
    except ConfigError:  # the configuration was never written here, or is not what today's code reads
        alarms = told
    files: dict[str, Path | None] = {f"{work.relative_to(paths.root).as_posix()}/": work, **_existing(paths)}
    return Sources(
        paths=paths,
        run_key=work.name,
        under_way=True,
        halted_at=max((halt.step for halt in halting), default=None),
        made_from=replace(made_from, run_key=work.name, step=last),
        records={},
        files=files,
        metrics=metrics,
        rollouts=pl.scan_parquet(shards["rollouts"]) if shards["rollouts"] else None,
        rewards=tables["rewards"],
        exploits=tables["exploits"],
        select=tables["select"],
        prompts=_table(paths.prompts if paths.prompts.is_file() else None),
        heldout=None,
        summary=None,
        alarms={"num_steps": last, "alarms": alarms},
    )


# ------------------------------------------------------------------------------------------------------------- pieces


def _unfinished(paths: Paths) -> Path | None:
    """The work folder of the newest training of the experiment that has not ended; None when there is none."""
    logs = (paths.work / "grpo_checkpoint" / paths.experiment).glob("*/metrics.jsonl")
    unended = [log for log in logs if read_marker(log.parent) is None]
    return max(unended, key=lambda log: log.stat().st_mtime_ns).parent if unended else None


def _in_workspace(root: Path) -> Callable[[str], Path]:
    """Finds files where they should lie, whatever is in them."""

    def locate(path: str) -> Path:
        if not (root / path).is_file():
            raise ReportError("not in the workspace")
        return root / path

    return locate


def _found(locate: Callable[[str], Path], path: str) -> Path | None:
    try:
        return locate(path)
    except ValueError:
        return None


def _existing(paths: Paths) -> dict[str, Path | None]:
    """What the stages before training have left."""
    before = (paths.prompts, paths.sft_checkpoint / MANIFEST, paths.reference_checkpoint / MANIFEST)
    return {path.relative_to(paths.root).as_posix(): path if path.is_file() else None for path in before}


def _table(path: Path | None) -> pl.DataFrame | None:
    return None if path is None else pl.read_parquet(path)


def _of_policy(heldout: pl.DataFrame, made_from: Lineage) -> bool:
    """Whether the policy's answers are those of the weights that the report is about."""
    digest = made_from.weights["policy"]["policy_digest"]
    own = heldout.filter(pl.col("model") == "policy")["policy_digest"]
    return digest is None or bool((own == digest).all())


def _alarms(paths: Paths, recorded: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The alarms of the metrics, and after them those of the clock where that file is there (it is not versioned)."""
    clock = _json(paths.clock_alarms)
    return None if recorded is None else {**recorded, "alarms": [*recorded["alarms"], *(clock["alarms"] if clock else ())]}


def _recorded(paths: Paths, records: Mapping[str, Record], path: Path) -> dict[str, Any] | None:
    """What a JSON file held when its stage ended."""
    name = path.relative_to(paths.root).as_posix()
    return next((dict(record["metrics"][name]) for record in records.values() if name in record["metrics"]), None)


def _json(path: Path) -> dict[str, Any] | None:
    """A JSON file's object; None when there is no such file."""
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ReportError(f"{path} is not JSON ({error}): delete it, then run its stage again (`grpo run`)") from error
