"""The model after supervised fine-tuning on demonstrations: what GRPO starts from."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from assets.page import Chart, Metadata, Progress, ProgressCallback
from assets.paths import Paths
from grpo_core.config import RunConfig

if TYPE_CHECKING:
    from grpo_core.models import LanguageModel
    from grpo_core.sft import SftStep

HISTORY = "history.jsonl"


def produce(paths: Paths, config: RunConfig, on_progress: ProgressCallback, should_stop: Callable[[], bool], work: Path) -> None:
    """Fine-tune the starting model on the `sft` split (with sft.steps 0 it is kept as it is) and write it with its loss history.

    A run that was stopped continues from its newest checkpoint in the folder `work`.
    """
    from grpo_core.models import start_model
    from grpo_core.sft import SftStep, demonstrations, fine_tune
    from grpo_core.work_folder import WorkFolder

    language_model = start_model(config.model)
    if config.sft.steps == 0:
        _write(paths, config, language_model, [])
        return

    def on_step(done: SftStep) -> None:
        on_progress(Progress(done.step, config.sft.steps, {"loss": done.loss, "grad_norm": done.grad_norm}))

    pairs = demonstrations(language_model, pl.read_parquet(paths.prompts))
    with WorkFolder.open(work) as folder:
        history = fine_tune(language_model, pairs, config.sft, on_step, should_stop, folder)
        with folder.explaining():
            _write(paths, config, language_model, history)


def work_folder(paths: Paths, config: RunConfig) -> Path:
    """Resume state of this very fine-tuning, named by its configuration, inputs, code and arithmetic. Reads them as they are now: ask once."""
    from grpo_core.checkpoint import file_sha256
    from grpo_core.models import arithmetic, source_of
    from grpo_core.work_folder import code_digest, key_of

    settings = json.dumps(_settings(config), sort_keys=True)
    inputs = (file_sha256(paths.prompts), source_of(config.model))
    return paths.work / "sft_checkpoint" / key_of(settings, *inputs, code_digest(), *arithmetic(config.model.device))


def _settings(config: RunConfig) -> dict[str, dict[str, Any]]:
    """What fine-tuning reads of the configuration, without what changes no step."""
    from grpo_core.work_folder import lasting_values

    return {name: lasting_values(config, name) for name in ("model", "sft")}


def _write(paths: Paths, config: RunConfig, language_model: "LanguageModel", history: "list[SftStep]") -> None:
    """The checkpoint folder, in one move."""
    from grpo_core.checkpoint import file_sha256, write_folder
    from grpo_core.models import policy_digest, save_model, source_of
    from grpo_core.tokenization import fingerprint

    facts = {
        "noun": "sft_checkpoint",
        "config": _settings(config),
        "policy_digest": policy_digest(language_model.model),
        "tokenizer_fingerprint": fingerprint(language_model.tokenizer),
        "parents": {"prompts": file_sha256(paths.prompts), "model": source_of(config.model, loaded=True)},
    }

    def write(folder: Path) -> None:
        save_model(language_model, folder)
        (folder / HISTORY).write_text("".join(json.dumps(asdict(done)) + "\n" for done in history))

    write_folder(paths.sft_checkpoint, write, facts)


def describe(paths: Paths) -> Metadata:
    """The loss curve and what the checkpoint is."""
    from assets.charts import loss_curve

    manifest = json.loads((paths.sft_checkpoint / "manifest.json").read_text())
    page: dict[str, str | int | float | Chart] = {"weights": manifest["policy_digest"], "tokenizer": manifest["tokenizer_fingerprint"][:16]}
    history = paths.sft_checkpoint / HISTORY
    if history.stat().st_size == 0:
        return {**page, "steps": 0, "folder": paths.sft_checkpoint}
    frame = pl.read_ndjson(history)
    return {**page, "steps": len(frame), "final_loss": float(frame["loss"].tail(20).mean()), "loss": Chart(loss_curve(frame)), "folder": paths.sft_checkpoint}  # type: ignore[arg-type]
