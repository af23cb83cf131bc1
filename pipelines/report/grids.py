"""Tables and values of a report as text to read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl


@dataclass(frozen=True, slots=True)
class Grid:
    """A table to read; columns of numbers stand to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[str] = frozenset()


def grid_of(frame: pl.DataFrame, headings: Mapping[str, str], *to_the_right: str) -> Grid:
    """The frame to read under its columns' names, or `headings` in their place; columns of numbers stand to the right, and those that are named."""
    names = [headings.get(name, name.replace("_", " ")) for name in frame.columns]
    numbers = frozenset(name for name, kind in zip(names, frame.dtypes, strict=True) if kind.is_numeric())
    return Grid(names, [[number_text(value) for value in row] for row in frame.iter_rows()], numbers | set(to_the_right))


def numbers_text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {number_text(value)}" for name, value in values.items())


def number_text(value: Any) -> str:
    match value:
        case None:
            return "–"
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.4g}"
    return setting_text(value)


def setting_text(value: Any) -> str:
    """A setting as params.yaml would say it."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)
