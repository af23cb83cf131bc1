"""The share of its tests that a model-written program passes, run in isolation."""

import json
import re
from collections.abc import Sequence
from typing import Any

from grpo_core.rewards.answers import completion_text
from grpo_core.rewards.outcomes import Invalid, RewardError
from grpo_core.sandbox.isolation import Limits
from grpo_core.sandbox.run_tests import BadTests, InputOutput, Job, Verdict, judge_all

OPENING = re.compile(r"(`{3,})([^`]*)|(~{3,})(.*)")
"""A line that opens a fenced block, as of CommonMark: what stands behind backticks holds none."""
LANGUAGE = re.compile(r"(?:py|python)[0-9.]*", re.IGNORECASE)
"""What may be named behind the fence of a block that is a program, if anything is."""


def code_tests(
    completions: Sequence[Any],
    prompts: Sequence[Any],
    *,
    tests_column: str = "tests",
    entry_point_column: str = "entry_point",
    cpu_seconds: float = 4.0,
    wall_seconds: float = 10.0,
    memory_mib: int = 512,
    **columns: Sequence[Any],
) -> list[float | Invalid | None]:
    """Tests passed / tests, of the program in the last fenced block of a completion that has it (or the whole completion, or prompt and completion).

    Invalid: it is no program, or a limit or a crash ended it before it passed any. A row whose tests cannot be run raises RewardError.
    """
    limits = limits_of(cpu_seconds, wall_seconds, memory_mib)
    if tests_column not in columns:
        raise RewardError(f"reward 'code_tests': there is no column {tests_column!r}; name the one that holds tests in reward_options.code_tests.tests_column")
    entry_points = columns.get(entry_point_column) or [None] * len(completions)
    rows = zip(prompts, completions, columns[tests_column], entry_points, strict=True)
    jobs = [job_of(number, *row) for number, row in enumerate(rows)]
    return [reward_of(number, verdict) for number, verdict in enumerate(judge_all(jobs, limits))]


def limits_of(cpu_seconds: float, wall_seconds: float, memory_mib: int) -> Limits:
    """The options as limits, or RewardError."""
    if memory_mib < 64:
        raise RewardError(f"reward_options.code_tests.memory_mib must be at least 64 (Python itself takes 20), got {memory_mib}")
    try:
        return Limits(cpu_seconds=cpu_seconds, wall_seconds=wall_seconds, memory_bytes=memory_mib * 2**20)
    except ValueError as error:
        raise RewardError(f"reward_options.code_tests: {error}") from None


def job_of(number: int, prompt: Any, completion: Any, tests: Any, entry_point: Any) -> Job:
    """What is run for one row."""
    if entry_point is not None and not (isinstance(entry_point, str) and entry_point.isidentifier()):
        raise RewardError(f"reward 'code_tests': row {number}: the entry point must be the name of a function, got {entry_point!r}")
    return Job(programs(completion_text(prompt), completion_text(completion), entry_point), entry_point, read_tests(number, tests))


def reward_of(number: int, outcome: Verdict | BadTests) -> float | Invalid:
    """The reward of a row."""
    if isinstance(outcome, BadTests):
        raise RewardError(f"reward 'code_tests': row {number}: {outcome}; correct the tests of this prompt")
    if outcome.ended and not outcome.passed:
        return Invalid(f"the program {outcome.ended}")
    return outcome.passed / outcome.total


def programs(prompt: str, completion: str, entry_point: str | None = None) -> list[str]:
    """What may be the program, likeliest first: the completion's, and the prompt continued by it (models that complete code write the body)."""
    block = last_block(completion, entry_point)
    own = completion if block is None else block
    return list(dict.fromkeys([own, prompt + own, prompt + completion]))


def last_block(text: str, entry_point: str | None = None) -> str | None:
    """The last fenced block of Python (or of no language) that defines the entry point, else the last one; None: there is none.

    What shows how the function is used often follows the one that has it.
    """
    found = blocks(text)
    defining = re.compile(rf"^[ \t]*(?:(?:async[ \t]+)?def[ \t]+|class[ \t]+){entry_point}\b|^{entry_point}[ \t]*=", re.MULTILINE)
    able = [block for block in found if entry_point and defining.search(block)]
    return next(iter([*reversed(able), *reversed(found)]), None)


def blocks(text: str) -> list[str]:
    """The closed blocks of Python; where there is none, one that is never closed."""
    found: list[str] = []
    block: list[str] | None = None
    fence, is_python = "", False
    for line in text.split("\n"):
        mark = line.strip()
        if block is None:
            if opening := OPENING.fullmatch(mark):
                block, fence, is_python = [], opening[1] or opening[3], is_program(opening[2] or opening[4] or "")
        elif len(mark) >= len(fence) and not mark.strip(fence[0]):
            found += ["\n".join(block)] if is_python else []
            block = None
        else:
            block.append(line)
    return found or (["\n".join(block)] if block and is_python else [])


def is_program(info: str) -> bool:
    """Whether a block with this behind its fence is Python: `python`, `python3.11`, `{.python}`, or nothing."""
    words = info.strip().strip("{}").split()
    return not words or LANGUAGE.fullmatch(words[0].removeprefix(".")) is not None


def read_tests(number: int, tests: Any) -> list[str] | list[InputOutput]:
    """A row's tests; tables keep lists of objects as JSON, so that is read too."""
    given = tests
    if isinstance(tests, str) and tests.lstrip()[:1] in ("[", '"'):
        try:
            given = json.loads(tests)
        except ValueError:
            given = tests  # Python that begins with a bracket
    if isinstance(given, str) and given.strip():
        return [given]
    if isinstance(given, Sequence) and given and not isinstance(given, str):
        if all(isinstance(test, str) and test.strip() for test in given):
            return list(given)
        if all(isinstance(test, dict) and isinstance(test.get("input"), str) and isinstance(test.get("output"), str) for test in given):
            return [InputOutput(test["input"], test["output"]) for test in given]
    raise RewardError(
        f"reward 'code_tests': row {number}: tests must be Python text, a list of such texts, or a list of {{'input': text, 'output': text}}, "
        f"got {repr(tests)[:100]}"
    )
