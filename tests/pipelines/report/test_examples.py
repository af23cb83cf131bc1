"""Which completions a report shows: the extremes by reward, no text twice, evenly over the steps; and answers that training changed."""

from typing import Any

import polars as pl
import pytest

from pipelines.report.examples import ChangedAnswer, changed_answers, extreme_completions, shown_answers, spread


def ledger(rows: list[tuple[int, str, float | None]]) -> tuple[pl.DataFrame, pl.LazyFrame]:
    """Rewards and rollouts of these (step, text, reward), each a group of its own."""
    keys = {
        "step": [step for step, _, _ in rows], "group": list(range(len(rows))), "prompt_id": [f"p{place}" for place in range(len(rows))],
        "completion_index": [0] * len(rows),
    }  # fmt: skip
    rewards = [reward for _, _, reward in rows]
    earned = {"reward/a": rewards, "status": ["ok"] * len(rows), "reason": [None] * len(rows), "reward": rewards, "advantage": [0.5] * len(rows)}
    drawn = {"text": [text for _, text, _ in rows], "length": [len(text) for _, text, _ in rows], "finish_reason": ["eos"] * len(rows)}
    return pl.DataFrame({**keys, **earned}, schema_overrides={"reward": pl.Float64, "reward/a": pl.Float64}), pl.LazyFrame({**keys, **drawn})


def chosen(rows: list[tuple[int, str, float | None]], *, best: bool) -> list[tuple[int, str, float]]:
    return [(one.step, one.text, one.reward) for one in extreme_completions(*ledger(rows), None, best=best)]


def test_the_best_and_the_worst_come_in_the_order_of_their_rewards() -> None:
    rows: list[tuple[int, str, float | None]] = [(step, f"text {step}", float(step)) for step in range(1, 31)]
    assert [reward for _, _, reward in chosen(rows, best=True)] == [float(value) for value in range(30, 20, -1)]
    assert [reward for _, _, reward in chosen(rows, best=False)] == [float(value) for value in range(1, 11)]


def test_of_many_that_earned_alike_those_are_taken_that_lie_evenly_over_the_steps() -> None:
    rows: list[tuple[int, str, float | None]] = [(step, f"right {step}", 1.0) for step in range(1, 101)]
    rows.append((50, "better than right", 2.0))
    best = chosen(rows, best=True)
    assert best[0] == (50, "better than right", 2.0)
    assert [step for step, _, _ in best[1:]] == [1, 13, 26, 38, 51, 63, 75, 88, 100]


def test_no_text_comes_twice_and_none_without_a_reward() -> None:
    assert chosen([(1, "same", 1.0), (2, "same", 1.0), (3, "other", 1.0), (4, "failed", None)], best=True) == [(1, "same", 1.0), (3, "other", 1.0)]
    assert chosen([(1, "failed", None)], best=True) == []


def test_a_completion_comes_with_its_prompt_answer_and_what_every_function_gave() -> None:
    prompts = pl.DataFrame({
        "prompt_id": ["p0", "p1"], "prompt": ["1+1=", "last"], "answer": ["2", None],
        "messages": [None, [{"role": "system", "content": "be brief"}, {"role": "user", "content": "last"}]],
    })  # fmt: skip
    first, second = extreme_completions(*ledger([(1, "two", 1.0), (1, "three", 0.0)]), prompts, best=True)
    assert (first.prompt, first.answer, dict(first.parts), first.length) == ("1+1=", "2", {"a": 1.0}, 3)
    assert (second.prompt, second.answer) == ("system: be brief\nuser: last", None), "a chat is shown whole"


@pytest.mark.parametrize(("count", "wanted", "places"), [(3, 5, [0, 1, 2]), (5, 3, [0, 2, 4]), (9, 1, [0]), (4, 0, [])])
def test_spread_places_the_first_the_last_and_the_rest_between(count: int, wanted: int, places: list[int]) -> None:
    assert spread(count, wanted) == places


# --------------------------------------------------------------------------------------------------- changed answers


def evaluated(answers: list[tuple[str, str, bool | None, str, bool | None]]) -> pl.DataFrame:
    """Greedy rows of both models: prompt, reference's text and whether it is right, policy's."""
    rows: list[dict[str, Any]] = []
    for prompt_id, reference, was_right, policy, is_right in answers:
        rows += [
            {"model": model, "prompt_id": prompt_id, "decoding": decoding, "text": text, "correct": right}
            for model, text, right in (("reference", reference, was_right), ("policy", policy, is_right))
            for decoding in ("greedy", "sample")
        ]
    return pl.DataFrame(rows, schema_overrides={"correct": pl.Boolean})


def test_an_answer_changed_when_its_text_did_and_its_kind_says_what_came_of_it() -> None:
    table = evaluated([
        ("a", "x", True, "x", True), ("b", "x", False, "y", True), ("c", "x", True, "y", False), ("d", "x", True, "y", True),
        ("e", "x", False, "y", False), ("f", "x", None, "y", True),
    ])  # fmt: skip
    found = [(answer.prompt, answer.kind) for answer in changed_answers(table, None)]
    assert found == [("c", "newly wrong"), ("b", "newly right"), ("f", "not graded"), ("e", "still wrong"), ("d", "still right")]


@pytest.mark.parametrize(("worse", "better", "shown"), [(20, 20, (5, 5)), (2, 20, (2, 8)), (20, 1, (9, 1)), (20, 0, (10, 0)), (0, 3, (0, 3))])
def test_what_got_worse_is_never_hidden_and_never_all_there_is(worse: int, better: int, shown: tuple[int, int]) -> None:
    lost = [ChangedAnswer("", f"l{place}", None, "x", "y", True, False) for place in range(worse)]
    won = [ChangedAnswer("", f"w{place}", None, "x", "y", False, True) for place in range(better)]
    kinds = [answer.kind for answer in shown_answers(lost + won)]
    assert (kinds.count("newly wrong"), kinds.count("newly right")) == shown
