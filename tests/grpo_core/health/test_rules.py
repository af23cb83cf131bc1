"""What each rule calls trouble, and what it does not."""

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_core.config import HealthConfig
from grpo_core.health import measures, rules
from grpo_core.health.history import History
from grpo_core.health.measures import BEYOND_ACCURACY, SETTLED, SHARPENED, Facts, Found
from grpo_core.health.rules import CLOCK_RULES, COLLAPSED, HOPELESS, MIN_SLOW_SECONDS, MISALIGNED_KL, MISALIGNED_SHARE, MISALIGNED_TIMES, RULES
from tests.troubled_logs import SETTINGS, TROUBLES, Columns, Trouble, lines

ALL = RULES | CLOCK_RULES
LITTLE = 1.001
"""Times this is beyond, divided by it is short of a limit."""


def found(
    condition: str, columns: Columns, *, settings: HealthConfig = SETTINGS, full_marks: float = 1.0, dtype: str = "float32", first: int = 0
) -> Found | None:
    """What the rule says at the end of a log; `first`: the step of its first line."""
    history = History()
    for step, line in enumerate(lines(columns), start=first):
        history.append(step, line)
    return ALL[condition](history, settings, Facts(full_marks=full_marks, reward_range=full_marks or 1.0, batch_size=128, dtype=dtype))


def without_step_zero(condition: str, columns: Columns) -> Found | None:
    history = History()
    for step, line in enumerate(lines(columns)[1:], start=1):
        history.append(step, line)
    return ALL[condition](history, SETTINGS, Facts(full_marks=1.0, reward_range=1.0, batch_size=128, dtype="float32"))


# ---------------------------------------------------------------------------------------------------- what holds of all of them


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
def test_a_rule_holds_beyond_its_threshold_and_not_at_it(trouble: Trouble) -> None:
    assert found(trouble.condition, trouble.columns(trouble.well)) is None
    assert found(trouble.condition, trouble.columns(trouble.ill)) is not None
    lenient: dict[str, Any] = {trouble.threshold: trouble.lenient}
    assert found(trouble.condition, trouble.columns(trouble.ill), settings=replace(SETTINGS, **lenient)) is None


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
def test_a_rule_says_which_metrics_show_it_and_names_its_threshold(trouble: Trouble) -> None:
    columns = trouble.columns(trouble.ill)
    seen = found(trouble.condition, columns)
    assert seen is not None
    assert seen.evidence.items() <= {name: values[-1] for name, values in columns.items()}.items()
    assert seen.evidence, "a person must be able to check it"
    assert f"health.{trouble.threshold} {getattr(SETTINGS, trouble.threshold):g}" in seen.message
    assert "\n" not in seen.message


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
def test_a_rule_needs_the_metrics_that_it_reads(trouble: Trouble) -> None:
    """Old logs lack metrics; a metric can also be missing of a step alone."""
    columns = trouble.columns(trouble.ill)
    needed = {
        "reward_outlier": ["reward/outlier"], "sparse_rewards": ["reward/lowest_fraction", "reward/std"], "low_diversity": ["distinct_fraction"],
        "slow_reward": ["seconds/score"], "stall": ["seconds"],
    }  # fmt: skip
    names = needed.get(trouble.condition, list(columns))
    for name in names:
        assert found(trouble.condition, {**columns, name: [None] * len(columns[name])}) is None, name


@pytest.mark.parametrize("condition", ALL)
def test_a_log_without_the_metrics_of_a_rule_is_no_trouble(condition: str) -> None:
    assert [found(condition, {"loss": [0.1] * steps}) for steps in range(12)] == [None] * 12
    history = History()
    history.append(7, {})
    assert ALL[condition](history, SETTINGS, Facts(full_marks=1.0, reward_range=1.0, batch_size=128, dtype="float32")) is None


