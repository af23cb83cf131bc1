"""Form and content that can be looked for: a completion that matches a pattern, and the key steps that it shows."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from grpo_core.requirements import nearest
from grpo_core.rewards.answers import completion_text
from grpo_core.rewards.normal_text import normal_text, phrase_end
from grpo_core.rewards.outcomes import RewardError

Search = Callable[[str, int], int]
"""Where a step ends that is looked for from a place in the text on; -1 when it is not there."""


def regex_format(completions: Sequence[Any], *, pattern: str, whole: bool = True, **columns: object) -> list[float | None]:
    """1 when the whole completion (with `whole: false` a part of it) matches the regular expression `pattern`, else 0.

    A dot matches line breaks too. A pattern that backtracks without end, as `(a+)+b` does, is stopped by the reward worker's timeout
    only: the completion is then invalid. Raises RewardError for a pattern that is none, or that every completion holds.
    """
    compiled = _compiled("regex_format", "pattern", pattern)
    if not whole and compiled.search(""):
        raise RewardError(
            f"reward_options.regex_format.pattern {pattern!r} matches the empty text, so every completion holds it: set whole to true, or change it"
        )
    matches = compiled.fullmatch if whole else compiled.search
    return [float(matches(completion_text(c)) is not None) for c in completions]


def key_steps(
    completions: Sequence[Any], *, fixed_steps: Sequence[str] = (), column: str = "", ordered: bool = False, regex: bool = False, **columns: Any
) -> list[float | None]:
    """Share of the key steps that a completion shows, each counted once however often it is repeated: a dense reward where right answers are rare.

    The steps are `fixed_steps` for every prompt, or stand in the prompts table's `column`, as a list or one a line. They are found
    whatever their case, white space and unicode form, not inside a longer word or number; with `regex` they are regular expressions on
    the text as it is. With `ordered` a step counts only behind those that counted before it. Raises RewardError for a prompt without steps.
    """
    steps = _asked_steps(fixed_steps, column, columns, len(completions))
    ids = columns.get("prompt_id", range(len(completions)))
    places = [f"column {column!r} of prompt {which}" if column else "reward_options.key_steps.fixed_steps" for which in ids]
    searches = [_searches(wanted, place, regex) for wanted, place in zip(steps, places, strict=True)]
    texts = [completion_text(c) if regex else normal_text(completion_text(c)) for c in completions]
    return [_share_shown(text, looked_for, ordered) for text, looked_for in zip(texts, searches, strict=True)]


def _asked_steps(fixed_steps: Sequence[str], column: str, columns: Mapping[str, Any], rows: int) -> list[Any]:
    """The steps of every row, as they are given."""
    if bool(fixed_steps) == bool(column):
        said = "both" if column else "neither"
        raise RewardError(f"reward_options.key_steps: set either fixed_steps or column, not {said}: the steps of all prompts, or where each prompt's stand")
    if not column:
        return [list(fixed_steps)] * rows
    if column not in columns:
        raise RewardError(f"reward_options.key_steps.column is {column!r}, which is no column of the prompts: {nearest(column, sorted(columns))}")
    return [value.splitlines() if isinstance(value, str) else value for value in columns[column]]


def _searches(steps: Any, where: str, regex: bool) -> list[Search]:
    """How each different step is looked for."""
    if not isinstance(steps, list | tuple) or not all(isinstance(step, str) for step in steps):
        raise RewardError(f"reward 'key_steps': {where} holds {steps!r}: give a list of texts, or one text with a step a line")
    searches: list[Search]
    if regex:
        searches = [partial(_match_end, _compiled("key_steps", where, step)) for step in dict.fromkeys(steps) if step.strip()]
    else:
        searches = [partial(_phrase_end, step) for step in dict.fromkeys(map(normal_text, steps)) if step]
    if not searches:
        raise RewardError(f"reward 'key_steps': {where} holds no step: give every prompt at least one")
    return searches


def _share_shown(text: str, searches: Sequence[Search], ordered: bool) -> float:
    shown, start = 0, 0
    for search in searches:
        end = search(text, start)
        if end >= 0:
            shown, start = shown + 1, end if ordered else 0
    return shown / len(searches)


def _phrase_end(phrase: str, text: str, start: int) -> int:
    return phrase_end(text, phrase, start)


def _match_end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.search(text, start)
    return found.end() if found else -1


def _compiled(function: str, where: str, pattern: str) -> re.Pattern[str]:
    if not isinstance(pattern, str) or not pattern:
        raise RewardError(f"reward {function!r}: {where} must be a regular expression, got {pattern!r}")
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise RewardError(f"reward {function!r}: {where} must be a regular expression, got {pattern!r}: {error}") from error
