import time
from collections.abc import Callable
from typing import Any

import pytest

from bench.math_grading import RIGHT, WRONG
from grpo_core.rewards.mathematics import is_words, math_answer, tidied
from grpo_core.rewards.outcomes import Invalid, RewardError
from tests.grpo_core.rewards.hostile_answers import HOSTILE

EQUIVALENT = [
    # numbers
    ("1/2", r"\boxed{0.5}"),
    (r"\frac{1}{2}", r"\boxed{\dfrac12}"),
    ("0.5", r"$\frac{1}{2}$"),
    (r"-\frac{1}{2}", r"\boxed{\frac{-1}{2}}"),
    (r"-\frac{1}{2}", r"\boxed{-.5}"),
    ("1/3", r"\boxed{0.333333}"),
    (r"\frac{3}{2}", r"\boxed{1\frac{1}{2}}"),
    ("1.5", r"\boxed{1 1/2}"),
    ("1234.5", r"\boxed{\$1,234.50}"),
    ("1,234", "The answer is 1234."),
    (r"11,\! 111", r"\boxed{11111}"),
    ("1500", r"\boxed{1.5\times10^{3}}"),
    ("1500", r"\boxed{1.5e3}"),
    ("1000", r"\boxed{10^3}"),
    ("2^{10}", r"\boxed{1024}"),
    ("16", r"\boxed{2^{2^2}}"),
    ("120", r"\boxed{5!}"),
    ("12", r"\boxed{3 \times 4}"),
    ("-5", "\\boxed{\u22125}"),
    ("3.0", r"\boxed{3}"),
    # percent, money, units, degrees
    ("12%", r"\boxed{12\%}"),
    ("12", r"\boxed{12\%}"),
    ("0.12", r"\boxed{12\%}"),
    ("9%", r"\boxed{0.09}"),
    ("9%", r"\boxed{9}"),
    ("18", "She makes $18 every day."),
    ("18", "He pays $5 and gets $3, so $18"),
    (r"\$18", r"\boxed{18\text{ dollars}}"),
    ("5", r"\boxed{5\text{ meters}}"),
    ("5", r"\boxed{5 apples}"),
    (r"5\text{ cm}", r"\boxed{5}"),
    (r"5\text{ cm}", r"\boxed{5 centimeters}"),
    (r"5\sqrt{2}\text{ cm}", r"\boxed{\sqrt{50}}"),
    ("36", "36 square inches"),
    (r"90^\circ", r"\boxed{90}"),
    ("90", "\\boxed{90\u00b0}"),
    ("3:2", r"\boxed{3:2}"),
    # roots, constants, algebra
    (r"2\sqrt{3}", r"\boxed{\sqrt{12}}"),
    (r"\sqrt{3}/3", r"\boxed{\frac{1}{\sqrt{3}}}"),
    (r"2\pi", "\\boxed{2\u03c0}"),
    (r"\frac{\pi}{3}", r"\boxed{pi/3}"),
    (r"\infty", r"\boxed{inf}"),
    ("x^2-1", r"\boxed{(x-1)(x+1)}"),
    ("(x+1)^2", r"\boxed{x**2 + 2*x + 1}"),
    (r"\frac{1}{x}", r"\boxed{x^{-1}}"),
    ("x^{1/2}", r"\boxed{x^(1/2)}"),
    (r"\log_2 3", r"\boxed{\frac{\ln 3}{\ln 2}}"),
    (r"\sin^2 x", r"\boxed{1-\cos^2 x}"),
    ("3+4i", r"\boxed{4i+3}"),
    # equations and assignments
    ("5", "x = 5"),
    ("5", r"$$x = 5$$"),
    ("x=5", r"\boxed{5}"),
    ("f(x)=x^2", r"\boxed{x^2}"),
    ("7", r"\boxed{3+4=7}"),
    ("7", r"\boxed{x = 3+4 = 7}"),
    ("0.5", r"\boxed{50\% = 0.5}"),
    ("33.33", r"\boxed{\frac{100}{3} = 33.33}"),
    ("1.41", r"\boxed{\sqrt{2} = 1.41}"),
    ("1,2", r"\boxed{x=1, x=2}"),
    ("5", r"\boxed{a+b=5}"),
    ("y=2x+1", r"\boxed{2x-y+1=0}"),
    ("y=2x+1", r"\boxed{y = 1+2x}"),
    (r"x=1\text{ or }x=2", r"\boxed{x=2 \text{ or } x=1}"),
    ("1,2", r"\boxed{x=1 or x=2}"),
    # sets, tuples, intervals, inequalities, matrices
    (r"\{1,2\}", r"\boxed{\{2,1\}}"),
    (r"\{1,2\}", r"\boxed{1,2}"),
    ("1,2", r"\boxed{2, 1}"),
    (r"\pm 2", r"\boxed{2,-2}"),
    ("1,2,3", "the roots are $1,2,3$"),
    ("(1,2)", r"\boxed{(1,2)}"),
    (r"(\frac12, 3)", r"\boxed{\left( 0.5, 3 \right)}"),
    ("[0,1)", r"\boxed{[0,1)}"),
    (r"(-\infty,2)", r"\boxed{x<2}"),
    (r"x\le 3", r"\boxed{3 \ge x}"),
    (r"(-\infty,2]\cup[3,\infty)", r"\boxed{[3,\infty)\cup(-\infty,2]}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{pmatrix}\frac{2}{2}\\2\end{pmatrix}}"),
    # words
    (r"\text{Evelyn}", r"\boxed{Evelyn}"),
    ("(A)", r"\boxed{A}"),
    ("A", r"\boxed{\text{(A)}}"),
    ("even", r"\boxed{\text{Even}}"),
    ("1010_2", r"\boxed{1010_{2}}"),
    # where the answer stands
    ("42", "<answer>42</answer>"),
    ("42", r"\boxed{42} so \boxed{42.0}"),
    ("42", r"<think>\boxed{41}</think> It is \boxed{42}"),
    ("5", r"\[ \boxed{5} \]"),
    ("5", r"\fbox{5}"),
    ("5", r"**\boxed{5}**"),
    ("72", "Natalia sold 48+24 = 72 clips.\n#### 72"),
    ("1", r"The probability is $\frac{2}{2}$."),
]
DIFFERENT = [
    ("5", r"\boxed{7=5}"),
    ("7", r"\boxed{7=5}"),
    ("5", r"\boxed{2+2=5}"),
    ("5", r"\boxed{7.0=5}"),
    ("5", r"\boxed{x=7=5}"),
    ("5", r"\boxed{\frac{14}{2}=5}"),
    ("5", r"\boxed{7+0=5}"),
    ("x=5", r"\boxed{7=5}"),
    ("5", r"\boxed{[5,5]}"),
    ("100", r"\boxed{[100,100]}"),
    ("5", r"\boxed{(5,5)}"),
    ("5", r"\boxed{5,5}"),
    ("5", r"\boxed{\{5,5\}}"),
    (r"\sqrt{2}", r"\boxed{[\sqrt{2},\sqrt{2}]}"),
    ("5", r"\boxed{5 a-b}"),
    ("5", r"\boxed{5xy}"),
    ("1/3", r"\boxed{0.33}"),
    ("0.33", r"\boxed{\frac{1}{3}}"),
    ("5", r"\boxed{5.0000001}"),
    ("0", r"\boxed{0.0000001}"),
    ("0.0000002", r"\boxed{0.0000004}"),
    (r"10^{-20}", r"\boxed{2\cdot 10^{-20}}"),
    (r"10^{-20}", r"\boxed{0}"),
    ("0.5", r"\boxed{0.5\%}"),
    ("9", r"\boxed{0.09}"),
    ("5", r"\boxed{5 million}"),
    ("5", r"\boxed{5!}"),
    (r"5\text{ cm}", r"\boxed{5 \text{ m}}"),
    (r"5\sqrt{2}\text{ cm}", r"\boxed{5\sqrt{2}\text{ km}}"),
    ("5t", r"\boxed{5}"),
    ("5m", r"\boxed{5}"),
    (r"\pi", r"\boxed{3.14}"),
    ("(x+1)^2", r"\boxed{x^2+1}"),
    ("x=5", r"\boxed{y=5}"),
    ("1,2", r"\boxed{1,2,3}"),
    ("2", r"\boxed{1 \text{ or } 2}"),
    ("2", r"\boxed{\pm 2}"),
    ("(1,2)", r"\boxed{(2,1)}"),
    ("[0,1)", r"\boxed{[0,1]}"),
    (r"\{1,2\}", r"\boxed{\{1,2,\ldots\}}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{pmatrix}1\\3\end{pmatrix}}"),
    (r"\text{Evelyn}", r"\boxed{Evelny}"),
    ("east", r"\boxed{\text{seat}}"),
    ("even", r"\boxed{even or odd}"),
    ("A", r"\boxed{B}"),
    ("10", r"\boxed{1010_2}"),
    ("42", r"\boxed{41} \boxed{42}"),
    ("42", "<answer>41</answer><answer>42</answer>"),
    ("42", "It is 42, no, 41"),
]


