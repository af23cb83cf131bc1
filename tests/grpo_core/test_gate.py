"""Each condition of the gate: what passes, what does not, and the sentence that says so."""

import math
from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from grpo_core import gate
from grpo_core.contamination import Overlap
from grpo_core.exploits import Finding, Verdict
from grpo_core.gate import Condition

NO_PAIRS = pl.DataFrame(schema={"heldout_id": pl.String, "other_id": pl.String, "split": pl.String})


def scores(values: Sequence[float | None], task: str = "addition", first: int = 0) -> pl.DataFrame:
    ids = [f"p{first + place:03d}" for place in range(len(values))]
    return pl.DataFrame(
        {"prompt_id": ids, "task": [task] * len(values), "score": values}, schema={"prompt_id": pl.String, "task": pl.String, "score": pl.Float64}
    )


def better(policy: pl.DataFrame, baseline: pl.DataFrame, number: int = 1, margin: float = 0.0) -> Condition:
    return gate.better(policy, baseline, against="champion", number=number, margin=margin)


# ------------------------------------------------------------------------------------------------------------ levels, states


def test_the_levels_of_all_candidates_together_stay_below_five_percent_of_false_promotions() -> None:
    assert gate.level(1) == 0.05
    assert gate.level(4) == 0.05 / 16
    one_sided = sum(gate.level(number) / 2 for number in range(1, 100_000))
    assert one_sided == pytest.approx(0.025 * math.pi**2 / 6, abs=1e-6)
    assert one_sided < 0.05


@pytest.mark.parametrize(
    ("states", "status"),
    [([True, True], "passed"), ([True, None], "pending"), ([None, False, True], "failed"), ([], "passed")],
)
def test_one_failure_fails_and_one_open_question_waits(states: list[bool | None], status: str) -> None:
    assert gate.status_of([Condition("x", state, "") for state in states]) == status


def test_a_score_is_the_share_of_right_sampled_answers() -> None:
    rows = [("policy", "a", "sample", True), ("policy", "a", "sample", False), ("policy", "a", "greedy", False), ("reference", "a", "sample", False)]
    rows += [("policy", "b", "sample", True), ("policy", "b", "sample", None)]  # type: ignore[list-item]
    table = pl.DataFrame(rows, schema=["model", "prompt_id", "decoding", "correct"], orient="row")
    found = gate.mean_scores(table, "policy", pl.DataFrame({"prompt_id": ["a", "b"], "task": ["t", "u"]}))
    assert found.rows() == [("a", "t", 0.5), ("b", "u", None)], "where one could not be graded nothing is known"


# ------------------------------------------------------------------------------------------------------------------- better


def test_the_lower_end_of_the_paired_interval_decides() -> None:
    """Differences of 8 prompts: mean 0.25, standard error 0.09449, t(7, 97.5 %) 2.36462: the interval is 0.25 ± 0.22344."""
    policy, baseline = scores([0.5, 0.75, 0.25, 1.0, 0.5, 0.5, 1.0, 0.5]), scores([0.0, 0.75, 0.25, 0.5, 0.5, 0.0, 0.5, 0.5])
    found = better(policy, baseline)
    assert (found.passed, found.numbers["num_prompts"]) == (True, 8)
    assert (found.numbers["difference"], found.numbers["low"]) == pytest.approx((0.25, 0.026563), abs=1e-5)
    assert found.summary == "mean@k is +25.0 points above the champion's on 8 prompts, [+2.7, +47.3] at level 0.05"
    assert better(policy, baseline, margin=0.02).passed
    assert not better(policy, baseline, margin=0.03).passed
    second = better(policy, baseline, number=2)
    assert not second.passed, "a second candidate must show more"
    assert second.numbers["level"] == 0.0125
    assert "(the 2nd policy that was looked at): the lower end must lie above +0.0" in second.summary


def test_equal_answers_are_not_better() -> None:
    found = better(scores([0.5] * 20), scores([0.5] * 20))
    assert (found.passed, found.numbers["low"]) == (False, 0.0)
    assert better(scores([0.75] * 20), scores([0.5] * 20)).passed, "a quarter better everywhere leaves no doubt"
    assert not better(scores([0.5] * 20), scores([0.75] * 20)).passed


def test_prompts_that_could_not_be_graded_are_left_out_for_both() -> None:
    found = better(scores([1.0, None, 1.0, 1.0, 0.5]), scores([0.0, 0.0, None, 0.5, 0.0]))
    assert (found.numbers["num_prompts"], found.numbers["num_ungraded"]) == (3, 2)


@pytest.mark.parametrize(
    ("policy", "baseline", "said"),
    [
        (scores([1.0]), scores([0.0]), "1 prompts could be compared: at least 2 are needed"),
        (scores([]), scores([]), "0 prompts could be compared"),
        (scores([1.0] * 3), scores([0.0] * 5), "0 prompts were answered by the policy alone, 2 by the champion alone"),
        (scores([1.0] * 3, first=2), scores([0.0] * 3), "2 prompts were answered by the policy alone, 2 by the champion alone"),
        (scores([None, None]), scores([0.0, 0.0]), "0 prompts could be compared"),
    ],
)
def test_what_cannot_be_compared_is_not_better_and_says_why(policy: pl.DataFrame, baseline: pl.DataFrame, said: str) -> None:
    found = better(policy, baseline)
    assert found.passed is False
    assert found.summary.startswith(said)


