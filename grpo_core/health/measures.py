"""What rules look at in the log of metrics: states, trends, and what of a difference is chance."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grpo_core.config import HealthConfig
from grpo_core.health.history import History, mean, median

SETTLED = 0.98
"""A policy this near to full marks is solved: a state, not an alarm."""
SHARPENED = 3.0
"""Entropy that falls by this factor within `patience` steps was sharpened by the sampler, not learned away."""
BEYOND_ACCURACY = 0.01
"""Share of the rewards' variance in groups that right answers do not explain, from which length may be what is paid."""
STANDARD_ERRORS = 5.0
"""How many standard errors a mean of rewards must have fallen by: the best of many windows is lucky."""
LITTLE = 0.02
"""Share of its range by which a mean must change to be called another."""
MEDIAN_DIFFERENCE = 0.9539
"""Median of how far two draws of the normal distribution differ, in its standard deviations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What rules must know of a run beside its metrics."""

    full_marks: float
    """The most that a completion can earn."""
    reward_range: float
    """From the least to the most that it can earn."""
    batch_size: int
    """Completions a step."""
    dtype: str
    """Precision of the forward pass."""


@dataclass(frozen=True, slots=True)
class Found:
    """A condition that holds now."""

    message: str
    evidence: dict[str, float] = field(default_factory=dict)
    """The metrics that say so."""
    since: int | None = None
    """The last step that was still well, where trouble began long before it could be told."""


def numbers_now(history: History, *names: str) -> dict[str, float]:
    return {name: value for name in names if (value := history.now(name)) is not None}


def before_batch(history: History, steps: int) -> int:
    """The last step whose weights were well, where the batches of so many `steps` show trouble: a step's batch is drawn with the weights before it."""
    return history.step - steps - 1


def is_solved(history: History, reward: float, facts: Facts) -> bool:
    """Right answers where they are counted, as full marks can be out of reach; or full marks (what earns more shows that the range is another)."""
    return (history.now("train_accuracy") or 0.0) >= SETTLED or facts.full_marks - (
        1 - SETTLED
    ) * facts.reward_range <= reward <= facts.full_marks + 1e-6 * facts.reward_range


def full_range(history: History, facts: Facts) -> float:
    """The range of what `gain_of` names."""
    return 1.0 if gain_of(history) == "train_accuracy" else facts.reward_range


def gain_of(history: History) -> str:
    """What a completion is to be good at: right answers where they are known, else the reward."""
    return "train_accuracy" if history.now("train_accuracy") is not None else "reward/mean"


def halves(history: History, name: str, settings: HealthConfig) -> tuple[float | None, float | None]:
    """Mean of a metric over the older and the newer half of the window; None while it is not full."""
    half = settings.window // 2
    late, early = history.last(name, half), history.last(name, half, ending=settings.window - half)
    return (mean(early), mean(late)) if len(early) == len(late) == half else (None, None)


def is_alike(history: History, settings: HealthConfig) -> bool:
    """Completions of unsolved groups have been alike for as long as patience asks."""
    values = history.last("distinct_fraction", settings.patience)
    return len(values) == settings.patience and max(values) < settings.min_distinct_fraction


def how_alike(history: History, settings: HealthConfig) -> str:
    distinct = history.now("distinct_fraction") or 0.0
    return f"the completions of an unsolved group differ by {distinct:.2f} of what they could (health.min_distinct_fraction {settings.min_distinct_fraction:g})"


def was_sharpened(history: History, settings: HealthConfig) -> bool:
    """Entropy fell within the last steps by more than learning does."""
    now, earlier = history.now("entropy"), history.last("entropy", settings.window, ending=settings.patience)
    return now is not None and bool(earlier) and now * SHARPENED < earlier[-1]


def length_is_paid(history: History, settings: HealthConfig) -> Found | None:
    steps = settings.patience + 1
    if not (history.held(steps, "length_paid", above=settings.length_paid) and history.held(steps, "reward/beyond_accuracy", above=BEYOND_ACCURACY)):
        return None
    paid, share = history.now("length_paid"), history.now("reward/beyond_accuracy")
    message = (
        f"among equally correct completions of a prompt reward follows length (correlation {paid:.2f}, health.length_paid {settings.length_paid:g}), "
        f"and {share:.0%} of what rewards tell apart is not correctness"
    )
    return Found(message, numbers_now(history, "length_paid", "reward/beyond_accuracy", "length/mean", "train_accuracy"), history.step - steps)


