"""What every sampled completion earned: each reward function's value, the total, and the advantage it had in its group."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from assets.contracts import Expectation, Outcome, Validation, fact, validate
from assets.page import Chart, Metadata, Table
from assets.paths import Paths
from assets.rollout_batches import KEYS
from grpo_core.config import ScoringConfig
from grpo_core.params import parse_section
from grpo_core.rewards.outcomes import STATUSES

SHOWN = ("step", "prompt_id", "prompt", "answer", "text", "reward", "advantage", "length")
MOST_ROWS = 5
"""Completions and reasons that a table of the page shows."""
COMPARED = pl.col("status").is_in(["ok", "invalid"])
"""Completions that take part in their group's baseline."""


def contract(paths: Paths) -> list[Expectation]:
    """What must hold of every row."""
    return [
        Expectation("ExpectCompoundColumnsToBeUnique", {"column_list": ["step", "group", "completion_index"]}, "every completion is scored once"),
        Expectation(
            "ExpectColumnValuesToBeInSet", {"column": "status", "value_set": list(STATUSES)}, f"a status is {', '.join(STATUSES[:-1])} or {STATUSES[-1]}"
        ),
        Expectation("ExpectColumnValuesToNotBeNull", {"column": "status"}, "every completion has a status"),
        Expectation("ExpectColumnValuesToNotBeNull", {"column": "advantage"}, "every completion has an advantage"),
        Expectation("ExpectColumnValuesToNotBeNull", {"column": "reward_code_hash"}, "every reward names the code that gave it"),
    ]


def check(paths: Paths) -> Validation:
    """The contract's outcome on the file as it lies on disk."""
    frame = pl.read_parquet(paths.rewards)
    return validate("rewards", frame, contract(paths), KEYS, facts(frame, pl.read_parquet(paths.rollout_batches, columns=list(KEYS))))


def facts(frame: pl.DataFrame, rollouts: pl.DataFrame) -> list[Outcome]:
    """What holds between columns and rows, and between this table and the rollouts."""
    finite = pl.all_horizontal(pl.col("advantage", "clipped_advantage").is_finite().fill_null(False))
    compared = frame.filter(COMPARED)
    # A group's advantages are centred, so they add up to nothing; 1e-6 leaves room for rewards of any size after scaling.
    sums = compared.group_by("step", "group").agg(pl.col("advantage").sum().alias("sum"), pl.col("advantage").abs().max().alias("largest"))
    lopsided = sums.filter(pl.col("sum").abs() > 1e-6 * (1 + pl.col("largest"))).sort("step", "group")
    apart = frame.filter(~COMPARED)
    return [
        fact("every rollout has a reward", rollouts.join(frame, on=KEYS, how="anti"), KEYS),
        fact("every reward has a rollout", frame.join(rollouts, on=KEYS, how="anti"), KEYS),
        fact("a scored completion has a finite reward", compared.filter(~pl.col("reward").is_finite().fill_null(False)), [*KEYS, "status", "reward"]),
        fact("a completion without an opinion or with an error has no reward", apart.filter(pl.col("reward").is_not_null()), [*KEYS, "status", "reward"]),
        fact("advantages are finite numbers", frame.filter(~finite), [*KEYS, "advantage", "clipped_advantage"]),
        fact("a group's advantages add up to 0", lopsided, ["step", "group", "sum"]),
        fact("a completion without a reward has advantage 0", apart.filter(pl.col("advantage") != 0), [*KEYS, "status", "advantage"]),
        *status_facts(frame),
    ]


def status_facts(frame: pl.DataFrame) -> list[Outcome]:
    """What holds between each function's value and status, and the reason: it says why wherever a function found a completion invalid or failed."""
    outcomes = []
    functions = [name.removeprefix("reward/") for name in frame.columns if name.startswith("reward/")]
    for name in functions:
        status, value = pl.col(f"status/{name}"), pl.col(f"reward/{name}")
        valued = status.is_in(["ok", "invalid"]).fill_null(False)
        wrong = frame.filter(~status.is_in(STATUSES).fill_null(False) | (valued != value.is_finite().fill_null(False)) | (~valued & value.is_not_null()))
        outcomes.append(fact(f"{name} gave a number where it is ok or invalid, and none elsewhere", wrong, [*KEYS, f"status/{name}", f"reward/{name}"]))
    strange = frame.filter(~pl.any_horizontal(pl.col("status") == pl.col(f"status/{name}") for name in functions).fill_null(False))
    outcomes.append(fact("a completion's status is that of one of its functions", strange, [*KEYS, "status"]))
    troubled = pl.any_horizontal(pl.col(f"status/{name}").is_in(["invalid", "error"]) for name in functions).fill_null(False)
    unexplained = frame.filter(troubled != (pl.col("reason").fill_null("") != ""))
    return [*outcomes, fact("a reason is given where a function says invalid or error, and nowhere else", unexplained, [*KEYS, "status", "reason"])]


