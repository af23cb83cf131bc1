"""The pictures on the pages: how training went and what it was worth. Tables in, bytes out; a missing column leaves its part out.

Pictures are PNG unless another `render` is asked for (`canvas.svg`). Charts over steps take the rows of alarms.json and mark when each alarm held.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

from assets import canvas
from assets.alarm_marks import STEP, Alarms, alarm_timeline, step_panels
from assets.canvas import ACCENT, ALARM, BAND, INK, POLICY, QUIET, REFERENCE, SERIES, Render
from assets.curves import curve_of, end_value, line, rise, spans_decades, trend
from assets.histograms import length_histogram, reward_histograms
from assets.monitor_charts import monitor_charts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "accuracy_bars",
    "alarm_timeline",
    "learning_curves",
    "length_histogram",
    "loss_curve",
    "monitor_charts",
    "reward_histograms",
    "training_charts",
]

TROUBLES = {"status/invalid_fraction": ("invalid (floor reward)", SERIES[2]), "status/error_fraction": ("a reward function failed", ALARM)}
"""Curve → what it counts and its colour."""
MAX_COLUMNS = 120
"""Widest grid of the advantage heatmap: longer runs put several steps in a column."""


def training_charts(metrics: pl.DataFrame, rewards: pl.DataFrame, alarms: Alarms = (), render: Render = canvas.png) -> dict[str, bytes]:
    """The four charts of a GRPO run, from metrics.jsonl's rows and the rewards table (which may lack the newest steps)."""
    return {
        "reward": reward_chart(metrics, rewards, alarms, render),
        "kl": kl_chart(metrics, alarms, render),
        "length": length_chart(metrics, alarms, render),
        "advantages": advantage_chart(metrics, rewards, alarms, render),
    }


# ------------------------------------------------------------------------------------------------------- GRPO training


def reward_chart(metrics: pl.DataFrame, rewards: pl.DataFrame, alarms: Alarms = (), render: Render = canvas.png) -> bytes:
    """Mean reward ± one standard deviation (never outside what was observed), each function's mean, and accuracy on `select`.

    Below, where there were any, the shares of completions that were invalid or on which a reward function failed.
    """
    curve, evaluated, troubled = curve_of(metrics, "reward/mean"), curve_of(metrics, "eval/select_accuracy"), _is_troubled(metrics)
    if curve.is_empty() and evaluated.is_empty():
        return canvas.nothing_yet("Reward", "no step has finished yet", render)
    below = [1.0] * (not evaluated.is_empty()) + [1.0] * troubled
    drawn, (top, *rest) = step_panels(3.3 + sum(below), rise("Mean reward", curve, "reward/mean"), [2.4, *below], metrics, alarms)
    if troubled:
        _troubles(rest.pop(), metrics)
    _band(top, metrics, rewards)
    trend(top, curve, "reward/mean", label="mean reward")
    # Under `reward/` curves tell of the weighted sum as well; the table of rewards has functions alone.
    functions = [name for name in metrics.columns if name.startswith("reward/") and name in rewards.columns]
    for name, color in zip(functions, SERIES[1:], strict=False):
        line(top, curve_of(metrics, name), name, color=color, label=name.removeprefix("reward/").rpartition(":")[2], width=1.2)
    canvas.label(top, "reward a completion")
    canvas.legend(top, columns=4 if len(functions) <= 2 else 3)
    for panel in rest:
        panel.plot(evaluated["step"].to_list(), evaluated["eval/select_accuracy"].to_list(), "o-", color=POLICY, markersize=5, linewidth=1)
        end_value(panel, evaluated, "eval/select_accuracy", as_percent=True)
        canvas.percent_axis(panel, whole=True)
        canvas.label(panel, "accuracy on\nselect (greedy)")
    canvas.whole_numbers(top)
    return render(drawn)


def kl_chart(metrics: pl.DataFrame, alarms: Alarms = (), render: Render = canvas.png) -> bytes:
    """KL to the reference, and its weight beta where that moved."""
    curve, beta = curve_of(metrics, "kl/mean"), curve_of(metrics, "beta")
    if curve.is_empty():
        return canvas.nothing_yet("KL to the reference", "not measured: no step has finished, or beta is 0", render)
    moved = beta["beta"].n_unique() > 1 if not beta.is_empty() else False
    fixed = "" if moved or beta.is_empty() else f" (beta fixed at {beta['beta'][0]:g})"
    drawn, (top, *rest) = step_panels(3.9 if moved else 3.0, f"KL to the reference{fixed}", [2.4, 1] if moved else [2.2], metrics, alarms)
    trend(top, curve, "kl/mean", label="")
    top.fill_between(curve["step"].to_list(), 0, curve["kl/mean"].to_list(), color=BAND, alpha=0.5, linewidth=0)
    end_value(top, curve, "kl/mean")
    canvas.label(top, "nats a token, mean")
    canvas.from_zero(top)
    for panel in rest:
        panel.step(beta["step"].to_list(), beta["beta"].to_list(), where="mid", color=QUIET, linewidth=1.6)
        canvas.label(panel, "beta")
        panel.set_yscale("log") if spans_decades(beta["beta"]) else canvas.from_zero(panel)
    canvas.whole_numbers(top)
    return render(drawn)


