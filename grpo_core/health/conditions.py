"""What the monitor can say: every condition with what it means, what to look at and do, and what is done about it unless the user says otherwise."""

from dataclasses import dataclass
from typing import Literal

from grpo_core.config import HealthAction

Severity = Literal["warning", "alarm"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    title: str
    remedy: str
    """What to look at, and what to change."""
    severity: Severity = "warning"
    action: HealthAction = "warn"
    """Unless `health.actions` names another."""
    stays_open: bool = False
    """What happened once is not undone by a good step after it: the alarm is open until it is acknowledged."""


CONDITIONS: dict[str, Condition] = {
    "non_finite": Condition(
        title="A number that is not finite",
        remedy="look at the kept batch; lower grpo.learning_rate or raise grpo.beta; a reward or a model that gives NaN must be mended",
        severity="alarm",
        action="halt",
        stays_open=True,
    ),
    "reward_outlier": Condition(
        title="A raw reward far outside of all others",
        remedy="look at the rows named here: a reward function has a mistake there; mend it (advantages are bounded and do not show it)",
        severity="alarm",
        stays_open=True,
    ),
    "sampler_mismatch": Condition(
        title="The sampler is not the policy that is trained",
        remedy="the sampler holds other weights, or another temperature, than the trainer: bring it up to date before every rollout batch",
        severity="alarm",
        action="halt",
        stays_open=True,
    ),
    "reference_misaligned": Condition(
        title="The reference reads other tokens than the policy wrote",
        remedy="compare tokenizer, chat template and positions of policy and reference: KL jumped though the policy hardly moved",
        severity="alarm",
        action="halt",
        stays_open=True,
    ),
    "early_explosion": Condition(
        title="Early explosion",
        remedy="look at the rewards of the rows named here, then lower grpo.learning_rate, set grpo.max_grad_norm to 0.5, raise grpo.beta",
        severity="alarm",
    ),
    "dead_rewards": Condition(
        title="Every completion earns the same",
        remedy="the reward tells nothing apart: run `grpo audit-rewards`, look at the rows named here, and check that answers reach the function",
        severity="alarm",
    ),
    "weak_signal": Condition(
        title="Weak signal: most groups are alike, and not as they are solved",
        remedy="raise grpo.group_size or rollout.temperature, choose prompts of medium difficulty (`grpo explore`), or make the reward denser",
    ),
    "sparse_rewards": Condition(
        title="Sparse rewards",
        remedy="make the reward denser (regex_format, key_steps) or imitate demonstrations at first (grpo.cloning_weight, docs/sparse_rewards.md)",
    ),
    "repeated_prompts": Condition(
        title="The same prompts over and over",
        remedy="the batch has fewer prompts than it counts: add prompts, remove doubled ones, or lower grpo.prompts_per_step",
    ),
    "low_diversity": Condition(
        title="The completions of a group are alike",
        remedy="raise rollout.temperature (1.0 is usual): a group of equal completions has nothing to compare",
    ),
    "entropy_collapse": Condition(
        title="Entropy collapse",
        remedy="the policy stopped exploring before it was done: raise grpo.clip_high (0.28) or grpo.beta, lower grpo.learning_rate, go back a checkpoint",
        severity="alarm",
    ),
    "truncation": Condition(
        title="Completions are cut off",
        remedy="raise rollout.max_new_tokens, or leave what is cut out of the loss (grpo.mask_truncated), or price length (grpo.length_penalty)",
    ),
    "runaway_length": Condition(
        title="Completions grow without getting better",
        remedy="price length (grpo.length_penalty and length_target, or soft_overlong), raise grpo.beta, and run `grpo audit-rewards`",
    ),
    "reward_hacking": Condition(
        title="Reward hacking: the reward pays for something else than right answers",
        remedy="run `grpo audit-rewards`, read the rows named here, price length or repetition, raise grpo.beta, and have people vote blind",
        severity="alarm",
    ),
    "late_degeneration": Condition(
        title="Late degeneration",
        remedy="go back to the checkpoint before; where KL still rises beta falls too fast (raise it), where KL is flat recalibrate the reward",
        severity="alarm",
    ),
    "reward_failures": Condition(
        title="Reward functions fail, or cannot read what the model writes",
        remedy="read status and reason of the rows named here; mend the function, or teach the format first (sft, answer_format)",
    ),
    "slow_reward": Condition(
        title="Scoring has become slow",
        remedy="look for completions that make the reward slow; lower scoring.timeout_seconds",
    ),
    "stall": Condition(
        title="Steps have become slow",
        remedy="look at what else the machine is doing, at memory, and at the length of completions",
    ),
}

EXPLAINS: dict[str, tuple[str, ...]] = {
    "non_finite": ("early_explosion",),
    "reference_misaligned": ("early_explosion",),
    "reward_outlier": ("early_explosion", "reward_hacking", "sparse_rewards", "weak_signal"),
    "dead_rewards": ("weak_signal", "sparse_rewards", "reward_hacking", "late_degeneration", "entropy_collapse", "low_diversity"),
    "early_explosion": ("reference_misaligned", "late_degeneration", "entropy_collapse", "weak_signal", "low_diversity", "runaway_length"),
    "low_diversity": ("weak_signal", "entropy_collapse"),
    "entropy_collapse": ("weak_signal",),
    "reward_hacking": ("runaway_length", "late_degeneration"),
    "truncation": ("dead_rewards", "sparse_rewards", "weak_signal", "late_degeneration"),
    "sparse_rewards": ("weak_signal",),
}
"""While the first holds, the others are its consequences: they are not raised beside it unless they are graver, or an action is asked for."""


def page_of(condition: str) -> str:
    """Where docs/ speaks about it."""
    return f"docs/health.md#{condition}"
