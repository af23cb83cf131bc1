"""Answers that must equal the reference, as text or as a number, and the format that holds them."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from grpo_core.rewards.extraction import tagged
from grpo_core.rewards.normal_text import INVISIBLE, normal_text
from grpo_core.rewards.outcomes import RewardError

WORKED = re.compile(r"\s*<think>.*?</think>\s*<answer>[^<>]+</answer>\s*", re.DOTALL)
NUMBER = re.compile(r"(?:(?<![\w.)\]])-)?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?")
"""A number in running text, in Latin digits: `1,234.5`, `-3`; in `10-3` the last one is 3, and `1,2,3` is a list of which the last is 3."""


def completion_text(completion: str | Sequence[Mapping[str, str]]) -> str:
    """The model's own words, whether it answered a text or a chat."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def exact_answer(completions: Sequence[Any], answer: Sequence[str], **columns: object) -> list[float | None]:
    """1 when the only `<answer>…</answer>` holds the reference answer (white space, case and unicode form aside), else 0.

    Several answers score 0: listing every option must not pay. So does an answer with characters that show nothing, which is no longer the text it seems.
    """
    return [float(len(found := tagged(completion_text(c))) == 1 and _same_text(found[0], a)) for c, a in zip(completions, answer, strict=True)]


def number_answer(completions: Sequence[Any], answer: Sequence[str], **columns: object) -> list[float | None]:
    """1 when the last number in the completion equals the reference answer as a number (`1,234.0` is `1234`), else 0."""
    numbers = [_reference_number(a) for a in answer]
    return [float(_last_number(completion_text(c)) == number) for c, number in zip(completions, numbers, strict=True)]


def answer_format(completions: Sequence[Any], **columns: object) -> list[float | None]:
    """1 when the whole completion reads `<think>…</think><answer>…</answer>`, whatever is thought or answered, else 0."""
    return [float(WORKED.fullmatch(completion_text(c)) is not None) for c in completions]


def _same_text(found: str, answer: str) -> bool:
    hidden = set(found) & set(INVISIBLE) - set(answer)
    return normal_text(found) == normal_text(answer) != "" and not hidden


def _last_number(text: str) -> Decimal | None:
    found = NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


def _reference_number(answer: str) -> Decimal:
    """The reference answer as a number. It is our own data: what is none raises, it does not score 0 for everybody."""
    try:
        return Decimal(answer.strip().replace(",", ""))
    except InvalidOperation as error:
        raise RewardError(
            f"reward 'number_answer': the reference answer {answer!r} is not a number; use exact_answer, or cut it out with prompts.answer_pattern"
        ) from error
