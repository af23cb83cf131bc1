"""Alarms on the time axis: a light band over every panel of a chart, and under the panels a track that names each of them.

An alarm is a row of alarms.json: `condition`, `severity` (`alarm` or `warning`), `first_step` and `last_step` at which it held, `open`, and
`acknowledged` (a reason) where params.yaml gives one. It has the colour of its severity, filled while it is open; an acknowledged one is grey.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from assets import canvas
from assets.canvas import ALARM, QUIET, WARNING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEP = "step (rollout batches)"
Alarms = Sequence[Mapping[str, Any]]
"""Rows of alarms.json."""
COLORS = {"alarm": ALARM, "warning": WARNING}
"""Severity → colour."""
TRACK_INCHES = 0.22
MOST_TRACKS = 6
"""Tracks under a chart; an alarm that finds no room there still has its band, and stands in the timeline."""
PANEL_INCHES, LETTER_INCHES = 5.0, 0.068
"""Width of a panel (of the narrowest), and of a letter in a track."""


@dataclass(frozen=True, slots=True)
class Span:
    """When one alarm held, and what stands beside its bar."""

    first: float
    last: float
    """Edges in steps: half a step before the first and after the last."""
    words: str
    color: str
    is_open: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """A span with its words in a track."""

    span: Span
    track: int
    """From 0, the highest."""
    side: Literal["right", "left", "inside"]
    """Where the words stand: beside the bar, or in it where neither side has room."""


def condition_of(alarm: Mapping[str, Any]) -> str:
    """What it is, in words."""
    return str(alarm["condition"]).replace("_", " ")


def state_of(alarm: Mapping[str, Any]) -> Literal["open", "acknowledged", "over"]:
    """What became of it."""
    return "open" if alarm.get("open") else "acknowledged" if alarm.get("acknowledged") else "over"


def color_of(alarm: Mapping[str, Any]) -> str:
    """The severity's colour; grey once somebody has given a reason."""
    return QUIET if state_of(alarm) == "acknowledged" else COLORS.get(str(alarm["severity"]), ALARM)


def steps_of(alarm: Mapping[str, Any]) -> str:
    """The steps at which it held."""
    first, last = alarm["first_step"], alarm["last_step"]
    return f"{first}" if first == last else f"{first}–{last}"


def step_panels(height_inches: float, title: str, heights: Sequence[float], metrics: pl.DataFrame, alarms: Alarms) -> "tuple[Figure, list[Axes]]":
    """A figure over steps with panels of these heights (inches); with alarms it is as much higher as their tracks are, and bands lie under the curves."""
    found = _spans(alarms, condition_of)
    shown = _placed(found, *_ends(metrics), most=MOST_TRACKS)
    tracks = max((one.track + 1 for one in shown), default=0)
    drawn = canvas.figure(height_inches + TRACK_INCHES * tracks, title)
    if not shown:
        return drawn, canvas.panels(drawn, heights, x_label=STEP)
    *axes, strip = canvas.panels(drawn, [*heights, TRACK_INCHES * tracks], x_label=STEP)
    for panel in axes:
        for span in found:
            panel.axvspan(span.first, span.last, color=span.color, alpha=0.05 if span.color == QUIET else 0.1, linewidth=0, zorder=0)
    for one in shown:
        _bar(strip, one)
    _as_tracks(strip, {f"alarms\n(+{len(found) - len(shown)})" if len(shown) < len(found) else "alarms": tracks})
    strip.spines["left"].set_visible(False)
    return drawn, axes


