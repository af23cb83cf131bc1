"""What of a stage goes into its MLflow run, and when: curves at every checkpoint, pictures and tables at the end."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from assets.grpo_checkpoint import finished_run_key
from assets.page import Progress, ProgressCallback
from assets.paths import Paths
from assets.rollout_batches import KEYS
from grpo_core.config import SECTIONS, RunConfig, section_values
from pipelines.lock import read_lock
from pipelines.provenance import git_state
from pipelines.tracking import MlflowSink, Status, open_run, page_address, provenance_tags, tracking_uri

SAMPLES = 10
"""Completions shown of the first and of the last step."""


class TrackingError(ValueError):
    """MLflow could not take what a stage reports."""


@contextmanager
def training_record(paths: Paths, config: RunConfig, work: Path) -> Iterator[ProgressCallback]:
    """The MLflow run of the training in the folder `work`: its curves follow the checkpoints, the rest is logged when the block ends well.

    MLflow failing on the way is a warning, and the next checkpoint sends what was missed. Raises `TrackingError` when it fails at the end.
    """
    sink: MlflowSink | None = None
    warned = False

    def record(progress: Progress) -> None:
        nonlocal sink, warned
        if not progress.checkpointed:
            return
        try:
            with _clear_errors(paths.root):
                # The folder's name is the run's key as it was when training began: the code on disk may have changed since.
                sink = sink or _open(paths, config, work.name)
                sink.replay(work / "metrics.jsonl", work / "timings.jsonl", progress.step)
                _keep_address(sink, paths)
        except TrackingError as error:
            sink = None
            if not warned:
                print(f"warning: {error}; training goes on, and each checkpoint tries again", file=sys.stderr, flush=True)
            warned = True

    try:
        yield record
    except BaseException as error:
        if sink is not None:
            _finish_stopped(sink, paths.root, error)
        raise
    with _clear_errors(paths.root):
        log_training(sink or _open(paths, config, finished_run_key(paths)), paths)


@contextmanager
def evaluation_record(paths: Paths, config: RunConfig) -> Iterator[ProgressCallback]:
    """Held-out numbers, picture and samples, added to the training's MLflow run when the block ends well."""
    yield lambda progress: None
    with _clear_errors(paths.root):
        log_evaluation(_open(paths, config, finished_run_key(paths)), paths)


def log_training(sink: MlflowSink, paths: Paths) -> None:
    """All that a finished training leaves: curves to the last step, data, charts and samples."""
    from assets.charts import training_charts
    from grpo_core.checkpoint import file_sha256

    metrics = paths.grpo_checkpoint / "metrics.jsonl"
    rewards = pl.read_parquet(paths.rewards)
    sink.replay(metrics, paths.provenance("grpo_checkpoint") / "timings.jsonl", int(rewards["step"].max()))  # type: ignore[arg-type]  # an int column
    sink.log_inputs(pl.read_parquet(paths.prompts), file_sha256(paths.prompts))
    sink.log_figures(training_charts(pl.read_ndjson(metrics, infer_schema_length=None), rewards))
    sink.log_samples(training_samples(pl.read_parquet(paths.rollout_batches), rewards))
    _keep_address(sink, paths)
    sink.finish("FINISHED")


def log_evaluation(sink: MlflowSink, paths: Paths) -> None:
    """All that a finished evaluation leaves."""
    from assets.charts import accuracy_bars

    summary = json.loads(paths.heldout_summary.read_text(encoding="utf-8"))
    completions = pl.read_parquet(paths.heldout_completions)
    sink.log_summary(summary)
    sink.log_figures({"heldout_accuracy": accuracy_bars(summary)})
    shown = completions.filter(pl.col("decoding") == "greedy").sort("prompt_id", "model").head(2 * SAMPLES)
    sink.log_samples(shown.select("model", "prompt_id", "text", "length", "correct", "reward"), "heldout_samples")
    sink.finish("FINISHED")


def _finish_stopped(sink: MlflowSink, root: Path, error: BaseException) -> None:
    """Close the run of a training that stopped; why it stopped matters more than that MLflow could not be told."""
    try:
        with _clear_errors(root):
            sink.finish(_status(error))
    except TrackingError as failure:
        print(f"warning: {failure}", file=sys.stderr, flush=True)


def _keep_address(sink: MlflowSink, paths: Paths) -> None:
    """Write down where the run is seen in MLflow's page: the asset pages link there."""
    address = paths.provenance("grpo_checkpoint") / "mlflow_url.txt"
    address.parent.mkdir(parents=True, exist_ok=True)
    address.write_text(sink.url(page_address(paths.root)) + "\n", encoding="utf-8")


def training_samples(rollouts: pl.DataFrame, rewards: pl.DataFrame) -> pl.DataFrame:
    """A few completions of the first and of the last step with what they earned: what was learned, side by side."""
    rows = rollouts.join(rewards.select(*KEYS, "reward", "advantage"), on=KEYS, maintain_order="left")
    ends = [rows.filter(pl.col("step") == step).head(SAMPLES) for step in sorted({rows["step"].min(), rows["step"].max()})]  # type: ignore[type-var]
    return pl.concat(ends).select("step", "prompt_id", "text", "length", "finish_reason", "reward", "advantage")


def _open(paths: Paths, config: RunConfig, run_key: str) -> MlflowSink:
    params = {section: section_values(config, section) for section in SECTIONS}
    state = git_state(paths.root)
    made = {str(path.relative_to(paths.root)) for path in (paths.prompts, paths.sft_checkpoint, paths.reference_checkpoint)}
    hashes = {path: md5 for entry in read_lock(paths.root).values() for path, md5 in entry.outs.items() if path in made}
    tags = provenance_tags(state["commit"] or "none", dirty=bool(state["dirty"]), hashes=hashes)
    return open_run(paths.root, paths.experiment, run_key, params, tags)


def _status(error: BaseException) -> Status:
    from grpo_core.errors import Interrupted

    return "KILLED" if isinstance(error, Interrupted | KeyboardInterrupt) else "FAILED"


@contextmanager
def _clear_errors(root: Path) -> Iterator[None]:
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, RequestException, SQLAlchemyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise TrackingError(f"MLflow at {tracking_uri(root)} failed: {reason}; repair it or set MLFLOW_TRACKING_URI (checkpoints are kept)") from error
