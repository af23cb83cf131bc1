import json
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_core.advantages import clip_limit, decoupled_advantages, group_advantages, penalised_advantages, zero_variance
from tests.golden import GOLDEN

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def advantages(*groups: list[float], scale_by_std: bool = True) -> list[list[float]]:
    rewards = torch.tensor(groups, dtype=torch.float64)
    return group_advantages(rewards, torch.ones_like(rewards, dtype=torch.bool), scale_by_std=scale_by_std).tolist()


def penalised(rewards: list[float], lengths: list[float], *, weight: float, scale_by_std: bool = True) -> Tensor:
    penalties = weight * torch.tensor([lengths], dtype=torch.float64).square()
    raw = torch.tensor([rewards], dtype=torch.float64)
    return penalised_advantages(raw, penalties, torch.ones_like(raw, dtype=torch.bool), scale_by_std=scale_by_std)[0]


@pytest.mark.parametrize("rewards", GOLDEN["advantages"])
def test_an_advantage_is_the_distance_from_the_mean_in_sample_standard_deviations(rewards: str) -> None:
    expected = GOLDEN["advantages"][rewards]
    assert advantages(json.loads(rewards))[0] == pytest.approx(expected["group_ddof1"], abs=1e-14)
    assert advantages(json.loads(rewards), scale_by_std=False)[0] == pytest.approx(expected["dr_grpo"], abs=1e-14)


def test_groups_do_not_see_each_other() -> None:
    assert advantages([1, 0, 0, 1], [100, 200, 300, 400]) == [advantages([1, 0, 0, 1])[0], advantages([100, 200, 300, 400])[0]]


@pytest.mark.parametrize("unit", GOLDEN["advantages_scale_invariance"])
def test_the_unit_of_the_reward_does_not_matter(unit: str) -> None:
    assert advantages([float(unit), 0, 0, float(unit)])[0] == pytest.approx(GOLDEN["advantages_scale_invariance"][unit], abs=1e-12)


def test_rewards_around_1e8_keep_their_differences() -> None:
    assert advantages([1e8 + 1, 1e8 + 2, 1e8 + 3, 1e8 + 4])[0] == pytest.approx(GOLDEN["advantages_offset_1e8"], abs=1e-12)


@pytest.mark.parametrize("group", GOLDEN["advantages_dead_group"])
def test_the_dead_groups_worked_out_by_hand_give_zeros(group: str) -> None:
    value, size = group.removesuffix(" (G=1)").split(" x ")
    assert advantages([float(value)] * int(size))[0] == GOLDEN["advantages_dead_group"][group]


@given(value=FINITE, size=st.integers(1, 17), scale_by_std=st.booleans())
@settings(deadline=None)
def test_equal_rewards_give_exactly_zero_whatever_their_value_and_number(value: float, size: int, scale_by_std: bool) -> None:
    assert advantages([value] * size, scale_by_std=scale_by_std) == [[0.0] * size]


@pytest.mark.parametrize("scale_by_std", [True, False])
@pytest.mark.parametrize("group", [[0.7] * 7, [0.1 + 0.2, 0.3], [0.3, 0.1 + 0.2, 0.3, 0.3], [-(0.1 + 0.2), -0.3], [0.1] * 3 + [0.3 - 0.2]])
def test_rewards_that_differ_by_rounding_alone_are_equal(group: list[float], scale_by_std: bool) -> None:
    assert advantages(group, scale_by_std=scale_by_std) == [[0.0] * len(group)]


@pytest.mark.parametrize("pair", [[1.0, 1.0 + 1e-11], [1e-20, 3e-20], [0.0, 1e-100]])
def test_a_small_difference_is_a_difference(pair: list[float]) -> None:
    assert advantages(pair)[0] == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], abs=1e-4)


