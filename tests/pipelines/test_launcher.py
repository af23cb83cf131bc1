"""A stage in a process group of its own: heard while it runs, stopped as a whole, quoted when it fails."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import pytest

from pipelines import processes
from pipelines.launcher import DVC_CHATTER, error_text, observed, repro_command, run_stage
from pipelines.params import ROOT
from pipelines.processes import TERMINAL, Group, living_processes, terminal_for_stages

FAMILY = """
import os, signal, subprocess, sys, time
log = open(sys.argv[1], "a", buffering=1)
depth, polite = int(sys.argv[2]), sys.argv[3] == "polite"
def heard(number, frame):
    log.write(f"{depth} {signal.Signals(number).name}\\n")
    if polite:
        time.sleep(1)
        sys.exit(130)
signal.signal(signal.SIGINT, heard)
signal.signal(signal.SIGTERM, heard)
if depth < 3:
    # The youngest leaves the group, as torchrun's ranks do.
    subprocess.Popen([sys.executable, *sys.argv[:2], str(depth + 1), sys.argv[3]], start_new_session=depth == 2)
log.write(f"{depth} pid {os.getpid()}\\n")
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def family(tmp_path: Path) -> Path:
    """A program that starts a child and a grandchild (`family.py LOG 1 polite|stubborn`); all log their signals."""
    (tmp_path / "family.py").write_text(FAMILY, encoding="utf-8")
    (tmp_path / "log").touch()
    return tmp_path


def command(folder: Path, manner: str) -> list[str]:
    return [sys.executable, str(folder / "family.py"), str(folder / "log"), "1", manner]


