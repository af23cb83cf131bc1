"""Curves over steps as charts draw them. A missing column is an empty curve."""

from typing import TYPE_CHECKING

import polars as pl

from assets.canvas import INK, POLICY

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def curve_of(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Steps and finite values of one column; empty when the column is missing."""
    if column not in frame.columns or "step" not in frame.columns:
        return pl.DataFrame(schema={"step": pl.Int64, column: pl.Float64})
    return frame.select("step", pl.col(column).cast(pl.Float64)).filter(pl.col(column).is_finite()).sort("step")


def line(axes: "Axes", curve: pl.DataFrame, column: str, *, color: str, label: str, width: float) -> None:
    """A line; a lone point is drawn as a dot."""
    marker = "o" if curve.height == 1 else ""
    axes.plot(curve["step"].to_list(), curve[column].to_list(), color=color, label=label or None, linewidth=width, marker=marker)


def trend(axes: "Axes", curve: pl.DataFrame, column: str, *, label: str, color: str = POLICY) -> None:
    """The chart's main line; a long one is a running mean over its faint values."""
    window = max(1, curve.height // 50)
    if window > 1:
        axes.plot(curve["step"].to_list(), curve[column].to_list(), color=color, alpha=0.3, linewidth=0.8)
    line(axes, curve.with_columns(pl.col(column).rolling_mean(window, min_samples=1, center=True)), column, color=color, label=label, width=2.2)


def spans_decades(values: pl.Series) -> bool:
    low, high = float(values.min()), float(values.max())  # type: ignore[arg-type]  # a float column that is not empty
    return low > 0 and high / low > 20


def rise(title: str, curve: pl.DataFrame, column: str, unit: str = "") -> str:
    """The title with the means of the first and the last few steps: what happened, before any line is read."""
    if curve.height < 2:
        return title
    few = max(1, min(5, curve.height // 10))
    first, last = (rows[column].sum() / few for rows in (curve.head(few), curve.tail(few)))
    return f"{title}: {first:.3g} → {last:.3g}{unit}"


def end_value(axes: "Axes", curve: pl.DataFrame, column: str, *, as_percent: bool = False) -> None:
    value = curve[column][-1]
    text = f"{value:.0%}" if as_percent else f"{value:.3g}"
    place = axes.annotate(text, (curve["step"][-1], value), xytext=(6, 0), textcoords="offset points", va="center", annotation_clip=False)
    place.set(fontsize=9.5, fontweight="bold", color=INK)
