"""The pictures on the pages: how training went and what it was worth. Tables in, PNG bytes out; a missing column leaves its part out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

from assets import canvas
from assets.canvas import ACCENT, ALARM, BAND, INK, POLICY, QUIET, REFERENCE, SERIES
from assets.histograms import length_histogram, reward_histograms

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["accuracy_bars", "learning_curves", "length_histogram", "loss_curve", "reward_histograms", "training_charts"]

STEP = "step (rollout batches)"
TROUBLES = {"status/invalid_fraction": ("invalid (floor reward)", SERIES[2]), "status/error_fraction": ("a reward function failed", ALARM)}
"""Curve → what it counts and its colour."""
MAX_COLUMNS = 120
"""Widest grid of the advantage heatmap: longer runs put several steps in a column."""


def training_charts(metrics: pl.DataFrame, rewards: pl.DataFrame) -> dict[str, bytes]:
    """The four charts of a GRPO run, from metrics.jsonl's rows and the rewards table (which may lack the newest steps)."""
    return {
        "reward": reward_chart(metrics, rewards),
        "kl": kl_chart(metrics),
        "length": length_chart(metrics),
        "advantages": advantage_chart(metrics, rewards),
    }


# ------------------------------------------------------------------------------------------------------- GRPO training


def reward_chart(metrics: pl.DataFrame, rewards: pl.DataFrame) -> bytes:
    """Mean reward ± one standard deviation (never outside what was observed), each function's mean, and accuracy on `select`.

    Below, where there were any, the shares of completions that were invalid or on which a reward function failed.
    """
    curve, evaluated, troubled = _curve(metrics, "reward/mean"), _curve(metrics, "eval/select_accuracy"), _is_troubled(metrics)
    if curve.is_empty() and evaluated.is_empty():
        return canvas.nothing_yet("Reward", "no step has finished yet")
    below = [1.0] * (not evaluated.is_empty()) + [1.0] * troubled
    drawn = canvas.figure(3.3 + sum(below), _rise("Mean reward", curve, "reward/mean"))
    top, *rest = canvas.panels(drawn, [2.4, *below] if below else [1], x_label=STEP)
    if troubled:
        _troubles(rest.pop(), metrics)
    _band(top, metrics, rewards)
    _trend(top, curve, "reward/mean", label="mean reward")
    functions = [name for name in metrics.columns if name.startswith("reward/") and name not in ("reward/mean", "reward/std")]
    for name, color in zip(functions, SERIES[1:], strict=False):
        _line(top, _curve(metrics, name), name, color=color, label=name.removeprefix("reward/").rpartition(":")[2], width=1.2)
    canvas.label(top, "reward a completion")
    canvas.legend(top, columns=4 if len(functions) <= 2 else 3)
    for panel in rest:
        panel.plot(evaluated["step"].to_list(), evaluated["eval/select_accuracy"].to_list(), "o-", color=POLICY, markersize=5, linewidth=1)
        _end_value(panel, evaluated, "eval/select_accuracy", as_percent=True)
        canvas.percent_axis(panel, whole=True)
        canvas.label(panel, "accuracy on\nselect (greedy)")
    canvas.whole_numbers(top)
    return canvas.png(drawn)


def kl_chart(metrics: pl.DataFrame) -> bytes:
    """KL to the reference, and its weight beta where that moved."""
    curve, beta = _curve(metrics, "kl/mean"), _curve(metrics, "beta")
    if curve.is_empty():
        return canvas.nothing_yet("KL to the reference", "not measured: no step has finished, or beta is 0")
    moved = beta["beta"].n_unique() > 1 if not beta.is_empty() else False
    fixed = "" if moved or beta.is_empty() else f" (beta fixed at {beta['beta'][0]:g})"
    drawn = canvas.figure(3.9 if moved else 3.0, f"KL to the reference{fixed}")
    top, *rest = canvas.panels(drawn, [2.4, 1] if moved else [1], x_label=STEP)
    _trend(top, curve, "kl/mean", label="")
    top.fill_between(curve["step"].to_list(), 0, curve["kl/mean"].to_list(), color=BAND, alpha=0.5, linewidth=0)
    _end_value(top, curve, "kl/mean")
    canvas.label(top, "nats a token, mean")
    canvas.from_zero(top)
    for panel in rest:
        panel.step(beta["step"].to_list(), beta["beta"].to_list(), where="mid", color=QUIET, linewidth=1.6)
        canvas.label(panel, "beta")
        panel.set_yscale("log") if _spans_decades(beta["beta"]) else canvas.from_zero(panel)
    canvas.whole_numbers(top)
    return canvas.png(drawn)


