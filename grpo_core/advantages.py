"""Rewards of a group → how much better than its siblings each completion was.

Everything is float64: rewards far from zero differ in digits that float32 does not have.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

EQUAL_WITHIN = 1e-12
"""A group counts as equal when its rewards differ by no more than this share of the largest: seven times 0.7 sums to a mean that is not 0.7."""


def zero_variance(rewards: Float64[Tensor, "P G"], scored: Bool[Tensor, "P G"]) -> Bool[Tensor, " P"]:
    """Which groups have nothing to compare: all scored rewards equal, or fewer than two scored."""
    highest = rewards.masked_fill(~scored, -torch.inf).amax(dim=1)
    lowest = rewards.masked_fill(~scored, torch.inf).amin(dim=1)
    magnitude = rewards.abs().masked_fill(~scored, 0.0).amax(dim=1)
    return (highest - lowest <= EQUAL_WITHIN * magnitude) & magnitude.isfinite()


def group_advantages(rewards: Float64[Tensor, "P G"], scored: Bool[Tensor, "P G"], *, scale_by_std: bool) -> Float64[Tensor, "P G"]:
    """Each reward minus its group's mean, divided by the group's sample standard deviation (ddof 1) when `scale_by_std`.

    Scaled is GRPO (arXiv:2402.03300, sec. 4.1.2, which leaves ddof open); unscaled is Dr. GRPO (arXiv:2503.20783). No epsilon is
    added to the deviation, so the unit of the reward does not matter. A group of equal rewards gets exactly 0.0. A completion that
    is not `scored` takes no part in mean and deviation and gets 0.0.
    """
    count = scored.sum(dim=1, keepdim=True)
    known = torch.where(scored, rewards, 0.0)
    mean = known.sum(dim=1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(scored, known - mean, 0.0)
    if scale_by_std:
        # Measured in units of the largest: the square of a reward of 1e200 would not be a number.
        unit = centred.abs().amax(dim=1, keepdim=True)
        centred = torch.where(unit == 0, 0.0, centred / unit)
        std = (centred.square().sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
        centred = torch.where(std == 0, 0.0, centred / std)
    return centred.masked_fill(zero_variance(rewards, scored).unsqueeze(1), 0.0)


def penalised_advantages(
    rewards: Float64[Tensor, "P G"], penalties: Float64[Tensor, "P G"], scored: Bool[Tensor, "P G"], *, scale_by_std: bool
) -> Float64[Tensor, "P G"]:
    """Advantages of `rewards - penalties`; in groups whose raw rewards are equal the penalties are centred but never scaled.

    Scaling them there would make the weight of a penalty meaningless: 1e-9 and 1e-3 would give the same advantages.
    """
    scaled = group_advantages(rewards - penalties, scored, scale_by_std=scale_by_std)
    centred = group_advantages(-penalties, scored, scale_by_std=False)
    return torch.where(zero_variance(rewards, scored).unsqueeze(1), centred, scaled)


def decoupled_advantages(rewards: Sequence[Float64[Tensor, "P G"]], weights: Sequence[float], scored: Sequence[Bool[Tensor, "P G"]]) -> Float64[Tensor, "P G"]:
    """GDPO (arXiv:2601.05242): each reward standardised within its group, then the weighted sum, divided by its standard deviation over the batch.

    Summing first would give groups of different rewards the same advantages; here a reward of small weight still tells its completions
    apart. `rewards` and `scored` have an entry a reward function. Every group's advantages add up to 0, so the batch's mean is 0 already.
    """
    apart = [group_advantages(values, known, scale_by_std=True) for values, known in zip(rewards, scored, strict=True)]
    weighted = torch.stack([weight * advantages for weight, advantages in zip(weights, apart, strict=True)])
    # Rewards that cancel leave rounding behind, which the division would make as large as any advantage.
    together = weighted.sum(dim=0).masked_fill(weighted.sum(dim=0).abs() <= EQUAL_WITHIN * weighted.abs().sum(dim=0), 0.0)
    compared = together[torch.stack(list(scored)).any(dim=0)]
    std = compared.square().sum().div(max(len(compared) - 1, 1)).sqrt()
    return together if std == 0 else together / std


def clip_limit(step: int, *, start: float, end: float, steps: int) -> float:
    """The bound on |advantage| at `step` (from 1): linear from `start` to `end` over `steps`, `end` after; infinite when `end` is 0."""
    if end == 0:
        return float("inf")
    if step >= steps:
        return end
    return start + (end - start) * (step - 1) / max(steps - 1, 1)
