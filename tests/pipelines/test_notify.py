"""Who is told of an alarm, and that nobody who does not listen can disturb a training."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from assets.grpo_checkpoint import notice
from assets.page import Notice
from grpo_core.config import HealthConfig, RunConfig
from grpo_core.health.measures import Found
from grpo_core.health.monitor import alarm_of
from pipelines.notify import notifier
from pipelines.processes import living_processes

ALARM = alarm_of("truncation", 7, Found("half of it was cut: ein Drittel, ½", {"truncated_fraction": 0.5}), HealthConfig())


def tell(where: str) -> None:
    notifier(replace(RunConfig(), health=HealthConfig(notify=where)))(notice(ALARM))


def warned(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("warning: health.notify ") and said.err.count("\n") == 1
    return said.err


def is_the_alarm(told: Any) -> bool:
    """Whether a person finds the words and a program the facts."""
    assert told["text"] == notice(ALARM).text
    return {name: told[name] for name in ("condition", "first_step", "severity", "message", "evidence", "remedy", "page")} == {
        "condition": "truncation", "first_step": 7, "severity": ALARM.severity, "message": ALARM.message, "evidence": {"truncated_fraction": 0.5},
        "remedy": ALARM.remedy, "page": ALARM.page,
    }  # fmt: skip


@pytest.mark.parametrize("where", ["", "  "])
def test_without_an_address_nobody_is_told(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    tell(where)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_a_command_gets_the_alarm_on_its_standard_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell(f"cat > '{tmp_path}/told.json' && echo done")
    assert is_the_alarm(json.loads((tmp_path / "told.json").read_text(encoding="utf-8")))
    assert capsys.readouterr() == ("", ""), "what it prints is its own business"


def test_a_command_need_not_read_what_it_gets(capsys: pytest.CaptureFixture[str]) -> None:
    notify = notifier(replace(RunConfig(), health=HealthConfig(notify="true")))
    notify(Notice("x" * 1_000_000))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo no such list >&2; exit 3", "it ended with status 3: no such list"),
        ("exit 3", "it ended with status 3\n"),
        ("no-such-program-anywhere", "it ended with status 127: "),
        ("kill -9 $$", "it ended with status -9"),
        ("printf '\\377' >&2; false", "it ended with status 1: "),
    ],
)
def test_a_command_that_fails_is_a_warning(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    tell(command)
    warning = warned(capsys)
    assert f"({command.split()[0]}{' ...' * (' ' in command)}) could not be told: " in warning
    assert said in warning


def test_what_a_command_leaves_in_the_background_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    tell(f"sleep 60 & echo $! > {tmp_path}/pid; exit 0")
    assert time.monotonic() - started < 8
    assert capsys.readouterr() == ("", "")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_of_much_that_a_command_complains_a_line_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    tell("for i in $(seq 200); do echo no such list >&2; done; exit 1")
    assert len(warned(capsys)) < 400


def test_a_command_that_hangs_is_given_up_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("pipelines.notify.LONGEST_SECONDS", 0.5)
    started = time.monotonic()
    tell(f"sh -c 'echo $$ > {tmp_path}/pid; sleep 60; true'; true")
    assert time.monotonic() - started < 20
    assert warned(capsys) == "warning: health.notify (sh ...) could not be told: it timed out after 0.5 seconds\n"
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while child in {process.pid for process in living_processes()} and time.monotonic() < deadline:
        time.sleep(0.05)
    assert child not in {process.pid for process in living_processes()}


# -------------------------------------------------------------------------------------------------------------------- addresses


@dataclass
class Listener:
    """A server on this machine: what it was sent, and how it answers."""

    server: HTTPServer
    answer: bytes = b"HTTP/1.0 200 OK\r\n\r\n"
    waits: threading.Event = field(default_factory=threading.Event)
    """It answers once this is set."""
    requests: list[tuple[str, str, str, Any]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/alarms?run=1"


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setenv("no_proxy", "*")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.requests.append((self.command, self.path, self.headers["Content-Type"], body))
            found.waits.wait(10)
            self.wfile.write(found.answer)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Listener(server)
        found.waits.set()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield found
        finally:
            found.waits.set()
            server.shutdown()
            thread.join()


def test_an_answer_is_not_waited_for_beyond_its_status(listener: Listener, capsys: pytest.CaptureFixture[str]) -> None:
    listener.answer = b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\nhalf"
    tell(listener.address)
    assert capsys.readouterr() == ("", "")


def test_an_address_gets_the_alarm_as_a_post(listener: Listener, capsys: pytest.CaptureFixture[str]) -> None:
    tell(f"  {listener.address}  ")
    ((method, path, kind, body),) = listener.requests
    assert (method, path, kind) == ("POST", "/alarms?run=1", "application/json")
    assert is_the_alarm(body)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.0 500 Down\r\n\r\n", "HTTP Error 500"),
        (b"what?\r\n\r\n", "what?"),  # no HTTP at all
        (b"", ""),  # it hangs up
    ],
)
def test_a_server_that_does_not_take_it_is_a_warning(answer: bytes, said: str, listener: Listener, capsys: pytest.CaptureFixture[str]) -> None:
    listener.answer = answer
    tell(listener.address)
    warning = warned(capsys)
    assert f"({listener.address.partition('/alarms')[0]}/...) could not be told: " in warning
    assert said in warning


def test_a_server_that_does_not_answer_is_given_up(listener: Listener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("pipelines.notify.LONGEST_SECONDS", 0.3)
    listener.waits.clear()
    listener.answer = b""
    started = time.monotonic()
    tell(listener.address)
    assert time.monotonic() - started < 5
    assert "timed out" in warned(capsys)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://127.0.0.1:9/services/SECRET?token=SECRET", "http://127.0.0.1:9/..."),
        ("https://me:SECRET@127.0.0.1:9", "https://127.0.0.1:9/..."),
        ("http://127.0.0.1:port/", "http://127.0.0.1:port/..."),
        ("http://", "http:///..."),
        ("http://a b/", "http://a b/..."),
        ("http://[::1/", "http://[::1/..."),
    ],
)
def test_an_address_that_leads_nowhere_is_a_warning_without_its_secrets(
    address: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    tell(address)
    warning = warned(capsys)
    assert f"({shown}) could not be told: " in warning
    assert "SECRET" not in warning
