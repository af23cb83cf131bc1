"""Where what a report shows lies: the files of a finished run, checked against their hashes, or the work folder of one that is under way."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from assets.alarms import halts_before
from assets.lineage import Lineage, lineage
from assets.paths import Paths
from grpo_core.health.logged import alarms_so_far, halts
from grpo_core.params import parse_sections
from grpo_core.requirements import ConfigError, nearest
from grpo_core.tables import KEYS
from pipelines.lineage.trace import outputs
from pipelines.lock import read_lock
from pipelines.params import load_params
from pipelines.records.files import Record
from pipelines.records.runs import RunError, find_run, trained_experiments
from pipelines.resume_state import read_marker

MANIFEST = "manifest.json"
Found = TypeVar("Found")


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
    halts: str
    """What to say of the halts that came before."""
    unreadable: Sequence[str]
    """A sentence for every file that is there and cannot be read: its part of the page is missing, no other is."""
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


class Reading:
    """Reads the files of a run; of one that cannot be read it keeps why, and gives None."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unreadable: list[str] = []

    def table(self, path: Path | None) -> pl.DataFrame | None:
        return None if path is None else self._try(path, lambda: pl.read_parquet(path))

    def lines(self, path: Path | None) -> pl.DataFrame:
        """A file of JSON lines up to its last whole one; no rows without it."""
        if path is None or not (whole := path.read_bytes().rpartition(b"\n")[0]):
            return pl.DataFrame()
        found = self._try(path, lambda: pl.read_ndjson(io.BytesIO(whole), infer_schema_length=None))
        return pl.DataFrame() if found is None else found

    def shards(self, paths: Sequence[Path]) -> pl.DataFrame | None:
        """One table of a file a step; without those that cannot be read."""
        read = [table for path in paths if (table := self.table(path)) is not None]
        return pl.concat(read) if read else None

    def json(self, path: Path) -> dict[str, Any] | None:
        return self._try(path, lambda: dict(json.loads(path.read_bytes()))) if path.is_file() else None

    def ledger(self, paths: Sequence[Path]) -> pl.LazyFrame | None:
        """Tables of rollouts as one, not read yet; what is shown of them was read once, so that it can be read."""
        columns = [*KEYS, "text", "length", "finish_reason"]
        whole = [path for path in paths if self._try(path, pl.scan_parquet(path).select(pl.col(columns).hash()).collect) is not None]
        return pl.scan_parquet(whole) if whole else None

    def _try(self, path: Path, read: Callable[[], Found]) -> Found | None:
        try:
            return read()
        except (OSError, ValueError, TypeError, pl.exceptions.PolarsError) as error:
            shown = path.relative_to(self.root) if path.is_relative_to(self.root) else path
            reason = str(error).strip().partition("\n")[0]
            self.unreadable.append(f"{shown} cannot be read ({reason}): `grpo verify` says what is damaged and how to get it back")
            return None


def find_sources(root: Path, experiment: str) -> Sources:
    """The run that the experiment's folder holds; without one the newest training that has not ended; else what DVC's cache still has of one.

    Raises `ReportError` for a name that is no experiment, `RunError` for one that was never trained here.
    """
    paths = Paths(root, experiment)
    work = None if (paths.grpo_checkpoint / MANIFEST).is_file() else _unfinished(paths)
    if work is None:
        _require_experiment(root, experiment)
    return _finished(paths) if work is None else _under_way(paths, work)


