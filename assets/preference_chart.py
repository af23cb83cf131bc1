"""How often people prefer the policy: over all judged pairs and by difficulty, each with its interval."""

from collections.abc import Mapping
from typing import Any

from assets import canvas
from assets.canvas import INK, POLICY, QUIET, Render

MOST_DIFFICULTIES = 12
"""Of more the ones with the most pairs are drawn."""


def win_rate_chart(verdict: Mapping[str, Any], render: Render = canvas.png) -> bytes:
    """Win rates of a verdict that was counted, as dots with 95 % intervals about the line of an even one."""
    most = sorted(verdict["by_difficulty"], key=lambda name: -verdict["by_difficulty"][name]["count"])[:MOST_DIFFICULTIES]
    rows = {"all pairs": verdict["win_rate"], "decided pairs": verdict["decided"]}
    rows |= {name: found for name, found in verdict["by_difficulty"].items() if name in most and len(verdict["by_difficulty"]) > 1}
    rows = {name: found for name, found in rows.items() if found["count"]}
    drawn = canvas.figure(1.2 + 0.42 * len(rows), "How often people prefer the policy's completion")
    axes = canvas.style(drawn.subplots(), grid="x")
    for height, (name, found) in enumerate(rows.items()):
        color = POLICY if name == "all pairs" else QUIET
        reach = [[found["estimate"] - found["low"]], [found["high"] - found["estimate"]]]
        axes.errorbar(found["estimate"], height, xerr=reach, fmt="o", color=color, markersize=7, capsize=4, linewidth=1.6)
        axes.text(1.04, height, f"{found['estimate']:.0%} of {found['count']}", va="center", fontsize=10, color=INK)
    axes.axvline(0.5, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(rows)), [_cut(name) for name in rows], fontsize=10)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(-0.01, 1.24)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0%", "25%", "even", "75%", "100%"])
    axes.set_xlabel("share of pairs, a tie counting one half (95 % intervals)", fontsize=9.5, color=INK, loc="left")
    return render(drawn)


def _cut(name: str) -> str:
    return name if len(name) <= 28 else f"{name[:27]}…"
