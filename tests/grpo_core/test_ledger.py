from pathlib import Path

import polars as pl
import pytest

from grpo_core.ledger import KEYS, ROLLOUT_SCHEMA, Shards, reward_rows, rollout_rows
from grpo_core.rollout import RolloutBatch
from grpo_core.sampling import Completion


def batch() -> RolloutBatch:
    """Two prompts × two completions, written down."""
    prompts = pl.DataFrame({"prompt_id": ["aa", "bb"]})
    completions = [Completion([5, 2], [-0.5, -0.25], "eos"), Completion([5, 6, 7], [-1.0] * 3), Completion([2], [0.0], "eos"), Completion([9], [-2.0])]
    return RolloutBatch(4, prompts, [[1, 8], [1, 9, 9]], completions, ["a", "b", "", "c"], ["a<eos>", "b", "<eos>", "c"], 2, "feed")


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
    by_function: dict[str, list[float | None]] = {"good": [1.0, None, 0.5, 0.0], "short": [None, None, 1.0, 1.0]}
    rows = reward_rows(rollout_rows(batch()), by_function, [1.0, None, 1.5, 1.0], [0.9, -0.1, 1.4, 0.9], [0.0, 0.0, 0.7, -0.7], [0.0, 0.0, 0.5, -0.5], "c0de")
    assert rows.select(KEYS).equals(rollout_rows(batch()).select(KEYS))
    assert rows["status"].to_list() == ["ok", "no_opinion", "ok", "ok"]
    assert rows["reward/good"].to_list() == [1.0, None, 0.5, 0.0]
    assert rows["reward/short"].to_list() == [None, None, 1.0, 1.0]
    assert rows["reward"].to_list() == [1.0, None, 1.5, 1.0]
    assert rows["shaped_reward"].to_list() == [0.9, None, 1.4, 0.9]
    assert rows["advantage"].to_list() == [0.0, 0.0, 0.7, -0.7]
    assert rows["clipped_advantage"].to_list() == [0.0, 0.0, 0.5, -0.5]
    assert rows["reward_code_hash"].to_list() == ["c0de"] * 4


def test_a_function_that_never_has_an_opinion_keeps_its_column_a_number() -> None:
    rows = reward_rows(rollout_rows(batch()), {"silent": [None] * 4}, [None] * 4, [0.0] * 4, [0.0] * 4, [0.0] * 4, "c0de")
    assert rows.schema["reward/silent"] == rows.schema["reward"] == pl.Float64


def table(step: int) -> pl.DataFrame:
    return pl.DataFrame({"step": [step] * 2, "value": [step * 10, step * 10 + 1]})


def test_shards_join_in_the_order_of_steps(tmp_path: Path) -> None:
    shards = Shards(tmp_path / "rows")
    for step in (2, 10, 1, *range(3, 10), 11):
        shards.write(step, table(step))
    shards.join(10, tmp_path / "all.parquet")
    assert pl.read_parquet(tmp_path / "all.parquet")["step"].to_list() == [step for step in range(1, 11) for _ in range(2)]


def test_steps_that_are_redone_replace_the_first_attempt(tmp_path: Path) -> None:
    shards = Shards(tmp_path / "rows")
    for step in (9, 10, 11, 100):
        shards.write(step, table(step))
    shards.cut_back(9)
    assert [path.name for path in sorted(shards.folder.iterdir())] == ["step-000009.parquet"]
    shards.write(9, table(1))
    assert pl.read_parquet(shards.path(9)).equals(table(1))
    shards.cut_back(0)
    assert not list(shards.folder.iterdir())


def test_a_step_that_is_missing_is_an_error_not_a_gap(tmp_path: Path) -> None:
    shards = Shards(tmp_path / "rows")
    shards.write(1, table(1))
    shards.write(3, table(3))
    with pytest.raises(FileNotFoundError, match="step-000002"):
        shards.join(3, tmp_path / "all.parquet")
    assert not (tmp_path / "all.parquet").exists()
