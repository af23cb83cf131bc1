"""Two runs' curves over each other as a picture: A in grey, B in blue."""

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from assets import canvas
from assets.canvas import POLICY, REFERENCE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = {
    "reward/mean": "reward a\ncompletion",
    "kl/mean": "KL to the reference\n(nats a token)",
    "length/mean": "completion length\n(tokens)",
    "entropy": "entropy\n(nats a token)",
    "eval/select_accuracy": "accuracy on\nselect (greedy)",
}
"""Curve → what its axis says, in the order of the panels."""
MOST_LINE_POINTS = 50
"""A longer curve is drawn as a running mean over its faint values."""


def comparison_chart(a: pl.DataFrame, b: pl.DataFrame, names: tuple[str, str]) -> bytes:
    """Reward, KL, length, entropy and accuracy on `select` by step (rows of metrics.jsonl), as PNG; a curve that neither run has is left out."""
    drawn = [column for column in PANELS if column in a.columns or column in b.columns]
    if not drawn:
        return canvas.nothing_yet("Two runs", "no curve of either run is on this machine")
    figure = canvas.figure(0.9 + 1.75 * len(drawn), "Two runs, step by step")
    axes = canvas.panels(figure, [1] * len(drawn), x_label="step (rollout batches)")
    for panel, column in zip(axes, drawn, strict=True):
        for curves, name, color in ((a, f"A: {names[0]}", REFERENCE), (b, f"B: {names[1]}", POLICY)):
            _draw(panel, curves, column, name, color)
        canvas.label(panel, PANELS[column])
        if column == "eval/select_accuracy":
            canvas.percent_axis(panel, whole=True)
        else:
            canvas.from_zero(panel)
    canvas.legend(axes[0], columns=2)
    canvas.whole_numbers(axes[-1])
    return canvas.png(figure)


def write_chart(path: Path, png: bytes) -> None:
    """The picture at `path`; raises ValueError when it is not to be a PNG or its folder is not there."""
    if path.suffix.lower() != ".png":
        raise ValueError(f"--chart writes a PNG picture: name the file {path.with_suffix('.png')}, not {path}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path.parent} is no folder: make it first, or write the chart elsewhere")
    path.write_bytes(png)


def _draw(axes: "Axes", curves: pl.DataFrame, column: str, name: str, color: str) -> None:
    if column not in curves.columns or "step" not in curves.columns:
        return
    curve = curves.select("step", pl.col(column).cast(pl.Float64)).filter(pl.col(column).is_finite()).sort("step")
    window = max(1, curve.height // MOST_LINE_POINTS)
    if window > 1:
        axes.plot(curve["step"].to_list(), curve[column].to_list(), color=color, alpha=0.3, linewidth=0.8)
    smooth = curve[column].rolling_mean(window, min_samples=1, center=True)
    marker = "o" if curve.height <= 1 or column.startswith("eval/") else ""
    axes.plot(curve["step"].to_list(), smooth.to_list(), color=color, linewidth=2, marker=marker, markersize=4, label=name)