def alarm_timeline(metrics: pl.DataFrame, alarms: Alarms, render: canvas.Render = canvas.png) -> bytes:
    """Every alarm of a run: rows by condition, a bar from the first to the last step at which it held, in the colour of its severity."""
    last = _ends(metrics)[1]
    if not alarms:
        return canvas.nothing_yet("Alarms", f"no alarm in {last:.0f} steps", render)
    found: dict[str, list[Placed]] = {}
    for condition in dict.fromkeys(condition_of(alarm) for alarm in sorted(alarms, key=lambda alarm: alarm["first_step"])):
        own = [alarm for alarm in alarms if condition_of(alarm) == condition]
        found[condition] = _placed(_spans(own, steps_of), 0, last, most=len(own))
    rows = {condition: max(one.track for one in bars) + 1 for condition, bars in found.items()}
    drawn = canvas.figure(1.05 + 0.3 * sum(rows.values()), "Alarms")
    (axes,) = canvas.panels(drawn, [1], x_label=STEP)
    base = 0
    for condition, bars in found.items():
        for one in bars:
            _bar(axes, one, below=base)
        base += rows[condition]
    _as_tracks(axes, rows)
    axes.grid(visible=True, axis="x", color=canvas.GRID, linewidth=0.8)
    axes.set_xlim(0, max(last, 1) + 0.5)
    canvas.whole_numbers(axes)
    return render(drawn)


# ------------------------------------------------------------------------------------------------------------- pieces


def _ends(metrics: pl.DataFrame) -> tuple[float, float]:
    """First and last step that the curves know; (0, 0) when they know none."""
    if "step" not in metrics.columns or metrics.is_empty():
        return 0.0, 0.0
    return float(metrics["step"].min()), float(metrics["step"].max())  # type: ignore[arg-type]  # an integer column that is not empty


def _spans(alarms: Alarms, words: Callable[[Mapping[str, Any]], str]) -> list[Span]:
    """The alarms as spans with these words, the earliest first."""
    made = []
    for alarm in alarms:
        state = state_of(alarm)
        told = words(alarm) if state == "over" else f"{words(alarm)} ({state})"
        made.append(Span(alarm["first_step"] - 0.5, alarm["last_step"] + 0.5, told, color_of(alarm), state == "open"))
    return sorted(made, key=lambda span: (span.first, span.last, span.words))


def _placed(found: Sequence[Span], first: float, last: float, *, most: int) -> list[Placed]:
    """Each span in the highest track that has room for it and its words, on an axis from `first` to `last`; what finds none in `most` is left out."""
    letter = LETTER_INCHES * 1.1 * max(last - first, 1) / PANEL_INCHES
    taken: list[list[tuple[float, float]]] = [[] for _ in range(most)]
    result = []
    for span in found:
        width = letter * (len(span.words) + 2)
        side: Literal["right", "left", "inside"] = "right" if span.last + width <= last else "left" if span.first - width >= first else "inside"
        left = span.first - width * (side == "left")
        right = max(span.last + width * (side == "right"), span.first + width * (side == "inside"))
        for track, others in enumerate(taken):
            if all(right <= start or left >= end for start, end in others):
                others.append((left, right))
                result.append(Placed(span, track, side))
                break
    return result


def _bar(axes: "Axes", one: Placed, *, below: int = 0) -> None:
    """A span with its words, `below` tracks further down; a full bar is open, an outline over or acknowledged."""
    span, row = one.span, -(one.track + below)
    fill = span.color if span.is_open else "white"
    axes.barh(row, span.last - span.first, left=span.first, height=0.7, color=fill, edgecolor=span.color, linewidth=1.2)
    x, align, offset = {"right": (span.last, "left", 4), "left": (span.first, "right", -4), "inside": (span.first, "left", 4)}[one.side]
    color = "white" if one.side == "inside" and span.is_open else span.color
    place = axes.annotate(span.words, (x, row), xytext=(offset, -0.5), textcoords="offset points", ha=align, va="center", annotation_clip=False)
    place.set(fontsize=8, color=color, fontweight="bold" if span.is_open else "normal")


def _as_tracks(axes: "Axes", rows: Mapping[str, int]) -> None:
    """Name → its number of tracks, from the top, as the y axis of bars."""
    base, places = 0, []
    for count in rows.values():
        places.append(-(base + (count - 1) / 2))
        base += count
    axes.set_yticks(places, list(rows), fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.set_ylim(0.5 - base, 0.5)
