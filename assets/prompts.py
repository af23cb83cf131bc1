"""What everything starts from: prompts with checkable answers, each in one split, each once."""

import os
from pathlib import Path

import polars as pl

from assets.contracts import Expectation, Validation, fact, validate
from assets.page import Metadata, Progress, ProgressCallback, Table
from assets.paths import Paths
from grpo_core.config import RunConfig
from grpo_core.prompt_columns import SPLITS

SAMPLES_A_SPLIT = 3
KEY_COLUMNS = ("prompt_id", "source_file", "source_row")


def produce(paths: Paths, config: RunConfig, on_progress: ProgressCallback) -> None:
    """Write the table aside, check it and rename it: whatever is wrong leaves the earlier file as it was."""
    from grpo_core.addition import addition_tokenizer
    from grpo_core.prompts import make_prompts
    from grpo_core.tokenization import check_lengths, context_length, load_tokenizer

    frame = make_prompts(config.prompts, paths.root)
    if config.model.path:
        check_lengths(frame, load_tokenizer(config.model.path), config.prompts.max_tokens, context=context_length(config.model.path))
    else:
        check_lengths(frame, addition_tokenizer(), config.prompts.max_tokens, context=config.model.context_length)
    paths.prompts.parent.mkdir(parents=True, exist_ok=True)
    aside = paths.prompts.with_name(f".{paths.prompts.name}.partial")
    try:
        _write(frame, aside)
        validation = _validation(pl.read_parquet(aside), contract(paths))
        if not validation.success:
            validation.write(paths.validation("prompts"))
        validation.require()
        aside.replace(paths.prompts)
    finally:
        aside.unlink(missing_ok=True)
    on_progress(Progress(1, 1, {f"prompts/{split}": float(count) for split, count in _counts(frame).items()}))


def _write(frame: pl.DataFrame, path: Path) -> None:
    """Parquet whose bytes depend on the rows alone, on the disk when this returns."""
    with path.open("wb") as file:
        frame.write_parquet(file, compression="zstd", compression_level=3, row_group_size=100_000)
        file.flush()
        os.fsync(file.fileno())


def contract(paths: Paths) -> list[Expectation]:
    """What must hold of the table of prompts."""

    def given(column: str) -> list[Expectation]:
        return [
            Expectation("ExpectColumnValuesToNotBeNull", {"column": column}, f"no {column} is missing"),
            Expectation("ExpectColumnValuesToMatchRegex", {"column": column, "regex": r"(?s)^.*\S.*$"}, f"no {column} is blank"),
        ]

    return [
        Expectation("ExpectTableRowCountToBeBetween", {"min_value": 1}, "there are prompts"),
        *given("prompt_id"),
        Expectation("ExpectColumnValuesToBeUnique", {"column": "prompt_id"}, "every prompt stands in the table once"),
        *given("prompt"),
        *given("answer"),
        *given("task"),
        Expectation("ExpectColumnValuesToNotBeNull", {"column": "split"}, "every row has a split"),
        Expectation("ExpectColumnValuesToBeInSet", {"column": "split", "value_set": list(SPLITS)}, f"a split is one of {', '.join(SPLITS)}"),
        Expectation(
            "ExpectColumnDistinctValuesToContainSet", {"column": "split", "value_set": ["train", "select", "heldout"]}, "train, select and heldout have prompts"
        ),
        Expectation("ExpectColumnValuesToBeBetween", {"column": "source_row", "min_value": 1}, "every row says where it comes from"),
    ]


def _validation(frame: pl.DataFrame, expectations: list[Expectation]) -> Validation:
    without = frame.filter((pl.col("split") == "sft") & pl.col("completion").is_null())
    return validate("prompts", frame, expectations, KEY_COLUMNS, [fact("every sft prompt has a demonstration", without, [*KEY_COLUMNS, "prompt"])])


def check(paths: Paths) -> Validation:
    """The contract's outcome on the file as it lies on disk."""
    return _validation(pl.read_parquet(paths.prompts), contract(paths))


def _counts(frame: pl.DataFrame) -> dict[str, int]:
    return {split: frame.filter(pl.col("split") == split).height for split in SPLITS}


def _by_difficulty(frame: pl.DataFrame) -> pl.DataFrame:
    """Prompts by difficulty (rows) and split (columns)."""
    counted = [pl.col("split").eq(split).sum().alias(split) for split in SPLITS]
    return frame.group_by(pl.col("difficulty").fill_null("not given")).agg(*counted, pl.len().alias("all")).sort("difficulty")


def _samples(frame: pl.DataFrame) -> pl.DataFrame:
    """The first rows of every split."""
    shown = frame.select("split", "prompt", "answer", "completion", "difficulty")
    return pl.concat([shown.filter(pl.col("split") == split).head(SAMPLES_A_SPLIT) for split in SPLITS])


def describe(paths: Paths) -> Metadata:
    """Counts by split and difficulty, and rows to read."""
    frame = pl.read_parquet(paths.prompts)
    splits = pl.DataFrame(
        {
            "split": list(SPLITS),
            "prompts": list(_counts(frame).values()),
            "with demonstration": list(_counts(frame.filter(pl.col("completion").is_not_null())).values()),
        }
    )
    return {
        "prompts": frame.height,
        "splits": Table(splits),
        "difficulty": Table(_by_difficulty(frame)),
        "samples": Table(_samples(frame), max_rows=SAMPLES_A_SPLIT * len(SPLITS)),
        "file": paths.prompts,
    }
