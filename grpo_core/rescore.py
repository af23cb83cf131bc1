"""Stored completions scored again with today's reward code, beside what they earned then: what would have changed, row by row and group by group.

Nothing is sampled and nothing on disk changes. Each step is scored whole, as training did, so that floors, failures and advantages come
about in the same way.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Bool, Float64

from grpo_core.config import RunConfig
from grpo_core.ledger import batch_of, reward_rows
from grpo_core.rollout import score_batch
from grpo_core.signal import compare_within_groups
from grpo_core.statistics import kendall_tau_b, pearson, spearman
from grpo_core.tables import KEYS

RECORDED, TODAY = "recorded/", "today/"
"""What stands before a column of the rewards table: as the run recorded it, and as it came out now."""
SAME_WITHIN = 1e-9
"""Two numbers that differ by no more than this, relative to their size or 1, are the same."""
ROWS_READ = 4096
"""Rollouts that are taken into memory together, beside those of one step."""
PAIRS_AT_ONCE = 2_000_000


class RescoreError(ValueError):
    """Completions that cannot be scored again: says of which step, and what to do."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The tables of one run."""

    prompts: Path
    rollouts: Path
    rewards: Path


@dataclass(frozen=True, slots=True)
class ValueChange:
    """What became of one reward function's values, or of the weighted sum."""

    name: str
    rows: int
    """Completions with a number both times: what the correlations and the largest change are about."""
    values_changed: int
    """Completions with another number, or with one only then or only today; of a function that was not asked both times, none."""
    statuses: Mapping[str, int]
    """`ok → error` and so on → completions whose status changed so."""
    mean_recorded: float | None
    mean_today: float | None
    largest: float | None
    """The largest change, up or down."""
    pearson: float | None
    spearman: float | None

    @property
    def statuses_changed(self) -> int:
        return sum(self.statuses.values())


@dataclass(frozen=True, slots=True)
class RankingChange:
    """What became of the order within groups, by advantage: that is what the update goes by."""

    groups: int
    compared: int
    """Groups whose completions differ both times; the next three are about these."""
    reordered: int
    """In which a pair of completions stands the other way round, or is equal now or was then."""
    best_changed: int
    """In which the completions with the highest advantage are not the same ones."""
    kendall: float | None
    """Kendall's tau-b, mean over them."""
    now_alike: int
    """Groups whose completions differed and are all alike today: they would teach nothing."""
    now_differ: int
    """Groups that were alike and would teach today."""
    signs_flipped: int
    """Completions that were better than their group's mean and are worse today, or the other way round."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The first step at which today's code would have stopped the run."""

    step: int
    function: str
    failed: int
    rows: int


@dataclass(frozen=True, slots=True)
class Rescored:
    """What would have changed, in numbers."""

    steps: int
    rows: int
    rows_changed: int
    """Completions of which any function's value or status, or the weighted sum, is another one."""
    functions: Sequence[ValueChange]
    total: ValueChange
    ranking: RankingChange
    stop: Stop | None


def rescore(stored: Stored, config: RunConfig, steps: range) -> Iterator[pl.DataFrame]:
    """Step by step a row a completion: its keys, and every column of the rewards table as `recorded/…` and as `today/…`.

    Today's come from the rewards, options and advantages of `config`, however many completions they fail on. Raises RescoreError when the
    tables do not hold the steps' whole groups.
    """
    lenient = replace(config, scoring=replace(config.scoring, max_error_rate=1.0))
    prompts = pl.read_parquet(stored.prompts)
    recorded = pl.scan_parquet(stored.rewards).filter(pl.col("step").is_between(steps.start, steps.stop - 1)).drop("reward_code_hash").collect()
    expected = iter(steps)
    for rows in _steps_of(stored.rollouts, steps):
        step, wanted = int(rows["step"][0]), next(expected, None)
        if step != wanted:
            raise RescoreError(f"step {step} stands where step {wanted} should among the rollouts: `grpo verify` says which file is damaged")
        yield _beside(recorded.filter(pl.col("step") == step), _scored_today(rows, prompts, lenient), step)
    if (missing := next(expected, None)) is not None:
        raise RescoreError(f"step {missing} is not among the rollouts: `grpo verify` says which file is damaged")


def summarise(rows: pl.DataFrame, most_errors: float) -> Rescored:
    """What `rescore` yielded, all steps together; past a share of `most_errors` in a step a function stops a run."""
    functions = [name.removeprefix(f"{side}reward/") for side in (RECORDED, TODAY) for name in rows.columns if name.startswith(f"{side}reward/")]
    return Rescored(
        steps=rows["step"].n_unique(),
        rows=len(rows),
        rows_changed=rows.select(_any_change(rows).sum()).item(),
        functions=[_value_change(rows, f"reward/{name}", f"status/{name}", name) for name in dict.fromkeys(functions)],
        total=_value_change(rows, "reward", "status", "weighted sum"),
        ranking=ranking_change(rows),
        stop=_first_stop(rows, most_errors),
    )


