"""Trained runs grouped into arms, and the arms of one factor measured alike. recommendation.py says which one to take.

Arithmetic on logged curves: no torch, and equal runs give equal figures. docs/ablations.md says in words what is measured.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from grpo_core.statistics import Interval, t_interval, wilson

SEED, STEPS = "grpo.seed", "grpo.steps"
CHANGE_NO_ARM = frozenset({SEED, STEPS})
"""Settings in which the runs of one arm may differ: repetitions have other seeds, and a longer run begins as a shorter one does."""
FEWEST_STEPS = 8
"""Steps that are needed for a rise and a jitter."""
RISEN = 0.9
"""Rises are compared until the first arm has gone this share of the way from the common start to the highest reward that any arm reaches."""


@dataclass(frozen=True, slots=True)
class Factor:
    """What one ablation varies."""

    name: str
    keys: tuple[str, ...]
    """The setting whose value names an arm, then those that may have to follow it."""
    smaller_is_cheaper: bool = False
    """Of values that do alike the smallest is taken; else the one nearest to what is in force."""


FACTORS = (
    Factor("group_size", ("grpo.group_size", "grpo.prompts_per_step", "grpo.minibatches_per_rollout"), smaller_is_cheaper=True),
    Factor("clip", ("grpo.clip_low", "grpo.clip_high")),
    Factor("beta", ("grpo.beta",)),
    Factor("temperature", ("rollout.temperature",)),
)
"""Those that `grpo ablate` knows. Any other setting in which experiments differ is a factor of its own."""


@dataclass(frozen=True, slots=True)
class Run:
    """A trained experiment as its tables tell it; every mapping is by step."""

    experiment: str
    run_key: str
    """Names the training."""
    seed: int
    settings: Mapping[str, Any]
    """`section.key` → what it was trained with."""
    rewards: Mapping[int, float]
    """Mean reward of the rollout batch, from step 1."""
    drawn: Mapping[int, float]
    """Standard error of that mean, from the spread between the batch's prompts: how much it depends on which ones were drawn."""
    tokens: Mapping[int, float]
    """Completion tokens sampled."""
    selected: Mapping[int, tuple[int, int]]
    """Right and graded answers on the `select` split; step 0 is before training."""

    @property
    def num_steps(self) -> int:
        return max(self.rewards, default=0)


@dataclass(frozen=True, slots=True)
class Arm:
    """Repetitions of one configuration."""

    settings: Mapping[str, Any]
    runs: tuple[Run, ...]
    """One a seed, by seed."""
    twins: Mapping[str, str]
    """Experiment that repeats a run, seed included → the experiment of that run, which alone counts."""


@dataclass(frozen=True, slots=True)
class Measured:
    """An arm in numbers; the tuples hold one a seed."""

    label: str
    value: Any
    settings: Mapping[str, Any]
    """Of the factor's keys those that vary."""
    experiments: tuple[str, ...]
    seeds: tuple[int, ...]
    slopes: tuple[float, ...]
    """Reward a step, by least squares."""
    jitters: tuple[float, ...]
    """Standard deviation of the reward around its trend."""
    drawn: tuple[float, ...]
    """What `jitters` would be if nothing but the draw of prompts and completions moved the reward: less, the more prompts a step has."""
    best: tuple[tuple[int, int], ...]
    """Right and graded at the best evaluation on `select`; empty where there was none."""
    final: tuple[tuple[int, int], ...]
    """The same at the last one."""
    tokens: tuple[float, ...]
    """Completion tokens of the whole run."""

    @property
    def unrest(self) -> tuple[float, ...]:
        """Variance of the jitter that the draw does not explain; below 0 by chance where the draw explains all of it."""
        return tuple(jitter**2 - drawn**2 for jitter, drawn in zip(self.jitters, self.drawn, strict=True))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arms that differ in one factor only, measured over the same steps."""

    factor: Factor
    num_steps: int
    """Steps that every run has."""
    rising_steps: int
    """Steps over which the rise is measured."""
    arms: tuple[Measured, ...]
    """By value."""


# ------------------------------------------------------------------------------------------------------ arms and factors


def arms_of(runs: Iterable[Run]) -> list[Arm]:
    """Runs of the same configuration together; of equal seeds the longest run counts, the first of equally long ones."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(_key(run.settings, CHANGE_NO_ARM), []).append(run)
    return [_arm(group) for group in grouped.values()]


