"""Answers that must be mathematically equivalent to the reference, whatever they are written like."""

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from grpo_core.rewards.answers import completion_text
from grpo_core.rewards.extraction import PLACES, final_answers
from grpo_core.rewards.outcomes import Invalid, RewardError
from grpo_core.rewards.quantities import TEXT_UNIT, are_equal, quantity, unit_of
from grpo_core.sandbox.grading import graders
from grpo_core.sandbox.guard import MAX_FORMULA, formula_refusal

MAX_RAW = 4 * MAX_FORMULA
"""Characters of a final answer before it is tidied."""
COMPLEX = re.compile(r"\\mathbb\{C\}|(?<![A-Za-z\\])i(?![A-Za-z])")
ASSIGNED = re.compile(r"([A-Za-z](?:_\{?[A-Za-z0-9]{1,3}\}?)?|[A-Za-z]\([A-Za-z]\))\s*=\s*([^=]+)")
WORDS = re.compile(r"[^\W\d_]{3,}")
TEXT = re.compile(r"\\text\{([^{}]*)\}")
LETTERS = re.compile(r"[A-Za-z]+")
NUMERIC = frozenset(("frac", "sqrt", "times", "cdot", "div", "pi", "log", "ln", "sin", "cos", "tan", "binom"))
"""Commands that a formula without variables is made of."""
SEPARATORS = re.compile(r",(?![0-9]{3}(?![0-9]))|;|\\text\{\s*(?:or|and)\s*\}|\b(?:or|and)\b")
OPENING, CLOSING = "([{", ")]}"
TIDY = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        ("−", "-"),
        ("[×✕]", r" \\times "),
        ("[·⋅]", r" \\cdot "),
        ("÷", "/"),
        ("≤", r" \\le "),
        ("≥", r" \\ge "),
        ("≠", r" \\ne "),
        ("∞", r" \\infty "),
        ("π", r" \\pi "),
        ("√", r" \\sqrt "),
        ("∪", r" \\cup "),
        ("∩", r" \\cap "),
        ("∈", r" \\in "),
        (r"°|\^\s*\{\s*\\circ\s*\}|\^\s*\\circ|\\degree(?![a-zA-Z])", ""),
        (r"\\(?:left|right)(?![a-zA-Z])|\\displaystyle", ""),
        (r"\{,\}", ","),
        (r"(?<=[0-9])\\[,;:]\s*(?=[0-9]{3}(?![0-9]))", ""),
        (r"\\!\s*", ""),
        (r"\\[,;: ]|\\q?quad(?![a-zA-Z])|~|\s+", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:mathrm|mathbf|mathit|textbf|textrm|textit|textnormal|mbox)(?![a-zA-Z])\s*", r"\\text"),
        (r"\\\$", "$"),
        (r"_\s*\{\s*([A-Za-z0-9])\s*\}", r"_\1"),
        (r"\*\*\s*([0-9]+|[A-Za-z])", r"^{\1}"),
        (r"\*\*", "^"),
        ("<=", r"\\le "),
        (">=", r"\\ge "),
        ("!=", r"\\ne "),
        (r"(?<![A-Za-z\\])(?:infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
        (r"(?<![A-Za-z\\])(sqrt|pi|sin|cos|tan|log|ln|exp)(?![A-Za-z])", r"\\\1 "),
    )
]
"""What is written in many ways, written in one."""


def math_answer(
    completions: Sequence[Any], answer: Sequence[str], *, extract: str = "auto", cpu_seconds: float = 3.0, **columns: object
) -> list[float | Invalid]:
    """1 when the completion's final answer is mathematically equivalent to the reference answer, else 0.

    `extract`: where the final answer stands: `boxed`, `answer` (tags), `math` (the last formula), `number` (the last one), `whole`, or `auto`
    (the first of these four that is there). Several different final answers are wrong: listing every option must not pay. No answer, one
    that cannot be read, and one that takes more than `cpu_seconds` of processor time are invalid. Raises RewardError for a reference answer
    that is none.
    """
    if extract != "auto" and extract not in PLACES:
        raise RewardError(f"reward_options.math_answer.extract must be one of auto, {', '.join(PLACES)}, got {extract!r}")
    if not 0 < cpu_seconds <= 600:
        raise RewardError(f"reward_options.math_answer.cpu_seconds must be above 0 and at most 600, got {cpu_seconds!r}")
    pairs = [(reference_text(a), final_answer(completion_text(c), extract)) for c, a in zip(completions, answer, strict=True)]
    outcomes = dict(zip(dict.fromkeys(pairs), compared(list(dict.fromkeys(pairs)), cpu_seconds), strict=True))
    claims = {pair: claimed(pair[1]) for pair, outcome in outcomes.items() if isinstance(pair[1], str) and outcome == 1.0}
    asked = list(dict.fromkeys(claim for sides in claims.values() for claim in sides))
    holds = dict(zip(asked, compared(asked, cpu_seconds, are_references=False), strict=True))
    wrong = {pair for pair, sides in claims.items() if not all(holds[claim] == 1.0 for claim in sides)}
    return [0.0 if pair in wrong else outcomes[pair] for pair in pairs]


