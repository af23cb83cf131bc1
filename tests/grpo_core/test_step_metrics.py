"""A step's numbers, from batches whose numbers are known."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from grpo_core.advantages import zero_variance
from grpo_core.rewards.scoring import Scores
from grpo_core.rollout import RolloutBatch
from grpo_core.sampling import Completion
from grpo_core.signal import Signal
from grpo_core.step import Minibatch, StepStatistics
from grpo_core.step_metrics import (
    accuracy_metrics,
    advantage_metrics,
    completion_metrics,
    diversity_metrics,
    repetition,
    reward_metrics,
    sampler_metrics,
    solved_groups,
    spread_metrics,
    update_metrics,
)
from grpo_core.token_batch import token_batch

METRIC, OTHER = "exact_answer", "answer_format"


def batch(
    tokens: Sequence[Sequence[int]], *, size: int, prompts: Sequence[str] | None = None, logprobs: Sequence[Sequence[float]] | None = None
) -> RolloutBatch:
    """Groups of `size` completions with these tokens; those of odd length were cut off."""
    drawn = logprobs or [[-1.0] * len(ids) for ids in tokens]
    completions = [Completion(list(ids), list(said), "length" if len(ids) % 2 else "eos") for ids, said in zip(tokens, drawn, strict=True)]
    asked = prompts or [f"p{group}" for group in range(len(tokens) // size)]
    return RolloutBatch(
        step=1, prompts=pl.DataFrame({"prompt_id": asked}), prompt_token_ids=[[1]] * len(asked), completions=completions, texts=[""] * len(tokens),
        raw_texts=[""] * len(tokens), group_size=size, policy_digest="d",
    )  # fmt: skip


def signal(rewards: Sequence[Sequence[float | None]], advantages: Sequence[Sequence[float]] | None = None) -> Signal:
    """What these rewards say, a row a group; None is not scored."""
    scored = torch.tensor([[value is not None for value in row] for row in rewards])
    values = torch.tensor([[0.0 if value is None else value for value in row] for row in rewards], dtype=torch.float64)
    found = torch.zeros_like(values) if advantages is None else torch.tensor(advantages, dtype=torch.float64)
    return Signal(values, scored, zero_variance(values, scored), values, found, found.clamp(-1, 1))


def scores(totals: Sequence[float | None], **by_function: Sequence[float | None]) -> Scores:
    known: dict[str, Any] = {name: list(values) for name, values in by_function.items()}
    return Scores(known, {name: ["ok"] * len(totals) for name in known}, [None] * len(totals), list(totals), ["ok"] * len(totals))


def rewarded(rewards: Sequence[Sequence[float | None]], full_marks: float = 1.0) -> dict[str, float]:
    scored, said = scores([value for row in rewards for value in row]), signal(rewards)
    return reward_metrics(scored, said, solved_groups(scored, said, full_marks, METRIC), full_marks)


# -------------------------------------------------------------------------------------------------------------------- rewards


@pytest.mark.parametrize(
    ("rewards", "full_marks", "expected"),
    [
        ([0.0] * 10 + [1.0] * 9 + [1e6], 1.0, 999_999.0),  # 90 % lie between 0 and 1
        ([0.0] * 10 + [1.0] * 9 + [1e6], 4.0, 999_999 / 4),  # full marks are wider than that
        ([0.0] * 10 + [8.0] * 9 + [80.0], 4.0, 9.0),
        ([0.0] * 10 + [1.0] * 9 + [-3.0], 1.0, 3.0),
        ([0.0] * 10 + [1.0] * 10, 1.0, 0.0),
        ([0.0] * 9 + [1.0] * 9 + [1e6] * 2, 1.0, 0.0),  # two in twenty at one end are part of the middle 90 %
        ([0.0] * 19 + [1.0], 1.0, 1.0),  # the one right answer of a sparse reward is no outlier
        ([0.3] * 20, 1.0, 0.0),
        ([0.0] * 9 + [1e6], 1.0, 1e6),  # of fewer than twenty the middle is all but the two extremes
        ([0.0, 1e6], 1.0, 0.0),
        ([0.0], 1.0, 0.0),
    ],
)
def test_an_outlier_is_measured_in_spreads_beyond_the_middle_of_the_batch(rewards: list[float], full_marks: float, expected: float) -> None:
    for order in (rewards, rewards[::-1]):
        found = spread_metrics(order, full_marks)
        assert found["reward/outlier"] == pytest.approx(expected)
        assert (found["reward/min"], found["reward/max"]) == (min(rewards), max(rewards))


def test_the_lowest_fraction_counts_those_at_the_lowest_of_the_batch() -> None:
    assert spread_metrics([-1.0, -1.0, 0.0, 2.0], 1.0)["reward/lowest_fraction"] == 0.5
    assert spread_metrics([0.1 + 0.2, 0.3, 0.5, 0.5], 1.0)["reward/lowest_fraction"] == 0.5, "but for rounding they are the same"
    assert spread_metrics([0.7] * 5, 1.0)["reward/lowest_fraction"] == 1.0
    assert spread_metrics([], 1.0) == {}


def test_groups_are_alike_as_they_are_solved_or_hopeless() -> None:
    found = rewarded([[1.0, 1.0], [0.0, 0.0], [0.0, 1.0], [None, None], [1.0, None]])
    assert (found["zero_variance_fraction"], found["solved_group_fraction"], found["hopeless_group_fraction"]) == (0.8, 0.4, 0.4)
    assert (found["reward/min"], found["reward/max"], found["reward/lowest_fraction"]) == (0.0, 1.0, 3 / 7)
    partly = rewarded([[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]], full_marks=1.1)
    assert partly["hopeless_group_fraction"] == pytest.approx(2 / 3), "alike at less than full marks, and nobody says that it is right"


RIGHT, WRONG = [1.0, 1.0], [0.0, 0.0]


@pytest.mark.parametrize(
    ("rewards", "correct", "expected"),
    [
        ([0.37, 0.37], RIGHT, True),  # full marks of 1.7 are out of reach: what is right, and alike, is solved
        ([0.37, 0.37], [1.0, 0.0], False),
        ([0.37, 0.37], WRONG, False),
        ([0.37, 0.37], [1.0, None], False),  # of one of them nobody knows
        ([0.37, None], [1.0, 0.0], True),  # what was not scored takes no part
        ([0.3, 0.37], RIGHT, False),  # right, and still something to compare
        ([1.7, 1.7], WRONG, True),  # at full marks there is nothing more to earn
        ([None, None], RIGHT, False),
    ],
)
def test_a_group_alike_is_solved_where_all_of_it_is_right(rewards: list[float | None], correct: list[float | None], expected: bool) -> None:
    said = signal([rewards, [0.0, 0.0]])
    assert solved_groups(scores([*rewards, 0.0, 0.0], **{METRIC: [*correct, *WRONG]}), said, 1.7, METRIC).tolist() == [expected, False]
    unknown = solved_groups(scores([*rewards, 0.0, 0.0], **{OTHER: [*correct, *WRONG]}), said, 1.7, METRIC).tolist()
    assert unknown == [rewards == [1.7, 1.7], False], "the metric is not among the rewards"


@pytest.mark.parametrize("value", [0.7, 0.1, 1.1, 0.0, -0.3])
@pytest.mark.parametrize("count", [1, 6, 64])
def test_rewards_that_are_all_alike_have_a_deviation_of_exactly_zero(value: float, count: int) -> None:
    assert rewarded([[value, value]] * count)["reward/std"] == 0.0


def test_rewards_that_differ_have_the_deviation_of_the_batch() -> None:
    assert rewarded([[0.0, 1.0], [1.0, None]])["reward/std"] == pytest.approx(math.sqrt(2) / 3)
    assert rewarded([[1e-9, 0.0], [0.0, 0.0]])["reward/std"] == pytest.approx(math.sqrt(3) / 4 * 1e-9)
    nothing = rewarded([[None, None]])
    assert (nothing["reward/mean"], nothing["reward/std"]) == (0.0, 0.0)
    assert not {"reward/min", "reward/max", "reward/outlier", "reward/lowest_fraction"} & set(nothing)


def test_the_mean_advantage_is_told_in_deviations() -> None:
    found = advantage_metrics(signal([[1.0, 1.0, 1.0, None]], [[3.0, 1.0, -1.0, 9.0]]))
    assert found["advantage/mean"] == 1.0
    assert found["advantage/mean_over_std"] == pytest.approx(1 / math.sqrt(8 / 3))
    assert advantage_metrics(signal([[1.0, 1.0]], [[0.5, 0.5]]))["advantage/mean_over_std"] == 0.0


# ---------------------------------------------------------------------------------------------------------------- completions


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], 0.0),
        ([7, 7, 7], 0.0),  # too short for one n-gram
        ([7, 7, 7, 7], 0.0),  # the first is no repetition
        ([7, 7, 7, 7, 7], 1 / 2),
        ([7] * 13, 9 / 10),
        ([1, 2, 3, 4, 1, 2, 3, 4], 1 / 5),
        (list(range(20)), 0.0),
        ([1, 2, 3, 1, 2, 3], 0.0),  # of three tokens only
    ],
)
def test_repetition_is_the_share_of_four_tokens_in_a_row_that_were_there_before(tokens: list[int], expected: float) -> None:
    assert repetition(tokens) == pytest.approx(expected)


def test_completions_are_told_by_length_truncation_repetition_and_their_prompts() -> None:
    found = completion_metrics(batch([[7] * 5, [1, 2], [7] * 13, [5, 6, 5, 6]], size=1, prompts=["a", "b", "a", "a"]))
    assert found == pytest.approx({
        "length/mean": 6.0, "length/max": 13.0, "truncated_fraction": 0.5, "tokens": 24.0, "repetition": (1 / 2 + 9 / 10) / 4, "repeated_prompt_fraction": 0.5,
    })  # fmt: skip
    assert completion_metrics(batch([[1], [2]], size=1))["repeated_prompt_fraction"] == 0.0


A, B, C = [1, 2], [1, 2, 3], [4]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([[1.0] * 4, [0.0] * 4, [0.0, 0.0, 0.0, 1.0]], (0 + 2 / 3) / 2),  # the first group is solved: it may be alike
        ([[0.0] * 4, [0.0] * 4, [0.0, 0.0, 0.0, 1.0]], (0 + 0 + 2 / 3) / 3),
        ([[1.0] * 4, [1.0] * 4, [0.5, 1.0, 1.0, 1.0]], 2 / 3),
        ([[1.0, None, None, None], [None] * 4, [1.0] * 4], 0.0),  # nobody knows whether the second is solved
        ([[1.0] * 4, [1.0] * 4, [1.0] * 4], None),
    ],
)
def test_how_distinct_completions_are_is_asked_of_groups_that_are_not_solved(rewards: list[list[float | None]], expected: float | None) -> None:
    drawn = batch([A, A, A, A, B, B, B, B, A, B, B, C], size=4)
    said = scores([value for row in rewards for value in row])
    found = diversity_metrics(drawn, solved_groups(said, signal(rewards), 1.0, METRIC))
    assert found == ({} if expected is None else {"distinct_fraction": pytest.approx(expected)})


@pytest.mark.parametrize(("tokens", "expected"), [([A, A], 0.0), ([A, B], 1.0)])
def test_a_group_of_two_is_alike_or_not(tokens: list[list[int]], expected: float) -> None:
    assert diversity_metrics(batch(tokens, size=2), torch.tensor([False])) == {"distinct_fraction": expected}


# ------------------------------------------------------------------------------------------------- right answers, and what else is paid


def graded(correct: Sequence[float | None], rewards: Sequence[float | None], lengths: Sequence[int], *, size: int) -> dict[str, float]:
    return accuracy_metrics(batch([[5] * length for length in lengths], size=size), scores(rewards, **{METRIC: correct}), METRIC)


def test_what_is_paid_beyond_right_answers_is_worked_out_by_hand() -> None:
    """One group: among the right ones reward and length differ by (0.2, 2), among the wrong ones by (-0.2, 4)."""
    found = graded([1.0, 1.0, 0.0, 0.0], [1.1, 1.3, 0.2, 0.0], [1, 3, 2, 6], size=4)
    assert found == pytest.approx({
        "train_accuracy": 0.5,
        "reward/beyond_accuracy": 0.04 / 1.25,  # ±0.1 within the right and the wrong; ±0.45 and ±0.65 about the group's mean of 0.65
        "length_paid": -0.2 / math.sqrt(0.04 * 10),
    })  # fmt: skip


def test_a_reward_of_right_answers_alone_pays_nothing_else() -> None:
    found = graded([1.0, 0.0, 0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0, 1.0, 0.0], [3, 9, 1, 4, 8, 2], size=3)
    assert found == {"train_accuracy": 0.5, "reward/beyond_accuracy": 0.0, "length_paid": 0.0}


@pytest.mark.parametrize("paid", [0.01, -0.01])
def test_a_reward_that_also_pays_each_token_follows_length_wholly(paid: float) -> None:
    correct, lengths = [1.0, 1.0, 0.0, 0.0, 0.0, 1.0], [3, 9, 1, 4, 8, 2]
    found = graded(correct, [right + paid * length for right, length in zip(correct, lengths, strict=True)], lengths, size=3)
    assert found["length_paid"] == pytest.approx(math.copysign(1.0, paid))
    assert 0 < found["reward/beyond_accuracy"] < 0.05


def test_differences_between_groups_and_between_right_and_wrong_are_no_length_that_is_paid() -> None:
    """Longer prompts earn more, right answers are longer: neither is paid for length."""
    found = graded([1.0, 0.0, 1.0, 0.0], [2.0, 1.0, 12.0, 11.0], [4, 2, 40, 20], size=2)
    assert (found["reward/beyond_accuracy"], found["length_paid"]) == (0.0, 0.0)
    assert graded([1.0] * 4, [0.5, 0.7, 0.1, 0.3], [5] * 4, size=2)["length_paid"] == 0.0, "where all are as long nothing follows length"


def test_it_is_the_partial_correlation_given_group_and_correctness() -> None:
    chance, size, count = np.random.default_rng(0), 6, 48
    correct = (chance.random(count) < 0.4).astype(float)
    lengths = chance.integers(1, 30, count)
    rewards = correct + 0.02 * lengths + 0.3 * chance.random(count) + np.repeat(chance.random(count // size), size)
    cells = np.arange(count) // size * 2 + correct
    design = (cells[:, None] == np.unique(cells)[None, :]).astype(float)
    left = [column - design @ np.linalg.lstsq(design, column, rcond=None)[0] for column in (rewards, lengths.astype(float))]
    in_group = rewards - np.repeat(rewards.reshape(-1, size).mean(axis=1), size)
    found = graded(correct.tolist(), rewards.tolist(), lengths.tolist(), size=size)
    assert 0.2 < found["length_paid"] < 0.95
    assert found["length_paid"] == pytest.approx(float(np.corrcoef(*left)[0, 1]))
    assert found["reward/beyond_accuracy"] == pytest.approx(float(left[0] @ left[0] / (in_group @ in_group)))
    assert found["train_accuracy"] == pytest.approx(correct.mean())


def test_completions_that_nobody_graded_are_left_out() -> None:
    found = graded([1.0, None, 0.0, 1.0], [1.0, 5.0, 0.0, None], [1, 2, 3, 4], size=4)
    assert found["train_accuracy"] == 0.5
    assert found == graded([1.0, 0.0], [1.0, 0.0], [1, 3], size=2)
    assert graded([None, None], [1.0, 2.0], [1, 2], size=2) == {}
    half = graded([0.5, 1.0], [0.5, 1.0], [1, 2], size=2)
    assert half["train_accuracy"] == 0.5, "half right is not right, as in every evaluation"


def test_a_metric_that_is_no_reward_counts_nothing() -> None:
    assert accuracy_metrics(batch([A, B], size=2), scores([1.0, 0.0], **{OTHER: [1.0, 0.0]}), METRIC) == {}


# -------------------------------------------------------------------------------------------------------------------- updates


def statistics(**values: float) -> StepStatistics:
    usual = dict.fromkeys(("loss", "policy_loss", "kl_loss", "grad_norm", "entropy", "clip_fraction", "max_ratio", "logprob_gap", "mean_gap", "policy_kl"), 0.0)
    return StepStatistics(**{**usual, "effective_sample_fraction": 1.0, **values})


def test_how_far_a_batch_moved_the_policy_is_told_by_its_last_update() -> None:
    found = update_metrics([
        statistics(policy_kl=0.0, effective_sample_fraction=1.0, grad_norm=3.0, logprob_gap=0.5),
        statistics(policy_kl=0.25, effective_sample_fraction=0.5, grad_norm=1.0, logprob_gap=2.0),
    ])  # fmt: skip
    assert (found["policy_kl"], found["effective_sample_fraction"]) == (0.25, 0.5)
    assert (found["grad_norm"], found["grad_norm/max"], found["logprob_gap"]) == (2.0, 3.0, 0.5)


def test_the_sampler_is_held_against_the_trainer_before_any_weight_moved() -> None:
    drawn = batch([[5, 6], [7]], size=2, logprobs=[[-1.0, -2.0], [-3.0]])
    old = torch.tensor([[-1.5, -2.0], [-3.25, 99.0]])  # what padding holds is no gap
    kept = Minibatch(token_batch([[1], [1]], [[5, 6], [7]]), old, None, torch.zeros(2))
    updates = [statistics(mean_gap=0.125), statistics(mean_gap=9.0)]
    assert sampler_metrics(drawn, kept, updates, are_samplers=True) == {"sampler_gap": 0.125}, "of the first minibatch: the second sees other weights"
    assert sampler_metrics(drawn, kept, updates, are_samplers=False) == {"sampler_gap": pytest.approx((0.5 + 0.0 + 0.25) / 3)}
    same = replace(kept, old_logprobs=torch.tensor([[-1.0, -2.0], [-3.0, 0.0]]))
    assert sampler_metrics(drawn, same, updates, are_samplers=False) == {"sampler_gap": 0.0}
