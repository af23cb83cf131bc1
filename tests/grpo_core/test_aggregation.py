import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_core.aggregation import AGGREGATIONS, Totals, count_totals, masked, token_mean
from tests.golden import GOLDEN

HAND = GOLDEN["aggregation_len2_A+1_len4_A-1"]
NAMES = {"grpo": "sequence_mean", "dapo": "token_mean", "dr_grpo_const8": "constant"}


def lengths_mask(*lengths: int) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)


@pytest.mark.parametrize("golden", NAMES)
def test_two_completions_of_2_and_4_tokens_weigh_as_worked_out_by_hand(golden: str) -> None:
    mask = lengths_mask(2, 4)
    logprobs = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    loss = -AGGREGATIONS[NAMES[golden]](logprobs.exp() * advantages, mask, count_totals(mask, 8))
    (gradient,) = torch.autograd.grad(loss, logprobs)
    first, second = HAND["dloss_dlogp_per_token"][golden]
    assert float(loss.detach()) == pytest.approx(HAND["loss"][golden], abs=1e-15)
    assert gradient.tolist() == [pytest.approx([first, first, 0, 0]), pytest.approx([second] * 4)]


def test_the_token_mean_divides_once_by_all_tokens_of_the_step() -> None:
    case = GOLDEN["grad_accumulation"]
    mask = lengths_mask(*case["token_counts"])
    values = torch.zeros(mask.shape, dtype=torch.float64)
    values[:, 0] = torch.tensor(case["token_loss_sums"])
    totals = count_totals(mask, 8)
    parts = [float(token_mean(values[row : row + 1], mask[row : row + 1], totals)) for row in (0, 1)]
    assert float(token_mean(values, mask, totals)) == case["exact_token_mean"]
    assert sum(parts) == pytest.approx(case["exact_token_mean"])


@pytest.mark.parametrize(("name", "expected"), [("token_mean", "dapo_excluding_truncated"), ("sequence_mean", "grpo_over_kept_sequences")])
def test_a_completion_masked_out_whole_leaves_numerator_and_denominator(name: str, expected: str) -> None:
    case = GOLDEN["truncated_masked"]
    mask = torch.tensor(case["mask"], dtype=torch.bool)
    values = torch.tensor(case["A"], dtype=torch.float64).unsqueeze(1).expand(2, 3)
    assert -float(AGGREGATIONS[name](values, mask, count_totals(mask, 8))) == case[expected]


def test_a_completion_masked_out_whole_leaves_the_denominator_of_dr_grpo_too() -> None:
    mask = torch.tensor([[True, True, True], [False, False, False]])
    values = torch.ones(2, 3, dtype=torch.float64)
    assert float(AGGREGATIONS["constant"](values, mask, count_totals(mask, 8))) == 3 / 8


def test_totals_are_the_counts_of_trained_completions_and_tokens() -> None:
    assert count_totals(torch.tensor([[True, True, False], [False, False, False], [True, False, False]]), 7) == Totals(sequences=2, tokens=3, length=7)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_a_step_without_a_trained_token_has_loss_0(name: str) -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    assert float(AGGREGATIONS[name](torch.full((2, 3), math.nan), mask, count_totals(mask, 8))) == 0.0


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_nan_in_masked_positions_changes_neither_value_nor_gradient(name: str) -> None:
    mask = lengths_mask(2, 4)
    totals = count_totals(mask, 8)
    results = []
    for hidden in (0.0, math.nan):
        values = torch.arange(8.0, dtype=torch.float64).view(2, 4).masked_fill(~mask, hidden).requires_grad_()
        value = AGGREGATIONS[name](values, mask, totals)
        results.append((float(value.detach()), torch.autograd.grad(value, values)[0].tolist()))
    assert results[0] == results[1]


def test_masked_keeps_values_where_the_mask_is_true() -> None:
    assert masked(torch.tensor([[1.0, math.nan, -3.0]]), torch.tensor([[True, False, True]])).tolist() == [[1.0, 0.0, -3.0]]


@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6), cut=st.integers(0, 6), name=st.sampled_from(sorted(AGGREGATIONS)))
@settings(deadline=None)
def test_parts_of_a_step_add_up_to_the_whole(lengths: list[int], cut: int, name: str) -> None:
    mask = torch.arange(6) < torch.tensor(lengths).unsqueeze(1)
    values = torch.arange(mask.numel(), dtype=torch.float64).view(mask.shape).sin()
    totals, aggregate = count_totals(mask, 6), AGGREGATIONS[name]
    parts = [float(aggregate(values[rows], mask[rows], totals)) for rows in (slice(0, cut), slice(cut, None))]
    assert sum(parts) == pytest.approx(float(aggregate(values, mask, totals)), abs=1e-14)
