"""Why a text must not reach a grading library, or None: read by plain string code, before any parser sees it."""

import re

MAX_FORMULA = 400
"""Characters of a formula; the longest answer in the MATH data set has fewer than 200."""
MAX_NESTING = 12
MAX_POWERS = 12
"""`^` signs in a formula."""
MAX_DIGITS = 60
"""Digits of one number in a formula."""
MAX_EXPONENT_DIGITS = 4
MAX_FACTORIAL_DIGITS = 4
MAX_ANSWER = 20_000
"""Characters of an answer to a task of reasoning-gym: towers of Hanoi take thousands."""

MAX_ALGEBRA = 4_000
"""Characters of an answer that is a polynomial or an antiderivative."""

FORMULA_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 +-*/^_(){}[]|=<>.,:!%&\\")
GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi varphi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
)
OPERATORS = "frac sqrt binom cdot times div pm mp le leq ge geq lt gt ne neq approx in notin cup cap setminus infty emptyset varnothing circ"
FUNCTIONS = "sin cos tan sec csc cot arcsin arccos arctan sinh cosh tanh log ln exp min max gcd lcm"
SHAPES = "text mathbb overline bar hat vec lfloor rfloor lceil rceil begin end"
COMMANDS = frozenset(f"{GREEK} {OPERATORS} {FUNCTIONS} {SHAPES}".split())
"""LaTeX commands that a formula may hold. No sums, integrals or limits, no `\\operatorname` (it makes matrices of any size), no `\\ldots`
(the library drops them, so that a set without end would equal a short one)."""
ENVIRONMENTS = frozenset(("pmatrix", "bmatrix", "vmatrix", "matrix"))
TEXT_IN_FORMULA = frozenset(("and", "or"))

COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
WORD = re.compile(r"(?<!\\)(?<![A-Za-z])[A-Za-z]{3,}")
NUMBER = re.compile(r"[0-9][0-9,]*")
HUGE_EXPONENT = re.compile(rf"\^\s*\{{?\s*-?[0-9]{{{MAX_EXPONENT_DIGITS + 1}}}|[0-9][eE][+-]?[0-9]{{{MAX_EXPONENT_DIGITS}}}")
FACTORIAL = re.compile(rf"[0-9]{{{MAX_FACTORIAL_DIGITS + 1}}}\s*!|!\s*\)*\s*!")
DOUBLE_POWER = re.compile(r"\^\s*(?:\{[^{}]*\}|[A-Za-z0-9])\s*\^")
BASE = re.compile(r"[0-9]\s*_")
"""A number in another base: the library drops the base, so that 42 in base 8 would be 42."""
TEXT = re.compile(r"\\text\{([^{}]*)\}")
ENVIRONMENT = re.compile(r"\\(?:begin|end)\{([^{}]*)\}")


def formula_refusal(text: str) -> str | None:
    """Why this formula (LaTeX, tidied) is not given to the parser."""
    if len(text) > MAX_FORMULA:
        return f"an answer of {len(text):,} characters, longer than {MAX_FORMULA}"
    if strange := set(text) - FORMULA_CHARACTERS:
        return f"characters that no answer needs: {' '.join(f'U+{ord(character):04X}' for character in sorted(strange)[:5])}"
    return _strange_command(text) or _strange_word(text) or _too_much(text)


def _strange_command(text: str) -> str | None:
    names = {name for name in COMMAND.findall(text) if name not in COMMANDS and name not in ("{", "}", "%", "|", "\\")}
    names |= {name for name in ENVIRONMENT.findall(text) if name not in ENVIRONMENTS}
    return f"commands that no answer needs: {' '.join(sorted(names)[:5])}" if names else None


def _strange_word(text: str) -> str | None:
    """Words are no formula: `and` and `or` join answers, others stand for nothing that could be compared."""
    plain = ENVIRONMENT.sub(" ", TEXT.sub(lambda match: f" {match[1]} ", text))
    words = [word for word in WORD.findall(COMMAND.sub(" ", plain)) if word not in TEXT_IN_FORMULA]
    return f"words in a formula: {' '.join(words[:3])}"[:80] if words or "__" in text else None


