"""The rules: each looks at the metrics so far and says in one sentence what is wrong now, or nothing.

Thresholds are the `health` section's. A rule is a pure function of what metrics.jsonl holds, so a run that was resumed, or is looked
at again later, gets the same verdict.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from grpo_core.config import HealthConfig
from grpo_core.health.history import History, mean, median


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


Rule = Callable[[History, HealthConfig, Facts], Found | None]

SETTLED = 0.98
"""A policy this near to full marks is solved: a state, not an alarm."""
MISALIGNED_KL = 0.3
"""Nats a token by which KL jumps in one step when the reference reads other tokens."""
MISALIGNED_TIMES = 10.0
"""How much further that is than the policy itself moved."""
MISALIGNED_SHARE = 0.5
"""How much of the KL, before or after, the jump must be: a large KL differs from batch to batch."""
BEYOND_ACCURACY = 0.01
"""Share of the rewards' variance in groups that right answers do not explain, from which length may be what is paid."""
HOPELESS = 0.2
"""Share of groups alike and short of full marks, up to which groups that are alike are solved ones."""
SHARPENED = 3.0
"""Entropy that falls by this factor within `patience` steps was sharpened by the sampler, not learned away."""
COLLAPSED = 0.2
"""Entropy below this share of what it began with."""
CHANCE = 1e-3
"""What is likelier than this is no sign of anything."""
FEWEST_ALIKE = 32
"""Completions that must have earned the same from the first step on."""
STANDARD_ERRORS = 5.0
"""How many standard errors a mean of rewards must have fallen by: the best of many windows is lucky."""
MEDIAN_DIFFERENCE = 0.9539
"""Median of how far two draws of the normal distribution differ, in its standard deviations."""
MIN_SLOW_SECONDS = 0.5
"""Scoring that is faster than this is never slow."""