def describe(paths: Paths) -> Metadata:
    """Histograms by function, reward against length, what became of completions and why, and the best and the worst of them to read."""
    from assets.histograms import reward_by_length, reward_histograms

    frame = pl.read_parquet(paths.rewards)
    texts = pl.read_parquet(paths.rollout_batches, columns=[*KEYS, "text", "length"])
    prompts = pl.read_parquet(paths.prompts, columns=["prompt_id", "prompt", "answer"])
    rows = frame.join(texts, on=KEYS, how="left", maintain_order="left").join(prompts, on="prompt_id", how="left", maintain_order="left")
    compared = rows.filter(COMPARED)
    last = compared.filter(pl.col("step") == frame["step"].max())
    reasons = commonest_reasons(rows)
    settings = json.loads((paths.grpo_checkpoint / "manifest.json").read_text())["config"]
    # Which exploits are acknowledged changes no step, so the manifest leaves it out.
    written = paths.run_config / paths.experiment / "scoring.json"
    scoring = {**settings["scoring"], **(json.loads(written.read_text()) if written.is_file() else {})}
    return {
        "rewards": len(frame),
        "mean": float(compared["reward"].mean() or 0.0),  # type: ignore[arg-type]
        "mean_last_step": float(last["reward"].mean() or 0.0),  # type: ignore[arg-type]
        "without_opinion": int((frame["status"] == "no_opinion").sum()),
        "invalid": int((frame["status"] == "invalid").sum()),
        "errors": int((frame["status"] == "error").sum()),
        "histogram": Chart(reward_histograms(frame)),
        "reward_by_length": Chart(reward_by_length(compared)),
        "statuses": Table(status_counts(frame), max_rows=100),
        **({} if reasons.is_empty() else {"reasons": Table(reasons, max_rows=MOST_ROWS)}),
        "exploits": Table(_exploits(pl.read_parquet(paths.exploits), settings["rewards"], scoring), max_rows=100),
        "best": Table(_extremes(compared, best=True), max_rows=MOST_ROWS),
        "worst": Table(_extremes(compared, best=False), max_rows=MOST_ROWS),
        "best_of_last_step": Table(_extremes(last, best=True), max_rows=MOST_ROWS),
        "worst_of_last_step": Table(_extremes(last, best=False), max_rows=MOST_ROWS),
        "file": paths.rewards,
    }


def status_counts(frame: pl.DataFrame) -> pl.DataFrame:
    """A row a function, and one for the weighted sum: its mean, and how many completions have each status."""
    columns = {name.removeprefix("status/"): (name, name.replace("status/", "reward/", 1)) for name in frame.columns if name.startswith("status/")}
    rows = [_counted(frame, name, *places) for name, places in columns.items()]
    return pl.DataFrame(
        [*rows, _counted(frame, "weighted sum", "status", "reward")], schema={"": pl.String, "mean": pl.Float64, **dict.fromkeys(STATUSES, pl.Int64)}
    )


def _counted(frame: pl.DataFrame, name: str, status: str, value: str) -> dict[str, object]:
    return {"": name, "mean": frame[value].mean(), **{kind: int((frame[status] == kind).sum()) for kind in STATUSES}}


def commonest_reasons(rows: pl.DataFrame) -> pl.DataFrame:
    """Why completions are invalid or errors: each reason with how many have it, when it was first and last met, and one of their texts."""
    step = pl.col("step")
    counted = rows.drop_nulls("reason").group_by("reason", maintain_order=True)
    found = counted.agg(pl.len().alias("completions"), step.min().alias("first_step"), step.max().alias("last_step"), pl.col("text").first())
    return found.sort("completions", descending=True, maintain_order=True)


def _exploits(tried: pl.DataFrame, weights: Mapping[str, float], scoring: Mapping[str, Any]) -> pl.DataFrame:
    """What each exploit of the battery earned before training, the gravest first."""
    from grpo_core.exploits import exploits_table, findings

    return exploits_table(findings(tried, weights, parse_section(ScoringConfig, "scoring", scoring)))


def _extremes(rows: pl.DataFrame, *, best: bool) -> pl.DataFrame:
    """Rows by reward, the best or the worst first; a text that comes several times is shown once."""
    ordered = rows.sort("reward", descending=best, maintain_order=True).unique("text", keep="first", maintain_order=True)
    return ordered.select(_shown(ordered))


def _shown(rows: pl.DataFrame) -> Sequence[str]:
    """The columns to read; the reason among them where there is one."""
    return SHOWN if rows["reason"].head(MOST_ROWS).is_null().all() else (*SHOWN, "reason")
