"""Every completion that was ever trained on as a row, and back: what was drawn (rollouts) and what it earned (rewards)."""

import polars as pl

from grpo_core.rewards.scoring import Scores
from grpo_core.rollout import RolloutBatch
from grpo_core.sampling import Completion
from grpo_core.signal import Signal
from grpo_core.tables import KEYS, ROLLOUT_SCHEMA


def rollout_rows(batch: RolloutBatch) -> pl.DataFrame:
    """The batch as rows of the rollouts table."""
    size, count = batch.group_size, len(batch.prompt_token_ids)
    return pl.DataFrame(
        {
            "step": [batch.step] * (size * count),
            "group": batch.per_completion(range(count)),
            "prompt_id": batch.per_completion(batch.prompts["prompt_id"].to_list()),
            "completion_index": list(range(size)) * count,
            "prompt_token_ids": batch.per_completion(batch.prompt_token_ids),
            "token_ids": [c.token_ids for c in batch.completions],
            "sampling_logprobs": [c.logprobs for c in batch.completions],
            "text": batch.texts,
            "raw_text": batch.raw_texts,
            "length": [len(c.token_ids) for c in batch.completions],
            "finish_reason": [c.finish_reason for c in batch.completions],
            "policy_digest": [batch.policy_digest] * (size * count),
        },
        schema=ROLLOUT_SCHEMA,
    )


def reward_rows(rollouts: pl.DataFrame, scores: Scores, signal: Signal, reward_code_hash: str) -> pl.DataFrame:
    """Rows of the rewards table, in the order of `rollouts`. `reward` is null where no function had an opinion, and where one failed."""
    shaped = [None if total is None else value for total, value in zip(scores.totals, signal.shaped.flatten().tolist(), strict=True)]
    return rollouts.select(KEYS).with_columns(
        *[pl.Series(f"reward/{name}", values, dtype=pl.Float64) for name, values in scores.by_function.items()],
        *[pl.Series(f"status/{name}", statuses, dtype=pl.String) for name, statuses in scores.statuses.items()],
        pl.Series("status", scores.row_statuses, dtype=pl.String),
        pl.Series("reason", scores.reasons, dtype=pl.String),
        pl.Series("reward", scores.totals, dtype=pl.Float64),
        pl.Series("shaped_reward", shaped, dtype=pl.Float64),
        pl.Series("advantage", signal.advantages.flatten().tolist(), dtype=pl.Float64),
        pl.Series("clipped_advantage", signal.clipped.flatten().tolist(), dtype=pl.Float64),
        pl.lit(reward_code_hash).alias("reward_code_hash"),
    )


def batch_of(rows: pl.DataFrame, prompts: pl.DataFrame) -> RolloutBatch:
    """The rollout batch whose `rollout_rows` these are; `prompts` is the table that its prompts stand in.

    Raises ValueError when they are not one step's whole groups, or when a prompt is not in the table.
    """
    rows = rows.sort("group", "completion_index")
    groups = rows.group_by("group", maintain_order=True).agg(pl.col("prompt_id").unique(), "completion_index", pl.col("prompt_token_ids").first())
    size = len(rows) // max(len(groups), 1)
    whole = (pl.col("completion_index") == pl.lit(list(range(size)), pl.List(pl.Int32))) & (pl.col("prompt_id").list.len() == 1)
    if rows["step"].n_unique() != 1 or groups["group"].to_list() != list(range(len(groups))) or not groups.select(whole.all()).item():
        raise ValueError(f"{len(rows)} rows of {len(groups)} groups are not the whole groups of one step: completions are missing, doubled or mixed up")
    asked = groups.select(pl.col("prompt_id").list.first()).join(prompts, on="prompt_id", how="left", maintain_order="left").select(prompts.columns)
    unknown = groups.select(pl.col("prompt_id").list.first()).join(prompts, on="prompt_id", how="anti")["prompt_id"].to_list()
    if unknown:
        raise ValueError(f"prompt {unknown[0]} is not in the table of prompts")
    drawn = rows.select("token_ids", "sampling_logprobs", "finish_reason").iter_rows()
    return RolloutBatch(
        step=rows["step"][0],
        prompts=asked,
        prompt_token_ids=groups["prompt_token_ids"].to_list(),
        completions=[Completion(tokens, logprobs, reason) for tokens, logprobs, reason in drawn],
        texts=rows["text"].to_list(),
        raw_texts=rows["raw_text"].to_list(),
        group_size=size,
        policy_digest=rows["policy_digest"][0],
    )
