"""The rules: each looks at the metrics so far and says in one sentence what is wrong now, or nothing.

Thresholds are the `health` section's. A rule is a pure function of what metrics.jsonl holds, so a run that was resumed, or is looked
at again later, gets the same verdict.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from grpo_core.config import HealthConfig
from grpo_core.health.history import History, mean, median


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What rules must know of a run beside its metrics."""

    full_marks: float
    """The most that a completion can earn."""
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
BEYOND_ACCURACY = 0.01
"""Share of the rewards' variance in groups that right answers do not explain, from which length may be what is paid."""
HOPELESS = 0.2
"""Share of groups alike and short of full marks, up to which groups that are alike are solved ones."""
SHARPENED = 3.0
"""Entropy that falls by this factor within `patience` steps was sharpened by the sampler, not learned away."""
COLLAPSED = 0.2
"""Entropy below this share of what it began with."""
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
    if jump <= MISALIGNED_KL or jump <= MISALIGNED_TIMES * moved:
        return None
    message = f"KL to the reference went from {before:.3g} to {kl:.3g} nats a token in one step, in which the policy moved by {moved:.2g}"
    return Found(message, _evidence(history, "kl/mean", "policy_kl"))


def early_explosion(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    said = []
    limits = (
        ("kl/mean", settings.max_kl, 1, "KL to the reference is {:.3g} nats a token (health.max_kl {:g})"),
        ("policy_kl", settings.max_policy_kl, settings.patience, "one batch moves the policy by {:.3g} nats a token (health.max_policy_kl {:g})"),
        ("grad_norm", settings.max_grad_norm, settings.patience, "the gradient norm is {:.3g} before clipping (health.max_grad_norm {:g})"),
    )
    for name, most, steps, sentence in limits:
        if history.held(steps, name, above=most):
            said.append(sentence.format(history.now(name), most))
    if not said:
        return None
    shown = ("kl/mean", "policy_kl", "grad_norm", "ratio/max", "effective_sample_fraction", "advantage/max", "reward/mean")
    return Found("; ".join(said), _evidence(history, *shown))


def dead_rewards(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    spread, best = history.last("reward/std", settings.patience), history.last("reward/max", settings.patience)
    if len(spread) < settings.patience or len(best) < settings.patience or max(spread) > 0 or _is_solved(best[-1], facts):
        return None
    message = f"every completion of the last {settings.patience} steps earned the same as the others of its step ({best[-1]:.4g} now)"
    return Found(message, _evidence(history, "reward/mean", "reward/std", "zero_variance_fraction"))


def weak_signal(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    alike, steps = history.now("zero_variance_fraction"), settings.patience
    dead = history.held(steps, "zero_variance_fraction", above=settings.max_alike_fraction)
    if alike is None or not dead or not history.held(steps, "hopeless_group_fraction", above=HOPELESS):
        return None
    message = f"in {alike:.0%} of the groups all rewards are alike, and not as they are solved (health.max_alike_fraction {settings.max_alike_fraction:g})"
    return Found(message, _evidence(history, "zero_variance_fraction", "hopeless_group_fraction", "solved_group_fraction", "reward/mean", "entropy"))


def sparse_rewards(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    shares, spread = history.last("reward/lowest_fraction", settings.patience + 1), history.last("reward/std", settings.patience + 1)
    # A solved batch with one slip has few at its lowest; one that is all alike has no lowest.
    if len(shares) <= settings.patience or min(shares) < settings.sparse_fraction or max(spread, default=0.0) == 0:
        return None
    if _is_solved(history.now("reward/mean") or 0.0, facts):
        return None
    message = f"{shares[-1]:.0%} of the completions earn the lowest reward of their batch (health.sparse_fraction {settings.sparse_fraction:g})"
    return Found(message, _evidence(history, "reward/lowest_fraction", "reward/mean", "zero_variance_fraction"))


def repeated_prompts(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    share = history.now("repeated_prompt_fraction")
    if share is None or share <= settings.max_repeated_prompts:
        return None
    message = f"{share:.0%} of the batch's prompts stand in it already (health.max_repeated_prompts {settings.max_repeated_prompts:g})"
    return Found(message, _evidence(history, "repeated_prompt_fraction"))


def low_diversity(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    """Alike from the first step on, or all at once: the sampler's doing."""
    if _is_alike(history, settings) and (len(history.steps) <= settings.patience + 1 or _was_sharpened(history, settings)):
        return Found(_alike(history, settings), _evidence(history, "distinct_fraction", "entropy", "zero_variance_fraction"))
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
    return Found(message, _evidence(history, "distinct_fraction", "entropy", "hopeless_group_fraction"))


def truncation(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    if not history.held(settings.patience, "truncated_fraction", above=settings.max_truncated_fraction):
        return None
    share = history.now("truncated_fraction")
    message = f"{share:.0%} of the completions are cut at rollout.max_new_tokens (health.max_truncated_fraction {settings.max_truncated_fraction:g})"
    return Found(message, _evidence(history, "truncated_fraction", "length/mean", "reward/mean"))


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
    said = _fell_from_its_best(history, settings, facts) or _repeats_itself(history, settings)
    if said is None:
        return None
    early, late = _halves(history, "kl/mean", settings)
    rising = early is not None and late is not None and late > 1.1 * early
    cause = "KL still rises: beta is too small or fell too fast" if rising else "KL is flat: the reward is being fooled, or its data has changed"
    evidence = _evidence(history, "reward/mean", "kl/mean", "beta", "repetition")
    return Found(f"{said}; {cause}", evidence, history.step - settings.window)


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


def _is_solved(reward: float, facts: Facts) -> bool:
    return reward >= SETTLED * facts.full_marks


def _full(history: History, facts: Facts) -> float:
    """The most that what `_gain_of` names can be."""
    return 1.0 if _gain_of(history) == "train_accuracy" else facts.full_marks


def _gain_of(history: History) -> str:
    """What a completion is to be good at: right answers where they are known, else the reward."""
    return "train_accuracy" if history.now("train_accuracy") is not None else "reward/mean"


def _halves(history: History, name: str, settings: HealthConfig) -> tuple[float | None, float | None]:
    """Mean of a metric over the older and the newer half of the window; None while it is not full."""
    half = settings.window // 2
    if len(history.steps) < settings.window:
        return None, None
    late, early = history.last(name, half), history.last(name, half, ending=settings.window - half)
    return (mean(early), mean(late)) if early and late else (None, None)


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
    return Found(message, _evidence(history, "length_paid", "reward/beyond_accuracy", "length/mean", "train_accuracy"))


def _reward_without_accuracy(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    """The reward rises and right answers become fewer: in training where they are counted, else on `select`."""
    early, late = _halves(history, "reward/mean", settings)
    if early is None or late is None or late - early <= 0.02 * facts.full_marks:
        return None
    before, after = _halves(history, "train_accuracy", settings)
    name = "accuracy in training"
    if before is None or after is None:
        selected = [value for _, value in history.series("eval/select_accuracy")]
        if len(selected) < 2:
            return None
        before, after, name = max(selected[:-1]), selected[-1], "accuracy on select"
    if before - after <= settings.accuracy_drop:
        return None
    fell = f"{name} fell from {before:.3f} to {after:.3f} (health.accuracy_drop {settings.accuracy_drop:g})"
    evidence = _evidence(history, "reward/mean", "train_accuracy", "eval/select_accuracy", "length/mean", "repetition")
    return Found(f"the reward rose from {early:.3f} to {late:.3f} and {fell}", evidence, history.step - settings.window)


def _fell_from_its_best(history: History, settings: HealthConfig, facts: Facts) -> str | None:
    means = history.window_means("reward/mean", settings.window)
    if not means or max(means) - means[-1] <= settings.reward_drop * facts.full_marks:
        return None
    fell = f"the mean reward of {settings.window} steps fell from {max(means):.3f} to {means[-1]:.3f}"
    return f"{fell} (health.reward_drop {settings.reward_drop:g} of full marks)"


def _repeats_itself(history: History, settings: HealthConfig) -> str | None:
    first = [value for _, value in history.series("repetition")][: settings.window]
    now = history.last("repetition", settings.window // 2)
    if not first or not now or mean(now) - mean(first) <= settings.max_repetition:
        return None
    grew = f"{mean(now):.0%} of their n-grams, {mean(first):.0%} in the beginning (health.max_repetition {settings.max_repetition:g})"
    return f"completions repeat themselves: {grew}"


def _own_seconds(timings: Mapping[str, float]) -> float:
    return timings["seconds"] - timings.get("seconds/score", 0.0) - timings.get("seconds/evaluate", 0.0)
