"""Which model GRPO would start from, as things stand in the checkout."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.paths import Paths
from grpo_core.checkpoint import MANIFEST, unchecked_manifest
from grpo_core.config import RunConfig

if TYPE_CHECKING:
    from grpo_core.models import LanguageModel

CHANGES_NO_WEIGHT = ("device", "num_threads")
"""Settings of the model that say where it is computed, not what it is."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where the model comes from."""

    source: str | Path | None
    """A folder or a hub name; None: the embedded model as it is built."""
    label: str
    note: str = ""
    """What keeps it from being the very start of a run; empty where nothing does."""


def find_start(paths: Paths, config: RunConfig, chosen: Path | None) -> Start:
    """The `chosen` folder; else what the stage sft_checkpoint made, or would make without fine-tuning; else the configured model.

    Raises ValueError when there is nothing to start from yet, or when what is there was made with other settings.
    """
    if chosen is not None:
        if not (chosen / "config.json").is_file():
            raise ValueError(f"--model {chosen} is no model: it holds no config.json; name a Hugging Face folder, such as data/sft_checkpoint")
        return Start(chosen, f"the model in {chosen}")
    configured = _configured(paths.root, config)
    if config.sft.steps == 0:
        return Start(configured, f"{config.model.path or 'the embedded model'} as it is (sft.steps is 0)")
    if (paths.sft_checkpoint / MANIFEST).is_file():
        _check_settings(paths, config)
        return Start(paths.sft_checkpoint, f"{paths.sft_checkpoint.relative_to(paths.root)}, after supervised fine-tuning")
    if configured is None:
        raise ValueError(
            "the embedded model has learned nothing yet and data/sft_checkpoint is not there: `dvc repro sft_checkpoint` makes it, and so does `grpo run`; "
            "or name another model with --model"
        )
    note = f"a run would fine-tune it first (sft.steps is {config.sft.steps}): `dvc repro sft_checkpoint`, then explore again, shows where GRPO would start"
    return Start(configured, f"{config.model.path}, before supervised fine-tuning", note)


def load_start(start: Start, config: RunConfig) -> "LanguageModel":
    """The model, in the configured precision and place."""
    from grpo_core.models import load_model, start_model

    return start_model(config.model) if start.source is None else load_model(start.source, config.model)


def _configured(root: Path, config: RunConfig) -> str | Path | None:
    """model.path, read from the root of the checkout as stages read it."""
    if not config.model.path:
        return None
    folder = root / config.model.path
    return folder if folder.is_dir() else config.model.path


def _check_settings(paths: Paths, config: RunConfig) -> None:
    """Raise ValueError when the checkpoint was made with another model or other fine-tuning than params.yaml has now."""
    from grpo_core.work_folder import lasting_values

    recorded: dict[str, dict[str, Any]] = unchecked_manifest(paths.sft_checkpoint).get("config", {})
    changed = [
        f"{section}.{key} was {then!r}, is {today[key]!r}"
        for section in ("model", "sft")
        for today in [lasting_values(config, section)]
        for key, then in recorded.get(section, {}).items()
        if key in today and key not in CHANGES_NO_WEIGHT and today[key] != then
    ]
    if changed:
        raise ValueError(
            f"data/sft_checkpoint is not what a run would start from: {'; '.join(changed)}; "
            "`dvc repro sft_checkpoint` makes it again, `--model data/sft_checkpoint` explores it as it is"
        )
