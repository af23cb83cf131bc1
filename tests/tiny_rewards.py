"""Reward functions that a user might write, named in tests by import path."""

import functools
from typing import Any
from zlib import crc32


def share_of_small_digits(completions: list[str], **columns: object) -> list[float]:
    """How much of a completion is 0 to 4: a random model's completions differ in it, so that there is something to learn."""
    return [sum(character in "01234" for character in text) / (1 + len(text)) for text in completions]


def length_in_tokens(completions: list[str], completion_ids: list[list[int]], **columns: object) -> list[float]:
    return [float(len(ids)) for ids in completion_ids]


def constant(completions: list[str], **columns: object) -> list[float]:
    return [0.7] * len(completions)


def infinite_in_row_three(completions: list[str], **columns: object) -> list[float]:
    return [float("inf") if row == 3 else 0.0 for row in range(len(completions))]


def nan_first(completions: list[str], **columns: object) -> list[float]:
    return [float("nan"), *[0.0] * (len(completions) - 1)]


def half_have_an_opinion(completions: list[str], **columns: object) -> list[float | None]:
    return [None if row % 2 else row / 10 for row in range(len(completions))]


def never_an_opinion(completions: list[str], **columns: object) -> list[float | None]:
    return [None] * len(completions)


def one_too_few(completions: list[str], **columns: object) -> list[float]:
    return [0.0] * (len(completions) - 1)


def a_lone_number(completions: list[str], **columns: object) -> float:
    return 1.0


def words(completions: list[str], **columns: object) -> list[str]:
    return ["good"] * len(completions)


def says_what_it_was_given(prompts: list[Any], completions: list[Any], answer: list[str], **columns: object) -> list[float]:
    """1 everywhere, once it got what the documentation promises; raises otherwise."""
    assert set(columns) >= {"completion_ids", "raw_completions", "prompt_id", "difficulty"}, sorted(columns)
    assert "completion" not in columns, "a demonstration is no business of a reward"
    for values in (prompts, completions, answer, *columns.values()):
        assert isinstance(values, list) and len(values) == len(completions)
    for prompt, completion in zip(prompts, completions, strict=True):
        if isinstance(prompt, str):
            assert isinstance(completion, str)
        else:
            assert prompt[-1]["role"] == "user"
            assert [message["role"] for message in completion] == ["assistant"]
    return [1.0] * len(completions)


def messages_are_one(prompts: list[Any], completions: list[Any], **columns: object) -> list[float]:
    return [float(not isinstance(prompt, str)) for prompt in prompts]


def huge(completions: list[Any], **columns: object) -> list[float]:
    return [1e308] * len(completions)


def wants_a_column(completions: list[Any], solution: list[str], **columns: object) -> list[float]:
    return [0.0] * len(completions)


NOT_A_FUNCTION = 3


def with_target(completions: list[str], *, target: int = 3, **columns: object) -> list[float]:
    return [float(len(text) - target) for text in completions]


async def awaited(completions: list[str], **columns: object) -> list[float]:
    import asyncio

    await asyncio.sleep(0)
    return [float(len(text)) for text in completions]


def fails_on_bad(completions: list[str], **columns: object) -> list[float]:
    """What a user's grader does on a text that it did not think of."""
    return [1 / (text != "bad") for text in completions]  # the line that raises


def nan_on_bad(completions: list[str], **columns: object) -> list[float]:
    return [float("nan") if text == "bad" else 1.0 for text in completions]


def hangs_on_bad(completions: list[str], **columns: object) -> list[float]:
    import time

    for text in completions:
        while text == "bad":
            time.sleep(0.1)
    return [0.5] * len(completions)


def dies_on_bad(completions: list[str], **columns: object) -> list[float]:
    import os
    import signal

    if "bad" in completions:
        os.kill(os.getpid(), signal.SIGSEGV)
    return [-0.5] * len(completions)


