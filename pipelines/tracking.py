"""The MLflow run of one experiment: parameters, curves, inputs, samples, figures and held-out numbers.

A run is found again by its run key, so a resumed or repeated stage goes on with the run it began. Curves are replayed from
`metrics.jsonl` up to the newest checkpoint and only points that MLflow does not hold are sent: killing a run at any moment and
resuming it neither doubles nor gaps a curve.
"""

import json
import logging
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from assets.alarms import NOT_RECORDED, open_conditions
from pipelines.records.snapshot import Snapshot

if TYPE_CHECKING:
    import polars as pl
    from mlflow import MlflowClient

EXPERIMENT = "grpo"
"""Name of the one MLflow experiment that holds all runs."""
HEALTH_TAG, ALARM_TAG, HALTS_TAG = "grpo.health", "grpo.alarm.", "grpo.halts"
RUN_KEY_TAG, EXPERIMENT_TAG, SUPERSEDED_TAG, CHANGED_TAG = "grpo.run_key", "grpo.experiment", "grpo.superseded_by", "grpo.changed."
RECORDS = "record"
"""Artifact folder of the records: how the run's outputs were made, a JSON file a noun."""
WALL_CLOCK = ("seconds", "tokens_per_second")
"""Curves that come from timings.jsonl: the clock's, so they may differ when the same steps are done again."""
PARAMS_PER_BATCH, METRICS_PER_BATCH, MAX_PARAM_LENGTH, MAX_DIGEST_LENGTH = 100, 1000, 500, 36

DEFAULT_PORT = 5000
"""Of MLflow's page under `grpo ui`."""

