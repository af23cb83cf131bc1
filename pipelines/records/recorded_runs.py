"""Runs as MLflow holds them: ids by run key, by alias and by their beginning, and the records among a run's artifacts."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.records.files import Record
from pipelines.records.runs import RunError
from pipelines.tracking import EXPERIMENT, EXPERIMENT_TAG, RECORDS, RUN_KEY_TAG, mlflow_client, mlflow_failures, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

RUN_ID_LENGTH = 32
SHOWN = 5
"""Run ids that a message names."""


def is_there(root: Path) -> bool:
    """Whether there is an MLflow to ask: a server that the environment names, or the database of this checkout."""
    return bool(os.environ.get("MLFLOW_TRACKING_URI")) or (root / "mlflow.db").is_file()


def run_ids_of_key(root: Path, run_key: str, experiment: str | None) -> list[str]:
    """Ids of the runs with this run key (of the experiment, if one is given), the newest first."""
    query = f"tags.`{RUN_KEY_TAG}` = '{run_key}'" + (f" AND tags.`{EXPERIMENT_TAG}` = '{experiment}'" if experiment else "")
    with _asking(root) as client:
        return [run.info.run_id for run in _search(client, query)]


def complete_run_id(root: Path, beginning: str) -> str:
    """The one run id that begins so; raises `RunError` when there is none, or more than one."""
    with _asking(root) as client:
        if len(beginning) == RUN_ID_LENGTH:
            return str(client.get_run(beginning).info.run_id)
        found = [run.info.run_id for run in _search(client, "") if run.info.run_id.startswith(beginning)]
    if len(found) != 1:
        several = f"{len(found)} runs begin so ({', '.join(found[:SHOWN])}): give more of its digits"
        raise RunError(f"{beginning!r} is no run of MLflow at {tracking_uri(root)}: {several if found else 'its page lists them (`grpo ui`)'}")
    return str(found[0])


def run_id_of_alias(root: Path, name: str) -> str:
    """The run that `MODEL@ALIAS` of the model registry was registered from; raises `RunError`."""
    model, _, alias = name.rpartition("@")
    if not model or not alias:
        raise RunError(f"{name!r} is no MODEL@ALIAS: write the registered model's name, @, and one of its aliases")
    with _asking(root) as client:
        version = client.get_model_version_by_alias(model, alias)
    if not version.run_id:
        raise RunError(f"version {version.version} of {model!r}, which {alias!r} stands for, names no run: register it from the run that trained it")
    return str(version.run_id)


def logged_records(root: Path, run_id: str) -> dict[str, Record]:
    """Noun → record, of those that the run has among its artifacts."""
    with _asking(root) as client, tempfile.TemporaryDirectory() as folder:
        paths = [artifact.path for artifact in client.list_artifacts(run_id, RECORDS) if artifact.path.endswith(".json")]
        files = [Path(client.download_artifacts(run_id, path, folder)) for path in paths]
        return {file.stem: json.loads(file.read_bytes()) for file in files}


def _search(client: "MlflowClient", query: str) -> "Iterator[Run]":
    """Runs of this program's MLflow experiment, those of the time before the checkout was moved included; the newest first."""
    names = [experiment for experiment in client.search_experiments() if experiment.name == EXPERIMENT or experiment.name.startswith(f"{EXPERIMENT}-moved-")]
    token = None
    while names:
        page = client.search_runs([experiment.experiment_id for experiment in names], query, order_by=["attributes.start_time DESC"], page_token=token)
        yield from page
        token = page.token
        if not token:
            return


@contextmanager
def _asking(root: Path) -> "Iterator[MlflowClient]":
    """A client of an MLflow that is there; whatever it cannot answer is one `RunError`."""
    if not is_there(root):
        raise RunError(f"there is no MLflow to ask: {root / 'mlflow.db'} does not exist, and MLFLOW_TRACKING_URI names no server")
    client = mlflow_client(root)
    failures: tuple[type[Exception], ...] = (*mlflow_failures(), OSError)
    try:
        yield client
    except failures as error:
        reason = str(error).strip().partition("\n")[0]
        raise RunError(f"MLflow at {tracking_uri(root)} does not know it: {reason}") from error
