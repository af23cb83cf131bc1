"""What came out when a run was made again, beside what was recorded, and what explains a difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from pipelines.records.files import Record
from pipelines.staleness import differences

BITS = ("python", "libraries", "cpu", "cpu_capability", "threads", "determinism", "device")
"""Fields of a record on which the last bits of a result depend."""
CAUSES = (*BITS, "platform", "num_cpus")
"""Fields that could explain a difference."""


@dataclass(frozen=True, slots=True)
class Row:
    """One output of one stage."""

    stage: str
    path: str
    recorded: str | None
    reproduced: str | None
    """None when it was not made."""

    @property
    def identical(self) -> bool:
        return self.recorded == self.reproduced


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What came out."""

    rows: tuple[Row, ...]
    """Every output of the stages that were run again, in order."""
    stages: tuple[str, ...]
    """The stages that were to be run again."""
    unrecorded: tuple[str, ...]
    """Stages that the run has no record of."""
    kept: Path | None
    """The worktree, where it was kept."""

    @property
    def identical(self) -> bool:
        return all(row.identical for row in self.rows) and {row.stage for row in self.rows} == set(self.stages)

    def verdict(self) -> str:
        """The result in a line."""
        if self.identical:
            left_out = f" that is recorded ({', '.join(self.unrecorded)} is not)" if self.unrecorded else ""
            return f"identical: every output of every stage{left_out}"
        return f"differs: {next(row.stage for row in self.rows if not row.identical)} (the stages after it were not run)"


def table(found: Reproduction) -> Table:
    """A line an output; stages that were not reached have one line."""
    shown = Table("stage", "output", "recorded", "reproduced", "identical", box=None, pad_edge=False)
    for stage in found.stages:
        rows = [row for row in found.rows if row.stage == stage]
        for row in rows:
            shown.add_row(stage if row is rows[0] else "", row.path, short(row.recorded), short(row.reproduced), "yes" if row.identical else "NO")
        if not rows:
            shown.add_row(stage, "(not run)", "", "", "")
    return shown


def explanation(record: Record, again: Record, rows: list[Row], unhashed: Sequence[str] = ()) -> list[str]:
    """Which outputs differ, and which of what they were made from; `unhashed` are inputs whose bytes nothing recorded."""
    lines = []
    for row in rows:
        if not row.identical:
            lines += [f"  {row.path}: recorded {short(row.recorded)}, reproduced {short(row.reproduced)}"]
            lines += [f"    {path} differs" for path in differing(record["files"], again["files"]) if path.startswith(f"{row.path}/")]
    causes = [f"{path} was {short(record['deps'].get(path))}, is {short(again['deps'].get(path))}" for path in differing(record["deps"], again["deps"])]
    causes += environment_changes(record, again, CAUSES)
    if record["snapshot"] != again["snapshot"]:
        causes.append(f"snapshot was {short(record['snapshot'])}, is {short(again['snapshot'])}")
    if causes:
        return [*lines, "  what differs in its inputs:", *(f"    {cause}" for cause in causes)]
    if unhashed:
        could = f"{', '.join(unhashed)} could have changed since (nothing recorded its bytes), or the computation itself is not deterministic"
        return [*lines, f"  nothing differs in its inputs as far as they are recorded: {could}"]
    return [*lines, "  nothing differs in its inputs (data, code, libraries, threads, processor, switches): the computation itself is not deterministic"]


def environment_changes(recorded: Mapping[str, Any], now: Mapping[str, Any], fields: tuple[str, ...]) -> list[str]:
    """What differs of `fields`, as far as both know it."""

    def known(record: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field in fields:
            value, counterpart = record.get(field), other.get(field)
            if isinstance(value, Mapping) and isinstance(counterpart, Mapping):
                found[field] = {key: value[key] for key in value if key in counterpart}
            elif value is not None and counterpart is not None:
                found[field] = value
        return found

    return [f"{key} was {was}, is {here}" for key, was, here in differences(known(recorded, now), known(now, recorded))]


def differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Keys whose values differ, or that only one has."""
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


def short(hash_value: str | None) -> str:
    """Enough of a hash for people."""
    return "nothing" if hash_value is None else hash_value[:12]


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
