"""The alarms that a training left behind, and the halts that came before it, as pages, checks and reports read them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NOT_RECORDED = "not recorded"
"""What stands everywhere for a result without a file of alarms: nobody watched, which is not the same as well."""


def read_alarms(path: Path) -> list[dict[str, Any]] | None:
    """The alarms in the file that the training wrote; None where it wrote no file, as older ones did not."""
    found: list[dict[str, Any]] | None = json.loads(path.read_text(encoding="utf-8"))["alarms"] if path.is_file() else None
    return found


def open_conditions(alarms: Sequence[Mapping[str, Any]]) -> list[str]:
    """The conditions of those that are open."""
    return list(dict.fromkeys(alarm["condition"] for alarm in alarms if alarm["open"]))


def halts_before(path: Path) -> str:
    """What to say of halts that came before a result, from the file of the clock's alarms beside it; empty where none did.

    They stand there as `grpo_core.health.logged.halts_record` writes them, and not at all in a file from before they were written.
    """
    halts: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")).get("halts", []) if path.is_file() else []
    each = [f"step {halt['step']} ({', '.join(halt['conditions']) or 'why cannot be read'})" for halt in halts]
    return f"halted before, at {', '.join(each)}" if each else ""
