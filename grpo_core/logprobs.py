"""Log-probabilities of tokens under the distribution that is sampled: the tempered softmax of the model's logits."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.token_batch import TokenBatch


def tempered_logprobs(logits: Float[Tensor, "*rows V"], temperature: float) -> Float[Tensor, "*rows V"]:
    """`log_softmax(logits / temperature)`, in float32 at least."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(wide / temperature, dim=-1)


def pick(logprobs: Float[Tensor, "*rows V"], tokens: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """The entry of each row that its token names."""
    return logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def entropy(logprobs: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows"]:
    """Nats of uncertainty in each distribution; a token of probability 0 adds nothing."""
    return -(logprobs.exp() * logprobs.clamp(min=torch.finfo(logprobs.dtype).min)).sum(dim=-1)


def completion_distributions(model: PreTrainedModel, batch: TokenBatch, temperature: float) -> Float[Tensor, "B T V"]:
    """Log-probability of every token of the vocabulary at every completion position (without meaning where `batch.mask` is False).

    The vocabulary head runs only where a completion token is predicted.
    """
    width = batch.tokens.shape[1]
    output = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids, use_cache=False, logits_to_keep=width + 1)
    return tempered_logprobs(output.logits[:, :-1], temperature)


def completion_logprobs(model: PreTrainedModel, batch: TokenBatch, temperature: float) -> Float[Tensor, "B T"]:
    """Log-probability of the batch's own tokens at every completion position."""
    return pick(completion_distributions(model, batch, temperature), batch.tokens)
