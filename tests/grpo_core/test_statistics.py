import math
from itertools import combinations

import numpy as np
import pytest

from grpo_core.statistics import clopper_pearson, kendall_tau_b, paired_bootstrap, pass_at_k, pearson, spearman, t95, t_interval, welch, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (8, 10, 0.4902, 0.9433), (10, 10, 0.7225, 1.0), (1, 1, 0.2065, 1.0), (15, 148, 0.0624, 0.1605), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_gives_the_published_intervals(successes: int, trials: int, low: float, high: float) -> None:
    found = wilson(successes, trials)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
    assert found.estimate == successes / trials


@pytest.mark.parametrize("trials", [1, 7, 16, 27, 200])
def test_wilson_is_a_mirror_and_stays_within_0_and_1(trials: int) -> None:
    for successes in range(trials + 1):
        found, mirrored = wilson(successes, trials), wilson(trials - successes, trials)
        assert found.low == pytest.approx(1 - mirrored.high, abs=1e-12)
        assert found.low >= 0 and found.high <= 1
        assert found.low - 1e-12 <= found.estimate <= found.high + 1e-12


def test_clopper_pearson_is_that_of_published_tables() -> None:
    """Of 8 in 10 it is 0.4439 to 0.9748; of none in 10 the upper end is 1 - 0.025^(1/10)."""
    found, none, every = clopper_pearson(8, 10), clopper_pearson(0, 10), clopper_pearson(10, 10)
    assert (found.estimate, found.low, found.high) == pytest.approx((0.8, 0.4439, 0.9748), abs=5e-5)
    assert (none.low, none.high) == pytest.approx((0.0, 1 - 0.025**0.1)) and (every.low, every.high) == pytest.approx((0.025**0.1, 1.0))


def test_clopper_pearson_of_a_sum_of_scores_lies_between_its_neighbours() -> None:
    half, below, above = clopper_pearson(7.5, 10), clopper_pearson(7, 10), clopper_pearson(8, 10)
    assert half.estimate == 0.75 and below.low < half.low < above.low and below.high < half.high < above.high


@pytest.mark.parametrize("trials", [5, 10, 30, 93])
def test_clopper_pearson_holds_the_truth_at_least_95_times_of_100(trials: int) -> None:
    """Worked out, not simulated: the chance of every count, wherever the true share lies."""
    intervals = [clopper_pearson(count, trials) for count in range(trials + 1)]
    for truth in np.linspace(0.01, 0.99, 99):
        chances = [math.comb(trials, count) * truth**count * (1 - truth) ** (trials - count) for count in range(trials + 1)]
        assert sum(chance for chance, found in zip(chances, intervals, strict=True) if found.low <= truth <= found.high) >= 0.95


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_impossible_counts(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match=f"got {successes} of {trials}"):
        wilson(successes, trials)


def bootstrap(first: list[float], second: list[float]) -> tuple[float, float, float]:
    found = paired_bootstrap(first, second, resamples=4000, generator=np.random.default_rng(0))
    return found.estimate, found.low, found.high


def test_the_bootstrap_of_two_better_answers_in_ten_has_the_quantiles_of_a_binomial() -> None:
    # Resampled sums are Binomial(10, 0.2): P(0) = 0.107, P(≤ 4) = 0.967, P(≤ 5) = 0.994.
    assert bootstrap([0.0] * 10, [1.0, 1.0] + [0.0] * 8) == pytest.approx((0.2, 0.0, 0.5))


def test_the_difference_is_second_minus_first() -> None:
    assert bootstrap([1.0, 1.0] + [0.0] * 8, [0.0] * 10) == pytest.approx((-0.2, -0.5, 0.0))


def test_pairing_removes_what_is_hard_for_both_models() -> None:
    hardness = np.random.default_rng(1).random(50)
    assert bootstrap(hardness.tolist(), (hardness + 0.25).tolist()) == pytest.approx((0.25, 0.25, 0.25))
    _, low, high = bootstrap(hardness.tolist(), (hardness[::-1] + 0.25).tolist())
    assert high - low > 0.1


@pytest.mark.parametrize(("first", "second"), [([], []), ([1.0], [1.0, 0.0])])
def test_the_bootstrap_refuses_scores_that_make_no_pairs(first: list[float], second: list[float]) -> None:
    with pytest.raises(ValueError, match=f"got {len(first)} and {len(second)}"):
        bootstrap(first, second)