# -------------------------------------------------------------------------------------------------- guards, and all the others


def test_a_guarded_task_may_not_fall_further_than_is_allowed() -> None:
    policy = pl.concat([scores([0.5, 0.4, 0.5, 0.6], "words"), scores([1.0] * 4, "sums", 10)])
    baseline = pl.concat([scores([0.6, 0.5, 0.6, 0.7], "words"), scores([0.0] * 4, "sums", 10)])
    assert gate.guards(policy, baseline, {"words": 0.11}).passed, "a tenth everywhere is surely less than that"
    fallen = gate.guards(policy, baseline, {"words": 0.09, "sums": 0.0})
    assert fallen.passed is False
    assert fallen.summary.endswith("(words could have fallen further)")
    assert fallen.numbers["words"]["low"] == pytest.approx(-0.1)
    none = gate.guards(policy, baseline, {"wrds": 0.1})
    assert none.passed is False and "wrds: there are no held-out prompts of it" in none.summary
    assert gate.guards(policy, baseline, {}).passed


def test_held_out_prompts_must_be_new() -> None:
    passages = pl.DataFrame({"heldout_id": ["a"], "other_id": ["t"], "split": ["train"], "ngram": ["…"]})
    clean = gate.disjoint(Overlap(NO_PAIRS, passages, 3), 40)
    assert clean.passed and "1 that share 13 words in a row with one are left out" in clean.summary
    assert clean.numbers == {"num_heldout": 40, "exact": 0, "sharing_passages": 1, "common_passages": 3}
    same = gate.disjoint(Overlap(pl.DataFrame({"heldout_id": ["a", "a"], "other_id": ["t", "u"], "split": ["train", "sft"]}), passages.clear(), 0), 40)
    assert same.passed is False and same.summary.startswith("1 of 40 held-out prompts have the text of one that was trained on (a)")
    assert gate.disjoint(Overlap(NO_PAIRS, passages.clear(), 0), 0).passed is False


def test_an_open_alarm_or_nobody_who_watched_is_not_health() -> None:
    alarm = {"condition": "truncation", "open": True, "acknowledged": None}
    assert gate.health([alarm]).passed is False
    assert gate.health([alarm]).numbers["open"] == ["truncation"]
    assert gate.health([{**alarm, "open": False}]).passed
    accepted = gate.health([{**alarm, "open": False, "acknowledged": "a test"}])
    assert accepted.passed and accepted.summary == "no alarm is open, accepted: truncation (a test)"
    assert gate.health(None).passed is False


def finding(verdict: Verdict, errors: int = 0) -> Finding:
    return Finding(
        function="exact_answer", probe="copies_the_answer", variant="as it is", value=1.0, share=1.0, troubles={"error": errors}, rows=4, example="…",
        verdict=verdict, reason="a test" if verdict == "acknowledged" else "",
    )  # fmt: skip


def test_an_exploit_that_pays_fails_the_audit() -> None:
    assert gate.reward_audit([finding("blocked")]).passed is False
    assert "exact_answer/copies_the_answer" in gate.reward_audit([finding("blocked")]).summary
    accepted = gate.reward_audit([finding("acknowledged"), finding("nothing")])
    assert accepted.passed and "accepted: exact_answer/copies_the_answer (a test)" in accepted.summary
    assert gate.reward_audit([finding("nothing", errors=4)]).passed is False, "it failed on every text"
    assert gate.reward_audit([finding("nothing", errors=3)]).passed
    assert gate.reward_audit(None).passed is False
    assert gate.reward_audit([]).passed


def verdict(low: float, high: float = 0.9, **more: Any) -> dict[str, Any]:
    wins = {"count": 30, "estimate": 0.7, "low": low, "high": high}
    return {"status": "counted", "win_rate": wins, "enough": True, "reward_hacking": None, **more}


@pytest.mark.parametrize(
    ("given", "required", "passed"),
    [
        (None, True, None),
        ({"status": "pending"}, True, None),
        ({"status": "pending"}, False, True),
        (verdict(0.51), True, True),
        (verdict(0.5), True, False),
        (verdict(0.3), True, False),
        (verdict(0.3), False, True),
        (verdict(0.3, enough=False), True, None),
        (verdict(0.51, enough=False), True, None),  # who stops as soon as it looks good finds what is not there
        (verdict(0.1, 0.4, reward_hacking="shown"), True, False),
        (verdict(0.1, 0.4, reward_hacking="shown"), False, False),  # asked for or not, the policy games its reward
        (verdict(0.51, reward_hacking="suspected"), True, True),
    ],
)
def test_people_must_have_preferred_the_policy_where_that_is_asked_for(given: dict[str, Any] | None, required: bool, passed: bool | None) -> None:
    found = gate.blind_verdict(given, required)
    assert found.passed is passed
    assert found.numbers["required"] is required or passed is False
