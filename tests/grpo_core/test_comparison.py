"""Arms and factors found among trained runs, and what is measured of them, on curves made by hand."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from grpo_core.comparison import FEWEST_STEPS, Arm, Run, accuracy, arms_of, compare, comparisons_of, jitter, rising_steps, slope

BASE = {"grpo.group_size": 8, "grpo.prompts_per_step": 16, "grpo.minibatches_per_rollout": 2, "grpo.clip_low": 0.2, "grpo.clip_high": 0.2, "grpo.beta": 0.01}


def run(name: str, seed: int = 0, rewards: Sequence[float] = (0.0, 0.1, 0.2), settings: Mapping[str, Any] | None = None, **more: Any) -> Run:
    """A run that got these rewards at 100 tokens a step."""
    steps = range(1, len(rewards) + 1)
    trained = {**BASE, **(settings or {}), "grpo.seed": seed, "grpo.steps": len(rewards)}
    selected = more.get("selected", {0: (1, 10), len(rewards): (5, 10)})
    drawn = dict.fromkeys(steps, more.get("drawn", 0.0))
    return Run(name, name, seed, trained, dict(zip(steps, rewards, strict=True)), drawn, dict.fromkeys(steps, 100.0), selected)


def group_of(size: int) -> dict[str, int]:
    return {"grpo.group_size": size, "grpo.prompts_per_step": 128 // size}


def factors(runs: Sequence[Run]) -> dict[str, list[list[str]]]:
    """Factor → the first experiment of each arm, for every comparison."""
    found: dict[str, list[list[str]]] = {}
    for factor, arms in comparisons_of(arms_of(runs)):
        found.setdefault(factor.name, []).append([arm.runs[0].experiment for arm in arms])
    return found


def test_runs_that_differ_in_seed_and_length_alone_are_one_arm() -> None:
    arms = arms_of([run("b", seed=1), run("a", seed=0), run("long", seed=2, rewards=[0.0] * 9), run("other", settings={"grpo.beta": 0.04})])
    assert [[one.experiment for one in arm.runs] for arm in arms] == [["a", "b", "long"], ["other"]]
    assert arms[0].settings == BASE


def test_a_repeated_seed_counts_once_and_the_longer_run_counts() -> None:
    (arm,) = arms_of([run("short"), run("long", rewards=[0.0] * 9), run("as long", rewards=[0.0] * 9), run("more", seed=1)])
    assert [one.experiment for one in arm.runs] == ["long", "more"]
    assert arm.twins == {"short": "long", "as long": "long"}


def test_arms_are_compared_where_they_differ_in_one_factor_only() -> None:
    """Two ablations around one base: what belongs to both factors at once is in neither comparison."""
    runs = [
        run("16", settings=group_of(16)),
        run("base"),
        run("4", settings=group_of(4)),
        run("narrow", settings={"grpo.clip_low": 0.1, "grpo.clip_high": 0.1}),
        run("both", settings={**group_of(4), "grpo.beta": 0.04, "grpo.clip_low": 0.3, "grpo.clip_high": 0.3}),
    ]
    assert factors(runs) == {"group_size": [["4", "base", "16"]], "clip": [["narrow", "base"]]}


def test_a_setting_that_no_ablation_knows_is_a_factor_by_itself() -> None:
    runs = [run("base"), run("slow", settings={"grpo.learning_rate": 1e-5}), run("fast", settings={"grpo.learning_rate": 1e-3})]
    assert factors(runs) == {"grpo.learning_rate": [["slow", "fast", "base"]]}
    assert factors([run("base"), run("wide", settings={"grpo.clip_high": 0.28})]) == {"grpo.clip_high": [["base", "wide"]]}
    assert factors([run("base"), run("own", settings={"rewards.mine": 1.0})]) == {"rewards.mine": [["own", "base"]]}


def test_two_groups_of_experiments_are_two_comparisons_of_a_factor() -> None:
    other = {"grpo.beta": 0.0}
    runs = [run(f"{name}-{size}", settings={**group_of(size), **more}) for name, more in (("a", {}), ("b", other)) for size in (4, 8)]
    assert factors(runs)["group_size"] == [["a-4", "a-8"], ["b-4", "b-8"]]
    assert factors(runs)["beta"] == [["b-4", "a-4"], ["b-8", "a-8"]]


def test_equal_arms_have_nothing_to_compare() -> None:
    assert factors([run("a"), run("b", seed=1)]) == {}
    assert factors([]) == {}


@pytest.mark.parametrize("values", [[0.0, 0.5, 1.0, 1.5], [3.0, 1.0, 4.0, 1.0, 5.0], [2.0, 2.0]])
def test_the_slope_is_that_of_least_squares(values: list[float]) -> None:
    assert slope(values) == pytest.approx(np.polyfit(range(len(values)), values, 1)[0], abs=1e-12)


def test_fewer_than_two_values_have_no_slope_and_fewer_than_three_no_jitter() -> None:
    assert slope([]) == slope([1.0]) == 0.0
    assert jitter([]) == jitter([1.0]) == jitter([1.0, 2.0]) == 0.0


def test_jitter_is_the_deviation_of_the_noise_whatever_the_trend() -> None:
    noise = np.random.default_rng(0).normal(0, 0.05, 4000)
    flat, bent = noise + 0.5, noise + 1 - np.exp(-np.arange(4000) / 400)
    assert jitter(flat.tolist()) == pytest.approx(0.05, rel=0.05)
    assert jitter(bent.tolist()) == pytest.approx(jitter(flat.tolist()), rel=0.01)
    assert jitter(np.linspace(0, 1, 50).tolist()) == pytest.approx(0, abs=1e-12)


def test_rises_are_compared_until_the_first_arm_is_nearly_at_the_top() -> None:
    quick = [min(1.0, 0.5 + 0.025 * step) for step in range(80)]
    slow = [0.5 + 0.5 * step / 79 for step in range(80)]
    rising = rising_steps([quick, slow])
    assert 18 <= rising <= 26
    assert slope(quick[:rising]) > 3 * slow[1] - 3 * slow[0] > 0
    assert slope(quick) < slope(slow), "over all steps the arm that waits at the top looks slow"


def test_curves_that_do_not_rise_or_are_short_are_compared_over_all_steps() -> None:
    assert rising_steps([[0.5] * 40, [0.5] * 40]) == 40
    assert rising_steps([[1.0, 0.5, 0.0] * 5]) == 15
    assert rising_steps([[0.0, 1.0, 1.0]]) == 3
    assert rising_steps([[0.0] + [1.0] * 30]) == FEWEST_STEPS


def test_arms_are_measured_over_the_steps_that_all_runs_have() -> None:
    up = [0.1 * step for step in range(1, 11)]
    long = run("long", settings=group_of(4), rewards=[*up, *([9.0] * 20)], selected={0: (9, 10), 5: (6, 10), 10: (4, 10), 30: (10, 10)})
    short = run("short", rewards=[2 * value for value in up], selected={0: (1, 10), 5: (2, 10), 10: (5, 10)})
    ((factor, arms),) = comparisons_of(arms_of([long, short]))
    compared = compare(factor, arms)
    four, eight = compared.arms
    assert compared.num_steps == 10
    assert [arm.label for arm in compared.arms] == ["4", "8"]
    assert four.settings == group_of(4)
    assert (four.slopes[0], eight.slopes[0]) == pytest.approx((0.1, 0.2))
    assert (four.best, four.final, eight.best, eight.final) == (((6, 10),), ((4, 10),), ((5, 10),), ((5, 10),))
    assert four.tokens == eight.tokens == (1000.0,)


def test_what_the_draw_explains_is_no_unrest() -> None:
    """Two arms that swing alike; in one of them 0.3 of it is the draw's."""
    wavy = [0.5, 1.5] * 20
    runs = [run("a", rewards=wavy, drawn=0.3), run("b", rewards=wavy, settings={"grpo.beta": 0.0})]
    ((factor, arms),) = comparisons_of(arms_of(runs))
    none, some = compare(factor, arms).arms
    assert none.jitters == some.jitters == (jitter(wavy),)
    assert (none.drawn[0], some.drawn[0]) == pytest.approx((0.0, 0.3))
    assert none.unrest[0] - some.unrest[0] == pytest.approx(0.09)