def length_chart(metrics: pl.DataFrame, alarms: Alarms = (), render: Render = canvas.png) -> bytes:
    """Mean and longest completion, and the share cut off at the limit where any was."""
    curve, longest, truncated = (curve_of(metrics, name) for name in ("length/mean", "length/max", "truncated_fraction"))
    if curve.is_empty():
        return canvas.nothing_yet("Completion length", "no step has finished yet", render)
    cut = not truncated.is_empty() and truncated["truncated_fraction"].sum() > 0
    title = rise("Mean completion length", curve, "length/mean", unit=" tokens")
    drawn, (top, *rest) = step_panels(3.9 if cut else 3.1, title, [2.4, 1] if cut else [2.2], metrics, alarms)
    line(top, longest, "length/max", color=REFERENCE, label="longest", width=1.3)
    trend(top, curve, "length/mean", label="mean" if cut else "mean (none was truncated)")
    canvas.label(top, "tokens")
    canvas.legend(top)
    canvas.from_zero(top)
    for panel in rest:
        panel.fill_between(truncated["step"].to_list(), 0, truncated["truncated_fraction"].to_list(), color=ALARM, alpha=0.55, linewidth=0)
        canvas.percent_axis(panel, whole=False)
        canvas.label(panel, "truncated")
    canvas.whole_numbers(top)
    return render(drawn)


def advantage_chart(metrics: pl.DataFrame, rewards: pl.DataFrame, alarms: Alarms = (), render: Render = canvas.png) -> bytes:
    """Where advantages of live groups lie, step by step, above the share of groups that teach nothing (all rewards equal)."""
    live = curve_of(rewards, "advantage").filter(pl.col("advantage") != 0)
    dead, solved = curve_of(metrics, "zero_variance_fraction"), curve_of(metrics, "solved_group_fraction")
    if live.is_empty() and dead.is_empty():
        return canvas.nothing_yet("Advantages", "no step has finished yet", render)
    drawn, (top, bottom) = step_panels(4.4, "Advantages of the groups that still teach", [2.4, 1], metrics, alarms)
    if live.is_empty():
        top.text(0.5, 0.5, "every group's rewards were equal", ha="center", va="center", transform=top.transAxes, fontsize=10, color=QUIET)
    else:
        _heatmap(top, live)
    top.axhline(0, color=QUIET, linewidth=0.8)
    canvas.label(top, "advantage")
    bottom.fill_between(dead["step"].to_list(), 0, dead.to_series(1).to_list(), color=REFERENCE, alpha=0.55, linewidth=0, label="all rewards equal")
    bottom.plot(solved["step"].to_list(), solved.to_series(1).to_list(), color=ACCENT, linewidth=1.6, label="of these: solved")
    canvas.percent_axis(bottom, whole=True)
    canvas.label(bottom, "groups")
    canvas.legend(bottom)
    canvas.whole_numbers(top)
    return render(drawn)