def _arm(group: Sequence[Run]) -> Arm:
    chosen: dict[int, Run] = {}
    for run in group:
        if run.seed not in chosen or run.num_steps > chosen[run.seed].num_steps:
            chosen[run.seed] = run
    settings = {key: value for key, value in group[0].settings.items() if key not in CHANGE_NO_ARM}
    kept = tuple(chosen[seed] for seed in sorted(chosen))
    return Arm(settings, kept, {run.experiment: chosen[run.seed].experiment for run in group if run is not chosen[run.seed]})


def _key(settings: Mapping[str, Any], without: Iterable[str]) -> str:
    """What is equal for equal settings, those named in `without` aside."""
    left_out = set(without)
    return json.dumps({key: value for key, value in settings.items() if key not in left_out}, sort_keys=True)


def comparisons_of(arms: Sequence[Arm]) -> list[tuple[Factor, list[Arm]]]:
    """Each factor with the arms that differ in nothing else, two or more, by value; the factors of `FACTORS` first."""
    keys = sorted({key for arm in arms for key in arm.settings if len({_spelled(other, key) for other in arms}) > 1})
    found: list[tuple[Factor, list[Arm]]] = []
    for factor in (*FACTORS, *(Factor(key, (key,)) for key in keys)):
        classes: dict[str, list[Arm]] = {}
        for arm in arms:
            classes.setdefault(_key(arm.settings, factor.keys), []).append(arm)
        for group in classes.values():
            told = any(factor.keys[0] in other.keys and all(arm in others for arm in group) for other, others in found)
            if len({_spelled(arm, factor.keys[0]) for arm in group}) > 1 and not told:
                found.append((factor, sorted(group, key=lambda arm: order(arm.settings.get(factor.keys[0])))))
    return found


def _spelled(arm: Arm, key: str) -> str:
    return json.dumps(arm.settings.get(key), sort_keys=True)


