"""What a difference between two runs did: to reward, KL, length and entropy at the end of training, and to accuracy, each with an interval."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assets.paths import Paths
from grpo_core.randomness import generator
from grpo_core.statistics import Interval, paired_bootstrap, wilson
from pipelines.lineage.trace import Trace, find, metrics

if TYPE_CHECKING:
    from pipelines.records.runs import Run

RESAMPLES = 2_000
CURVES = {"KL": "kl/mean", "entropy": "entropy"}
"""Measures that are one number a step; KL is to each run's reference, in nats a token."""
OF_GROUPS = {"reward": "reward/mean", "length": "length/mean"}
"""Measures of every completion, and the curves that stand in for them where the ledger is not here."""
TROUBLES = {"invalid": "status/invalid_fraction", "reward errors": "status/error_fraction"}
"""Shares of completions that were not simply scored, and their curves: compared where either run has any."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One measure of both runs, and how far the second lies above the first."""

    measure: str
    a: float | None
    b: float | None
    difference: float | None = None
    low: float | None = None
    """The difference's 95 % interval; None where there is one number of each run only."""
    high: float | None = None
    a_low: float | None = None
    """The measure's own 95 % interval (Wilson), where it is a share."""
    a_high: float | None = None
    b_low: float | None = None
    b_high: float | None = None
    over: str = ""
    """What was resampled, and how many of each run."""


def effects(first: "Run", second: "Run", a: Trace, b: Trace, window: int) -> tuple[list[Effect], list[str]]:
    """Every measure that both runs have, and notes on those that cannot be compared."""
    notes: list[str] = []
    found = [*training_effects(first, second, window, notes), *selection_effects(first, second, notes), *heldout_effects(first, second, a, b, notes)]
    _warn(a, b, notes)
    return found, notes


def training_effects(first: "Run", second: "Run", window: int, notes: list[str]) -> list[Effect]:
    """The last `window` steps of each: completions by their groups, KL and entropy by their steps."""
    groups = [last_groups(run, window) for run in (first, second)]
    steps = [last_steps(run, window) for run in (first, second)]
    found = []
    if groups[0].is_empty() or groups[1].is_empty():
        notes.append("training: the ledger of both runs is not on this machine, so reward and length are compared by step, from the curves")
        met = {measure: column for measure, column in TROUBLES.items() if _any_above_zero(steps, column)}
        found += [_by_step(measure, steps[0], steps[1], column) for measure, column in {**OF_GROUPS, **met}.items()]
    else:
        shared = [name for name in groups[0].columns if name in groups[1].columns and (name in OF_GROUPS or name.startswith("reward/"))]
        shared += [name for name in TROUBLES if _any_above_zero(groups, name)]
        found += [_by_group(measure, groups[0], groups[1]) for measure in shared]
    found += [_by_step(measure, steps[0], steps[1], column) for measure, column in CURVES.items()]
    known = [effect for effect in found if effect is not None]
    if not known:
        notes.append("training: neither ledger nor curves of both runs are on this machine")
    return known


def last_groups(run: "Run", window: int) -> pl.DataFrame:
    """A row a group of the last steps: `place` (steps before the last), `prompt_id`, mean `reward`, `reward/<function>` and `length`, shares of TROUBLES."""
    paths = Paths(Path(), run.experiment)
    rollouts, rewards = find(run, paths.rollout_batches), find(run, paths.rewards)
    if rollouts is None or rewards is None:
        return pl.DataFrame()
    drawn, scores = pl.scan_parquet(rollouts), pl.scan_parquet(rewards)
    last = int(drawn.select(pl.col("step").max()).collect().item() or 0)
    recent = pl.col("step") > last - window
    parts = [name for name in scores.collect_schema().names() if name == "reward" or name.startswith("reward/")]
    lengths = drawn.filter(recent).group_by("step", "group").agg(pl.col("prompt_id").first(), pl.col("length").mean())
    shares = [(pl.col("status") == status).mean().alias(name) for status, name in zip(("invalid", "error"), TROUBLES, strict=True)]
    earned = scores.filter(recent).group_by("step", "group").agg(pl.col(parts).mean(), *shares)
    rows = lengths.join(earned, on=["step", "group"]).with_columns(place=last - pl.col("step"))
    parts.sort(key=lambda name: name != "reward")
    return rows.sort("place", "prompt_id", "group").select("place", "prompt_id", *parts, "length", *TROUBLES).collect()


