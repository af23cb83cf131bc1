from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pytest
import torch

from grpo_core.ledger import batch_of, reward_rows, rollout_rows
from grpo_core.rewards.scoring import Scores
from grpo_core.rollout import RolloutBatch
from grpo_core.sampling import Completion
from grpo_core.signal import Signal
from grpo_core.tables import KEYS, ROLLOUT_SCHEMA


def batch() -> RolloutBatch:
    """Two prompts × two completions, written down."""
    prompts = pl.DataFrame({"prompt_id": ["aa", "bb"]})
    completions = [Completion([5, 2], [-0.5, -0.25], "eos"), Completion([5, 6, 7], [-1.0] * 3), Completion([2], [0.0], "eos"), Completion([9], [-2.0])]
    return RolloutBatch(4, prompts, [[1, 8], [1, 9, 9]], completions, ["a", "b", "", "c"], ["a<eos>", "b", "<eos>", "c"], 2, "feed")


def signal(shaped: list[float], advantages: list[float], clipped: list[float]) -> Signal:
    """Of the batch: only what the rows show."""
    shown = [torch.tensor(values, dtype=torch.float64).view(2, 2) for values in (shaped, advantages, clipped)]
    return Signal(torch.zeros(2, 2, dtype=torch.float64), torch.ones(2, 2, dtype=torch.bool), torch.zeros(2, dtype=torch.bool), *shown)


def test_a_rollout_row_says_who_drew_what_when_and_how_it_ended() -> None:
    rows = rollout_rows(batch())
    assert dict(rows.schema) == ROLLOUT_SCHEMA
    assert rows.select(KEYS).rows() == [(4, 0, "aa", 0), (4, 0, "aa", 1), (4, 1, "bb", 0), (4, 1, "bb", 1)]
    assert rows["prompt_token_ids"].to_list() == [[1, 8], [1, 8], [1, 9, 9], [1, 9, 9]]
    assert rows["token_ids"].to_list() == [[5, 2], [5, 6, 7], [2], [9]]
    assert rows["sampling_logprobs"].to_list() == [[-0.5, -0.25], [-1.0] * 3, [0.0], [-2.0]]
    assert rows.select("text", "raw_text").rows() == [("a", "a<eos>"), ("b", "b"), ("", "<eos>"), ("c", "c")]
    assert rows.select("length", "finish_reason").rows() == [(2, "eos"), (3, "length"), (1, "eos"), (1, "length")]
    assert rows["policy_digest"].unique().to_list() == ["feed"]


def test_a_reward_row_without_an_opinion_has_no_reward() -> None:
    scores = Scores(
        {"good": [1.0, None, 0.5, 0.0], "short": [None, None, 1.0, 1.0]},
        {"good": ["ok", "no_opinion", "ok", "invalid"], "short": ["no_opinion", "no_opinion", "ok", "ok"]},
        [None, None, None, "good: no program"],
        [1.0, None, 1.5, 1.0],
        ["ok", "no_opinion", "ok", "invalid"],
    )
    rows = reward_rows(rollout_rows(batch()), scores, signal([0.9, -0.1, 1.4, 0.9], [0.0, 0.0, 0.7, -0.7], [0.0, 0.0, 0.5, -0.5]), "c0de")
    assert rows.select(KEYS).equals(rollout_rows(batch()).select(KEYS))
    assert rows["status"].to_list() == ["ok", "no_opinion", "ok", "invalid"]
    assert rows["status/good"].to_list() == ["ok", "no_opinion", "ok", "invalid"]
    assert rows["status/short"].to_list() == ["no_opinion", "no_opinion", "ok", "ok"]
    assert rows["reason"].to_list() == [None, None, None, "good: no program"]
    assert rows["reward/good"].to_list() == [1.0, None, 0.5, 0.0]
    assert rows["reward/short"].to_list() == [None, None, 1.0, 1.0]
    assert rows["reward"].to_list() == [1.0, None, 1.5, 1.0]
    assert rows["shaped_reward"].to_list() == [0.9, None, 1.4, 0.9]
    assert rows["advantage"].to_list() == [0.0, 0.0, 0.7, -0.7]
    assert rows["clipped_advantage"].to_list() == [0.0, 0.0, 0.5, -0.5]
    assert rows["reward_code_hash"].to_list() == ["c0de"] * 4


def test_a_function_that_never_has_an_opinion_keeps_its_column_a_number() -> None:
    scores = Scores({"silent": [None] * 4}, {"silent": ["no_opinion"] * 4}, [None] * 4, [None] * 4, ["no_opinion"] * 4)
    rows = reward_rows(rollout_rows(batch()), scores, signal([0.0] * 4, [0.0] * 4, [0.0] * 4), "c0de")
    assert rows.schema["reward/silent"] == rows.schema["reward"] == pl.Float64
    assert rows.schema["reason"] == pl.String


def test_a_batch_comes_back_from_its_rows_whatever_their_order() -> None:
    prompts = pl.DataFrame({"prompt_id": ["bb", "cc", "aa"], "answer": ["2", "3", "1"]})
    given = replace(batch(), prompts=prompts[[2, 0]])
    again = batch_of(rollout_rows(given).sample(fraction=1.0, shuffle=True, seed=1), prompts)
    assert again.prompts.equals(given.prompts)
    assert replace(again, prompts=given.prompts) == given
    assert rollout_rows(again).equals(rollout_rows(given))


def test_a_prompt_that_stands_in_the_batch_twice_comes_back_twice() -> None:
    prompts = pl.DataFrame({"prompt_id": ["aa", "bb"]})
    given = replace(batch(), prompts=prompts[[1, 1]], prompt_token_ids=[[1, 9], [1, 9]])
    assert batch_of(rollout_rows(given), prompts).prompts["prompt_id"].to_list() == ["bb", "bb"]


def test_logprobs_come_back_to_the_last_bit() -> None:
    drawn = torch.rand(64).log().tolist()
    given = RolloutBatch(1, pl.DataFrame({"prompt_id": ["aa"]}), [[1]], [Completion([7] * 64, drawn)], ["x"], ["x"], 1, "feed")
    (again,) = batch_of(rollout_rows(given), given.prompts).completions
    assert again.logprobs == drawn


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rows: rows[1:],
        lambda rows: pl.concat([rows, rows[:1]]),
        lambda rows: rows.filter(pl.col("group") == 1),
        lambda rows: rows.with_columns(prompt_id=pl.Series(["aa", "bb", "aa", "bb"])),
        lambda rows: rows.with_columns(step=pl.Series([4, 4, 4, 5])),
        lambda rows: rows[:0],
    ],
)
def test_rows_that_are_no_whole_batch_are_refused(spoil: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    prompts = pl.DataFrame({"prompt_id": ["aa", "bb"]})
    with pytest.raises(ValueError, match="are not the whole groups of one step: completions are missing, doubled or mixed up"):
        batch_of(spoil(rollout_rows(batch())), prompts)


def test_a_prompt_that_the_table_lacks_is_named() -> None:
    with pytest.raises(ValueError, match="prompt bb is not in the table of prompts"):
        batch_of(rollout_rows(batch()), pl.DataFrame({"prompt_id": ["aa", "cc"]}))
