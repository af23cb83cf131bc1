"""Where, when and with what a stage ran. Kept outside DVC's outputs: the same content must have the same hash on any machine."""

import json
import os
import platform
import socket
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "transformers", "safetensors", "numpy", "polars", "great-expectations", "dagster", "dvc", "mlflow")


def collect(root: Path, started: datetime, wall_seconds: float) -> dict[str, Any]:
    """Commit, versions and machine of this process, and how long the work took."""
    return {
        **git_state(root),
        "started": started.astimezone(UTC).isoformat(timespec="seconds"),
        "wall_seconds": round(wall_seconds, 3),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "num_cpus": os.cpu_count(),
        "num_threads": os.environ.get("OMP_NUM_THREADS"),
        "command": sys.argv,
    }


def write_provenance(folder: Path, values: dict[str, Any]) -> None:
    """`values` as provenance.json in `folder`, written aside and renamed."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / "provenance.json.new"
    aside.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    aside.rename(folder / "provenance.json")


def git_state(root: Path) -> dict[str, Any]:
    """Commit and whether tracked files differ from it; both None outside a git repository or before the first commit."""
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": _git(root, "status", "--porcelain", "--untracked-files=no") != ""}


def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _git(root: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