def changed_rows(rows: pl.DataFrame, stored: Stored) -> pl.DataFrame:
    """The rows that changed, with prompt, answer and text, those whose weighted sum changed most first; a number then or today alone counts as most."""
    changed = rows.filter(_any_change(rows))
    asked = pl.scan_parquet(stored.prompts).select("prompt_id", "prompt", "answer")
    told = pl.scan_parquet(stored.rollouts).select(*KEYS, "text")
    keyed = changed.select(KEYS).lazy().join(asked, on="prompt_id", how="left", maintain_order="left").join(told, on=KEYS, how="left", maintain_order="left")
    gap = pl.when(_changed("reward")).then((pl.col(f"{TODAY}reward") - pl.col(f"{RECORDED}reward")).abs().fill_null(float("inf"))).otherwise(0.0)
    moved = (pl.col(f"{TODAY}advantage") - pl.col(f"{RECORDED}advantage")).abs().fill_null(0.0)
    texted = pl.concat([keyed.collect(), changed.drop(KEYS)], how="horizontal")
    return texted.sort(gap, moved, descending=True, maintain_order=True)


# ------------------------------------------------------------------------------------------------------------- scoring


def _steps_of(rollouts: Path, steps: range) -> Iterator[pl.DataFrame]:
    """The rows of each step of `steps`, as they follow each other in the file."""
    import pyarrow.parquet as parquet

    waiting: list[pl.DataFrame] = []
    for batch in parquet.ParquetFile(rollouts).iter_batches(batch_size=ROWS_READ):
        rows = pl.from_arrow(batch)
        assert isinstance(rows, pl.DataFrame)
        for part in rows.filter(pl.col("step").is_between(steps.start, steps.stop - 1)).partition_by("step", maintain_order=True):
            if waiting and waiting[0]["step"][0] != part["step"][0]:
                yield pl.concat(waiting)
                waiting = []
            waiting.append(part)
    if waiting:
        yield pl.concat(waiting)


def _scored_today(rows: pl.DataFrame, prompts: pl.DataFrame, config: RunConfig) -> pl.DataFrame:
    """The step's rows of the rewards table as today's code gives them."""
    rows = rows.sort("group", "completion_index")
    try:
        batch = batch_of(rows, prompts)
    except ValueError as error:
        raise RescoreError(f"step {rows['step'][0]}: {error}; `grpo verify` says which file is damaged") from error
    scores = score_batch(batch, config)
    signal = compare_within_groups(batch, scores, batch.step, config, scale_by_std=config.grpo.scales_by_std)
    return reward_rows(rows, scores, signal, "").drop("reward_code_hash")


def _beside(recorded: pl.DataFrame, today: pl.DataFrame, step: int) -> pl.DataFrame:
    """Both tables in one, on the same keys."""
    then = recorded.sort("group", "completion_index")
    if not then.select(KEYS).equals(today.select(KEYS)):
        raise RescoreError(f"step {step}: rewards and rollouts are not of the same completions; `grpo verify` says which file is damaged")
    sides = [table.drop(KEYS).select(pl.all().name.prefix(side)) for table, side in ((then, RECORDED), (today, TODAY))]
    return pl.concat([today.select(KEYS), *sides], how="horizontal")


# ----------------------------------------------------------------------------------------------------------- comparing


def _value_change(rows: pl.DataFrame, value: str, status: str, name: str) -> ValueChange:
    then, today = (rows[side + value] if side + value in rows.columns else pl.Series([None] * len(rows), dtype=pl.Float64) for side in (RECORDED, TODAY))
    pairs = pl.DataFrame({"then": then, "today": today}).drop_nulls()
    pair = pairs["then"].to_list(), pairs["today"].to_list()
    return ValueChange(
        name=name,
        rows=len(pairs),
        values_changed=int(rows.select(_changed(value).sum()).item()) if _both(rows, value) else 0,
        statuses=_transitions(rows, status) if _both(rows, status) else {},
        mean_recorded=_mean(then),
        mean_today=_mean(today),
        largest=max((abs(b - a) for a, b in zip(*pair, strict=True)), default=None),
        pearson=pearson(*pair),
        spearman=spearman(*pair),
    )


def _both(rows: pl.DataFrame, column: str) -> bool:
    """Whether it was recorded and came out today."""
    return f"{RECORDED}{column}" in rows.columns and f"{TODAY}{column}" in rows.columns


def _changed(column: str) -> pl.Expr:
    """Whether a number is another one, or there is one only then or only today."""
    then, today = pl.col(f"{RECORDED}{column}"), pl.col(f"{TODAY}{column}")
    return ((today - then).abs() > SAME_WITHIN * (1 + then.abs())).fill_null(then.is_null() != today.is_null())


