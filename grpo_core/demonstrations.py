"""Demonstrations as tokens, and the gradient of imitating them: next-token cross-entropy on the completion, never on the prompt."""

from collections.abc import Sequence

import polars as pl
from transformers import PreTrainedModel

from grpo_core.logprobs import completion_logprobs
from grpo_core.models import LanguageModel
from grpo_core.token_batch import token_batch
from grpo_core.tokenization import encode_completion, encode_prompt

Demonstration = tuple[list[int], list[int]]
"""Prompt ids, and the ids of the completion to imitate, its EOS included."""


def encode_demonstrations(language_model: LanguageModel, rows: pl.DataFrame) -> list[Demonstration]:
    """Every row of the prompts table, which must all have a completion, as tokens. Raises ValueError, naming it, when one does not fit into the model."""
    tokenizer = language_model.tokenizer
    pairs = [
        (encode_prompt(tokenizer, prompt, messages), encode_completion(tokenizer, completion))
        for prompt, messages, completion in zip(rows["prompt"], rows["messages"].to_list(), rows["completion"], strict=True)
    ]
    limit = getattr(language_model.model.config, "max_position_embeddings", None)
    lengths = [len(prompt) + len(completion) for prompt, completion in pairs]
    if limit is not None and max(lengths, default=0) > limit:
        longest = lengths.index(max(lengths))
        raise ValueError(
            f"prompt {rows['prompt_id'][longest]} and its completion have {lengths[longest]} tokens, the model takes {limit}: shorten it or leave it out"
        )
    return pairs


def accumulate_imitation(model: PreTrainedModel, pairs: Sequence[Demonstration], micro_batch_size: int, *, weight: float = 1.0) -> float:
    """Add `weight` times the gradient of the mean token loss over `pairs` to the model's, at temperature 1; returns that loss, in nats, unweighted."""
    tokens = sum(len(completion) for _, completion in pairs)
    total = 0.0
    for start in range(0, len(pairs), micro_batch_size):
        prompts, completions = zip(*pairs[start : start + micro_batch_size], strict=True)
        batch = token_batch(prompts, completions, model.device)
        loss = -completion_logprobs(model, batch, 1.0).masked_fill(~batch.mask, 0.0).sum() / tokens
        (weight * loss).backward()
        total += float(loss.detach())
    return total
