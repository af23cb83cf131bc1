"""What a scored rollout batch says: which completions were better than their siblings, and by how much the loss may believe it."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from grpo_core.advantages import clip_limit, penalised_advantages
from grpo_core.config import GrpoConfig
from grpo_core.rewards import Scores
from grpo_core.rollout import RolloutBatch


@dataclass(frozen=True, slots=True)
class Signal:
    """What the rewards of a batch say."""

    rewards: Float64[Tensor, "P G"]
    """Raw weighted sums; 0 where not scored."""
    scored: Bool[Tensor, "P G"]
    shaped: Float64[Tensor, "P G"]
    """Rewards after the length penalty."""
    advantages: Float64[Tensor, "P G"]
    clipped: Float64[Tensor, "P G"]
    """Advantages within the step's limit: what the loss sees."""


def compare_within_groups(batch: RolloutBatch, scores: Scores, step: int, settings: GrpoConfig, *, scale_by_std: bool) -> Signal:
    """Rewards → advantages: the length penalty, the comparison with the group, the clip."""
    shape = (len(batch.prompts), batch.group_size)
    rewards = torch.tensor([0.0 if total is None else total for total in scores.totals], dtype=torch.float64).view(shape)
    scored = torch.tensor([total is not None for total in scores.totals]).view(shape)
    lengths = torch.tensor([len(c.token_ids) for c in batch.completions], dtype=torch.float64).view(shape)
    penalties = settings.length_penalty * (lengths - settings.length_target).square()
    advantages = penalised_advantages(rewards, penalties, scored, scale_by_std=scale_by_std)
    limit = clip_limit(step, start=settings.advantage_clip_start, end=settings.advantage_clip, steps=settings.advantage_clip_steps)
    return Signal(rewards, scored, rewards - penalties, advantages, advantages.clamp(-limit, limit))