def grade(text: str, reference: str, **options: Any) -> float | Invalid:
    (outcome,) = math_answer([text], [reference], **options)
    return outcome


def test_equivalent_answers_are_right() -> None:
    outcomes = math_answer([text for _, text in EQUIVALENT], [reference for reference, _ in EQUIVALENT])
    assert [(pair, outcome) for pair, outcome in zip(EQUIVALENT, outcomes, strict=True) if outcome != 1.0] == []


def test_other_answers_are_not() -> None:
    outcomes = math_answer([text for _, text in DIFFERENT], [reference for reference, _ in DIFFERENT])
    assert [(pair, outcome) for pair, outcome in zip(DIFFERENT, outcomes, strict=True) if outcome != 0.0 and not isinstance(outcome, Invalid)] == []


@pytest.mark.parametrize(("spellings", "expected"), [(RIGHT, 1.0), (WRONG, 0.0)])
def test_ten_spellings_of_a_whole_number(spellings: dict[str, Callable[[int], str]], expected: float) -> None:
    numbers = (72, 10, 5, 0, -3, 1080, 124_600, 99)
    texts = [write(number) for write in spellings.values() for number in numbers]
    outcomes = math_answer(texts, [f"{number:,}" for _ in spellings for number in numbers])
    assert [(text, outcome) for text, outcome in zip(texts, outcomes, strict=True) if outcome != expected] == []


