"""How many groups would hold right and wrong completions together, were they larger or smaller: what choosing G is about."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Live:
    """Groups of `group_size` that would hold right and wrong completions together."""

    group_size: int
    share: float
    is_extrapolated: bool
    """More completions than a prompt has here: a beta distribution stands for the prompts. Otherwise the estimate is unbiased."""


def live_shares(right: Sequence[int], graded: Sequence[int], sizes: Sequence[int]) -> tuple[Live, ...]:
    """The expected share of groups of each size that hold right and wrong completions, over prompts with `right` of `graded` completions right.

    A prompt that is answered rightly with chance p has such a group of G with chance 1 - p^G - (1 - p)^G. Up to the number n of
    completions that every prompt has, that is estimated without bias: the chance that G of them, taken without putting back, are not all
    of one kind. Beyond n, of the groups that are not live at n as many come alive as if p had a beta distribution over prompts, with their
    moments (`beta_moments`).
    """
    if not right:
        return ()
    counted = list(zip(right, graded, strict=True))
    fewest, moments = min(graded), beta_moments(right, graded)

    def without_bias(size: int) -> float:
        return sum(1 - (math.comb(c, size) + math.comb(n - c, size)) / math.comb(n, size) for c, n in counted) / len(counted)

    def extrapolated(size: int) -> float:
        seen, before = without_bias(fewest), beta_live(*moments, fewest)
        return seen if before >= 1 else seen + (1 - seen) * (beta_live(*moments, size) - before) / (1 - before)

    return tuple(Live(size, extrapolated(size) if size > fewest else without_bias(size), is_extrapolated=size > fewest) for size in sizes)


def beta_moments(right: Sequence[int], graded: Sequence[int]) -> tuple[float, float]:
    """Mean and variance over prompts of the chance p to be right: c/n has mean p and c(c - 1)/(n(n - 1)) has mean p^2, both without bias."""
    pairs = [(c, n) for c, n in zip(right, graded, strict=True) if n > 1]
    if not pairs:
        mean = sum(right) / max(sum(graded), 1)
        return mean, 0.0
    mean = sum(c / n for c, n in pairs) / len(pairs)
    square = sum(c * (c - 1) / (n * (n - 1)) for c, n in pairs) / len(pairs)
    return mean, max(0.0, square - mean**2)


def beta_live(mean: float, variance: float, size: int) -> float:
    """Expected 1 - p^G - (1 - p)^G for p of a beta distribution with this mean and variance; a single p where there is no variance."""
    room = mean * (1 - mean)
    if room <= variance:
        return 0.0  # every prompt is always right or always wrong
    if variance == 0:
        return 1 - mean**size - (1 - mean) ** size
    both = room / variance - 1
    all_right = math.prod((mean * both + i) / (both + i) for i in range(size))
    all_wrong = math.prod(((1 - mean) * both + i) / (both + i) for i in range(size))
    return 1 - all_right - all_wrong
