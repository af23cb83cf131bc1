from pathlib import Path

import polars as pl
import torch

from grpo_core.tables import EVALUATION_KEYS, KEYS, ROLLOUT_SCHEMA, no_answers, write_table


def rows(num: int) -> pl.DataFrame:
    """Completions of 30 tokens with logprobs that fill every bit of a float."""
    torch.manual_seed(0)
    logprobs = torch.rand(num, 30).log()
    tokens = (torch.rand(num, 30).square() * 40_000).int()
    return pl.DataFrame(
        {
            "step": [i // 64 for i in range(num)],
            "prompt_id": [f"{i // 8:04x}" for i in range(num)],
            "token_ids": pl.Series(tokens.tolist(), dtype=pl.List(pl.Int32)),
            "sampling_logprobs": pl.Series(logprobs.tolist(), dtype=pl.List(pl.Float32)),
            "text": [f"text {i}" if i % 7 else None for i in range(num)],
        }
    )


def test_a_table_comes_back_as_it_was_to_the_last_bit(tmp_path: Path) -> None:
    frame = rows(512)
    frame = pl.concat(
        [frame, frame[:3].with_columns(token_ids=pl.lit([], frame.schema["token_ids"]), sampling_logprobs=pl.lit(None, frame.schema["sampling_logprobs"]))]
    )
    write_table(tmp_path / "new" / "table.parquet", frame)
    again = pl.read_parquet(tmp_path / "new" / "table.parquet")
    assert again.schema == frame.schema
    assert again.equals(frame)
    one = frame["prompt_id"][40]
    assert pl.scan_parquet(tmp_path / "new" / "table.parquet").filter(pl.col("prompt_id") == one).collect().equals(frame.filter(pl.col("prompt_id") == one))


def test_the_same_rows_give_the_same_bytes_however_they_lie_in_memory(tmp_path: Path) -> None:
    frame = rows(512)
    write_table(tmp_path / "whole", frame)
    write_table(tmp_path / "parts", pl.concat([frame[i : i + 64] for i in range(0, 512, 64)], rechunk=False))
    write_table(tmp_path / "again", pl.read_parquet(tmp_path / "whole"))
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "parts").read_bytes() == (tmp_path / "again").read_bytes()


def test_a_token_takes_less_room_than_as_polars_writes_it(tmp_path: Path) -> None:
    frame = rows(2048)
    write_table(tmp_path / "ours", frame)
    frame.write_parquet(tmp_path / "theirs")
    assert (tmp_path / "ours").stat().st_size < 0.95 * (tmp_path / "theirs").stat().st_size


def test_what_names_a_row_is_in_its_table() -> None:
    assert set(KEYS) < set(ROLLOUT_SCHEMA)
    empty = no_answers(["exact_answer", "mine:words"])
    assert set(EVALUATION_KEYS) < set(empty.columns)
    assert [name for name in empty.columns if name.startswith("reward/")] == ["reward/exact_answer", "reward/mine:words"]
    assert empty.is_empty()