def wait_for_family(folder: Path) -> set[int]:
    """The three process numbers, once all of them listen for signals."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = re.findall(r"pid (\d+)", (folder / "log").read_text())
        if len(found) == 3:
            return set(map(int, found))
        time.sleep(0.05)
    raise AssertionError("the family did not come up")


def alive(pids: set[int]) -> set[int]:
    return pids & {process.pid for process in living_processes()}


def test_a_polite_family_hears_only_sigint_and_is_gone(family: Path) -> None:
    group = Group(command(family, "polite"), cwd=family, env=os.environ)
    pids = wait_for_family(family)
    assert alive(pids) == pids
    started = time.monotonic()
    group.stop(grace=30)
    assert time.monotonic() - started < 10
    assert alive(pids) == set()
    group.close()
    heard = re.findall(r"(\d) (SIG\w+)", (family / "log").read_text())
    assert sorted(heard) == [("1", "SIGINT"), ("2", "SIGINT"), ("3", "SIGINT")]


def test_a_stubborn_family_hears_sigint_then_sigterm_and_is_killed(family: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOPPING", ((signal.SIGINT, None), (signal.SIGTERM, 0.5), (signal.SIGKILL, 10.0)))
    group = Group(command(family, "stubborn"), cwd=family, env=os.environ)
    pids = wait_for_family(family)
    group.stop(grace=0.5)
    assert alive(pids) == set()
    group.close()
    for depth in "123":
        assert re.findall(rf"^{depth} (SIG\w+)", (family / "log").read_text(), re.MULTILINE) == ["SIGINT", "SIGTERM"]


def test_killing_the_launcher_outright_ends_the_command(family: Path) -> None:
    program = "import sys, os, time; from pathlib import Path; from pipelines.processes import Group; Group(sys.argv[1:], Path(), os.environ); time.sleep(60)"
    launcher = subprocess.Popen([sys.executable, "-c", program, *command(family, "polite")], cwd=ROOT)
    wait_for_family(family)
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 10
    while "1 SIGTERM" not in (family / "log").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "1 SIGTERM" in (family / "log").read_text()
    for pid in re.findall(r"pid (\d+)", (family / "log").read_text()):
        if alive({int(pid)}):
            os.kill(int(pid), signal.SIGKILL)


def test_stderr_is_passed_on_and_remembered_as_a_person_sees_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = r"import sys; sys.stderr.write('10%\r50%\r\x1b[31m100%\x1b[0m\nlast words'); print('Updating lock file x'); print('kept')"
    group = Group([sys.executable, "-c", program], cwd=tmp_path, env=os.environ, dropped=DVC_CHATTER)
    while group.poll() is None:
        time.sleep(0.02)
    assert group.close() == ["100%", "last words"]
    shown = capfd.readouterr()
    assert shown.err == "10%\r50%\r\x1b[31m100%\x1b[0m\nlast words"
    assert shown.out == "kept\n"


@pytest.mark.parametrize(("columns", "expected"), [(None, "False"), ("93", "True 93")])
def test_a_stage_gets_a_terminal_when_a_person_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str | None, expected: str) -> None:
    monkeypatch.delenv(TERMINAL, raising=False)
    if columns is not None:
        monkeypatch.setenv(TERMINAL, columns)
    program = "import os, sys; tty = sys.stderr.isatty(); print(tty, os.get_terminal_size(2).columns if tty else '', file=sys.stderr)"
    group = Group([sys.executable, "-c", program], cwd=tmp_path, env=os.environ)
    while group.poll() is None:
        time.sleep(0.02)
    assert [line.strip() for line in group.close()][:1] == [expected]


@pytest.mark.parametrize(("width", "promised"), [(0, "100"), (10, "40"), (120, "120")])
def test_a_terminals_width_is_passed_on_unless_it_is_absurd(monkeypatch: pytest.MonkeyPatch, width: int, promised: str) -> None:
    read, write = pty.openpty()
    termios.tcsetwinsize(write, (24, width))
    with os.fdopen(write, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with terminal_for_stages():
            assert os.environ[TERMINAL] == promised
        assert TERMINAL not in os.environ
    os.close(read)


def test_no_terminal_is_promised_where_stderr_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TERMINAL, raising=False)
    with terminal_for_stages():
        assert TERMINAL not in os.environ


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        (["bar 100%", "error: rewards: row 3", "  found nan", "ERROR: failed to reproduce 'x'"], "error: rewards: row 3\n  found nan"),
        (["interrupted: checkpoint at step 20 kept; run again to resume", "ERROR: failed"], "interrupted: checkpoint at step 20 kept; run again to resume"),
        (["Traceback", "", "KeyError: 'x'"], "Traceback\nKeyError: 'x'"),
        (["ERROR: Unable to acquire lock."], "ERROR: Unable to acquire lock."),
        ([], "the stage ended with status 7 and said nothing on stderr"),
    ],
)
def test_a_failure_quotes_the_stage(errors: list[str], expected: str) -> None:
    assert error_text(errors, 7) == expected


def test_observed_numbers_are_flat() -> None:
    message = {"kind": "progress", "step": 3, "total": 9, "checkpointed": True, "numbers": {"reward/mean": 0.5, "note": "text"}}
    assert observed(message) == {"step": 3, "total": 9, "reward/mean": 0.5}


def test_only_these_targets_are_run_by_this_environments_dvc() -> None:
    assert repro_command("run_config", "prompts") == [str(Path(sys.executable).parent / "dvc"), "repro", "--single-item", "run_config", "prompts"]


def launch(stage: Sequence[str], root: Path, instance: dg.DagsterInstance, *, observe_every: float = 0.0) -> dg.ExecuteInProcessResult:
    """Materialize a partitioned asset that runs `stage`."""

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["small"]))
    def policy(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        worked = run_stage(context, stage, root, "policy", observe_every=observe_every)
        return dg.MaterializeResult(metadata={"worked": worked})

    return dg.materialize([policy], partition_key="small", instance=instance, raise_on_error=False)


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def observations(instance: dg.DagsterInstance) -> list[dg.AssetObservation]:
    records = instance.fetch_observations(dg.AssetKey("policy"), limit=100).records
    return [record.asset_observation for record in reversed(records) if record.asset_observation]


PROGRESS = """
import os, sys, time
from dagster_pipes import open_dagster_pipes
with open_dagster_pipes() as pipes:
    for step in (1, 2):
        pipes.report_custom_message({"kind": "progress", "step": step, "total": 2, "numbers": {"kl/mean": step / 10}})
        time.sleep(0.5)
    pipes.report_custom_message("not about progress")
