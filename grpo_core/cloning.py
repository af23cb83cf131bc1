"""The behaviour-cloning term for sparse rewards: which demonstrations stand beside a rollout batch, and how their weight falls to zero.

Demonstrations are imitated, never scored: no rollout, group, baseline or KL knows of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from grpo_core.config import GrpoConfig
from grpo_core.demonstrations import Demonstration, encode_demonstrations
from grpo_core.models import LanguageModel
from grpo_core.randomness import epoch_indices, permutation, uniforms

SIGNAL_DECAY = 0.9
"""`signal`: how much of the mean share of groups with signal stays from rollout batch to rollout batch."""
NEGLIGIBLE = 0.05
"""`signal`: below this share of its start the weight is 0, and stays there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CloningState:
    """What the `signal` schedule remembers; a checkpoint stores it as it is."""

    signal: float = 0.0
    """Exponential mean of the share of groups that have signal or are solved."""
    share: float = 1.0
    """Of the first weight, what is left of it; it never rises."""


@dataclass(frozen=True, slots=True)
class CloningSource:
    """All demonstrations that a training may imitate; nothing while the term is off."""

    from_sft: Sequence[Demonstration] = ()
    """Of the `sft` split."""
    of_prompt: Mapping[str, Demonstration] = field(default_factory=dict)
    """Prompt id → its own demonstration, of the chosen train prompts."""


@dataclass(frozen=True, slots=True)
class Cloning:
    """The term of one optimizer step."""

    pairs: Sequence[Demonstration]
    weight: float

    @property
    def acts(self) -> bool:
        """Whether it has a gradient."""
        return self.weight > 0 and len(self.pairs) > 0


def cloning_source(language_model: LanguageModel, prompts: pl.DataFrame, settings: GrpoConfig) -> CloningSource:
    """The demonstrations that `settings` ask for, from the table of prompts. Raises ValueError when there are none, or when one does not fit the model."""
    known = prompts.filter(pl.col("completion").is_not_null()).sort("prompt_id")
    shown = known.filter(pl.col("split") == "sft").head(len(known) if settings.cloning_batch_size > 0 else 0)
    if settings.cloning_batch_size > 0 and shown.is_empty():
        raise ValueError(
            f"grpo.cloning_batch_size is {settings.cloning_batch_size}, but no prompt of the sft split has a completion: give demonstrations "
            "(prompts.completion_column, prompts.sft_fraction), or set grpo.cloning_batch_size to 0"
        )
    own = known.filter(pl.col("split") == "train")
    chosen = own.filter(pl.Series([is_demonstrated(prompt_id, settings) for prompt_id in own["prompt_id"]], dtype=pl.Boolean))
    if settings.demonstration_fraction > 0 and chosen.is_empty():
        raise ValueError(
            f"grpo.demonstration_fraction is {settings.demonstration_fraction:g}, which chooses none of the {len(own)} prompts of the train split that have "
            "a completion: give train prompts demonstrations (prompts.completion_column), raise the fraction, or set it to 0"
        )
    of_prompt = dict(zip(chosen["prompt_id"], encode_demonstrations(language_model, chosen), strict=True))
    return CloningSource(encode_demonstrations(language_model, shown), of_prompt)


def is_demonstrated(prompt_id: str, settings: GrpoConfig) -> bool:
    """Whether a train prompt's own demonstration joins: a function of seed and prompt; a larger fraction chooses the same ones and more."""
    return bool(uniforms(1, settings.seed, "demonstrated", prompt_id)[0] < settings.demonstration_fraction)


def weight_at(step: int, state: CloningState, settings: GrpoConfig) -> float:
    """Weight of the term at `step` (from 1): the whole at step 1; of `linear` and `cosine` exactly 0 after step `cloning_steps`."""
    if settings.cloning_schedule == "signal":
        return settings.cloning_weight * state.share
    if step > settings.cloning_steps:
        return 0.0
    progress = (step - 1) / settings.cloning_steps
    left = 1 - progress if settings.cloning_schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return settings.cloning_weight * left


def next_state(state: CloningState, signal: float, settings: GrpoConfig) -> CloningState:
    """The state after a rollout batch of which the share `signal` of groups had signal or was solved."""
    if settings.cloning_weight == 0 or settings.cloning_schedule != "signal":
        return state
    mean = SIGNAL_DECAY * state.signal + (1 - SIGNAL_DECAY) * signal
    share = min(state.share, 1 - mean)
    return CloningState(signal=mean, share=share if share >= NEGLIGIBLE else 0.0)


def demonstrations_of(source: CloningSource, prompt_ids: Sequence[str], step: int, settings: GrpoConfig) -> list[Demonstration]:
    """What is imitated beside rollout batch `step`: the next ones of the `sft` split, each once an epoch, and those of the batch's own prompts."""
    size = settings.cloning_batch_size
    next_ones = epoch_indices(len(source.from_sft), (step - 1) * size, size, (settings.seed, "cloning"))
    return [source.from_sft[i] for i in next_ones] + [source.of_prompt[name] for name in prompt_ids if name in source.of_prompt]


def divided(pairs: Sequence[Demonstration], step: int, update: int, settings: GrpoConfig) -> list[list[Demonstration]]:
    """The demonstrations of each optimizer step of a pass over the batch: shuffled by seed, their numbers as equal as can be."""
    order = permutation(len(pairs), settings.seed, "cloning order", step, update)
    return [[pairs[i] for i in order[first :: settings.minibatches_per_rollout]] for first in range(settings.minibatches_per_rollout)]