def compared(pairs: Sequence[tuple[str, Any]], cpu_seconds: float, *, are_references: bool = True) -> list[float | Invalid]:
    """Outcomes of references and answers. Where the first are none, one that cannot be read is no fault of our data."""
    decided = [decide(*pair) for pair in pairs]
    open_pairs = [pair for pair, outcome in zip(pairs, decided, strict=True) if outcome is None]
    graded = iter(graded_formulas(open_pairs, cpu_seconds, are_references=are_references) if open_pairs else [])
    return [next(graded) if outcome is None else outcome for outcome in decided]


def claimed(found: str) -> list[tuple[str, str]]:
    """Sides of equations in an answer that hold no variable: they must be equal (`3+4=7`, and not `7=5`). A side that is rounded is not asked for."""
    claims = []
    for part in SEPARATORS.split(found):
        sides = [side.strip() for side in part.split("=") if is_constant(side)]
        claims += [(one, other) for one, other in pairwise(sides) if not is_rounded(one, other)]
    return claims


def is_rounded(one: str, other: str) -> bool:
    """Whether one side is a decimal number that the other one may have been rounded to; numbers further apart than that are not."""
    left, right = quantity(one), quantity(other)
    if left and right:
        return left.has_point != right.has_point and abs(left.value - right.value) <= abs(left.value) / 100
    return any(side is not None and side.has_point for side in (left, right))


def is_constant(text: str) -> bool:
    """Whether this is a whole formula of numbers alone."""
    return any(c in "0123456789" for c in text) and NUMERIC.issuperset(LETTERS.findall(text)) and depths(text)[-1:] == [0]


def depths(text: str) -> list[int]:
    """How many brackets are open after each character."""
    return list(accumulate((c in OPENING) - (c in CLOSING) for c in text))


def is_list(text: str) -> bool:
    """Whether a comma stands outside of brackets, or in one pair of brackets around everything: several values or an interval, no number."""
    deep = depths(text)
    inside = text[:1] in ("(", "[") or text.startswith("\\{")
    closes_last = inside and 0 not in deep[text.index("{") if text.startswith("\\{") else 0 : -1]
    commas = range(len(text)) if closes_last else (found.start() for found in SEPARATORS.finditer(text))
    return any(text[place] == "," and deep[place] == closes_last for place in commas)


def reference_text(answer: str) -> str:
    """The reference answer, tidied."""
    if not (text := tidied(answer)):
        raise RewardError(f"reward 'math_answer': the reference answer {answer!r} is empty; give every prompt an answer")
    return text


def final_answer(text: str, extract: str) -> str | Invalid | float:
    """The completion's final answer, tidied; 0.0 where it gives several."""
    found = list(dict.fromkeys(final_answers(text, extract)))
    if not found:
        return Invalid("no final answer")
    if any(len(one) > MAX_RAW for one in found):
        return Invalid(f"an answer longer than {MAX_RAW:,} characters")
    texts = [tidied(one) for one in found]
    if not texts[-1]:
        return Invalid("an empty answer")
    return texts[-1] if all(_same(one, texts[-1]) for one in texts) else 0.0


def decide(reference: str, found: str | Invalid | float) -> float | Invalid | None:
    """The outcome where no parser is needed; None where one is."""
    if not isinstance(found, str):
        return found
    if reference.split() == found.split():
        return 1.0
    if is_words(reference):
        return float(_words(reference) == _words(found))
    first, second = _unassigned(reference, found)
    left, right = quantity(first, is_reference=True), quantity(second)
    if left and right:
        return float(are_equal(left, right))
    if is_constant(first) and not is_list(first) and is_list(second):
        return 0.0
    return None if (refusal := formula_refusal(_without_unit(found))) is None else Invalid(refusal)


