"""One optimizer step: score a minibatch with today's policy, add up the micro-batches' losses, clip the gradient, move the weights."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.aggregation import count_totals
from grpo_core.cloning import Cloning
from grpo_core.demonstrations import accumulate_imitation
from grpo_core.errors import DivergedError
from grpo_core.logprobs import completion_distributions, entropy, pick
from grpo_core.loss import LossConfig, policy_loss
from grpo_core.token_batch import TokenBatch


@dataclass(frozen=True, slots=True)
class Minibatch:
    """What one optimizer step learns from; B rows."""

    batch: TokenBatch
    """Its mask is True on the tokens to be trained."""
    old_logprobs: Float[Tensor, "B T"]
    ref_logprobs: Float[Tensor, "B T"] | None
    """None when beta is 0."""
    advantages: Float[Tensor, " B"]

    def rows(self, index: Tensor) -> "Minibatch":
        """These rows only."""
        batch = TokenBatch(*(getattr(self.batch, f.name)[index] for f in fields(TokenBatch)))
        ref = None if self.ref_logprobs is None else self.ref_logprobs[index]
        return Minibatch(batch, self.old_logprobs[index], ref, self.advantages[index])

    def split(self, size: int) -> Iterator["Minibatch"]:
        """Micro-batches of at most `size` rows."""
        for index in torch.arange(len(self.advantages), device=self.advantages.device).split(size):
            yield self.rows(index)


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """What one optimizer step saw, before it moved the weights."""

    loss: float
    policy_loss: float
    kl_loss: float
    """The KL term before beta."""
    grad_norm: float
    """Before clipping."""
    entropy: float
    """Mean nats a trained token."""
    clip_fraction: float
    """Share of trained tokens whose gradient the clip removed."""
    max_ratio: float
    logprob_gap: float
    """Largest |logprobs - old_logprobs| of a trained token: on the first minibatch, how near sampler and trainer are."""
    mean_gap: float
    """Their mean."""
    policy_kl: float
    """How far the policy has moved since it drew the batch: mean k3 of a trained token, in nats."""
    effective_sample_fraction: float
    """Share of the trained tokens that their ratios are worth: (Σ ratio)² / (tokens · Σ ratio²), 1 where all ratios are alike."""
    cloning_loss: float | None = None
    """Mean nats a token of the demonstrations, before their weight; None where none was imitated."""


NO_CLONING = Cloning((), 0.0)


def accumulate_gradient(
    model: PreTrainedModel, minibatch: Minibatch, config: LossConfig, *, beta: float, temperature: float, micro_batch_size: int, cloning: Cloning = NO_CLONING
) -> dict[str, float]:
    """Add the gradient of the minibatch's loss to the model's; sums over it, by name. The denominators are the minibatch's own.

    To the policy's loss comes `cloning`: its weight times the mean nats a token of its demonstrations, a mean of their own.
    """
    totals = count_totals(minibatch.batch.mask, config.length)
    sums = dict.fromkeys(("loss", "policy_loss", "kl_loss", "entropy", "clip_fraction", "max_ratio", "logprob_gap", "mean_gap", "policy_kl"), 0.0)
    ratio_sum, ratio_squares = 0.0, 0.0
    for micro in minibatch.split(micro_batch_size):
        distributions = completion_distributions(model, micro.batch, temperature)
        logprobs, mask = pick(distributions, micro.batch.tokens), micro.batch.mask
        terms = policy_loss(logprobs, micro.old_logprobs, micro.ref_logprobs, micro.advantages.to(logprobs.dtype), mask, totals, config, beta)
        terms.loss.backward()
        gaps = (logprobs.detach() - micro.old_logprobs).abs().masked_fill(~mask, 0.0)
        sums["loss"] += float(terms.loss.detach())
        sums["policy_loss"] += float(terms.policy)
        sums["kl_loss"] += float(terms.kl)
        sums["entropy"] += float(entropy(distributions.detach()).masked_fill(~mask, 0.0).sum()) / totals.tokens
        sums["clip_fraction"] += float(terms.clipped_tokens) / totals.tokens
        sums["max_ratio"] = max(sums["max_ratio"], float(terms.max_ratio))
        sums["logprob_gap"] = max(sums["logprob_gap"], float(gaps.max()))
        sums["mean_gap"] += float(gaps.sum()) / totals.tokens
        sums["policy_kl"] += float(terms.policy_kl) / totals.tokens
        ratio_sum, ratio_squares = ratio_sum + float(terms.ratio_sum), ratio_squares + float(terms.ratio_squares)
    sums["effective_sample_fraction"] = ratio_sum * ratio_sum / (totals.tokens * ratio_squares) if ratio_squares > 0 else 1.0
    if cloning.acts:
        sums["cloning_loss"] = accumulate_imitation(model, cloning.pairs, micro_batch_size, weight=cloning.weight)
        sums["loss"] += cloning.weight * sums["cloning_loss"]
    return sums


def optimizer_step(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    minibatch: Minibatch,
    config: LossConfig,
    *,
    beta: float,
    temperature: float,
    micro_batch_size: int,
    max_grad_norm: float,
    cloning: Cloning = NO_CLONING,
) -> StepStatistics:
    """Move the weights once. Without a trained token, or with beta 0 and no advantage on one, only `cloning` moves them; else nor do Adam's moments.

    Raises DivergedError, with the weights untouched, when the loss, the gradient or a trained token's ratio is not finite.
    """
    optimizer.zero_grad(set_to_none=True)
    sums = accumulate_gradient(model, minibatch, config, beta=beta, temperature=temperature, micro_batch_size=micro_batch_size, cloning=cloning)
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm))
    if not all(map(math.isfinite, (*sums.values(), norm))):
        cloned = f" (of demonstrations {sums['cloning_loss']}, times {cloning.weight:g})" if cloning.acts else ""
        remedy = "lower grpo.learning_rate or raise grpo.beta" + (", or lower grpo.cloning_weight" if cloning.acts else "")
        raise DivergedError(f"loss {sums['loss']}{cloned} and gradient norm {norm}: stopped before the weights; {remedy}")
    trained = minibatch.batch.mask.any(dim=1)
    if cloning.acts or bool((trained & ((minibatch.advantages != 0) | (beta > 0))).any()):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepStatistics(grad_norm=norm, **sums)
