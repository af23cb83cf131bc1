"""What of a stage goes into its MLflow run, and when: curves at every checkpoint, pictures and tables at the end."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from assets.alarms import halts_before, read_alarms
from assets.grpo_checkpoint import finished_run_key
from assets.page import Progress, ProgressCallback
from assets.paths import Paths
from assets.rewards import commonest_reasons
from assets.rollout_batches import KEYS
from assets.under_review import under_review
from grpo_core.config import SECTIONS, RunConfig
from grpo_core.exploits import exploits_table, findings
from grpo_core.health.logged import alarms_so_far
from grpo_core.params import section_values
from pipelines.records.provenance import Making
from pipelines.records.runs import VERDICT, related
from pipelines.tracking import MlflowSink, Status, mlflow_failures, open_run, page_address, provenance_tags, tracking_uri

SAMPLES = 10
"""Completions shown of the first and of the last step."""


class TrackingError(ValueError):
    """MLflow could not take what a stage reports."""


@contextmanager
def training_record(making: Making, config: RunConfig, work: Path) -> Iterator[ProgressCallback]:
    """The MLflow run of the training in the folder `work`: its curves follow the checkpoints, the rest is logged when the block ends well.

    MLflow failing on the way is a warning, and the next checkpoint sends what was missed. Raises `TrackingError` when it fails at the end.
    """
    paths = making.paths
    sink: MlflowSink | None = None
    warned = False
    told: list[Mapping[str, Any]] = []

    def record(progress: Progress) -> None:
        nonlocal sink, warned
        told.extend(notice.facts for notice in progress.notices)
        if not progress.checkpointed:
            return
        try:
            with _clear_errors(paths.root):
                # The folder's name is the run's key as it was when training began: the code on disk may have changed since.
                sink = sink or _open(making, config, work.name)
                sink.replay(work / "metrics.jsonl", work / "timings.jsonl", progress.step)
                sink.log_alarms(alarms_so_far(work, config, told))
                _keep_address(sink, paths)
        except TrackingError as error:
            sink = None
            if not warned:
                print(f"warning: {error}; training goes on, and each checkpoint tries again", file=sys.stderr, flush=True)
            warned = True

    try:
        yield record
    except BaseException as error:
        if sink is not None or told:
            _finish_stopped(lambda: sink or _open(making, config, work.name), paths.root, error, lambda: alarms_so_far(work, config, told))
        raise
    with _clear_errors(paths.root):
        log_training(sink or _open(making, config, work.name), making, config)


@contextmanager
def evaluation_record(making: Making, config: RunConfig) -> Iterator[ProgressCallback]:
    """Held-out numbers, picture and samples, added to the training's MLflow run when the block ends well."""
    yield lambda progress: None
    with _clear_errors(making.paths.root):
        log_evaluation(_open(making, config, finished_run_key(making.paths)), making)


@contextmanager
def review_record(making: Making, config: RunConfig) -> Iterator[ProgressCallback]:
    """How the pairs to judge were made, added to the training's MLflow run when the block ends well."""
    yield lambda progress: None
    with _clear_errors(making.paths.root):
        sink = _open(making, config, finished_run_key(making.paths))
        sink.log_records({making.noun: making.record()})
        sink.finish("FINISHED")


@contextmanager
def judgement_record(making: Making, config: RunConfig) -> Iterator[ProgressCallback]:
    """What people and the gate say of the policy, as tags and numbers of the training's MLflow run: candidates compare in its table of runs."""
    yield lambda progress: None
    with _clear_errors(making.paths.root):
        sink = _open(making, config, finished_run_key(making.paths))
        tags, numbers = judgements(making.noun, making.paths)
        sink.set_tags(tags)
        sink.log_summary(numbers, "review" if making.noun == VERDICT else "gate")
        sink.log_records({making.noun: making.record()})
        sink.finish("FINISHED")


def judgements(noun: str, paths: Paths) -> tuple[dict[str, str], dict[str, float]]:
    """Tags and numbers of the verdict, or of the promotion report."""
    if noun == VERDICT:
        verdict = json.loads(paths.blind_review_verdict.read_text(encoding="utf-8"))
        ends = verdict.get("win_rate", {})
        known = {f"win_rate{'' if name == 'estimate' else f'_{name}'}": ends[name] for name in ("estimate", "low", "high") if ends.get(name) is not None}
        return {"grpo.verdict": f"{verdict['status']}: {verdict['summary']}"}, {**known, "num_votes": verdict["num_votes"]}
    report = json.loads(paths.promotion_report.read_text(encoding="utf-8"))
    tags = {f"grpo.gate.{one['name']}": {True: "holds", False: "fails", None: "waits"}[one["passed"]] + f": {one['summary']}" for one in report["conditions"]}
    better = next(one["numbers"] for one in report["conditions"] if one["name"] == "better")
    known = {name: better[name] for name in ("difference", "low", "high") if better.get(name) is not None}
    return {"grpo.promotion": f"{report['status']}: {report['summary']}", **tags}, {**known, "number": report["number"]}