def _require_experiment(root: Path, name: str) -> None:
    """Other commands take a run by any of its names; a page is of what an experiment's folder holds."""
    known = set(trained_experiments(root, read_lock(root)))
    if name in known:
        return
    with suppress(ConfigError):  # what is wrong with params.yaml is not what was asked for
        known |= (load_params(root).get("experiments") or {}).keys()
    if name not in known:
        hint = nearest(name, sorted(known)).replace("valid keys:", "there are") if known else "no experiment has been trained here (`grpo run` does it)"
        raise ReportError(f"{name!r} is no experiment: {hint}")


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
    reading = Reading(paths.root)
    # Git keeps the summary, DVC's cache does not: the record has it when the file is gone.
    recorded = _recorded(paths, records, paths.heldout_summary)
    if recorded is None and not records:
        recorded = reading.json(paths.heldout_summary)

    def at(path: Path) -> Path | None:
        return files.get(path.relative_to(paths.root).as_posix())

    curves, rollouts = at(paths.grpo_checkpoint / "metrics.jsonl"), at(paths.rollout_batches)
    heldout = reading.table(at(paths.heldout_completions))
    # Records chain by hashes; without them the answers themselves say which weights gave them.
    if heldout is not None and not records and not _of_policy(heldout, made_from):
        heldout, recorded = None, None
    return Sources(
        paths=paths,
        run_key=made_from.run_key,
        under_way=False,
        halted_at=None,
        halts=halts_before(paths.clock_alarms),
        unreadable=reading.unreadable,
        made_from=made_from,
        records=records,
        files=files,
        metrics=reading.lines(curves),
        rollouts=None if rollouts is None else reading.ledger([rollouts]),
        rewards=reading.table(at(paths.rewards)),
        exploits=reading.table(at(paths.exploits)),
        select=reading.table(at(paths.select_completions)),
        prompts=reading.table(at(paths.prompts)),
        heldout=heldout,
        summary=recorded,
        alarms=_alarms(paths, records, reading),
    )


def _under_way(paths: Paths, work: Path) -> Sources:
    """A training as far as it has come: a shard a step in its work folder, and the curves up to the last whole line."""
    made_from = lineage(paths.experiment, {}, _in_workspace(paths.root))
    reading = Reading(paths.root)
    metrics = reading.lines(work / "metrics.jsonl")
    last = int(metrics["step"].max()) if "step" in metrics.columns else 0  # type: ignore[arg-type]  # an integer column with a row a line
    shards = {kind: sorted((work / kind).glob("step-*.parquet")) for kind in ("rollouts", "rewards", "select", "exploits")}
    tables = {kind: reading.shards(found) for kind, found in shards.items() if kind != "rollouts"}
    rollouts, prompts = reading.ledger(shards["rollouts"]), reading.table(paths.prompts if paths.prompts.is_file() else None)
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
        halts="",
        unreadable=[*reading.unreadable, *(f"halted at step {halt.step}: {halt.fault}" for halt in halting if halt.fault)],
        made_from=replace(made_from, run_key=work.name, step=last),
        records={},
        files=files,
        metrics=metrics,
        rollouts=rollouts,
        rewards=tables["rewards"],
        exploits=tables["exploits"],
        select=tables["select"],
        prompts=prompts,
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


def _of_policy(heldout: pl.DataFrame, made_from: Lineage) -> bool:
    """Whether the policy's answers are those of the weights that the report is about."""
    digest = made_from.weights["policy"]["policy_digest"]
    own = heldout.filter(pl.col("model") == "policy")["policy_digest"]
    return digest is None or bool((own == digest).all())


def _alarms(paths: Paths, records: Mapping[str, Record], reading: Reading) -> dict[str, Any] | None:
    """The alarms of the metrics, and after them those of the clock where that file is there (it is not versioned).

    What the stage recorded when it ended is what counts: a file that says otherwise since was altered, which is told.
    """
    recorded, lying = _recorded(paths, records, paths.alarms), reading.json(paths.alarms)
    if recorded is not None and lying is not None and lying != recorded:
        name = paths.alarms.relative_to(paths.root)
        reading.unreadable.append(f"{name} was altered since it was written; shown is what was recorded: `dvc repro` writes it again")
    found, clock = recorded or lying, reading.json(paths.clock_alarms)
    return None if found is None else {**found, "alarms": [*found["alarms"], *(clock["alarms"] if clock else ())]}


def _recorded(paths: Paths, records: Mapping[str, Record], path: Path) -> dict[str, Any] | None:
    """What a JSON file held when its stage ended."""
    name = path.relative_to(paths.root).as_posix()
    return next((dict(record["metrics"][name]) for record in records.values() if name in record["metrics"]), None)
