"""How sure a measured share or mean is, whether one model beats another on the same prompts, and how far two measures agree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import betaincinv, stdtrit  # type: ignore[import-untyped]

Z95 = 1.959963984540054
"""Two-sided 95 % of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its two-sided 95 % interval."""

    estimate: float
    low: float
    high: float


def wilson(successes: int, trials: int) -> Interval:
    """Wilson's score interval of a share (E. B. Wilson, 1927): sensible at 0 and 1, where the normal one has no width."""
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"wilson needs 0 ≤ successes ≤ trials and at least one trial, got {successes} of {trials}")
    share, z2 = successes / trials, Z95**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    # Exact at the ends, where rounding would leave 1e-17.
    return Interval(share, 0.0 if successes == 0 else centre - half, 1.0 if successes == trials else centre + half)


def clopper_pearson(successes: float, trials: int) -> Interval:
    """The exact interval of a share (C. J. Clopper and E. S. Pearson, 1934): it holds the truth at least 95 times of 100, whatever the truth is.

    `successes` may be a sum of scores between 0 and 1: no such score varies more than a coin of the same mean, so the interval is rather too wide.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"clopper_pearson needs 0 ≤ successes ≤ trials and at least one trial, got {successes} of {trials}")
    low = float(betaincinv(successes, trials - successes + 1, 0.025)) if successes > 0 else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 0.975)) if successes < trials else 1.0
    return Interval(successes / trials, low, high)


def t95(degrees: float, comparisons: int = 1) -> float:
    """Two-sided 95 % of Student's t with so many degrees of freedom, at least 1 (12.706 with one, `Z95` with ever more).

    Of several `comparisons` each gets its part of the 5 % (Bonferroni): then all of them hold together 95 times of 100.
    """
    if not degrees >= 1:
        raise ValueError(f"t95 needs at least 1 degree of freedom, got {degrees}")
    return float(stdtrit(degrees, 1 - 0.025 / comparisons))


def t_interval(values: Sequence[float], comparisons: int = 1) -> Interval:
    """The mean of independent measurements, with Student's 95 % interval (`t95`); of one measurement the interval is everything."""
    if not values:
        raise ValueError("the mean of no measurements is not defined")
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Interval(mean, -math.inf, math.inf)
    half = t95(len(values) - 1, comparisons) * math.sqrt(_variance(values, mean) / len(values))
    return Interval(mean, mean - half, mean + half)


def welch(first: Sequence[float], second: Sequence[float], comparisons: int = 1) -> Interval:
    """Mean of `second` less mean of `first`, with Welch's 95 % interval: two sets of independent measurements of differing spread (B. L. Welch, 1947).

    Where either holds only one measurement, the interval is everything.
    """
    if not first or not second:
        raise ValueError(f"a difference of means needs measurements on both sides, got {len(first)} and {len(second)}")
    means = [math.fsum(values) / len(values) for values in (first, second)]
    difference = means[1] - means[0]
    if min(len(first), len(second)) == 1:
        return Interval(difference, -math.inf, math.inf)
    squares = [_variance(values, mean) / len(values) for values, mean in zip((first, second), means, strict=True)]
    total = math.fsum(squares)
    if total == 0:
        return Interval(difference, difference, difference)
    degrees = total**2 / math.fsum(square**2 / (len(values) - 1) for square, values in zip(squares, (first, second), strict=True))
    half = t95(max(1.0, degrees), comparisons) * math.sqrt(total)
    return Interval(difference, difference - half, difference + half)


def _variance(values: Sequence[float], mean: float) -> float:
    """The sample variance (ddof 1)."""
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def paired_bootstrap(first: Sequence[float], second: Sequence[float], *, resamples: int, generator: np.random.Generator) -> Interval:
    """Mean of `second - first` over prompts, with the 2.5 % and 97.5 % quantiles over resampled prompts.

    Both sequences hold one score a prompt, in the same order: a prompt that is hard for both adds no noise.
    """
    differences = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    if len(differences) == 0 or len(first) != len(second):
        raise ValueError(f"a paired bootstrap needs one score of each model a prompt, got {len(first)} and {len(second)}")
    means = np.array([differences[generator.integers(0, len(differences), len(differences))].mean() for _ in range(resamples)])
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(differences.mean()), float(low), float(high))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased chance that at least one of `k` completions is right, from `correct` among `samples` (arXiv:2107.03374, sec. 2.1)."""
    if not 1 <= k <= samples or not 0 <= correct <= samples:
        raise ValueError(f"pass@k needs 1 ≤ k ≤ samples and 0 ≤ correct ≤ samples, got k={k}, {correct} of {samples}")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def pearson(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's correlation of pairs; None when one side is constant or there are fewer than two, where it is not defined."""
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.clip(np.corrcoef(one, other)[0, 1], -1.0, 1.0))


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's correlation of ranks, equal values sharing the mean of theirs; None where that is not defined."""
    return pearson(_ranks(first), _ranks(second))


def kendall_tau_b(first: Float[np.ndarray, "N pairs"], second: Float[np.ndarray, "N pairs"]) -> Float[np.ndarray, " N"]:
    """Kendall's tau-b of N rankings, each given by the sign of every pair's difference (0: equal); NaN where one ranking has no order.

    Concordant minus discordant pairs over the geometric mean of the pairs that each ranking tells apart (M. G. Kendall, 1945).
    """
    apart = np.square(first).sum(axis=1) * np.square(second).sum(axis=1)
    return np.where(apart > 0, (first * second).sum(axis=1) / np.sqrt(np.maximum(apart, 1)), np.nan)


def _ranks(values: Sequence[float]) -> list[float]:
    """Places from 1, in the order of `values`."""
    _, place, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    return [float(rank) for rank in middle[place]]
