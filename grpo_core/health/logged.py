"""The alarms and halts of a training, as its work folder and the files that it left have them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.health.monitor import Monitor, diagnose
from grpo_core.work_folder import WorkFolder, halted_folders, step_of


@dataclass(frozen=True, slots=True)
class Halt:
    """An end that the monitor put to a training."""

    step: int
    alarms: Sequence[Mapping[str, Any]]
    """Those that asked for it; none where their file cannot be read."""
    fault: str | None = None
    """Why they cannot be read."""


def alarms_so_far(folder: Path, config: RunConfig, told: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The alarms of the work folder's log as they are now, those from before a resume too; after them what was told of a step that it no longer holds."""
    work = WorkFolder(folder)
    seen = [*diagnose(work.lines(), Monitor.of(config)).alarms, *diagnose(work.clock_lines(), Monitor.of_clock(config)).alarms]
    known = {(alarm.condition, alarm.first_step) for alarm in seen}
    return [*map(asdict, seen), *(alarm for alarm in told if (alarm["condition"], alarm["first_step"]) not in known)]


def halts(folder: Path, after: int = -1) -> list[Halt]:
    """The halts of the training in this work folder at steps later than `after`, oldest step first."""
    return [_halt(kept) for kept in halted_folders(folder) if step_of(kept) > after]


def halts_record(folder: Path) -> list[dict[str, Any]]:
    """All halts of the work folder as the file of the clock's alarms keeps them, oldest step first.

    Each is `{"step": int, "conditions": list[str], "messages": list[str]}`: the step that ended the training, the conditions that asked for it and a
    sentence of each. (Where its alarms could not be read there are no conditions, and one message says so.)
    """
    return [
        {
            "step": halt.step,
            "conditions": [alarm["condition"] for alarm in halt.alarms],
            "messages": [alarm["message"] for alarm in halt.alarms] if halt.fault is None else [halt.fault],
        }
        for halt in halts(folder)
    ]


def _halt(kept: Path) -> Halt:
    """The halt that was kept in a folder of `halted/`; its step is in the folder's name, as an alarm may have begun long before."""
    path = kept / "alarms.json"
    try:
        alarms = json.loads(path.read_text(encoding="utf-8"))["alarms"]
        for alarm in alarms:
            _ = alarm["condition"], alarm["first_step"], alarm["message"]
        return Halt(step_of(kept), alarms)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Halt(step_of(kept), [], f"why cannot be read: {path.relative_to(kept.parent.parent)} was altered ({error})")
