"""Supervised fine-tuning on demonstrations: next-token cross-entropy on the completion's tokens, never on the prompt's."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import polars as pl
import torch

from grpo_core.config import SftConfig
from grpo_core.demonstrations import Demonstration, accumulate_imitation, encode_demonstrations
from grpo_core.errors import DivergedError, Interrupted
from grpo_core.models import LanguageModel
from grpo_core.randomness import epoch_indices
from grpo_core.resume import ResumePoint, restore, save
from grpo_core.work_folder import WorkFolder


@dataclass(frozen=True, slots=True)
class SftStep:
    step: int
    loss: float
    """Mean nats a completion token."""
    learning_rate: float
    grad_norm: float
    """Before clipping."""


def learning_rate_at(step: int, config: SftConfig) -> float:
    """Linear warm-up, then a cosine from the peak to `final_learning_rate_fraction` of it at the last step; `step` counts from 1."""
    warm = min(1.0, step / config.warmup_steps) if config.warmup_steps else 1.0
    progress = (step - 1) / max(config.steps - 1, 1)
    floor = config.final_learning_rate_fraction
    return config.learning_rate * warm * (floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2)


def demonstrations(language_model: LanguageModel, prompts: pl.DataFrame) -> list[Demonstration]:
    """(prompt ids, completion ids) of every row of the `sft` split that has a completion.

    Raises ValueError when there are none, or when one does not fit into the model.
    """
    rows = prompts.filter((pl.col("split") == "sft") & pl.col("completion").is_not_null())
    if rows.is_empty():
        raise ValueError(
            "sft.steps is above 0 but no prompt of the sft split has a completion: give demonstrations (prompts.completion_column) or set sft.steps to 0"
        )
    return encode_demonstrations(language_model, rows)


def fine_tune(
    language_model: LanguageModel,
    pairs: Sequence[Demonstration],
    config: SftConfig,
    on_step: Callable[[SftStep], None],
    should_stop: Callable[[], bool],
    work: WorkFolder,
) -> list[SftStep]:
    """`config.steps` AdamW steps over `pairs`, reshuffled every epoch; the model is changed in place. Returns every step's figures.

    A run that was interrupted continues from its newest checkpoint in `work`, to the same weights. Raises Interrupted when asked to
    stop, with a checkpoint written first, and DivergedError before a number that is not finite reaches the weights.
    """
    model = language_model.model
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(config.adam_beta1, config.adam_beta2), weight_decay=config.weight_decay)
    point = restore(work, model, optimizer, last_step=config.steps)
    for step in range(point.step + 1, config.steps + 1):
        done = _step(language_model, optimizer, pairs, config, step)
        stop = should_stop() and step < config.steps
        with work.explaining():
            work.append(step, {name: value for name, value in asdict(done).items() if name != "step"})
            if stop or step == config.steps or step % config.checkpoint_every == 0:
                save(work, ResumePoint(step), model, optimizer, keep=config.keep_checkpoints)
        on_step(done)
        if stop:
            raise Interrupted(step)
    return [SftStep(**json.loads(line)) for line in work.metrics.read_text().splitlines()]


def _step(language_model: LanguageModel, optimizer: torch.optim.Optimizer, pairs: Sequence[Demonstration], config: SftConfig, step: int) -> SftStep:
    """Optimizer step number `step`, from 1."""
    rate = learning_rate_at(step, config)
    for group in optimizer.param_groups:
        group["lr"] = rate
    chosen = [pairs[i] for i in epoch_indices(len(pairs), (step - 1) * config.batch_size, config.batch_size, (config.seed, "sft"))]
    loss = accumulate_imitation(language_model.model, chosen, config.micro_batch_size)
    norm = float(torch.nn.utils.clip_grad_norm_(language_model.model.parameters(), config.max_grad_norm))
    if not math.isfinite(norm):
        raise DivergedError(f"supervised fine-tuning diverged at step {step} (loss {loss}, gradient norm {norm}): lower sft.learning_rate")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return SftStep(step, loss, rate, norm)
