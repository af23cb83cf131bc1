"""The verdict on a start: each rule by what it sees, on either side of its threshold."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import RolloutConfig, RunConfig
from grpo_core.exploration_numbers import Numbers, numbers_of
from grpo_core.readiness import Finding, readiness
from tests.explored import asked, explored_rows

ROOT = Path(__file__).resolve().parents[2]
CONFIG = RunConfig()
SOLVED, HOPELESS = [1] * 8, [0] * 8
HALF = [1] * 4 + [0] * 4


def judged(groups: Sequence[Sequence[float]], config: RunConfig = CONFIG, **rows: Any) -> tuple[str, dict[str, Finding]]:
    """The verdict on these groups of exact_answer, and the findings by condition."""
    numbers = numbers_of(explored_rows(groups, **rows), asked(len(groups)), config)
    found = readiness(numbers, config)
    return found.verdict, {finding.condition: finding for finding in found.findings}


def test_half_right_is_ready() -> None:
    assert judged([HALF] * 48) == ("ready", {})


def test_few_prompts_are_a_warning() -> None:
    verdict, found = judged([HALF] * 47)
    assert (verdict, list(found)) == ("ready with warnings", ["few_prompts"])
    assert "on 47 prompts" in found["few_prompts"].sentence


def test_nine_in_ten_at_the_lowest_are_sparse() -> None:
    rare, less = [1] * 6 + [0] * 2, [1] * 7 + [0]
    verdict, found = judged([rare] * 8 + [HOPELESS] * 52)  # 48 of 480 are right
    assert (verdict, list(found)) == ("not yet", ["sparse_rewards"])
    assert "90.0% of completions have the lowest exact_answer" in found["sparse_rewards"].sentence
    assert found["sparse_rewards"].page == "docs/sparse_rewards.md"
    assert "cloning" in found["sparse_rewards"].remedy
    verdict, found = judged([less] * 8 + [HOPELESS] * 52)
    assert (verdict, list(found)) == ("ready with warnings", ["too_hard", "weak_start"])


def test_prompts_that_are_mostly_hopeless() -> None:
    verdict, found = judged([SOLVED] * 20 + [HALF] * 4 + [HOPELESS] * 26)
    assert verdict == "not yet", "8 % of groups have signal"
    assert found["too_hard"].blocks
    verdict, found = judged([SOLVED] * 19 + [HALF] * 5 + [HOPELESS] * 26)
    assert not found["too_hard"].blocks


def test_prompts_that_are_mostly_solved() -> None:
    verdict, found = judged([SOLVED] * 46 + [HALF] * 4)
    assert (verdict, list(found)) == ("not yet", ["too_easy"])
    assert "harder prompts" in found["too_easy"].remedy
    verdict, found = judged([SOLVED] * 30 + [HALF] * 20)
    assert (verdict, found["too_easy"].blocks) == ("ready with warnings", False)
    assert "too_easy" not in judged([SOLVED] * 23 + [HALF] * 25)[1]


def test_copies_ask_for_a_higher_temperature() -> None:
    copies = [[g, 0] for g in range(50) for _ in range(8)]
    verdict, found = judged([HALF] * 4 + [HOPELESS] * 24 + [SOLVED] * 22, token_ids=copies)
    assert verdict == "not yet"
    assert found["alike_completions"].blocks
    assert "little_signal" not in found, "one reason is enough"
    assert "alike_completions" not in judged([SOLVED] * 48, token_ids=copies[: 48 * 8])[1], "a solved group may repeat itself"


def at_temperature(temperature: float) -> RunConfig:
    return replace(CONFIG, rollout=RolloutConfig(temperature=temperature))


def test_sampling_too_coldly_is_the_reason_also_where_wrong_answers_differ() -> None:
    groups = [HALF] * 4 + [HOPELESS] * 24 + [SOLVED] * 22
    verdict, found = judged(groups, at_temperature(0.1))
    assert (verdict, found["alike_completions"].blocks) == ("not yet", True)
    assert "raise rollout.temperature (now 0.1; 1 is usual)" in found["alike_completions"].remedy
    assert "alike_completions" not in judged(groups, at_temperature(0.7))[1]
    assert judged([HALF] * 48, at_temperature(0.1))[0] == "ready", "what works may be cold"


def test_rare_rewards_have_causes_that_are_mended_first() -> None:
    rare = [[1] * 2 + [0] * 6] * 2 + [HOPELESS] * 46
    assert judged(rare)[1]["sparse_rewards"].remedy.startswith("fine-tune longer")
    assert judged(rare, at_temperature(2.0))[1]["sparse_rewards"].remedy.startswith("lower rollout.temperature first (now 2; 1 is usual); fine-tune")
    cut = judged(rare, finish_reason=["length"] * 384)[1]["sparse_rewards"].remedy
    assert cut.startswith("raise rollout.max_new_tokens first (100% of completions are cut); fine-tune")


def test_few_groups_told_apart_for_no_other_reason() -> None:
    verdict, found = judged([HALF] * 14 + [HOPELESS] * 18 + [SOLVED] * 18)
    assert (verdict, found["little_signal"].blocks) == ("ready with warnings", False)
    assert "little_signal" not in judged([HALF] * 15 + [HOPELESS] * 17 + [SOLVED] * 18)[1]
    verdict, found = judged([HALF] * 4 + [HOPELESS] * 23 + [SOLVED] * 23)
    assert (verdict, list(found)) == ("not yet", ["little_signal"])
    assert "in 8% of groups only" in found["little_signal"].sentence


@pytest.mark.parametrize(("right", "warned"), [(2, True), (3, False)])
def test_a_weak_start_is_a_warning(right: int, warned: bool) -> None:
    """2 of 8 are right, or 3 of 8."""
    verdict, found = judged([[1] * right + [0] * (8 - right)] * 48)
    assert (verdict, "weak_start" in found) == (("ready with warnings", True) if warned else ("ready", False))


def test_form_alone_is_no_answer() -> None:
    verdict, found = judged([HALF] * 20 + [HOPELESS] * 30, forms=[[1] * 8] * 20 + [[1] * 7 + [0]] * 30)
    assert verdict == "ready with warnings"
    assert "60% of groups differ in answer_format alone, 40% in exact_answer" in found["form_only"].sentence


def test_larger_groups_where_they_would_be_fuller() -> None:
    small = replace(CONFIG, grpo=replace(CONFIG.grpo, group_size=2))
    _, found = judged([[1, 0]] * 20 + [[0, 0]] * 20 + [[1, 1]] * 20, small)
    assert "raise grpo.group_size to 4" in found["small_groups"].remedy
    assert "33% of groups of 2" in found["small_groups"].sentence
    assert "small_groups" not in judged([[1, 0]] * 40 + [[0, 0]] * 10 + [[1, 1]] * 10, small)[1]


def test_cut_completions() -> None:
    reasons = [*["length"] * 96, *["eos"] * 288]
    verdict, found = judged([HALF] * 48, finish_reason=reasons)
    assert (verdict, list(found)) == ("ready with warnings", ["cut_completions"])
    assert "25% of completions are cut at rollout.max_new_tokens (44)" in found["cut_completions"].sentence
    assert judged([HALF] * 48, finish_reason=[*["length"] * 76, *["eos"] * 308])[0] == "ready"


def with_status(status: str, count: int) -> dict[str, Any]:
    """Columns of 384 rows on whose first `count` exact_answer has this status."""
    statuses = [status] * count + ["ok"] * (384 - count)
    return {"status": statuses, "status/exact_answer": statuses, "reason": ["exact_answer: it broke"] * count + [None] * (384 - count)}


def test_errors_block_past_the_rate_at_which_training_stops() -> None:
    verdict, found = judged([HALF] * 48, **with_status("error", 19))
    assert (verdict, list(found)) == ("ready with warnings", ["failing_rewards"])
    assert "failed on 4.9% of completions" in found["failing_rewards"].sentence
    assert found["failing_rewards"].sentence.endswith("first: exact_answer: it broke")
    verdict, found = judged([HALF] * 48, **with_status("error", 20))
    assert verdict == "not yet"
    assert "more than scoring.max_error_rate (0.05)" in found["failing_rewards"].sentence


def test_invalid_completions_are_a_warning() -> None:
    assert judged([HALF] * 48, **with_status("invalid", 38))[0] == "ready"
    verdict, found = judged([HALF] * 48, **with_status("invalid", 39))
    assert (verdict, list(found)) == ("ready with warnings", ["invalid_completions"])


def test_nobody_with_an_opinion_blocks() -> None:
    silent: dict[str, Any] = {"status": ["no_opinion"] * 384, "reward": [None] * 384, "alike": [True] * 384}
    verdict, found = judged([HALF] * 48, **silent)
    assert (verdict, list(found)) == ("not yet", ["unscored_completions"])


def test_blocking_findings_come_first() -> None:
    groups = [HOPELESS] * 40
    numbers: Numbers = numbers_of(explored_rows(groups), asked(40), CONFIG)
    assert [finding.blocks for finding in readiness(numbers, CONFIG).findings] == [True, False]


def test_every_finding_names_a_page_that_is_there() -> None:
    text = (ROOT / "grpo_core" / "readiness.py").read_text(encoding="utf-8")
    pages = set(re.findall(r'"(docs/\w+\.md)(?:#([\w-]+))?"', text))
    assert len(pages) > 5
    for page, anchor in pages:
        titles = [line.lstrip("# ").lower() for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        anchors = [re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles]
        assert anchor in ("", *anchors), f"{page} has no heading {anchor}"