def length_chart(metrics: pl.DataFrame) -> bytes:
    """Mean and longest completion, and the share cut off at the limit where any was."""
    curve, longest, truncated = (_curve(metrics, name) for name in ("length/mean", "length/max", "truncated_fraction"))
    if curve.is_empty():
        return canvas.nothing_yet("Completion length", "no step has finished yet")
    cut = not truncated.is_empty() and truncated["truncated_fraction"].sum() > 0
    drawn = canvas.figure(3.9 if cut else 3.1, _rise("Mean completion length", curve, "length/mean", unit=" tokens"))
    top, *rest = canvas.panels(drawn, [2.4, 1] if cut else [1], x_label=STEP)
    _line(top, longest, "length/max", color=REFERENCE, label="longest", width=1.3)
    _trend(top, curve, "length/mean", label="mean" if cut else "mean (none was truncated)")
    canvas.label(top, "tokens")
    canvas.legend(top)
    canvas.from_zero(top)
    for panel in rest:
        panel.fill_between(truncated["step"].to_list(), 0, truncated["truncated_fraction"].to_list(), color=ALARM, alpha=0.55, linewidth=0)
        canvas.percent_axis(panel, whole=False)
        canvas.label(panel, "truncated")
    canvas.whole_numbers(top)
    return canvas.png(drawn)


def advantage_chart(metrics: pl.DataFrame, rewards: pl.DataFrame) -> bytes:
    """Where advantages of live groups lie, step by step, above the share of groups that teach nothing (all rewards equal)."""
    live = _curve(rewards, "advantage").filter(pl.col("advantage") != 0)
    dead, solved = _curve(metrics, "zero_variance_fraction"), _curve(metrics, "solved_group_fraction")
    if live.is_empty() and dead.is_empty():
        return canvas.nothing_yet("Advantages", "no step has finished yet")
    drawn = canvas.figure(4.4, "Advantages of the groups that still teach")
    top, bottom = canvas.panels(drawn, [2.4, 1], x_label=STEP)
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
    return canvas.png(drawn)


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
    image = axes.pcolormesh(x_edges, y_edges, np.where(shares > 0, shares, np.nan).T, cmap=colors, norm=PowerNorm(0.5, 0, 1))
    bar = axes.figure.colorbar(image, ax=axes, pad=0.015, aspect=14, ticks=[0.01, 0.1, 0.25, 0.5, 1], format=lambda share, _: f"{share:.0%}")
    bar.set_label("share of the step", fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8.5, colors=QUIET, labelcolor=INK, length=2)
    bar.outline.set_visible(False)


# --------------------------------------------------------------------------------------------- before and after training


def loss_curve(history: pl.DataFrame) -> bytes:
    """Supervised loss by step (columns step, loss): faint, under its running mean."""
    curve = _curve(history, "loss")
    if curve.is_empty():
        return canvas.nothing_yet("Supervised fine-tuning", "no step was taken: GRPO starts from the given model")
    drawn = canvas.figure(3.0, "Supervised fine-tuning")
    (axes,) = canvas.panels(drawn, [1], x_label="step (optimizer updates)")
    _trend(axes, curve, "loss", label="")
    _end_value(axes, curve, "loss")
    canvas.label(axes, "loss (nats a token)")
    canvas.from_zero(axes)
    canvas.whole_numbers(axes)
    return canvas.png(drawn)


def accuracy_bars(summary: Mapping[str, float]) -> bytes:
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
    return canvas.png(drawn)


