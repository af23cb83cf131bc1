from typing import Any

import pytest

from grpo_core.rewards.answers import answer_format, exact_answer, number_answer
from grpo_core.rewards.outcomes import RewardError


def grade(function: Any, completion: Any, answer: str = "42") -> float:
    (value,) = function(completions=[completion], answer=[answer], prompts=["?"], anything="ignored")
    return float(value)


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("<answer>42</answer>", "42", 1),
        ("I think <answer> 42\n</answer> it is", "42", 1),
        ("<think>41?</think><answer>42</answer>", "42", 1),
        ("<answer>New\u00a0 York</answer>", "new york", 1),
        ("<answer>\uff14\uff12</answer>", "42", 1),  # full-width digits
        ("<answer>caf\u0065\u0301</answer>", "Caf\u00e9", 1),  # combining accent
        ("<answer>STRASSE</answer>", "stra\u00dfe", 1),
        ("<answer>a\nb</answer>", "a b", 1),
        ("<answer>43</answer>", "42", 0),
        ("<answer>42</answer><answer>42</answer>", "42", 0),
        ("<answer>41</answer> or <answer>42</answer>", "42", 0),
        ("<answer>4 2</answer>", "42", 0),
        ("<answer>42", "42", 0),
        ("42", "42", 0),
        ("", "42", 0),
        ("<answer></answer>", "42", 0),
        ("<answer></answer>", "", 0),
        ("<answer> </answer>", " ", 0),
    ],
)
def test_the_one_answer_must_be_the_reference(completion: str, answer: str, expected: float) -> None:
    assert grade(exact_answer, completion, answer) == expected


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("so it is 1,234.0", "1234", 1),
        ("1234", "1,234.00", 1),
        ("first 7, then 8.", "8", 1),
        ("first 8, then 7.", "8", 0),
        ("-3", "-3", 1),
        ("3", "-3", 0),
        ("$0.10", ".10", 1),
        ("#### 42", " 42 ", 1),
        ("no number at all", "42", 0),
        ("", "42", 0),
        ("0.30000000000000004", "0.3", 0),
    ],
)
def test_the_last_number_must_be_the_reference(completion: str, answer: str, expected: float) -> None:
    assert grade(number_answer, completion, answer) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>5+7=12</think><answer>12</answer>", 1),
        ("<think></think>\n<answer>wrong</answer>\n", 1),
        ("<think>a\nb</think><answer>1</answer>", 1),
        ("<answer>12</answer>", 0),
        ("<think>5</think><answer></answer>", 0),
        ("<think>5</think><answer>12</answer> done", 0),
        ("well <think>5</think><answer>12</answer>", 0),
        ("<think>5</think><answer>1</answer><answer>2</answer>", 0),
        ("<think>5</think><answer><answer>2</answer>", 0),
        ("<think>5<answer>12</answer>", 0),
        ("", 0),
    ],
)
def test_the_whole_completion_must_read_think_then_answer(completion: str, expected: float) -> None:
    assert grade(answer_format, completion) == expected


@pytest.mark.parametrize("function", [exact_answer, number_answer, answer_format])
def test_a_chat_completion_is_graded_by_its_last_message(function: Any) -> None:
    text = "<think></think><answer>42</answer>"
    assert grade(function, [{"role": "assistant", "content": text}]) == grade(function, text) == 1


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("10-3", "3"),
        ("1,2,3", "3"),
        ("it is 1,234.50.", "1234.5"),
        ("so -7", "-7"),
        ("(-7)", "-7"),
        ("5 and 12", "12"),
        ("$1,000,000", "1000000"),
        ("x-4", "4"),
    ],
)
def test_the_last_number_of_a_text_is_read_as_a_person_reads_it(text: str, right: str) -> None:
    assert number_answer(completions=[text, "none"], answer=[right, right]) == [1.0, 0.0]


def test_a_reference_answer_that_is_no_number_is_our_mistake_not_the_models() -> None:
    with pytest.raises(RewardError, match=r"the reference answer 'x=3' is not a number"):
        number_answer(completions=["3"], answer=["x=3"])


def test_a_long_run_of_accents_takes_no_longer_than_any_other_text() -> None:
    accents = "\u0316\u0301" * 200_000
    assert grade(exact_answer, f"<answer>4{accents}</answer>") == 0
