"""Whether GRPO has something to learn from where it would start, and what to change if not: rules over an exploration's numbers.

Every threshold is a constant here, with its reason; docs/explore.md shows what starts on either side of them came to.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from grpo_core.config import RunConfig
from grpo_core.exploration_numbers import Numbers
from grpo_core.live_groups import Live

Verdict = Literal["ready", "ready with warnings", "not yet"]

LEAST_PROMPTS = 48
"""Fewer prompts say little: a share of groups near one half is then off by more than 0.14 in one of twenty explorations."""
SPARSE = 0.9
"""From this share of completions at the lowest reward on, rewards are sparse: of 8 completions fewer than one is better than the rest."""
LEAST_SIGNAL, WEAK_SIGNAL = 0.1, 0.3
"""Share of groups that a main reward tells apart. Below the first a step learns from less than one group in ten; below the second most of
what is sampled is thrown away."""
WEAK_ACCURACY = 0.3
"""Share of right completions at temperature. Starts of the embedded default below it learned at the default learning rate and stalled at three
times that; above it they learned at both (docs/explore.md)."""
MOSTLY = 0.5
"""Solved, hopeless or unscored groups are told from this share on."""
LEAST_DISTINCT = 0.5
"""Completions of unsolved groups that differ less than this (0: all the same, 1: none twice) are mostly copies."""
COLD, HOT = 0.7, 1.0
"""Below the first temperature most of a group answers a prompt in the same way; above the second right answers are lost to noise."""
MOST_TRUNCATED = 0.2
"""More completions cut than this, and rewards say more of the limit than of the answers."""
MOST_INVALID = 0.1
"""More completions than this on which a grader gives up."""
FULLER = 0.1
"""Doubling G is worth telling when so many more groups would be live, of which there were fewer than `MOSTLY`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that stands between this start and learning."""

    condition: str
    blocks: bool
    """Training would teach nothing, or stop; otherwise it can work, worse than it might."""
    sentence: str
    """What was seen."""
    remedy: str
    page: str
    """Where the docs say more."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """The verdict, and why."""

    verdict: Verdict
    findings: tuple[Finding, ...]


def readiness(numbers: Numbers, config: RunConfig) -> Readiness:
    """What `RULES` find, the blocking ones first; `ready` where they find nothing."""
    found = sorted((finding for rule in RULES for finding in rule(numbers, config)), key=lambda finding: not finding.blocks)
    if any(finding.blocks for finding in found):
        return Readiness("not yet", tuple(found))
    return Readiness("ready with warnings" if found else "ready", tuple(found))


def failing_rewards(numbers: Numbers, config: RunConfig) -> Iterator[Finding]:
    """Errors of the reward code, which leave baseline and loss, and stop training past a set rate."""
    for function in numbers.functions[:-1]:
        share, most = function.statuses["error"], config.scoring.max_error_rate
        if share > 0:
            stops = share > most
            what = f"more than scoring.max_error_rate ({most:g}), so training would stop" if stops else "they would leave baseline and loss"
            yield Finding(
                "failing_rewards",
                stops,
                f"{function.name} failed on {share:.1%} of completions, {what}; first: {function.reason}",
                "mend the reward function: an error is the code's fault, what a model writes should earn a number or be invalid",
                "docs/rewards.md#what-can-become-of-a-completion",
            )


def invalid_completions(numbers: Numbers, config: RunConfig) -> Iterator[Finding]:
    """Completions that graders give up on."""
    for function in numbers.functions[:-1]:
        if function.statuses["invalid"] > MOST_INVALID:
            yield Finding(
                "invalid_completions",
                False,
                f"{function.name} found {function.statuses['invalid']:.0%} of completions invalid; first: {function.reason}",
                "read some of them in completions.parquet: ask for a format the grader reads, or show it in fine-tuning",
                "docs/rewards.md#what-can-become-of-a-completion",
            )


def unscored_completions(numbers: Numbers, config: RunConfig) -> Iterator[Finding]:
    """Completions that no reward function has an opinion on."""
    share = numbers.statuses["no_opinion"]
    if share >= MOSTLY:
        yield Finding(
            "unscored_completions",
            share == 1,
            f"no reward function had an opinion on {share:.0%} of completions: they leave baseline and loss",
            "give a reward that judges them, or leave their prompts out",
            "docs/rewards.md#what-can-become-of-a-completion",
        )


def sparse_rewards(numbers: Numbers, config: RunConfig) -> Iterator[Finding]:
    """Nearly everything at the lowest reward."""
    if numbers.at_lowest >= SPARSE:
        yield Finding(
            "sparse_rewards",
            True,
            f"{numbers.at_lowest:.1%} of completions have the lowest {main_names(numbers)}: too hard for this model, groups have next to nothing to compare",
            first_of_all(numbers, config) + "fine-tune longer or take easier prompts; make the reward dense (regex_format, key_steps); "
            "or imitate demonstrations beside the rollouts (grpo.cloning_weight)",
            "docs/sparse_rewards.md",
        )


def too_hard(numbers: Numbers, config: RunConfig) -> Iterator[Finding]:
    """Most groups hopeless, though rewards are not sparse altogether."""
    if numbers.groups.hopeless >= MOSTLY and numbers.at_lowest < SPARSE:
        yield Finding(
            "too_hard",
            numbers.groups.signal < LEAST_SIGNAL,
            f"{numbers.groups.hopeless:.0%} of groups have the lowest {main_names(numbers)} throughout: these prompts are too hard to learn from yet",
            "leave the hardest prompts out, fine-tune longer, raise grpo.group_size, or make the reward dense (key_steps)",
            "docs/explore.md#too-hard",
        )


def too_easy(numbers: Numbers, config: RunConfig) -> Iterator[Finding]:
    """Most groups solved."""
    if numbers.groups.solved >= MOSTLY:
        yield Finding(
            "too_easy",
            numbers.groups.signal < LEAST_SIGNAL,
            f"{numbers.groups.solved:.0%} of groups have full marks of {main_names(numbers)} throughout: nothing is left to learn from them",
            "take harder prompts, and leave out those that are always answered rightly",
            "docs/explore.md#too-easy",
        )


def alike_completions(numbers: Numbers, config: RunConfig) -> Iterator[Finding]:
    """Groups alike because their completions are, or are drawn too coldly to differ where it counts."""
    groups = numbers.groups
    if is_stuck(numbers, config) and groups.signal < MOSTLY and groups.solved < MOSTLY:
        yield Finding(
            "alike_completions",
            groups.signal < LEAST_SIGNAL,
            f"at temperature {config.rollout.temperature:g} only {groups.signal:.0%} of groups have something to compare; "
            f"their completions differ by {numbers.distinct:.2f} of what they could, and less in what counts",
            f"raise rollout.temperature (now {config.rollout.temperature:g}; 1 is usual) before anything else",
            "docs/explore.md#completions-alike",
        )


def little_signal(numbers: Numbers, config: RunConfig) -> Iterator[Finding]:
    """Few groups told apart, for none of the reasons above."""
    groups = numbers.groups
    known = numbers.at_lowest >= SPARSE or max(groups.hopeless, groups.solved) >= MOSTLY or numbers.statuses["no_opinion"] >= MOSTLY
    if groups.signal < WEAK_SIGNAL and not known and not is_stuck(numbers, config):
        yield Finding(
            "little_signal",
            groups.signal < LEAST_SIGNAL,
            f"{main_names(numbers)} tells completions apart in {groups.signal:.0%} of groups only: the rest is sampled for nothing",
            "take prompts of medium difficulty, raise grpo.group_size, or let the reward make finer differences",
            "docs/explore.md#little-signal",
        )


def form_only(numbers: Numbers, config: RunConfig) -> Iterator[Finding]:
    """More groups differ in what pays little than in what pays."""
    groups = numbers.groups
    if groups.side_signal > groups.signal:
        sides = " and ".join(f.name for f in numbers.functions[:-1] if not f.is_main and f.weight and f.differs > 0)
        yield Finding(
            "form_only",
            False,
            f"{groups.side_signal:.0%} of groups differ in {sides} alone, {groups.signal:.0%} in {main_names(numbers)}: "
            "the form would be learned, at full strength, and not the answer",
            f"teach the form in fine-tuning, or take {sides} out of the rewards until right answers appear",
            "docs/explore.md#form-alone",
        )


def weak_start(numbers: Numbers, config: RunConfig) -> Iterator[Finding]:
    """Right answers too rare to build on, though not sparse."""
    if numbers.accuracy is not None and 0 < numbers.accuracy.estimate < WEAK_ACCURACY and numbers.at_lowest < SPARSE:
        yield Finding(
            "weak_start",
            False,
            f"{numbers.accuracy.estimate:.0%} of completions are right: from so weak a start training stalls unless steps are small",
            "fine-tune longer, keep grpo.learning_rate low, or imitate demonstrations beside the rollouts (grpo.cloning_weight)",
            "docs/explore.md#weak-start",
        )


def small_groups(numbers: Numbers, config: RunConfig) -> Iterator[Finding]:
    """More completions a prompt would make many more groups live."""
    size = numbers.group_size
    now, twice = live_at(numbers, size), live_at(numbers, 2 * size)
    if now is None or twice is None or numbers.at_lowest >= SPARSE:
        return
    if now.share < MOSTLY and twice.share >= now.share + FULLER:
        yield Finding(
            "small_groups",
            False,
            f"{now.share:.0%} of groups of {size} hold right and wrong completions; of {2 * size} it would be about {twice.share:.0%}",
            f"raise grpo.group_size to {2 * size} (each step then samples twice as much, unless grpo.prompts_per_step is halved)",
            "docs/explore.md#the-size-of-groups",
        )


def cut_completions(numbers: Numbers, config: RunConfig) -> Iterator[Finding]:
    """Many completions end at the limit."""
    if numbers.truncated > MOST_TRUNCATED:
        yield Finding(
            "cut_completions",
            False,
            f"{numbers.truncated:.0%} of completions are cut at rollout.max_new_tokens ({config.rollout.max_new_tokens}): their answers are never seen",
            "raise rollout.max_new_tokens; where completions do not end on their own, fine-tune on ones that do",
            "docs/explore.md#cut-completions",
        )


def few_prompts(numbers: Numbers, config: RunConfig) -> Iterator[Finding]:
    """Too little was sampled to say much."""
    if numbers.num_prompts < LEAST_PROMPTS:
        yield Finding(
            "few_prompts",
            False,
            f"all this was seen on {numbers.num_prompts} prompts: shares are rough",
            f"explore at least {LEAST_PROMPTS} (--prompts), better some hundreds",
            "docs/explore.md",
        )


RULES: tuple[Callable[[Numbers, RunConfig], Iterator[Finding]], ...] = (
    failing_rewards,
    unscored_completions,
    sparse_rewards,
    too_hard,
    too_easy,
    alike_completions,
    little_signal,
    weak_start,
    form_only,
    small_groups,
    cut_completions,
    invalid_completions,
    few_prompts,
)


def main_names(numbers: Numbers) -> str:
    """The main reward functions, as a sentence names them."""
    return " and ".join(function.name for function in numbers.functions[:-1] if function.is_main)


def is_stuck(numbers: Numbers, config: RunConfig) -> bool:
    """Whether completions of a group that is not solved are mostly copies of each other, or sampled as if they should be."""
    return numbers.distinct is not None and (numbers.distinct < LEAST_DISTINCT or config.rollout.temperature < COLD)


def first_of_all(numbers: Numbers, config: RunConfig) -> str:
    """What may be the cause of rare rewards, and is mended most easily; empty where nothing is."""
    hot = f"lower rollout.temperature first (now {config.rollout.temperature:g}; 1 is usual); " if config.rollout.temperature > HOT else ""
    cut = f"raise rollout.max_new_tokens first ({numbers.truncated:.0%} of completions are cut); " if numbers.truncated > MOST_TRUNCATED else ""
    return hot + cut


def live_at(numbers: Numbers, group_size: int) -> Live | None:
    """The expectation for that group size; None where nothing could be graded."""
    return next((live for live in numbers.live if live.group_size == group_size), None)
