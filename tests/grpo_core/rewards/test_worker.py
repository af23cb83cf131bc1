import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo_core.rewards.outcomes import RewardError
from grpo_core.rewards.worker import Worker, WorkerLost, worker
from pipelines.processes import processes_with

MINE = "tests.tiny_rewards"
BATCH = {"prompts": ["?", "?"], "completions": ["good", "bad"], "answer": ["1", "2"]}


@pytest.fixture
def own(request: pytest.FixtureRequest) -> Worker:
    made = Worker()
    made.take(BATCH)
    request.addfinalizer(made.kill)
    return made


def test_one_process_serves_call_after_call(own: Worker) -> None:
    assert own.call("exact_answer", {}, [0], 5.0) == [0.0]
    process = own.process
    assert own.call(f"{MINE}:awaited", {}, [1, 0], 5.0) == [3.0, 4.0]
    assert own.process is process
    own.take({**BATCH, "completions": ["a", "bcd"]})
    assert own.call(f"{MINE}:awaited", {}, [0, 1], 5.0) == [1.0, 3.0]


def test_a_call_that_takes_too_long_is_killed_and_the_next_meets_a_fresh_process(own: Worker) -> None:
    assert own.call(f"{MINE}:hangs_on_bad", {}, [0], 5.0) == [0.5]
    assert own.process is not None
    hung = own.process.pid
    with pytest.raises(WorkerLost, match=r"longer than 0.2 s"):
        own.call(f"{MINE}:hangs_on_bad", {}, [1], 0.2)
    assert not Path(f"/proc/{hung}").exists()
    assert own.is_fresh
    assert own.call(f"{MINE}:hangs_on_bad", {}, [0], 5.0) == [0.5]


def test_a_process_that_dies_says_how(own: Worker) -> None:
    with pytest.raises(WorkerLost, match="killed by SIGSEGV"):
        own.call(f"{MINE}:dies_on_bad", {}, [1], 5.0)
    assert own.call(f"{MINE}:dies_on_bad", {}, [0], 5.0) == [-0.5]


def test_what_a_function_started_dies_with_the_worker(own: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_TEST_MARK", f"of {os.getpid()}")
    with pytest.raises(WorkerLost):
        own.call(f"{MINE}:leaves_a_child_and_hangs", {}, [0], 1.0)
    deadline = time.monotonic() + 5
    while (left := processes_with("GRPO_TEST_MARK", f"of {os.getpid()}")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == set()


def test_ctrl_c_does_not_reach_a_reward_function(own: Worker) -> None:
    own.call("exact_answer", {}, [0], 5.0)
    assert own.process is not None
    os.kill(own.process.pid, signal.SIGINT)
    assert own.call(f"{MINE}:awaited", {}, [0], 5.0) == [4.0]


def test_a_module_that_cannot_be_imported_is_no_fault_of_the_text(own: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dies_when_imported.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RewardError, match=r"rewards.dies_when_imported:f: importing it failed twice: its process died \(killed by SIGKILL\)"):
        own.call("dies_when_imported:f", {}, [0], 5.0)
    with pytest.raises(RewardError, match=f"module '{MINE}' has no function 'nothing'"):
        own.call(f"{MINE}:nothing", {}, [0], 5.0)


def test_an_interrupted_call_leaves_no_answer_for_the_next(own: Worker) -> None:
    own.call(f"{MINE}:awaited", {}, [0], 5.0)
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        own.call(f"{MINE}:always_hangs", {}, [0], 30.0)
    assert own.call(f"{MINE}:awaited", {}, [0, 1], 5.0) == [4.0, 3.0]


def test_another_folder_gets_another_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = worker()
    shared.take(BATCH)
    shared.call("exact_answer", {}, [0], 5.0)
    first = shared.process
    assert worker().process is first
    (tmp_path / "mine_of_a_test.py").write_text("def f(completions, **columns):\n    return [7.0] * len(completions)\n")
    monkeypatch.syspath_prepend(tmp_path)
    worker().take(BATCH)
    assert worker().call("mine_of_a_test:f", {}, [0, 1], 5.0) == [7.0, 7.0]
    assert first is not None and first.poll() is not None


@pytest.mark.parametrize("how", ["ends", "is killed", "is killed while a function waits for what it started"])
def test_no_worker_outlives_its_trainer(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_TEST_MARK", f"left by {os.getpid()}")
    killed = "import threading; threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()"
    hang = f"{killed}; w.call('{MINE}:leaves_a_child_and_hangs', {{}}, [0], 50.0)"
    last = {"ends": "", "is killed": "os.kill(os.getpid(), signal.SIGKILL)"}.get(how, hang)
    code = (
        "import os, signal, sys; from grpo_core.rewards.worker import worker; w = worker(); w.take({'prompts': ['?'], 'completions': ['a'], 'answer': ['a']})\n"
        "w.call('exact_answer', {}, [0], 5.0); print(w.process.pid, flush=True)\n" + last
    )
    pid = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3], check=False).stdout.strip()
    assert pid.isdigit()
    deadline = time.monotonic() + 5
    while (left := processes_with("GRPO_TEST_MARK", f"left by {os.getpid()}")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == set()
