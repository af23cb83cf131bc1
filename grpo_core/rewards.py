"""What a completion earns: plain functions, called as the ecosystem calls them, checked, weighted and summed.

A reward function takes keyword lists, one entry a completion, and returns one number each (None: no opinion):

    def my_reward(prompts, completions, answer, **columns) -> list[float | None]

`prompts` and `completions` are texts (for chat prompts lists of messages, as in TRL); every column of the prompts table comes by
its name; `completion_ids` and `raw_completions` hold token ids and the text with special tokens.
"""

import hashlib
import importlib
import inspect
import math
import re
import traceback
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from numbers import Real
from pathlib import Path
from typing import Any

RewardFunction = Callable[..., list[float | None]]

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
WORKED = re.compile(r"\s*<think>.*?</think>\s*<answer>[^<>]+</answer>\s*", re.DOTALL)
NUMBER = re.compile(r"(?:(?<![\w.)\]])-)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")
"""A number in running text: `1,234.5`, `-3`; in `10-3` the last one is 3, and `1,2,3` is a list of which the last is 3."""


class RewardError(ValueError):
    """A reward that cannot be used: names the function, the row and the value. Training stops before the update."""


def completion_text(completion: str | Sequence[Mapping[str, str]]) -> str:
    """The model's own words, whether it answered a text or a chat."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def exact_answer(completions: Sequence[Any], answer: Sequence[str], **columns: object) -> list[float | None]:
    """1 when the only `<answer>…</answer>` holds the reference answer (white space, case and unicode form aside), else 0.

    Several answers score 0: listing every option must not pay.
    """
    return [float(len(found := ANSWER.findall(completion_text(c))) == 1 and _same_text(found[0], a)) for c, a in zip(completions, answer, strict=True)]


def number_answer(completions: Sequence[Any], answer: Sequence[str], **columns: object) -> list[float | None]:
    """1 when the last number in the completion equals the reference answer as a number (`1,234.0` is `1234`), else 0."""
    numbers = [_reference_number(a) for a in answer]
    return [float(_last_number(completion_text(c)) == number) for c, number in zip(completions, numbers, strict=True)]


def answer_format(completions: Sequence[Any], **columns: object) -> list[float | None]:
    """1 when the whole completion reads `<think>…</think><answer>…</answer>`, whatever is thought or answered, else 0."""
    return [float(WORKED.fullmatch(completion_text(c)) is not None) for c in completions]


BUILT_IN: dict[str, RewardFunction] = {"exact_answer": exact_answer, "number_answer": number_answer, "answer_format": answer_format}


def _same_text(found: str, answer: str) -> bool:
    return _normal(found) == _normal(answer) != ""


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


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


def load_reward(name: str) -> RewardFunction:
    """The built-in function `name`, or the one at the import path `package.module:function`."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, _, function = name.partition(":")
    if not function:
        raise RewardError(f"no built-in reward function {name!r} ({', '.join(BUILT_IN)}); give your own as package.module:function")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise RewardError(f"rewards.{name}: cannot import {module!r} ({error}); it must be importable from the repository root") from error
    if not callable(found):
        raise RewardError(f"rewards.{name}: module {module!r} has no function {function!r}")
    return found


def code_hash(names: Sequence[str]) -> str:
    """First 16 hex digits over the code of these reward functions: changes when any of it may have changed.

    That of a built-in function is this file. That of `package.module:function` is the file which defines the function and every .py file
    of its top-level package, for it may import any of them; of a module in no package it is the one file. Other packages are left out.
    """
    digest = hashlib.sha256()
    for name in sorted(names):
        for place, path in sorted(_code_files(name).items()):
            digest.update(f"{name}\0{place}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _code_files(name: str) -> dict[str, Path]:
    """The files that hold a reward function's code, by a name that is the same in every checkout."""
    own = Path(inspect.getfile(load_reward(name)))
    if name in BUILT_IN:
        return {own.name: own}
    module = name.partition(":")[0]
    path = Path(inspect.getfile(importlib.import_module(module)))
    depth = module.count(".") + (path.name == "__init__.py")
    if depth == 0:
        return {own.name: own, path.name: path}
    top = path.parents[depth - 1]
    shown = [file for file in top.rglob("*.py") if not any(part.startswith(".") for part in file.relative_to(top).parts)]
    return {own.name: own} | {f"{top.name}/{file.relative_to(top)}": file for file in shown}


@dataclass(frozen=True, slots=True)
class Scores:
    """What every reward function said about every completion."""

    by_function: dict[str, list[float | None]]
    totals: list[float | None]
    """Weighted sum over the functions that had an opinion; None where none had."""


def score(
    weights: Mapping[str, float], prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]], where: Sequence[str]
) -> Scores:
    """Every function's rewards and their weighted sum. `where` names each row for error messages ("step 3, prompt ab12, completion 0")."""
    by_function = {name: _checked(name, _call(name, prompts, completions, columns, where), completions, where) for name in weights}
    totals: list[float | None] = []
    for row in range(len(completions)):
        known = [weights[name] * value for name, values in by_function.items() if (value := values[row]) is not None]
        totals.append(_checked_total(known, where[row]) if known else None)
    return Scores(by_function, totals)


def _call(name: str, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]], where: Sequence[str]) -> object:
    """What the function returns; whatever it raises, whoever wrote it, stops the run as a RewardError with the first row it was given."""
    function = load_reward(name)
    try:
        return function(prompts=prompts, completions=completions, **columns)
    except RewardError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename == inspect.getfile(function)]
        line = (own or frames)[-1]
        place = f"{line.filename} line {line.lineno}: {line.line}"
        raise RewardError(f"reward {name!r} raised {type(error).__name__}: {error} ({place}), scoring {len(where)} completions from {where[0]} on") from error


def _is_finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond any float
        return False


def _checked_total(parts: list[float], where: str) -> float:
    try:
        total = math.fsum(parts)
    except OverflowError:
        total = math.inf
    if not math.isfinite(total):
        raise RewardError(f"the weighted sum of rewards for {where} is not a finite number ({' + '.join(map(str, parts))}): use smaller rewards or weights")
    return total


def _checked(name: str, values: object, completions: Sequence[Any], where: Sequence[str]) -> list[float | None]:
    if not isinstance(values, list | tuple) or len(values) != len(completions):
        got = f"{len(values)} values" if isinstance(values, list | tuple) else f"a {type(values).__name__}"
        raise RewardError(f"reward {name!r} must return a list of {len(completions)} numbers, one a completion; it returned {got}")
    return [_checked_value(name, value, completions[row], where[row]) for row, value in enumerate(values)]


def _checked_value(name: str, value: object, completion: Any, where: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, Real) or not _is_finite(value):
        text = completion_text(completion)
        raise RewardError(f"reward {name!r} returned {value!r} for {where}: a reward is a finite number or None; the completion was {text[:200]!r}")
    return float(value)