def graded_formulas(pairs: Sequence[tuple[str, Any]], cpu_seconds: float, *, are_references: bool = True) -> list[float | Invalid]:
    """The graders' verdicts on pairs of formulas."""
    plain = [tuple(map(_without_unit, _unassigned(*pair))) for pair in pairs]
    items = [{"reference": one, "found": other, "is_real": not (COMPLEX.search(one) or COMPLEX.search(other))} for one, other in plain]
    outcomes: list[float | Invalid] = []
    for (reference, found), verdict in zip(pairs, graders("mathematics").grade(items, cpu_seconds), strict=True):
        if verdict.is_our_data and are_references:
            raise RewardError(
                f"reward 'math_answer': the reference answer {reference!r} cannot be read ({verdict.reason}); correct it, cut the answer out with "
                "prompts.answer_pattern, or use exact_answer"
            )
        outcomes.append(Invalid(verdict.reason) if verdict.score is None else 0.0 if _units_differ(reference, found) else verdict.score)
    return outcomes


def tidied(text: str) -> str:
    """The text without what only dresses it: formula signs, bold, spacing, a final full stop; LaTeX's synonyms replaced."""
    plain = text.strip().rstrip(".,;").strip("*").strip()
    for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if len(plain) > len(opening) + len(closing) and plain.startswith(opening) and plain.endswith(closing):
            plain = plain[len(opening) : -len(closing)]
            break
    for pattern, replacement in TIDY:
        plain = pattern.sub(replacement, plain)
    plain = _unparenthesised_powers(plain).strip().rstrip(".,;").strip()
    inner = TEXT.fullmatch(plain)
    return inner[1].strip() if inner and not is_words(plain) else plain


def is_words(text: str) -> bool:
    """Whether a reference is a word or name, so that it is compared as text: in mathematics `east` would be a product, and equal to `seat`."""
    plain = TEXT.sub(r"\1", text)
    return "\\" not in plain and not any(c in "0123456789+*/^=<>{}[]|_" for c in plain) and (plain != text or WORDS.search(plain) is not None)


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() else " " for c in TEXT.sub(r"\1", text)).casefold().split()


def _same(one: str, other: str) -> bool:
    if one.split() == other.split():
        return True
    left, right = quantity(one), quantity(other)
    return left is not None and right is not None and are_equal(left, right)


def _unassigned(reference: str, found: str) -> tuple[str, str]:
    """Both without the `x =` that only one of them has, or that they share."""
    left, right = ASSIGNED.fullmatch(reference), ASSIGNED.fullmatch(found)
    if left and right:
        return (left[2].strip(), right[2].strip()) if _name(left) == _name(right) else (reference, found)
    if left and "=" not in found:
        return left[2].strip(), found
    return reference, right[2].strip() if right and "=" not in reference else found


def _name(assigned: re.Match[str]) -> str:
    return "".join(assigned[1].split()).lower()


def _unit_at_end(text: str) -> re.Match[str] | None:
    found = next((unit for unit in TEXT_UNIT.finditer(text) if unit.end() == len(text) and unit.start() > 0), None)
    return None if found is None or found[1].strip().lower() in ("and", "or", "percent") else found


def _without_unit(text: str) -> str:
    """`5\\sqrt{2}` of `5\\sqrt{2}\\text{ cm}`."""
    found = _unit_at_end(text)
    return text[: found.start()].strip() if found else text


def _units_differ(reference: str, found: str) -> bool:
    left, right = _unit_at_end(reference), _unit_at_end(found)
    names = (unit_of(left[1]), unit_of(right[1])) if left and right else ("", "")
    return all(names) and names[0] != names[1]


def _unparenthesised_powers(text: str) -> str:
    """`x^{1/2}` of `x^(1/2)`."""
    pieces, position = [], 0
    while (start := text.find("^(", position)) >= 0:
        depth, end = 0, start + 1
        while end < len(text):
            depth += (text[end] == "(") - (text[end] == ")")
            if depth == 0:
                break
            end += 1
        if end == len(text):
            break
        pieces.append(f"{text[position:start]}^{{{text[start + 2 : end]}}}")
        position = end + 1
    return "".join(pieces) + text[position:]
