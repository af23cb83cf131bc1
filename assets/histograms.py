"""Histograms of two groups side by side: before in grey, after in blue. Tables in, bytes out: PNG unless another `render` is asked for."""

from typing import TYPE_CHECKING

import polars as pl

from assets import canvas
from assets.canvas import INK, POLICY, REFERENCE, Render
from grpo_core.statistics import Z95, pearson

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

FEW_VALUES = 5
"""Up to so many distinct rewards get a bar and a tick each."""
TROUBLES = {"no_opinion": "no opinion", "invalid": "invalid", "error": "errors"}
"""Statuses of completions that were not simply scored, in words."""
LENGTH_BINS = 12
"""Most intervals of length that rewards are averaged over."""


def reward_histograms(rewards: pl.DataFrame, render: Render = canvas.png) -> bytes:
    """What each reward function gave in the first and in the last tenth of training."""
    functions = [name for name in rewards.columns if name.startswith("reward/")]
    functions = [name for name in functions if rewards[name].count() > 0]
    if not functions:
        return canvas.nothing_yet("Rewards by function", "nothing has been scored yet", render)
    early, late, names = _early_and_late(rewards)
    rows = -(-len(functions) // 2)
    drawn = canvas.figure(0.9 + 2.1 * rows, "Rewards by function")
    grid = drawn.subplots(rows, min(2, len(functions)), squeeze=False).flatten()
    for axes, name in zip(grid, functions, strict=False):
        _paired_bars(canvas.style(axes), early[name], late[name])
        axes.set_title(name.removeprefix("reward/").rpartition(":")[2], fontsize=10, color=INK, loc="left")
        axes.set_xlabel(f"reward{_troubles(rewards, name)}", fontsize=9.5, color=INK)
    for axes in grid[len(functions) :]:
        axes.set_visible(False)
    canvas.label(grid[0], "share of completions")
    _keys(drawn.get_axes()[0], names)
    return render(drawn)


def reward_by_length(rows: pl.DataFrame, render: Render = canvas.png) -> bytes:
    """Mean reward by completion length, early and late, with 95 % intervals, above how many completions were so long (step, reward, length)."""
    if rows.is_empty():
        return canvas.nothing_yet("Reward against length", "nothing has been scored yet", render)
    early, late, names = _early_and_late(rows)
    edges = _length_edges(rows["length"])
    drawn = canvas.figure(4.3, f"Reward against length: correlation {_correlation(early)} → {_correlation(late)}")
    top, bottom = canvas.panels(drawn, [2.2, 1], x_label="completion length (tokens)")
    for part, name, color, side in ((early, names[0], REFERENCE, -0.5), (late, names[1], POLICY, 0.5)):
        _mean_line(top, part, edges, side, color=color, label=name)
    _bars(bottom, early["length"], late["length"], edges)
    canvas.label(top, "mean reward")
    canvas.label(bottom, "share of\ncompletions")
    canvas.legend(top)
    canvas.whole_numbers(bottom)
    return render(drawn)


def length_histogram(frame: pl.DataFrame, render: Render = canvas.png) -> bytes:
    """Completion lengths: by `model` where the table has that column, else early against late steps."""
    if frame.is_empty():
        return canvas.nothing_yet("Completion length", "no completion yet", render)
    if "model" in frame.columns:
        before, after, names = frame.filter(pl.col("model") == "reference"), frame.filter(pl.col("model") == "policy"), ("reference", "policy")
    else:
        before, after, names = _early_and_late(frame)
    drawn = canvas.figure(2.8, "Completion length")
    (axes,) = canvas.panels(drawn, [1], x_label="tokens")
    _paired_bars(axes, before["length"], after["length"])
    canvas.label(axes, "share of completions")
    _keys(axes, names)
    return render(drawn)


def _early_and_late(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, tuple[str, str]]:
    """The rows of the first and of the last tenth of steps (all rows twice when there is one step), and their names."""
    first, last = int(frame["step"].min()), int(frame["step"].max())  # type: ignore[arg-type]  # an integer column that is not empty
    tenth = max(1, (last - first + 1) // 10)
    names = (f"steps {first} to {first + tenth - 1}", f"steps {last - tenth + 1} to {last}") if tenth > 1 else (f"step {first}", f"step {last}")
    return frame.filter(pl.col("step") < first + tenth), frame.filter(pl.col("step") > last - tenth), names


def _troubles(rewards: pl.DataFrame, name: str) -> str:
    """Which completions this function did not simply score, as shares in brackets; empty when it scored all."""
    column = name.replace("reward/", "status/", 1)
    if column not in rewards.columns:
        return ""
    shares = {words: float((rewards[column] == status).mean() or 0.0) for status, words in TROUBLES.items()}  # type: ignore[arg-type]
    told = [f"{100 * share:.2g}% {words}" for words, share in shares.items() if share > 0]
    return f" ({', '.join(told)})" if told else ""


def _length_edges(lengths: pl.Series) -> "np.ndarray":
    """Intervals of whole lengths, equally wide."""
    import numpy as np

    low, high = int(lengths.min()), int(lengths.max())  # type: ignore[arg-type]  # an integer column that is not empty
    width = -(-(high - low + 1) // LENGTH_BINS)
    return np.arange(low, high + width + 1, width) - 0.5


def _correlation(rows: pl.DataFrame) -> str:
    """Pearson's, in words."""
    found = pearson(rows["length"].to_list(), rows["reward"].to_list())
    return "none" if found is None else f"{found:+.2f}".replace("-", "−")


def _mean_line(axes: "Axes", rows: pl.DataFrame, edges: "np.ndarray", side: float, *, color: str, label: str) -> None:
    """The mean reward of each interval with its 95 % interval; a little to the side, so that two lines can be told apart."""
    import numpy as np

    lengths, rewards = rows["length"].to_numpy(), rows["reward"].to_numpy()
    places = np.digitize(lengths, edges) - 1
    filled = [place for place in range(len(edges) - 1) if (places == place).any()]
    values = [rewards[places == place] for place in filled]
    centres = [(edges[place] + edges[place + 1]) / 2 + 0.08 * side * (edges[1] - edges[0]) for place in filled]
    spread = [Z95 * float(part.std(ddof=1)) / len(part) ** 0.5 if len(part) > 1 else 0.0 for part in values]
    means = [float(part.mean()) for part in values]
    axes.errorbar(centres, means, yerr=spread, label=label, color=color, fmt="o-", markersize=4.5, linewidth=1.6, elinewidth=1.2, capsize=2.5)


def _paired_bars(axes: "Axes", before: pl.Series, after: pl.Series) -> None:
    """Two histograms side by side as shares: a bar a value where values are few, else 20 bins."""
    import numpy as np

    together = np.concatenate([series.drop_nulls().cast(pl.Float64).to_numpy() for series in (before, after)])
    if len(together) == 0:
        return
    _bars(axes, before, after, _edges(together))
    distinct = np.unique(together)
    if len(distinct) <= FEW_VALUES:
        axes.set_xticks(distinct, [f"{value:.3g}" for value in distinct])


def _bars(axes: "Axes", before: pl.Series, after: pl.Series, edges: "np.ndarray") -> None:
    """Shares of both, side by side in each bin."""
    import numpy as np

    centres, width = (edges[:-1] + edges[1:]) / 2, float(np.diff(edges).min()) * 0.42
    for series, color, side in ((before, REFERENCE, -0.5), (after, POLICY, 0.5)):
        values = series.drop_nulls().cast(pl.Float64).to_numpy()
        shares = np.histogram(values, bins=edges)[0] / max(1, len(values))
        axes.bar(centres + side * width, shares, width=width, color=color)
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