@pytest.mark.parametrize("samples", range(1, 8))
def test_pass_at_k_is_the_share_of_draws_of_k_that_hold_a_right_answer(samples: int) -> None:
    for correct in range(samples + 1):
        right = [True] * correct + [False] * (samples - correct)
        for k in range(1, samples + 1):
            draws = [any(draw) for draw in combinations(right, k)]
            assert pass_at_k(samples, correct, k) == pytest.approx(sum(draws) / len(draws), abs=1e-15)


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_refuses_impossible_counts(samples: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"got k={k}, {correct} of {samples}"):
        pass_at_k(samples, correct, k)


def test_pearson_and_spearman_of_a_bent_line_and_where_neither_is_defined() -> None:
    # About their means of 1.5 and 3.5: Σxy = 15, Σx² = 5, Σy² = 49.
    assert pearson([0, 1, 2, 3], [0, 1, 4, 9]) == pytest.approx(15 / math.sqrt(5 * 49))
    assert spearman([0, 1, 2, 3], [0, 1, 4, 9]) == pytest.approx(1.0)
    assert spearman([1, 1, 2], [5, 5, 3]) == pytest.approx(-1.0)
    for undefined in (([1.0], [2.0]), ([], []), ([1, 1], [1, 2]), ([1, 2], [3, 3])):
        assert pearson(*undefined) is None
        assert spearman(*undefined) is None


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    # Ranks 1.5 1.5 3 and 1 2.5 2.5, about their mean of 2: Σxy = 0.5 - 0.25 + 0.5, Σx² = Σy² = 1.5.
    assert spearman([7, 7, 9], [1, 4, 4]) == pytest.approx(0.75 / 1.5)


def test_kendalls_tau_b_of_rankings_with_ties_is_the_published_one() -> None:
    def signs(values: list[int]) -> list[float]:
        return [float(np.sign(b - a)) for a, b in combinations(values, 2)]

    first, second = np.array([signs([12, 2, 1, 12, 2]), signs([1, 2, 3, 4, 5])]), np.array([signs([1, 4, 7, 1, 0]), signs([3, 3, 3, 3, 3])])
    tied, constant = kendall_tau_b(first, second)
    assert tied == pytest.approx(-0.47140452079103173)
    assert math.isnan(constant)


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (9, 2.26216), (30, 2.04227), (1.3, 7.5005), (2.7, 3.39215)])
def test_students_quantiles_are_those_of_the_tables(degrees: float, quantile: float) -> None:
    assert t95(degrees) == pytest.approx(quantile, rel=3e-5)


def test_several_comparisons_share_the_five_per_cent() -> None:
    """With 4 degrees of freedom and 5 comparisons: the 99.5 % quantile, 4.60409."""
    assert t95(4, 5) == pytest.approx(4.60409, rel=1e-5)
    one, five = (t_interval([1.0, 2.0, 3.0, 4.0, 5.0], comparisons) for comparisons in (1, 5))
    assert (five.high - five.estimate) / (one.high - one.estimate) == pytest.approx(4.60409 / 2.77645, rel=1e-5)
    assert welch([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], 3).low < welch([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]).low


def test_students_quantile_falls_to_that_of_the_normal_distribution() -> None:
    assert t95(100) > t95(1000) > t95(1e9) == pytest.approx(1.96, abs=3e-4)
    with pytest.raises(ValueError, match="at least 1 degree of freedom, got 0"):
        t95(0)


def test_the_interval_of_a_mean() -> None:
    found = t_interval([1.0, 2.0, 3.0])
    assert (found.estimate, found.low, found.high) == pytest.approx((2.0, 2 - 4.30265 / math.sqrt(3), 2 + 4.30265 / math.sqrt(3)), abs=1e-5)
    one = t_interval([0.5])
    assert (one.estimate, one.low, one.high) == (0.5, -math.inf, math.inf)
    same = t_interval([0.25, 0.25])
    assert (same.low, same.high) == (0.25, 0.25)
    with pytest.raises(ValueError, match="no measurements"):
        t_interval([])


def test_welchs_interval_of_a_difference() -> None:
    """By hand: variances 7/3 and 83/12 over 3 and 4 measurements, 4.84 degrees of freedom."""
    first, second = [1.0, 2.0, 4.0], [3.0, 7.0, 8.0, 9.0]
    a, b = 7 / 3 / 3, 83 / 12 / 4
    degrees = (a + b) ** 2 / (a**2 / 2 + b**2 / 3)
    found = welch(first, second)
    assert (found.estimate, found.high - found.estimate) == pytest.approx((6.75 - 7 / 3, t95(degrees) * math.sqrt(a + b)))
    turned = welch(second, first)
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))
    assert welch([1.0], second).low == -math.inf
    assert welch([1.0, 1.0], [2.0, 2.0]).low == 1.0
    with pytest.raises(ValueError, match="got 0 and 4"):
        welch([], second)
