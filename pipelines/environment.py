"""The environment variables that every process of the lifecycle runs under: telemetry off, state inside the checkout."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from grpo_core.config import ModelConfig
from grpo_core.determinism import prepare

DEFAULTS = {
    # Nothing phones home unless the user's own environment says otherwise.
    "DO_NOT_TRACK": "true",
    "DVC_NO_ANALYTICS": "true",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "true",
    "ITERATIVE_DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Idle OpenMP threads that spin make busy cores 5-9 times slower. Read when torch is imported, so set before.
    "OMP_WAIT_POLICY": "passive",
    # Forked tokenizer threads warn on every fork.
    "TOKENIZERS_PARALLELISM": "false",
    # GitPython raises at import where git is missing; we say it more clearly ourselves.
    "GIT_PYTHON_REFRESH": "quiet",
    # Job execution costs the MLflow server ten seconds at start, and nothing here uses it.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}


def environment(root: Path, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with Dagster's home in the checkout, this interpreter's folder first in PATH, and `DEFAULTS` where `base` says nothing."""
    interpreter = str(Path(sys.executable).parent)
    folders = [folder for folder in base.get("PATH", os.defpath).split(os.pathsep) if folder != interpreter]
    return {**DEFAULTS, **base, "DAGSTER_HOME": str(root / ".dagster"), "PATH": os.pathsep.join([interpreter, *folders])}


def prepare_environment(root: Path) -> None:
    """Put `environment` into force for this process and its children."""
    os.environ.update(environment(root, os.environ))


def prepare_libraries(model: ModelConfig) -> None:
    """Hold numeric libraries to what makes results repeat, and hide loading bars unless there is much to load; only before they are imported."""
    prepare(model)
    if not model.path:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "true")
