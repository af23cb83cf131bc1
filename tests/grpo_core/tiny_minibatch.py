"""Five rows of different lengths for one optimizer step of a tiny model in float64."""

import torch
from transformers import GPT2LMHeadModel

from grpo_core.step import Minibatch
from grpo_core.token_batch import token_batch
from tests.tiny_models import tiny_gpt2

PROMPTS = [[2, 3], [4, 5, 6, 7], [8], [9, 10, 11], [2, 2]]
COMPLETIONS = [[5, 6, 7, 1], [8, 1], [3, 4, 5, 6, 7], [12], [1]]


def policy() -> GPT2LMHeadModel:
    """A GPT-2 (LayerNorm keeps float64; RMSNorm would compute in float32), the same one at every call."""
    return tiny_gpt2(dropout=0.0, spread=0.3).double()


def tiny_minibatch(advantages: list[float], *, beta: float) -> Minibatch:
    """The rows with these advantages; old logprobs far enough from the policy's that some tokens are clipped."""
    batch = token_batch(PROMPTS, COMPLETIONS)
    generator = torch.Generator().manual_seed(1)
    old, ref = (-3 * torch.rand(batch.tokens.shape, generator=generator, dtype=torch.float64) - 0.5 for _ in range(2))
    return Minibatch(batch, old, ref if beta > 0 else None, torch.tensor(advantages, dtype=torch.float64))