STEPS = 12
WELL: Columns = {
    "reward/mean": [0.3 + 0.02 * step for step in range(STEPS)], "reward/std": [0.4] * STEPS, "reward/min": [0.0] * STEPS, "reward/max": [1.0] * STEPS,
    "reward/lowest_fraction": [0.6] * STEPS, "reward/outlier": [0.0] * STEPS, "zero_variance_fraction": [0.3] * STEPS,
    "solved_group_fraction": [0.2] * STEPS, "hopeless_group_fraction": [0.1] * STEPS, "kl/mean": [0.001 * step for step in range(STEPS)],
    "policy_kl": [0.001] * STEPS, "grad_norm": [0.5] * STEPS, "sampler_gap": [1e-7] * STEPS, "entropy": [0.9 - 0.01 * step for step in range(STEPS)],
    "distinct_fraction": [0.9] * STEPS, "truncated_fraction": [0.05] * STEPS, "length/mean": [20.0 + 0.2 * step for step in range(STEPS)],
    "repetition": [0.1] * STEPS, "repeated_prompt_fraction": [0.0] * STEPS, "train_accuracy": [0.3 + 0.02 * step for step in range(STEPS)],
    "reward/beyond_accuracy": [0.0] * STEPS, "length_paid": [0.0] * STEPS, "status/error_fraction": [0.0] * STEPS, "status/invalid_fraction": [0.1] * STEPS,
    "seconds": [1.0] * STEPS, "seconds/score": [0.1] * STEPS,
}  # fmt: skip


@pytest.mark.parametrize("condition", ALL)
def test_a_run_that_learns_is_no_trouble_at_any_of_its_steps(condition: str) -> None:
    assert [found(condition, {name: values[:steps] for name, values in WELL.items()}) for steps in range(1, STEPS + 1)] == [None] * STEPS


SOLVED: Columns = {
    **WELL, "reward/mean": [0.5, 0.7, 0.9] + [1.0] * 9, "reward/std": [0.5, 0.4, 0.3] + [0.0] * 9, "reward/min": [0.0] * 3 + [1.0] * 9,
    "reward/lowest_fraction": [0.5, 0.3, 0.1] + [1.0] * 9, "zero_variance_fraction": [0.3, 0.5, 0.9] + [1.0] * 9,
    "solved_group_fraction": [0.2, 0.4, 0.9] + [1.0] * 9, "hopeless_group_fraction": [0.1, 0.1] + [0.0] * 10, "entropy": [0.9, 0.5, 0.2] + [0.01] * 9,
    "distinct_fraction": [0.9, 0.5, 0.2] + [None] * 9, "train_accuracy": [0.5, 0.7, 0.9] + [1.0] * 9, "kl/mean": [0.04 * step for step in range(STEPS)],
}  # fmt: skip
"""All groups at full marks: alike, without entropy, far from the reference."""
SLIPS: Columns = {
    **SOLVED, "reward/mean": [0.5, 0.7] + [0.99] * 10, "reward/std": [0.5, 0.4] + [0.1] * 10, "reward/min": [0.0] * STEPS,
    "reward/lowest_fraction": [0.5, 0.3] + [0.01] * 10, "distinct_fraction": [0.9, 0.5, 0.2] + [0.5, None, 0.3] * 3,
}  # fmt: skip
"""The same with a wrong completion now and then."""


@pytest.mark.parametrize("columns", [SOLVED, SLIPS], ids=["solved", "slips"])
@pytest.mark.parametrize("condition", ALL)
def test_a_solved_run_is_no_trouble(condition: str, columns: Columns) -> None:
    assert [found(condition, {name: values[:steps] for name, values in columns.items()}) for steps in range(1, STEPS + 1)] == [None] * STEPS


def test_rules_name_settings_that_there_are() -> None:
    said = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in (rules, measures))
    named = set(re.findall(r"health\.(\w+) \{", said))
    assert named == {trouble.threshold for trouble in TROUBLES}, "every threshold that a message names has its log, and the other way round"
    assert {f.name for f in fields(HealthConfig)} - {"actions", "notify", "acknowledged", "patience", "window"} == named