@given(rewards=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
@settings(deadline=None)
def test_scaled_advantages_have_mean_0_and_deviation_1_and_stay_within_their_bound(rewards: list[float]) -> None:
    assume(max(rewards) - min(rewards) > 1e-6 * max(1e-90, *map(abs, rewards)))
    found = torch.tensor(advantages(rewards)[0], dtype=torch.float64)
    assert float(found.mean()) == pytest.approx(0, abs=1e-7)
    assert float(found.std()) == pytest.approx(1)
    assert float(found.abs().max()) <= (len(rewards) - 1) / math.sqrt(len(rewards)) + 1e-7


@pytest.mark.parametrize("missing", [0.0, 1e9, math.nan, math.inf])
def test_an_unscored_completion_takes_no_part_in_mean_and_deviation(missing: float) -> None:
    rewards = torch.tensor([[1, 0, missing, 1]], dtype=torch.float64)
    found = group_advantages(rewards, torch.tensor([[True, True, False, True]]), scale_by_std=True)
    assert found[0].tolist() == pytest.approx(GOLDEN["advantages_missing_reward"]["adv"], abs=1e-14)


@pytest.mark.parametrize("scored", [[False, False, False], [True, False, False], [True, True, False]])
def test_fewer_than_two_different_scored_rewards_have_nothing_to_compare(scored: list[bool]) -> None:
    rewards, known = torch.tensor([[5.0, 5.0, 9.0]], dtype=torch.float64), torch.tensor([scored])
    assert zero_variance(rewards, known).tolist() == [True]
    assert group_advantages(rewards, known, scale_by_std=True).tolist() == [[0.0, 0.0, 0.0]]


def test_zero_variance_tells_groups_apart() -> None:
    rewards = torch.tensor([[0.1 + 0.2, 0.3], [0, 1], [0, 0]], dtype=torch.float64)
    assert zero_variance(rewards, torch.ones_like(rewards, dtype=torch.bool)).tolist() == [True, False, True]


@pytest.mark.parametrize("scale_by_std", [True, False])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_never_read_as_nothing_to_learn(bad: float, scale_by_std: bool) -> None:
    found = advantages([bad, 0, 0, 1], [1, 0, 0, 1], scale_by_std=scale_by_std)
    assert not all(map(math.isfinite, found[0]))
    assert found[1] == advantages([1, 0, 0, 1], scale_by_std=scale_by_std)[0]


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.7, 1e6])
def test_in_a_group_of_equal_rewards_the_weight_of_a_length_penalty_matters(reward: float) -> None:
    light, heavy = (penalised([reward] * 4, [1, 2, 3, 4], weight=weight) for weight in (1e-9, 1e-3))
    assert heavy.tolist() == pytest.approx([6.5e-3, 3.5e-3, -1.5e-3, -8.5e-3])
    assert (heavy / light).tolist() == pytest.approx([1e6] * 4)


def test_in_a_group_of_different_rewards_the_penalty_is_scaled_with_the_reward() -> None:
    found = penalised([1, 0, 1, 0], [1, 2, 3, 4], weight=0.1)
    assert found.tolist() == pytest.approx(advantages([1 - 0.1, -0.4, 1 - 0.9, -1.6])[0])
    assert penalised([1, 0, 1, 0], [1, 2, 3, 4], weight=0.1, scale_by_std=False).tolist() == pytest.approx([1.15, -0.15, 0.35, -1.35])


def test_without_a_penalty_penalised_advantages_are_the_plain_ones() -> None:
    assert penalised([1, 0, 0, 1], [7, 8, 9, 10], weight=0.0).tolist() == advantages([1, 0, 0, 1])[0]
    assert penalised([0.7] * 7, [1, 2, 3, 4, 5, 6, 7], weight=0.0).tolist() == [0.0] * 7


def test_the_advantage_clip_moves_linearly_from_start_to_end_and_stays() -> None:
    limits = [clip_limit(step, start=1.5, end=2.0, steps=5) for step in range(1, 8)]
    assert limits == pytest.approx([1.5, 1.625, 1.75, 1.875, 2.0, 2.0, 2.0])


@pytest.mark.parametrize("steps", [0, 1])
def test_a_schedule_of_no_length_is_at_its_end_at_once(steps: int) -> None:
    assert clip_limit(1, start=1.5, end=2.0, steps=steps) == 2.0


def test_an_advantage_clip_of_0_clips_nothing() -> None:
    assert clip_limit(1, start=1.5, end=0.0, steps=10) == math.inf


