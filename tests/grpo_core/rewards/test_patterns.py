import time
from typing import Any

import pytest

from grpo_core.addition import generate, worked_steps
from grpo_core.rewards.outcomes import RewardError
from grpo_core.rewards.patterns import key_steps, regex_format
from tests.grpo_core.rewards.hostile_texts import HOSTILE

OPEN_R1 = r"<think>.*?</think>\s*<answer>.*?</answer>"
"""The format that open-r1's `format_reward` asks for, line breaks aside."""


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        # The published cases of open-r1's format_reward.
        ("<think>Some reasoning</think><answer>The answer</answer>", 1),
        ("<think>Only thinking</think>", 0),
        ("<answer>Only answer</answer>", 0),
        ("No tags at all", 0),
        ("<think>Missing closing</think><answer>Missing closing", 0),
        ("<think>Wrong order</answer><answer>Wrong order</think>", 0),
        ("<think>\n1. Purple scooter\n2. Red bicycle\n\nThere are 2.\n</think>\n<answer>2</answer>", 1),
        # The whole completion must match.
        ("<think>a</think><answer>b</answer> and more", 0),
        ("first <think>a</think><answer>b</answer>", 0),
        ("", 0),
    ],
)
def test_the_whole_completion_must_match_the_pattern(completion: str, expected: float) -> None:
    assert regex_format([completion], pattern=OPEN_R1) == [expected]


def test_a_part_may_match_when_the_whole_need_not() -> None:
    texts = ["so \\boxed{4}.", "so 4."]
    assert regex_format(texts, pattern=r"\\boxed\{[^{}]*\}", whole=False) == [1, 0]
    assert regex_format(texts, pattern=r"\\boxed\{[^{}]*\}") == [0, 0]


def test_a_chat_is_matched_by_its_last_message() -> None:
    assert regex_format([[{"role": "assistant", "content": "yes"}]], pattern="yes|no") == [1]


def test_a_pattern_that_cannot_be_used_is_refused_by_name() -> None:
    with pytest.raises(RewardError, match=r"'regex_format': pattern must be a regular expression, got '\('"):
        regex_format(["a"], pattern="(")
    with pytest.raises(RewardError, match=r"regex_format.pattern '\.\*' matches the empty text, so every completion holds it"):
        regex_format(["a"], pattern=".*", whole=False)
    with pytest.raises(RewardError, match="must be a regular expression, got ''"):
        regex_format(["a"], pattern="")


def steps(completion: str, *fixed_steps: str, **options: Any) -> float:
    (share,) = key_steps([completion], fixed_steps=list(fixed_steps), **options)
    assert share is not None
    return share


def test_the_share_of_key_steps_that_are_shown() -> None:
    assert steps("First factor, then divide by 3.", "factor", "divide by 3", "check") == pytest.approx(2 / 3)
    assert steps("nothing of it", "factor", "divide") == 0
    assert steps("FACTOR\n and   Divide", "factor", "divide") == 1


def test_a_step_counts_once_however_often_it_is_written_or_asked_for() -> None:
    assert steps("factor, factor, factor, factor", "factor", "divide") == 0.5
    assert steps("factor", "factor", "Factor", "divide") == 0.5


def test_a_step_inside_a_longer_number_is_not_shown() -> None:
    assert steps("15+4=19", "5+4=9", "5+4=19") == 0


def test_steps_in_order_count_behind_those_that_counted() -> None:
    assert steps("a then b then c", "a", "b", "c", ordered=True) == 1
    assert steps("c then b then a", "a", "b", "c", ordered=True) == pytest.approx(1 / 3)
    assert steps("b then c", "a", "b", "c", ordered=True) == pytest.approx(2 / 3)
    assert steps("c then b then a", "a", "b", "c") == 1


def test_steps_may_be_regular_expressions() -> None:
    assert steps("Step 1: x\nstep 2: y", r"Step 1:.*y", r"Step \d+: z", regex=True) == 0.5
    assert steps("ab", "b", "a", regex=True, ordered=True) == 0.5


def test_every_prompt_may_have_steps_of_its_own_in_a_column() -> None:
    completions = ["2*3=6; 6+1=7", "2*3=6", "1+1=2"]
    as_list: list[Any] = [["2*3=6", "6+1=7"], ["2*3=6", "6+1=7"], ["1+1=2"]]
    assert key_steps(completions, column="work", work=as_list) == [1, 0.5, 1]
    as_lines = ["2*3=6\n6+1=7\n", "2*3=6\n\n6+1=7", "1+1=2"]
    assert key_steps(completions, column="work", work=as_lines, prompt_id=["p", "q", "r"]) == [1, 0.5, 1]


@pytest.mark.parametrize("missing", [None, [], "", " \n ", ["\u200b"], [3], 3])
def test_a_prompt_without_steps_is_an_error_in_our_data(missing: Any) -> None:
    with pytest.raises(RewardError, match=r"'key_steps': column 'work' of prompt ab12 holds .*: give "):
        key_steps(["a", "b"], column="work", work=[["a"], missing], prompt_id=["cd34", "ab12"])


def test_steps_that_stand_nowhere_are_refused_by_name() -> None:
    with pytest.raises(RewardError, match=r"key_steps.column is 'wrk', which is no column of the prompts: did you mean 'work'"):
        key_steps(["a"], column="wrk", work=[["a"]])
    with pytest.raises(RewardError, match="set either fixed_steps or column, not neither"):
        key_steps(["a"])
    with pytest.raises(RewardError, match="set either fixed_steps or column, not both"):
        key_steps(["a"], fixed_steps=["a"], column="work", work=[["a"]])
    with pytest.raises(RewardError, match=r"key_steps.fixed_steps must be a regular expression, got '\('"):
        key_steps(["a"], fixed_steps=["("], regex=True)


def addition_steps(prompts: list[str], completions: list[Any], **columns: object) -> list[float | None]:
    """The example of docs/text_rewards.md."""
    sums = [map(int, prompt.strip("=").split("+")) for prompt in prompts]
    work = [worked_steps(first, second, 3)[0].split(";") for first, second in sums]
    return key_steps(completions, column="work", work=work, ordered=True)


def test_the_embedded_task_pays_every_digit_that_is_worked_out() -> None:
    rows = generate(200, 3, seed=0)
    shares = addition_steps(rows["prompt"].to_list(), rows["completion"].to_list())
    worked = ["<think></think>" not in completion for completion in rows["completion"]]
    assert 0 < sum(worked) < 200
    assert shares == list(map(float, worked))
    assert addition_steps(["335+194="], ["<think>5+4+0=09;3+9+0=13;3+1+1=05</think><answer>539</answer>"]) == [pytest.approx(2 / 3)]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_seconds_at_most_and_earns_nothing(name: str) -> None:
    start = time.process_time()
    assert regex_format([HOSTILE[name]], pattern=OPEN_R1) == [0]
    assert regex_format([HOSTILE[name]], pattern=r"\d{4}-\d\d-\d\d", whole=False) == [0]
    assert steps(HOSTILE[name], "carry the one", "5+4+0=09", ordered=True) == 0
    assert steps(HOSTILE[name], r"carry\s+the\s+one", r"\d\+\d=\d", regex=True) == 0
    assert time.process_time() - start < 10
