"""Groups with right and wrong completions, for other numbers of completions than were drawn."""

import math

import pytest

from grpo_core.live_groups import Live, beta_live, beta_moments, live_shares


def chance(right: int, drawn: int, p: float) -> float:
    return math.comb(drawn, right) * p**right * (1 - p) ** (drawn - right)


@pytest.mark.parametrize("p", [0.0, 0.03, 0.4, 0.9, 1.0])
def test_up_to_the_completions_there_are_the_estimate_is_unbiased(p: float) -> None:
    for size in (2, 4, 8):
        expected = sum(chance(c, 8, p) * live_shares([c], [8], [size])[0].share for c in range(9))
        assert expected == pytest.approx(1 - p**size - (1 - p) ** size)


def test_the_explored_size_gives_what_was_seen() -> None:
    assert live_shares([0, 1, 8, 7], [8, 8, 8, 8], [8]) == (Live(8, 0.5, is_extrapolated=False),)


def test_groups_that_are_surely_live_stay_so() -> None:
    assert live_shares([32] * 10, [64] * 10, [128])[0].share == pytest.approx(1.0)
    assert 0.99 < live_shares([30, 34, 32, 31, 28], [64] * 5, [128])[0].share <= 1.0


def test_a_prompt_with_fewer_graded_completions_changes_nothing_of_the_others() -> None:
    """Of a group of 4: C(8, 4) = 70, of which C(6, 4) = 15 hold none of the two right ones; 1 of 2 right is live whatever comes."""
    seen = 1 - 15 / 70
    (found,) = live_shares([2, 1], [8, 2], [4])
    assert found.share == pytest.approx((seen + 1.0) / 2)
    assert found.is_extrapolated
    assert live_shares([2, 0], [8, 0], [4]) == live_shares([2], [8], [4]), "nobody could grade it"
    (poor,) = live_shares([2, 0], [8, 2], [4])
    assert seen / 2 < poor.share < (seen + 1) / 2, "two wrong ones may come alive with more"


def test_moments_are_unbiased() -> None:
    """Two kinds of prompts, half each: p is 0.1 or 0.7, so its mean is 0.4 and its mean square 0.25."""
    right = [c for p in (0.1, 0.7) for c in range(9) for _ in range(round(chance(c, 8, p) * 20_000))]
    assert beta_moments(right, [8] * len(right)) == pytest.approx((0.4, 0.25 - 0.4**2), abs=1e-4)
    assert beta_moments([0, 8, 4, 4], [8, 8, 8, 8]) == pytest.approx((0.5, (1 + 2 * 12 / 56) / 4 - 0.25))
    assert beta_moments([2, 2], [4, 4]) == (0.5, 0.0), "less spread than chance alone gives is none"
    assert beta_moments([1, 0], [1, 1]) == (0.5, 0.0), "one completion a prompt says nothing of the spread"


def test_a_uniform_chance_has_a_closed_form() -> None:
    """The integral of 1 - p^G - (1 - p)^G over p is 1 - 2/(G + 1)."""
    for size in (2, 8, 16):
        assert beta_live(0.5, 1 / 12, size) == pytest.approx(1 - 2 / (size + 1))


def test_a_beta_distribution_is_what_its_integral_says() -> None:
    a, b, size = 1.5, 4.0, 16
    mean = a / (a + b)
    variance = mean * (1 - mean) / (a + b + 1)
    scale = math.gamma(a + b) / math.gamma(a) / math.gamma(b)
    points = [(i + 0.5) / 20000 for i in range(20000)]
    integral = sum(scale * p ** (a - 1) * (1 - p) ** (b - 1) * (1 - p**size - (1 - p) ** size) for p in points) / len(points)
    assert beta_live(mean, variance, size) == pytest.approx(integral, abs=1e-5)


def test_the_ends_of_what_prompts_can_be() -> None:
    assert beta_live(0.3, 0.0, 4) == pytest.approx(1 - 0.3**4 - 0.7**4), "all prompts equally hard"
    assert beta_live(0.3, 0.21, 4) == 0.0, "every prompt always right or always wrong"
    assert live_shares([], [], [4]) == ()


def test_larger_groups_are_never_less_often_live() -> None:
    shares = [live.share for live in live_shares([0, 1, 3, 8, 5], [8] * 5, [2, 4, 8, 16, 32])]
    assert shares == sorted(shares)
