"""Models of a few hundred weights: random ones with lively distributions, and one whose distribution is given."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from grpo_core.addition import addition_tokenizer
from grpo_core.config import ModelConfig
from grpo_core.models import LanguageModel, save_model

TINY = ModelConfig(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32, context_length=48, device="cpu", num_threads=1)
EOS = 2
"""Of the embedded tokenizer, whose pad is 0 and BOS 1."""


def tiny_llama(seed: int = 0, *, spread: float = 0.5, num_tokens: int | None = None) -> LlamaForCausalLM:
    """A Llama that reads the embedded tokenizer; `spread` is the deviation of its first weights: 0.02 is nearly uniform, 0.5 has opinions."""
    torch.manual_seed(seed)
    settings = LlamaConfig(
        vocab_size=num_tokens or len(addition_tokenizer()), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, max_position_embeddings=48, tie_word_embeddings=True, initializer_range=spread, pad_token_id=0, bos_token_id=1, eos_token_id=EOS,
    )  # fmt: skip
    return LlamaForCausalLM(settings)


def tiny_gpt2(seed: int = 0, *, dropout: float = 0.1, spread: float = 0.5, num_positions: int = 48, pad_token_id: int = 0) -> GPT2LMHeadModel:
    """A GPT-2: positions are absolute, and dropout stands in its configuration."""
    torch.manual_seed(seed)
    settings = GPT2Config(
        vocab_size=len(addition_tokenizer()), n_embd=16, n_layer=2, n_head=2, n_positions=num_positions, initializer_range=spread,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, pad_token_id=pad_token_id, bos_token_id=1, eos_token_id=EOS,
    )  # fmt: skip
    return GPT2LMHeadModel(settings)


def fixed_logits(logits: Sequence[float]) -> PreTrainedModel:
    """A model that gives these logits after every context: what it samples is known in closed form."""
    settings = GPT2Config(vocab_size=len(logits), n_embd=4, n_layer=1, n_head=1, n_positions=64, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)
    model = GPT2LMHeadModel(settings).eval()
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0]))
        model.lm_head.weight.zero_()
        model.lm_head.weight[:, 0] = torch.tensor(logits)
    return model


def language_model(model: PreTrainedModel) -> LanguageModel:
    """`model` with the embedded tokenizer."""
    return LanguageModel(model, addition_tokenizer(), frozenset({EOS}), {})


def save(model: PreTrainedModel, folder: Path) -> Path:
    """`model` and the embedded tokenizer as a Hugging Face folder."""
    save_model(language_model(model), folder)
    return folder
