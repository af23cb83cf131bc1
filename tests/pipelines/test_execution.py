"""Runs in this process: what they say, and that a dead one never blocks the next."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from pipelines.dead_runs import HOST_TAG, KERNEL_TAG, host_tags, release_dead_runs, runs_at_work
from pipelines.definitions import run_job
from pipelines.environment import environment
from pipelines.execution import narrate, warning_text
from pipelines.params import ROOT
from pipelines.processes import RUN_ID
from pipelines.stage_assets import POOL
from tests.pipelines.toy_project import THIRD_PARTY_WARNINGS, make_project, toy_environment

pytestmark = [pytest.mark.filterwarnings(warning) for warning in THIRD_PARTY_WARNINGS]

RUN = """
import sys
from pathlib import Path
from pipelines.definitions import run_job
outcome = run_job(Path.cwd(), "default")
sys.exit(130 if outcome.interrupted else not outcome.success)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_project(tmp_path / "toy")
    for name, value in environment(root, os.environ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return root


@pytest.fixture
def instance(root: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.get() as found:
        yield found


def start_run(root: Path) -> subprocess.Popen[str]:
    """The lifecycle in a process of its own, at work in its first stage."""
    env = {**toy_environment(root), "TOY_PROMPTS": "sleep"}
    run = subprocess.Popen([sys.executable, "-c", RUN], cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (root / "asleep").exists():
        assert time.monotonic() < deadline and run.poll() is None, run.communicate()
        time.sleep(0.1)
    return run


def test_a_run_that_was_killed_outright_is_marked_failed_and_blocks_nobody(root: Path, instance: dg.DagsterInstance) -> None:
    killed = start_run(root)
    (holder,) = runs_at_work(instance, POOL)
    assert release_dead_runs(instance, POOL) == []  # it lives
    killed.kill()
    killed.communicate()
    assert run_job(root, "default", instance=instance).success
    dead = instance.get_run_by_id(holder)
    assert dead is not None and dead.status is dg.DagsterRunStatus.FAILURE
    assert runs_at_work(instance, POOL) == []


def test_what_a_dead_run_left_at_work_is_stopped(root: Path, instance: dg.DagsterInstance) -> None:
    killed = start_run(root)
    (holder,) = runs_at_work(instance, POOL)
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(120)"
    left = subprocess.Popen([sys.executable, "-c", deaf], env={**os.environ, RUN_ID: holder}, stdout=subprocess.PIPE)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], env={**os.environ, RUN_ID: "another run"})
    assert left.stdout is not None
    left.stdout.readline()
    killed.kill()
    killed.communicate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.dead_runs.LEFTOVER_SECONDS", 1.0)
        assert release_dead_runs(instance, POOL) == [holder]
    assert (left.wait(timeout=5), other.poll()) == (-signal.SIGTERM, None)
    other.kill()
    other.wait()
    left.stdout.close()


def test_a_run_of_another_machine_is_never_judged(root: Path, instance: dg.DagsterInstance) -> None:
    killed = start_run(root)
    (holder,) = runs_at_work(instance, POOL)
    instance.add_run_tags(holder, {HOST_TAG: "another.machine", KERNEL_TAG: "another boot"})
    killed.kill()
    killed.communicate()
    assert release_dead_runs(instance, POOL) == []
    assert runs_at_work(instance, POOL) == [holder]
    # The same machine, whose name has changed since.
    instance.add_run_tags(holder, {KERNEL_TAG: host_tags()[KERNEL_TAG]})
    assert release_dead_runs(instance, POOL) == [holder]


def test_a_run_from_before_the_machine_last_started_is_dead(root: Path, instance: dg.DagsterInstance) -> None:
    run = start_run(root)
    (holder,) = runs_at_work(instance, POOL)
    # Another process may have the same number after a boot; here it is the run itself.
    instance.add_run_tags(holder, {KERNEL_TAG: "00000000-0000-0000-0000-000000000000 pid:[1]"})
    assert release_dead_runs(instance, POOL) == [holder]
    run.kill()
    run.communicate()


GRPO = "import pipelines.cli; from pathlib import Path; pipelines.cli.checkout = Path.cwd; pipelines.cli.main()"


def test_a_run_shows_its_counts_first_and_its_evidence_even_when_a_later_stage_fails(root: Path) -> None:
    env = {**toy_environment(root), "TOY_BLIND_REVIEW_SET": "fail"}
    run = subprocess.run([sys.executable, "-c", GRPO, "run"], cwd=root, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "the run failed" in run.stderr
    assert run.stdout.index("completions a step") < run.stdout.index("making prompts") < run.stdout.index("Held-out evaluation of 'default'")
    (root / "assets" / "prompts.py").write_text('"""Other code."""\n', encoding="utf-8")
    failed = subprocess.run([sys.executable, "-c", GRPO, "run"], cwd=root, env={**env, "TOY_PROMPTS": "fail"}, capture_output=True, text=True, check=False)
    assert (failed.returncode, "Held-out evaluation" in failed.stdout) == (1, False)


def test_only_the_work_that_can_be_extended_stays_once_dvc_keeps_the_outputs(root: Path, instance: dg.DagsterInstance) -> None:
    assert run_job(root, "default", instance=instance).success
    assert (root / "data/grpo_checkpoint/default/manifest.json").is_file()
    assert list((root / ".work/sft_checkpoint").iterdir()) == []
    assert (root / ".work/grpo_checkpoint/default/toy/finished").is_file()


def test_ctrl_c_ends_the_run_and_its_stage(root: Path, instance: dg.DagsterInstance) -> None:
    run = start_run(root)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "prompts failed after" in said
    assert "sft_checkpoint" not in said
    assert "Traceback" not in said.partition("prompts failed")[2]
    assert runs_at_work(instance, POOL) == []


def test_an_error_of_our_own_is_told_and_a_stages_own_is_not_repeated() -> None:
    @dg.op
    def broken() -> None:
        raise dg.Failure("no dvc beside this interpreter")

    @dg.op
    def told() -> None:
        raise dg.Failure("error: said on stderr already", metadata={"exit status": 1})

    @dg.job(config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}})
    def both() -> None:
        broken()
        told()

    said = io.StringIO()
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_event_listener("00000000-0000-0000-0000-000000000001", narrate(said))
        both.execute_in_process(instance=instance, run_id="00000000-0000-0000-0000-000000000001", raise_on_error=False)
    assert "broken failed after 0.0 s\nno dvc beside this interpreter\n" in said.getvalue()
    assert "told failed after" in said.getvalue()
    assert "already" not in said.getvalue()


def test_only_a_check_that_is_no_failure_is_a_warning() -> None:
    def evaluation(name: str, passed: bool) -> dg.AssetCheckEvaluation:
        return dg.AssetCheckEvaluation(dg.AssetKey("rewards"), name, passed=passed, description="grpo.beta changed from 0.01 to 0.7")

    assert warning_text(evaluation("in_sync", False)) == "   warning: rewards is not in_sync: grpo.beta changed from 0.01 to 0.7"
    assert warning_text(evaluation("in_sync", True)) is None
    waits = dg.AssetCheckEvaluation(dg.AssetKey("promotion_report"), "blind_verdict", False, description="default: nobody has judged yet")
    assert warning_text(waits) == "   gate, blind_verdict: default: nobody has judged yet"
    assert warning_text(evaluation("contract", False)) is None