"""


def test_progress_becomes_observations_of_the_partition() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = launch(python(PROGRESS), ROOT, instance)
        assert result.success
        seen = observations(instance)
        assert [{name: value.value for name, value in one.metadata.items()} for one in seen] == [
            {"step": 1, "total": 2, "kl/mean": 0.1},
            {"step": 2, "total": 2, "kl/mean": 0.2},
        ]
        assert {one.partition for one in seen} == {"small"}
        assert result.asset_materializations_for_node("policy")[0].metadata["worked"].value is True


NOTICES = """
from dagster_pipes import open_dagster_pipes
with open_dagster_pipes() as pipes:
    pipes.report_custom_message({"kind": "progress", "step": 1, "total": 9, "numbers": {}})
    for step in (2, 3):
        pipes.report_custom_message({"kind": "notice", "step": step, "text": f"trouble {step}"})
    pipes.report_custom_message({"kind": "progress", "step": 9, "total": 9, "numbers": {}})
"""


@pytest.mark.parametrize("often", [0.0, 99.0])
def test_every_notice_becomes_an_observation_however_seldom_progress_does(often: float) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert launch(python(NOTICES), ROOT, instance, observe_every=often).success
        seen = [{name: value.value for name, value in one.metadata.items()} for one in observations(instance)]
        assert [one for one in seen if "health" in one] == [{"step": 2, "health": "trouble 2"}, {"step": 3, "health": "trouble 3"}]
        assert {"step": 9, "total": 9} in seen
        assert {one.partition for one in observations(instance)} == {"small"}


def test_torn_and_foreign_messages_cost_nothing() -> None:
    spoil = """
from dagster_pipes import PipesEnvVarParamsLoader
path = PipesEnvVarParamsLoader().load_messages_params()["path"]
open(path, "a").write('{"method": \\n[1]\\n')
with open"""
    torn = PROGRESS.replace("with open", spoil, 1)
    with dg.DagsterInstance.ephemeral() as instance:
        assert launch(python(torn), ROOT, instance).success
        assert len(observations(instance)) == 2


def test_a_stage_that_sends_nothing_did_no_work() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = launch(python("pass"), ROOT, instance)
        assert result.asset_materializations_for_node("policy")[0].metadata["worked"].value is False


def test_the_stages_own_error_is_the_failures_description() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = launch(python("import sys; print('noise', file=sys.stderr); sys.exit('error: grpo.steps must be at least 1, got 0')"), ROOT, instance)
        failed = result.failure_data_for_node("policy")
        assert failed is not None and failed.user_failure_data is not None
        failure = failed.user_failure_data
        assert failure.description == "error: grpo.steps must be at least 1, got 0"
        assert failure.metadata["exit status"].value == 1


CANCELLED = """
import json, sys
from pathlib import Path
import dagster as dg
from pipelines.launcher import run_stage

@dg.asset(retry_policy=dg.RetryPolicy(max_retries=2))
def policy(context: dg.AssetExecutionContext) -> None:
    run_stage(context, sys.argv[2:], Path(sys.argv[1]), "policy", grace_seconds=20)

if __name__ == "__main__":
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([policy], instance=instance, raise_on_error=False)
        failure = result.failure_data_for_node("policy").user_failure_data
        print(json.dumps([result.success, failure.description, result.retry_attempts_for_node("policy")]))
"""


@pytest.mark.parametrize("presses", [1, 2])
def test_an_interrupted_run_stops_the_whole_family_and_is_not_retried(family: Path, presses: int) -> None:
    program = family / "cancelled.py"
    program.write_text(CANCELLED, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(
        [sys.executable, str(program), str(family), *command(family, "polite")], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    pids = wait_for_family(family)
    started = time.monotonic()
    for _ in range(presses):
        run.send_signal(signal.SIGINT)
        time.sleep(0.3)
    said, errors = run.communicate(timeout=60)
    assert time.monotonic() - started < 15
    assert alive(pids) == set()
    assert said, errors
    success, description, attempts = json.loads(said.strip().splitlines()[-1])
    assert (success, attempts) == (False, 0)
    assert description.startswith("interrupted: ")
    assert "SIGTERM" not in (family / "log").read_text()


def test_nothing_of_a_finished_group_is_left_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        group = Group(python("pass"), cwd=tmp_path, env=os.environ)
        while group.poll() is None:
            time.sleep(0.02)
        group.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert not [thread for thread in threading.enumerate() if "Tee" in thread.name]
