"""The alarms of a training that has not ended, as its work folder has them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.health.monitor import Monitor, diagnose
from grpo_core.work_folder import WorkFolder


def alarms_so_far(folder: Path, config: RunConfig, told: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The alarms of the work folder's log as they are now, those from before a resume too; after them what was told of a step that it no longer holds."""
    work = WorkFolder(folder)
    seen = [*diagnose(work.lines(), Monitor.of(config)).alarms, *diagnose(work.clock_lines(), Monitor.of_clock(config)).alarms]
    known = {(alarm.condition, alarm.first_step) for alarm in seen}
    return [*map(asdict, seen), *(alarm for alarm in told if (alarm["condition"], alarm["first_step"]) not in known)]


def halts(folder: Path, after: int) -> list[Mapping[str, Any]]:
    """The alarms that ended the training in this work folder, at steps `after` which it has not come since."""
    kept = sorted((folder / "halted").glob("step-*/alarms.json"))
    alarms = [alarm for path in kept for alarm in json.loads(path.read_text(encoding="utf-8"))["alarms"]]
    return [alarm for alarm in alarms if alarm["first_step"] > after]
