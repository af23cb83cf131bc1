"""Prompts and completions of different lengths as one rectangle: prompts padded on the left, completions on the right."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """B rows of `prompt + completion`; the completion fills the last T columns."""

    input_ids: Int[Tensor, "B L"]
    attention_mask: Int[Tensor, "B L"]
    position_ids: Int[Tensor, "B L"]
    """Positions count real tokens only, so a left-padded row scores as an unpadded one (models with absolute positions too)."""
    tokens: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    """True on the completion's own tokens (its EOS included); made from lengths, never inferred from token values."""


def token_batch(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> TokenBatch:
    """The rectangle of these rows, as wide as their longest prompt plus their longest completion (at least one column)."""
    prompt_width = max(map(len, prompts))
    width = max(1, *map(len, completions))
    size = len(prompts)
    ids = torch.zeros(size, prompt_width + width, dtype=torch.long)
    attention = torch.zeros_like(ids)
    mask = torch.zeros(size, width, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        start, end = prompt_width - len(prompt), prompt_width + len(completion)
        ids[row, start:end] = torch.tensor([*prompt, *completion], dtype=torch.long)
        attention[row, start:end] = 1
        mask[row, : len(completion)] = True
    positions = (attention.cumsum(dim=1) - 1).clamp(min=0)
    moved = [t.to(device) for t in (ids, attention, positions, ids[:, prompt_width:], mask)]
    return TokenBatch(*moved)


def padded(rows: Sequence[Sequence[float]], width: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """[B, width] of `rows` with zeros on the right."""
    out = torch.zeros(len(rows), width, dtype=dtype)
    for row, values in enumerate(rows):
        out[row, : len(values)] = torch.tensor(values, dtype=dtype)
    return out.to(device)
