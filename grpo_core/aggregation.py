"""Token losses → one number. The denominators belong to the whole optimizer step, so splitting a batch never changes a gradient."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Totals:
    """What an optimizer step divides by, counted over all of its micro-batches (and processes) before the first backward."""

    sequences: int
    """Completions with at least one trained token: one that is masked out whole leaves numerator and denominator."""
    tokens: int
    """Trained tokens."""
    length: int
    """The constant divisor of Dr. GRPO, in tokens."""


def count_totals(mask: Bool[Tensor, "B T"], length: int) -> Totals:
    """The denominators of an optimizer step over `mask`; a step in which every token is masked gets ones (its loss is 0, not NaN)."""
    return Totals(sequences=max(int(mask.any(dim=1).sum()), 1), tokens=max(int(mask.sum()), 1), length=length)


def sequence_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], totals: Totals) -> Float[Tensor, ""]:
    """Every completion counts the same: its token mean, then the mean over completions (GRPO, arXiv:2402.03300, eq. 3)."""
    per_row = masked(values, mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
    return per_row.sum() / totals.sequences


def token_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], totals: Totals) -> Float[Tensor, ""]:
    """Every token counts the same (DAPO, arXiv:2503.14476, eq. 8)."""
    return masked(values, mask).sum() / totals.tokens


def constant(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], totals: Totals) -> Float[Tensor, ""]:
    """Sum of tokens over completions times a fixed length: no bias towards short or long (Dr. GRPO, arXiv:2503.20783)."""
    return masked(values, mask).sum() / (totals.sequences * totals.length)


def masked(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """`values` where `mask`, else 0.0, whatever stands there (a NaN times zero would stay NaN)."""
    return torch.where(mask, values, 0.0)


Aggregation = Callable[[Float[Tensor, "B T"], Bool[Tensor, "B T"], Totals], Float[Tensor, ""]]
AGGREGATIONS: dict[str, Aggregation] = {"sequence_mean": sequence_mean, "token_mean": token_mean, "constant": constant}
