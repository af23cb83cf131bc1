"""What a noun's page is made of, in words of our own: pipelines turns them into whatever the UI shows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
class Notice:
    """Something that a person should hear of while a stage works."""

    text: str
    """What is wrong and what to do, in lines of one idea each."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs, in JSON's types."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a long stage reports while it works."""

    step: int
    total: int
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Newest figures, by metric name."""
    checkpointed: bool = False
    """A checkpoint now covers every step up to this one."""
    notices: Sequence[Notice] = ()


ProgressCallback = Callable[[Progress], None]
