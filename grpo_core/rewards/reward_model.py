"""What a learned reward model says of a completion. It lives in main memory and visits the accelerator only while it scores."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite, tanh
from pathlib import Path
from typing import Any

import jinja2
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from grpo_core.models import resolve_device
from grpo_core.requirements import ConfigError
from grpo_core.rewards.answers import completion_text
from grpo_core.rewards.outcomes import Invalid, RewardError

DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Prompt = str | Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class RewardModel:
    """A model with one score and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    context: int
    """Tokens of the longest text it takes."""
    longest_token: int
    """Characters of the longest token: a text of more than its share is refused unread, be it of a megabyte."""


_held: dict[tuple[str, str], tuple[str, RewardModel]] = {}
"""By path and dtype: the reward models of this process, each with the version of its files."""


def reward_model(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    *,
    path: str,
    resolution: float = 0.01,
    batch_size: int = 8,
    max_tokens: int = 0,
    device: str = "auto",
    dtype: str = "float32",
    sigmoid: bool = False,
    **columns: object,
) -> list[float | Invalid]:
    """The score of the sequence classifier at `path` (a folder or a hub name) for each prompt with its completion, a multiple of `resolution`.

    With `sigmoid` it is the score's logistic function, from 0 to 1; else it has the scale that the model was trained to. Rounding drops
    the last digits, which hang on what else was in the batch: as rewards they would make groups whose completions are alike look alive.
    Equal texts are scored once, and a batch holds texts of one length, so there is no padding that could matter. A completion longer than
    `max_tokens` with its prompt (0: than the model takes) is invalid; a score that is NaN is returned, an error of that row. Raises
    RewardError when the checkpoint is no reward model, or a prompt alone is too long for it.
    """
    _check_options(path, resolution, batch_size, max_tokens, dtype)
    judge = _held_model(path, dtype)
    limit = _limit(judge, max_tokens)
    texts = [_token_ids(judge, prompt, completion, limit) for prompt, completion in zip(prompts, completions, strict=True)]
    distinct = sorted({text for text in texts if isinstance(text, tuple)}, key=lambda text: (len(text), text))
    scores = dict(zip(distinct, _scores(judge.model, distinct, batch_size, _place(device)), strict=True))
    squashed = _logistic if sigmoid else float
    return [text if isinstance(text, Invalid) else rounded(squashed(scores[text]), resolution) for text in texts]


def rounded(score: float, resolution: float) -> float:
    """The multiple of `resolution` nearest to `score`, the even one of two; what is no finite number stays as it is."""
    return float(round(score / resolution) * Decimal(str(resolution))) if isfinite(score) else score


def _logistic(score: float) -> float:
    """1 / (1 + exp(-score)) without overflow; what is no finite number stays as it is."""
    return 0.5 * (1 + tanh(score / 2)) if isfinite(score) else score


@contextmanager
def visiting(model: PreTrainedModel, place: torch.device) -> Iterator[PreTrainedModel]:
    """`model` on `place` inside, back in main memory afterwards, whatever happened."""
    try:
        yield model.to(place)
    finally:
        model.to("cpu")


@torch.no_grad()
def _scores(model: PreTrainedModel, texts: Sequence[tuple[int, ...]], batch_size: int, place: torch.device) -> list[float]:
    """One score a text; `texts` come in order of length."""
    found: list[float] = []
    if texts:
        with visiting(model, place) as visitor:
            for batch in _batches(texts, batch_size if model.config.get_text_config().pad_token_id is not None else 1):
                ids = torch.tensor(batch, device=place)
                found += visitor(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, 0].double().tolist()
    return found


def _batches(texts: Sequence[tuple[int, ...]], batch_size: int) -> Iterator[list[tuple[int, ...]]]:
    """At most `batch_size` texts at a time, all of one length: padding shifts positions, and some models take their score from it."""
    for _, alike in itertools.groupby(texts, key=len):
        while batch := list(itertools.islice(alike, batch_size)):
            yield batch


