"""The halts of a training, as its work folder and its result tell them."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.health.logged import halts, halts_record


def keep(work: Path, step: int, alarms: list[dict[str, Any]]) -> Path:
    place = work / "halted" / f"step-{step:06d}"
    place.mkdir(parents=True)
    (place / "alarms.json").write_text(json.dumps({"alarms": alarms}))
    return place / "alarms.json"


TREND = {"condition": "late_degeneration", "first_step": 3, "message": "it fell"}
LENGTH = {"condition": "runaway_length", "first_step": 5, "message": "it grew"}


def test_a_halt_is_of_the_step_that_ended_the_training_however_early_its_alarm_began(tmp_path: Path) -> None:
    keep(tmp_path, 12, [TREND, LENGTH])
    keep(tmp_path, 7, [TREND])
    assert [(halt.step, halt.alarms, halt.fault) for halt in halts(tmp_path)] == [(7, [TREND], None), (12, [TREND, LENGTH], None)]
    assert [halt.step for halt in halts(tmp_path, after=7)] == [12]
    assert halts(tmp_path, after=12) == []
    assert halts_record(tmp_path) == [
        {"step": 7, "conditions": ["late_degeneration"], "messages": ["it fell"]},
        {"step": 12, "conditions": ["late_degeneration", "runaway_length"], "messages": ["it fell", "it grew"]},
    ]


@pytest.mark.parametrize("content", ["", "[]", '{"alarms"', "{}", "\x80", '{"alarms": 5}', '{"alarms": ["x"]}', '{"alarms": [{"first_step": 3}]}'])
def test_alarms_that_cannot_be_read_are_named_and_cost_nothing_else(content: str, tmp_path: Path) -> None:
    keep(tmp_path, 12, [TREND])
    keep(tmp_path, 7, []).write_bytes(content.encode("latin-1"))
    altered, whole = halts(tmp_path)
    assert (altered.step, altered.alarms, whole.alarms) == (7, [], [TREND])
    assert altered.fault is not None
    assert altered.fault.startswith("why cannot be read: halted/step-000007/alarms.json was altered (")
    assert halts_record(tmp_path)[0] == {"step": 7, "conditions": [], "messages": [altered.fault]}


def test_a_folder_without_alarms_or_of_another_name_is_no_halt(tmp_path: Path) -> None:
    (tmp_path / "halted" / "step-000003").mkdir(parents=True)
    keep(tmp_path, 5, []).parent.rename(tmp_path / "halted" / "step-last")
    assert halts(tmp_path) == []
