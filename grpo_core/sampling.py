"""Draw completions from a policy: each prompt prefilled once for its whole group, finished rows dropped, logprobs kept as tokens are drawn.

Token t of a completion is the inverse of the cumulative distribution at a uniform number of its own, so a completion does not
depend on which others are decoded beside it (but for rounding in the matrix products, which batch shape may change).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import Cache, PreTrainedModel

from grpo_core.logprobs import pick, tempered_logprobs

COMPACT_BELOW = 0.75
"""Finished rows leave the batch once fewer than this share is alive: copying the cache costs as much as a few wasted rows."""


@dataclass(slots=True)
class Completion:
    """One completion as it was drawn."""

    token_ids: list[int] = field(default_factory=list)
    """Up to and including the first EOS."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each token under the tempered distribution that it was drawn from (0 temperature: untempered)."""
    finish_reason: str = "length"
    """`eos`, or `length` when max_new_tokens cut it (truncated)."""


def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    group_size: int,
    max_new_tokens: int,
    temperature: float,
    eos_ids: frozenset[int],
    uniforms: Callable[[int, int], np.ndarray],
    batch_size: int,
    on_batch: Callable[[int], None] = lambda completions: None,
) -> list[list[Completion]]:
    """For every prompt its `group_size` completions.

    `uniforms(p, g)` gives the max_new_tokens numbers in [0, 1) of prompt p's completion g. A `temperature` of 0 is greedy and draws
    none. At most `batch_size` completions (at least one group) are decoded side by side; `on_batch` hears how many were done.
    """
    groups: list[list[Completion]] = [[] for _ in prompts]
    by_length = sorted(range(len(prompts)), key=lambda p: (len(prompts[p]), p))
    size = max(1, batch_size // group_size)
    for start in range(0, len(by_length), size):
        chosen = by_length[start : start + size]
        drawn = _decode(
            [prompts[p] for p in chosen], model, group_size, max_new_tokens, temperature, eos_ids, _numbers(chosen, group_size, temperature, uniforms)
        )
        for row, p in enumerate(chosen):
            groups[p] = drawn[row * group_size : (row + 1) * group_size]
        on_batch(len(drawn))
    return groups


def _numbers(chosen: list[int], group_size: int, temperature: float, uniforms: Callable[[int, int], np.ndarray]) -> Float[Tensor, "B N"] | None:
    if temperature == 0:
        return None
    return torch.from_numpy(np.stack([uniforms(p, g) for p in chosen for g in range(group_size)]))


@torch.inference_mode()
def _decode(
    prompts: list[Sequence[int]],
    model: PreTrainedModel,
    group_size: int,
    max_new_tokens: int,
    temperature: float,
    eos_ids: frozenset[int],
    numbers: Float[Tensor, "B N"] | None,
) -> list[Completion]:
    done = [Completion() for _ in range(len(prompts) * group_size)]
    eos = torch.tensor(sorted(eos_ids), device=model.device)
    numbers = None if numbers is None else numbers.to(model.device)
    logits, cache, attention, positions = _prefill(model, prompts, group_size)
    rows = torch.arange(len(done), device=model.device)
    alive = torch.ones_like(rows, dtype=torch.bool)
    for t in range(max_new_tokens):
        logprobs = tempered_logprobs(logits, temperature or 1.0)
        tokens = logprobs.argmax(dim=-1) if numbers is None else inverse_cdf(logits, temperature, numbers[rows, t])
        finished = torch.isin(tokens, eos)
        _record(done, rows, alive, tokens, pick(logprobs, tokens), finished)
        alive = alive & ~finished
        living = int(alive.sum())
        if living == 0 or t == max_new_tokens - 1:
            break
        if living < COMPACT_BELOW * len(rows):
            keep = alive.nonzero().squeeze(1)
            cache.batch_select_indices(keep)
            rows, alive, tokens, attention, positions = (x[keep] for x in (rows, alive, tokens, attention, positions))
        attention = torch.cat([attention, torch.ones_like(attention[:, :1])], dim=1)
        logits = model(input_ids=tokens.unsqueeze(1), attention_mask=attention, position_ids=positions.unsqueeze(1), cache=cache, use_cache=True).logits[:, -1]
        positions = positions + 1
    return done


def _prefill(
    model: PreTrainedModel, prompts: list[Sequence[int]], group_size: int
) -> tuple[Float[Tensor, "B V"], Cache, Int[Tensor, "B L"], Int[Tensor, " B"]]:
    """Logits of the first token, the cache, the attention mask and the next position, one row a completion; each prompt is computed once."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=model.device)
    attention = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    positions = (attention.cumsum(dim=1) - 1).clamp(min=0)
    output = model(input_ids=ids, attention_mask=attention, position_ids=positions, use_cache=True, logits_to_keep=1)
    cache = output.cache
    cache.batch_repeat_interleave(group_size)
    logits, attention, positions = (x.repeat_interleave(group_size, dim=0) for x in (output.logits[:, -1], attention, positions[:, -1] + 1))
    return logits, cache, attention, positions


def inverse_cdf(logits: Float[Tensor, "B V"], temperature: float, numbers: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """The first token whose cumulative probability exceeds its number; float64, so that a large vocabulary's sum is exact enough."""
    cumulative = torch.softmax(logits.double() / temperature, dim=-1).cumsum(dim=-1)
    target = (numbers * cumulative[:, -1]).unsqueeze(1)
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=logits.shape[-1] - 1)


def _record(done: list[Completion], rows: Tensor, alive: Tensor, tokens: Tensor, logprobs: Tensor, finished: Tensor) -> None:
    """Append this step's token to every completion still alive."""
    columns = zip(rows.tolist(), alive.tolist(), tokens.tolist(), logprobs.tolist(), finished.tolist(), strict=True)
    for row, is_alive, token, logprob, is_finished in columns:
        if is_alive:
            done[row].token_ids.append(token)
            done[row].logprobs.append(logprob)
            done[row].finish_reason = "eos" if is_finished else "length"
