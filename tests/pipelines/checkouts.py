"""Copies of the checkout in which tests may change anything."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def copy_checkout(folder: Path) -> Path:
    """The three packages, params.yaml, dvc.yaml and Dagster's settings in a folder of their own below `folder` (no outputs, no Git, no DVC)."""
    root = folder / "checkout"
    for package in ("grpo_core", "assets", "pipelines", "reward_functions"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".dagster").mkdir()
    for name in ("params.yaml", "dvc.yaml", ".dagster/dagster.yaml"):
        shutil.copy(ROOT / name, root / name)
    return root
