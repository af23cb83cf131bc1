"""What the numbers of a configuration multiply to, and which of them will not do what they say. Plain arithmetic, no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from grpo_core.config import RunConfig, largest_advantage


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The derived facts of one experiment. Counts of tokens are upper bounds: every completion as long as rollout.max_new_tokens."""

    splits: Mapping[str, int]
    """Split → its prompts; empty as long as nobody knows."""
    exact: bool
    """The splits were counted; otherwise they are the shares of prompts.num_generated, true to some per cent."""
    prompts_per_step: int
    completions_per_step: int
    completions_per_minibatch: int
    optimizer_steps_per_rollout: int
    steps: int
    optimizer_steps: int
    completions: int
    prompts_drawn: int
    demonstrations: int
    """Rows that supervised fine-tuning reads, repeats counted."""
    demonstrations_per_step: float
    """Imitated beside a rollout batch while the cloning term has weight; those of its own prompts on average."""
    cloning_steps: int
    """Steps that imitate, at most."""
    evaluations: int
    """On the `select` split, the one before training included."""
    training_tokens: int
    select_tokens: int
    heldout_tokens: int
    warnings: tuple[str, ...]

    @property
    def epochs(self) -> float | None:
        """Passes of GRPO over the train split."""
        return self.prompts_drawn / self.splits["train"] if self.splits.get("train") else None

    @property
    def sft_epochs(self) -> float | None:
        """Passes of supervised fine-tuning over the sft split."""
        return self.demonstrations / self.splits["sft"] if self.splits.get("sft") else None

    @property
    def never_seen(self) -> int:
        """Prompts of the train split that no step draws."""
        return max(0, self.splits.get("train", 0) - self.prompts_drawn)


def plan(config: RunConfig, counted: Mapping[str, int] | None = None) -> Plan:
    """The derived facts of `config`; `counted` are the prompts of every split, where the table has been made."""
    grpo, heldout, longest = config.grpo, config.heldout_eval, config.rollout.max_new_tokens
    splits = expected_splits(config) if counted is None else counted
    completions = grpo.prompts_per_step * grpo.group_size
    a_rollout = grpo.updates_per_rollout * grpo.minibatches_per_rollout
    evaluations = 1 + grpo.steps // grpo.eval_every if grpo.eval_every else 0
    selected = min(grpo.select_max_prompts, splits.get("select", grpo.select_max_prompts))
    asked = min(heldout.max_prompts, splits.get("heldout", heldout.max_prompts))
    return Plan(
        splits=splits,
        exact=counted is not None,
        prompts_per_step=grpo.prompts_per_step,
        completions_per_step=completions,
        completions_per_minibatch=completions // grpo.minibatches_per_rollout,
        optimizer_steps_per_rollout=a_rollout,
        steps=grpo.steps,
        optimizer_steps=grpo.steps * a_rollout,
        completions=grpo.steps * completions,
        prompts_drawn=grpo.steps * grpo.prompts_per_step,
        demonstrations=config.sft.steps * config.sft.batch_size,
        demonstrations_per_step=grpo.demonstrations_per_step,
        cloning_steps=grpo.cloning_steps_at_most,
        evaluations=evaluations,
        training_tokens=grpo.steps * completions * longest,
        select_tokens=evaluations * selected * longest,
        heldout_tokens=2 * asked * (1 + heldout.samples_per_prompt) * longest,
        warnings=(*_about_prompts(config, splits), *_about_steps(config), *_about_signal(config)),
    )


def expected_splits(config: RunConfig) -> dict[str, int]:
    """Prompts a split of the embedded task before they are made: its shares, which the hash keeps to some per cent. Of a file nothing is known."""
    prompts = config.prompts
    if prompts.path:
        return {}
    shares = {"sft": prompts.sft_fraction, "select": prompts.select_fraction, "heldout": prompts.heldout_fraction}
    counts = {name: round(share * prompts.num_generated) for name, share in shares.items()}
    return {**counts, "train": prompts.num_generated - sum(counts.values())}