def learning_curves(seeds: pl.DataFrame) -> bytes:
    """Accuracy on `select` and completion length by step (columns seed, step, select_accuracy, length), a thin line a seed and their median."""
    drawn = canvas.figure(3.1, f"{seeds['seed'].n_unique()} seeds (thin) and their median (thick)")
    titles = {"select_accuracy": "accuracy on select (greedy)", "length": "completion length (tokens)"}
    for axes, (column, title) in zip(drawn.subplots(1, 2), titles.items(), strict=True):
        canvas.style(axes)
        for _, one in seeds.drop_nulls(column).sort("step").group_by("seed", maintain_order=True):
            axes.plot(one["step"].to_list(), one[column].to_list(), color=POLICY, alpha=0.3, linewidth=0.9)
        median = seeds.drop_nulls(column).group_by("step").agg(pl.col(column).median()).sort("step")
        _line(axes, median, column, color=POLICY, label="", width=2.6)
        _end_value(axes, median, column, as_percent=column == "select_accuracy")
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.set_xlabel(STEP, fontsize=9.5, color=INK)
        canvas.whole_numbers(axes)
        if column == "select_accuracy":
            canvas.percent_axis(axes, whole=True)
        else:
            canvas.from_zero(axes)
    return canvas.png(drawn)


# ------------------------------------------------------------------------------------------------------------- pieces


def _curve(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Steps and finite values of one column; empty when the column is missing."""
    if column not in frame.columns or "step" not in frame.columns:
        return pl.DataFrame(schema={"step": pl.Int64, column: pl.Float64})
    return frame.select("step", pl.col(column).cast(pl.Float64)).filter(pl.col(column).is_finite()).sort("step")


def _line(axes: "Axes", curve: pl.DataFrame, column: str, *, color: str, label: str, width: float) -> None:
    """A line; a lone point is drawn as a dot."""
    marker = "o" if curve.height == 1 else ""
    axes.plot(curve["step"].to_list(), curve[column].to_list(), color=color, label=label or None, linewidth=width, marker=marker)


def _trend(axes: "Axes", curve: pl.DataFrame, column: str, *, label: str, color: str = POLICY) -> None:
    """The chart's main line; a long one is a running mean over its faint values."""
    window = max(1, curve.height // 50)
    if window > 1:
        axes.plot(curve["step"].to_list(), curve[column].to_list(), color=color, alpha=0.3, linewidth=0.8)
    _line(axes, curve.with_columns(pl.col(column).rolling_mean(window, min_samples=1, center=True)), column, color=color, label=label, width=2.2)


def _spans_decades(values: pl.Series) -> bool:
    low, high = float(values.min()), float(values.max())  # type: ignore[arg-type]  # a float column that is not empty
    return low > 0 and high / low > 20


def _is_troubled(metrics: pl.DataFrame) -> bool:
    return any(float(_curve(metrics, column)[column].sum()) > 0 for column in TROUBLES)


def _troubles(axes: "Axes", metrics: pl.DataFrame) -> None:
    """Shares of completions on top of each other: those that were invalid, then those on which a reward function failed."""
    curves = [_curve(metrics, column) for column in TROUBLES]
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
    if not _curve(rewards, "reward").is_empty():
        low, high = low.clip(lower_bound=pl.lit(rewards["reward"].min())), high.clip(upper_bound=pl.lit(rewards["reward"].max()))
    bounds = rows.select("step", low=low, high=high)
    axes.fill_between(bounds["step"].to_list(), bounds["low"].to_list(), bounds["high"].to_list(), color=BAND, alpha=0.55, linewidth=0, label="± std")


def _rise(title: str, curve: pl.DataFrame, column: str, unit: str = "") -> str:
    """The title with the means of the first and the last few steps: what happened, before any line is read."""
    if curve.height < 2:
        return title
    few = max(1, min(5, curve.height // 10))
    first, last = (rows[column].sum() / few for rows in (curve.head(few), curve.tail(few)))
    return f"{title}: {first:.3g} → {last:.3g}{unit}"


def _end_value(axes: "Axes", curve: pl.DataFrame, column: str, *, as_percent: bool = False) -> None:
    value = curve[column][-1]
    text = f"{value:.0%}" if as_percent else f"{value:.3g}"
    place = axes.annotate(text, (curve["step"][-1], value), xytext=(6, 0), textcoords="offset points", va="center", annotation_clip=False)
    place.set(fontsize=9.5, fontweight="bold", color=INK)