def _any_change(rows: pl.DataFrame) -> pl.Expr:
    names = [name.removeprefix(TODAY) for name in rows.columns if name.startswith(TODAY)]
    numbers = [_changed(name) for name in names if (name == "reward" or name.startswith("reward/")) and _both(rows, name)]
    statuses = [name for name in names if (name == "status" or name.startswith("status/")) and _both(rows, name)]
    return pl.any_horizontal(*numbers, *(pl.col(f"{RECORDED}{name}") != pl.col(f"{TODAY}{name}") for name in statuses))


def _transitions(rows: pl.DataFrame, status: str) -> dict[str, int]:
    """How many completions went from which status to which other, the most frequent first."""
    then, today = pl.col(f"{RECORDED}{status}"), pl.col(f"{TODAY}{status}")
    moves = rows.filter(then != today).group_by(then.alias("then"), today.alias("today")).len().sort("len", "then", "today", descending=[True, False, False])
    return {f"{before} → {after}": count for before, after, count in moves.iter_rows()}


def _mean(values: pl.Series) -> float | None:
    known = values.drop_nulls().to_numpy()
    return float(known.mean()) if len(known) else None


def _first_stop(rows: pl.DataFrame, most_errors: float) -> Stop | None:
    prefix = f"{TODAY}status/"
    functions = [name for name in rows.columns if name.startswith(prefix)]
    counted = rows.group_by("step").agg(pl.len(), *((pl.col(name) == "error").sum() for name in functions)).sort("step")
    for step, count, *failed in counted.iter_rows():
        for name, errors in zip(functions, failed, strict=True):
            if errors > most_errors * count:
                return Stop(step, name.removeprefix(prefix), errors, count)
    return None


def ranking_change(rows: pl.DataFrame) -> RankingChange:
    """How the order by advantage within each group changed."""
    size = int(rows["completion_index"].max() or 0) + 1  # type: ignore[arg-type]  # an int column
    ordered = rows.sort("step", "group", "completion_index")
    then, today = (_advantages(ordered, side, size) for side in (RECORDED, TODAY))
    differed, differ = ((np.nan_to_num(side) != 0).any(axis=1) for side in (then, today))
    compared = differed & differ
    orders = [_orders(then[compared][part], today[compared][part]) for part in _slices(int(compared.sum()), size)]
    reordered, tau = (np.concatenate(parts) for parts in zip(*orders, strict=True)) if orders else (np.zeros(0), np.zeros(0))
    known = tau[~np.isnan(tau)]
    return RankingChange(
        groups=len(compared),
        compared=int(compared.sum()),
        reordered=int(reordered.sum()),
        best_changed=int((_best(then[compared]) != _best(today[compared])).any(axis=1).sum()),
        kendall=float(known.mean()) if len(known) else None,
        now_alike=int((differed & ~differ).sum()),
        now_differ=int((~differed & differ).sum()),
        signs_flipped=int((then * today < 0).sum()),
    )


def _slices(groups: int, size: int) -> list[slice]:
    """Runs of groups whose pairs fit into memory together."""
    step = max(1, PAIRS_AT_ONCE // size**2)
    return [slice(start, start + step) for start in range(0, groups, step)]


def _advantages(rows: pl.DataFrame, side: str, size: int) -> Float64[np.ndarray, "N G"]:
    """Advantages by group, in units of the group's largest; what is no more than rounding is 0, and NaN is where there is none."""
    values = rows[f"{side}advantage"].to_numpy().reshape(-1, size)
    largest = np.abs(values).max(axis=1, keepdims=True)
    scaled = np.divide(values, largest, out=np.zeros_like(values), where=largest > 0)
    scored = rows[f"{side}reward"].is_not_null().to_numpy().reshape(-1, size)
    return np.where(scored, np.where(np.abs(scaled) <= SAME_WITHIN, 0.0, scaled), np.nan)


def _orders(then: Float64[np.ndarray, "N G"], today: Float64[np.ndarray, "N G"]) -> tuple[Bool[np.ndarray, " N"], Float64[np.ndarray, " N"]]:
    """Whether a pair of each group's completions stands otherwise, and tau-b, over pairs that have an advantage both times."""
    first, second = np.triu_indices(then.shape[1], k=1)
    gaps = [values[:, first] - values[:, second] for values in (then, today)]
    both = ~np.isnan(gaps[0] + gaps[1])
    signs = [np.where(both & (np.abs(gap) > SAME_WITHIN), np.sign(gap), 0.0) for gap in gaps]
    return (signs[0] != signs[1]).any(axis=1), kendall_tau_b(*signs)


def _best(values: Float64[np.ndarray, "N G"]) -> Bool[np.ndarray, "N G"]:
    """Which completions share the highest advantage of their group."""
    known = np.nan_to_num(values, nan=-np.inf)
    return known >= known.max(axis=1, keepdims=True) - SAME_WITHIN
