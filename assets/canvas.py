"""How every chart looks: one palette, quiet axes, text sized to be read at 700 pixels wide, bytes (PNG or SVG) that depend on the data only."""

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES, DOTS_PER_INCH = 7.0, 160
"""A chart is 1120 pixels wide: sharp when shown at 700."""
INK, QUIET, GRID = "#1e293b", "#64748b", "#e5e9f0"
POLICY, REFERENCE, ACCENT, ALARM, WARNING, BAND = "#2563eb", "#94a3b8", "#0d9488", "#dc2626", "#b45309", "#bfd3fb"
"""Blue is always the trained policy, grey what it started from, red what should stay low, brown what to keep an eye on."""
SERIES = (POLICY, ACCENT, "#d97706", "#9333ea", "#db2777", "#65a30d")
"""Colours of things that have no colour of their own."""

LONGEST_LABEL = 40
"""Characters of a name or value in a chart."""
LINE, SWATCH = 90, 6
"""Characters that fit beside each other in a legend, and what the mark before a name takes of them."""
Render = Callable[["Figure"], bytes]
"""What a finished figure becomes: `png` for pages that take pixels, `svg` for paper."""


def figure(height_inches: float, title: str) -> "Figure":
    """An empty white figure with its title at the left."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    drawn = Figure(figsize=(WIDTH_INCHES, height_inches), dpi=DOTS_PER_INCH, facecolor="white", layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    FigureCanvasAgg(drawn)
    drawn.suptitle(title, x=0.014, ha="left", fontsize=12, fontweight="bold", color=INK)
    return drawn


def panels(drawn: "Figure", heights: Sequence[float], *, x_label: str) -> "list[Axes]":
    """Panels above one another on one x axis, of these relative heights."""
    grid = drawn.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=list(heights))
    axes = [style(row[0]) for row in grid]
    axes[-1].set_xlabel(x_label, fontsize=9.5, color=INK)
    drawn.align_ylabels(axes)
    return axes


def style(axes: "Axes", *, grid: str = "y") -> "Axes":
    """Quiet axes: no box, a light grid, readable ticks."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#cbd5e1")
    axes.tick_params(labelsize=9, colors=QUIET, labelcolor=INK, length=3)
    axes.grid(visible=True, axis="x" if grid == "x" else "y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def label(axes: "Axes", y_label: str) -> None:
    axes.set_ylabel(y_label, fontsize=9.5, color=INK)


def legend(axes: "Axes", *, columns: int = 4) -> None:
    """What each line is, above the panel and outside the data."""
    handles, labels = axes.get_legend_handles_labels()
    fitting = LINE // (SWATCH + max((len(shortened(label)) for label in labels), default=0))
    look = {"ncols": max(1, min(columns, fitting)), "frameon": False, "fontsize": 9, "labelcolor": INK, "borderpad": 0.2, "handlelength": 1.4}
    axes.legend(handles, [shortened(label) for label in labels], loc="lower left", bbox_to_anchor=(0, 1.0), **look)


def shortened(label: str) -> str:
    """A label that leaves room for others: names and values are of any length, and may differ at their ends alone."""
    return label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL // 2]}…{label[1 - LONGEST_LABEL // 2 :]}"


def percent_axis(axes: "Axes", *, whole: bool) -> None:
    """Show shares (0 to 1) as percent: the whole range, else from zero to what there is."""
    from matplotlib.ticker import MaxNLocator

    if whole:
        axes.set_ylim(-0.03, 1.06)
        axes.set_yticks([0, 0.5, 1])
    else:
        from_zero(axes)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}%")


def from_zero(axes: "Axes") -> None:
    """Let the y axis begin at zero unless values lie below it."""
    low, high = axes.dataLim.ymin, axes.get_ylim()[1]
    if low >= 0:
        axes.set_ylim(0.0, high if high > 0 else 1.0)


def whole_numbers(axes: "Axes") -> None:
    """Ticks of the x axis at round whole steps, also where there is only one."""
    from matplotlib.ticker import MaxNLocator

    left, right = axes.get_xlim()
    if right - left < 1.5:
        axes.set_xlim((left + right) / 2 - 1, (left + right) / 2 + 1)

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))


def png(drawn: "Figure") -> bytes:
    """The figure as PNG bytes, without the program's name or a date."""
    buffer = io.BytesIO()
    _as_written(drawn)
    drawn.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def svg(drawn: "Figure") -> bytes:
    """The figure as an SVG document, sharp at any size: text as outlines, so that it looks the same without our fonts; no program's name or date."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    _as_written(drawn)
    with rc_context({"svg.hashsalt": "grpo", "svg.fonttype": "path"}):
        drawn.savefig(buffer, format="svg", dpi=2 * DOTS_PER_INCH, metadata={"Creator": None, "Date": None})
    return buffer.getvalue()


def _as_written(drawn: "Figure") -> None:
    """No text is mathematics to be set: a `$` in a name or a value is one."""
    from matplotlib.text import Text

    for text in drawn.findobj(Text):
        text.set_parse_math(False)


def nothing_yet(title: str, why: str, render: Render = png) -> bytes:
    """A small picture that says why there is nothing to draw; PNG unless another `render` is asked for."""
    drawn = figure(1.6, title)
    drawn.text(0.5, 0.42, why, ha="center", va="center", fontsize=10.5, color=QUIET)
    return render(drawn)