def test_rewards_too_large_to_square_are_standardised_as_any_others() -> None:
    rewards = torch.tensor([[1e200, 0.0, 0.0, 1e200]], dtype=torch.float64)
    advantages = group_advantages(rewards, torch.ones_like(rewards, dtype=torch.bool), scale_by_std=True)
    assert advantages.tolist() == [pytest.approx([0.8660254037844387, -0.8660254037844387, -0.8660254037844387, 0.8660254037844387])]


def decoupled(*functions: list[list[float]], weights: list[float], scored: list[list[list[bool]]] | None = None) -> list[list[float]]:
    rewards = [torch.tensor(groups, dtype=torch.float64) for groups in functions]
    known = [torch.ones_like(values, dtype=torch.bool) for values in rewards] if scored is None else [torch.tensor(groups) for groups in scored]
    return decoupled_advantages(rewards, weights, known).tolist()


def test_gdpo_standardises_each_reward_then_sums_then_divides_by_the_batch() -> None:
    right, short = [[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]], [[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    # Standardised and summed: (√3, 0, 0, -√3) and (1.5, -0.5, -0.5, -0.5); their squares add up to 9 over 7 degrees of freedom.
    std = math.sqrt(9 / 7)
    found = decoupled(right, short, weights=[1.0, 1.0])
    assert found[0] == pytest.approx([math.sqrt(3) / std, 0.0, 0.0, -math.sqrt(3) / std])
    assert found[1] == pytest.approx([1.5 / std, -0.5 / std, -0.5 / std, -0.5 / std])


def test_gdpo_hears_a_reward_whose_unit_is_small_and_obeys_its_weight() -> None:
    large, small = [[100.0, 0, 100, 0]], [[0.0, 0.01, 0.01, 0]]
    equal = decoupled(large, small, weights=[1.0, 1.0])[0]
    assert equal == pytest.approx([0.0, 0.0, math.sqrt(1.5), -math.sqrt(1.5)])
    ahead = decoupled(large, small, weights=[2.0, 1.0])[0]
    assert ahead[0] > 0 > ahead[1], "twice the weight: the large reward decides"
    assert decoupled(large, small, weights=[1.0, -1.0])[0] == pytest.approx([math.sqrt(1.5), -math.sqrt(1.5), 0.0, 0.0])


def test_gdpo_gives_a_group_with_nothing_to_compare_exactly_nothing() -> None:
    found = decoupled([[0.7] * 4, [1.0, 0.0, 0.0, 0.0]], [[0.1] * 4, [0.3] * 4], weights=[1.0, 1.0])
    assert found[0] == [0.0] * 4
    assert found[1] == pytest.approx([1.5, -0.5, -0.5, -0.5] / torch.tensor(3 / 7).sqrt().double().numpy())
    assert decoupled([[0.7] * 4], [[0.1] * 4], weights=[1.0, 1.0]) == [[0.0] * 4]


def test_gdpo_leaves_a_completion_out_of_the_reward_that_says_nothing_of_it() -> None:
    yes, no = [[True] * 4], [[True, True, True, False]]
    found = decoupled([[1.0, 1, 0, 0]], [[1.0, 0, 0, 9.0]], weights=[1.0, 1.0], scored=[yes, no])[0]
    half = math.sqrt(3) / 2  # of (1, 1, 0, 0), standardised
    second = [2 / math.sqrt(3), -1 / math.sqrt(3), -1 / math.sqrt(3), 0.0]  # of (1, 0, 0)
    together = [half + second[0], half + second[1], -half + second[2], -half]
    std = math.sqrt(sum(value**2 for value in together) / 3)
    assert found == pytest.approx([value / std for value in together])


def test_gdpo_with_one_reward_is_the_plain_advantage_but_for_the_batch_scale() -> None:
    found = decoupled([[1.0, 0, 0, 1]], weights=[3.0])[0]
    assert found == pytest.approx(advantages([1, 0, 0, 1])[0])


def test_gdpo_takes_rewards_that_cancel_for_nothing() -> None:
    rewards = torch.rand(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    known = torch.ones_like(rewards, dtype=torch.bool)
    found = decoupled_advantages([rewards] * 3, [0.1, 0.2, -0.3], [known] * 3)
    assert torch.equal(found, torch.zeros_like(rewards)), "0.1 + 0.2 - 0.3 is 5.6e-17"