@pytest.mark.parametrize("patience", [1, 2, 3])
@pytest.mark.parametrize(
    ("columns", "condition", "more"),
    [
        ({"policy_kl": 1.0}, "early_explosion", 0),
        ({"grad_norm": 9.0}, "early_explosion", 0),
        ({"truncated_fraction": 1.0}, "truncation", 0),
        ({"status/invalid_fraction": 1.0}, "reward_failures", 0),
        ({"reward/std": 0.0, "reward/max": 0.25}, "dead_rewards", 0),
        ({"distinct_fraction": 0.0, "entropy": 0.5}, "low_diversity", 0),
        ({"zero_variance_fraction": 1.0, "hopeless_group_fraction": 1.0}, "weak_signal", 0),
        ({"reward/lowest_fraction": 1.0, "reward/std": 0.25}, "sparse_rewards", 1),
        ({"length_paid": 1.0, "reward/beyond_accuracy": 1.0}, "reward_hacking", 1),
    ],
)
def test_what_wavers_must_hold_for_as_long_as_patience_asks(columns: dict[str, float], condition: str, more: int, patience: int) -> None:
    settings = replace(SETTINGS, patience=patience)
    enough = patience + more
    held = [found(condition, {name: [value] * steps for name, value in columns.items()}, settings=settings) is not None for steps in range(1, 6)]
    assert held[: enough - 1] == [False] * (enough - 1)
    assert held[enough - 1]
    interrupted: dict[str, list[float | None]] = {name: [*[value] * (enough - 1), None, value] for name, value in columns.items()}
    assert enough == 1 or found(condition, interrupted, settings=settings) is None, "a step without it breaks the row"


# --------------------------------------------------------------------------------------------------- what is special of each of them


def test_in_bfloat16_the_sampler_may_be_a_hundred_times_as_far_away() -> None:
    limit = SETTINGS.max_sampler_gap
    gaps = [("float32", limit), ("float32", 1.01 * limit), ("bfloat16", 100 * limit), ("bfloat16", 101 * limit)]
    assert [found("sampler_mismatch", {"sampler_gap": [gap]}, dtype=dtype) is not None for dtype, gap in gaps] == [False, True, False, True]


@pytest.mark.parametrize(
    ("kl", "moved", "expected"),
    [
        ([0.0, MISALIGNED_KL * LITTLE], 0.0, True),
        ([0.0, MISALIGNED_KL / LITTLE], 0.0, False),
        ([1.0, MISALIGNED_SHARE / LITTLE], 0.0, True),  # it came and it goes
        ([1.0, MISALIGNED_SHARE * LITTLE], 0.0, False),  # a large KL differs from batch to batch
        ([0.0, 1.0], LITTLE / MISALIGNED_TIMES, False),  # the policy moved far enough to explain it
        ([0.0, 1.0], 1 / LITTLE / MISALIGNED_TIMES, True),
        ([0.0, 1.0], None, False),
        ([None, 1.0], 0.0, False),
    ],
)
def test_a_reference_is_misaligned_where_kl_jumps_further_than_the_policy_moved(kl: list[float | None], moved: float | None, expected: bool) -> None:
    columns: Columns = {"kl/mean": kl, "policy_kl": [moved, 9.0]}  # what the step with the jump moved comes after its KL was measured
    assert (found("reference_misaligned", columns) is not None) is expected


def test_the_first_step_has_no_step_to_jump_from() -> None:
    assert found("reference_misaligned", {"kl/mean": [9.0], "policy_kl": [0.0]}) is None
    assert without_step_zero("reference_misaligned", {"kl/mean": [9.0], "policy_kl": [0.0]}) is None


def test_an_explosion_says_everything_that_is_too_large() -> None:
    both = found("early_explosion", {"kl/mean": [0.0, 0.75], "policy_kl": [2**-5] * 2, "grad_norm": [0.5] * 2, "reward/mean": [0.25, 0.5]})
    assert both is not None
    assert [part.partition(" is ")[0].partition(" by ")[0] for part in both.message.split("; ")] == [
        "KL to the reference", "one batch moves the policy",
    ]  # fmt: skip
    assert both.evidence["grad_norm"] == 0.5, "what is well, too, tells where it comes from"
    assert both.evidence["reward/mean"] == 0.5
    apart: Columns = {"policy_kl": [2**-5, 0.0], "grad_norm": [0.0, 9.0]}
    assert found("early_explosion", apart) is None, "one step of each is none of both"


@pytest.mark.parametrize(
    ("std", "best", "expected"),
    [
        ([0.0, 0.0], [0.25, 0.75], True),  # another number every step, the same within
        ([0.0, 1e-3], [0.25, 0.25], False),
        ([0.0, 0.0], [SETTLED, SETTLED], False),
        ([0.0, 0.0], [SETTLED / LITTLE, SETTLED / LITTLE], True),
        ([0.0, 0.0], [-1.0, -1.0], True),
        ([0.0, 0.0], [None, None], False),  # nothing was scored
    ],
)
def test_dead_rewards_are_all_the_same_and_not_full_marks(std: list[float], best: list[float | None], expected: bool) -> None:
    assert (found("dead_rewards", {"reward/std": std, "reward/max": best}) is not None) is expected