Status = Literal["FINISHED", "KILLED", "FAILED"]


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a curve."""

    key: str
    value: float
    step: int
    timestamp_ms: int


# ---------------------------------------------------------------------------------------------------------------- the run


@dataclass(slots=True)
class MlflowSink:
    """An open run. Every method may be called again with the same arguments and leaves the run as it was."""

    client: "MlflowClient"
    experiment_id: str
    run_id: str
    status_before: str
    """Status of the run before this process opened it."""
    sent: dict[tuple[str, int], float] | None = field(default=None, repr=False)
    """Value by (curve, step) that MLflow holds; None until the first replay asks for it."""

    def replay(self, metrics_path: Path, timings_path: Path, up_to_step: int, *, final: bool = False) -> int:
        """Send the points of steps up to `up_to_step` (the newest checkpoint's) that MLflow lacks; returns how many those were.

        Training that was done anew and came out different (other code or hardware under the same run key) gets a run of its own, and so
        does one whose last step (`final`) comes before points of a longer one; the old run stays and is tagged as superseded.
        """
        points = read_points(metrics_path, timings_path, up_to_step, self._start_ms())
        if self.sent is None:
            self.sent = self._history()
        curves = {p.key for p in points}
        longer = final and any(key in curves and step > up_to_step for key, step in self.sent)
        if longer or any(self.sent.get((p.key, p.step), p.value) != p.value for p in points if p.key not in WALL_CLOCK):
            self._supersede()
            return self.replay(metrics_path, timings_path, up_to_step, final=final)
        missing = [p for p in points if (p.key, p.step) not in self.sent]
        self._send(missing)
        self.sent.update({(p.key, p.step): p.value for p in missing})
        return len(missing)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Tags of the run, cut to what MLflow takes."""
        for key, value in tags.items():
            self.client.set_tag(self.run_id, key, value[:MAX_PARAM_LENGTH])

    def log_summary(self, summary: Mapping[str, object], group: str = "heldout") -> None:
        """Numbers as `eval/<group>/<key>`; a changed number is a new point, whose step counts the evaluations."""
        now = time.time_ns() // 1_000_000
        changed = []
        for name, value in summary.items():
            key = f"eval/{group}/{valid_name(name)}"
            number = as_number(value)
            if number is None:
                continue
            history = self.client.get_metric_history(self.run_id, key)
            if not history or max(history, key=lambda m: m.step).value != number:
                changed.append(Point(key, number, len(history), now))
        self._send(changed)

    def log_samples(self, frame: "pl.DataFrame", name: str = "samples") -> None:
        """The frame as a table that MLflow's UI shows, replacing the one of the same name."""
        path = f"{name}.json"
        rows = [[cell if isinstance(cell, str | int | float | bool | None) else str(cell) for cell in row] for row in frame.rows()]
        self.client.log_text(self.run_id, json.dumps({"columns": frame.columns, "data": rows}), path)
        tables = json.loads(self.client.get_run(self.run_id).data.tags.get("mlflow.loggedArtifacts", "[]"))
        entry = {"path": path, "type": "table"}
        if entry not in tables:
            self.client.set_tag(self.run_id, "mlflow.loggedArtifacts", json.dumps([*tables, entry]))

    def log_inputs(self, prompts: "pl.DataFrame", digest: str, *, name: str = "prompts", source: str = "data/prompts/prompts.parquet") -> None:
        """The table the run learned from, as an MLflow dataset named by its content hash."""
        from mlflow.data import from_polars
        from mlflow.data.sources import LocalArtifactDatasetSource
        from mlflow.entities import DatasetInput, InputTag

        dataset = from_polars(prompts, source=LocalArtifactDatasetSource(source), name=name, digest=digest[:MAX_DIGEST_LENGTH])
        tag = InputTag(key="mlflow.data.context", value="training")
        self.client.log_inputs(self.run_id, [DatasetInput(dataset._to_mlflow_entity(), [tag])])

    def log_figures(self, figures: Mapping[str, bytes]) -> None:
        """PNG pictures under `figures/`, replacing those of the same name."""
        with tempfile.TemporaryDirectory() as folder:
            for name, png in figures.items():
                (Path(folder) / f"{name}.png").write_bytes(png)
            self.client.log_artifacts(self.run_id, folder, "figures")

    def log_records(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """How outputs were made, by noun, under `record/`, replacing those of the same nouns: the run's id is enough to find them on another machine."""
        with tempfile.TemporaryDirectory() as folder:
            for noun, record in records.items():
                (Path(folder) / f"{noun}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            self.client.log_artifacts(self.run_id, folder, RECORDS)

    def log_alarms(self, alarms: Sequence[Mapping[str, Any]] | None, halts: str = "") -> None:
        """What the health monitor said so far (None: nobody watched), a tag a condition, which are open, and what halts came before.

        Tags of an earlier try that did not come again go.
        """
        said: dict[str, str] = {}
        for alarm in alarms or ():
            accepted = f" (accepted: {alarm['acknowledged']})" if alarm.get("acknowledged") else ""
            said.setdefault(f"{ALARM_TAG}{alarm['condition']}", f"step {alarm['first_step']}: {alarm['message']}{accepted}")
        is_open = sorted(open_conditions(alarms or ()))
        said[HEALTH_TAG] = NOT_RECORDED if alarms is None else f"open: {', '.join(is_open)}" if is_open else "healthy"
        if halts:
            said[HALTS_TAG] = halts
        for key, value in said.items():
            self.client.set_tag(self.run_id, key, value)
        for key in self.client.get_run(self.run_id).data.tags:
            if (key.startswith(ALARM_TAG) or key == HALTS_TAG) and key not in said:
                self.client.delete_tag(self.run_id, key)

    def finish(self, status: Status) -> None:
        """Close the run; opening it again sets it running."""
        self.client.set_terminated(self.run_id, status)

    def url(self, base: str) -> str:
        """Where the MLflow UI at `base` shows this run (as training; by default it shows language model applications)."""
        return f"{base.rstrip('/')}/#/experiments/{self.experiment_id}/runs/{self.run_id}?workflowType=machine_learning"

    def _start_ms(self) -> int:
        return int(self.client.get_run(self.run_id).info.start_time)

    def _history(self) -> dict[tuple[str, int], float]:
        keys = self.client.get_run(self.run_id).data.metrics
        return {(key, m.step): m.value for key in keys for m in self.client.get_metric_history(self.run_id, key)}

    def _send(self, points: list[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(p.key, p.value, p.timestamp_ms, p.step) for p in points]
        for first in range(0, len(metrics), METRICS_PER_BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[first : first + METRICS_PER_BATCH])

    def _supersede(self) -> None:
        """Go on with a new run that has this one's parameters, tags and inputs."""
        old = self.client.get_run(self.run_id)
        tags = {key: value for key, value in old.data.tags.items() if key != "mlflow.loggedArtifacts"}
        new = self.client.create_run(self.experiment_id, tags=tags, run_name=old.info.run_name)
        _log_params(self.client, new.info.run_id, old.data.params)
        self.client.log_inputs(new.info.run_id, old.inputs.dataset_inputs)
        self.client.set_tag(self.run_id, SUPERSEDED_TAG, new.info.run_id)
        self.client.update_run(self.run_id, status=self.status_before)
        self.run_id, self.status_before, self.sent = new.info.run_id, "KILLED", {}


def open_run(root: Path, experiment: str, run_key: str, params: Mapping[str, object], tags: Mapping[str, str]) -> MlflowSink:
    """The run of `experiment` with this run key, set running: the one begun before, else a new one.

    Parameters are flattened to `section.key`. One that differs from what an earlier process logged (it is outside the run key)
    cannot be changed in MLflow and becomes the tag `grpo.changed.<key>`, which goes when the value is the logged one again.
    """
    client = mlflow_client(root)
    experiment_id = _experiment_id(client, root)
    query = f"tags.`{RUN_KEY_TAG}` = '{run_key}' AND tags.`{EXPERIMENT_TAG}` = '{experiment}'"
    found = client.search_runs([experiment_id], query, order_by=["attributes.start_time DESC"], max_results=1)
    run = found[0] if found else client.create_run(experiment_id, run_name=experiment)
    run_id = run.info.run_id
    flat = flatten(params)
    _log_params(client, run_id, {key: value for key, value in flat.items() if key not in run.data.params})
    changed = {f"{CHANGED_TAG}{key}": value for key, value in flat.items() if run.data.params.get(key, value) != value}
    for key, value in {**tags, **changed, RUN_KEY_TAG: run_key, EXPERIMENT_TAG: experiment}.items():
        client.set_tag(run_id, key, value)
    for key in run.data.tags.keys() - changed.keys():
        if key.startswith(CHANGED_TAG) and key.removeprefix(CHANGED_TAG) in flat:
            client.delete_tag(run_id, key)
    client.update_run(run_id, status="RUNNING")
    status_before = run.info.status if found and run.info.status != "RUNNING" else "KILLED"
    return MlflowSink(client, experiment_id, run_id, status_before)


def provenance_tags(code: Snapshot | None, hashes: Mapping[str, str]) -> dict[str, str]:
    """Tags that say which code and which data (DVC hash by path) a run came from; MLflow's UI shows all but its own."""
    commit = code.commit if code else "none"
    tags = {"mlflow.source.git.commit": commit, "grpo.git.commit": commit, "grpo.git.snapshot": code.sha if code else "none"}
    return {**tags, "grpo.git.dirty": str(bool(code and code.dirty)).lower(), **{f"grpo.dvc.{valid_name(path)}": md5 for path, md5 in hashes.items()}}


def tracking_uri(root: Path) -> str:
    """Where runs are kept: MLFLOW_TRACKING_URI, else a database in the repository root."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root.resolve() / 'mlflow.db'}"


def page_address(root: Path) -> str:
    """Where MLflow's page is: the tracking server's own, else the one that `grpo ui` opened last (or will open) on this machine."""
    uri = urlsplit(tracking_uri(root))
    if uri.scheme in ("http", "https"):
        return urlunsplit((uri.scheme, uri.netloc.rpartition("@")[2], uri.path, "", ""))  # without a password
    port = port_file(root)
    return f"http://127.0.0.1:{port.read_text(encoding='utf-8').strip() if port.is_file() else DEFAULT_PORT}"


def port_file(root: Path) -> Path:
    """Where `grpo ui` writes down the port of MLflow's page."""
    return root / ".work" / "mlflow_port"


def mlflow_client(root: Path) -> "MlflowClient":
    """A client that neither phones home nor prints."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=tracking_uri(root))


def mlflow_failures() -> tuple[type[Exception], ...]:
    """What calls of MLflow raise when its server or store fails."""
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, RequestException, SQLAlchemyError


def _experiment_id(client: "MlflowClient", root: Path) -> str:
    """The experiment, made at first use.

    MLflow keeps the absolute path of its artifacts: in a repository that was moved or copied the old experiment is renamed (its
    curves stay) and a new one begun, else artifacts would be written into the old place.
    """
    from mlflow.exceptions import MlflowException

    location = None if os.environ.get("MLFLOW_TRACKING_URI") else (root.resolve() / "mlruns").as_uri()
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None and found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    if found is not None and location not in (None, found.artifact_location):
        client.rename_experiment(found.experiment_id, f"{EXPERIMENT}-moved-{found.experiment_id}")
        found = None
    if found is not None:
        return str(found.experiment_id)
    try:
        return str(client.create_experiment(EXPERIMENT, artifact_location=location))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        return _experiment_id(client, root)  # another process was first


def _log_params(client: "MlflowClient", run_id: str, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    entities = [Param(key, value) for key, value in params.items()]
    for first in range(0, len(entities), PARAMS_PER_BATCH):
        client.log_batch(run_id, params=entities[first : first + PARAMS_PER_BATCH])


# ------------------------------------------------------------------------------------------------- what MLflow can hold


def read_points(metrics_path: Path, timings_path: Path, up_to_step: int, start_ms: int) -> list[Point]:
    """Every curve's points up to a step: numbers from metrics, clock figures and timestamps from timings.

    A step without timing (the file is untracked) is dated `start_ms` plus its step, so that it is dated alike by every process.
    """
    timings = {int(line["step"]): line for line in _read_jsonl(timings_path)} if timings_path.exists() else {}
    points: dict[tuple[str, int], Point] = {}
    for line in _read_jsonl(metrics_path):
        step = int(line["step"])
        if step > up_to_step:
            continue
        timing = timings.get(step, {})
        timestamp_ms = int(timing.get("timestamp_ms", start_ms + step))
        clock = {key: timing.get(key) for key in WALL_CLOCK}
        for key, value in {**line, **clock}.items():
            number = as_number(value)
            if key != "step" and number is not None:
                points[key, step] = Point(valid_name(key), number, step, timestamp_ms)
    return list(points.values())


def as_number(value: object) -> float | None:
    """`value` as a finite number, or None: MLflow draws NaN as 0 and infinity as 1.8e308."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None  # type: ignore[arg-type]  # narrowed by is_number


def flatten(params: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Nested parameters as `section.key` → text, cut to MLflow's limit."""
    flat: dict[str, str] = {}
    for key, value in params.items():
        name = f"{prefix}{valid_name(str(key))}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            flat[name] = text if len(text) <= MAX_PARAM_LENGTH else text[: MAX_PARAM_LENGTH - 1] + "…"
    return flat


def valid_name(name: str) -> str:
    """`name` with the characters that MLflow refuses in names replaced."""
    return re.sub(r"[^\w.\- :/]", "_", name)


def _read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The file's objects; a last line cut off by a kill is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                return
            raise ValueError(f"{path}, line {number} is not JSON: {line[:80]!r}; restore the file from its checkpoint") from error