def test_hostile_answers_are_never_right_and_never_hang() -> None:
    assert len(HOSTILE) > 100
    started = time.monotonic()
    outcomes = math_answer(list(HOSTILE.values()), ["42"] * len(HOSTILE), cpu_seconds=0.5)
    assert [name for name, outcome in zip(HOSTILE, outcomes, strict=True) if outcome != 0.0 and not isinstance(outcome, Invalid)] == []
    assert time.monotonic() - started < 60
    assert grade(r"\boxed{41+1}", "42") == 1.0, "and the graders are still there"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no final answer"),
        (r"\boxed{}", "an empty answer"),
        (r"\boxed{" + "1+" * 300 + "1}", "an answer of 601 characters"),
        (r"\boxed{__import__('os').system('id')}", "characters that no answer needs: U+0027"),
        (r"\boxed{\input{x}}", "commands that no answer needs: input"),
        (r"\boxed{9^{9^{9^9}}}", "a tower of powers"),
        (r"\boxed{2^{10000}}", "an exponent of more than 4 digits"),
        (r"\boxed{(((9!)!)!)!}", "a factorial too large"),
        (r"\boxed{\frac{1}}", "the grader could not read it"),
        (r"\boxed{(x+y+z+1)^{99}-(x+y+z+1)^{98}}", "took more than 0.5 s of processor time"),
    ],
)
def test_an_invalid_answer_says_why(text: str, reason: str) -> None:
    outcome = grade(text, "x+42", cpu_seconds=0.5)
    assert isinstance(outcome, Invalid) and outcome.reason.startswith(reason), outcome


@pytest.mark.parametrize(
    ("extract", "text", "expected"),
    [
        ("boxed", r"\boxed{42} and then 43", 1.0),
        ("boxed", "42", "no final answer"),
        ("answer", r"\boxed{41} <answer>42</answer>", 1.0),
        ("math", r"\boxed{41} $42$", 1.0),
        ("number", r"\boxed{41} or 42", 1.0),
        ("whole", "42", 1.0),
        ("whole", "the answer is 42", "words in a formula: the answer"),
        ("auto", r"\boxed{41} <answer>42</answer> $42$ 42", 0.0),
    ],
)
def test_where_the_answer_is_looked_for(extract: str, text: str, expected: float | str) -> None:
    outcome = grade(text, "42", extract=extract)
    assert outcome.reason.startswith(expected) if isinstance(outcome, Invalid) and isinstance(expected, str) else outcome == expected


def test_chats_are_graded_by_their_last_message() -> None:
    chat = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": r"\boxed{42}"}]
    assert math_answer([chat], ["42"], prompts=["?"], anything=[1]) == [1.0]


@pytest.mark.parametrize("reference", [r"\frac{1}{", r"x + \unknowncommand{3}", "3 + + = 2"])
def test_a_reference_that_cannot_be_read_is_our_fault(reference: str) -> None:
    with pytest.raises(RewardError, match=r"the reference answer .* cannot be read"):
        grade(r"\boxed{x^2}", reference)


def test_an_empty_reference_is_our_fault() -> None:
    with pytest.raises(RewardError, match="is empty"):
        grade(r"\boxed{x^2}", " ")


def test_a_reference_that_takes_too_long_is_our_fault() -> None:
    with pytest.raises(RewardError, match=r"took more than 0\.5 s"):
        grade(r"\boxed{x^2}", r"\binom{9999999}{4999999}", cpu_seconds=0.5)


def test_options_are_checked() -> None:
    with pytest.raises(RewardError, match="extract must be one of auto, boxed, answer, math, number, whole, got 'box'"):
        grade("42", "42", extract="box")
    with pytest.raises(RewardError, match="cpu_seconds must be above 0"):
        grade("42", "42", cpu_seconds=0.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r" $\left(\tfrac{1}{2}, 3\right)$. ", r"(\frac{1}{2}, 3)"),
        (r"\mathbf{5}", "5"),
        (r"\text{ 5 }", "5"),
        ("**7**", "7"),
        ("x^(y+(1))", "x^{y+(1)}"),
        ("2**10", "2^{10}"),
        (r"30^{\circ}", "30"),
        (r"1{,}234", "1,234"),
        (r"1\,234\,567", "1234567"),
        (r"1,\,2", "1, 2"),
    ],
)
def test_dress_is_taken_off(text: str, expected: str) -> None:
    assert tidied(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("Evelyn", True), (r"\text{A}", True), ("A", False), ("xy", False), (r"\pi", False), ("x+1", False)])
def test_words_are_told_from_products(text: str, expected: bool) -> None:
    assert is_words(text) == expected