def test_arms_without_an_evaluation_have_no_accuracy() -> None:
    ((factor, arms),) = comparisons_of(arms_of([run("a", selected={}), run("b", settings={"grpo.beta": 0.0})]))
    none, some = sorted(compare(factor, arms).arms, key=lambda arm: arm.experiments)
    assert (none.best, none.final, some.final) == ((), (), ((5, 10),))
    assert accuracy(none.final) is None


def test_labels_name_what_follows_where_the_value_alone_is_not_enough() -> None:
    runs = [run("few", settings={"grpo.prompts_per_step": 8}), run("base"), run("16", settings=group_of(16))]
    ((factor, arms),) = comparisons_of(arms_of(runs))[:1]
    assert factor.name == "group_size"
    assert [arm.label for arm in compare(factor, arms).arms] == ["8 (prompts_per_step 8)", "8 (prompts_per_step 16)", "16"]


def test_one_seed_has_wilsons_interval_and_several_have_students() -> None:
    one = accuracy([(8, 10)])
    assert one is not None and (one.low, one.high) == pytest.approx((0.4902, 0.9433), abs=5e-5)
    three = accuracy([(9, 10), (10, 10), (10, 10)])
    assert three is not None and three.estimate == pytest.approx(29 / 30)
    assert three.high == 1.0 and three.low == pytest.approx(29 / 30 - 4.30265 * math.sqrt(1 / 300) / math.sqrt(3), abs=1e-5)


def test_an_arm_keeps_its_runs_in_the_order_of_seeds() -> None:
    (arm,) = arms_of([run("b", seed=11), run("a", seed=3)])
    assert isinstance(arm, Arm)
    assert [one.seed for one in arm.runs] == [3, 11]