def reward_outlier(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    outlier = history.now("reward/outlier")
    if outlier is None or outlier <= settings.outlier_factor:
        return None
    low, high = history.now("reward/min"), history.now("reward/max")
    message = f"raw rewards go from {low:.4g} to {high:.4g}, {outlier:.3g} spreads beyond the middle 90 % (health.outlier_factor {settings.outlier_factor:g})"
    return Found(message, _evidence(history, "reward/min", "reward/max", "reward/outlier", "advantage/max"))


def sampler_mismatch(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    gap, most = history.now("sampler_gap"), settings.max_sampler_gap * (1 if facts.dtype == "float32" else 100)
    if gap is None or gap <= most:
        return None
    rounding = f"at most {most:g} is rounding in {facts.dtype}, health.max_sampler_gap {settings.max_sampler_gap:g}"
    message = f"sampler and trainer differ by {gap:.3g} nats a token before any weight moved ({rounding})"
    return Found(message, _evidence(history, "sampler_gap", "logprob_gap"))


def reference_misaligned(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    kl, before, moved = history.now("kl/mean"), history.before("kl/mean"), history.before("policy_kl")
    if kl is None or before is None or moved is None:
        return None
    jump = abs(kl - before)
    if jump <= max(MISALIGNED_KL, MISALIGNED_TIMES * moved, MISALIGNED_SHARE * max(abs(kl), abs(before))):
        return None
    message = f"KL to the reference went from {before:.3g} to {kl:.3g} nats a token in one step, in which the policy moved by {moved:.2g}"
    return Found(message, _evidence(history, "kl/mean", "policy_kl"))


def early_explosion(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    said, since = [], []
    limits = (
        ("kl/mean", settings.max_kl, 1, "KL to the reference is {:.3g} nats a token (health.max_kl {:g})"),
        ("policy_kl", settings.max_policy_kl, settings.patience, "one batch moves the policy by {:.3g} nats a token (health.max_policy_kl {:g})"),
        ("grad_norm", settings.max_grad_norm, settings.patience, "the gradient norm is {:.3g} before clipping (health.max_grad_norm {:g})"),
    )
    for name, most, steps, sentence in limits:
        if history.held(steps, name, above=most):
            said.append(sentence.format(history.now(name), most))
            since.append(_before_batch(history, steps) if name == "kl/mean" else history.step - steps)
    if not said:
        return None
    shown = ("kl/mean", "policy_kl", "grad_norm", "ratio/max", "effective_sample_fraction", "advantage/max", "reward/mean")
    return Found("; ".join(said), _evidence(history, *shown), min(since))


def dead_rewards(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    """Nothing is told apart any more, and by what was told apart before that is no chance."""
    spread, best = history.last("reward/std", settings.patience), history.last("reward/max", settings.patience)
    if min(len(spread), len(best)) < settings.patience or max(spread) > 0 or _is_solved(best[-1], facts):
        return None
    earlier = history.metrics[max(0, len(history.metrics) - settings.patience - settings.window) : -settings.patience]
    apart = [metrics["reward/lowest_fraction"] for metrics in earlier if metrics.get("reward/std", 0.0) > 0 and "reward/lowest_fraction" in metrics]
    drawn = settings.patience * facts.batch_size
    share = mean(apart) if apart else None
    if drawn < FEWEST_ALIKE if share is None else share**drawn + (1 - share) ** drawn > CHANCE:
        return None
    message = f"every completion of the last {settings.patience} steps earned the same as the others of its step ({best[-1]:.4g} now)"
    return Found(message, _evidence(history, "reward/mean", "reward/std", "zero_variance_fraction"), history.step - settings.patience)


def weak_signal(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    alike, steps = history.now("zero_variance_fraction"), settings.patience
    dead = history.held(steps, "zero_variance_fraction", above=settings.max_alike_fraction)
    if alike is None or not dead or not history.held(steps, "hopeless_group_fraction", above=HOPELESS):
        return None
    message = f"in {alike:.0%} of the groups all rewards are alike, and not as they are solved (health.max_alike_fraction {settings.max_alike_fraction:g})"
    return Found(
        message,
        _evidence(history, "zero_variance_fraction", "hopeless_group_fraction", "solved_group_fraction", "reward/mean", "entropy"),
        _before_batch(history, steps),
    )


def sparse_rewards(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    shares, spread = history.last("reward/lowest_fraction", settings.patience + 1), history.last("reward/std", settings.patience + 1)
    # A solved batch with one slip has few at its lowest; one that is all alike has no lowest.
    if len(shares) <= settings.patience or min(shares) < settings.sparse_fraction or max(spread, default=0.0) == 0:
        return None
    if _is_solved(history.now("reward/mean") or 0.0, facts):
        return None
    message = f"{shares[-1]:.0%} of the completions earn the lowest reward of their batch (health.sparse_fraction {settings.sparse_fraction:g})"
    evidence = _evidence(history, "reward/lowest_fraction", "reward/mean", "zero_variance_fraction")
    return Found(message, evidence, _before_batch(history, settings.patience + 1))


def repeated_prompts(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    share = history.now("repeated_prompt_fraction")
    if share is None or share <= settings.max_repeated_prompts:
        return None
    message = f"{share:.0%} of the batch's prompts stand in it already (health.max_repeated_prompts {settings.max_repeated_prompts:g})"
    return Found(message, _evidence(history, "repeated_prompt_fraction"))


def low_diversity(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    """Alike from the first step on, or all at once: the sampler's doing."""
    if _is_alike(history, settings) and (len(history.steps) <= settings.patience + 1 or _was_sharpened(history, settings)):
        evidence = _evidence(history, "distinct_fraction", "entropy", "zero_variance_fraction")
        return Found(_alike(history, settings), evidence, _before_batch(history, settings.patience))
    return None


def entropy_collapse(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    """Alike as the policy has become so."""
    first = history.series("entropy")[:1]
    if not first or not _is_alike(history, settings):
        return None
    share = (history.now("entropy") or 0.0) / max(first[0][1], 1e-12)
    if share >= COLLAPSED:
        return None
    message = f"{_alike(history, settings)}; entropy is {share:.0%} of what it was"
    return Found(message, _evidence(history, "distinct_fraction", "entropy", "hopeless_group_fraction"), _before_batch(history, settings.patience))


def truncation(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    if not history.held(settings.patience, "truncated_fraction", above=settings.max_truncated_fraction):
        return None
    share = history.now("truncated_fraction")
    message = f"{share:.0%} of the completions are cut at rollout.max_new_tokens (health.max_truncated_fraction {settings.max_truncated_fraction:g})"
    return Found(message, _evidence(history, "truncated_fraction", "length/mean", "reward/mean"), _before_batch(history, settings.patience))


def runaway_length(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    early, late = _halves(history, "length/mean", settings)
    if early is None or late is None or late / max(early, 1.0) - 1 <= settings.max_length_growth:
        return None
    before, after = _halves(history, _gain_of(history), settings)
    if before is None or after is None or after - before > 0.02 * _full(history, facts):
        return None
    gain = f"{_gain_of(history)} went from {before:.3f} to {after:.3f}"
    grew = f"completions grew from {early:.1f} to {late:.1f} tokens in {settings.window} steps (health.max_length_growth {settings.max_length_growth:g})"
    message = f"{grew}, and {gain}"
    return Found(message, _evidence(history, "length/mean", "reward/mean", "train_accuracy"), history.step - settings.window)


def reward_hacking(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    return _length_is_paid(history, settings) or _reward_without_accuracy(history, settings, facts)


def late_degeneration(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    if len(history.steps) < 2 * settings.window:
        return None
    found = _fell_from_its_best(history, settings, facts) or _repeats_itself(history, settings)
    if found is None:
        return None
    evidence = _evidence(history, "reward/mean", "kl/mean", "beta", "repetition")
    return Found(f"{found.message}; {_cause(history, settings)}", evidence, found.since)


def reward_failures(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    errors, invalid = history.now("status/error_fraction") or 0.0, history.now("status/invalid_fraction") or 0.0
    said = []
    if errors > settings.max_error_fraction:
        said.append(f"a reward function failed on {errors:.1%} of the completions (health.max_error_fraction {settings.max_error_fraction:g})")
    if history.held(settings.patience, "status/invalid_fraction", above=settings.max_invalid_fraction):
        said.append(f"{invalid:.0%} of the completions are invalid (health.max_invalid_fraction {settings.max_invalid_fraction:g})")
    return Found("; ".join(said), _evidence(history, "status/error_fraction", "status/invalid_fraction")) if said else None


def slow_reward(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    """Read from timings, not from metrics."""
    seconds, usual = history.now("seconds/score"), history.last("seconds/score", settings.window, ending=1)
    if seconds is None or len(usual) < 2 or seconds < MIN_SLOW_SECONDS or seconds <= settings.slow_factor * median(usual):
        return None
    message = f"scoring took {seconds:.2f} s, {median(usual):.2f} s is usual here (health.slow_factor {settings.slow_factor:g})"
    return Found(message, _evidence(history, "seconds/score", "seconds"))


def stall(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    """Read from timings: the step as a whole, without scoring and evaluation."""
    *usual, own = [_own_seconds(timings) for timings in history.metrics[-1 - settings.window :] if "seconds" in timings] or [0.0]
    if len(usual) < 2 or own < MIN_SLOW_SECONDS or own <= settings.slow_factor * median(usual):
        return None
    message = f"a step took {own:.2f} s without scoring, {median(usual):.2f} s is usual here (health.slow_factor {settings.slow_factor:g})"
    return Found(message, _evidence(history, "seconds", "tokens_per_second"))


RULES: dict[str, Rule] = {
    "reward_outlier": reward_outlier,
    "sampler_mismatch": sampler_mismatch,
    "reference_misaligned": reference_misaligned,
    "truncation": truncation,
    "dead_rewards": dead_rewards,
    "early_explosion": early_explosion,
    "repeated_prompts": repeated_prompts,
    "reward_failures": reward_failures,
    "low_diversity": low_diversity,
    "entropy_collapse": entropy_collapse,
    "reward_hacking": reward_hacking,
    "runaway_length": runaway_length,
    "late_degeneration": late_degeneration,
    "sparse_rewards": sparse_rewards,
    "weak_signal": weak_signal,
}
"""Condition → its rule over the metrics, causes before what they explain. `non_finite` has none: such a step ends before it has metrics."""
CLOCK_RULES: dict[str, Rule] = {"slow_reward": slow_reward, "stall": stall}
"""Condition → its rule over the timings."""


# ------------------------------------------------------------------------------------------------------- what rules share


def _evidence(history: History, *names: str) -> dict[str, float]:
    return {name: value for name in names if (value := history.now(name)) is not None}


def _before_batch(history: History, steps: int) -> int:
    """The last step whose weights were well, where the batches of so many `steps` show trouble: a step's batch is drawn with the weights before it."""
    return history.step - steps - 1


def _is_solved(reward: float, facts: Facts) -> bool:
    """At full marks; what earns more than there is shows that the range is another."""
    return facts.full_marks - (1 - SETTLED) * facts.reward_range <= reward <= facts.full_marks + 1e-6 * facts.reward_range


def _full(history: History, facts: Facts) -> float:
    """The range of what `_gain_of` names."""
    return 1.0 if _gain_of(history) == "train_accuracy" else facts.reward_range


def _gain_of(history: History) -> str:
    """What a completion is to be good at: right answers where they are known, else the reward."""
    return "train_accuracy" if history.now("train_accuracy") is not None else "reward/mean"


def _halves(history: History, name: str, settings: HealthConfig) -> tuple[float | None, float | None]:
    """Mean of a metric over the older and the newer half of the window; None while it is not full."""
    half = settings.window // 2
    late, early = history.last(name, half), history.last(name, half, ending=settings.window - half)
    return (mean(early), mean(late)) if len(early) == len(late) == half else (None, None)


def _is_alike(history: History, settings: HealthConfig) -> bool:
    """Completions of unsolved groups have been alike for as long as patience asks."""
    values = history.last("distinct_fraction", settings.patience)
    return len(values) == settings.patience and max(values) < settings.min_distinct_fraction


def _alike(history: History, settings: HealthConfig) -> str:
    distinct = history.now("distinct_fraction") or 0.0
    return f"the completions of an unsolved group differ by {distinct:.2f} of what they could (health.min_distinct_fraction {settings.min_distinct_fraction:g})"


def _was_sharpened(history: History, settings: HealthConfig) -> bool:
    """Entropy fell within the last steps by more than learning does."""
    now, earlier = history.now("entropy"), history.last("entropy", settings.window, ending=settings.patience)
    return now is not None and bool(earlier) and now * SHARPENED < earlier[-1]


def _length_is_paid(history: History, settings: HealthConfig) -> Found | None:
    steps = settings.patience + 1
    if not (history.held(steps, "length_paid", above=settings.length_paid) and history.held(steps, "reward/beyond_accuracy", above=BEYOND_ACCURACY)):
        return None
    paid, share = history.now("length_paid"), history.now("reward/beyond_accuracy")
    message = (
        f"among equally correct completions of a prompt reward follows length (correlation {paid:.2f}, health.length_paid {settings.length_paid:g}), "
        f"and {share:.0%} of what rewards tell apart is not correctness"
    )
    return Found(message, _evidence(history, "length_paid", "reward/beyond_accuracy", "length/mean", "train_accuracy"), history.step - steps)


def _reward_without_accuracy(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    """The reward rises and right answers become fewer: in training where they are counted, else on `select`."""
    early, late = _halves(history, "reward/mean", settings)
    if early is None or late is None or late - early <= 0.02 * facts.reward_range:
        return None
    before, after = _halves(history, "train_accuracy", settings)
    name, least = "accuracy in training", settings.accuracy_drop
    if before is None or after is None:
        ends, graded = _ends_on_select(history, settings), history.series("eval/select_graded")
        if ends is None or not graded:
            return None
        (before, after), name = ends, "accuracy on select"
        least += 2 * ((before * (1 - before) + after * (1 - after)) / graded[-1][1]) ** 0.5
    if before - after <= least:
        return None
    fell = f"{name} fell from {before:.3f} to {after:.3f} (health.accuracy_drop {settings.accuracy_drop:g})"
    evidence = _evidence(history, "reward/mean", "train_accuracy", "eval/select_accuracy", "length/mean", "repetition")
    return Found(f"the reward rose from {early:.3f} to {late:.3f} and {fell}", evidence, history.step - settings.window)


def _ends_on_select(history: History, settings: HealthConfig) -> tuple[float, float] | None:
    """Accuracy of the evaluations before and at the end of the window in which the reward rose; None where they do not enclose it."""
    evaluated = history.series("eval/select_accuracy")
    before = [value for step, value in evaluated if step <= history.step - settings.window]
    if not before or evaluated[-1][0] <= history.step - settings.window:
        return None
    return before[-1], evaluated[-1][1]


def _fell_from_its_best(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    window, means, rewards = settings.window, history.window_means("reward/mean", settings.window), history.series("reward/mean")
    if len(means) < 2:
        return None
    best = max(range(len(means)), key=lambda place: means[place])
    # Neighbouring steps differ by the luck of the draw, whatever the trend.
    luck = median([abs(after - before) for (_, before), (_, after) in itertools.pairwise(rewards[-10 * window :])]) / MEDIAN_DIFFERENCE
    least = max(settings.reward_drop * facts.reward_range, STANDARD_ERRORS * luck * (2 / window) ** 0.5)
    if means[best] - means[-1] <= least:
        return None
    fell = f"the mean reward of {window} steps fell from {means[best]:.3f} to {means[-1]:.3f} (health.reward_drop {settings.reward_drop:g} of the range)"
    return Found(fell, since=rewards[best + window - 1][0])


def _repeats_itself(history: History, settings: HealthConfig) -> Found | None:
    first = [value for _, value in history.series("repetition")[: settings.window]]
    now = history.last("repetition", settings.window // 2)
    if not first or not now or mean(now) - mean(first) <= settings.max_repetition:
        return None
    grew = f"{mean(now):.0%} of their n-grams, {mean(first):.0%} in the beginning (health.max_repetition {settings.max_repetition:g})"
    return Found(f"completions repeat themselves: {grew}", since=history.step - settings.window)


def _cause(history: History, settings: HealthConfig) -> str:
    """What KL says of why a policy gets worse."""
    early, late = _halves(history, "kl/mean", settings)
    if early is None or late is None:
        return "KL is not measured (grpo.beta is 0), so nothing held it to the reference"
    if late - early > 0.1 * abs(early):
        return "KL still rises: beta is too small or fell too fast"
    return "KL is flat: the reward is being fooled, or its data has changed"


def _own_seconds(timings: Mapping[str, float]) -> float:
    return timings["seconds"] - timings.get("seconds/score", 0.0) - timings.get("seconds/evaluate", 0.0)
