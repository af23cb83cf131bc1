"""Reward functions that a user might write, named in tests by import path."""

from typing import Any


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


def raises_on_the_third(completions: list[Any], **columns: object) -> list[float]:
    return [1 / (2 - row) for row in range(len(completions))]  # the line that raises


def wants_a_column(completions: list[Any], solution: list[str], **columns: object) -> list[float]:
    return [0.0] * len(completions)


NOT_A_FUNCTION = 3
