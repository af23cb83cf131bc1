"""The numbers of a run: one frozen, checked object per section of params.yaml.

Every field is documented where it stands, and params.yaml repeats the first sentence beside the value (a test holds the two
together). `params.parse_sections` is the only way in: it refuses unknown keys (naming the nearest valid one), wrong types and values
out of range before anything is spent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from grpo_core.requirements import (
    ConfigError,
    nearest,
    require,
    require_at_least,
    require_decay,
    require_default,
    require_fraction,
    require_pattern,
    require_positive,
    require_sane_steps,
    require_sane_temperature,
)

Option = bool | int | float | str | list[Any]
"""A value that somebody else's function takes: a reward function beside its columns, a task of reasoning-gym."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    path: str = ""
    """Hugging Face folder or hub name of the starting model; empty builds the small embedded one."""
    hidden_size: int = 128
    """Width of the embedded model (its sizes are read only when `path` is empty)."""
    num_layers: int = 2
    """Transformer blocks of the embedded model."""
    num_heads: int = 4
    """Attention heads of the embedded model; divides `hidden_size`."""
    intermediate_size: int = 256
    """Width of the embedded model's feed-forward layers."""
    context_length: int = 128
    """Longest prompt plus completion of the embedded model, in tokens."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the forward pass, for policy and reference alike; weights and moments stay in float32."""
    device: str = "auto"
    """Where models live: `auto` (a GPU when there is one), `cpu`, `cuda` or `cuda:N`."""
    num_threads: int = 2
    """CPU threads of torch; results are reproducible to the bit only at the same number."""
    seed: int = 0
    """Seed of the embedded model's first weights."""

    def __post_init__(self) -> None:
        require_positive("model", self, "hidden_size", "num_layers", "num_heads", "intermediate_size", "context_length", "num_threads")
        require(self.hidden_size % self.num_heads == 0, "model.num_heads", self.num_heads, f"divide model.hidden_size ({self.hidden_size})")
        require(re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device) is not None, "model.device", self.device, "be auto, cpu, cuda or cuda:N")
        if self.path:
            sizes = ("hidden_size", "num_layers", "num_heads", "intermediate_size", "context_length")
            require_default("model", self, "model.path names a model, which has its own sizes", *sizes)
            require_default("model", self, "model.path names a model, which has its weights", "seed")
        require((self.hidden_size // self.num_heads) % 2 == 0, "model.num_heads", self.num_heads, "leave an even head width (rotary positions turn pairs)")


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptsConfig:
    path: str = ""
    """JSONL, CSV or Parquet file of prompts; empty generates the embedded addition task."""
    heldout_path: str = ""
    """A second file whose rows are all held-out (a published test set); empty takes held-out rows from `path`."""
    task: str = "addition"
    """Name written into the `task` column when the file has none."""
    prompt_column: str = "prompt"
    """Column with the prompt: text, or a list of {role, content} messages."""
    answer_column: str = "answer"
    """Column with the reference answer."""
    answer_pattern: str = ""
    """Regular expression whose first group is cut out as the answer (GSM8K: `#### (.+)`); empty takes the column whole."""
    id_column: str = "id"
    """Column with the user's own ids, if the file has it (they must be unique)."""
    split_column: str = "split"
    """Column that names the split (`sft`, `train`, `select`, `heldout`), if the file has it; else splits are made by hash."""
    difficulty_column: str = "difficulty"
    """Column with a difficulty, number or text, if the file has it."""
    completion_column: str = "completion"
    """Column with demonstrations for supervised fine-tuning, if the file has it."""
    template: str = "{prompt}"
    """Wrapped around every text prompt; must hold `{prompt}` once."""
    chat: bool = False
    """Send text prompts through the model's chat template as one user message."""
    system_prompt: str = ""
    """System message put before chat prompts; empty adds none."""
    max_tokens: int = 64
    """Longest prompt in tokens, after template and chat template; a longer one is an error."""
    sft_fraction: float = 0.55
    """Share of prompts kept for supervised fine-tuning when splits are made by hash."""
    select_fraction: float = 0.025
    """Share of prompts that choose between checkpoints during training (never trained on)."""
    heldout_fraction: float = 0.055
    """Share of prompts kept for the final evaluation (never looked at before); the rest is `train`."""
    reasoning_gym: str = ""
    """Task of reasoning-gym that generates the prompts (`chain_sum`, `countdown`, …); empty generates none of them."""
    reasoning_gym_config: Mapping[str, Option] = field(default_factory=dict)
    """Settings of that task, by the names it gives them; what is left out stays at its default."""
    num_generated: int = 10_000
    """How many prompts the embedded task, or that of reasoning-gym, generates."""
    num_digits: int = 3
    """Digits of each addend in the embedded task."""
    seed: int = 0
    """Seed of generation and of the split hash."""

    def __post_init__(self) -> None:
        require_positive("prompts", self, "max_tokens", "num_generated", "num_digits")
        require_fraction("prompts", self, "sft_fraction", "select_fraction", "heldout_fraction")
        total = self.sft_fraction + self.select_fraction + self.heldout_fraction
        require(total < 1, "prompts.sft_fraction + select_fraction + heldout_fraction", total, "stay below 1: the rest is the train split")
        if self.path:
            require_default("prompts", self, "prompts.path names a file, so nothing is generated", "num_generated", "num_digits")
        if self.reasoning_gym:
            require(self.path == "", "prompts.path", self.path, "be empty when prompts.reasoning_gym names a task: prompts come from one of the two")
            require_default("prompts", self, "prompts.reasoning_gym generates the prompts", "num_digits")
        else:
            require_default("prompts", self, "prompts.reasoning_gym names no task", "reasoning_gym_config")
        pairs = (10**self.num_digits - 10 ** (self.num_digits - 1)) ** 2
        fits = f"be at most {pairs}, the pairs of numbers with prompts.num_digits ({self.num_digits}) digits"
        require(self.path != "" or self.reasoning_gym != "" or self.num_generated <= pairs, "prompts.num_generated", self.num_generated, fits)
        require_pattern("prompts.answer_pattern", self.answer_pattern)
        require_positive("prompts", self, "select_fraction")
        require(
            self.heldout_path != "" or self.heldout_fraction > 0, "prompts.heldout_fraction", self.heldout_fraction, "be above 0 without prompts.heldout_path"
        )
        require(self.template.count("{prompt}") == 1, "prompts.template", self.template, "hold {prompt} exactly once")
        require(self.chat or not self.system_prompt, "prompts.system_prompt", self.system_prompt, "be empty unless prompts.chat is true")
        require(self.path != "" or self.heldout_path == "", "prompts.heldout_path", self.heldout_path, "be empty when prompts.path is")


@dataclass(frozen=True, kw_only=True, slots=True)
class SftConfig:
    steps: int = 800
    """Optimizer steps of supervised fine-tuning; 0 goes straight from the starting model to GRPO (R1-Zero)."""
    batch_size: int = 48
    """Demonstrations a step."""
    micro_batch_size: int = 48
    """Demonstrations in memory at once; splitting never changes the gradient."""
    learning_rate: float = 3e-3
    """Peak learning rate of AdamW (cosine decay)."""
    final_learning_rate_fraction: float = 0.1
    """The cosine ends at this share of the peak."""
    warmup_steps: int = 20
    """Steps of linear warm-up."""
    adam_beta1: float = 0.9
    """AdamW's decay of the gradient mean."""
    adam_beta2: float = 0.99
    """AdamW's decay of the squared gradient."""
    weight_decay: float = 0.01
    """AdamW's weight decay."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    checkpoint_every: int = 100
    """Steps between checkpoints that an interrupted fine-tuning resumes from."""
    keep_checkpoints: int = 1
    """Newest checkpoints kept while it runs."""
    seed: int = 0
    """Seed of the order of demonstrations."""

    def __post_init__(self) -> None:
        require_at_least("sft", self, 0, "steps", "warmup_steps", "weight_decay")
        require_at_least("sft", self, 1, "checkpoint_every", "keep_checkpoints")
        require_positive("sft", self, "batch_size", "micro_batch_size", "learning_rate", "max_grad_norm")
        require_fraction("sft", self, "final_learning_rate_fraction")
        require_decay("sft", self, "adam_beta1", "adam_beta2")
        require_sane_steps("sft", self)
        if self.steps == 0:
            require_default("sft", self, "sft.steps is 0", *(f.name for f in fields(self) if f.name != "steps"))


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutConfig:
    temperature: float = 1.0
    """Sampling temperature in training; logprobs are those of the tempered distribution."""
    max_new_tokens: int = 44
    """Longest completion in tokens; a completion cut there is `truncated`."""
    batch_size: int = 128
    """Completions decoded side by side."""

    def __post_init__(self) -> None:
        require_positive("rollout", self, "temperature", "max_new_tokens", "batch_size")
        require_sane_temperature("rollout", self.temperature)


WIDEST_CLIP = {"clip_low": 0.9, "clip_high": 10.0}
"""A clip of ratios as wide as this cuts nothing before the policy is another one: a tenth, or eleven times, of the old probability."""


def largest_advantage(group_size: int) -> float:
    """The largest |advantage| of a group whose centred rewards are divided by their sample standard deviation: one stands against all others."""
    return (group_size - 1) / math.sqrt(group_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoringConfig:
    combine: Literal["sum", "gdpo"] = "sum"
    """How several rewards become one advantage: `sum` (weighted sum, then normalise) or `gdpo` (normalise each in its group, then sum)."""
    timeout_seconds: float = 30.0
    """Longest that a reward function may take over a batch; then its completions are tried alone, and one that hangs again is invalid."""
    max_error_rate: float = 0.05
    """Share of a batch's completions on which a reward function may fail (they leave baseline and loss) before the run stops."""
    floors: Mapping[str, float] = field(default_factory=dict)
    """Reward function → what an invalid completion earns of it; else the worst of 0 to 1, or of what it gave in the batch."""
    exploit_prompts: int = 4
    """Train prompts on which the exploit battery tries the rewards before step 1 (chosen by hash)."""
    exploit_threshold: float = 0.25
    """An exploit that earns more than this share of full marks blocks the run until it is acknowledged."""
    acknowledged_exploits: Mapping[str, str] = field(default_factory=dict)
    """Exploit (`function/probe`, as `grpo audit-rewards` names it) → the reason why it may earn what it does."""

    def __post_init__(self) -> None:
        require_positive("scoring", self, "timeout_seconds")
        require_fraction("scoring", self, "max_error_rate", "exploit_threshold")
        require_at_least("scoring", self, 1, "exploit_prompts")
        for exploit, reason in self.acknowledged_exploits.items():
            require("/" in exploit, "scoring.acknowledged_exploits", exploit, "be named function/probe, as `grpo audit-rewards` names it")
            require(reason.strip() != "", f"scoring.acknowledged_exploits.{exploit}", reason, "say why this exploit may earn what it does")


@dataclass(frozen=True, kw_only=True, slots=True)
class GrpoConfig:
    steps: int = 80
    """Rollout batches (each sampled from the newest policy, then learned from)."""
    prompts_per_step: int = 16
    """Prompts in a rollout batch; completions = prompts_per_step × group_size."""
    group_size: int = 8
    """Completions of one prompt that are compared with each other (G)."""
    minibatches_per_rollout: int = 2
    """Optimizer steps a pass over a rollout batch; whole groups are shuffled into them by seed."""
    updates_per_rollout: int = 1
    """Passes over a rollout batch."""
    micro_batch_size: int = 64
    """Completions in memory at once during an update; splitting never changes the gradient."""
    learning_rate: float = 1e-4
    """Learning rate of AdamW."""
    warmup_steps: int = 5
    """Rollout batches of linear warm-up."""
    adam_beta1: float = 0.9
    """AdamW's decay of the gradient mean."""
    adam_beta2: float = 0.99
    """AdamW's decay of the squared gradient."""
    weight_decay: float = 0.0
    """AdamW's weight decay."""
    max_grad_norm: float = 1.0
    """The gradient's norm is clipped here before every optimizer step."""
    loss: Literal["grpo", "dapo", "dr_grpo"] = "grpo"
    """Preset of objective, aggregation, KL estimator and advantage scaling."""
    objective: Literal["preset", "clip"] = "preset"
    """Policy objective; `preset` takes the one of `loss`."""
    aggregation: Literal["preset", "sequence_mean", "token_mean", "constant"] = "preset"
    """How token losses become one number; `preset` takes the one of `loss`."""
    aggregation_length: int = 0
    """Divisor of `constant` aggregation in tokens; 0 takes rollout.max_new_tokens."""
    kl_estimator: Literal["preset", "k1", "k2", "k3", "k3_ratio"] = "preset"
    """KL term of the loss; `preset` takes the one of `loss`."""
    advantage_scale: Literal["preset", "std", "none"] = "preset"
    """Whether centred rewards are divided by the group's standard deviation; `preset` takes the one of `loss`."""
    clip_low: float = 0.2
    """Ratios below 1 - clip_low give no gradient to a negative advantage."""
    clip_high: float = 0.2
    """Ratios above 1 + clip_high give no gradient to a positive advantage (DAPO: 0.28)."""
    beta: float = 0.01
    """Weight of the KL to the reference (the starting weight when it is controlled); 0 needs no reference pass."""
    kl_control: Literal["fixed", "threshold", "pid"] = "fixed"
    """How beta moves: `fixed`, `threshold` (×1.5 above, ÷1.5 long below) or `pid` on a target."""
    kl_statistic: Literal["token_mean", "sequence_sum"] = "token_mean"
    """The rollout's KL that the controller reads, in nats a token or nats a completion."""
    kl_upper: float = 0.5
    """`threshold`: above this KL beta is multiplied by 1.5."""
    kl_lower: float = 0.05
    """`threshold`: below this KL for kl_patience steps beta is divided by 1.5, once kl_upper was ever exceeded."""
    kl_patience: int = 5
    """`threshold`: steps below kl_lower before beta falls."""
    kl_target: float = 0.1
    """`pid`: the KL to hold."""
    kl_proportional: float = 0.1
    """`pid`: gain on the relative error of KL."""
    kl_integral: float = 0.01
    """`pid`: gain on the summed relative error."""
    kl_derivative: float = 0.0
    """`pid`: gain on the change of the relative error."""
    advantage_clip: float = 2.0
    """Advantages are clipped to ± this at the end of the schedule; 0 clips nothing."""
    advantage_clip_start: float = 2.0
    """Advantages are clipped to ± this at step 1 (1.5 when early rewards are noisy)."""
    advantage_clip_steps: int = 0
    """Steps over which the clip moves linearly from start to end; 0 uses advantage_clip throughout."""
    mask_truncated: bool = False
    """Leave truncated completions out of the loss (they stay in their group's baseline)."""
    length_penalty: float = 0.0
    """Weight of the penalty (length - length_target)² taken off the reward."""
    length_target: int = 0
    """Completion length in tokens that the length penalty asks for."""
    cloning_weight: float = 0.0
    """Weight at step 1 of imitating demonstrations (their mean nats a token), for rewards too sparse to start from; 0 imitates none."""
    cloning_schedule: Literal["linear", "cosine", "signal"] = "linear"
    """How cloning_weight falls to 0: `linear` or `cosine` over cloning_steps, or by the share of groups that have `signal` or are solved."""
    cloning_steps: int = 0
    """`linear`, `cosine`: steps that imitate; from the step after them the weight is 0."""
    cloning_batch_size: int = 0
    """Demonstrations of the sft split imitated beside a rollout batch."""
    demonstration_fraction: float = 0.0
    """Share of train prompts whose own demonstration is imitated whenever they are drawn (chosen by seed and prompt)."""
    eval_every: int = 10
    """Steps between evaluations on the `select` split; 0 never evaluates in training."""
    select_metric: str = "exact_answer"
    """Reward function whose value of 1 counts as correct on the `select` split, and in training where it is one of the rewards."""
    select_max_prompts: int = 128
    """Most `select` prompts evaluated during training (chosen by hash, so always the same ones)."""
    checkpoint_every: int = 10
    """Steps between checkpoints (one is always written at the end)."""
    keep_checkpoints: int = 2
    """Newest checkpoints kept in the work folder."""
    seed: int = 0
    """Seed of prompt order, sampling and minibatch shuffling."""

    def __post_init__(self) -> None:
        counts = (
            "steps",
            "prompts_per_step",
            "minibatches_per_rollout",
            "updates_per_rollout",
            "micro_batch_size",
            "checkpoint_every",
            "select_max_prompts",
            "keep_checkpoints",
            "kl_patience",
        )
        require_at_least("grpo", self, 1, *counts)
        require(self.group_size >= 2, "grpo.group_size", self.group_size, "be at least 2: an advantage compares a completion with others of its group")
        require_positive("grpo", self, "learning_rate", "max_grad_norm", "clip_high", "kl_target")
        require(0 < self.clip_low < 1, "grpo.clip_low", self.clip_low, "lie between 0 and 1 (both excluded)")
        require_at_least(
            "grpo",
            self,
            0,
            "warmup_steps",
            "weight_decay",
            "beta",
            "kl_lower",
            "advantage_clip",
            "advantage_clip_start",
            "advantage_clip_steps",
            "length_penalty",
            "length_target",
            "cloning_weight",
            "cloning_steps",
            "cloning_batch_size",
            "eval_every",
            "aggregation_length",
            "kl_proportional",
            "kl_integral",
            "kl_derivative",
        )
        require_decay("grpo", self, "adam_beta1", "adam_beta2")
        require_sane_steps("grpo", self)
        require_fraction("grpo", self, "demonstration_fraction")
        self._refuse_idle_keys()
        self._refuse_idle_clips()
        self._check_cloning()
        if self.advantage_clip_steps > 0:
            scheduled = f"be above 0 when grpo.advantage_clip_steps is {self.advantage_clip_steps}: the clip moves between the two"
            require(self.advantage_clip > 0, "grpo.advantage_clip", self.advantage_clip, scheduled)
            require(self.advantage_clip_start > 0, "grpo.advantage_clip_start", self.advantage_clip_start, scheduled)
        require(self.kl_upper > self.kl_lower, "grpo.kl_upper", self.kl_upper, f"be above grpo.kl_lower ({self.kl_lower})")
        require(
            self.prompts_per_step % self.minibatches_per_rollout == 0,
            "grpo.minibatches_per_rollout",
            self.minibatches_per_rollout,
            f"divide grpo.prompts_per_step ({self.prompts_per_step}): a minibatch is made of whole groups",
        )
        gains = (self.kl_proportional, self.kl_integral, self.kl_derivative)
        moves = "be above 0 (or grpo.kl_integral or grpo.kl_derivative) when grpo.kl_control is pid: without a gain beta never moves"
        require(self.kl_control != "pid" or any(gains), "grpo.kl_proportional", self.kl_proportional, moves)
        require(
            self.kl_control == "fixed" or self.beta > 0, "grpo.beta", self.beta, f"be above 0 when grpo.kl_control is {self.kl_control}: it multiplies beta"
        )

    @property
    def scales_by_std(self) -> bool:
        """Whether centred rewards are divided by the group's standard deviation, the preset's choice resolved (a test compares with loss.py)."""
        return self.advantage_scale == "std" or (self.advantage_scale == "preset" and self.loss != "dr_grpo")

    @property
    def demonstrations_per_step(self) -> float:
        """Demonstrations imitated beside a rollout batch while the weight is above 0: of those of its own prompts as many as on average."""
        return self.cloning_batch_size + self.demonstration_fraction * self.prompts_per_step

    @property
    def cloning_steps_at_most(self) -> int:
        """Steps that imitate; when `signal` ends it nobody knows before."""
        if self.cloning_weight == 0:
            return 0
        return self.steps if self.cloning_schedule == "signal" else min(self.steps, self.cloning_steps)

    def _refuse_idle_keys(self) -> None:
        """A key that the others leave without effect must stay at its default: nothing is silently ignored."""
        if self.kl_control == "fixed":
            require_default("grpo", self, "grpo.kl_control is fixed", "kl_statistic")
        if self.kl_control != "threshold":
            require_default("grpo", self, f"grpo.kl_control is {self.kl_control}", "kl_upper", "kl_lower", "kl_patience")
        if self.kl_control != "pid":
            require_default("grpo", self, f"grpo.kl_control is {self.kl_control}", "kl_target", "kl_proportional", "kl_integral", "kl_derivative")
        if self.advantage_clip_steps == 0:
            require_default("grpo", self, "grpo.advantage_clip_steps is 0", "advantage_clip_start")
        if self.length_penalty == 0:
            require_default("grpo", self, "grpo.length_penalty is 0", "length_target")
        if self.aggregation != "constant" and (self.aggregation, self.loss) != ("preset", "dr_grpo"):
            require_default("grpo", self, "the aggregation is not constant", "aggregation_length")
        if self.beta == 0 and self.kl_control == "fixed":
            require_default("grpo", self, "grpo.beta is 0", "kl_estimator")
        if self.eval_every == 0:
            require_default("grpo", self, "grpo.eval_every is 0", "select_max_prompts")

    def _check_cloning(self) -> None:
        """The cloning term has demonstrations and an end, or none of its keys is set."""
        if self.cloning_weight == 0:
            require_default("grpo", self, "grpo.cloning_weight is 0", "cloning_schedule", "cloning_steps", "cloning_batch_size", "demonstration_fraction")
            return
        given = f"be above 0 (or grpo.demonstration_fraction) when grpo.cloning_weight is {self.cloning_weight:g}: without demonstrations none are imitated"
        require(self.cloning_batch_size > 0 or self.demonstration_fraction > 0, "grpo.cloning_batch_size", self.cloning_batch_size, given)
        if self.cloning_schedule == "signal":
            require_default("grpo", self, "grpo.cloning_schedule is signal", "cloning_steps")
        else:
            ends = f"be at least 1 when grpo.cloning_schedule is {self.cloning_schedule}: after so many steps the weight is 0"
            require(self.cloning_steps >= 1, "grpo.cloning_steps", self.cloning_steps, ends)

    def _refuse_idle_clips(self) -> None:
        """A clip of ratios or advantages that no ratio and no advantage can reach is refused, and so is learning repeatedly without one."""
        steps = self.updates_per_rollout * self.minibatches_per_rollout
        if steps == 1:
            once = "grpo.updates_per_rollout × grpo.minibatches_per_rollout is 1, so every ratio is 1"
            require_default("grpo", self, once, "clip_low", "clip_high")
        for name, widest in WIDEST_CLIP.items():
            clip, remedy = getattr(self, name), "narrow it (0.2 is usual), or set grpo.updates_per_rollout and grpo.minibatches_per_rollout to 1"
            unclipped = f"be below {widest:g} with {steps} optimizer steps a rollout: ratios drift and a clip this wide cuts none; {remedy}"
            require(steps == 1 or clip < widest, f"grpo.{name}", clip, unclipped)
        largest = largest_advantage(self.group_size)
        clips = [self.advantage_clip] if self.advantage_clip_steps == 0 else [self.advantage_clip, self.advantage_clip_start]
        if self.scales_by_std and self.length_penalty == 0 and min(clips) >= largest:
            reach = f"no advantage divided by the deviation of {self.group_size} rewards exceeds {largest:.4g} = (G - 1) / √G"
            require_default("grpo", self, reach, "advantage_clip", "advantage_clip_start")


HealthAction = Literal["warn", "adjust", "halt"]

CONDITIONS = (
    "non_finite",
    "reward_outlier",
    "sampler_mismatch",
    "reference_misaligned",
    "early_explosion",
    "dead_rewards",
    "weak_signal",
    "sparse_rewards",
    "repeated_prompts",
    "low_diversity",
    "entropy_collapse",
    "truncation",
    "runaway_length",
    "reward_hacking",
    "late_degeneration",
    "reward_failures",
    "slow_reward",
    "stall",
)
"""What the health monitor tells apart (grpo_core/health/conditions.py says what each means; a test compares the two)."""
ADJUSTABLE = ("early_explosion", "late_degeneration")
"""Conditions that have an adjustment: a gradient norm of at most 0.5 and half as much beta again."""
BY_THE_CLOCK = ("slow_reward", "stall")
"""Conditions read off the clock: they differ from run to run, so they only warn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthConfig:
    actions: Mapping[str, HealthAction] = field(default_factory=dict)
    """Condition → `warn`, `adjust` or `halt`; what is left out does as docs/health.md lists."""
    notify: str = ""
    """Where each new alarm goes: a shell command (it gets the alarm as JSON on stdin) or an http(s) address (POST); empty tells nobody."""
    acknowledged: Mapping[str, str] = field(default_factory=dict)
    """Condition → the reason why it is accepted: its alarms then neither act nor block promotion."""
    patience: int = 2
    """Steps in a row that a condition that wavers must hold before it is an alarm; gone for more than so many, the alarm is closed."""
    window: int = 10
    """Steps over which trends (of reward, accuracy, length, repetition) are read."""
    max_kl: float = 0.5
    """Early explosion: KL to the reference, nats a token."""
    max_policy_kl: float = 0.02
    """Early explosion: how far the policy moves within a rollout batch before its last update, nats a token; nothing with a single update."""
    max_grad_norm: float = 5.0
    """Early explosion: gradient norm before clipping."""
    max_sampler_gap: float = 0.001
    """Sampler mismatch: nats a token between sampler and trainer on the same weights (bfloat16: a hundred times this)."""
    outlier_factor: float = 100.0
    """Reward outlier: how many times the usual spread of a batch's rewards one lies outside of it."""
    max_alike_fraction: float = 0.7
    """Weak signal: share of groups whose rewards are alike, while more than a fifth of all are alike and short of full marks."""
    sparse_fraction: float = 0.9
    """Sparse rewards: share of completions that earn the lowest reward of the batch."""
    max_repeated_prompts: float = 0.5
    """Repeated prompts: share of a batch's prompts that stand in it already."""
    min_distinct_fraction: float = 0.1
    """Low diversity: how different the completions of an unsolved group are, 0 (all the same) to 1 (none twice)."""
    max_truncated_fraction: float = 0.3
    """Truncation: share of completions that max_new_tokens cut."""
    max_length_growth: float = 0.5
    """Runaway length: relative growth of the mean length over `window` steps that accuracy did not gain from."""
    reward_drop: float = 0.15
    """Late degeneration: how far the reward falls below its best, as a share of full marks."""
    accuracy_drop: float = 0.1
    """Reward hacking: how far accuracy falls while the reward rises."""
    length_paid: float = 0.8
    """Reward hacking: correlation of length and of the reward beyond correctness, within groups."""
    max_repetition: float = 0.3
    """Late degeneration: growth of the share of n-grams that a completion has used before."""
    max_error_fraction: float = 0.02
    """Reward failures: share of completions on which a reward function failed."""
    max_invalid_fraction: float = 0.5
    """Reward failures: share of completions that are invalid."""
    slow_factor: float = 5.0
    """Slow reward: scoring takes this many times its usual seconds; stall: the step does, without it."""

    def __post_init__(self) -> None:
        require_at_least("health", self, 1, "patience")
        require_at_least("health", self, 2, "window")
        require_positive("health", self, "max_kl", "max_policy_kl", "max_grad_norm", "max_sampler_gap", "max_length_growth")
        shares = ("max_alike_fraction", "sparse_fraction", "max_repeated_prompts", "min_distinct_fraction", "max_truncated_fraction", "length_paid")
        require_fraction("health", self, *shares, "reward_drop", "accuracy_drop", "max_repetition", "max_error_fraction", "max_invalid_fraction")
        for name in ("outlier_factor", "slow_factor"):
            require(getattr(self, name) > 1, f"health.{name}", getattr(self, name), "be above 1")
        for section in ("actions", "acknowledged"):
            for name in getattr(self, section):
                require(name in CONDITIONS, f"health.{section}", name, f"name a condition: {nearest(name, list(CONDITIONS))}")
        for name, action in self.actions.items():
            changes = f"be one of {', '.join(ADJUSTABLE)} for the action adjust: the others have no adjustment"
            require(action != "adjust" or name in ADJUSTABLE, "health.actions", name, changes)
            watched = "be warn: what the clock says differs from run to run, so a run must not depend on it"
            require(name not in BY_THE_CLOCK or action == "warn", f"health.actions.{name}", action, watched)
            halts = "be halt: a number that is not finite cannot be learned from"
            require(name != "non_finite" or action == "halt", "health.actions.non_finite", action, halts)
        require("non_finite" not in self.acknowledged, "health.acknowledged", "non_finite", "leave out non_finite: it cannot be accepted")
        for name, reason in self.acknowledged.items():
            require(reason.strip() != "", f"health.acknowledged.{name}", reason, "say why it is accepted")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldoutEvalConfig:
    metric: str = "exact_answer"
    """Reward function whose value of 1 counts as a correct answer."""
    max_prompts: int = 512
    """Most held-out prompts evaluated (chosen by hash, so always the same ones)."""
    samples_per_prompt: int = 4
    """Completions a prompt at temperature; mean@k is their mean accuracy (k is this number)."""
    pass_k: int = 2
    """The k of pass@k: the chance that one of k completions is right, estimated without bias from the samples."""
    temperature: float = 1.0
    """Temperature of those completions (the greedy pass has none)."""
    bootstrap_resamples: int = 10_000
    """Resamples of the paired bootstrap for the difference."""
    seed: int = 0
    """Seed of evaluation sampling and of the bootstrap (a stream apart from training)."""

    def __post_init__(self) -> None:
        require_at_least("heldout_eval", self, 1, "max_prompts", "samples_per_prompt", "pass_k")
        fits = f"be at most heldout_eval.samples_per_prompt ({self.samples_per_prompt})"
        require(self.pass_k <= self.samples_per_prompt, "heldout_eval.pass_k", self.pass_k, fits)
        require_at_least("heldout_eval", self, 100, "bootstrap_resamples")
        require_positive("heldout_eval", self, "temperature")
        require_sane_temperature("heldout_eval", self.temperature)


@dataclass(frozen=True, kw_only=True, slots=True)
class BlindReviewConfig:
    num_pairs: int = 30
    """Held-out prompts shown with one completion of the policy and one of the reference."""
    num_control_pairs: int = 4
    """Extra pairs with two completions of the same model, to measure the reviewers."""
    num_repeat_pairs: int = 4
    """Pairs shown once more near the end, sides swapped, to see who answers alike again (fewer where there are too few pairs)."""
    precision: float = 0.2
    """The verdict has votes enough once its win rate is known to within this much on either side (95 %)."""
    seed: int = 0
    """Seed of the choice of prompts, of the order and of the sides."""

    def __post_init__(self) -> None:
        require_at_least("blind_review_set", self, 1, "num_pairs")
        require_at_least("blind_review_set", self, 0, "num_control_pairs", "num_repeat_pairs")
        known = "lie between 0.01 and 0.49: a share is known to within 0.5 before anybody has voted"
        require(0.01 <= self.precision <= 0.49, "blind_review_set.precision", self.precision, known)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromotionConfig:
    margin: float = 0.0
    """The policy must be better than the champion by more than this: the lower end of the interval of its mean@k's difference."""
    guards: Mapping[str, float] = field(default_factory=dict)
    """Task of held-out prompts → the most that mean@k may fall on it (the lower end of its 95 % interval)."""
    require_verdict: bool = True
    """Whether people must have preferred the policy in blind review."""
    champion: str = ""
    """sha256 of the champion's weights that the policy is to be measured against; empty takes the champion of now."""

    def __post_init__(self) -> None:
        require(-1 < self.margin < 1, "promotion.margin", self.margin, "lie between -1 and 1: it is a share of answers")
        for task, most in self.guards.items():
            require(0 <= most < 1, f"promotion.guards.{task}", most, "lie between 0 and 1: it is the share of answers that may be lost")
        whole = "be a sha256 (64 hex digits) as data/champion/champion.json has it, or empty"
        require(re.fullmatch("([0-9a-f]{64})?", self.champion) is not None, "promotion.champion", self.champion, whole)


def _default_rewards() -> dict[str, float]:
    return {"exact_answer": 1.0, "answer_format": 0.1}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Everything one experiment reads, section by section."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """The starting model and the machine it runs on."""
    prompts: PromptsConfig = field(default_factory=PromptsConfig)
    """Where prompts come from, how they are wrapped and split."""
    sft: SftConfig = field(default_factory=SftConfig)
    """Supervised fine-tuning on demonstrations."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """How completions are drawn."""
    rewards: Mapping[str, float] = field(default_factory=_default_rewards)
    """Reward function (a built-in's name or `package.module:function`) → weight in the sum."""
    reward_options: Mapping[str, Mapping[str, Option]] = field(default_factory=dict)
    """Reward function → its options, by name; what is left out stays at the function's default."""
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    """How rewards are run, combined, and tried for exploits before training."""
    grpo: GrpoConfig = field(default_factory=GrpoConfig)
    """The training loop and its loss."""
    health: HealthConfig = field(default_factory=HealthConfig)
    """What counts as trouble in training, and what to do about it."""
    heldout_eval: HeldoutEvalConfig = field(default_factory=HeldoutEvalConfig)
    """The evidence: evaluation on prompts never trained on."""
    blind_review_set: BlindReviewConfig = field(default_factory=BlindReviewConfig)
    """Pairs for people to judge."""
    promotion: PromotionConfig = field(default_factory=PromotionConfig)
    """What a policy must show to become the champion."""

    def __post_init__(self) -> None:
        require(len(self.rewards) > 0, "rewards", dict(self.rewards), "name at least one reward function")
        earns = "hold a weight other than 0: with all of them 0 there is nothing to learn"
        require(any(self.rewards.values()), "rewards", dict(self.rewards), earns)
        named = [(f"rewards.{name}", name) for name in self.rewards]
        for where, name in (*named, ("grpo.select_metric", self.grpo.select_metric), ("heldout_eval.metric", self.heldout_eval.metric)):
            if ":" not in name and name not in BUILT_IN_REWARDS:
                raise ConfigError(f"{where}: unknown reward function {name!r}: {nearest(name, list(BUILT_IN_REWARDS))} (your own is package.module:function)")
        self._check_scoring()
        controls, samples = self.blind_review_set.num_control_pairs, self.heldout_eval.samples_per_prompt
        two = f"be at least 2 when blind_review_set.num_control_pairs is {controls}: a control pair shows two samples of one model"
        require(controls == 0 or samples >= 2, "heldout_eval.samples_per_prompt", samples, two)
        self._refuse_what_cannot_be()
        if self.model.path == "":
            needed = self.prompts.max_tokens + self.rollout.max_new_tokens
            require(
                needed <= self.model.context_length,
                "prompts.max_tokens + rollout.max_new_tokens",
                needed,
                f"fit in model.context_length ({self.model.context_length}); lower one of the two or raise the context",
            )

    def _check_scoring(self) -> None:
        """Options belong to functions that are asked; GDPO needs rewards to tell apart, and what it normalises by."""
        asked = list(dict.fromkeys([*self.rewards, self.grpo.select_metric, self.heldout_eval.metric]))
        for name in self.reward_options:
            where = f"reward_options.{name}"
            require(name in asked, where, dict(self.reward_options[name]), f"belong to a reward or metric of this run ({', '.join(asked)})")
        if self.scoring.combine == "gdpo":
            several = "name at least two functions when scoring.combine is gdpo: normalising each is no other thing with one"
            require(len(self.rewards) >= 2, "rewards", dict(self.rewards), several)
            normalised = "divide by the standard deviation (std) when scoring.combine is gdpo: that is what it does to each reward"
            require(self.grpo.scales_by_std, "grpo.advantage_scale", self.grpo.advantage_scale, normalised)
            priced = "be 0 when scoring.combine is gdpo: normalised, its weight would mean nothing; give soft_overlong a weight among the rewards"
            require(self.grpo.length_penalty == 0, "grpo.length_penalty", self.grpo.length_penalty, priced)

    def _refuse_what_cannot_be(self) -> None:
        """Values of different sections that contradict each other, or leave each other without effect."""
        if self.prompts.path == "":
            columns = ("prompt_column", "answer_column", "id_column", "split_column", "difficulty_column", "completion_column")
            require_default("prompts", self.prompts, "prompts.path is empty, so prompts are generated", "task", "answer_pattern", *columns)
            untaught = "be 0 when prompts.reasoning_gym generates the prompts: it gives no demonstrations"
            require(self.prompts.reasoning_gym == "" or self.sft.steps == 0, "sft.steps", self.sft.steps, untaught)
            unread = "name a model when prompts.reasoning_gym generates the prompts: the embedded one reads sums only"
            require(self.prompts.reasoning_gym == "" or self.model.path != "", "model.path", self.model.path, unread)
            shown = f"be above 0 when sft.steps is {self.sft.steps}: it learns from the sft split (or set sft.steps to 0)"
            require(self.sft.steps == 0 or self.prompts.sft_fraction > 0, "prompts.sft_fraction", self.prompts.sft_fraction, shown)
            cloned = f"be above 0 when grpo.cloning_batch_size is {self.grpo.cloning_batch_size}: its demonstrations are those of the sft split"
            require(self.grpo.cloning_batch_size == 0 or self.prompts.sft_fraction > 0, "prompts.sft_fraction", self.prompts.sft_fraction, cloned)
        untold = "be false without model.path: the embedded model has no chat template"
        require(self.model.path != "" or not self.prompts.chat, "prompts.chat", self.prompts.chat, untold)
        size = self.rollout.batch_size
        for where, rows in (("grpo.group_size", self.grpo.group_size), ("heldout_eval.samples_per_prompt", self.heldout_eval.samples_per_prompt)):
            require(size >= rows, "rollout.batch_size", size, f"be at least {where} ({rows}): the completions of one prompt are decoded together")
        most, pairs = self.heldout_eval.max_prompts, self.blind_review_set
        for name, count in (("num_pairs", pairs.num_pairs), ("num_control_pairs", pairs.num_control_pairs)):
            require(count <= most, f"blind_review_set.{name}", count, f"be at most heldout_eval.max_prompts ({most}): a prompt gives one pair of a kind")


BUILT_IN_REWARDS = (
    "exact_answer",
    "number_answer",
    "answer_format",
    "math_answer",
    "reasoning_gym",
    "code_tests",
    "regex_format",
    "key_steps",
    "soft_overlong",
    "repetition_penalty",
    "boilerplate_penalty",
    "reward_model",
)
"""Names in grpo_core/rewards/registry.py, repeated here so that editing a reward does not make what never scores stale (a test compares)."""
SHARED_SECTIONS = ("model", "prompts", "sft")
"""Sections that every experiment shares: they make the one starting point, so an experiment cannot override them."""
SECTIONS = tuple(f.name for f in fields(RunConfig))
