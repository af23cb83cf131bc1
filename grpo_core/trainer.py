"""One pass of the algorithm: sample groups, score them, compare within groups, ask the reference, update the policy.

`train_step` is the body of the loop, top to bottom as in the paper; loop.py repeats it and keeps what it returns. What follows
sampling is `learn`: replay.py calls it with a batch from the ledger.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.cloning import Cloning, CloningSource, CloningState, cloning_source, demonstrations_of, divided, next_state, weight_at
from grpo_core.config import HeldoutEvalConfig, RunConfig
from grpo_core.errors import DivergedError
from grpo_core.evaluation import evaluate, evaluation_prompts
from grpo_core.kl_control import KlController, next_controller
from grpo_core.ledger import reward_rows, rollout_rows
from grpo_core.logprobs import completion_logprobs
from grpo_core.loss import LossConfig, loss_config
from grpo_core.models import LanguageModel, freeze, load_model, policy_digest
from grpo_core.randomness import epoch_indices, permutation
from grpo_core.rewards.registry import code_hash, full_marks, reward_range
from grpo_core.rollout import RolloutBatch, draw, score_batch
from grpo_core.signal import Signal, compare_within_groups
from grpo_core.step import Minibatch, StepStatistics, optimizer_step
from grpo_core.step_metrics import (
    accuracy_metrics,
    advantage_metrics,
    cloning_metrics,
    completion_metrics,
    diversity_metrics,
    kl_metrics,
    reward_metrics,
    sampler_metrics,
    solved_groups,
    update_metrics,
)
from grpo_core.token_batch import padded, token_batch
from grpo_core.tokenization import check_same_tokenizer, encode_prompt

START_TOLERANCE = {"float32": 1e-5, "bfloat16": 0.1}
"""How far sampler and reference may differ (mean nats a token) while they hold the same weights: rounding of two batch shapes, no more."""


@dataclass(slots=True)
class Trainer:
    """Everything a step works on; `policy`, `optimizer`, `controller`, `cloning` and `max_grad_norm` move, the rest stays."""

    config: RunConfig
    policy: LanguageModel
    reference: LanguageModel
    optimizer: torch.optim.Optimizer
    loss: LossConfig
    train_prompts: pl.DataFrame
    select_prompts: pl.DataFrame
    controller: KlController
    demonstrations: CloningSource
    cloning: CloningState
    max_grad_norm: float
    reward_code_hash: str
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock of this step's phases."""

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started

    @property
    def state(self) -> dict[str, Any]:
        """What moves beside weights and optimizer, in JSON's types: a checkpoint holds it."""
        return {**asdict(self.controller), "cloning": asdict(self.cloning), "max_grad_norm": self.max_grad_norm}

    def take_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's `state`; what it does not have stays as it is at the start."""
        self.controller = replace(self.controller, **{name: value for name, value in state.items() if name not in ("cloning", "max_grad_norm")})
        self.max_grad_norm = state.get("max_grad_norm", self.max_grad_norm)
        self.cloning = replace(self.cloning, **state.get("cloning", {}))


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one rollout batch leaves behind."""

    metrics: dict[str, float]
    """Deterministic figures, by metric name."""
    rollouts: pl.DataFrame
    rewards: pl.DataFrame


def start_trainer(prompts: Path, start: Path, reference: Path, config: RunConfig) -> Trainer:
    """Models, optimizer and prompts before the first step. Policy and reference must be one model: same weights, same tokenizer."""
    settings = config.grpo
    policy, frozen = load_model(start, config.model), freeze(load_model(reference, config.model))
    check_same_tokenizer(policy.tokenizer, frozen.tokenizer)
    if policy_digest(policy.model) != policy_digest(frozen.model):
        raise ValueError(f"the weights of the reference {reference} are not those of the policy's start {start}: make reference_checkpoint again")
    table = pl.read_parquet(prompts)
    train_prompts = table.filter(pl.col("split") == "train").sort("prompt_id")
    if len(train_prompts) < settings.prompts_per_step:
        raise ValueError(
            f"the train split has {len(train_prompts)} prompts, fewer than grpo.prompts_per_step ({settings.prompts_per_step}): "
            "add prompts, lower grpo.prompts_per_step or lower prompts.sft_fraction"
        )
    check_context(policy, table.filter(pl.col("split") != "sft"), config.rollout.max_new_tokens)
    policy.model.train()
    return Trainer(
        config=config,
        policy=policy,
        reference=frozen,
        optimizer=torch.optim.AdamW(
            policy.model.parameters(), lr=settings.learning_rate, betas=(settings.adam_beta1, settings.adam_beta2), weight_decay=settings.weight_decay
        ),
        loss=loss_config(settings, config.rollout.max_new_tokens),
        train_prompts=train_prompts,
        select_prompts=evaluation_prompts(table, "select", config.grpo.select_max_prompts),
        controller=KlController(beta=settings.beta),
        demonstrations=cloning_source(policy, table, settings),
        cloning=CloningState(),
        max_grad_norm=settings.max_grad_norm,
        reward_code_hash=code_hash(list(config.rewards)),
    )


def check_context(policy: LanguageModel, prompts: pl.DataFrame, max_new_tokens: int) -> None:
    """Raise ValueError, naming the longest prompt, unless it and the longest completion fit into the model together."""
    context = getattr(policy.model.config, "max_position_embeddings", None)
    if context is None:
        return
    lengths = [len(encode_prompt(policy.tokenizer, p, m)) for p, m in zip(prompts["prompt"], prompts["messages"].to_list(), strict=True)]
    longest = max(lengths)
    if longest + max_new_tokens > context:
        raise ValueError(
            f"prompt {prompts['prompt_id'][lengths.index(longest)]} has {longest} tokens; with rollout.max_new_tokens ({max_new_tokens}) that is more than "
            f"the {context} the model takes: lower rollout.max_new_tokens, or lower prompts.max_tokens and remove the longest prompts"
        )


def train_step(trainer: Trainer, step: int) -> StepResult:
    """Rollout batch number `step` (from 1): draw it, learn from it, report. The policy and the KL controller move."""
    trainer.seconds.clear()
    with trainer.timed("sample"):
        batch = draw_batch(trainer, step)
    try:
        return learn(trainer, batch, step)
    except DivergedError as error:
        error.rollouts = rollout_rows(batch)
        raise


def learn(trainer: Trainer, batch: RolloutBatch, step: int) -> StepResult:
    """Score the rollout batch, compare within its groups, update the policy, let the KL controller follow: a function of its arguments."""
    check_finite(batch)
    with trainer.timed("score"):
        scores = score_batch(batch, trainer.config)
    signal = compare_within_groups(batch, scores, step, trainer.config, scale_by_std=trainer.loss.scale_by_std)
    with trainer.timed("reference"):
        kept = keep_logprobs(trainer, batch, signal)
    if step == 1:
        check_start(kept, trainer.config.model.dtype)
    beta = trainer.controller.beta
    cloning = cloning_term(trainer, batch, step)
    with trainer.timed("update"):
        updates = update_policy(trainer, trainable(trainer, kept, batch, signal), step, cloning)
    rewards, metric = trainer.config.rewards, trainer.config.grpo.select_metric
    solved = solved_groups(scores, signal, full_marks(rewards), metric)
    metrics = {
        **reward_metrics(scores, signal, solved, reward_range(rewards)),
        **advantage_metrics(signal),
        **completion_metrics(batch),
        **diversity_metrics(batch, solved),
        **accuracy_metrics(batch, scores, metric),
        **kl_metrics(kept),
        **sampler_metrics(batch, kept, updates, are_samplers=trainer.config.model.dtype == "float32"),
        **update_metrics(updates),
        **(cloning_metrics(cloning, updates) if trainer.config.grpo.cloning_weight > 0 else {}),
        "beta": beta,
        "max_grad_norm": trainer.max_grad_norm,
        "learning_rate": learning_rate_at(step, trainer.config),
    }
    move_controller(trainer, metrics)
    trainer.cloning = next_state(trainer.cloning, 1 - metrics["zero_variance_fraction"] + metrics["solved_group_fraction"], trainer.config.grpo)
    rollouts = rollout_rows(batch)
    return StepResult(metrics, rollouts, reward_rows(rollouts, scores, signal, trainer.reward_code_hash))


def draw_batch(trainer: Trainer, step: int) -> RolloutBatch:
    """The step's prompts and G completions of each."""
    settings, rollout = trainer.config.grpo, trainer.config.rollout
    return draw(
        trainer.policy,
        prompts_of(trainer, step),
        step=step,
        group_size=settings.group_size,
        temperature=rollout.temperature,
        max_new_tokens=rollout.max_new_tokens,
        batch_size=rollout.batch_size,
        stream=(settings.seed, "rollout"),
        digest=policy_digest(trainer.policy.model),
    )


