"""How many of its tests each program passes: the host's side, which sees verdicts and outputs, and runs nothing of either."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from grpo_core.sandbox.cell import Cell, CellDied, CellFlooded, CellTimeout
from grpo_core.sandbox.isolation import Limits, require_isolation
from grpo_core.sandbox.link import HUNG_UP
from grpo_core.sandbox.reasons import plain
from grpo_core.sandbox.values import Malformed, decode
from grpo_core.sandbox.warm_cells import Pair, jobs_at_once, pairs, singles, start_pair, start_single

MAX_PROGRAM = 2**20
"""Characters of the longest program that is looked at."""
HANG_UP_SECONDS = 1.0
"""How long a program that hung up on its tests may take to end, so that it can be said how."""


class BadTests(ValueError):
    """Tests that cannot be run: the data's fault, whatever the program."""


@dataclass(frozen=True, slots=True)
class InputOutput:
    """A script is given `input` and must print `output`, white space at the ends of lines and of the text aside."""

    input: str
    output: str


@dataclass(frozen=True, slots=True)
class Job:
    """One completion's program and its tests."""

    programs: list[str]
    """Texts that may be the program: the first that can be compiled and defines the entry point is."""
    entry_point: str | None
    tests: list[str] | list[InputOutput]
    """Python texts, run on stand-ins for the program's names; or inputs and outputs of a script."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of `total` tests `passed` were passed. `ended`: what stopped the program before the last one, or kept it from running at all."""

    passed: int
    total: int
    ended: str | None = None


class _Again(Exception):
    """What happened may have been no fault of the program: one more try, in fresh cells."""


def judge(job: Job, pair: Callable[[], Pair], single: Callable[[], Cell], wall_seconds: float) -> Verdict:
    """The verdict of one try. Raises BadTests, and _Again where another try may end otherwise."""
    if min(len(text) for text in job.programs) > MAX_PROGRAM:
        return Verdict(0, len(job.tests), f"is longer than {MAX_PROGRAM:,} characters")
    programs = [text for text in job.programs if len(text) <= MAX_PROGRAM]
    scripts = [test for test in job.tests if isinstance(test, InputOutput)]
    if scripts:
        return judge_script(programs, scripts, single, wall_seconds)
    return judge_functions(programs, job.entry_point, [test for test in job.tests if isinstance(test, str)], pair, wall_seconds)


def judge_functions(programs: list[str], entry_point: str | None, tests: list[str], pair: Callable[[], Pair], wall_seconds: float) -> Verdict:
    """Tests in one cell call the program in another."""
    cells = pair()
    try:
        cells.program.send({"programs": programs, "entry_point": entry_point, "link": cells.program_link})
        cells.tests.send({"tests": tests, "entry_point": entry_point, "link": cells.tests_link})
        report = message(cells.tests, wall_seconds)
        if "bad" in report:
            raise BadTests(plain(report["bad"]))
        if "invalid" in report:
            return Verdict(0, len(tests), plain(report["invalid"]))
        ended = plain(how_it_ended(cells.program, report["ended"])) if report["ended"] else None
        return Verdict(sum(report["passed"]), len(tests), ended)
    except (CellDied, CellFlooded, CellTimeout) as stopped:
        return stopped_by(stopped, Verdict(0, len(tests)))
    finally:
        cells.kill()


def message(cell: Cell, seconds: float) -> dict[str, Any]:
    """What a cell tells of its job. CellDied, CellTimeout, CellFlooded."""
    try:
        told = decode(cell.receive_bytes(seconds))
    except Malformed:
        told = None
    if not isinstance(told, dict):
        raise CellFlooded("sent what is no message")
    return told


def how_it_ended(program: Cell, said: str) -> str:
    """Why a program hung up on its tests. Raises CellDied when something outside may have killed it."""
    if said != HUNG_UP:
        return said
    try:
        program.receive(HANG_UP_SECONDS)
    except CellDied as died:
        if not died.by_limit:
            raise
        return str(died)
    except (CellFlooded, CellTimeout):
        return "hung up on its tests"
    return "hung up on its tests"


def stopped_by(stopped: CellDied | CellFlooded | CellTimeout, so_far: Verdict) -> Verdict:
    """The verdict on a program that was stopped; _Again if it timed out or may have been killed from outside."""
    if isinstance(stopped, CellTimeout) or (isinstance(stopped, CellDied) and not stopped.by_limit):
        raise _Again(str(stopped))
    return Verdict(so_far.passed, so_far.total, str(stopped))


def judge_script(programs: list[str], tests: list[InputOutput], single: Callable[[], Cell], wall_seconds: float) -> Verdict:
    """The script runs once for each input, in a cell of its own; the first run that a limit ends is the last."""
    passed = 0
    for test in tests:
        cell = single()
        try:
            output = output_of(cell, programs, test, wall_seconds)
        except CellDied as died:
            if died.is_exit_status:
                continue
            return stopped_by(died, Verdict(passed, len(tests)))
        except (CellFlooded, CellTimeout) as stopped:
            return stopped_by(stopped, Verdict(passed, len(tests)))
        finally:
            cell.kill()
        if output is None:
            return Verdict(0, len(tests), "does not compile")
        passed += same_output(output, test.output)
    return Verdict(passed, len(tests))


def output_of(cell: Cell, programs: list[str], test: InputOutput, wall_seconds: float) -> str | None:
    """What the script prints; None when it is no program."""
    cell.send({"programs": programs, "stdin": test.input})
    if "invalid" in message(cell, wall_seconds):
        return None
    return cell.receive_rest(wall_seconds).decode("utf-8", errors="replace")


def same_output(printed: str, expected: str) -> bool:
    """Equal lines, but for white space at their ends and blank lines at the end."""
    return [line.rstrip() for line in printed.rstrip().split("\n")] == [line.rstrip() for line in expected.rstrip().split("\n")]


def judge_all(jobs: Sequence[Job], limits: Limits, on_verdict: Callable[[], Any] = lambda: None) -> list[Verdict | BadTests]:
    """A verdict for each job, in their order, `jobs_at_once()` at a time. SandboxUnavailable where this machine cannot isolate.

    What timed out, or was killed by something else than a limit, is tried once more, alone and in fresh cells: only then it counts.
    """
    require_isolation()
    pair = pairs(limits).take if any(isinstance(test, str) for job in jobs for test in job.tests) else lambda: start_pair(limits)
    single = singles(limits).take if any(isinstance(test, InputOutput) for job in jobs for test in job.tests) else lambda: start_single(limits)

    def first_try(job: Job) -> Verdict | BadTests | _Again:
        try:
            return judge(job, pair, single, limits.wall_seconds)
        except (BadTests, _Again) as outcome:
            return outcome
        finally:
            on_verdict()

    with ThreadPoolExecutor(max_workers=max(1, min(len(jobs), jobs_at_once()))) as threads:
        outcomes = list(threads.map(first_try, jobs))
    return [second_try(job, limits) if isinstance(outcome, _Again) else outcome for job, outcome in zip(jobs, outcomes, strict=True)]


def second_try(job: Job, limits: Limits) -> Verdict | BadTests:
    """The verdict of a try with nothing beside it."""
    try:
        return judge(job, lambda: start_pair(limits), lambda: start_single(limits), limits.wall_seconds)
    except BadTests as bad:
        return bad
    except _Again as again:
        return Verdict(0, len(job.tests), f"{again}, twice")
