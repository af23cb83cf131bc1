import time

import pytest

from grpo_core.rewards.extraction import boxed, final_answers, last_formula, last_number, tagged


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{5}", ["5"]),
        (r"\boxed {5}", ["5"]),
        (r"\boxed{\frac{1}{2}}", [r"\frac{1}{2}"]),
        (r"\boxed{\{1,2\}}", [r"\{1,2\}"]),
        (r"\boxed{1} and \fbox{2}", ["1", "2"]),
        (r"\boxed{\boxed{5}}", ["5"]),
        (r"\boxed{1} \boxed{2", ["1"]),
        (r"\boxed 5", []),
        ("boxed{5}", []),
    ],
)
def test_boxes(text: str, expected: list[str]) -> None:
    assert boxed(text) == expected


def test_tags() -> None:
    assert tagged("<answer> 1 </answer> <answer>2</answer> <answer>3") == ["1", "2"]
    assert tagged("</answer>1<answer>") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$1$ and $2$", ["2"]),
        (r"\(1\) then \[ 2 \]", ["2"]),
        ("$$ 3 $$", ["3"]),
        ("He pays $5 and gets $3 back", []),
        ("from $18 to $19.", []),
        (r"\$5 and \$6", []),
        ("$1\n2$", []),
        ("none", []),
    ],
)
def test_the_last_formula_is_not_money(text: str, expected: list[str]) -> None:
    assert last_formula(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so 42.", ["42"]),
        ("is -1,234.50 there", ["-1,234.50"]),
        ("10-3", ["3"]),
        ("x=-3", ["-3"]),
        ("1,2,3", ["3"]),
        ("3/4 of them", ["3/4"]),
        ("12% off", ["12%"]),
        (".5", [".5"]),
        ("on 1.2.3", ["3"]),
        ("$18", ["18"]),
        ("none", []),
        ("", []),
    ],
)
def test_the_last_number(text: str, expected: list[str]) -> None:
    assert last_number(text) == expected


def test_thoughts_are_left_out() -> None:
    assert final_answers("<think>\\boxed{1}</think> so 2", "auto") == ["2"]


def test_what_is_opened_and_not_closed_is_no_reason_to_look_elsewhere() -> None:
    assert final_answers(r"42 \boxed{41", "auto") == []
    assert final_answers("42 <answer>41", "auto") == []


@pytest.mark.parametrize("bait", ["\\boxed", "\\boxed{", "<answer>", "{", "}", "$", "$a", "\\(", "1,", "-", "\\", "/1", "<answer></answer>", "\\boxed{}"])
def test_bait_takes_no_longer_than_other_text(bait: str) -> None:
    text = bait * (300_000 // len(bait))
    started = time.process_time()
    for where in ("auto", "boxed", "answer", "math", "number", "whole"):
        final_answers(text, where)
    assert time.process_time() - started < 5
