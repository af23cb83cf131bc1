"""The tables of completions that a run leaves: what names a row, which columns there are, how they are written.

Rollouts (drawn to be trained on), select (drawn to choose between checkpoints) and held-out completions lie in files of their own.
"""

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from grpo_core.checkpoint import write_file

KEYS = ("step", "group", "prompt_id", "completion_index")
"""What names a row of rollouts and of rewards. `group` is the group's place in its rollout batch; `step` counts from 1."""

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

EVALUATION_KEYS = ("model", "step", "prompt_id", "decoding", "sample_index")
"""What names a row of select and held-out completions. `step` is the policy's that answered; 0 is before training."""

ROWS_A_GROUP = 100_000
"""Rows that a reader must take into memory together, at most."""


def no_answers(functions: Iterable[str]) -> pl.DataFrame:
    """An empty table of select or held-out completions; `functions` are the reward functions that score them."""
    return pl.DataFrame(
        schema={
            "model": pl.String,
            "step": pl.Int64,
            "prompt_id": pl.String,
            "decoding": pl.String,
            "sample_index": pl.Int32,
            "text": pl.String,
            "raw_text": pl.String,
            "prompt_token_ids": pl.List(pl.Int32),
            "token_ids": pl.List(pl.Int32),
            "sampling_logprobs": pl.List(pl.Float32),
            "length": pl.Int32,
            "finish_reason": pl.String,
            "correct": pl.Boolean,
            **{f"reward/{name}": pl.Float64 for name in functions},
            "reward": pl.Float64,
            "policy_digest": pl.String,
        }
    )


def write_table(path: Path, frame: pl.DataFrame, *, durable: bool = True) -> None:
    """`frame` as Parquet at `path`, all of it or nothing (`durable` as in write_file); the same rows give the same bytes.

    Lists of tokens and logprobs are laid out byte by byte (BYTE_STREAM_SPLIT: first bytes of all numbers, then all second ones …), which
    zstd presses to 0.9 of what it makes of them otherwise; every other column has a dictionary. Nothing is rounded.
    """
    import pyarrow.parquet as parquet

    lists = [name for name, kind in frame.schema.items() if isinstance(kind, pl.List)]
    layout = {
        "column_encoding": {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in lists},
        "use_dictionary": [name for name in frame.columns if name not in lists],
        "compression": "zstd",
        "compression_level": 9,
        "data_page_size": 8 * 2**20,
        "row_group_size": ROWS_A_GROUP,
    }
    write_file(path, lambda partial: parquet.write_table(frame.to_arrow(), partial, **layout), durable=durable)
