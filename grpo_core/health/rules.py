"""The rules: each looks at the metrics so far and says in one sentence what is wrong now, or nothing.

Thresholds are the `health` section's. A rule is a pure function of what metrics.jsonl holds, so a run that was resumed, or is looked
at again later, gets the same verdict.
"""

from collections.abc import Callable

from grpo_core.config import HealthConfig
from grpo_core.health.history import History, mean, median
from grpo_core.health.measures import (
    LITTLE,
    Facts,
    Found,
    before_batch,
    cause_of_fall,
    fell_from_its_best,
    full_range,
    gain_of,
    halves,
    how_alike,
    is_alike,
    is_solved,
    length_is_paid,
    numbers_now,
    own_seconds,
    repeats_itself,
    reward_without_accuracy,
    was_sharpened,
    well_before_fall,
)

Rule = Callable[[History, HealthConfig, Facts], Found | None]

MISALIGNED_KL = 0.3
"""Nats a token by which KL jumps in one step when the reference reads other tokens."""
MISALIGNED_TIMES = 10.0
"""How much further that is than the policy itself moved."""
MISALIGNED_SHARE = 0.5
"""How much of the KL, before or after, the jump must be: a large KL differs from batch to batch."""
HOPELESS = 0.2
"""Share of groups alike and short of full marks, up to which groups that are alike are solved ones."""
COLLAPSED = 0.2
"""Entropy below this share of what it began with."""
CHANCE = 1e-3
"""What is likelier than this is no sign of anything."""
FEWEST_ALIKE = 32
"""Completions that must have earned the same from the first step on."""
MIN_SLOW_SECONDS = 0.5
"""Scoring that is faster than this is never slow."""