def prompts_of(trainer: Trainer, step: int) -> pl.DataFrame:
    """The step's prompts: each epoch goes through all of them once, in a new order."""
    settings = trainer.config.grpo
    chosen = epoch_indices(len(trainer.train_prompts), (step - 1) * settings.prompts_per_step, settings.prompts_per_step, (settings.seed, "prompts"))
    return trainer.train_prompts[chosen]


@torch.no_grad()
def keep_logprobs(trainer: Trainer, batch: RolloutBatch, signal: Signal) -> Minibatch:
    """The whole rollout batch as one rectangle, every completion token in its mask, with old and reference logprobs.

    The local sampler in float32 *is* the policy before the first update: its logprobs are the old ones, no second forward. In
    bfloat16 decoding one token rounds otherwise than scoring a row, so much that ratios would start outside the clip: then the
    trainer works the old logprobs out itself. The reference is asked only while beta is above 0.
    """
    device = trainer.policy.model.device
    tokens = token_batch(batch.per_completion(batch.prompt_token_ids), [c.token_ids for c in batch.completions], device)
    old = padded([c.logprobs for c in batch.completions], tokens.tokens.shape[1], torch.float32, device)
    kept = Minibatch(tokens, old, None, signal.clipped.flatten().to(device))

    def scored_by(model: PreTrainedModel) -> Tensor:
        temperature, size = trainer.config.rollout.temperature, trainer.config.grpo.micro_batch_size
        return torch.cat([completion_logprobs(model, micro.batch, temperature) for micro in kept.split(size)])

    if trainer.config.model.dtype != "float32":
        kept = replace(kept, old_logprobs=scored_by(trainer.policy.model))
    return replace(kept, ref_logprobs=scored_by(trainer.reference.model)) if trainer.controller.beta > 0 else kept


