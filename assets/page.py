"""What a noun's page is made of, in words of our own: pipelines turns them into whatever the UI shows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl


@dataclass(frozen=True, slots=True)
class Table:
    """A small table to read inline; long cells are cut."""

    frame: pl.DataFrame
    max_rows: int = 10


@dataclass(frozen=True, slots=True)
class Markdown:
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture (PNG bytes)."""

    png: bytes


Value = int | float | str | Path | Table | Markdown | Chart
Metadata = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Progress:
    """What a long stage reports while it works."""

    step: int
    total: int
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Newest figures, by metric name."""
    checkpointed: bool = False
    """A checkpoint now covers every step up to this one."""


ProgressCallback = Callable[[Progress], None]
