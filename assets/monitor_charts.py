"""What the monitor watches beside the four charts of training, step by step. Tables in, bytes out; a chart of which nothing was logged is left out."""

from typing import TYPE_CHECKING

import polars as pl

from assets import canvas
from assets.alarm_marks import Alarms, step_panels
from assets.canvas import ACCENT, ALARM, BAND, INK, POLICY, QUIET, REFERENCE, Render
from assets.curves import curve_of, end_value, line, rise, spans_decades, trend
from grpo_core.statistics import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACCURACY = "eval/select_accuracy"
VARIETY = {
    "distinct_fraction": ("distinct in\na group", POLICY),
    "repetition": ("repeated\nn-grams", ALARM),
    "repeated_prompt_fraction": ("prompts\ntwice", QUIET),
}
"""Curve → what its axis says and its colour."""


def monitor_charts(metrics: pl.DataFrame, select: pl.DataFrame, alarms: Alarms = (), render: Render = canvas.png) -> dict[str, bytes]:
    """A chart for each of what was logged, from metrics.jsonl's rows and the table of answers to `select` prompts (which may be empty)."""
    drawn = {
        "select": select_chart(metrics, select, alarms, render),
        "entropy": entropy_chart(metrics, alarms, render),
        "grad_norm": gradient_chart(metrics, alarms, render),
        "zero_variance": zero_variance_chart(metrics, alarms, render),
        "ratio": ratio_chart(metrics, alarms, render),
        "variety": variety_chart(metrics, alarms, render),
    }
    return {name: picture for name, picture in drawn.items() if picture is not None}


def select_chart(metrics: pl.DataFrame, select: pl.DataFrame, alarms: Alarms, render: Render) -> bytes | None:
    """Greedy accuracy on `select` with 95 % intervals where its answers are there, beside accuracy on training completions where that was logged."""
    evaluated, trained = curve_of(metrics, ACCURACY), curve_of(metrics, "train_accuracy")
    if evaluated.is_empty():
        return None
    title = "Accuracy on select" + ("" if evaluated.height < 2 else f": {evaluated[ACCURACY][0]:.0%} → {evaluated[ACCURACY][-1]:.0%}")
    drawn, (axes,) = step_panels(3.1, title, [2.2], metrics, alarms)
    if not trained.is_empty():
        trend(axes, trained, "train_accuracy", label="training completions", color=REFERENCE)
    _intervals(axes, select)
    axes.plot(evaluated["step"].to_list(), evaluated[ACCURACY].to_list(), "o-", color=POLICY, markersize=5, linewidth=1.4, label="select, greedy")
    end_value(axes, evaluated, ACCURACY, as_percent=True)
    canvas.percent_axis(axes, whole=True)
    canvas.label(axes, "right answers")
    canvas.legend(axes)
    canvas.whole_numbers(axes)
    return render(drawn)


def entropy_chart(metrics: pl.DataFrame, alarms: Alarms, render: Render) -> bytes | None:
    """Entropy of the policy's next token."""
    curve = curve_of(metrics, "entropy")
    if curve.is_empty():
        return None
    drawn, (axes,) = step_panels(2.9, rise("Entropy", curve, "entropy", unit=" nats a token"), [2.1], metrics, alarms)
    trend(axes, curve, "entropy", label="")
    end_value(axes, curve, "entropy")
    canvas.label(axes, "nats a token, mean")
    canvas.from_zero(axes)
    canvas.whole_numbers(axes)
    return render(drawn)


def gradient_chart(metrics: pl.DataFrame, alarms: Alarms, render: Render) -> bytes | None:
    """The gradient's norm before clipping."""
    curve = curve_of(metrics, "grad_norm")
    if curve.is_empty():
        return None
    drawn, (axes,) = step_panels(2.9, "Gradient norm before clipping", [2.1], metrics, alarms)
    trend(axes, curve, "grad_norm", label="")
    end_value(axes, curve, "grad_norm")
    canvas.label(axes, "norm, mean of updates")
    axes.set_yscale("log") if spans_decades(curve["grad_norm"]) else canvas.from_zero(axes)
    canvas.whole_numbers(axes)
    return render(drawn)