def _token_ids(judge: RewardModel, prompt: Prompt, completion: Any, limit: int) -> tuple[int, ...] | Invalid:
    """Ids of the prompt and its completion as one text, or as one chat through the tokenizer's own template."""
    tokenizer, text = judge.tokenizer, completion_text(completion)
    if len(text) > limit * judge.longest_token:
        return Invalid(f"{len(text)} characters, and the reward model takes {limit} tokens")
    own_words = _defused(tokenizer, text)
    ids = _encoded(tokenizer, prompt + own_words if isinstance(prompt, str) else [*prompt, {"role": "assistant", "content": own_words}])
    if len(ids) <= limit:
        return ids
    alone = len(_encoded(tokenizer, prompt))
    if alone >= limit:
        raise RewardError(f"reward 'reward_model': a prompt has {alone} tokens, and the reward model takes {limit} with the completion: {str(prompt)[:200]!r}")
    return Invalid(f"{len(ids)} tokens with its prompt, and the reward model takes {limit}")


def _encoded(tokenizer: PreTrainedTokenizerBase, text: Prompt) -> tuple[int, ...]:
    if isinstance(text, str):
        return tuple(tokenizer(text, verbose=False)["input_ids"])
    if tokenizer.chat_template is None:
        raise RewardError("reward 'reward_model': its tokenizer has no chat template, so it takes no messages: give prompts as text, or a chat's reward model")
    try:
        return tuple(tokenizer.apply_chat_template([dict(message) for message in text], tokenize=True, return_dict=False))
    except jinja2.TemplateError as error:
        raise RewardError(f"reward 'reward_model': its chat template refuses the messages: {error}; change prompts.system_prompt or the roles") from error


def _defused(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """`text` with every special token of the reward model broken by a space: a completion must not write the next turn of its own chat."""
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special} | set(tokenizer.all_special_tokens)
    for token in sorted(special, key=lambda token: (-len(token), token)):
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text.encode("utf-8", "replace").decode()


def _held_model(path: str, dtype: str) -> RewardModel:
    """The reward model at `path`, loaded when first asked for and when its files have changed since."""
    version = _version(Path(path))
    held = _held.get((path, dtype))
    if held is None or held[0] != version:
        _held[path, dtype] = held = version, _loaded(path, dtype)
    return held[1]


def _version(folder: Path) -> str:
    """Names, sizes and times of a folder's files; nothing for a hub name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return "\n".join(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)


def _loaded(path: str, dtype: str) -> RewardModel:
    local = Path(path).is_dir()
    try:
        model, told = AutoModelForSequenceClassification.from_pretrained(path, dtype=DTYPES[dtype], local_files_only=local, output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=local)
    except (OSError, ValueError) as error:
        raise RewardError(
            f"reward_options.reward_model.path {path!r} gives no reward model: {error}; name a folder with a sequence-classification checkpoint and its "
            "tokenizer, or a hub name that can be reached"
        ) from error
    if told["missing_keys"]:
        raise RewardError(
            f"reward_options.reward_model.path {path!r} holds no weights for {', '.join(sorted(told['missing_keys']))}: they would be random numbers; "
            "a language model is no reward model before it was trained as one"
        )
    if model.config.num_labels != 1:
        raise RewardError(f"reward_options.reward_model.path {path!r} has {model.config.num_labels} labels: a reward model has one, its score")
    model.config.use_cache = False
    return RewardModel(model.eval().requires_grad_(False), tokenizer, _context(model, tokenizer), max(map(len, tokenizer.get_vocab())))


def _context(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return min(int(tokenizer.model_max_length), *([] if positions is None else [int(positions)]))


def _limit(judge: RewardModel, max_tokens: int) -> int:
    if max_tokens > judge.context:
        raise RewardError(f"reward_options.reward_model.max_tokens is {max_tokens}, but the model takes {judge.context}: lower it, or 0 for all it takes")
    return max_tokens or judge.context


def _place(device: str) -> torch.device:
    try:
        return resolve_device(device)
    except ConfigError as error:
        raise RewardError(f"reward_options.reward_model.device {device!r}: {error}") from error


def _check_options(path: str, resolution: float, batch_size: int, max_tokens: int, dtype: str) -> None:
    named = "reward_options.reward_model"
    if not isinstance(path, str) or not path:
        raise RewardError(f"{named}.path must be a folder or a hub name, got {path!r}")
    if not (isfinite(resolution) and resolution > 0):
        raise RewardError(f"{named}.resolution must be above 0, got {resolution!r}: scores are rounded to a multiple of it")
    if batch_size < 1:
        raise RewardError(f"{named}.batch_size must be at least 1, got {batch_size!r}")
    if max_tokens < 0:
        raise RewardError(f"{named}.max_tokens must be at least 0, got {max_tokens!r}")
    if dtype not in DTYPES:
        raise RewardError(f"{named}.dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