def log_training(sink: MlflowSink, making: Making, config: RunConfig) -> None:
    """All that a finished training leaves: curves to the last step, data, charts, samples, and how it and all before it was made."""
    from assets.charts import alarm_timeline, monitor_charts, training_charts
    from grpo_core.checkpoint import file_sha256

    paths = making.paths
    metrics = paths.grpo_checkpoint / "metrics.jsonl"
    rewards = pl.read_parquet(paths.rewards)
    sink.replay(metrics, paths.provenance("grpo_checkpoint") / "timings.jsonl", int(rewards["step"].max()), final=True)  # type: ignore[arg-type]  # an int column
    sink.log_inputs(pl.read_parquet(paths.prompts), file_sha256(paths.prompts))
    recorded, curves = read_alarms(paths.alarms), pl.read_ndjson(metrics, infer_schema_length=None)
    alarms = recorded or []
    charts = training_charts(curves, rewards, alarms) | monitor_charts(curves, pl.read_parquet(paths.select_completions), alarms)
    sink.log_figures({**charts, "alarms": alarm_timeline(curves, alarms)})
    rollouts = pl.read_parquet(paths.rollout_batches, columns=[*KEYS, "text", "length", "finish_reason"])
    sink.log_samples(training_samples(rollouts, rewards))
    if not (reasons := commonest_reasons(rewards.join(rollouts, on=KEYS, maintain_order="left"))).is_empty():
        sink.log_samples(reasons.head(SAMPLES), "reward_troubles")
    found = findings(pl.read_parquet(paths.exploits), config.rewards, config.scoring)
    sink.log_samples(exploits_table(found, everything=True), "exploits")
    sink.log_alarms(None if recorded is None else recorded + (read_alarms(paths.clock_alarms) or []), halts_before(paths.clock_alarms))
    sink.log_records(related(paths.root, making.record()))
    _keep_address(sink, paths)
    sink.finish("FINISHED")


def log_evaluation(sink: MlflowSink, making: Making) -> None:
    """All that a finished evaluation leaves."""
    from assets.charts import accuracy_bars

    paths = making.paths
    summary = json.loads(paths.heldout_summary.read_text(encoding="utf-8"))
    completions = pl.read_parquet(paths.heldout_completions)
    sink.log_summary(summary)
    sink.log_figures({"heldout_accuracy": accuracy_bars(summary)})
    hidden = under_review(paths, pl.read_parquet(paths.prompts), completions)
    shown = completions.filter((pl.col("decoding") == "greedy") & ~pl.col("prompt_id").is_in(list(hidden))).sort("prompt_id", "model").head(2 * SAMPLES)
    sink.log_samples(shown.select("model", "prompt_id", "text", "length", "correct", "reward"), "heldout_samples")
    sink.log_records({making.noun: making.record()})
    sink.finish("FINISHED")


def _finish_stopped(opened: Callable[[], MlflowSink], root: Path, error: BaseException, alarms: Callable[[], list[Mapping[str, Any]]]) -> None:
    """Close the run of a training that stopped; why it stopped matters more than that MLflow could not be told."""
    try:
        with _clear_errors(root):
            sink = opened()
            sink.finish(_status(error))
            sink.log_alarms(alarms())
    except (OSError, ValueError) as failure:  # MLflow, or a log that the very trouble has left half written
        print(f"warning: {failure}", file=sys.stderr, flush=True)


def _keep_address(sink: MlflowSink, paths: Paths) -> None:
    """Write down where the run is seen in MLflow's page: the asset pages link there."""
    address = paths.provenance("grpo_checkpoint") / "mlflow_url.txt"
    address.parent.mkdir(parents=True, exist_ok=True)
    address.write_text(sink.url(page_address(paths.root)) + "\n", encoding="utf-8")


def training_samples(rollouts: pl.DataFrame, rewards: pl.DataFrame) -> pl.DataFrame:
    """A few completions of the first and of the last step with what they earned: what was learned, side by side."""
    rows = rollouts.join(rewards.select(*KEYS, "reward", "advantage", "status", "reason"), on=KEYS, maintain_order="left")
    ends = [rows.filter(pl.col("step") == step).head(SAMPLES) for step in sorted({rows["step"].min(), rows["step"].max()})]  # type: ignore[type-var]
    return pl.concat(ends).select("step", "prompt_id", "text", "length", "finish_reason", "reward", "advantage", "status", "reason")


def _open(making: Making, config: RunConfig, run_key: str) -> MlflowSink:
    """The training's MLflow run. Its tags say what the training came from, so the stages after it set none."""
    params = {section: section_values(config, section) for section in SECTIONS}
    tags = provenance_tags(making.code, _inputs(making)) if making.noun == "grpo_checkpoint" else {}
    return open_run(making.paths.root, making.paths.experiment, run_key, params, tags)


def _inputs(making: Making) -> dict[str, str]:
    """Hashes of the data that a training reads, its configuration aside: that is logged number by number."""
    return {path: md5 for path, md5 in making.deps.items() if not path.startswith("data/run_config/")}


def _status(error: BaseException) -> Status:
    from grpo_core.errors import Interrupted

    return "KILLED" if isinstance(error, Interrupted | KeyboardInterrupt) else "FAILED"


@contextmanager
def _clear_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except mlflow_failures() as error:
        reason = str(error).strip().partition("\n")[0]
        raise TrackingError(f"MLflow at {tracking_uri(root)} failed: {reason}; repair it or set MLFLOW_TRACKING_URI (checkpoints are kept)") from error
