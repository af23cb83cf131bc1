"""An exploration as a picture: rewards, difficulty and lengths."""

from typing import TYPE_CHECKING

from assets import canvas
from assets.canvas import ACCENT, INK, POLICY, QUIET, REFERENCE
from grpo_core.exploration_numbers import DIFFICULTY_NAMES, Histogram, Numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def exploration_chart(numbers: Numbers) -> bytes:
    """Histograms of the total reward, of the right completions a prompt and of the lengths, as PNG."""
    drawn = canvas.figure(6.6, f"What the start writes for {numbers.num_prompts:,} train prompts, {numbers.group_size} completions each")
    rewards, difficulty, lengths = (canvas.style(axes) for axes in drawn.subplots(3, 1, squeeze=False).flatten())
    _bars(rewards, numbers.functions[-1].spread.histogram, POLICY)
    canvas.label(rewards, "share of\ncompletions")
    rewards.set_xlabel("total reward", fontsize=9.5, color=INK)
    _difficulty_bars(difficulty, numbers)
    _bars(lengths, numbers.lengths.histogram, ACCENT)
    canvas.label(lengths, "share of\ncompletions")
    lengths.set_xlabel(f"completion length in tokens ({100 * numbers.truncated:.2g}% cut)", fontsize=9.5, color=INK)
    return canvas.png(drawn)


def _bars(axes: "Axes", found: Histogram, color: str) -> None:
    """A bar a value, evenly apart, or a bar a bin."""
    if found.values:
        places = list(range(len(found.values)))
        axes.bar(places, found.shares, width=0.7, color=color)
        axes.set_xticks(places, [f"{value:.4g}" for value in found.values])
        axes.set_xlim(-0.9, len(places) - 0.1)
    elif found.edges:
        widths = [high - low for low, high in zip(found.edges, found.edges[1:], strict=False)]
        axes.bar(found.edges[:-1], found.shares, width=[0.92 * width for width in widths], align="edge", color=color)
    canvas.percent_axis(axes, whole=False)


def _difficulty_bars(axes: "Axes", numbers: Numbers) -> None:
    """Prompts by their share of right completions; those without any, or with all, have nothing to compare and are grey."""
    shares = numbers.difficulty
    if not shares:
        axes.text(0.5, 0.5, "nothing could be graded", transform=axes.transAxes, ha="center", va="center", fontsize=10, color=QUIET)
        axes.set_yticks([])
        return
    colors = [REFERENCE, *[POLICY] * (len(shares) - 2), REFERENCE]
    axes.bar(range(len(shares)), shares, width=0.7, color=colors)
    axes.set_xticks(range(len(shares)), DIFFICULTY_NAMES)
    axes.set_xlabel("right completions of a prompt (grey: nothing to compare)", fontsize=9.5, color=INK)
    canvas.label(axes, "share of\nprompts")
    canvas.percent_axis(axes, whole=False)