def reward_without_accuracy(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    """The reward rises and right answers become fewer: in training where they are counted, else on `select`."""
    early, late = halves(history, "reward/mean", settings)
    if early is None or late is None or late - early <= LITTLE * facts.reward_range:
        return None
    before, after = halves(history, "train_accuracy", settings)
    name, least = "accuracy in training", settings.accuracy_drop
    if before is None or after is None:
        ends, graded = ends_on_select(history, settings), history.series("eval/select_graded")
        if ends is None or not graded:
            return None
        (before, after), name = ends, "accuracy on select"
        least += 2 * ((before * (1 - before) + after * (1 - after)) / graded[-1][1]) ** 0.5
    if before - after <= least:
        return None
    fell = f"{name} fell from {before:.3f} to {after:.3f} (health.accuracy_drop {settings.accuracy_drop:g})"
    evidence = numbers_now(history, "reward/mean", "train_accuracy", "eval/select_accuracy", "length/mean", "repetition")
    return Found(f"the reward rose from {early:.3f} to {late:.3f} and {fell}", evidence, history.step - settings.window)


def ends_on_select(history: History, settings: HealthConfig) -> tuple[float, float] | None:
    """Accuracy of the evaluations before and at the end of the window in which the reward rose; None where they do not enclose it."""
    evaluated = history.series("eval/select_accuracy")
    before = [value for step, value in evaluated if step <= history.step - settings.window]
    if not before or evaluated[-1][0] <= history.step - settings.window:
        return None
    return before[-1], evaluated[-1][1]


def fell_from_its_best(history: History, settings: HealthConfig, facts: Facts) -> tuple[str, int] | None:
    """What fell, and the last step before; None where nothing has."""
    window, means, rewards = settings.window, history.window_means("reward/mean", settings.window), history.series("reward/mean")
    if len(means) < 2:
        return None
    error = standard_error(history, settings, window)
    if max(means) - means[-1] <= max(settings.reward_drop * facts.reward_range, STANDARD_ERRORS * error):
        return None
    fell = f"the mean reward of {window} steps fell from {max(means):.3f} to {means[-1]:.3f} (health.reward_drop {settings.reward_drop:g} of the range)"
    return fell, rewards[last_of_the_best(means, error) + window - 1][0] - 1


def well_before_fall(history: History, settings: HealthConfig, facts: Facts, *, since: int) -> int:
    """`since`, or, where the reward has fallen by more than chance, the last step whose weights still earned its best: what explodes may fall long before.

    That is a mean over `patience` steps within a standard error of the best one; the weights that drew them are those of the step before.
    """
    steps, means, rewards = settings.patience, history.window_means("reward/mean", settings.patience), history.series("reward/mean")
    if len(means) < 2:
        return since
    error = standard_error(history, settings, steps)
    if max(means) - means[-1] <= max(STANDARD_ERRORS * error, LITTLE * facts.reward_range):
        return since
    return min(since, rewards[last_of_the_best(means, error) + steps - 1][0] - 1)


def last_of_the_best(means: Sequence[float], error: float) -> int:
    """Where the last mean stands that is within a standard error of the best."""
    return max(place for place, reward in enumerate(means) if reward >= max(means) - error)


def standard_error(history: History, settings: HealthConfig, steps: int) -> float:
    """Of the difference of two mean rewards of so many steps each: neighbouring steps differ by the luck of the draw, whatever the trend."""
    recent = [reward for _, reward in history.series("reward/mean")[-10 * settings.window :]]
    luck = median([abs(after - before) for before, after in itertools.pairwise(recent)]) / MEDIAN_DIFFERENCE
    return float(luck * (2 / steps) ** 0.5)


def repeats_itself(history: History, settings: HealthConfig) -> tuple[str, int] | None:
    """How much more completions repeat themselves, and the last step before; None where they do not."""
    first = [value for _, value in history.series("repetition")[: settings.window]]
    now = history.last("repetition", settings.window // 2)
    if not first or not now or mean(now) - mean(first) <= settings.max_repetition:
        return None
    grew = f"{mean(now):.0%} of their n-grams, {mean(first):.0%} in the beginning (health.max_repetition {settings.max_repetition:g})"
    return f"completions repeat themselves: {grew}", history.step - settings.window


def cause_of_fall(history: History, settings: HealthConfig) -> str:
    """What KL says of why a policy gets worse."""
    early, late = halves(history, "kl/mean", settings)
    if early is None or late is None:
        return "KL is not measured (grpo.beta is 0), so nothing held it to the reference"
    if late - early > 0.1 * abs(early):
        return "KL still rises: beta is too small or fell too fast"
    return "KL is flat: the reward is being fooled, or its data has changed"


def own_seconds(timings: Mapping[str, float]) -> float:
    return timings["seconds"] - timings.get("seconds/score", 0.0) - timings.get("seconds/evaluate", 0.0)
