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
    """More completions than some prompt has here: a beta distribution stands for those prompts. Otherwise the estimate is unbiased."""


def live_shares(right: Sequence[int], graded: Sequence[int], sizes: Sequence[int]) -> tuple[Live, ...]:
    """The expected share of groups of each size that hold right and wrong completions, over prompts with `right` of `graded` completions right.

    A prompt that is answered rightly with chance p has such a group of G with chance 1 - p^G - (1 - p)^G. Up to the number n of
    graded completions of a prompt, that is estimated without bias: the chance that G of them, taken without putting back, are not all of
    one kind. Beyond n, a prompt whose n are all of one kind comes alive with the chance that it would have if p had a beta distribution over
    prompts, with their moments (`beta_moments`).
    """
    counted = [(c, n) for c, n in zip(right, graded, strict=True) if n > 0]
    if not counted:
        return ()
    moments = beta_moments(right, graded)
    beta = {size: beta_live(*moments, size) for size in {*sizes, *(n for _, n in counted)}}

    def share(c: int, n: int, size: int) -> float:
        within = min(size, n)
        seen = 1 - (math.comb(c, within) + math.comb(n - c, within)) / math.comb(n, within)
        return seen if size <= n or beta[n] >= 1 else seen + (1 - seen) * (beta[size] - beta[n]) / (1 - beta[n])

    fewest = min(n for _, n in counted)
    return tuple(Live(size, sum(share(c, n, size) for c, n in counted) / len(counted), is_extrapolated=size > fewest) for size in sizes)


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