def _heatmap(axes: "Axes", live: pl.DataFrame) -> None:
    """Share of a step's advantages by height: each column sums to 1, so late steps with few live groups are seen as well."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    steps, heights = live["step"].to_numpy(), live["advantage"].to_numpy()
    first, last = int(steps.min()), int(steps.max())
    wide = -(-(last - first + 1) // MAX_COLUMNS)
    x_edges = np.arange(first, last + wide + 1, wide) - 0.5
    reach = max(1.0, float(np.abs(heights).max()) * 1.05)
    counts, _, y_edges = np.histogram2d(steps, heights, bins=[x_edges, np.linspace(-reach, reach, 42)])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    colors = LinearSegmentedColormap.from_list("shares", ["#dbe6fe", POLICY, "#0b1f5c"])
    image = axes.pcolormesh(x_edges, y_edges, np.where(shares > 0, shares, np.nan).T, cmap=colors, norm=PowerNorm(0.5, 0, 1), rasterized=True)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.015, aspect=14, ticks=[0.01, 0.1, 0.25, 0.5, 1], format=lambda share, _: f"{share:.0%}")
    bar.set_label("share of the step", fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8.5, colors=QUIET, labelcolor=INK, length=2)
    bar.outline.set_visible(False)


# --------------------------------------------------------------------------------------------- before and after training


def loss_curve(history: pl.DataFrame, render: Render = canvas.png) -> bytes:
    """Supervised loss by step (columns step, loss): faint, under its running mean."""
    curve = curve_of(history, "loss")
    if curve.is_empty():
        return canvas.nothing_yet("Supervised fine-tuning", "no step was taken: GRPO starts from the given model", render)
    drawn = canvas.figure(3.0, "Supervised fine-tuning")
    (axes,) = canvas.panels(drawn, [1], x_label="step (optimizer updates)")
    trend(axes, curve, "loss", label="")
    end_value(axes, curve, "loss")
    canvas.label(axes, "loss (nats a token)")
    canvas.from_zero(axes)
    canvas.whole_numbers(axes)
    return render(drawn)


def accuracy_bars(summary: Mapping[str, float], render: Render = canvas.png) -> bytes:
    """Held-out accuracy of reference and policy with their 95 % intervals, and the paired difference in words."""
    ungraded = int(summary.get("num_ungraded_prompts", 0))
    aside = f" ({ungraded} more could not be graded)" if ungraded else ""
    drawn = canvas.figure(2.3, f"Held-out accuracy, greedy, {int(summary['num_prompts'])} prompts never trained on{aside}")
    axes = canvas.style(drawn.subplots(), grid="x")
    for height, (model, color) in enumerate((("policy", POLICY), ("reference", REFERENCE))):
        value, low, high = (summary[f"{model}_accuracy{end}"] for end in ("", "_low", "_high"))
        axes.barh(height, value, color=color, height=0.62)
        axes.errorbar(value, height, xerr=[[max(0.0, value - low)], [max(0.0, high - value)]], color=INK, capsize=4, linewidth=1.4)
        axes.text(1.04, height + 0.13, f"{value:.1%}", va="center", fontsize=13, fontweight="bold", color=INK)
        axes.text(1.04, height - 0.2, f"{low:.1%} to {high:.1%}", va="center", fontsize=9, color=QUIET)
    axes.set_yticks([0, 1], ["policy", "reference"], fontsize=10.5)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.5, 1.5)
    axes.set_xlim(0, 1.24)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0%", "25%", "50%", "75%", "100%"])
    axes.spines["bottom"].set_visible(False)
    difference, low, high = (100 * summary[key] for key in ("difference", "difference_low", "difference_high"))
    verdict = "better" if low > 0 else "worse" if high < 0 else "no clear difference"
    words = f"policy − reference: {difference:+.1f} points (95% interval {low:+.1f} to {high:+.1f}): {verdict}"
    axes.set_xlabel(words, fontsize=10, color=INK, loc="left", labelpad=7)
    return render(drawn)


def learning_curves(seeds: pl.DataFrame) -> bytes:
    """Accuracy on `select` and completion length by step (columns seed, step, select_accuracy, length), a thin line a seed and their median."""
    drawn = canvas.figure(3.1, f"{seeds['seed'].n_unique()} seeds (thin) and their median (thick)")
    titles = {"select_accuracy": "accuracy on select (greedy)", "length": "completion length (tokens)"}
    for axes, (column, title) in zip(drawn.subplots(1, 2), titles.items(), strict=True):
        canvas.style(axes)
        for _, one in seeds.drop_nulls(column).sort("step").group_by("seed", maintain_order=True):
            axes.plot(one["step"].to_list(), one[column].to_list(), color=POLICY, alpha=0.3, linewidth=0.9)
        median = seeds.drop_nulls(column).group_by("step").agg(pl.col(column).median()).sort("step")
        line(axes, median, column, color=POLICY, label="", width=2.6)
        end_value(axes, median, column, as_percent=column == "select_accuracy")
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.set_xlabel(STEP, fontsize=9.5, color=INK)
        canvas.whole_numbers(axes)
        if column == "select_accuracy":
            canvas.percent_axis(axes, whole=True)
        else:
            canvas.from_zero(axes)
    return canvas.png(drawn)


# ------------------------------------------------------------------------------------------------------------- pieces


def _is_troubled(metrics: pl.DataFrame) -> bool:
    return any(float(curve_of(metrics, column)[column].sum()) > 0 for column in TROUBLES)


def _troubles(axes: "Axes", metrics: pl.DataFrame) -> None:
    """Shares of completions on top of each other: those that were invalid, then those on which a reward function failed."""
    curves = [curve_of(metrics, column) for column in TROUBLES]
    steps = [step for curve in curves for step in curve["step"]]
    first, base = min(steps), [0.0] * (max(steps) - min(steps) + 1)
    for curve, (words, color) in zip(curves, TROUBLES.values(), strict=True):
        shares = dict(curve.iter_rows())
        top = [below + shares.get(step, 0.0) for step, below in enumerate(base, start=first)]
        axes.stairs(top, [first - 0.5 + place for place in range(len(top) + 1)], baseline=base, fill=True, color=color, alpha=0.6, linewidth=0, label=words)
        base = top
    canvas.percent_axis(axes, whole=False)
    canvas.label(axes, "completions")
    canvas.legend(axes)


def _band(axes: "Axes", metrics: pl.DataFrame, rewards: pl.DataFrame) -> None:
    if not {"step", "reward/mean", "reward/std"} <= set(metrics.columns):
        return
    rows = metrics.drop_nulls(["reward/mean", "reward/std"]).sort("step")
    low, high = pl.col("reward/mean") - pl.col("reward/std"), pl.col("reward/mean") + pl.col("reward/std")
    if not curve_of(rewards, "reward").is_empty():
        low, high = low.clip(lower_bound=pl.lit(rewards["reward"].min())), high.clip(upper_bound=pl.lit(rewards["reward"].max()))
    bounds = rows.select("step", low=low, high=high)
    axes.fill_between(bounds["step"].to_list(), bounds["low"].to_list(), bounds["high"].to_list(), color=BAND, alpha=0.55, linewidth=0, label="± std")
