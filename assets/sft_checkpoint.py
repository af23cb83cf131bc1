"""The model after supervised fine-tuning on demonstrations: what GRPO starts from."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import polars as pl

from assets.page import Chart, Metadata, Progress, ProgressCallback
from assets.paths import Paths
from grpo_core.config import RunConfig, section_values

HISTORY = "history.jsonl"


def produce(paths: Paths, config: RunConfig, on_progress: ProgressCallback, should_stop: Callable[[], bool]) -> None:
    """Fine-tune the starting model on the `sft` split (with sft.steps 0 it is kept as it is) and write it with its loss history."""
    from grpo_core.checkpoint import file_sha256, write_folder
    from grpo_core.models import policy_digest, save_model, start_model
    from grpo_core.sft import SftStep, demonstrations, fine_tune
    from grpo_core.tokenization import fingerprint

    language_model = start_model(config.model)
    history: list[SftStep] = []
    if config.sft.steps > 0:

        def on_step(done: SftStep) -> None:
            on_progress(Progress(done.step, config.sft.steps, {"loss": done.loss, "grad_norm": done.grad_norm}))

        pairs = demonstrations(language_model, pl.read_parquet(paths.prompts))
        history = fine_tune(language_model, pairs, config.sft, on_step, should_stop)

    facts = {
        "noun": "sft_checkpoint",
        "config": {name: section_values(config, name) for name in ("model", "sft")},
        "policy_digest": policy_digest(language_model.model),
        "tokenizer_fingerprint": fingerprint(language_model.tokenizer),
        "parents": {"prompts": file_sha256(paths.prompts), "model": config.model.path or "embedded"},
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