def zero_variance_chart(metrics: pl.DataFrame, alarms: Alarms, render: Render) -> bytes | None:
    """Groups that teach nothing, on top of each other: too hard (alike below full marks), those alike between where there are any, too easy (at full marks)."""
    alike = curve_of(metrics, "zero_variance_fraction")
    if alike.is_empty():
        return None
    shares = alike
    for column in ("hopeless_group_fraction", "solved_group_fraction"):
        shares = shares.join(curve_of(metrics, column), on="step", how="left", maintain_order="left")
    hard, easy = shares["hopeless_group_fraction"].fill_null(0.0), shares["solved_group_fraction"].fill_null(0.0)
    apart = "hopeless_group_fraction" in metrics.columns
    between = (shares["zero_variance_fraction"] - hard - easy).clip(lower_bound=0.0)
    parts = [("too hard", hard, ALARM)] * apart
    parts += [("alike between" if apart else "too hard, or alike between", between, REFERENCE)] * (not apart or float(between.sum()) > 1e-9)
    parts += [("too easy: all at full marks", easy, ACCENT)]
    drawn, (axes,) = step_panels(3.1, f"Groups that teach nothing: {_end(alike):.0%} at the end", [2.2], metrics, alarms)
    _stacked(axes, shares["step"].to_list(), parts)
    canvas.percent_axis(axes, whole=True)
    canvas.label(axes, "groups")
    canvas.legend(axes, columns=3)
    canvas.whole_numbers(axes)
    return render(drawn)


def ratio_chart(metrics: pl.DataFrame, alarms: Alarms, render: Render) -> bytes | None:
    """The largest ratio of new to old probability, the share of tokens that the clip cut, and the effective sample where that was logged."""
    largest, clipped, effective = (curve_of(metrics, name) for name in ("ratio/max", "clip_fraction", "effective_sample_fraction"))
    if largest.is_empty() and clipped.is_empty():
        return None
    known = not effective.is_empty()
    drawn, (top, middle, *rest) = step_panels(3.7 + known, "Ratio and clip", [1.5, 1.2, *[1.0] * known], metrics, alarms)
    if not largest.is_empty():
        trend(top, largest, "ratio/max", label="")
        if spans_decades(largest["ratio/max"]):
            top.set_yscale("log")
    top.axhline(1, color=QUIET, linewidth=0.8)
    canvas.label(top, "largest ratio")
    middle.fill_between(clipped["step"].to_list(), 0, clipped["clip_fraction"].to_list(), color=BAND, linewidth=0)
    line(middle, clipped, "clip_fraction", color=POLICY, label="", width=1.4)
    canvas.percent_axis(middle, whole=False)
    canvas.label(middle, "tokens clipped")
    for panel in rest:
        line(panel, effective, "effective_sample_fraction", color=ACCENT, label="", width=1.6)
        canvas.percent_axis(panel, whole=True)
        canvas.label(panel, "effective\nsample")
    canvas.whole_numbers(top)
    return render(drawn)


def variety_chart(metrics: pl.DataFrame, alarms: Alarms, render: Render) -> bytes | None:
    """How different completions are: within a group, within themselves, and the prompts they answer."""
    curves = {name: curve for name in VARIETY if not (curve := curve_of(metrics, name)).is_empty()}
    if not curves:
        return None
    drawn, panels = step_panels(0.9 + 1.25 * len(curves), "Variety of completions", [1.25] * len(curves), metrics, alarms)
    for panel, (name, curve) in zip(panels, curves.items(), strict=True):
        words, color = VARIETY[name]
        trend(panel, curve, name, label="", color=color)
        canvas.percent_axis(panel, whole=name == "distinct_fraction")
        canvas.label(panel, words)
    canvas.whole_numbers(panels[0])
    return render(drawn)


# ------------------------------------------------------------------------------------------------------------- pieces


def _end(curve: pl.DataFrame) -> float:
    """The mean of the last few steps."""
    few = curve.to_series(1).tail(max(1, min(5, curve.height // 10)))
    return float(few.sum()) / len(few)


def _intervals(axes: "Axes", select: pl.DataFrame) -> None:
    """Wilson's 95 % interval of each evaluation of which the answers are there."""
    if select.is_empty():
        return
    counted = select.group_by("step").agg(pl.col("correct").count().alias("asked"), pl.col("correct").sum().alias("right")).filter(pl.col("asked") > 0)
    for step, asked, right in counted.sort("step").iter_rows():
        share = wilson(right, asked)
        axes.vlines(step, share.low, share.high, color=POLICY, alpha=0.45, linewidth=1.6)


def _stacked(axes: "Axes", steps: list[int], parts: "list[tuple[str, pl.Series, str]]") -> None:
    """Shares on top of each other, the last of them highest, under the edge of all together."""
    base = [0.0] * len(steps)
    for words, shares, color in parts:
        top = [below + share for below, share in zip(base, shares, strict=True)]
        axes.fill_between(steps, base, top, color=color, alpha=0.6, linewidth=0, label=words)
        base = top
    axes.plot(steps, base, color=INK, linewidth=1.0, marker="o" if len(steps) == 1 else "")