def order(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then all else by its spelling."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (not is_number, float(value) if is_number else 0.0, json.dumps(value, sort_keys=True))


# ------------------------------------------------------------------------------------------------------------ measuring


def compare(factor: Factor, arms: Sequence[Arm]) -> Comparison:
    """Measure the arms over the steps that all their runs have."""
    num_steps = min(run.num_steps for arm in arms for run in arm.runs)
    curves = [_mean_curve(arm, num_steps) for arm in arms]
    rising = rising_steps(curves)
    varying = [key for key in factor.keys if len({_spelled(arm, key) for arm in arms}) > 1]
    measured = [_measured(arm, label, varying, num_steps, rising) for arm, label in zip(arms, _labels(arms, varying), strict=True)]
    return Comparison(factor, num_steps, rising, tuple(measured))


def _mean_curve(arm: Arm, num_steps: int) -> list[float]:
    """The mean reward over the arm's seeds, step by step."""
    return [math.fsum(run.rewards[step] for run in arm.runs) / len(arm.runs) for step in range(1, num_steps + 1)]


def rising_steps(curves: Sequence[Sequence[float]]) -> int:
    """Steps until the first of these curves (equally long, one an arm) has nearly reached the highest reward of all: `RISEN` of the way.

    Beyond, an arm that was fast only waits at the top, and a straight line through all steps would call it slow. All curves are
    smoothed over a tenth of the steps first.
    """
    num_steps = len(curves[0])
    width = max(1, num_steps // 10)
    smooth = [[math.fsum(curve[max(0, step + 1 - width) : step + 1]) / min(width, step + 1) for step in range(num_steps)] for curve in curves]
    start = math.fsum(curve[min(width, num_steps) - 1] for curve in smooth) / len(smooth)
    top = max(max(curve) for curve in smooth)
    reached = (step + 1 for step in range(num_steps) if max(curve[step] for curve in smooth) >= start + RISEN * (top - start))
    return num_steps if top <= start else max(next(reached, num_steps), min(num_steps, FEWEST_STEPS))


def slope(values: Sequence[float]) -> float:
    """Rise a step of the straight line through equally spaced values, by least squares; 0 for fewer than two."""
    middle = (len(values) - 1) / 2
    squares = math.fsum((place - middle) ** 2 for place in range(len(values)))
    return math.fsum((place - middle) * value for place, value in enumerate(values)) / squares if squares else 0.0


def jitter(values: Sequence[float]) -> float:
    """Standard deviation of the noise on a smooth curve, from step-to-step differences (J. von Neumann, 1941); 0 for fewer than three.

    Unlike residuals of a straight line it does not take the bend of a curve that levels off for noise.
    """
    changes = [after - before for before, after in pairwise(values)]
    if len(changes) < 2:
        return 0.0
    mean = math.fsum(changes) / len(changes)
    return math.sqrt(math.fsum((change - mean) ** 2 for change in changes) / (len(changes) - 1) / 2)


def _measured(arm: Arm, label: str, varying: Sequence[str], num_steps: int, rising: int) -> Measured:
    curves = [[run.rewards[step] for step in range(1, num_steps + 1)] for run in arm.runs]
    evaluated = [[counts for step, counts in sorted(run.selected.items()) if 0 < step <= num_steps and counts[1] > 0] for run in arm.runs]
    complete = all(evaluated)
    return Measured(
        label=label,
        value=arm.settings.get(varying[0]),
        settings={key: arm.settings.get(key) for key in varying},
        experiments=tuple(run.experiment for run in arm.runs),
        seeds=tuple(run.seed for run in arm.runs),
        slopes=tuple(slope(curve[:rising]) for curve in curves),
        jitters=tuple(jitter(curve) for curve in curves),
        drawn=tuple(math.sqrt(math.fsum(run.drawn[step] ** 2 for step in range(1, num_steps + 1)) / num_steps) for run in arm.runs),
        best=tuple(max(counts, key=lambda count: count[0] / count[1]) for counts in evaluated) if complete else (),
        final=tuple(counts[-1] for counts in evaluated) if complete else (),
        tokens=tuple(math.fsum(count for step, count in run.tokens.items() if step <= num_steps) for run in arm.runs),
    )


def _labels(arms: Sequence[Arm], varying: Sequence[str]) -> list[str]:
    """The value of the first key, with the others' where that alone does not tell arms apart."""
    short = [text(arm.settings.get(varying[0])) for arm in arms]
    return [label if short.count(label) == 1 else f"{label} ({_followers(arm, varying)})" for arm, label in zip(arms, short, strict=True)]


def _followers(arm: Arm, varying: Sequence[str]) -> str:
    return ", ".join(f"{key.partition('.')[2]} {text(arm.settings.get(key))}" for key in varying[1:])


def text(value: Any) -> str:
    """A setting as people write it."""
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def accuracy(counts: Sequence[tuple[int, int]]) -> Interval | None:
    """Mean accuracy with its interval: Wilson's of one seed, Student's over several, within 0 and 1; None without an evaluation."""
    if not counts:
        return None
    if len(counts) == 1:
        return wilson(*counts[0])
    found = t_interval(shares(counts))
    return Interval(found.estimate, max(0.0, found.low), min(1.0, found.high))


def shares(counts: Sequence[tuple[int, int]]) -> list[float]:
    """Right answers as a share of the graded ones, a seed each."""
    return [right / graded for right, graded in counts]