def check_finite(batch: RolloutBatch) -> None:
    """Raises DivergedError, naming the first one, when the sampler gave a token a logprob that is not finite."""
    for name, completion in zip(batch.row_names(), batch.completions, strict=True):
        if not all(map(math.isfinite, completion.logprobs)):
            place = next(i for i, value in enumerate(completion.logprobs) if not math.isfinite(value))
            raise DivergedError(f"the policy's logprob of token {place} is {completion.logprobs[place]} for {name}: its weights or its code give such logits")


def check_start(kept: Minibatch, dtype: str) -> None:
    """Before the first update KL is 0: the sampler drew from the very weights that the reference holds. Raises DivergedError if not."""
    if kept.ref_logprobs is None:
        return
    gap = float((kept.old_logprobs - kept.ref_logprobs).abs().masked_fill(~kept.batch.mask, 0.0).sum() / kept.batch.mask.sum())
    if gap > START_TOLERANCE[dtype]:
        raise DivergedError(
            f"at step 1 sampler and reference differ by {gap:.3g} nats a token on average, {START_TOLERANCE[dtype]:g} is rounding in {dtype}: "
            "they do not hold the same weights, tokens, temperature or positions",
            condition="reference_misaligned",
        )


def trainable(trainer: Trainer, kept: Minibatch, batch: RolloutBatch, signal: Signal) -> Minibatch:
    """The batch with a mask without completions that are not learned from: unscored ones, and truncated ones when so configured."""
    learned = signal.scored.flatten()
    if trainer.config.grpo.mask_truncated:
        learned = learned & torch.tensor([c.finish_reason == "eos" for c in batch.completions])
    mask = kept.batch.mask & learned.to(kept.batch.mask.device).unsqueeze(1)
    return replace(kept, batch=replace(kept.batch, mask=mask))


