"""How good a token's new probability is, given the advantage of its completion: the policy term, to be maximised."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def clip(log_ratio: Float[Tensor, "B T"], advantages: Float[Tensor, " B"], clip_low: float, clip_high: float) -> Float[Tensor, "B T"]:
    """PPO's pessimistic objective `min(r·A, clamp(r, 1 - clip_low, 1 + clip_high)·A)` (arXiv:1707.06347, eq. 7), r = exp(log_ratio).

    `clip_high > clip_low` is DAPO's clip-higher (arXiv:2503.14476, sec. 3.1). There is no upper bound for a negative advantage.
    """
    ratio = log_ratio.exp()
    advantage = advantages.unsqueeze(1)
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)


def is_clipped(log_ratio: Float[Tensor, "B T"], advantages: Float[Tensor, " B"], clip_low: float, clip_high: float) -> Bool[Tensor, "B T"]:
    """Tokens whose gradient `clip` cut to zero: already moved far enough in the direction that the advantage asks for."""
    ratio = log_ratio.exp()
    advantage = advantages.unsqueeze(1)
    return ((advantage > 0) & (ratio > 1 + clip_high)) | ((advantage < 0) & (ratio < 1 - clip_low))


Objective = Callable[[Float[Tensor, "B T"], Float[Tensor, " B"], float, float], Float[Tensor, "B T"]]
OBJECTIVES: dict[str, Objective] = {"clip": clip}
