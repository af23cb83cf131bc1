"""Learning curves of the arms of an ablation: a line an arm, and around it what its seeds did."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl

from assets import canvas
from assets.canvas import INK, QUIET, SERIES
from assets.curves import curve_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = {"reward/mean": "reward a\ncompletion", "eval/select_accuracy": "accuracy on\nselect (greedy)"}
"""Curve → what its axis says, in the order of the panels."""
MOST_LINE_POINTS = 50
"""Longer curves are smoothed to about so many points."""


def learning_curves_by_arm(factor: str, arms: Mapping[str, Sequence[pl.DataFrame]], num_steps: int, rising_steps: int) -> bytes:
    """Reward and accuracy on `select` up to step `num_steps` (rows of metrics.jsonl, one table a seed): the mean over seeds, lowest to highest as a band."""
    shown = [column for column in PANELS if any(not curve_of(seed, column).is_empty() for seeds in arms.values() for seed in seeds)]
    title = f"Reward by {factor} (band: lowest to highest seed)"
    if not shown:
        return canvas.nothing_yet(title, "no curve of these experiments is on this machine")
    drawn = canvas.figure(1.0 + 2.3 * len(shown), title)
    axes = canvas.panels(drawn, [1.5, 1][: len(shown)], x_label="step (rollout batches)")
    for panel, column in zip(axes, shown, strict=True):
        for place, (arm, seeds) in enumerate(arms.items()):
            label = f"{canvas.shortened(arm)} ({len(seeds)} seed{'s' if len(seeds) != 1 else ''})"
            _draw(panel, column, _over_seeds(seeds, column, num_steps), label, SERIES[place % len(SERIES)])
        canvas.label(panel, PANELS[column])
    if "eval/select_accuracy" in shown:
        canvas.percent_axis(axes[-1], whole=True)
    canvas.legend(axes[0], columns=4)
    _mark(axes[0], rising_steps, num_steps)
    canvas.whole_numbers(axes[-1])
    return canvas.png(drawn)


def _over_seeds(seeds: Sequence[pl.DataFrame], column: str, num_steps: int) -> pl.DataFrame:
    """Step, mean, low and high over the seeds, each curve smoothed first when it is long."""
    curves = []
    for seed in seeds:
        curve = curve_of(seed, column).filter(pl.col("step") <= num_steps)
        window = max(1, curve.height // MOST_LINE_POINTS)
        curves.append(curve.with_columns(pl.col(column).rolling_mean(window, min_samples=1, center=True)))
    grouped = pl.concat(curves).group_by("step") if curves else curve_of(pl.DataFrame(), column).group_by("step")
    return grouped.agg(pl.col(column).mean().alias("mean"), pl.col(column).min().alias("low"), pl.col(column).max().alias("high")).sort("step")


def _draw(axes: "Axes", column: str, curve: pl.DataFrame, label: str, color: str) -> None:
    steps = curve["step"].to_list()
    axes.fill_between(steps, curve["low"].to_list(), curve["high"].to_list(), color=color, alpha=0.14, linewidth=0)
    marker = "o" if curve.height <= 1 or column.startswith("eval/") else ""
    axes.plot(steps, curve["mean"].to_list(), color=color, linewidth=2, marker=marker, markersize=4, label=label)


def _mark(axes: "Axes", rising_steps: int, num_steps: int) -> None:
    """Up to where rises are compared."""
    if rising_steps >= num_steps:
        return
    axes.axvline(rising_steps, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
    side, away = ("right", -5) if 2 * rising_steps > num_steps else ("left", 5)
    words = axes.annotate("rise compared up to here", (rising_steps, 0.02), xycoords=("data", "axes fraction"), xytext=(away, 0), textcoords="offset points")
    words.set(fontsize=9, color=INK, va="bottom", ha=side)