def _any_above_zero(tables: Sequence[pl.DataFrame], column: str) -> bool:
    return any(column in table.columns and bool((table[column] > 0).any()) for table in tables)


def last_steps(run: "Run", window: int) -> pl.DataFrame:
    """The curves' rows of the last training steps; empty when they are not on this machine."""
    curves = metrics(run)
    return curves if curves.is_empty() or "tokens" not in curves.columns else curves.drop_nulls("tokens").sort("step").tail(window)


def selection_effects(first: "Run", second: "Run", notes: list[str]) -> list[Effect]:
    """Greedy accuracy on `select` at each run's last evaluation."""
    answers = []
    for run in (first, second):
        path = find(run, Paths(Path(), run.experiment).select_completions)
        table = pl.DataFrame() if path is None else pl.scan_parquet(path).select("step", "prompt_id", "decoding", "correct").collect()
        last = pl.col("decoding").eq("greedy") & pl.col("step").eq(pl.col("step").max()) & pl.col("correct").is_not_null()
        answers.append(table if table.is_empty() else table.filter(last))
    if not answers[0].is_empty() and not answers[1].is_empty():
        return [_accuracy("select accuracy", answers[0], answers[1], "correct", share=True)]
    notes.append("selection: answers of both runs are not on this machine, or nothing was evaluated during training")
    ends = [_last(metrics(run), "eval/select_accuracy") for run in (first, second)]
    return [_plain("select accuracy", ends[0], ends[1])] if ends[0] is not None and ends[1] is not None else []


def heldout_effects(first: "Run", second: "Run", a: Trace, b: Trace, notes: list[str]) -> list[Effect]:
    """Both policies on the held-out prompts they share, each one's accuracy over all its own, and its KL to its reference."""
    tables = [_heldout_scores(run) for run in (first, second)]
    found = []
    if tables[0].is_empty() or tables[1].is_empty():
        notes.append("held-out: answers of both policies are not on this machine, so numbers of the summaries are compared and nothing is paired")
        names = {"held-out accuracy": "policy_accuracy", "held-out mean@k": "policy_mean_at_k", "held-out length": "policy_mean_length"}
        found += [_of_summaries(measure, a.heldout, b.heldout, key) for measure, key in names.items() if key in a.heldout and key in b.heldout]
    else:
        common = len(tables[0].join(tables[1], on="prompt_id"))
        if common < max(map(len, tables)):
            notes.append(f"held-out: of {len(tables[0])} and {len(tables[1])} prompts {common} are common: differences are over these")
        found.append(_accuracy("held-out accuracy", tables[0], tables[1], "correct", share=True))
        found += [
            _accuracy(measure, tables[0], tables[1], column, share=False)
            for measure, column in (("held-out mean@k", "mean_at_k"), ("held-out length", "length"))
        ]
    kl = "kl_token_mean"
    if kl in a.heldout and kl in b.heldout:
        found.append(_plain("held-out KL", a.heldout[kl], b.heldout[kl]))
    return found


def difference(first: Sequence[float], second: Sequence[float], *, resamples: int, generator: np.random.Generator) -> Interval:
    """Mean of `second` minus mean of `first`, with the 2.5 % and 97.5 % quantiles when each is resampled on its own."""
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if len(one) == 0 or len(other) == 0:
        raise ValueError(f"a bootstrap needs at least one value of each run, got {len(one)} and {len(other)}")
    draws = [other[generator.integers(0, len(other), len(other))].mean() - one[generator.integers(0, len(one), len(one))].mean() for _ in range(resamples)]
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(float(other.mean() - one.mean()), float(low), float(high))


# ------------------------------------------------------------------------------------------------------------- pieces


def _by_group(measure: str, a: pl.DataFrame, b: pl.DataFrame) -> Effect | None:
    """Groups are resampled; in pairs when both runs drew the same prompts in the same steps, for what is hard for both is then no noise."""
    columns = [table.select("place", "prompt_id", measure).drop_nulls(measure) for table in (a, b)]
    if columns[0].is_empty() or columns[1].is_empty():
        return None
    paired = columns[0].select("place", "prompt_id").equals(columns[1].select("place", "prompt_id"))
    return _effect(measure, columns[0][measure].to_list(), columns[1][measure].to_list(), "groups", paired=paired)