def test_what_solved_is_depends_on_full_marks() -> None:
    columns: Columns = {"reward/std": [0.0, 0.0], "reward/max": [1.0, 1.0]}
    assert [found("dead_rewards", columns, full_marks=marks) is not None for marks in (1.0, 1.1)] == [False, True]
    sparse: Columns = {"reward/lowest_fraction": [1.0] * 3, "reward/std": [0.1] * 3, "reward/mean": [0.99] * 3}
    assert [found("sparse_rewards", sparse, full_marks=marks) is not None for marks in (1.0, 1.1)] == [False, True]


def test_where_right_answers_are_counted_they_say_what_is_solved() -> None:
    """Full marks are out of reach, as where length is paid and none is so long."""
    dead: Columns = {"reward/std": [0.0, 0.0], "reward/max": [0.4, 0.4]}
    sparse: Columns = {"reward/lowest_fraction": [1.0] * 3, "reward/std": [0.1] * 3, "reward/mean": [0.4] * 3}
    for condition, columns in (("dead_rewards", dead), ("sparse_rewards", sparse)):
        steps = len(columns["reward/std"])
        called = [found(condition, {**columns, "train_accuracy": [accuracy] * steps}) is not None for accuracy in (SETTLED, SETTLED / LITTLE, None)]
        assert called == [False, True, True], condition


def test_groups_that_are_alike_as_they_are_solved_are_no_weak_signal() -> None:
    for hopeless, expected in ((HOPELESS * LITTLE, True), (HOPELESS, False), (0.0, False)):
        columns: Columns = {"zero_variance_fraction": [1.0] * 3, "hopeless_group_fraction": [hopeless] * 3}
        assert (found("weak_signal", columns) is not None) is expected


def test_rewards_that_are_all_alike_are_not_sparse_but_dead() -> None:
    assert found("sparse_rewards", {"reward/lowest_fraction": [1.0] * 3, "reward/std": [0.0] * 3, "reward/mean": [0.1] * 3}) is None


ALIKE = SETTINGS.min_distinct_fraction / 2


@pytest.mark.parametrize(
    ("entropy", "low", "collapsed"),
    [
        ([1.0] * 7, False, False),  # alike, but as uncertain as ever
        ([1.0] * 5 + [1 / SHARPENED / LITTLE] * 2, True, False),
        ([1.0] * 5 + [LITTLE / SHARPENED] * 2, False, False),
        ([1.0, 0.9, 0.6, 0.4, 0.3, COLLAPSED / LITTLE, COLLAPSED / LITTLE], False, True),
        ([1.0, 0.9, 0.6, 0.4, 0.3, COLLAPSED * LITTLE, COLLAPSED * LITTLE], False, False),
    ],
)
def test_the_sampler_sharpens_at_once_and_the_policy_bit_by_bit(entropy: list[float], low: bool, collapsed: bool) -> None:
    columns: Columns = {"distinct_fraction": [0.9] * 5 + [ALIKE] * 2, "entropy": entropy}
    assert [found(condition, columns) is not None for condition in ("low_diversity", "entropy_collapse")] == [low, collapsed]
    different: Columns = {**columns, "distinct_fraction": [0.9] * 7}
    assert [found(condition, different) for condition in ("low_diversity", "entropy_collapse")] == [None, None]


def test_completions_that_are_alike_from_the_start_were_drawn_too_cold() -> None:
    def low(steps: int) -> bool:
        return found("low_diversity", {"distinct_fraction": [ALIKE] * steps, "entropy": [0.5] * steps}) is not None

    assert [low(steps) for steps in range(1, 6)] == [False, True, False, False, False], "later it is no news: the alarm is open by then"


