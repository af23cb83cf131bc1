"""Histograms of two groups side by side: before in grey, after in blue. Tables in, PNG bytes out."""

from typing import TYPE_CHECKING

import polars as pl

from assets import canvas
from assets.canvas import INK, POLICY, REFERENCE

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

FEW_VALUES = 5
"""Up to so many distinct rewards get a bar and a tick each."""


def reward_histograms(rewards: pl.DataFrame) -> bytes:
    """What each reward function gave in the first and in the last tenth of training."""
    functions = [name for name in rewards.columns if name.startswith("reward/")]
    functions = [name for name in functions if rewards[name].count() > 0]
    if not functions:
        return canvas.nothing_yet("Rewards by function", "nothing has been scored yet")
    early, late, names = _early_and_late(rewards)
    rows = -(-len(functions) // 2)
    drawn = canvas.figure(0.9 + 2.1 * rows, "Rewards by function")
    grid = drawn.subplots(rows, min(2, len(functions)), squeeze=False).flatten()
    for axes, name in zip(grid, functions, strict=False):
        _paired_bars(canvas.style(axes), early[name], late[name])
        axes.set_title(name.removeprefix("reward/"), fontsize=10, color=INK, loc="left")
        axes.set_xlabel("reward", fontsize=9.5, color=INK)
    for axes in grid[len(functions) :]:
        axes.set_visible(False)
    canvas.label(grid[0], "share of completions")
    _keys(drawn.get_axes()[0], names)
    return canvas.png(drawn)


def length_histogram(frame: pl.DataFrame) -> bytes:
    """Completion lengths: by `model` where the table has that column, else early against late steps."""
    if frame.is_empty():
        return canvas.nothing_yet("Completion length", "no completion yet")
    if "model" in frame.columns:
        before, after, names = frame.filter(pl.col("model") == "reference"), frame.filter(pl.col("model") == "policy"), ("reference", "policy")
    else:
        before, after, names = _early_and_late(frame)
    drawn = canvas.figure(2.8, "Completion length")
    (axes,) = canvas.panels(drawn, [1], x_label="tokens")
    _paired_bars(axes, before["length"], after["length"])
    canvas.label(axes, "share of completions")
    _keys(axes, names)
    return canvas.png(drawn)


def _early_and_late(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, tuple[str, str]]:
    """The rows of the first and of the last tenth of steps (all rows twice when there is one step), and their names."""
    first, last = int(frame["step"].min()), int(frame["step"].max())  # type: ignore[arg-type]  # an integer column that is not empty
    tenth = max(1, (last - first + 1) // 10)
    names = (f"steps {first} to {first + tenth - 1}", f"steps {last - tenth + 1} to {last}") if tenth > 1 else (f"step {first}", f"step {last}")
    return frame.filter(pl.col("step") < first + tenth), frame.filter(pl.col("step") > last - tenth), names


def _paired_bars(axes: "Axes", before: pl.Series, after: pl.Series) -> None:
    """Two histograms side by side as shares: a bar a value where values are few, else 20 bins."""
    import numpy as np

    pairs = [series.drop_nulls().cast(pl.Float64).to_numpy() for series in (before, after)]
    together = np.concatenate(pairs)
    if len(together) == 0:
        return
    edges = _edges(together)
    centres, width = (edges[:-1] + edges[1:]) / 2, float(np.diff(edges).min()) * 0.42
    for values, color, side in zip(pairs, (REFERENCE, POLICY), (-0.5, 0.5), strict=True):
        shares = np.histogram(values, bins=edges)[0] / max(1, len(values))
        axes.bar(centres + side * width, shares, width=width, color=color)
    distinct = np.unique(together)
    if len(distinct) <= FEW_VALUES:
        axes.set_xticks(distinct, [f"{value:.3g}" for value in distinct])
    canvas.percent_axis(axes, whole=False)


def _edges(values: "np.ndarray") -> "np.ndarray":
    """Bin edges: around each value where those are few, whole numbers for counts, else 20 equal bins."""
    import numpy as np

    distinct = np.unique(values)
    low, high = float(distinct[0]), float(distinct[-1])
    if len(distinct) > 1 and len(distinct) <= FEW_VALUES:
        middles = (distinct[:-1] + distinct[1:]) / 2
        return np.concatenate([[2 * low - middles[0]], middles, [2 * high - middles[-1]]])
    if np.all(distinct == np.round(distinct)):
        width = max(1, -(-int(high - low + 1) // 60))
        return np.arange(low, high + width + 1, width) - 0.5
    return np.linspace(low, high, 21) if high > low else np.array([low - 0.5, low + 0.5])


def _keys(axes: "Axes", names: tuple[str, str]) -> None:
    """The legend of paired bars."""
    from matplotlib.patches import Patch

    handles = [Patch(color=color, label=name) for name, color in zip(names, (REFERENCE, POLICY), strict=True)]
    axes.figure.legend(handles=handles, loc="upper right", ncols=2, frameon=False, fontsize=9, labelcolor=INK, handlelength=1.0, bbox_to_anchor=(0.995, 1.0))
