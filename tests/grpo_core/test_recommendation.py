"""What is recommended for curves made by hand: ties, clear winners, jitter, crossing curves, few seeds, unequal lengths."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grpo_core.comparison import FACTORS, Factor, Run, arms_of, compare, comparisons_of
from grpo_core.recommendation import Recommendation, recommend

GROUP_SIZE, CLIP = FACTORS[0], FACTORS[1]
Curve = Callable[[int], float]
STEPS = 60


def rising(speed: float) -> Curve:
    """From 0.4 in a straight line."""
    return lambda step: 0.4 + speed * step


def runs(
    factor: Factor,
    value: float,
    curve: Curve,
    *,
    noise: float = 0.02,
    drawn: float = 0.0,
    seeds: int = 3,
    steps: int = STEPS,
    tokens: float = 100.0,
    final: float | None = 0.8,
) -> list[Run]:
    """An arm's runs: the curve with noise of its own for every seed, of which the draw explains `drawn`.

    `final` of 1000 graded answers are right in the end, three more or less by seed.
    """
    made = []
    for seed in range(seeds):
        shaken = np.random.default_rng((int(100 * value), seed)).normal(0, noise, steps)
        rewards = {step: curve(step) + float(shaken[step - 1]) for step in range(1, steps + 1)}
        settings: Mapping[str, Any] = {**dict.fromkeys(factor.keys, value), "grpo.seed": seed, "grpo.steps": steps}
        selected = {} if final is None else {0: (400, 1000), steps: (round(1000 * final) + 3 * (seed - 1), 1000)}
        name = f"{factor.name}-{value}-{seed}"
        made.append(Run(name, name, seed, settings, rewards, dict.fromkeys(rewards, drawn), dict.fromkeys(rewards, tokens), selected))
    return made


def advice(*arms: list[Run], in_force: Any = None) -> Recommendation:
    ((factor, grouped),) = comparisons_of(arms_of([run for arm in arms for run in arm]))[:1]
    return recommend(compare(factor, grouped), in_force)


def test_of_arms_that_rise_alike_the_smallest_group_is_taken() -> None:
    found = advice(*(runs(GROUP_SIZE, size, rising(0.006)) for size in (4, 8, 16)))
    assert found == Recommendation("4", "4, 8 and 16 rise alike within the interval: take 4")


def test_an_arm_that_rises_more_slowly_is_left_out_first() -> None:
    found = advice(runs(GROUP_SIZE, 4, rising(0.003)), runs(GROUP_SIZE, 8, rising(0.006)), runs(GROUP_SIZE, 16, rising(0.0061)))
    assert found.label == "8"
    assert found.reason.startswith("4 rises more slowly than ")
    assert found.reason.endswith("; 8 and 16 rise alike within the interval: take 8")


def test_a_clear_winner_is_taken_whatever_its_size() -> None:
    found = advice(runs(GROUP_SIZE, 4, rising(0.002)), runs(GROUP_SIZE, 8, rising(0.003)), runs(GROUP_SIZE, 16, rising(0.009)))
    assert found.label == "16"
    assert "4 rises more slowly than 16 (+0.00" in found.reason and "8 rises more slowly than 16 (+0.00" in found.reason
    assert found.reason.endswith(": take 16")


def test_an_arm_that_jitters_more_is_left_out_though_it_rises_alike() -> None:
    found = advice(runs(GROUP_SIZE, 4, rising(0.006), noise=0.06), runs(GROUP_SIZE, 8, rising(0.006)))
    assert found.label == "8"
    assert found.reason.startswith("4 jitters more than 8 (0.0") and found.reason.endswith(" beyond the draw): take 8")


def test_jitter_that_comes_from_drawing_fewer_prompts_is_not_held_against_an_arm() -> None:
    """At a fixed budget large groups mean few prompts, and the mean over few prompts moves more whatever the policy does."""
    arms = [runs(CLIP, 0.1, rising(0.006), noise=0.03, drawn=0.03), runs(CLIP, 0.2, rising(0.006), noise=0.06, drawn=0.06)]
    assert advice(*arms, in_force=0.2).reason == "0.1 and 0.2 rise alike within the interval: take 0.2, the value in force"
    restless = runs(CLIP, 0.2, rising(0.006), noise=0.06, drawn=0.02)
    assert advice(arms[0], restless, in_force=0.2).label == "0.1"


def test_a_jitter_that_is_a_hair_larger_does_not_matter_however_sure_it_is() -> None:
    def wavy(height: float) -> Curve:
        return lambda step: rising(0.006)(step) + height * (-1) ** step

    assert advice(runs(GROUP_SIZE, 4, wavy(0.0505), noise=1e-6), runs(GROUP_SIZE, 8, wavy(0.05), noise=1e-6)).label == "4"
    assert advice(runs(GROUP_SIZE, 4, wavy(0.06), noise=1e-6), runs(GROUP_SIZE, 8, wavy(0.05), noise=1e-6)).label == "8"


def test_an_arm_that_is_early_at_the_top_is_not_called_slow_for_waiting_there() -> None:
    def quick(step: int) -> float:
        return min(1.0, 0.4 + 0.04 * step)

    found = advice(runs(GROUP_SIZE, 4, quick), runs(GROUP_SIZE, 16, rising(0.01)))
    assert found.label == "4" and found.reason.startswith("16 rises more slowly than 4")


def test_of_crossing_curves_the_one_that_ends_far_above_is_taken() -> None:
    def stuck(step: int) -> float:
        return min(0.5, 0.4 + 0.02 * step)

    found = advice(runs(GROUP_SIZE, 4, stuck, final=0.5), runs(GROUP_SIZE, 16, rising(0.01), final=0.95))
    assert found.label == "16" and found.reason.startswith("4 rises more slowly than 16")


def test_of_arms_that_rise_alike_the_less_accurate_is_left_out() -> None:
    found = advice(runs(GROUP_SIZE, 4, rising(0.006), final=0.7), runs(GROUP_SIZE, 8, rising(0.006), final=0.9))
    assert found.reason == "4 ends less accurate on select than 8 (0.7 against 0.9): take 8"


def test_nothing_is_recommended_where_reward_and_accuracy_disagree() -> None:
    found = advice(runs(GROUP_SIZE, 4, rising(0.009), final=0.5), runs(GROUP_SIZE, 8, rising(0.003), final=0.9))
    assert found.label is None
    assert found.reason.startswith("no recommendation: reward and accuracy on select disagree")


def test_accuracy_takes_no_part_where_some_arm_was_not_evaluated() -> None:
    assert advice(runs(GROUP_SIZE, 4, rising(0.006), final=None), runs(GROUP_SIZE, 8, rising(0.006), final=0.9)).label == "4"


def test_of_arms_that_do_alike_the_cheaper_is_taken() -> None:
    found = advice(runs(CLIP, 0.1, rising(0.006), tokens=100), runs(CLIP, 0.2, rising(0.006), tokens=150), in_force=0.2)
    assert found.reason == "0.2 rises like 0.1 for 1.5 times the tokens: take 0.1"


def test_of_values_that_do_alike_the_one_in_force_is_kept() -> None:
    arms = [runs(CLIP, value, rising(0.006)) for value in (0.1, 0.2, 0.3)]
    assert advice(*arms, in_force=0.2).reason == "0.1, 0.2 and 0.3 rise alike within the interval: take 0.2, the value in force"
    assert advice(*arms, in_force=0.27).label == "0.3"
    assert advice(*arms).label == "0.1"


def test_fewer_than_three_seeds_recommend_nothing() -> None:
    found = advice(runs(GROUP_SIZE, 4, rising(0.006), seeds=1), runs(GROUP_SIZE, 8, rising(0.001), seeds=2))
    assert found.label is None
    assert found.reason == "no recommendation yet: it takes 3 seeds in two arms or more to tell an arm from its luck (4 has 1, 8 has 2)"


def test_an_arm_with_too_few_seeds_is_passed_over() -> None:
    found = advice(runs(GROUP_SIZE, 4, rising(0.009), seeds=2), runs(GROUP_SIZE, 8, rising(0.006)), runs(GROUP_SIZE, 16, rising(0.006)))
    assert found.reason == "4 has too few seeds (2) to count; 8 and 16 rise alike within the interval: take 8"


def test_nothing_is_recommended_before_anything_rises() -> None:
    found = advice(runs(GROUP_SIZE, 4, rising(0.0)), runs(GROUP_SIZE, 8, rising(0.0)))
    assert found.label is None
    assert found.reason.startswith("no recommendation: in no arm does the reward rise beyond its interval (fastest is ")


def test_a_few_steps_recommend_nothing() -> None:
    found = advice(runs(GROUP_SIZE, 4, rising(0.1), steps=5), runs(GROUP_SIZE, 8, rising(0.1)))
    assert found.reason == "no recommendation yet: the runs have 5 steps in common, a rise takes 8 to be seen"


def test_runs_of_unequal_length_are_compared_over_the_common_steps() -> None:

    def falls(step: int) -> float:
        """What the longer runs did later, which does not count."""
        return 0.4 + 0.009 * min(step, STEPS) - 0.05 * max(0, step - STEPS)

    found = advice(runs(GROUP_SIZE, 4, rising(0.003)), runs(GROUP_SIZE, 8, falls, steps=STEPS + 40))
    assert found.label == "8"
