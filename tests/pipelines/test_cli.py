"""The `grpo` program: help, clear refusals, what it prints, and servers that end with it."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from assets.paths import Paths
from grpo_core.config import PromptsConfig, RunConfig
from grpo_core.prompts import wrapped
from pipelines.cli import main
from pipelines.console import visible
from pipelines.summary import evidence, health, next_steps, places
from pipelines.ui import Server, ServerError, log_path, running, servers, wait_for_end
from tests.pipelines.checkouts import ROOT
from tests.pipelines.toy_project import NUMBERS

COMMANDS = sorted(main.commands)


def grpo(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`grpo` of the checkout at `root`."""
    return subprocess.run([sys.executable, "-m", "pipelines.cli", *arguments], cwd=root, capture_output=True, text=True, check=False)


def shown(*renderables: object) -> str:
    stream = io.StringIO()
    Console(file=stream, width=200).print(*renderables)
    return stream.getvalue()


def test_these_are_all_commands() -> None:
    assert COMMANDS == [
        "ablate", "audit-rewards", "compare", "doctor", "explore", "preset", "prune", "replay", "report", "reproduce", "rescore", "review", "run", "sample",
        "status", "sync", "trace", "ui", "verify",
    ]  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_every_option_says_what_it_does(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert main.commands[name].get_short_help_str(limit=200) in CliRunner().invoke(main, ["--help"], terminal_width=200).output
    assert all(option.help for option in main.commands[name].params if isinstance(option, click.Option))


@pytest.mark.parametrize("arguments", [["rnu"], ["run", "--form-grpo"], ["ui", "--port", "0"], ["sample", "data"], ["sample", "no/such/folder", "1+1="]])
def test_a_usage_error_exits_with_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "Error: " in result.output


@pytest.mark.parametrize("command", [["run"], ["doctor"], ["status"], ["ui"], ["sample", ".", "1+1="]])
def test_bad_params_are_one_clear_line_before_anything_is_spent(checkout: Path, command: list[str]) -> None:
    path = checkout / "params.yaml"
    path.write_text(re.sub(r"(?m)^  group_size: \d+", "  group_size: 1", path.read_text(encoding="utf-8")), encoding="utf-8")
    result = grpo(checkout, *command)
    expected = "Error: grpo.group_size must be at least 2: an advantage compares a completion with others of its group, got 1\n"
    assert (result.returncode, result.stdout, result.stderr) == (1, "", expected)
    assert not (checkout / "data").exists()


def test_a_misspelt_experiment_is_refused_by_name(checkout: Path) -> None:
    result = grpo(checkout, "run", "--experiment", "defualt")
    assert (result.returncode, result.stderr.startswith("Error: unknown experiment 'defualt': did you mean 'default'?")) == (1, True)


def test_outside_of_a_checkout_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["doctor"])
    assert (result.exit_code, "no params.yaml and dvc.yaml in" in result.output) == (1, True)


def test_the_code_of_one_checkout_never_runs_on_the_data_of_another(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert f"runs the code in {ROOT}, but the current folder belongs to {checkout}" in result.output


def test_the_evidence_is_a_table_with_intervals() -> None:
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown(evidence(NUMBERS, "default")).splitlines() if line.startswith("│")]
    assert rows == [
        ["greedy accuracy", "0.430 [0.390, 0.474]", "0.990 [0.977, 0.996]", "+0.560 [+0.515, +0.604]"],
        ["mean@4, temperature 1", "0.450", "0.960", "+0.510 [+0.480, +0.540]"],
        ["pass@2", "0.800", "1.000", "+0.200"],
        ["mean length", "19.2", "34.5", "+15.2"],
        ["KL, nats a token", "", "0.0512", ""],
        ["KL, nats a completion", "", "1.766", ""],
    ]


def test_the_places_are_those_where_files_lie() -> None:
    text = shown(places(Paths(ROOT, "other")))
    assert "data/grpo_checkpoint/other" in text
    assert "data/heldout_eval/other/summary.json" in text


def test_open_alarms_stand_beside_the_evidence(tmp_path: Path) -> None:
    paths = Paths(tmp_path, "other")
    assert shown(health(paths)).strip() == "Health: not recorded"
    paths.alarms.parent.mkdir(parents=True)
    paths.alarms.write_text('{"alarms": []}')
    assert shown(health(paths)).strip() == "Health: no alarm is open"
    paths.clock_alarms.parent.mkdir(parents=True)
    paths.clock_alarms.write_text('{"halts": [{"step": 7, "conditions": ["truncation"]}, {"step": 9, "conditions": []}]}')
    before = "Health: no alarm is open; training was halted before, at step 7 (truncation), step 9 (why cannot be read)"
    assert " ".join(shown(health(paths)).split()) == before
    paths.clock_alarms.unlink()
    alarms = [{"condition": "truncation", "open": True}, {"condition": "stall", "open": False}]
    paths.alarms.write_text(json.dumps({"alarms": alarms}))
    assert shown(health(paths)).strip() == "Health: truncation at the end of training; what was seen and what to do: grpo report --experiment other"


