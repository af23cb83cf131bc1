"""An exploration in numbers: rewards by function, groups with something to compare, difficulty, lengths. Tables in, pure functions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from grpo_core.advantages import EQUAL_WITHIN
from grpo_core.config import RunConfig
from grpo_core.live_groups import Live, live_shares
from grpo_core.rewards.outcomes import STATUSES
from grpo_core.rewards.registry import traits
from grpo_core.statistics import Z95, Interval, wilson

GROUP = ("step", "group")
"""What names a group of the table: its batch, and its place there."""
MAIN_SHARE = 0.25
"""A reward function that can pay at least this share of what the best-paid one can is a main one; format and length usually pay less."""
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
GROUP_SIZES = (4, 8, 16)
"""Those that the share of live groups is told for, beside the configured one and its double."""
DIFFICULTY_EDGES = (0.0, 0.25, 0.5, 0.75)
DIFFICULTY_NAMES = ("none", "up to 1/4", "up to 1/2", "up to 3/4", "more, not all", "all")
"""Prompts by their share of right completions."""
FEW_VALUES, BINS = 6, 10
"""Up to so many distinct values have a bar each in a histogram; more of them share this many bins."""
MOST_LEVELS = 8
"""Levels of the `difficulty` column that are told apart: of more, numbers are put together in fifths, and the rarest texts."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Shares of values at `values`, or where those are many between `edges` (one more than bins)."""

    values: tuple[float, ...]
    edges: tuple[float, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """How values lie."""

    mean: float
    std: float
    """ddof 0."""
    quantiles: tuple[float, ...]
    """At `QUANTILES`; empty where there is no value."""
    histogram: Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionNumbers:
    """What one reward function gave, or all together (the total)."""

    name: str
    weight: float | None
    """None for the total."""
    is_main: bool
    """It pays enough to be what is learned (`MAIN_SHARE`), or is the total."""
    spread: Spread
    at_full_marks: float
    """Share of its values at the end of its range that its weight rewards."""
    at_lowest: float
    differs: float
    """Share of groups whose completions it tells apart."""
    statuses: Mapping[str, float]
    """Share of completions, by status."""
    reason: str | None
    """What was said of the first completion that is invalid or an error."""


@dataclass(frozen=True, slots=True)
class GroupShares:
    """Shares of groups. The first five add up to 1."""

    signal: float
    """A main reward tells completions apart."""
    side_signal: float
    """Only rewards that pay little do."""
    too_easy: float
    """Alike, all at full marks of the main rewards."""
    too_hard: float
    """Alike, all at the lowest of the main rewards."""
    alike: float
    """Alike in between, or not scored."""
    solved: float
    """All at full marks of the main rewards, whatever side rewards say."""
    hopeless: float
    """All at the lowest of the main rewards, whatever side rewards say."""


@dataclass(frozen=True, slots=True)
class Level:
    """Prompts of one level of difficulty."""

    name: str
    num_prompts: int
    accuracy: float | None
    signal: float
    """Share of its groups that a main reward tells apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What an exploration saw; shares are of completions unless they say otherwise."""

    num_prompts: int
    num_completions: int
    group_size: int
    functions: tuple[FunctionNumbers, ...]
    """By reward function, the metric among them, then the total."""
    statuses: Mapping[str, float]
    groups: GroupShares
    at_lowest: float
    """Of the scored completions, those with the lowest of the main rewards."""
    accuracy: Interval | None
    """Mean over prompts of the share of right completions (mean@G); None where nothing could be graded."""
    difficulty: tuple[float, ...]
    """Share of prompts by their share of right completions, as in `DIFFICULTY_NAMES`; empty where nothing could be graded."""
    levels: tuple[Level, ...]
    """By the prompts' `difficulty` column; empty where they have none."""
    live: tuple[Live, ...]
    """By group size; empty where nothing could be graded."""
    distinct: float | None
    """How different the completions of a group are, 0 (all the same) to 1 (none twice), mean over groups that are not solved; None where all are."""
    lengths: Spread
    """In tokens."""
    truncated: float


def numbers_of(rows: pl.DataFrame, prompts: pl.DataFrame, config: RunConfig) -> Numbers:
    """What the `rows` of samples say; `prompts` is the table that theirs stand in."""
    marked = with_marks(rows, config)
    groups = groups_of(marked)
    graded, unsolved = groups.filter(pl.col("graded") > 0), groups.filter(~pl.col("solved"))
    right, of = graded["right"].to_list(), graded["graded"].to_list()
    shares = graded["right"].to_numpy() / graded["graded"].to_numpy()
    return Numbers(
        num_prompts=rows["prompt_id"].n_unique(),
        num_completions=len(rows),
        group_size=config.grpo.group_size,
        functions=function_numbers(marked, config),
        statuses=_statuses(rows["status"]),
        groups=group_shares(groups),
        at_lowest=_share(marked["is_lowest"]),
        accuracy=mean_share(shares) if len(shares) else None,
        difficulty=difficulty_shares(right, of),
        levels=levels_of(groups, prompts),
        live=live_shares(right, of, sorted({*GROUP_SIZES, config.grpo.group_size, 2 * config.grpo.group_size})),
        distinct=float(unsolved["distinct"].to_numpy().mean()) if len(unsolved) else None,
        lengths=spread(rows["length"].cast(pl.Float64).to_numpy()),
        truncated=_share(rows["finish_reason"] == "length"),
    )


def ends(rows: pl.DataFrame, name: str, weight: float) -> tuple[float, float]:
    """The value of a function that its weight punishes most, and the one it rewards most: of its range, which is wider where it gave more."""
    seen = rows[f"reward/{name}"].drop_nulls().to_list()
    low, high = min([traits(name).lowest, *seen]), max([traits(name).highest, *seen])
    return (low, high) if weight >= 0 else (high, low)


def main_functions(rows: pl.DataFrame, config: RunConfig) -> list[str]:
    """The functions that can pay at least `MAIN_SHARE` of what the best-paid one can; all that count where none pays (penalties alone)."""
    most = {name: weight * ends(rows, name, weight)[1] for name, weight in config.rewards.items() if weight != 0}
    best = max(most.values())
    return [name for name, pays in most.items() if best <= 0 or pays >= MAIN_SHARE * best]


def with_marks(rows: pl.DataFrame, config: RunConfig) -> pl.DataFrame:
    """`rows` with the weighted sum of the main rewards as `marks`, and whether it is the most (`is_full`) or the least (`is_lowest`) there is.

    A function without an opinion asks for nothing; where none has one, or one failed, all three are null.
    """
    names = main_functions(rows, config)
    known = [pl.col(f"reward/{name}").is_not_null() for name in names]
    weights = [config.rewards[name] for name in names]
    reach = [ends(rows, name, weight) for name, weight in zip(names, weights, strict=True)]

    def summed(values: Sequence[pl.Expr | float]) -> pl.Expr:
        parts = [pl.when(has).then(weight * value).otherwise(0.0) for has, weight, value in zip(known, weights, values, strict=True)]
        return pl.when(pl.any_horizontal(known) & pl.col("reward").is_not_null()).then(pl.sum_horizontal(parts))

    marks = summed([pl.col(f"reward/{name}") for name in names])
    low, high = summed([low for low, _ in reach]), summed([high for _, high in reach])
    return rows.with_columns(marks.alias("marks"), (marks >= high - EQUAL_WITHIN).alias("is_full"), (marks <= low + EQUAL_WITHIN).alias("is_lowest"))


def groups_of(marked: pl.DataFrame) -> pl.DataFrame:
    """One row a group: `alike`, `differs` (in marks), `solved`, `hopeless`, `right` among `graded`, `distinct`."""
    return marked.group_by(GROUP, maintain_order=True).agg(
        pl.col("prompt_id", "alike").first(),
        _unlike("marks").alias("differs"),
        (pl.col("is_full").all() & pl.col("is_full").any()).fill_null(False).alias("solved"),
        (pl.col("is_lowest").all() & pl.col("is_lowest").any()).fill_null(False).alias("hopeless"),
        pl.col("correct").sum().cast(pl.Int64).alias("right"),
        pl.col("correct").count().cast(pl.Int64).alias("graded"),
        ((pl.col("token_ids").n_unique() - 1) / (pl.len() - 1)).alias("distinct"),
    )


def group_shares(groups: pl.DataFrame) -> GroupShares:
    """What there is to compare, by group."""
    alike, solved, hopeless = groups["alike"], groups["solved"], groups["hopeless"]
    signal = groups["differs"] & ~alike
    kinds = (signal, ~alike & ~signal, alike & solved, alike & hopeless & ~solved, alike & ~solved & ~hopeless, solved, hopeless)
    return GroupShares(*map(_share, kinds))


def function_numbers(marked: pl.DataFrame, config: RunConfig) -> tuple[FunctionNumbers, ...]:
    """Every function that was asked (the metric counts for nothing unless it is a reward), then all together."""
    asked = {**config.rewards} | ({} if config.grpo.select_metric in config.rewards else {config.grpo.select_metric: 0.0})
    reach = {name: ends(marked, name, weight) for name, weight in asked.items()}
    main = main_functions(marked, config)
    total = (sum(weight * reach[name][0] for name, weight in asked.items()), sum(weight * reach[name][1] for name, weight in asked.items()))
    found = [_function(marked, name, f"reward/{name}", f"status/{name}", weight, name in main, reach[name]) for name, weight in asked.items()]
    return (*found, _function(marked, "total", "reward", "status", None, True, total))


def _function(marked: pl.DataFrame, name: str, column: str, status: str, weight: float | None, is_main: bool, reach: tuple[float, float]) -> FunctionNumbers:
    values = marked[column].drop_nulls().to_numpy()
    reasons = marked.filter(pl.col(status).is_in(["invalid", "error"]))["reason"].drop_nulls()
    return FunctionNumbers(
        name=name,
        weight=weight,
        is_main=is_main,
        spread=spread(values),
        at_full_marks=_near(values, reach[1]),
        at_lowest=_near(values, reach[0]),
        differs=_share(marked.group_by(GROUP).agg(_unlike(column).alias("unlike"))["unlike"]),
        statuses=_statuses(marked[status]),
        reason=reasons[0] if len(reasons) else None,
    )


def spread(values: np.ndarray) -> Spread:
    """Mean, deviation, quantiles and histogram; zeros and nothing where there is no value."""
    if len(values) == 0:
        return Spread(0.0, 0.0, (), Histogram((), (), ()))
    return Spread(float(values.mean()), float(values.std()), tuple(map(float, np.quantile(values, QUANTILES))), histogram(values))


def histogram(values: np.ndarray) -> Histogram:
    """Shares at each value where these are few, else in equal bins."""
    distinct, counts = np.unique(values, return_counts=True)
    edges: tuple[float, ...] = ()
    if len(distinct) > FEW_VALUES:
        counts, ticks = np.histogram(values, bins=BINS)
        distinct, edges = distinct[:0], tuple(map(float, ticks))
    return Histogram(tuple(map(float, distinct)), edges, tuple(float(count) / len(values) for count in counts))


def mean_share(shares: np.ndarray) -> Interval:
    """The mean of the prompts' shares, and its 95 % interval over prompts: normal, or Wilson's where all prompts are alike."""
    mean = float(shares.mean())
    if np.ptp(shares) == 0:
        alike = wilson(round(mean * len(shares)), len(shares))
        return Interval(mean, min(mean, alike.low), max(mean, alike.high))
    half = Z95 * float(shares.std(ddof=1)) / math.sqrt(len(shares))
    return Interval(mean, max(0.0, mean - half), min(1.0, mean + half))


def difficulty_shares(right: Sequence[int], graded: Sequence[int]) -> tuple[float, ...]:
    """Share of prompts in each bin of `DIFFICULTY_NAMES`, from their right completions among the graded ones; empty without prompts."""
    if not right:
        return ()
    last = len(DIFFICULTY_NAMES) - 1
    places = [last if c == n else int(np.searchsorted(DIFFICULTY_EDGES, c / n)) for c, n in zip(right, graded, strict=True)]
    return tuple(places.count(place) / len(places) for place in range(last + 1))


def levels_of(groups: pl.DataFrame, prompts: pl.DataFrame) -> tuple[Level, ...]:
    """Accuracy and signal by the prompts' `difficulty`."""
    table = groups.join(prompts.select("prompt_id", "difficulty"), on="prompt_id", how="left", maintain_order="left").drop_nulls("difficulty")
    names = level_names(table["difficulty"].to_list())
    levelled = table.with_columns(pl.Series("level", names, dtype=pl.String))
    accuracy = (pl.col("right") / pl.col("graded")).filter(pl.col("graded") > 0).mean()
    counted = levelled.group_by("level").agg(pl.len(), accuracy.alias("accuracy"), (pl.col("differs") & ~pl.col("alike")).mean().alias("signal"))
    return tuple(Level(*row) for row in sorted(counted.iter_rows(), key=lambda row: _place(row[0])))


def level_names(difficulties: Sequence[str]) -> list[str]:
    """What each difficulty is counted under: itself; of many numbers the range of its fifth; of many texts `others` for the rarest."""
    counts = {name: difficulties.count(name) for name in dict.fromkeys(difficulties)}
    if len(counts) <= MOST_LEVELS:
        return list(difficulties)
    try:
        values = np.array([float(name) for name in difficulties])
    except ValueError:
        kept = sorted(counts, key=lambda name: (-counts[name], name))[: MOST_LEVELS - 1]
        return [name if name in kept else "others" for name in difficulties]
    edges = np.unique(np.quantile(values, np.linspace(0, 1, 6)))
    places = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return [f"{edges[place]:g} to {edges[place + 1]:g}" for place in places]


def _place(level: str) -> tuple[int, float, str]:
    """Levels that begin with a number by that, then texts by their letters, `others` last."""
    try:
        return 0, float(level.partition(" ")[0]), level
    except ValueError:
        return 1 + (level == "others"), 0.0, level


def _unlike(column: str) -> pl.Expr:
    """Whether a group's values are not all equal, but for rounding."""
    value = pl.col(column)
    return (value.max() - value.min() > EQUAL_WITHIN * value.abs().max()).fill_null(False)


def _near(values: np.ndarray, end: float) -> float:
    """Share of the values that are `end`, but for rounding."""
    return float((np.abs(values - end) <= EQUAL_WITHIN * max(1.0, abs(end))).mean()) if len(values) else 0.0


def _statuses(column: pl.Series) -> dict[str, float]:
    return {status: _share(column == status) for status in STATUSES}


def _share(flags: pl.Series) -> float:
    """Share of True among what is known; 0 where nothing is."""
    known = flags.drop_nulls()
    return float(known.to_numpy().mean()) if len(known) else 0.0
