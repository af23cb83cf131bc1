"""What MLflow holds of a run whose files are not on this machine: its configuration, its curves and its held-out numbers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from grpo_core.config import SECTIONS, RunConfig
from grpo_core.params import section_values

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from pipelines.records.runs import Run

HELDOUT = "eval/heldout/"
"""Held-out numbers are logged under names that begin so."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Numbers of one MLflow run; empty where there is none."""

    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    curves: pl.DataFrame = field(default_factory=pl.DataFrame)
    """A row a step and a column a curve."""
    heldout: dict[str, Any] = field(default_factory=dict)


def logged(run: "Run") -> Logged:
    """What MLflow holds of `run`; empty when there is no MLflow, or it does not know the run or cannot be asked."""
    return _read(run.root, run.experiment, run.run_key, run.mlflow_run_id)


@lru_cache(maxsize=8)
def _read(root: Path, experiment: str, run_key: str, run_id: str | None) -> Logged:
    from pipelines.records.recorded_runs import is_there, run_ids_of_key
    from pipelines.records.runs import RunError
    from pipelines.tracking import mlflow_client, mlflow_failures

    if not is_there(root):
        return Logged()
    try:
        ids = [run_id] if run_id else run_ids_of_key(root, run_key, experiment)
        return _values(mlflow_client(root), ids[0]) if ids else Logged()
    except RunError:
        return Logged()
    except mlflow_failures():
        return Logged()


def _values(client: "MlflowClient", run_id: str) -> Logged:
    from pipelines.tracking import CHANGED_TAG

    data = client.get_run(run_id).data
    changed = {key.removeprefix(CHANGED_TAG): value for key, value in data.tags.items() if key.startswith(CHANGED_TAG)}
    rows: dict[int, dict[str, float]] = {}
    for name in data.metrics:
        if not name.startswith(HELDOUT):
            for point in client.get_metric_history(run_id, name):
                rows.setdefault(point.step, {})[name] = point.value
    curves = pl.DataFrame([{"step": step, **rows[step]} for step in sorted(rows)], infer_schema_length=None)
    heldout = {name.removeprefix(HELDOUT): value for name, value in data.metrics.items() if name.startswith(HELDOUT)}
    return Logged(nested({**data.params, **changed}), curves, heldout)


def nested(params: dict[str, str]) -> dict[str, dict[str, Any]]:
    """`section.key` → text, as MLflow keeps parameters, by section and as the values they were."""
    defaults = {section: section_values(RunConfig(), section) for section in SECTIONS}
    found: dict[str, dict[str, Any]] = {}
    for name, text in params.items():
        section, _, key = name.partition(".")
        if section in defaults:
            mapping, inner = _place(defaults[section], section, key)
            values = found.setdefault(section, {})
            (values if mapping is None else values.setdefault(mapping, {}))[inner] = text if isinstance(defaults[section].get(key), str) else _value(text)
    if found:  # a mapping without entries has left no parameter
        found.setdefault("reward_options", {})
        for section, values in found.items():
            found[section] = {key: {} for key, usual in defaults[section].items() if isinstance(usual, Mapping)} | values
    return found


def _place(defaults: Mapping[str, Any], section: str, key: str) -> tuple[str | None, str]:
    """The mapping within its section that a parameter belongs to (None: it is one of the section's own) and its key there."""
    if section == "reward_options":  # a function's import path has dots, the name of its option has none
        function, _, option = key.rpartition(".")
        return function, option
    field, _, inner = key.partition(".")
    return (field, inner) if isinstance(defaults.get(field), Mapping) else (None, key)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
