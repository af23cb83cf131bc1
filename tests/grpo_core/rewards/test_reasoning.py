import json
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from grpo_core.reasoning_generation import MIXTURE, generated
from grpo_core.rewards.outcomes import Invalid, RewardError
from grpo_core.rewards.reasoning import answer_of, reasoning_gym

FAST = ("chain_sum", "countdown", "simple_integration", "spell_backward", "arc_1d", "graph_color", "knights_knaves", "word_sorting", "basic_arithmetic")
NO_EXAMPLE = {"boxnet", "rush_hour"}
"""Tasks that neither answer their own questions nor hold an example of an answer."""
READ_TO_THE_END_OF_THE_ANSWER = {"fraction_simplification", "gsm_symbolic", "knights_knaves", "quantum_lock", "sokoban"}
"""Tasks whose verifiers take the right answer and ignore what stands behind it."""
ATTACKS = (
    *("", " ", "x", "0", "1", "-1", "True", "False", "None", "null", "nan", "NaN", "inf", "-inf", "Infinity", "nan+nanj", "(nan, nan)", "1e999", "[NaN]"),
    *("[]", "{}", "[[]]", "[[NaN]]", "no", "yes", "a", "?", "()", "((((", "0,0", "1*1*24*1", "24", "6*4*1*1", "{'a': 1}", '{"0": NaN}', "%s%n", "\n\n", "0/0"),
    *("Integral(x, x) + C", "__import__('os')._exit(0)", "exec('1')", "[].__class__", "(lambda: 24)()", "9**9**9**9", "9" * 5_000, "[" * 5_000, "\u202e42"),
    *("{0.__class__}", "[1" + ",1" * 5_000 + "]", "A" * 10_000, "<answer>", "\\boxed{1}"),
)


