"""The completions that show an alarm best: the rows that a person should read first."""

from typing import Any

import polars as pl

from grpo_core.health.monitor import Alarm
from grpo_core.tables import KEYS

NUM_ROWS, MAX_TEXT = 3, 300
FAR_FROM_THE_MIDDLE = (pl.col("reward") - pl.col("reward").median()).abs()
FIRST: dict[str, pl.Expr] = {
    "reward_outlier": FAR_FROM_THE_MIDDLE,
    "early_explosion": pl.col("advantage").abs(),
    "truncation": pl.col("length"),
    "runaway_length": pl.col("length"),
    "slow_reward": pl.col("length"),
    "stall": pl.col("length"),
    "reward_failures": pl.col("status").is_in(["invalid", "error"]).cast(pl.Int8),
}
"""Condition → what the rows that show it have most of; else it is their reward."""


def rows_of(alarm: Alarm, rollouts: pl.DataFrame, rewards: pl.DataFrame) -> list[dict[str, Any]]:
    """At most three completions of the alarm's first step, by ids, with what they earned and the beginning of their text."""
    rows = rollouts.select(*KEYS, "text", "length").join(rewards.select(*KEYS, "reward", "advantage", "status"), on=KEYS, maintain_order="left")
    first = FIRST.get(alarm.condition, pl.col("reward"))
    chosen = rows.sort(first.fill_null(0), descending=True, maintain_order=True).head(NUM_ROWS)
    shown = chosen.select("prompt_id", "completion_index", "reward", "advantage", "status", "length", text=pl.col("text").str.slice(0, MAX_TEXT))
    return shown.to_dicts()