def dies_once(completions: list[str], marker: list[str], **columns: object) -> list[float]:
    """As if somebody killed its process: it dies the first time only."""
    import os
    import signal
    from pathlib import Path

    if not Path(marker[0]).exists():
        Path(marker[0]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [float(len(text)) for text in completions]


def prints(completions: list[str], **columns: object) -> list[float]:
    print("seen by whoever looks at stderr")
    return [1.0] * len(completions)


def where_it_runs(completions: list[str], **columns: object) -> list[float]:
    import os
    import threading

    return [float(os.getpid()), float(threading.current_thread() is threading.main_thread()), *[0.0] * (len(completions) - 2)]


def raises_on_a_few(completions: list[str], **columns: object) -> list[float]:
    """Raises where it meets one text in fifty."""
    for text in completions:
        if crc32(text.encode()) % 50 == 0:
            raise ZeroDivisionError("a bug of ours")
    return share_of_small_digits(completions)


def has_all_outcomes(completions: list[str], **columns: object) -> list[Any]:
    """One text in seven has no opinion, one in seven is invalid, one in seven makes it return what is no number."""
    from grpo_core.rewards.outcomes import Invalid

    special: dict[int, Any] = {0: None, 1: Invalid("a seventh"), 2: float("nan")}
    values = share_of_small_digits(completions)
    return [special.get(crc32(text.encode()) % 7, value) for text, value in zip(completions, values, strict=True)]


def the_number_it_says(completions: list[str], **columns: object) -> list[Any]:
    """What a text reads as a number; none: no opinion; `?`: invalid; `!`: raises."""
    from grpo_core.rewards.outcomes import Invalid

    if "!" in completions:
        raise KeyError("a bug of ours")
    return [None if text == "" else Invalid("a question mark") if text == "?" else float(text) for text in completions]


def leaves_a_child_and_hangs(completions: list[str], **columns: object) -> list[float]:
    import subprocess
    import time

    subprocess.Popen(["sleep", "60"])
    time.sleep(60)
    return [0.0] * len(completions)


def always_hangs(completions: list[str], **columns: object) -> list[float]:
    import time

    time.sleep(60)
    return [0.0] * len(completions)


def ends_its_process(completions: list[str], **columns: object) -> list[float]:
    import os

    os._exit(3)


def exits(completions: list[str], **columns: object) -> list[float]:
    import sys

    sys.exit("no API key")


class Strange(BaseException):
    """As some libraries raise at a time limit."""

    def __repr__(self) -> str:
        raise RecursionError


def raises_what_is_no_exception(completions: list[str], **columns: object) -> list[float]:
    raise Strange


def returns_what_cannot_be_shown(completions: list[str], **columns: object) -> list[object]:
    return [Strange()] * len(completions)


def says_invalid_without_words(completions: list[str], **columns: object) -> list[object]:
    from grpo_core.rewards.outcomes import Invalid

    return [Invalid(KeyError())] * len(completions)  # type: ignore[arg-type]  # as a careless user would


def raises_with_strange_words(completions: list[str], **columns: object) -> list[float]:
    raise ValueError(f"unknown \ud800x {object()}")


_semaphores: list[Any] = []


async def uses_a_lock_of_its_module(completions: list[str], **columns: object) -> list[float]:
    import asyncio

    if not _semaphores:
        _semaphores.append(asyncio.Semaphore(1))

    async def one() -> float:
        async with _semaphores[0]:
            await asyncio.sleep(0)
        return 1.0

    return list(await asyncio.gather(*(one() for _ in completions)))


def strips_thoughts_in_place(completions: list[Any], **columns: object) -> list[float]:
    for completion in completions:
        completion[-1]["content"] = completion[-1]["content"].rpartition("</think>")[2]
    return [0.0] * len(completions)


def length_of_chat(completions: list[Any], **columns: object) -> list[float]:
    return [float(len(completion[-1]["content"])) for completion in completions]


class Grader:
    def __call__(self, completions: list[str], **columns: object) -> list[float]:
        return [2.0] * len(completions)


def scaled(completions: list[str], scale: float, **columns: object) -> list[float]:
    return [scale] * len(completions)


an_instance = Grader()
a_partial = functools.partial(scaled, scale=2.0)


def reads_its_standard_input(completions: list[str], **columns: object) -> list[float]:
    import subprocess

    return [float(len(subprocess.run(["cat"], capture_output=True, check=True).stdout))] * len(completions)


def first_of_a_set(completions: list[str], **columns: object) -> list[float]:
    return [float(ord(next(iter(set("abcdefghijklmnop")))))] * len(completions)
