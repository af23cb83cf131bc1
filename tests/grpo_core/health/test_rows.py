"""Which completions an alarm shows."""

from typing import Any

import polars as pl
import pytest

from grpo_core.config import CONDITIONS, HealthConfig
from grpo_core.health.measures import Found
from grpo_core.health.monitor import Alarm, alarm_of
from grpo_core.health.rows import MAX_TEXT, NUM_ROWS, rows_of
from grpo_core.tables import ROLLOUT_SCHEMA

SIZE = 3
LENGTHS = [5, 9, 7, 2, 9, 1]
REWARDS = [1.0, -4.0, 0.5, 2.0, None, 1.0]
ADVANTAGES = [0.5, -1.5, 0.0, 1.2, 0.0, -1.2]
STATUSES = ["ok", "ok", "invalid", "ok", "error", "no_opinion"]


def alarm(condition: str) -> Alarm:
    return alarm_of(condition, 4, Found("seen"), HealthConfig())


def tables(texts: list[str] | None = None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Two groups of three at step 4, as the ledger has them."""
    count = len(LENGTHS)
    keys: dict[str, Any] = {
        "step": [4] * count, "group": [row // SIZE for row in range(count)], "prompt_id": [f"p{row // SIZE}" for row in range(count)],
        "completion_index": [row % SIZE for row in range(count)],
    }  # fmt: skip
    drawn = keys | {
        "prompt_token_ids": [[1]] * count, "token_ids": [[5]] * count, "sampling_logprobs": [[-0.5]] * count,
        "text": texts or [f"text {row}" for row in range(count)],
        "raw_text": [""] * count, "length": LENGTHS, "finish_reason": ["eos"] * count, "policy_digest": ["d"] * count,
    }  # fmt: skip
    earned = keys | {"reward": REWARDS, "advantage": ADVANTAGES, "status": STATUSES, "reason": [None] * count}
    rollouts = pl.DataFrame(drawn, schema=ROLLOUT_SCHEMA)
    return rollouts, pl.DataFrame(earned, schema_overrides={name: rollouts.schema[name] for name in keys})


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("reward_outlier", [1, 3, 2]),  # the median is 1.0: 5, 1 and 0.5 away
        ("early_explosion", [1, 3, 5]),  # the largest advantages, of either sign
        ("truncation", [1, 4, 2]),
        ("runaway_length", [1, 4, 2]),
        ("slow_reward", [1, 4, 2]),
        ("stall", [1, 4, 2]),
        ("reward_failures", [2, 4, 0]),
        ("reward_hacking", [3, 0, 5]),  # what earned most
        ("dead_rewards", [3, 0, 5]),
    ],
)
def test_the_rows_shown_are_those_that_show_it_most_in_the_tables_order(condition: str, rows: list[int]) -> None:
    shown = rows_of(alarm(condition), *tables())
    assert [(row["prompt_id"], row["completion_index"]) for row in shown] == [(f"p{row // SIZE}", row % SIZE) for row in rows]
    for found, row in zip(shown, rows, strict=True):
        assert found == {
            "prompt_id": f"p{row // SIZE}", "completion_index": row % SIZE, "reward": REWARDS[row], "advantage": ADVANTAGES[row], "status": STATUSES[row],
            "length": LENGTHS[row], "text": f"text {row}",
        }  # fmt: skip


@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_alarm_shows_a_few_rows(condition: str) -> None:
    assert len(rows_of(alarm(condition), *tables())) == NUM_ROWS == 3


def test_a_long_text_is_cut_and_a_small_batch_is_shown_whole() -> None:
    rollouts, rewards = tables([sign * 1000 for sign in "abcdef"])
    shown = rows_of(alarm("truncation"), rollouts.head(2), rewards.head(2))
    assert [row["text"] for row in shown] == ["b" * MAX_TEXT, "a" * MAX_TEXT]


def test_rows_that_nothing_tells_apart_keep_their_order() -> None:
    rollouts, rewards = tables()
    alike = rewards.with_columns(reward=0.3, advantage=0.0, status=pl.lit("ok"))
    for condition in CONDITIONS:
        shown = rows_of(alarm(condition), rollouts.with_columns(length=7), alike)
        assert [(row["prompt_id"], row["completion_index"]) for row in shown] == [("p0", 0), ("p0", 1), ("p0", 2)]