@pytest.mark.parametrize(
    ("gain", "full_marks", "expected"),
    [
        ({"train_accuracy": [0.5, 0.5, 0.5, 0.5]}, 1.0, True),
        ({"train_accuracy": [0.5, 0.5, 0.75, 0.75]}, 1.0, False),
        ({"train_accuracy": [0.5, 0.5, 0.25, 0.25]}, 1.0, True),
        ({"train_accuracy": [0.5, 0.5, 0.53, 0.53]}, 9.0, False),  # accuracy has marks of its own
        ({"reward/mean": [0.5, 0.5, 0.5, 0.5]}, 1.0, True),
        ({"reward/mean": [0.5, 0.5, 0.75, 0.75]}, 1.0, False),
        ({"reward/mean": [0.5, 0.5, 0.53, 0.53]}, 9.0, True),  # a gain of 0.03 in 9
        ({"train_accuracy": [0.5] * 4, "reward/mean": [0.5, 0.5, 0.75, 0.75]}, 1.0, True),  # the reward gained, right answers did not
        ({}, 1.0, False),
    ],
)
def test_length_that_grows_for_a_gain_is_no_trouble(gain: dict[str, Sequence[float]], full_marks: float, expected: bool) -> None:
    grown: Columns = {"length/mean": [10.0, 10.0, 20.0, 20.0], **gain}
    assert (found("runaway_length", grown, full_marks=full_marks) is not None) is expected


@pytest.mark.parametrize("condition", ["runaway_length", "reward_hacking", "late_degeneration"])
def test_trends_are_not_read_before_the_window_is_full(condition: str) -> None:
    trouble = next(trouble for trouble in TROUBLES if trouble.condition == condition)
    columns = {name: list(values) for name, values in trouble.columns(trouble.ill).items()}
    longest = len(next(iter(columns.values())))
    seen = [without_step_zero(condition, {name: values[:steps] for name, values in columns.items()}) for steps in range(1, longest + 1)]
    assert seen[:-1] == [None] * (longest - 1)
    assert seen[-1] is not None
    # Where the reward fell, the first batch without it was drawn by the weights of the best one's step.
    assert seen[-1].since == longest - SETTINGS.window - (condition == "late_degeneration")


TOLD_AFTER = {
    "early_explosion: max_kl": 2,  # the batch is drawn with the weights that the step before left
    "early_explosion: max_policy_kl": 2, "early_explosion: max_grad_norm": 2,  # two steps: the weights before the first of them are well
    "weak_signal: max_alike_fraction": 3, "low_diversity: min_distinct_fraction": 3, "truncation: max_truncated_fraction": 3,
    "sparse_rewards: sparse_fraction": 4, "reward_hacking: length_paid": 3,
    "runaway_length: max_length_growth": 4, "reward_hacking: accuracy_drop": 4, "late_degeneration: reward_drop": 5, "late_degeneration: max_repetition": 4,
}  # fmt: skip
"""How many steps after the last one whose weights were well; what is not here is no fault of the weights, and is told at once."""


def test_a_policy_was_well_before_what_its_batch_shows() -> None:
    told = {}
    for trouble in TROUBLES:
        columns = trouble.columns(trouble.ill)
        seen = found(trouble.condition, columns, first=20)
        assert seen is not None
        if seen.since is not None:
            told[trouble.name] = 20 + len(next(iter(columns.values()))) - seen.since
    assert told == TOLD_AFTER


@pytest.mark.parametrize(
    ("earlier", "batch_size", "expected"),
    [
        ([0.5] * 4, 128, True),
        ([0.995] * 4, 128, False),  # so few were right that batches without one are to be expected
        ([0.7] * 4, 4, False),  # four completions are alike now and then
        ([], 128, True),
        ([], 4, False),
    ],
)
def test_rewards_are_dead_where_chance_does_not_explain_it(earlier: list[float], batch_size: int, expected: bool) -> None:
    history, facts = History(), Facts(full_marks=1.0, reward_range=1.0, batch_size=batch_size, dtype="float32")
    columns: Columns = {
        "reward/lowest_fraction": [*earlier, 1.0, 1.0], "reward/std": [0.3] * len(earlier) + [0.0] * 2, "reward/max": [1.0] * len(earlier) + [0.0] * 2,
    }  # fmt: skip
    for step, line in enumerate(lines(columns)):
        history.append(step, line)
    assert (ALL["dead_rewards"](history, SETTINGS, facts) is not None) is expected


