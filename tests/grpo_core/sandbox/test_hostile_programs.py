"""No hostile program earns anything, gets out, outlives its judgement or keeps the grader waiting."""

import os
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from grpo_core.sandbox.isolation import Limits
from grpo_core.sandbox.run_tests import BadTests, Job, Verdict, judge_all
from grpo_core.sandbox.warm_cells import pairs
from tests.grpo_core.sandbox.hostile_programs import EXHAUSTING, HOSTILE, WAITING

LIMITS = Limits(cpu_seconds=1, wall_seconds=1.25, memory_bytes=384 * 2**20 + 4096 * 1013)
"""The odd number of bytes is among every cell's arguments, and so its processes can be told from others."""
TESTS = ["assert f(3) == 4", "value = f(7)\nassert value == 8 and 0 < value < 9"]
SECRET = "the secret of the host"


class Outcome(NamedTuple):
    verdicts: dict[str, Verdict | BadTests]
    seconds: float
    secret: str


def cells_alive() -> list[int]:
    """Processes of this host whose arguments hold the mark of this file's limits."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(LIMITS.memory_bytes).encode() in words:
            found.append(int(process.name))
    return found


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All of them judged at once, as a batch is."""
    path = tmp_path_factory.mktemp("host") / "secret.txt"
    path.write_text(SECRET)
    os.environ["SENTINEL_OF_THE_HOST"] = "1"
    started = time.monotonic()
    jobs = [Job([program.replace("SECRET", str(path))], "f", TESTS) for program in HOSTILE.values()]
    verdicts = judge_all(jobs, LIMITS)
    return Outcome(dict(zip(HOSTILE, verdicts, strict=True)), time.monotonic() - started, path.read_text())


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_earns_nothing(name: str, outcome: Outcome) -> None:
    verdict = outcome.verdicts[name]
    assert isinstance(verdict, Verdict), verdict
    assert verdict.passed == 0, verdict
    assert verdict.total == 2


def test_the_task_can_be_solved_beside_them() -> None:
    assert judge_all([Job(["def f(x): return x + 1"], "f", TESTS)], Limits()) == [Verdict(2, 2)]


def test_none_of_them_keeps_the_grader_waiting(outcome: Outcome) -> None:
    a_try = LIMITS.wall_seconds + 3
    assert outcome.seconds < 2 * a_try * (len(EXHAUSTING) + len(WAITING))


@pytest.mark.parametrize("name", WAITING)
def test_one_that_waits_is_given_a_second_try_and_then_told_why(name: str, outcome: Outcome) -> None:
    verdict = outcome.verdicts[name]
    assert isinstance(verdict, Verdict)
    assert verdict.ended == "gave no answer within the wall-clock limit of 1.25 s, twice"


def test_the_host_is_as_it_was(outcome: Outcome) -> None:
    assert outcome.secret == SECRET
    assert os.stat("/dev/null").st_mode & 0o777 == 0o666
    pairs(LIMITS).close()
    deadline = time.monotonic() + 10
    while cells_alive() and time.monotonic() < deadline:  # the kernel takes a namespace down a little after its first process
        time.sleep(0.05)
    assert cells_alive() == []
