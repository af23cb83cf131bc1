"""The loss of GRPO: objective × aggregation × KL, each looked up by name; named losses are presets of the three."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grpo_core.aggregation import AGGREGATIONS, Totals, masked
from grpo_core.config import GrpoConfig
from grpo_core.kl import KL_ESTIMATORS
from grpo_core.objectives import OBJECTIVES, is_clipped


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig:
    """What one loss is made of, names resolved."""

    objective: str = "clip"
    """Key of `OBJECTIVES`."""
    aggregation: str = "sequence_mean"
    """Key of `AGGREGATIONS`."""
    kl_estimator: str = "k3"
    """Key of `KL_ESTIMATORS`."""
    scale_by_std: bool = True
    """Divide centred rewards by the group's standard deviation."""
    clip_low: float = 0.2
    """Ratios below `1 - clip_low` give no gradient to a negative advantage."""
    clip_high: float = 0.2
    """Ratios above `1 + clip_high` give no gradient to a positive advantage."""
    length: int = 1
    """Divisor of `constant` aggregation, in tokens."""


@dataclass(frozen=True, slots=True)
class Preset:
    """The parts that a published method is made of; its numbers (clip, beta) stay the user's."""

    objective: str
    aggregation: str
    kl_estimator: str
    advantage_scale: Literal["std", "none"]


PRESETS = {
    "grpo": Preset("clip", "sequence_mean", "k3", "std"),
    "dapo": Preset("clip", "token_mean", "k3", "std"),
    "dr_grpo": Preset("clip", "constant", "k3", "none"),
}
"""DAPO's and Dr. GRPO's papers also set beta to 0, and DAPO clip_high to 0.28: set those beside the preset's name."""


def loss_config(config: GrpoConfig, max_new_tokens: int) -> LossConfig:
    """The loss that `config` names: its preset, with every part that is not `preset` put in its place."""
    preset = PRESETS[config.loss]
    scale = preset.advantage_scale if config.advantage_scale == "preset" else config.advantage_scale
    return LossConfig(
        objective=preset.objective if config.objective == "preset" else config.objective,
        aggregation=preset.aggregation if config.aggregation == "preset" else config.aggregation,
        kl_estimator=preset.kl_estimator if config.kl_estimator == "preset" else config.kl_estimator,
        scale_by_std=scale == "std",
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        length=config.aggregation_length or max_new_tokens,
    )


@dataclass(frozen=True, slots=True)
class LossTerms:
    """A micro-batch's share of the step's loss, and what is worth watching about it (detached)."""

    loss: Float[Tensor, ""]
    """To be differentiated: `policy + beta · kl`."""
    policy: Float[Tensor, ""]
    """The policy term. Its *value* is near 0 on the first update (ratio 1, advantages centred); its gradient is not."""
    kl: Float[Tensor, ""]
    """The KL term before beta."""
    clipped_tokens: Float[Tensor, ""]
    """Trained tokens whose gradient the clip removed (a count)."""
    max_ratio: Float[Tensor, ""]
    """Largest importance ratio of a trained token."""
    ratio_sum: Float[Tensor, ""]
    """Sum of the trained tokens' ratios, float64."""
    ratio_squares: Float[Tensor, ""]
    """Sum of their squares, float64."""
    policy_kl: Float[Tensor, ""]
    """Sum over the trained tokens of `ratio - 1 - log ratio` (k3): how far the policy has moved since it drew the batch; float64."""


def policy_loss(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    ref_logprobs: Float[Tensor, "B T"] | None,
    advantages: Float[Tensor, " B"],
    mask: Bool[Tensor, "B T"],
    totals: Totals,
    config: LossConfig,
    beta: float,
) -> LossTerms:
    """The loss of one micro-batch, already divided by the denominators of its whole optimizer step: micro-batches just add up.

    `ref_logprobs` may be None only when `beta` is 0.
    """
    assert beta == 0 or ref_logprobs is not None
    aggregate = AGGREGATIONS[config.aggregation]
    log_ratio = masked(logprobs - old_logprobs, mask)
    policy = -aggregate(OBJECTIVES[config.objective](log_ratio, advantages, config.clip_low, config.clip_high), mask, totals)
    kl = torch.zeros_like(policy)
    if ref_logprobs is not None:
        # Masked positions hold any number: make both equal there, else exp() of their difference may overflow in the backward pass.
        distance = KL_ESTIMATORS[config.kl_estimator](masked(logprobs, mask), masked(ref_logprobs, mask), log_ratio)
        kl = aggregate(distance, mask, totals)
    moved = masked(log_ratio.detach().double(), mask)
    ratios = moved.exp()
    clipped = is_clipped(log_ratio, advantages, config.clip_low, config.clip_high) & mask
    return LossTerms(
        loss=policy + beta * kl if beta > 0 else policy,
        policy=policy.detach(),
        kl=kl.detach(),
        clipped_tokens=clipped.sum().to(policy.dtype),
        max_ratio=log_ratio.detach().masked_fill(~mask, -torch.inf).max().exp(),
        ratio_sum=ratios.masked_fill(~mask, 0.0).sum(),
        ratio_squares=ratios.square().masked_fill(~mask, 0.0).sum(),
        policy_kl=(ratios - 1 - moved).sum(),
    )