def _by_step(measure: str, a: pl.DataFrame, b: pl.DataFrame, column: str) -> Effect | None:
    """Steps are resampled; in pairs when they are the same steps, for then what a step does to both is no noise."""
    known = [table.select("step", column).drop_nulls() if column in table.columns else pl.DataFrame({"step": [], column: []}) for table in (a, b)]
    values = [table[column].to_list() for table in known]
    return _effect(measure, values[0], values[1], "steps", paired=known[0]["step"].equals(known[1]["step"])) if all(values) else None


def _effect(measure: str, a: list[float], b: list[float], unit: str, *, paired: bool) -> Effect:
    stream = generator("compare", measure)
    found = (paired_bootstrap if paired else difference)(a, b, resamples=RESAMPLES, generator=stream)
    counts = f"{len(a)}" if len(a) == len(b) else f"{len(a)} and {len(b)}"
    over = f"{counts} {unit}{', paired' if paired else ''}"
    return Effect(measure, float(np.mean(a)), float(np.mean(b)), found.estimate, found.low, found.high, over=over)


def _heldout_scores(run: "Run") -> pl.DataFrame:
    """A row a prompt of the policy: greedy `correct` and `length`, share of its samples that are right (`mean_at_k`)."""
    path = find(run, Paths(Path(), run.experiment).heldout_completions)
    if path is None:
        return pl.DataFrame()
    rows = pl.scan_parquet(path).filter(pl.col("model") == "policy")
    greedy = rows.filter((pl.col("decoding") == "greedy") & pl.col("correct").is_not_null()).select("prompt_id", "correct", "length")
    sampled = rows.filter(pl.col("decoding") == "sample").group_by("prompt_id").agg(pl.col("correct").mean().alias("mean_at_k"))
    return greedy.join(sampled, on="prompt_id", how="left").collect()


def _accuracy(measure: str, a: pl.DataFrame, b: pl.DataFrame, column: str, *, share: bool) -> Effect:
    """Each one over all its prompts (with Wilson's interval when it is a share), the difference over the common ones, in pairs."""
    known = [table.drop_nulls(column) for table in (a, b)]
    common = known[0].join(known[1], on="prompt_id", suffix="_b").sort("prompt_id")
    own = [_own_interval(table[column], share=share) for table in known]
    effect = Effect(measure, own[0].estimate, own[1].estimate, over="no common prompt")
    if share:
        effect = replace(effect, a_low=own[0].low, a_high=own[0].high, b_low=own[1].low, b_high=own[1].high)
    if common.is_empty():
        return effect
    first, second = (common[name].cast(pl.Float64).to_list() for name in (column, f"{column}_b"))
    found = paired_bootstrap(first, second, resamples=RESAMPLES, generator=generator("compare", measure))
    return replace(effect, difference=found.estimate, low=found.low, high=found.high, over=f"{len(common)} prompts, paired")


def _own_interval(values: pl.Series, *, share: bool) -> Interval:
    """The mean of one run's values; of a share with Wilson's interval, else without width."""
    if share:
        return wilson(int(values.sum()), len(values))
    mean = float(np.mean(values.to_numpy()))
    return Interval(mean, mean, mean)


def _of_summaries(measure: str, a: Mapping[str, Any], b: Mapping[str, Any], key: str) -> Effect:
    bounds = {f"{name}_{end}": summary.get(f"{key}_{end}") for name, summary in (("a", a), ("b", b)) for end in ("low", "high")}
    return Effect(measure, a[key], b[key], b[key] - a[key], **bounds, over="one number of each")


def _plain(measure: str, a: float, b: float) -> Effect:
    return Effect(measure, a, b, b - a, over="one number of each")


def _last(curves: pl.DataFrame, column: str) -> float | None:
    values = curves[column].drop_nulls().to_list() if column in curves.columns else []
    return float(values[-1]) if values else None


def _warn(a: Trace, b: Trace, notes: list[str]) -> None:
    """Say where equal names do not measure the same thing."""
    one, other = a.made_from, b.made_from
    if one.config.get("rewards") != other.config.get("rewards") or one.reward_code_hash != other.reward_code_hash:
        notes.append("reward: the two runs were not rewarded by the same functions, weights and code: compare the held-out accuracy instead")
    metrics_of = [found.config.get("heldout_eval", {}).get("metric") for found in (one, other)]
    if metrics_of[0] != metrics_of[1]:
        notes.append(f"held-out: accuracy is by {metrics_of[0]} in A and by {metrics_of[1]} in B")
    references = [found.weights.get("reference", {}).get("policy_digest") for found in (one, other)]
    if references[0] != references[1]:
        notes.append("KL: the two runs have different references, so their KL is measured to different models")
