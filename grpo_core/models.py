"""Models as folders: build the embedded one, load any other, switch dropout off for good, tell two sets of weights apart."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file, extract_commit_hash

from grpo_core.addition import addition_tokenizer
from grpo_core.checkpoint import file_sha256
from grpo_core.config import ModelConfig
from grpo_core.requirements import ConfigError
from grpo_core.tokenization import eos_ids, load_tokenizer

NUMERICAL = ("torch", "transformers", "tokenizers", "numpy", "safetensors")
"""Libraries whose version can change a number."""
PIECE = 2**20
"""Numbers of a tensor that `policy_digest` looks at at once."""


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A model, its tokenizer and the ids that end its completions. Dropout is off: p is 0, also in train() mode."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]
    dropout: Mapping[str, float]
    """The dropout fields its configuration came with, written back when it is saved."""


def resolve_device(device: str) -> torch.device:
    """`auto` is a GPU when torch sees one; anything else is taken as it is named."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ConfigError(f"model.device must be auto, cpu, cuda or cuda:N, got {device!r}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"model.device is {device!r} but torch sees no GPU: use 'auto' or 'cpu'")
    return torch.device(device)


def arithmetic(device: str) -> list[str]:
    """What decides here how numbers on `device` round: the numerical libraries, the processor's vector instructions, and a GPU by name."""
    place = resolve_device(device)
    gpu = [torch.cuda.get_device_name(place)] if place.type == "cuda" else []
    return [*(f"{name} {version(name)}" for name in NUMERICAL), torch.backends.cpu.get_cpu_capability(), *gpu]


def start_model(config: ModelConfig) -> LanguageModel:
    """What supervised fine-tuning starts from: the model at `config.path`, or a freshly initialised small Llama."""
    if config.path:
        return load_model(config.path, config)
    tokenizer = addition_tokenizer()
    torch.manual_seed(config.seed)
    llama = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.context_length,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = in_precision(LlamaForCausalLM(llama).to(device=resolve_device(config.device)), config.dtype)
    return LanguageModel(model, tokenizer, frozenset({llama.eos_token_id}), {})


def source_of(config: ModelConfig, *, loaded: bool = False) -> str:
    """What pins the starting weights: `embedded`, a sha256 over the files of a folder, or `name@commit` of a model on the hub.

    Once the model was `loaded` the commit is that of the files it came from; before that it is the newest.
    """
    if not config.path:
        return "embedded"
    folder = Path(config.path)
    if not folder.is_dir():
        found = cached_file(config.path, "config.json", local_files_only=loaded)
        return f"{config.path}@{extract_commit_hash(found, None)}"
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    shown = [name for name in names if not any(part.startswith(".") for part in name.parts)]  # a hub's own notes are no part of the model
    return hashlib.sha256("".join(f"{name} {file_sha256(folder / name)}\n" for name in shown).encode()).hexdigest()


def load_model(path: str | Path, config: ModelConfig) -> LanguageModel:
    """The causal language model and tokenizer at `path` (a folder or a hub name), in `config`'s precision and place."""
    dropout, settings = _without_dropout(AutoConfig.from_pretrained(path))
    model = AutoModelForCausalLM.from_pretrained(path, config=settings, dtype=torch.float32)
    tokenizer = load_tokenizer(path)
    placed = in_precision(model.to(resolve_device(config.device)), config.dtype)
    return LanguageModel(placed, tokenizer, frozenset(eos_ids(tokenizer, placed)), dropout)


def in_precision(model: PreTrainedModel, dtype: str) -> PreTrainedModel:
    """The model, computing its forward pass in `dtype`. Its weights stay in float32: an update of 1e-6 is lost in a bfloat16 weight."""
    if dtype != "float32":
        model.forward = torch.autocast(model.device.type, dtype=getattr(torch, dtype))(model.forward)
    return model


def freeze(language_model: LanguageModel) -> LanguageModel:
    """The same model without gradients: a reference."""
    language_model.model.requires_grad_(False)
    return language_model


def save_model(language_model: LanguageModel, folder: Path) -> None:
    """A Hugging Face folder that transformers and vLLM load as it is: weights, configuration (dropout as it was) and tokenizer."""
    model = language_model.model
    zeros = {name: getattr(model.config, name) for name in language_model.dropout}
    for name, value in language_model.dropout.items():
        setattr(model.config, name, value)
    model.save_pretrained(folder)
    for name, value in zeros.items():
        setattr(model.config, name, value)
    language_model.tokenizer.save_pretrained(folder)


def policy_digest(model: PreTrainedModel) -> str:
    """A fingerprint of the weights, computed where they live: equal weights give equal digests on every device.

    Per tensor, two sums of its raw bits modulo 2^64, one weighted by position: exact in integers whatever the order of addition.
    Worked out in pieces, so that it needs no second copy of the weights. It catches stale or mixed-up weights; against tampering there
    are the sha256s of a checkpoint's manifest.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        bits = weight.detach().contiguous().view(-1).view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.element_size()])
        plain, by_place = torch.zeros(2, dtype=torch.long, device=bits.device)
        for start in range(0, bits.numel(), PIECE):
            piece = bits[start : start + PIECE].long()
            plain, by_place = plain + piece.sum(), by_place + (piece * torch.arange(start + 1, start + 1 + len(piece), device=bits.device)).sum()
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype} {int(plain)} {int(by_place)}\n".encode())
    return digest.hexdigest()[:16]


def _without_dropout(settings: PreTrainedConfig) -> tuple[dict[str, float], PreTrainedConfig]:
    """The configuration's dropout probabilities, and the configuration with all of them 0 (in place of `eval()`, which checkpointing forbids)."""
    found = {name: value for name, value in settings.to_dict().items() if ("drop" in name or name.endswith("_pdrop")) and type(value) is float and value > 0}
    for name in found:
        setattr(settings, name, 0.0)
    return found, settings