def _about_prompts(config: RunConfig, splits: Mapping[str, int]) -> Iterator[str]:
    """Prompts that are missing, or that nobody will see."""
    grpo, sft, heldout, pairs = config.grpo, config.sft, config.heldout_eval, config.blind_review_set
    train, drawn = splits.get("train"), grpo.steps * grpo.prompts_per_step
    if train is not None and train < grpo.prompts_per_step:
        yield f"the train split has {train:,} prompts, fewer than grpo.prompts_per_step ({grpo.prompts_per_step}): training will refuse"
    elif train is not None and drawn < train:
        every = -(-train // grpo.prompts_per_step)
        yield f"{train - drawn:,} of {train:,} train prompts would never be seen: grpo.steps {every} (or more prompts a step) would see each once"
    taught, shown = splits.get("sft"), max(sft.steps * sft.batch_size, grpo.cloning_steps_at_most * grpo.cloning_batch_size)
    if taught == 0 and grpo.cloning_batch_size:
        yield f"the sft split is empty, and grpo.cloning_batch_size is {grpo.cloning_batch_size}: training will refuse"
    if taught and shown == 0:
        yield f"{taught:,} prompts of the sft split would never be seen: sft.steps is 0; prompts.sft_fraction 0 gives them to train"
    elif taught and shown < taught:
        every = -(-taught // sft.batch_size)
        yield f"{taught - shown:,} of {taught:,} demonstrations would never be seen: sft.steps {every} would see each once"
    if "heldout" in splits and splits["heldout"] < heldout.max_prompts:
        yield f"heldout_eval.max_prompts is {heldout.max_prompts}, but only {splits['heldout']:,} prompts are held out: all of them are asked"
    if "heldout" in splits and splits["heldout"] < pairs.num_pairs:
        yield f"blind_review_set.num_pairs is {pairs.num_pairs}, but only {splits['heldout']:,} prompts are held out: there will be fewer pairs"
    if grpo.eval_every and grpo.select_metric != heldout.metric:
        yield f"grpo.select_metric ({grpo.select_metric}) is not heldout_eval.metric ({heldout.metric}): the curve is not of what the evidence counts"


def _about_steps(config: RunConfig) -> Iterator[str]:
    """Schedules that end after the run does."""
    grpo, sft = config.grpo, config.sft
    if grpo.warmup_steps > grpo.steps:
        yield f"grpo.warmup_steps ({grpo.warmup_steps}) is more than grpo.steps ({grpo.steps}): the learning rate never reaches grpo.learning_rate"
    if sft.steps and sft.warmup_steps > sft.steps:
        yield f"sft.warmup_steps ({sft.warmup_steps}) is more than sft.steps ({sft.steps}): the learning rate never reaches sft.learning_rate"
    if grpo.eval_every > grpo.steps:
        yield f"grpo.eval_every ({grpo.eval_every}) is more than grpo.steps ({grpo.steps}): the select split is asked before training only"
    if grpo.checkpoint_every > grpo.steps:
        yield f"grpo.checkpoint_every ({grpo.checkpoint_every}) is more than grpo.steps ({grpo.steps}): a training that is killed starts over"
    if grpo.advantage_clip_steps > grpo.steps:
        yield (
            f"grpo.advantage_clip_steps ({grpo.advantage_clip_steps}) is more than grpo.steps ({grpo.steps}): the clip never reaches "
            f"grpo.advantage_clip ({grpo.advantage_clip:g})"
        )
    if grpo.cloning_steps > grpo.steps:
        yield f"grpo.cloning_steps ({grpo.cloning_steps}) is more than grpo.steps ({grpo.steps}): the weight of demonstrations never reaches 0"
    first = {"fixed": 0, "threshold": 3, "pid": 2}[grpo.kl_control]
    if grpo.steps < first:
        yield (
            f"grpo.kl_control {grpo.kl_control} moves beta from step {first} on (KL is 0 at step 1), and grpo.steps is {grpo.steps}: "
            "beta stays where it starts; set grpo.kl_control to fixed or train longer"
        )
    elif grpo.kl_control == "threshold" and grpo.kl_patience + 2 >= grpo.steps:
        yield f"grpo.kl_patience ({grpo.kl_patience}) leaves no step of {grpo.steps} in which beta could fall: it can only rise"


def _about_signal(config: RunConfig) -> Iterator[str]:
    """Numbers that cannot act, or not as one would think."""
    grpo, longest = config.grpo, config.rollout.max_new_tokens
    if grpo.scales_by_std:
        largest = largest_advantage(grpo.group_size)
        if grpo.advantage_clip_steps == 0 and grpo.length_penalty == 0 and grpo.advantage_clip >= largest:
            yield (
                f"grpo.advantage_clip ({grpo.advantage_clip:g}) never cuts: with grpo.group_size {grpo.group_size} no advantage exceeds {largest:.3g}; "
                "a clip acts below that"
            )
        if grpo.group_size == 2:
            yield "grpo.group_size 2 with advantages divided by the deviation makes each ±0.71: how much better is lost; advantage_scale none keeps it"
    if grpo.length_target > longest:
        yield f"grpo.length_target ({grpo.length_target}) is more than rollout.max_new_tokens ({longest}): no completion is as long, so longer always pays"
    if grpo.select_metric not in config.rewards:
        seldom = "only every grpo.eval_every steps" if grpo.eval_every else "nowhere"
        yield (
            f"grpo.select_metric ({grpo.select_metric}) is none of the rewards: the health monitor counts right answers {seldom}; "
            f"rewards.{grpo.select_metric} 0 counts them at every step and pays nothing"
        )
    if grpo.beta > 0 and grpo.kl_estimator == "k1":
        yield "grpo.kl_estimator k1 has no gradient in expectation: as a loss it is noise and holds nothing back; k2 and k3 do"