@cache
def rows(task: str, size: int) -> list[dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own
        made = generated(task, {}, size, 7)
    return list(made["rows"])


def tasks() -> list[str]:
    from reasoning_gym.factory import DATASETS

    return sorted(set(DATASETS) - {MIXTURE})


def score(texts: list[str], of: list[dict[str, Any]], **options: Any) -> list[float | Invalid]:
    return reasoning_gym(texts, [row["task"] for row in of], [row["reasoning_entry"] for row in of], **options)


def attacks(row: dict[str, Any]) -> Iterator[str]:
    """Texts that are not the row's answer, some made for it."""
    answer = str(row["answer"])
    made = [answer[:1], answer[: len(answer) // 2], json.dumps(["nan"] * 5), "[" + ", ".join(["NaN"] * (answer.count(",") + 1)) + "]"]
    if row["task"] not in READ_TO_THE_END_OF_THE_ANSWER:
        made += [f"{answer} or 0", f"{answer} {answer}"]
    yield from (text for text in (*ATTACKS, *made) if text.strip().lower() != answer.strip().lower())


def own_answers_fail(names: list[str]) -> dict[str, list[float | Invalid]]:
    of = [row for name in names if name not in NO_EXAMPLE for row in rows(name, 3)]
    outcomes = score([f"<think>?</think><answer>{row['answer']}</answer>" for row in of], of)
    failed: dict[str, list[float | Invalid]] = {}
    for row, outcome in zip(of, outcomes, strict=True):
        if outcome != 1.0:
            failed.setdefault(row["task"], []).append(outcome)
    return failed


def fooled(names: list[str], size: int) -> list[tuple[str, str]]:
    of = [(row, attack) for name in names for row in rows(name, size) for attack in attacks(row)]
    outcomes = score([f"<answer>{attack}</answer>" for _, attack in of], [row for row, _ in of], cpu_seconds=1.0)
    return [(row["task"], attack[:40]) for (row, attack), outcome in zip(of, outcomes, strict=True) if outcome == 1.0]


def test_a_tasks_own_answer_earns_everything() -> None:
    assert own_answers_fail(list(FAST)) == {}


def test_hostile_answers_do_not() -> None:
    assert fooled(["countdown", "puzzle24", "coin_flip", "complex_arithmetic", "number_sorting", "game_of_life_halting", "simple_integration"], 1) == []


@pytest.mark.slow
def test_the_own_answer_of_every_task_earns_everything() -> None:
    assert len(tasks()) > 100
    assert own_answers_fail(tasks()) == {}


RIGHT_INDEED = {("knight_swap", "no"), ("polynomial_equations", "0"), ("power_function", "1")}
"""Attacks that are the answer, written otherwise."""


@pytest.mark.slow
def test_no_task_is_fooled() -> None:
    assert set(fooled(tasks(), 1)) <= RIGHT_INDEED


def entry(task: str, answer: str, metadata: dict[str, Any]) -> dict[str, Any]:
    return {"task": task, "reasoning_entry": json.dumps({"config": {}, "entry": {"question": "?", "answer": answer, "metadata": metadata}})}


@pytest.mark.parametrize(
    ("task", "answer", "metadata", "said", "expected"),
    [
        ("chain_sum", "42", {}, "<answer>42.0</answer>", 1.0),
        ("chain_sum", "42", {}, r"so \boxed{42}", 1.0),
        ("chain_sum", "42", {}, "<think>41?</think>42", 1.0),
        ("chain_sum", "42", {}, "It is 42!!!", 0.2 - 1 / 55),  # the verifier's own part: 2 of 11 characters
        ("chain_sum", "42", {}, "<answer>41</answer><answer>42</answer>", 0.0),
        ("coin_flip", "0.375", {}, "<answer>3/8</answer>", 1.0),
        ("coin_flip", "0.375", {}, "<answer>0</answer>", 0.0),
        ("complex_arithmetic", "1 + 2i", {"result": ["tuple", 1, 2]}, "<answer>1+2i</answer>", 1.0),
        ("complex_arithmetic", "1 + 2i", {"result": ["tuple", 1, 2]}, "<answer>nan</answer>", 0.0),
        ("game_of_life_halting", "True", {}, "<answer>True</answer>", 1.0),
        ("game_of_life_halting", "True", {}, "<answer>False</answer>", 0.0),
        ("puzzle24", "3*8*1*1", {"numbers": ["list", 3, 8, 1, 1]}, "<answer>8*3*1*1</answer>", 1.0),
        ("puzzle24", "3*8*1*1", {"numbers": ["list", 3, 8, 1, 1]}, "<answer>6*4*1*1</answer>", 0.0),
        ("puzzle24", "6*4*1/2", {"numbers": ["list", 6, 4, 3, 7]}, "<answer>6*4+3/7</answer>", 0.0),
        ("number_sorting", '["1", "5"]', {"direction": "ascending"}, "<answer>[1, 5]</answer>", 1.0),
        ("number_sorting", '["1", "5"]', {"direction": "ascending"}, "<answer>[NaN, NaN]</answer>", 0.0),
        ("spiral_matrix", "1 2 3", {}, "<answer>[1, 2, 3]</answer>", 0.1),
        ("simple_integration", "x**2 + C", {"variable": "x", "integrand": "2*x"}, "<answer>x**2 - 3*C</answer>", 1.0),
    ],
)
def test_scores(task: str, answer: str, metadata: dict[str, Any], said: str, expected: float) -> None:
    assert score([said], [entry(task, answer, metadata)]) == [pytest.approx(expected)]


@pytest.mark.parametrize(
    ("task", "said", "reason"),
    [
        ("countdown", "floor(pi)*8", "more than numbers, + - * / and brackets"),
        ("simple_integration", "Integral(2*x, x)", "more than numbers, one-letter names and elementary functions"),
        ("simple_integration", "9**9**99", "powers or numbers too large"),
        ("chain_sum", "4\x002", "control characters"),
        ("prime_factorization", "many", "the verifier raised ValueError"),
    ],
)
def test_an_invalid_answer_says_why(task: str, said: str, reason: str) -> None:
    metadata = {"numbers": ["list", 1], "target": 1, "variable": "x", "integrand": "2*x"}
    (outcome,) = score([f"<answer>{said}</answer>"], [entry(task, "2", metadata)])
    assert isinstance(outcome, Invalid) and outcome.reason.startswith(reason), outcome


def test_verifiers_are_stopped_at_the_limit() -> None:
    (outcome,) = score(["<answer>1e-99999999999</answer>"], [entry("coin_flip", "0.5", {})], cpu_seconds=0.5)
    assert outcome == Invalid("took more than 0.5 s of processor time")


def test_the_configuration_reaches_the_verifier() -> None:
    """decimal_arithmetic forgives one unit of the last decimal place that is configured."""
    row = entry("decimal_arithmetic", "1.5", {})
    exactly = {
        "task": row["task"],
        "reasoning_entry": row["reasoning_entry"].replace('"config": {}', '"config": {"max_num_decimal_places": 6, "precision": 12}'),
    }
    assert score(["<answer>1.501</answer>"] * 2, [row, exactly]) == [1.0, 0.0]


def test_rows_that_reasoning_gym_did_not_make_are_our_fault() -> None:
    for record in ("", "not json", "{}"):
        with pytest.raises(RewardError, match="no entry of reasoning-gym"):
            score(["42"], [{"task": "chain_sum", "reasoning_entry": record}])
    with pytest.raises(RewardError, match="cannot score its own entry: no dataset: ValueError"):
        score(["42"], [entry("no_such_task", "42", {})])
    with pytest.raises(RewardError, match="cannot score its own entry: the verifier raised KeyError"):
        score(["42"], [entry("time_intervals", "42", {})])
    with pytest.raises(RewardError, match="cpu_seconds must be above 0"):
        score(["42"], [entry("chain_sum", "42", {})], cpu_seconds=-1.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer> a b\n</answer>", "a b"),
        ("<answer>1</answer> or \\boxed{2}", "1"),
        ("\\boxed{2}", "2"),
        ("<think><answer>0</answer></think>\n[[1]]\n", "[[1]]"),
        ("<answer>1</answer><answer>1</answer>", "1"),
        ("<answer>1</answer><answer>2</answer>", 0.0),
        ("", ""),
    ],
)
def test_the_answer_in_a_completion(text: str, expected: str | float) -> None:
    assert answer_of(text) == expected
