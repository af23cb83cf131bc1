"""No hostile program earns anything, gets out, outlives its judgement or keeps the grader waiting."""

import os
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from grpo_core.sandbox.isolation import Limits
from grpo_core.sandbox.run_tests import BadTests, Job, Verdict, judge_all
from grpo_core.sandbox.warm_cells import pairs
from tests.grpo_core.sandbox.hostile_programs import BURNING, EXHAUSTING, FORGING, HOSTILE, WAITING

LIMITS = Limits(cpu_seconds=1, wall_seconds=1.25, memory_bytes=384 * 2**20 + 4096 * (1013 + os.getpid() % 4096))
"""The odd number of bytes, another one in each run, is among every cell's arguments, and so its processes can be told from others."""
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


ALL_WAYS = [
    "assert abs(f(1.5) - 2.5) < 1e-6",
    "import math\nassert math.isclose(f(1.0), 2.0)",
    "assert set(map(f, [3])) == set([4]) and all(f(n) == n + 1 for n in range(3))",
    "assert all(map(lambda n: f(n) == n + 1, [1, 2])) and list(map(f, [])) == []",
    "for given in [1, 2]:\n    assert f(given) == given + 1",
    "assert len([f(n) for n in range(3)]) == 4 or f(3) == 4",
    "expected = [4]\nvalue = [f(3)]\nassert sorted(value) == sorted(expected)",
    "given = [3]\ntry:\n    f(given)\nexcept TypeError:\n    pass\nelse:\n    assert False, 'a list is no number'\nassert given == [3]",
    "METADATA = {'author': 'us'}\ndef check(candidate):\n    assert candidate(3) == 4\n    assert abs(candidate(1.0) - 2.0) < 1e-6\n",
    "import unittest\nfrom solution import f\nclass Cases(unittest.TestCase):\n    def test(self):\n        self.assertEqual(f(1), 2)\nunittest.main()",
    "from solution import *\ndef test_f():\n    assert f(1) == 2 and isinstance(f(1), int)",
    "import math\nfrom solution import *\nassert math.isclose(f(1.0), 2.0)",
    "assert np.allclose(f(1.0), 2.0)",
    "try:\n    assert f(1) == 2\nexcept Error:\n    pass",
    "from solution import Errors\ntry:\n    assert f(1) == 2\nexcept Errors:\n    pass",
]
"""In each of them the task may be tested; the next to last three trust names that no honest program of this task has."""


def ways(name: str) -> list[str]:
    """The tests that the program is put to: one is enough to see what a limit does."""
    return ALL_WAYS[:1] if name in BURNING else ALL_WAYS


@pytest.fixture(scope="module")
def forged() -> dict[tuple[str, str], Verdict | BadTests]:
    """Every program that speaks for itself against every kind of test."""
    pairs_ = [(name, test) for name in FORGING for test in ways(name)]
    limits = Limits(cpu_seconds=1, wall_seconds=5)
    return dict(zip(pairs_, judge_all([Job([FORGING[name]], "f", [test]) for name, test in pairs_], limits), strict=True))


@pytest.mark.parametrize("name", FORGING)
def test_a_program_that_speaks_to_its_tests_itself_earns_nothing_and_is_no_fault_of_the_data(
    name: str, forged: dict[tuple[str, str], Verdict | BadTests]
) -> None:
    for test in ways(name):
        verdict = forged[name, test]
        assert isinstance(verdict, Verdict), (test, verdict)
        assert verdict.passed == 0, (test, verdict)
        assert len(verdict.ended or "") <= 180 and (verdict.ended or "").isprintable()


def test_an_honest_program_passes_these_tests() -> None:
    honest = [test for test in ALL_WAYS if "np." not in test and "Error" not in test.replace("TypeError", "")]
    assert judge_all([Job(["def f(x): return x + 1"], "f", honest)], Limits()) == [Verdict(len(honest), len(honest))]


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