def cloning_term(trainer: Trainer, batch: RolloutBatch, step: int) -> Cloning:
    """The demonstrations that stand beside the rollout batch, and their weight; none of them once it is 0."""
    weight = weight_at(step, trainer.cloning, trainer.config.grpo)
    pairs = demonstrations_of(trainer.demonstrations, batch.prompts["prompt_id"].to_list(), step, trainer.config.grpo) if weight > 0 else []
    return Cloning(pairs, weight)


def update_policy(trainer: Trainer, learned: Minibatch, step: int, cloning: Cloning) -> list[StepStatistics]:
    """`updates_per_rollout` passes of `minibatches_per_rollout` optimizer steps; groups, and demonstrations, are shuffled into them whole, by seed."""
    settings = trainer.config.grpo
    for group in trainer.optimizer.param_groups:
        group["lr"] = learning_rate_at(step, trainer.config)
    groups = torch.arange(len(learned.advantages), device=learned.advantages.device).view(-1, settings.group_size)
    statistics = []
    for update in range(settings.updates_per_rollout):
        order = permutation(len(groups), settings.seed, "minibatches", step, update)
        parts = divided(cloning.pairs, step, update, settings)
        for chosen, pairs in zip(groups[order].chunk(settings.minibatches_per_rollout), parts, strict=True):
            statistics.append(
                optimizer_step(
                    trainer.policy.model,
                    trainer.optimizer,
                    learned.rows(chosen.flatten()),
                    trainer.loss,
                    beta=trainer.controller.beta,
                    temperature=trainer.config.rollout.temperature,
                    micro_batch_size=settings.micro_batch_size,
                    max_grad_norm=trainer.max_grad_norm,
                    cloning=replace(cloning, pairs=pairs),
                )
            )
    return statistics


def learning_rate_at(step: int, config: RunConfig) -> float:
    """Linear warm-up over `warmup_steps` rollout batches, constant after."""
    return config.grpo.learning_rate * min(1.0, step / max(config.grpo.warmup_steps, 1))


def move_controller(trainer: Trainer, metrics: dict[str, float]) -> None:
    """Let beta follow the KL of this rollout batch, for the next one."""
    statistic = {"token_mean": "kl/mean", "sequence_sum": "kl/sequence"}[trainer.config.grpo.kl_statistic]
    if statistic in metrics:
        trainer.controller = next_controller(trainer.controller, metrics[statistic], trainer.config.grpo)


def evaluate_select(trainer: Trainer, step: int) -> pl.DataFrame | None:
    """What the policy after `step` answers the `select` prompts, greedily, one row each; None where there are no such prompts."""
    if trainer.select_prompts.is_empty():
        return None
    config = trainer.config
    with trainer.timed("evaluate"):
        return evaluate(
            trainer.policy,
            trainer.select_prompts,
            name="policy",
            step=step,
            samples=0,
            settings=HeldoutEvalConfig(metric=config.grpo.select_metric),
            config=config,
        )