@pytest.mark.parametrize("prompts", [1, 2, 4, 16])
def test_a_policy_that_stands_still_does_not_degenerate_by_the_luck_of_the_draw(prompts: int) -> None:
    alarms = 0
    for seed in range(20):
        draws = np.random.default_rng(seed).normal(0.5, 0.35 / prompts**0.5, 200)
        history = History()
        for step, reward in enumerate(draws, start=1):
            history.append(step, {"reward/mean": float(reward)})
            if ALL["late_degeneration"](history, HealthConfig(), Facts(full_marks=1.0, reward_range=1.0, batch_size=8, dtype="float32")) is not None:
                alarms += 1
                break
    assert alarms <= 1


def test_a_small_range_of_rewards_makes_small_falls_count() -> None:
    """Penalties alone: the most there is to earn is 0."""
    falls: Columns = {"reward/mean": [-0.1] * 4 + [-0.6] * 4}
    assert found("late_degeneration", falls, full_marks=0.0) is not None
    assert found("late_degeneration", {"reward/mean": [-0.1] * 4 + [-0.11] * 4}, full_marks=0.0) is None


def test_length_is_paid_only_where_rewards_tell_more_apart_than_right_and_wrong() -> None:
    for beyond, expected in ((BEYOND_ACCURACY * LITTLE, True), (BEYOND_ACCURACY, False), (0.0, False)):
        columns: Columns = {"length_paid": [1.0] * 3, "reward/beyond_accuracy": [beyond] * 3}
        assert (found("reward_hacking", columns) is not None) is expected


RISES: Columns = {"reward/mean": [0.25, 0.25, 0.25, 0.5, 0.5]}


@pytest.mark.parametrize(
    ("select", "graded", "expected"),
    [
        ([0.5, None, None, None, 0.25], 1e6, True),
        ([0.5, None, None, None, 0.25], 20.0, False),  # so few prompts differ as much by chance
        ([0.5, None, None, None, 0.375], 1e6, False),
        ([0.25, 0.5, None, None, 0.25], 1e6, False),  # within the window it rose and fell
        ([0.5, None, None, None, None], 1e6, False),
        ([None, None, None, None, 0.25], 1e6, False),
        ([None] * 5, 1e6, False),
    ],
)
def test_where_training_counts_no_right_answers_the_evaluations_on_select_do(select: list[float | None], graded: float, expected: bool) -> None:
    columns: Columns = {**RISES, "eval/select_accuracy": select, "eval/select_graded": [None if value is None else graded for value in select]}
    assert (found("reward_hacking", columns) is not None) is expected
    assert found("reward_hacking", {**RISES, "eval/select_accuracy": select}) is None, "an older log does not say of how many"
    counted: Columns = {**columns, "train_accuracy": [0.5] * 5}
    assert found("reward_hacking", counted) is None


def test_right_answers_that_become_fewer_with_the_reward_are_not_hacked() -> None:
    falls: Columns = {"reward/mean": [0.5, 0.5, 0.5, 0.25, 0.25], "train_accuracy": [0.5, 0.5, 0.5, 0.25, 0.25]}
    assert found("reward_hacking", falls) is None
    assert found("reward_hacking", {**falls, **RISES}) is not None
    assert found("reward_hacking", {**falls, **RISES}, full_marks=100.0) is None, "a rise of 0.25 in 100 is none"


def test_a_reward_that_falls_is_told_by_its_best_window_whenever_that_was() -> None:
    def degenerated(rewards: Sequence[float], **settings: float) -> bool:
        return found("late_degeneration", {"reward/mean": rewards}, settings=replace(SETTINGS, **settings)) is not None  # type: ignore[arg-type]

    assert degenerated([0.9] * 4 + [0.6] * 20)
    assert degenerated([0.9] * 4 + [0.6] * 20, reward_drop=0.29)
    assert not degenerated([0.9] * 4 + [0.6] * 20, reward_drop=0.31)
    assert not degenerated([0.6] * 4 + [0.9] * 20), "it rose"
    assert not degenerated([0.1, 0.9, 0.1, 0.9] * 6), "it goes up and down within the window"
    assert found("late_degeneration", {"reward/mean": [0.9] * 4 + [0.6] * 20}, full_marks=2.0) is None, "0.3 of 2 is less than a quarter"


RISES_AND_FALLS = [0.5, 0.55, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.55, 0.4, 0.25, 0.1]
"""At its best at steps 7 and 8, which the weights of steps 6 and 7 drew."""
EXPLODES: dict[str, Columns] = {
    "early_explosion": {"kl/mean": [0.01] * 11 + [0.75]},
    "entropy_collapse": {"distinct_fraction": [0.9] * 10 + [0.0] * 2, "entropy": [1.0] + [0.5] * 9 + [0.1] * 2},
    "late_degeneration": {"repetition": [0.0] * 8 + [0.3] * 4},
}


