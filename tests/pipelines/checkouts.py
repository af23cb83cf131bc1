"""Copies of the checkout in which tests may change anything."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def copy_checkout(folder: Path) -> Path:
    """The three packages, params.yaml and dvc.yaml in a folder of their own below `folder` (no outputs, no Git, no DVC)."""
    root = folder / "checkout"
    for package in ("grpo_core", "assets", "pipelines"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, root)
    return root
