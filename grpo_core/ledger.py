"""Every completion that was ever trained on, one row each: what was drawn (rollouts) and what it earned (rewards)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from grpo_core.checkpoint import write_file
from grpo_core.rollout import RolloutBatch

KEYS = ("step", "group", "prompt_id", "completion_index")
"""What names a row in both tables. `group` is the group's place in its rollout batch; `step` counts from 1."""

ROLLOUT_SCHEMA: dict[str, type[pl.DataType] | pl.DataType] = {
    "step": pl.Int64,
    "group": pl.Int32,
    "prompt_id": pl.String,
    "completion_index": pl.Int32,
    "prompt_token_ids": pl.List(pl.Int32),
    "token_ids": pl.List(pl.Int32),
    "sampling_logprobs": pl.List(pl.Float32),
    "text": pl.String,
    "raw_text": pl.String,
    "length": pl.Int32,
    "finish_reason": pl.String,
    "policy_digest": pl.String,
}


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


def reward_rows(
    rollouts: pl.DataFrame,
    by_function: Mapping[str, list[float | None]],
    totals: list[float | None],
    shaped: Sequence[float],
    advantages: Sequence[float],
    clipped_advantages: Sequence[float],
    reward_code_hash: str,
) -> pl.DataFrame:
    """Rows of the rewards table, in the order of `rollouts`. `reward` is null (status `no_opinion`) where no function had an opinion."""
    return rollouts.select(KEYS).with_columns(
        *[pl.Series(f"reward/{name}", values, dtype=pl.Float64) for name, values in by_function.items()],
        pl.Series("status", ["no_opinion" if total is None else "ok" for total in totals]),
        pl.Series("reward", totals, dtype=pl.Float64),
        pl.Series("shaped_reward", [None if t is None else s for t, s in zip(totals, shaped, strict=True)], dtype=pl.Float64),
        pl.Series("advantage", advantages, dtype=pl.Float64),
        pl.Series("clipped_advantage", clipped_advantages, dtype=pl.Float64),
        pl.lit(reward_code_hash).alias("reward_code_hash"),
    )


@dataclass(frozen=True, slots=True)
class Shards:
    """One parquet file a step in the work folder, joined into one table at the end."""

    folder: Path

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}.parquet"

    def write(self, step: int, rows: pl.DataFrame) -> None:
        write_file(self.path(step), rows.write_parquet)

    def cut_back(self, step: int) -> None:
        """Forget every step after `step`: they are redone."""
        for path in self.folder.glob("step-*.parquet"):
            if path > self.path(step):
                path.unlink()

    def join(self, steps: int, path: Path) -> None:
        """All steps 1 … `steps` as one file at `path`, in order."""
        write_file(path, pl.concat([pl.read_parquet(self.path(step)) for step in range(1, steps + 1)]).write_parquet)
