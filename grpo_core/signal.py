"""What a scored rollout batch says: which completions were better than their siblings, and by how much the loss may believe it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from grpo_core.advantages import clip_limit, decoupled_advantages, penalised_advantages, zero_variance
from grpo_core.config import RunConfig
from grpo_core.rewards.scoring import Scores
from grpo_core.rollout import RolloutBatch


@dataclass(frozen=True, slots=True)
class Signal:
    """What the rewards of a batch say."""

    rewards: Float64[Tensor, "P G"]
    """Raw weighted sums; 0 where not scored."""
    scored: Bool[Tensor, "P G"]
    """Which completions take part in baseline and loss: those that had an opinion and no error."""
    alike: Bool[Tensor, " P"]
    """Groups that have nothing to compare: their rewards are all equal (with `gdpo`: those of every function)."""
    shaped: Float64[Tensor, "P G"]
    """Rewards after the length penalty."""
    advantages: Float64[Tensor, "P G"]
    clipped: Float64[Tensor, "P G"]
    """Advantages within the step's limit: what the loss sees."""


def compare_within_groups(batch: RolloutBatch, scores: Scores, step: int, config: RunConfig, *, scale_by_std: bool) -> Signal:
    """Rewards → advantages: the length penalty, the comparison with the group, the clip."""
    settings, shape = config.grpo, (len(batch.prompts), batch.group_size)
    rewards, scored = _table(scores.totals, shape)
    lengths = torch.tensor([len(c.token_ids) for c in batch.completions], dtype=torch.float64).view(shape)
    penalties = settings.length_penalty * (lengths - settings.length_target).square()
    if config.scoring.combine == "gdpo":
        weights = {name: weight for name, weight in config.rewards.items() if weight != 0}
        parts = [_table(scores.by_function[name], shape) for name in weights]
        values, known = [value for value, _ in parts], [has & scored for _, has in parts]
        advantages = decoupled_advantages(values, list(weights.values()), known)
        alike = torch.stack([zero_variance(value, has) for value, has in zip(values, known, strict=True)]).all(dim=0)
    else:
        advantages = penalised_advantages(rewards, penalties, scored, scale_by_std=scale_by_std)
        alike = zero_variance(rewards, scored)
    limit = clip_limit(step, start=settings.advantage_clip_start, end=settings.advantage_clip, steps=settings.advantage_clip_steps)
    return Signal(rewards, scored, alike, rewards - penalties, advantages, advantages.clamp(-limit, limit))


def _table(values: Sequence[float | None], shape: tuple[int, int]) -> tuple[Float64[Tensor, "P G"], Bool[Tensor, "P G"]]:
    """Numbers (0 where there is none) and where there is one."""
    known = torch.tensor([value is not None for value in values]).view(shape)
    return torch.tensor([0.0 if value is None else value for value in values], dtype=torch.float64).view(shape), known
