"""A comparison of two runs as tables for people."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipelines.console import visible
from pipelines.lineage.compare import Change, Comparison
from pipelines.lineage.effects import Effect
from pipelines.lineage.trace_tables import cell, spaced

METHOD = (
    "a difference is B − A with its 95 % interval: bootstrap over groups (reward, length), steps (KL, entropy) or prompts, "
    "in pairs where both runs have the same ones; an accuracy's own interval is Wilson's"
)
NOT_SEEDS = "An interval says how sure the difference between these two runs is, not how much another seed would have changed it."


def shown(found: Comparison) -> Group:
    """What changed, then what it did."""
    parts: list[RenderableType] = [Text(f"A  {found.a['label']}\nB  {found.b['label']}"), _changes(found)]
    if found.code_diff:
        parts.append(Text(f"Code, from A to B\n{visible(found.code_diff)}"))
    parts += [_effects(found), Text("\n".join([NOT_SEEDS, *map(visible, found.notes)]))]
    return Group(*spaced(parts))


def _changes(found: Comparison) -> RenderableType:
    if not found.changes:
        return Text("Nothing changed" + (", and both policies hold the same weights" if found.same_weights else ""))
    table = Table(title="What changed" + (" (both policies hold the same weights)" if found.same_weights else ""), title_justify="left", show_edge=False)
    for name in ("", "what", "A", "B"):
        table.add_column(name, overflow="fold")
    last = None
    for change in found.changes:
        table.add_row("" if change.kind == last else change.kind, Text(visible(change.what)), _value(change, change.a), _value(change, change.b))
        last = change.kind
    return table


def _effects(found: Comparison) -> RenderableType:
    if not found.effects:
        return Text("What it did: nothing of both runs is on this machine to compare")
    table = Table(
        title=f"What it did; of training the last {found.window} steps, or all where there are fewer ({METHOD}); bold: the interval excludes 0",
        title_justify="left",
        show_edge=False,
        pad_edge=False,
    )
    for name in ("", "A", "B", "B − A", "over"):
        table.add_column(name, justify="left" if name in ("", "over") else "right")
    for effect in found.effects:
        table.add_row(effect.measure, *_own(effect), _difference(effect), effect.over)
    return table


def _own(effect: Effect) -> Sequence[str]:
    sides = ((effect.a, effect.a_low, effect.a_high), (effect.b, effect.b_low, effect.b_high))
    return [_interval(value, low, high, most_places=3 if low is not None else 4) for value, low, high in sides]


def _difference(effect: Effect) -> Text:
    """The difference and its interval; bold when the interval leaves zero out."""
    if effect.difference is None:
        return Text("–")
    clear = effect.low is not None and effect.high is not None and (effect.low > 0 or effect.high < 0)
    return Text(_interval(effect.difference, effect.low, effect.high, sign="+"), style="bold" if clear else "")


def _interval(value: float | None, low: float | None, high: float | None, *, sign: str = "", most_places: int = 4) -> str:
    """Value and interval with as many places as the largest of the three needs for three digits that count, and never more than `most_places`."""
    if value is None:
        return "–"
    numbers = [value] if low is None or high is None else [value, low, high]
    largest = max(map(abs, numbers))
    places = 1 if largest >= 10 else 3 if largest >= 0.1 else most_places
    first, *ends = [f"{round(number, places) + 0.0:{sign}.{places}f}" for number in numbers]  # adding zero turns -0.0 into 0.0
    return f"{first} [{', '.join(ends)}]" if ends else first


def _value(change: Change, value: object) -> Text:
    if value is None:
        return Text("–")
    digest = isinstance(value, str) and change.kind in ("code", "data", "weights") and len(value) > 16
    return Text(str(value)[:12]) if digest else cell(repr(value) if value == "" else value)
