"""What dvc.yaml says a stage reads and writes under data/, without importing DVC (a test compares this with how DVC resolves it)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.lock import LockError, read_yaml

KEY = "${key}"
"""How dvc.yaml spells the experiment."""


@dataclass(frozen=True, slots=True)
class StageFiles:
    """Paths of one stage, for one experiment where it has experiments."""

    deps: tuple[str, ...]
    """Dependencies under data/."""
    outs: tuple[str, ...]
    metrics: tuple[str, ...]
    """Outputs that Git keeps instead of DVC's cache."""


def stage_files(root: Path, stage: str, experiment: str) -> StageFiles:
    """The files of a stage of dvc.yaml; raises `LockError` when there is no such stage, or one that is written in a way not known here."""
    path = root / "dvc.yaml"
    try:
        declared = read_yaml(path)["stages"][stage]
    except (KeyError, TypeError):
        raise LockError(f"{path} has no stage {stage!r}: `git diff dvc.yaml` shows what was changed") from None
    declared = declared.get("do", declared)

    def paths(key: str) -> tuple[str, ...]:
        filled = [_path(item).replace(KEY, experiment) for item in declared.get(key, ())]
        if unknown := [name for name in filled if "${" in name]:
            raise LockError(f"{path}, stage {stage}: of templates only {KEY} is known in `{key}`, got {unknown[0]!r}")
        return tuple(filled)

    return StageFiles(_under_data(paths("deps")), paths("outs"), paths("metrics"))


def _path(item: Any) -> str:
    """The path of a dependency or output, which may be a mapping from it to its settings."""
    return str(item if isinstance(item, str) else next(iter(item)))


def _under_data(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if path.startswith("data/"))