def test_next_steps_say_how_to_talk_to_both_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(ROOT / ".venv"))
    text = shown(next_steps(Paths(ROOT), RunConfig()))
    assert "sample data/reference_checkpoint '335+194='" in text
    assert "sample data/grpo_checkpoint/default '335+194='" in text
    assert "activate" not in text
    monkeypatch.delenv("VIRTUAL_ENV")
    assert "source .venv/bin/activate" in shown(next_steps(Paths(ROOT), RunConfig()))


def test_a_prompt_is_wrapped_as_training_prompts_are() -> None:
    assert wrapped("2+2", PromptsConfig(template="Q: {prompt}\nA:")) == ("Q: 2+2\nA:", None)
    chat = PromptsConfig(chat=True, system_prompt="Be brief.", template="{prompt}?")
    assert wrapped("2+2", chat) == ("2+2?", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}])


def test_a_model_cannot_steer_the_terminal() -> None:
    assert visible("<think>\tä\n1</think>") == "<think>\tä\n1</think>"
    assert visible("a\x1b]0;title\x07\x1b[2Jb\rc\x9bd") == "a\\x1b]0;title\\x07\\x1b[2Jb\\rc\\x9bd"


@pytest.mark.parametrize("option", ["--port", "--mlflow-port"])
def test_a_taken_port_names_the_option_that_chooses_another(checkout: Path, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = {"--port": str(free_port()), option: str(port)}
        result = grpo(checkout, "ui", *[part for pair in ports.items() for part in pair])
    assert (result.returncode, result.stdout) == (1, "")
    assert (
        f"port {port} for {'Dagster' if option == '--port' else 'MLflow'} cannot be used (Address already in use): choose another with {option}"
        in result.stderr
    )


def test_a_tracking_server_elsewhere_needs_none_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [server.name for server in servers(ROOT, 3000, 5000)] == ["Dagster", "MLflow"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example.org")
    assert [server.name for server in servers(ROOT, 3000, 5000)] == ["Dagster"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# A server with a child that ignores SIGINT, as a stubborn worker would; it writes the child's id.
WITH_CHILD = """
import http.server, pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(120)"])
pathlib.Path(sys.argv[2]).write_text(str(child.pid))
http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind="127.0.0.1")
"""


SHORT_LIVED = """
import http.server, os, sys, threading
threading.Timer(1.0, lambda: os._exit(4)).start()
http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind="127.0.0.1")
"""


def is_running(pid: int) -> bool:
    """A zombie that nobody waits for does not run."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_servers_answer_inside_the_block_and_end_with_all_their_children_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.ui.GRACE_SECONDS", 0.5)
    port, child = free_port(), tmp_path / "child"
    server = Server("Test", port, "--port", "/", (sys.executable, "-c", WITH_CHILD, str(port), str(child)))
    with running(tmp_path, [server]) as started:
        pid = int(child.read_text(encoding="utf-8"))
        assert is_running(pid)
        assert started[server].poll() is None
    assert not is_running(pid)
    assert started[server].poll() is not None


def test_a_server_that_ends_by_itself_shows_its_last_words(tmp_path: Path) -> None:
    server = Server("Test", free_port(), "--port", "/", (sys.executable, "-c", "print('no database'); raise SystemExit(3)"))
    with pytest.raises(ServerError, match=r"Test ended with status 3; the end of .*test\.log:\nno database"), running(tmp_path, [server]):
        pass
    assert log_path(tmp_path, server).read_text(encoding="utf-8") == "no database\n"


def test_waiting_ends_when_a_server_does(tmp_path: Path) -> None:
    port = free_port()
    server = Server("Test", port, "--port", "/", (sys.executable, "-c", SHORT_LIVED, str(port)))
    with running(tmp_path, [server]) as started, pytest.raises(ServerError, match="Test ended with status 4"):
        wait_for_end(tmp_path, started)


@pytest.mark.slow
def test_both_uis_open_and_close(tmp_path: Path) -> None:
    """The real servers on this checkout: addresses are printed once both answer, and Ctrl-C leaves nothing behind."""
    ports = [free_port(), free_port()]
    command = [sys.executable, "-m", "pipelines.cli", "ui", "--port", str(ports[0]), "--mlflow-port", str(ports[1])]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        addresses = [process.stdout.readline().split()[-1] for _ in ports]
        assert addresses == [f"http://127.0.0.1:{port}" for port in ports]
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    time.sleep(0.5)
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert process.returncode == 0
