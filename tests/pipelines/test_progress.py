"""What a person, Dagster and a notifier hear while a stage works."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TextIO

import pytest
from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, DAGSTER_PIPES_MESSAGES_ENV_VAR, encode_param

from assets.page import Notice, Progress, ProgressCallback
from pipelines.params import ROOT
from pipelines.progress import bar, lines, reporting

TROUBLE = Notice("alarm at step 3, truncation: half of it\n  what to do: more", {"condition": "truncation"})
SHOWING: list[Callable[[str, TextIO], AbstractContextManager[ProgressCallback]]] = [bar, lines]


@pytest.mark.parametrize("showing", SHOWING)
def test_a_notice_is_lines_of_its_own_between_what_progress_shows(showing: Callable[[str, TextIO], AbstractContextManager[ProgressCallback]]) -> None:
    stream = io.StringIO()
    with showing("noun", stream) as show:
        show(Progress(2, 6, {"loss": 1.0}))
        show(Progress(3, 6, notices=[TROUBLE, Notice("and another")]))
        show(Progress(6, 6, {"loss": 0.5}))
    shown = stream.getvalue().replace("\r", "\n").splitlines()
    place = shown.index("alarm at step 3, truncation: half of it")
    assert shown[place + 1] == "  what to do: more"
    assert "and another" in shown[place + 2 :]
    assert any("6/6" in line for line in shown[place + 2 :]), "progress goes on after it"
    assert not any("3/6" in line for line in shown), "it is no step: the step may not be kept"


@pytest.mark.parametrize("showing", SHOWING)
def test_a_notice_cannot_steer_the_terminal(showing: Callable[[str, TextIO], AbstractContextManager[ProgressCallback]]) -> None:
    stream = io.StringIO()
    with showing("noun", stream) as show:
        show(Progress(1, 6, notices=[Notice("a model says \x1b[2J\x07")]))
    assert "a model says \\x1b[2J\\x07" in stream.getvalue()


def test_a_notice_is_shown_at_once_whatever_a_log_has_had_lately() -> None:
    stream = io.StringIO()
    with lines("noun", stream, now=lambda: 0.0) as show:
        for step in range(1, 5):
            show(Progress(step, 6, notices=[Notice(f"trouble {step}")]))
    assert stream.getvalue() == "".join(f"trouble {step}\n" for step in range(1, 5))


def test_whoever_is_to_be_notified_hears_of_notices_and_of_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    recorded: list[Progress] = []
    told: list[Notice] = []
    with reporting("noun", recorded.append, told.append) as report:
        report(Progress(1, 6))
        report(Progress(2, 6, notices=[TROUBLE]))
        report(Progress(2, 6, checkpointed=True))
    assert told == [TROUBLE]
    assert [(progress.step, len(progress.notices)) for progress in recorded] == [(1, 0), (2, 1), (2, 0)]
    assert "alarm at step 3" in capsys.readouterr().err
    with reporting("noun", recorded.append) as report:
        report(Progress(2, 6, notices=[TROUBLE]))


REPORT = """
from assets.page import Notice, Progress
from pipelines.progress import dagster_messages
with dagster_messages() as send:
    send(Progress(3, 60, {"loss": 0.5}))
    send(Progress(4, 60, {"loss": 0.5}, notices=[Notice("first", {"a": 1}), Notice("second")]))
    send(Progress(4, 60))
"""


def test_dagster_gets_each_notice_as_a_message_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "context").write_text(json.dumps({"asset_keys": ["noun"], "run_id": "r", "retry_number": 0, "extras": {}}), encoding="utf-8")
    pipes = {
        DAGSTER_PIPES_CONTEXT_ENV_VAR: encode_param({"path": str(tmp_path / "context")}),
        DAGSTER_PIPES_MESSAGES_ENV_VAR: encode_param({"path": str(tmp_path / "messages")}),
    }
    result = subprocess.run([sys.executable, "-c", REPORT], cwd=ROOT, env={**os.environ, **pipes}, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    sent = [json.loads(line) for line in (tmp_path / "messages").read_text(encoding="utf-8").splitlines()]
    payloads = [message["params"]["payload"] for message in sent if message["method"] == "report_custom_message"]
    assert [payload["kind"] for payload in payloads] == ["progress", "notice", "notice", "progress"]
    assert payloads[1:3] == [{"kind": "notice", "step": 4, "text": "first"}, {"kind": "notice", "step": 4, "text": "second"}]
