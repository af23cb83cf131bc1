"""What a report says first: the verdict, the numbers to read, and the held-out evidence."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from assets.alarm_marks import condition_of, state_of
from assets.curves import curve_of
from pipelines.report.grids import Grid
from pipelines.report.sources import Sources

Tone = Literal["good", "bad", "unclear"]
NOT_EVALUATED = "The held-out evaluation of this policy has not run yet."


@dataclass(frozen=True, slots=True)
class Tile:
    """A number to read first."""

    name: str
    value: str
    note: str = ""


def verdict_of(summary: Mapping[str, Any] | None, alarms: Mapping[str, Any] | None, training: str, halts: str = "") -> tuple[str, Tone]:
    """What came of the run in a sentence or two: held-out accuracy before and after, how sure that is, the open alarms, and halts that came before."""
    health = f"{alarm_words(alarms)} Training was {halts}." if halts else alarm_words(alarms)
    if summary is None:
        return f"{training} {NOT_EVALUATED} {health}", "unclear"
    low, high = summary["difference_low"], summary["difference_high"]
    outcome: tuple[str, Tone] = ("better", "good") if low > 0 else ("worse", "bad") if high < 0 else ("no clear difference", "unclear")
    word, tone = outcome
    before, after = summary["reference_accuracy"], summary["policy_accuracy"]
    change = f"{_points(summary['difference'])} points, 95 % interval {_points(low)} to {_points(high)}"
    words = f"Held-out accuracy {before:.1%} → {after:.1%} on {summary['num_prompts']:,.0f} prompts never trained on ({change}): {word}."
    return f"{words} {health}", tone


def alarm_words(alarms: Mapping[str, Any] | None) -> str:
    """How many alarms are open, and which."""
    if alarms is None:
        return "Health was not recorded."
    names = list(dict.fromkeys(condition_of(alarm) for alarm in alarms["alarms"] if state_of(alarm) == "open"))
    count = sum(state_of(alarm) == "open" for alarm in alarms["alarms"])
    if count == 0:
        return "No alarm is open."
    return f"{count} alarm{'s are' if count > 1 else ' is'} open: {', '.join(names)}."


def tiles(sources: Sources) -> list[Tile]:
    """The numbers to read first; those that are not known yet are left out."""
    found, summary = [], sources.summary
    if summary is not None:
        interval = f"{_points(summary['difference'])} [{_points(summary['difference_low'])}, {_points(summary['difference_high'])}]"
        found.append(Tile("held-out accuracy", f"{summary['reference_accuracy']:.1%} → {summary['policy_accuracy']:.1%}", interval))
    for name, column, unit in (("mean reward", "reward/mean", ""), ("completion length", "length/mean", "tokens")):
        curve = curve_of(sources.metrics, column)[column]
        if len(curve) > 0:
            few = max(1, min(5, len(curve) // 10))
            found.append(Tile(name, f"{_mean(curve.head(few)):.3g} → {_mean(curve.tail(few)):.3g}", f"{unit}{', ' * bool(unit)}first and last steps"))
    kl = curve_of(sources.metrics, "kl/mean")["kl/mean"]
    if len(kl) > 0:
        found.append(Tile("KL to the reference", f"{_mean(kl.tail(5)):.3g}", "nats a token, last steps"))
    if sources.alarms is not None:
        states = [state_of(alarm) for alarm in sources.alarms["alarms"]]
        others = [f"{states.count(state)} {state}" for state in ("over", "acknowledged") if state in states]
        found.append(Tile("open alarms", str(states.count("open")), ", ".join(others) or "none other"))
    return found


def evidence(summary: Mapping[str, Any]) -> Grid:
    """The held-out numbers, a row a measure."""

    def interval(name: str, sign: str = "") -> str:
        return f"{summary[name]:{sign}.3f} [{summary[f'{name}_low']:{sign}.3f}, {summary[f'{name}_high']:{sign}.3f}]"

    def pair(name: str, spec: str) -> tuple[str, str, str]:
        reference, policy = summary[f"reference_{name}"], summary[f"policy_{name}"]
        return f"{reference:{spec}}", f"{policy:{spec}}", f"{policy - reference:+{spec}}"

    k, ungraded = int(summary["samples_per_prompt"]), int(summary.get("num_ungraded_prompts", 0))
    rows = [
        ("greedy accuracy", interval("reference_accuracy"), interval("policy_accuracy"), interval("difference", "+")),
        (f"mean@{k}, temperature {summary['temperature']:g}", *pair("mean_at_k", ".3f")[:2], interval("mean_at_k_difference", "+")),
        (f"pass@{int(summary['pass_k'])}", *pair("pass_at_k", ".3f")),
        ("mean length, tokens", *pair("mean_length", ".1f")),
        ("KL, nats a token", "", f"{summary['kl_token_mean']:.4f}", ""),
    ]
    if ungraded:
        rows.append(("prompts that could not be graded", str(ungraded), str(ungraded), ""))
    return Grid(("", "reference", "policy", "difference (paired)"), rows, frozenset(("reference", "policy", "difference (paired)")))


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")


def _mean(values: pl.Series) -> float:
    return float(values.sum()) / len(values)
