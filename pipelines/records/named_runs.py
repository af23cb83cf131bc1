"""The runs that people gave a name in MLflow's registry."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.records.recorded_runs import is_there
from pipelines.records.runs import Run, RunError, find_run
from pipelines.tracking import RUN_KEY_TAG, mlflow_client, mlflow_failures, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import RegisteredModel


class NamesUnknown(ValueError):
    """MLflow's registry cannot be read, or names a run of which nobody knows what it was made from."""


def named_runs(root: Path) -> dict[str, Run]:
    """`MODEL@ALIAS` → the run that it names, of the runs made by this project; raises `NamesUnknown` when one of them cannot be told."""
    if not is_there(root):
        return {}
    try:
        names = list(_aliases(mlflow_client(root)))
    except mlflow_failures() as error:
        reason = str(error).strip().partition("\n")[0]
        raise NamesUnknown(f"MLflow at {tracking_uri(root)} cannot say which runs have a name ({reason}): repair it or set MLFLOW_TRACKING_URI") from error
    return {name: _run(root, name) for name in names}


def _run(root: Path, name: str) -> Run:
    try:
        return find_run(root, name)
    except RunError as error:
        raise NamesUnknown(f"{name} in MLflow's registry names a run, and what that needs is not known ({error}): remove the alias if it may go") from error


def _aliases(client: "MlflowClient") -> Iterator[str]:
    """`MODEL@ALIAS` of every alias that stands for a run of this project."""
    for model in _models(client):
        for alias, version in model.aliases.items():
            run_id = client.get_model_version(model.name, version).run_id
            if run_id and RUN_KEY_TAG in client.get_run(run_id).data.tags:
                yield f"{model.name}@{alias}"


def _models(client: "MlflowClient") -> "Iterator[RegisteredModel]":
    page = client.search_registered_models()
    yield from page
    while page.token:
        page = client.search_registered_models(page_token=page.token)
        yield from page