def reward_outlier(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    outlier = history.now("reward/outlier")
    if outlier is None or outlier <= settings.outlier_factor:
        return None
    low, high = history.now("reward/min"), history.now("reward/max")
    message = f"raw rewards go from {low:.4g} to {high:.4g}, {outlier:.3g} spreads beyond the middle 90 % (health.outlier_factor {settings.outlier_factor:g})"
    return Found(message, numbers_now(history, "reward/min", "reward/max", "reward/outlier", "advantage/max"))


def sampler_mismatch(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    gap, most = history.now("sampler_gap"), settings.max_sampler_gap * (1 if facts.dtype == "float32" else 100)
    if gap is None or gap <= most:
        return None
    rounding = f"at most {most:g} is rounding in {facts.dtype}, health.max_sampler_gap {settings.max_sampler_gap:g}"
    message = f"sampler and trainer differ by {gap:.3g} nats a token before any weight moved ({rounding})"
    return Found(message, numbers_now(history, "sampler_gap", "logprob_gap"))


def reference_misaligned(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    kl, before, moved = history.now("kl/mean"), history.before("kl/mean"), history.before("policy_kl")
    if kl is None or before is None or moved is None:
        return None
    jump = abs(kl - before)
    if jump <= max(MISALIGNED_KL, MISALIGNED_TIMES * moved, MISALIGNED_SHARE * max(abs(kl), abs(before))):
        return None
    message = f"KL to the reference went from {before:.3g} to {kl:.3g} nats a token in one step, in which the policy moved by {moved:.2g}"
    return Found(message, numbers_now(history, "kl/mean", "policy_kl"))


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
            since.append(before_batch(history, steps) if name == "kl/mean" else history.step - steps)
    if not said:
        return None
    shown = ("kl/mean", "policy_kl", "grad_norm", "ratio/max", "effective_sample_fraction", "advantage/max", "reward/mean")
    return Found("; ".join(said), numbers_now(history, *shown), well_before_fall(history, settings, facts, since=min(since)))


def dead_rewards(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    """Nothing is told apart any more, and by what was told apart before that is no chance."""
    spread, best = history.last("reward/std", settings.patience), history.last("reward/max", settings.patience)
    if min(len(spread), len(best)) < settings.patience or max(spread) > 0 or is_solved(history, best[-1], facts):
        return None
    earlier = history.metrics[max(0, len(history.metrics) - settings.patience - settings.window) : -settings.patience]
    apart = [metrics["reward/lowest_fraction"] for metrics in earlier if metrics.get("reward/std", 0.0) > 0 and "reward/lowest_fraction" in metrics]
    drawn = settings.patience * facts.batch_size
    share = mean(apart) if apart else None
    if drawn < FEWEST_ALIKE if share is None else share**drawn + (1 - share) ** drawn > CHANCE:
        return None
    message = f"every completion of the last {settings.patience} steps earned the same as the others of its step ({best[-1]:.4g} now)"
    return Found(message, numbers_now(history, "reward/mean", "reward/std", "zero_variance_fraction"), history.step - settings.patience)


def weak_signal(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    alike, steps = history.now("zero_variance_fraction"), settings.patience
    dead = history.held(steps, "zero_variance_fraction", above=settings.max_alike_fraction)
    if alike is None or not dead or not history.held(steps, "hopeless_group_fraction", above=HOPELESS):
        return None
    message = f"in {alike:.0%} of the groups all rewards are alike, and not as they are solved (health.max_alike_fraction {settings.max_alike_fraction:g})"
    return Found(
        message,
        numbers_now(history, "zero_variance_fraction", "hopeless_group_fraction", "solved_group_fraction", "reward/mean", "entropy"),
        before_batch(history, steps),
    )


def sparse_rewards(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    shares, spread = history.last("reward/lowest_fraction", settings.patience + 1), history.last("reward/std", settings.patience + 1)
    # A solved batch with one slip has few at its lowest; one that is all alike has no lowest.
    if len(shares) <= settings.patience or min(shares) < settings.sparse_fraction or max(spread, default=0.0) == 0:
        return None
    if is_solved(history, history.now("reward/mean") or 0.0, facts):
        return None
    message = f"{shares[-1]:.0%} of the completions earn the lowest reward of their batch (health.sparse_fraction {settings.sparse_fraction:g})"
    evidence = numbers_now(history, "reward/lowest_fraction", "reward/mean", "zero_variance_fraction")
    return Found(message, evidence, before_batch(history, settings.patience + 1))


def repeated_prompts(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    share = history.now("repeated_prompt_fraction")
    if share is None or share <= settings.max_repeated_prompts:
        return None
    message = f"{share:.0%} of the batch's prompts stand in it already (health.max_repeated_prompts {settings.max_repeated_prompts:g})"
    return Found(message, numbers_now(history, "repeated_prompt_fraction"))


def low_diversity(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    """Alike from the first step on, or all at once: the sampler's doing."""
    if is_alike(history, settings) and (len(history.steps) <= settings.patience + 1 or was_sharpened(history, settings)):
        evidence = numbers_now(history, "distinct_fraction", "entropy", "zero_variance_fraction")
        return Found(how_alike(history, settings), evidence, before_batch(history, settings.patience))
    return None


def entropy_collapse(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    """Alike as the policy has become so."""
    first = history.series("entropy")[:1]
    if not first or not is_alike(history, settings):
        return None
    share = (history.now("entropy") or 0.0) / max(first[0][1], 1e-12)
    if share >= COLLAPSED:
        return None
    message = f"{how_alike(history, settings)}; entropy is {share:.0%} of what it was"
    since = well_before_fall(history, settings, facts, since=before_batch(history, settings.patience))
    return Found(message, numbers_now(history, "distinct_fraction", "entropy", "hopeless_group_fraction"), since)


def truncation(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    if not history.held(settings.patience, "truncated_fraction", above=settings.max_truncated_fraction):
        return None
    share = history.now("truncated_fraction")
    message = f"{share:.0%} of the completions are cut at rollout.max_new_tokens (health.max_truncated_fraction {settings.max_truncated_fraction:g})"
    return Found(message, numbers_now(history, "truncated_fraction", "length/mean", "reward/mean"), before_batch(history, settings.patience))


def runaway_length(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    early, late = halves(history, "length/mean", settings)
    if early is None or late is None or late / max(early, 1.0) - 1 <= settings.max_length_growth:
        return None
    before, after = halves(history, gain_of(history), settings)
    if before is None or after is None or after - before > LITTLE * full_range(history, facts):
        return None
    gain = f"{gain_of(history)} went from {before:.3f} to {after:.3f}"
    grew = f"completions grew from {early:.1f} to {late:.1f} tokens in {settings.window} steps (health.max_length_growth {settings.max_length_growth:g})"
    message = f"{grew}, and {gain}"
    return Found(message, numbers_now(history, "length/mean", "reward/mean", "train_accuracy"), history.step - settings.window)


def reward_hacking(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    return length_is_paid(history, settings) or reward_without_accuracy(history, settings, facts)


def late_degeneration(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    if len(history.steps) < 2 * settings.window:
        return None
    found = fell_from_its_best(history, settings, facts) or repeats_itself(history, settings)
    if found is None:
        return None
    message, since = found
    evidence = numbers_now(history, "reward/mean", "kl/mean", "beta", "repetition")
    return Found(f"{message}; {cause_of_fall(history, settings)}", evidence, well_before_fall(history, settings, facts, since=since))


def reward_failures(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    errors, invalid = history.now("status/error_fraction") or 0.0, history.now("status/invalid_fraction") or 0.0
    said = []
    if errors > settings.max_error_fraction:
        said.append(f"a reward function failed on {errors:.1%} of the completions (health.max_error_fraction {settings.max_error_fraction:g})")
    if history.held(settings.patience, "status/invalid_fraction", above=settings.max_invalid_fraction):
        said.append(f"{invalid:.0%} of the completions are invalid (health.max_invalid_fraction {settings.max_invalid_fraction:g})")
    return Found("; ".join(said), numbers_now(history, "status/error_fraction", "status/invalid_fraction")) if said else None


def slow_reward(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    """Read from timings, not from metrics."""
    seconds, usual = history.now("seconds/score"), history.last("seconds/score", settings.window, ending=1)
    if seconds is None or len(usual) < 2 or seconds < MIN_SLOW_SECONDS or seconds <= settings.slow_factor * median(usual):
        return None
    message = f"scoring took {seconds:.2f} s, {median(usual):.2f} s is usual here (health.slow_factor {settings.slow_factor:g})"
    return Found(message, numbers_now(history, "seconds/score", "seconds"))


def stall(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
    """Read from timings: the step as a whole, without scoring and evaluation."""
    *usual, own = [own_seconds(timings) for timings in history.metrics[-1 - settings.window :] if "seconds" in timings] or [0.0]
    if len(usual) < 2 or own < MIN_SLOW_SECONDS or own <= settings.slow_factor * median(usual):
        return None
    message = f"a step took {own:.2f} s without scoring, {median(usual):.2f} s is usual here (health.slow_factor {settings.slow_factor:g})"
    return Found(message, numbers_now(history, "seconds", "tokens_per_second"))


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