@pytest.mark.parametrize("condition", EXPLODES)
def test_what_explodes_was_well_when_the_reward_was_at_its_best(condition: str) -> None:
    def since(rewards: Sequence[float]) -> int | None:
        seen = found(condition, {**EXPLODES[condition], "reward/mean": rewards})
        return None if seen is None else seen.since

    by_itself = {"early_explosion": 10, "entropy_collapse": 9, "late_degeneration": 8}[condition]
    assert since(RISES_AND_FALLS) == 7
    assert since([0.5, 0.6] * 6) == since([0.5 + 0.02 * step for step in range(12)]) == by_itself, "it goes up and down, or rises"
    assert since([0.5, 0.6] * 5 + [0.35] * 2) == by_itself, "a fall of a few standard errors is chance"
    assert since([0.5] * 11 + [0.49]) == by_itself, "too little to have fallen"
    assert since([0.7, 0.75, 0.7, 0.75, 0.7, 0.75, 0.7, 0.72, 0.3, 0.25, 0.2, 0.1]) == 7, "as well as ever, but for chance"


@pytest.mark.parametrize(
    ("kl", "cause"),
    [
        ([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], "KL is flat"),
        ([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.2], "KL still rises"),
        ([0.1, 0.1, 0.1, 0.1, 0.4, 0.4, 0.4, 0.4], "KL is flat"),  # it rose, and does not any more
        ([-0.1] * 6 + [-0.101] * 2, "KL is flat"),  # k1 of the samples can be negative
        ([None] * 8, "KL is not measured"),
    ],
)
def test_a_fall_comes_with_its_cause(kl: list[float | None], cause: str) -> None:
    seen = found("late_degeneration", {"reward/mean": [0.75] * 4 + [0.25] * 4, "kl/mean": kl})
    assert seen is not None
    assert f"; {cause}" in seen.message


def test_failures_are_told_at_once_and_beside_what_cannot_be_read() -> None:
    both = found("reward_failures", {"status/error_fraction": [0.0, 0.5], "status/invalid_fraction": [0.75, 0.75]})
    assert both is not None
    assert both.message.startswith("a reward function failed on 50.0% of the completions")
    assert "; 75% of the completions are invalid" in both.message
    assert found("reward_failures", {"status/error_fraction": [0.5, 0.0]}) is None


@pytest.mark.parametrize("condition", CLOCK_RULES)
def test_two_earlier_steps_make_what_is_usual(condition: str) -> None:
    column = {"slow_reward": "seconds/score", "stall": "seconds"}[condition]

    def slow(seconds: Sequence[float]) -> bool:
        columns: Columns = {column: seconds, "seconds": seconds}
        return found(condition, columns) is not None

    assert not slow([1.0, 99.0])
    assert slow([1.0, 1.0, 99.0])
    assert slow([99.0, 1.0, 1.0, 1.0, 1.0, 9.0]), "the median is not moved by a slow first step"
    assert not slow([1.0, 9.0, 9.0, 9.0, 9.0, 9.0]), "what is usual is that of the window"
    quick = MIN_SLOW_SECONDS / LITTLE
    assert not slow([quick / 100, quick / 100, quick])
    assert slow([quick / 100, quick / 100, MIN_SLOW_SECONDS])


def test_a_stall_is_not_the_scoring_nor_the_evaluation() -> None:
    quick = {"seconds": 1.0, "seconds/score": 0.0, "seconds/evaluate": 0.0}
    slow: dict[str, dict[str, float]] = {
        "scoring": {"seconds": 99.0, "seconds/score": 98.0, "seconds/evaluate": 0.0},
        "evaluation": {"seconds": 99.0, "seconds/score": 0.0, "seconds/evaluate": 98.0},
        "itself": {"seconds": 99.0, "seconds/score": 0.0, "seconds/evaluate": 0.0},
    }
    stalled = {name: found("stall", {key: [quick[key], quick[key], value] for key, value in line.items()}) is not None for name, line in slow.items()}
    assert stalled == {"scoring": False, "evaluation": False, "itself": True}
