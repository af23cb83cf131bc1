"""What every sampled completion earned: each reward function's value, the total, and the advantage it had in its group."""

import polars as pl

from assets.contracts import Expectation, Outcome, Validation, fact, validate
from assets.page import Chart, Metadata, Table
from assets.paths import Paths
from assets.rollout_batches import KEYS

SHOWN = ("step", "prompt_id", "text", "reward", "advantage", "length")


def contract(paths: Paths) -> list[Expectation]:
    """What must hold of every row."""
    return [
        Expectation("ExpectCompoundColumnsToBeUnique", {"column_list": ["step", "group", "completion_index"]}, "every completion is scored once"),
        Expectation("ExpectColumnValuesToBeInSet", {"column": "status", "value_set": ["ok", "no_opinion"]}, "a status is ok or no_opinion"),
        Expectation("ExpectColumnValuesToNotBeNull", {"column": "advantage"}, "every completion has an advantage"),
        Expectation("ExpectColumnValuesToNotBeNull", {"column": "reward_code_hash"}, "every reward names the code that gave it"),
    ]


def check(paths: Paths) -> Validation:
    """The contract's outcome on the file as it lies on disk."""
    frame = pl.read_parquet(paths.rewards)
    return validate("rewards", frame, contract(paths), KEYS, facts(frame, pl.read_parquet(paths.rollout_batches, columns=list(KEYS))))


def facts(frame: pl.DataFrame, rollouts: pl.DataFrame) -> list[Outcome]:
    """What holds between rows, and between this table and the rollouts."""
    finite = pl.all_horizontal(pl.col("advantage", "clipped_advantage").is_finite().fill_null(False))
    scored = frame.filter(pl.col("status") == "ok")
    # A group's advantages are centred, so they add up to nothing; 1e-6 leaves room for rewards of any size after scaling.
    sums = scored.group_by("step", "group").agg(pl.col("advantage").sum().alias("sum"), pl.col("advantage").abs().max().alias("largest"))
    lopsided = sums.filter(pl.col("sum").abs() > 1e-6 * (1 + pl.col("largest"))).sort("step", "group")
    return [
        fact("every rollout has a reward", rollouts.join(frame, on=KEYS, how="anti"), KEYS),
        fact("every reward has a rollout", frame.join(rollouts, on=KEYS, how="anti"), KEYS),
        fact("a scored completion has a finite reward", scored.filter(~pl.col("reward").is_finite().fill_null(False)), [*KEYS, "reward"]),
        fact("advantages are finite numbers", frame.filter(~finite), [*KEYS, "advantage", "clipped_advantage"]),
        fact("a group's advantages add up to 0", lopsided, ["step", "group", "sum"]),
        fact("a completion without an opinion has advantage 0", frame.filter((pl.col("status") != "ok") & (pl.col("advantage") != 0)), [*KEYS, "advantage"]),
    ]


def describe(paths: Paths) -> Metadata:
    """Histograms by function, and the best and worst completions to read."""
    from assets.histograms import reward_histograms

    frame = pl.read_parquet(paths.rewards)
    texts = pl.read_parquet(paths.rollout_batches, columns=[*KEYS, "text", "length"])
    rows = frame.join(texts, on=KEYS, how="left", maintain_order="left").filter(pl.col("status") == "ok")
    last = rows.filter(pl.col("step") == rows["step"].max())
    return {
        "rewards": len(frame),
        "mean": float(frame["reward"].mean() or 0.0),  # type: ignore[arg-type]
        "mean_last_step": float(last["reward"].mean() or 0.0),  # type: ignore[arg-type]
        "without_opinion": int((frame["status"] == "no_opinion").sum()),
        "histogram": Chart(reward_histograms(frame)),
        "best_of_last_step": Table(last.sort("reward", descending=True, maintain_order=True).select(SHOWN), max_rows=5),
        "worst_of_last_step": Table(last.sort("reward", maintain_order=True).select(SHOWN), max_rows=5),
        "file": paths.rewards,
    }
