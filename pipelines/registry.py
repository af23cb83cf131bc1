"""The champion in MLflow's model registry: a version for every promotion, and the alias that always stands for the newest."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.tracking import EXPERIMENT, mlflow_failures, open_run, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

MODEL, ALIAS = EXPERIMENT, "champion"
"""`MODEL@ALIAS` names the champion to MLflow, and to every command here that takes a run."""
VERSION_TAG = "grpo.champion_version"
ARTIFACTS = "champion"
"""Folder of the model among its training's artifacts."""
LONGEST_DESCRIPTION = 5000
"""What MLflow's databases hold; the whole card lies with the model."""


class RegistryError(ValueError):
    """MLflow's registry could not take the champion."""


def register(root: Path, champion: Mapping[str, Any], model: Path, hashes: Mapping[str, str]) -> str:
    """Make `champion` (a line of the history) a version of the registered model and the alias stand for it; the version.

    What is there already is not made twice, so it may be called again after any failure. Raises `RegistryError`.
    """
    failures: tuple[type[Exception], ...] = (*mlflow_failures(), OSError)
    try:
        return _register(root, champion, model, hashes)
    except failures as error:
        reason = str(error).strip().partition("\n")[0]
        raise RegistryError(f"MLflow at {tracking_uri(root)} failed: {reason}") from error


def _register(root: Path, champion: Mapping[str, Any], model: Path, hashes: Mapping[str, str]) -> str:
    sink = open_run(root, str(champion["experiment"]), str(champion["run_key"]), {}, {})
    client = sink.client
    version = _registered(client, champion)
    if version is None:
        client.log_artifacts(sink.run_id, str(model), ARTIFACTS)
        if not client.search_registered_models(f"name = '{MODEL}'"):
            client.create_registered_model(MODEL, description="Policies that passed the gate; the alias `champion` is the one of now.")
        source = f"{client.get_run(sink.run_id).info.artifact_uri}/{ARTIFACTS}"
        tags = {VERSION_TAG: str(champion["version"]), "grpo.by": str(champion["by"]), **hashes}
        version = client.create_model_version(MODEL, source, sink.run_id, tags=tags, description=described((model / "README.md").read_text(encoding="utf-8")))
    sink.finish("FINISHED")
    if dict(client.get_registered_model(MODEL).aliases).get(ALIAS) != version.version:
        client.set_registered_model_alias(MODEL, ALIAS, version.version)
    return str(version.version)


def described(card: str) -> str:
    """The card without its front matter, cut where MLflow would refuse it."""
    text = card.split("\n---\n", 1)[-1].strip() if card.startswith("---\n") else card
    rest = "\n\n… (README.md beside the model has all of it)"
    return text if len(text) <= LONGEST_DESCRIPTION else text[: LONGEST_DESCRIPTION - len(rest)] + rest


def _registered(client: "MlflowClient", champion: Mapping[str, Any]) -> "ModelVersion | None":
    """The version that an earlier call made of this very promotion."""
    wanted = {VERSION_TAG: str(champion["version"]), "grpo.weights_sha256": str(champion["weights_sha256"])}
    versions = client.search_model_versions(f"name = '{MODEL}'")
    return next((version for version in versions if wanted.items() <= version.tags.items()), None)
