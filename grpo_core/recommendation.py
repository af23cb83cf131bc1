"""Which arm of a comparison to take, and why in words. docs/ablations.md says the rule for people."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.comparison import FEWEST_STEPS, Comparison, Factor, Measured, order, shares
from grpo_core.statistics import t_interval, welch

FEWEST_SEEDS = 3
"""Repetitions an arm needs before its interval over seeds says anything."""
ALIKE = 0.1
"""Relative differences of rise, jitter or tokens up to this do not matter, however sure they are."""
ALIKE_ACCURACY = 0.01
"""The same for accuracies, as a difference."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The arm to take, None when there is none to take yet, and why."""

    label: str | None
    reason: str


def recommend(compared: Comparison, in_force: Any = None) -> Recommendation:
    """The arm to take; `in_force` is the value that the experiments start from.

    Left out, one after another: arms whose reward rises more slowly than the fastest one's; arms that end less accurate on `select` than the
    most accurate one; of the rest those that jitter more than the calmest one, then those that cost more tokens than the cheapest one. Of what
    is left the smallest group size is taken, of any other factor the value nearest to `in_force`. A difference counts when Welch's 95 %
    interval over seeds leaves 0 out and it is larger than `ALIKE`. Jitter is what the draw does not explain: with fewer prompts a step the
    mean reward moves more, whatever the policy does.
    """
    arms = [arm for arm in compared.arms if len(arm.seeds) >= FEWEST_SEEDS]
    if refused := _not_yet(compared, arms) or _no_rise(arms):
        return Recommendation(None, refused)
    said = [f"{arm.label} has too few seeds ({len(arm.seeds)}) to count" for arm in compared.arms if arm not in arms]
    left = list(arms)
    for sieve in (_fast, _accurate, _calm, _cheap):
        left, told = sieve(left, arms)
        said += told
        if not left:
            disagree = "no recommendation: reward and accuracy on select disagree, so look at what the reward pays for"
            return Recommendation(None, f"{disagree} ({'; '.join(said)})")
    if len(left) > 1:
        said.append(f"{_listed([arm.label for arm in left])} rise alike within the interval")
    elif not said:
        said.append(f"{left[0].label} rises fastest")
    chosen = min(left, key=lambda arm: _preference(compared.factor, arm.value, in_force))
    kept = ", the value in force" if len(left) > 1 and not compared.factor.smaller_is_cheaper and chosen.value == in_force else ""
    return Recommendation(chosen.label, f"{'; '.join(said)}: take {chosen.label}{kept}")


def _not_yet(compared: Comparison, arms: Sequence[Measured]) -> str | None:
    """Why there is too little to go by."""
    if len(arms) < 2:
        counts = ", ".join(f"{arm.label} has {len(arm.seeds)}" for arm in compared.arms)
        return f"no recommendation yet: it takes {FEWEST_SEEDS} seeds in two arms or more to tell an arm from its luck ({counts})"
    if compared.num_steps < FEWEST_STEPS:
        return f"no recommendation yet: the runs have {compared.num_steps} steps in common, a rise takes {FEWEST_STEPS} to be seen"
    return None


def _no_rise(arms: Sequence[Measured]) -> str | None:
    """That not even the fastest arm rises for certain."""
    fastest = _fastest(arms)
    rise = t_interval(fastest.slopes, len(arms))
    if rise.low > 0:
        return None
    found = f"fastest is {fastest.label}, {signed(rise.estimate)} [{signed(rise.low)}, {signed(rise.high)}] a step"
    remedy = "train for more steps, or see with `grpo explore` whether there is something to learn"
    return f"no recommendation: in no arm does the reward rise beyond its interval ({found}); {remedy}"


def _fastest(arms: Sequence[Measured]) -> Measured:
    return max(arms, key=lambda arm: _mean(arm.slopes))