def _too_much(text: str) -> str | None:
    if _depth(text) > MAX_NESTING:
        return f"brackets nested more than {MAX_NESTING} deep"
    if text.count("^") > MAX_POWERS or _tower(text) > 2 or DOUBLE_POWER.search(text):
        return "a tower of powers"
    if HUGE_EXPONENT.search(text):
        return f"an exponent of more than {MAX_EXPONENT_DIGITS} digits"
    if FACTORIAL.search(text):
        return "a factorial too large to write down"
    if any(len(number) > MAX_DIGITS for number in NUMBER.findall(text)):
        return f"a number of more than {MAX_DIGITS} digits"
    return "a number with a subscript" if BASE.search(text) else None


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _tower(text: str) -> int:
    """How high powers of powers get: 1 for `x^{2}y^{3}`, 3 for `9^{9^{9^9}}`."""
    is_exponent: list[bool] = []
    highest, follows_power = 0, False
    for character in text:
        if character in ")]}" and is_exponent:
            is_exponent.pop()
        elif character in "([{":
            is_exponent.append(follows_power)
        elif character == "^":
            highest = max(highest, sum(is_exponent) + 1)
        if character != " ":
            follows_power = character == "^"
    return highest


ARITHMETIC_CHARACTERS = frozenset("0123456789+-*/() \n\t")
ALGEBRA_CHARACTERS = ARITHMETIC_CHARACTERS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,")
ALGEBRA_FUNCTIONS = "Abs acos acosh asin asinh atan atanh cos cosh cot csc exp ln log pi sec sin sinh sqrt tan tanh"
ALGEBRA_NAMES = frozenset(ALGEBRA_FUNCTIONS.split())
NO_VARIABLES = frozenset("SNOQ")
"""One-letter names that sympy's parser takes for functions."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")
POINT = re.compile(r"(?<![0-9])\.|\.(?![0-9])")
ALGEBRA_POWER = re.compile(r"\*\*\(?-?[0-9]{4}|\*\*[^*]{0,40}\*\*\(?-?[0-9]{2}")
EVALUATED = {
    "countdown": "arithmetic",
    "puzzle24": "arithmetic",
    "simple_integration": "algebra",
    "intermediate_integration": "algebra",
    "polynomial_multiplication": "algebra",
}
"""Tasks of reasoning-gym whose verifier evaluates the answer as a Python expression."""


def answer_refusal(task: str, answer: str) -> str | None:
    """Why this answer is not given to the task's verifier."""
    if len(answer) > MAX_ANSWER:
        return f"an answer of {len(answer):,} characters, longer than {MAX_ANSWER:,}"
    if any((character < " " and character not in "\n\t\r") or "\ud800" <= character <= "\udfff" for character in answer):
        return "control characters in the answer"
    kind = EVALUATED.get(task)
    if kind == "arithmetic":
        return _arithmetic_refusal(answer)
    return _algebra_refusal(answer) if kind == "algebra" else None


def _arithmetic_refusal(answer: str) -> str | None:
    """Digits, the four operations and brackets: no way to write a number without its digits, and nothing to call."""
    if len(answer) > MAX_FORMULA or set(answer) - ARITHMETIC_CHARACTERS or "**" in answer or "//" in answer:
        return f"more than numbers, + - * / and brackets in at most {MAX_FORMULA} characters"
    return _deep(answer)


def _algebra_refusal(answer: str) -> str | None:
    """Numbers, one-letter names and elementary functions. No `Integral(...)`: the task itself would be its own answer."""
    names = {name for name in NAME.findall(answer) if name not in ALGEBRA_NAMES and (len(name) > 1 or name in NO_VARIABLES)}
    if len(answer) > MAX_ALGEBRA or set(answer) - ALGEBRA_CHARACTERS or names or POINT.search(answer):
        return f"more than numbers, one-letter names and elementary functions in at most {MAX_ALGEBRA:,} characters"
    if ALGEBRA_POWER.search(answer.replace(" ", "")) or any(len(number) > MAX_DIGITS for number in NUMBER.findall(answer)):
        return "powers or numbers too large"
    return _deep(answer)


def _deep(answer: str) -> str | None:
    return f"brackets nested more than {MAX_NESTING} deep" if _depth(answer) > MAX_NESTING else None
