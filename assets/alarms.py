"""The alarms that a training left behind, as pages, checks and reports read them."""

import json
from pathlib import Path
from typing import Any


def read_alarms(path: Path) -> list[dict[str, Any]]:
    """The alarms in the file that the training wrote; none where it wrote no file, as older ones did not."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["alarms"] if path.is_file() else []
    return found


def open_conditions(path: Path) -> list[str]:
    """The conditions of those that are open."""
    return list(dict.fromkeys(alarm["condition"] for alarm in read_alarms(path) if alarm["open"]))