def _fast(left: list[Measured], arms: Sequence[Measured]) -> tuple[list[Measured], list[str]]:
    """Without those that rise more slowly than the fastest."""
    fastest = _fastest(arms)
    slower = [arm for arm in left if _exceeds(arm.slopes, fastest.slopes, len(arms) - 1)]
    told = [f"{arm.label} rises more slowly than {fastest.label} ({_against(arm.slopes, fastest.slopes, sign='+')} a step)" for arm in slower]
    return [arm for arm in left if arm not in slower], told


def _accurate(left: list[Measured], arms: Sequence[Measured]) -> tuple[list[Measured], list[str]]:
    """Without those that end less accurate than the most accurate of all arms; nothing is left out where some arm was not evaluated."""
    if not all(arm.final for arm in arms):
        return left, []
    ends = {arm.label: shares(arm.final) for arm in arms}
    best = max(arms, key=lambda arm: _mean(ends[arm.label]))
    worse = [arm for arm in left if _exceeds(ends[arm.label], ends[best.label], len(arms) - 1, margin=ALIKE_ACCURACY)]
    told = [f"{arm.label} ends less accurate on select than {best.label} ({_against(ends[arm.label], ends[best.label])})" for arm in worse]
    return [arm for arm in left if arm not in worse], told


def _calm(left: list[Measured], arms: Sequence[Measured]) -> tuple[list[Measured], list[str]]:
    """Without those that jitter more than the calmest of what is left, by what the draw of prompts does not explain."""
    calmest = min(left, key=lambda arm: _mean(arm.unrest))
    jittery = [arm for arm in left if _exceeds(calmest.unrest, arm.unrest, len(arms) - 1, margin=ALIKE * _mean([jitter**2 for jitter in arm.jitters]))]
    told = [f"{arm.label} jitters more than {calmest.label} ({_unrest(arm):.3g} against {_unrest(calmest):.3g} beyond the draw)" for arm in jittery]
    return [arm for arm in left if arm not in jittery], told


def _unrest(arm: Measured) -> float:
    """The unexplained jitter of an arm as a standard deviation."""
    return math.sqrt(max(0.0, _mean(arm.unrest)))


def _cheap(left: list[Measured], arms: Sequence[Measured]) -> tuple[list[Measured], list[str]]:
    """Without those that cost more tokens than the cheapest of what is left."""
    costs = {arm.label: _mean(arm.tokens) for arm in left}
    cheapest = min(left, key=lambda arm: costs[arm.label])
    dear = [arm for arm in left if costs[arm.label] > (1 + ALIKE) * costs[cheapest.label]]
    told = [f"{arm.label} rises like {cheapest.label} for {costs[arm.label] / costs[cheapest.label]:.2g} times the tokens" for arm in dear]
    return [arm for arm in left if arm not in dear], told


def _exceeds(smaller: Sequence[float], larger: Sequence[float], comparisons: int, *, margin: float | None = None) -> bool:
    """Whether the second mean is larger: Welch's interval leaves 0 out, and the difference is above `margin` (else `ALIKE` of the larger one)."""
    difference = welch(smaller, larger, max(1, comparisons))
    least = ALIKE * abs(_mean(larger)) if margin is None else margin
    return difference.low > 0 and difference.estimate > least


def _preference(factor: Factor, value: Any, in_force: Any) -> tuple[float, tuple[bool, float, str]]:
    """Smallest first: how far a value is from what is liked best."""
    numbers = all(isinstance(one, int | float) for one in (value, in_force))
    if factor.smaller_is_cheaper or in_force is None:
        return 0.0, order(value)
    return abs(value - in_force) if numbers else float(value != in_force), order(value)


def _against(one: Sequence[float], other: Sequence[float], sign: str = "") -> str:
    return " against ".join(f"{_mean(values):{sign}.3g}" for values in (one, other))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def signed(value: float) -> str:
    """A rise as people read it."""
    return f"{value:+.2g}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
