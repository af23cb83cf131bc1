"""Between text and token ids: prompts wrapped once, completions that end, and proof that two models read the same tokens."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import polars as pl
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from grpo_core.prompt_files import place, prompts_error, shown
from grpo_core.requirements import ConfigError


class TokenizerMismatch(ValueError):
    """Two models whose token ids mean different things: a KL between them would be meaninglessly high."""


def load_tokenizer(path: str | Path, *, local_files_only: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face folder or hub name, padding on the left, otherwise as it was saved."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), padding_side="left", local_files_only=local_files_only or Path(path).is_dir())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.path {str(path)!r} gives no tokenizer: {error}; name a folder that holds tokenizer.json, or a hub name that can be reached"
        ) from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"the tokenizer of model.path {str(path)!r} has no eos_token: completions could not end; set one in its tokenizer_config.json")
    return tokenizer


def _plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _text_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids with what the tokenizer puts before a text (BOS, where its own rules say so) and without what it puts behind (EOS)."""
    encoded = tokenizer(text, return_special_tokens_mask=True)
    ids, added = list(encoded["input_ids"]), list(encoded["special_tokens_mask"])
    while ids and added[len(ids) - 1]:
        ids.pop()
    return ids


def _chat_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Ids of the chat template with its generation prompt; the template alone decides about BOS."""
    if tokenizer.chat_template is None:
        raise ConfigError(
            "the tokenizer has no chat template, so it takes no messages: set prompts.chat to false and give prompts as text, or take a chat model"
        )
    try:
        ids = tokenizer.apply_chat_template([dict(message) for message in messages], add_generation_prompt=True, tokenize=True, return_dict=False)
    except jinja2.TemplateError as error:
        raise ConfigError(f"the chat template refuses the messages {shown(list(messages))}: {error}; change the messages or prompts.system_prompt") from error
    return list(ids)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str, messages: Sequence[Mapping[str, str]] | None) -> list[int]:
    """Ids of a prompt as a server of the checkpoint would make them, with at most one BOS; `messages` (of a chat) take the place of the text."""
    ids = _text_ids(tokenizer, prompt) if messages is None else _chat_ids(tokenizer, messages)
    while len(ids) > 1 and ids[0] == ids[1] == tokenizer.bos_token_id:
        ids = ids[1:]
    return ids


def encode_completion(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of a completion: no BOS, and one EOS at the end, which is trained."""
    assert tokenizer.eos_token_id is not None
    ids = _plain_ids(tokenizer, text)
    return ids if ids[-1:] == [tokenizer.eos_token_id] else [*ids, tokenizer.eos_token_id]


def eos_ids(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel | None = None) -> set[int]:
    """Ids that end a completion: the tokenizer's EOS and those of the model's configurations (chat models name several)."""
    ends = [tokenizer.eos_token_id]
    for settings in () if model is None else (model.config, model.generation_config):
        ends += _as_list(None if settings is None else settings.eos_token_id)
    return {int(end) for end in ends if end is not None}


def _as_list(value: int | list[int] | tuple[int, ...] | None) -> list[int | None]:
    return list(value) if isinstance(value, list | tuple) else [value]


def clean_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Text of `ids` without special tokens, spaces exactly as they were drawn."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def raw_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Text of `ids`, special tokens written out."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _meaning(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What fixes the meaning of token ids: vocabulary, special tokens, chat template."""
    special = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id, "unk": tokenizer.unk_token_id}
    return {
        "vocabulary": dict(sorted(tokenizer.get_vocab().items())),
        "special tokens": special | {"all": sorted(tokenizer.all_special_ids)},
        "chat template": tokenizer.chat_template,
    }


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 of vocabulary, special tokens and chat template."""
    return hashlib.sha256(json.dumps(_meaning(tokenizer), sort_keys=True).encode()).hexdigest()


def check_same_tokenizer(policy: PreTrainedTokenizerBase, reference: PreTrainedTokenizerBase) -> None:
    """Raise `TokenizerMismatch`, naming what differs, unless both give every token id the same meaning."""
    ours, theirs = _meaning(policy), _meaning(reference)
    for part in ours:
        if ours[part] == theirs[part]:
            continue
        difference = f"{shown(ours[part])} against {shown(theirs[part])}"
        if part == "vocabulary":
            token = min(token for token in {**ours[part], **theirs[part]} if ours[part].get(token) != theirs[part].get(token))
            difference = f"token {token!r} is {ours[part].get(token)} against {theirs[part].get(token)}"
        raise TokenizerMismatch(f"policy and reference differ in {part}: {difference}; make both from one checkpoint")


def _unknown_pieces(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """Pieces of `text` that become the unknown token; the token's own written-out name does not count."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    pieces = {text[start:end] for token, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True) if token == tokenizer.unk_token_id}
    return sorted(pieces - {tokenizer.unk_token})


def _check_representable(frame: pl.DataFrame, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise for prompts and demonstrations of which the unknown token would stand for a part."""
    if tokenizer.unk_token_id is None or not tokenizer.is_fast:
        return
    rows: list[int] = []
    texts: list[str] = []
    for row, (prompt, messages, completion) in enumerate(frame.select("prompt", "messages", "completion").iter_rows()):
        parts = [prompt] if messages is None else [message["content"] for message in messages]
        texts += [*parts, *([] if completion is None else [completion])]
        rows += [row] * (len(texts) - len(rows))
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    unknown = []
    for row, text, ids in zip(rows, texts, encoded, strict=True):
        if tokenizer.unk_token_id in ids and (pieces := _unknown_pieces(tokenizer, text)):
            unknown.append(f"{place(frame['source_file'][row], frame['source_row'][row])}: {', '.join(map(repr, pieces))} in {shown(text)}")
    if unknown:
        raise prompts_error(
            "the model's tokenizer cannot represent some text", unknown, "remove these characters, or choose a model whose tokenizer knows them"
        )


def context_length(path: str) -> int | None:
    """Positions of the model at `path`; None where its configuration does not limit them."""
    try:
        settings = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.path {path!r} gives no model configuration: {error}; name a folder that holds config.json, or a hub name that can be reached"
        ) from error
    context = getattr(settings, "max_position_embeddings", None)
    return None if context is None else int(context)


def check_lengths(frame: pl.DataFrame, tokenizer: PreTrainedTokenizerBase, max_tokens: int, *, context: int | None = None) -> None:
    """Raise `PromptsError` for text the tokenizer cannot represent, and for prompts longer than `max_tokens` after their templates.

    A prompt that leaves no room for one completion token in the model's `context` is too long as well.
    """
    limit = min(max_tokens, int(tokenizer.model_max_length), *([] if context is None else [context - 1]))
    long = []
    for file, row, prompt, messages in frame.select("source_file", "source_row", "prompt", "messages").iter_rows():
        length = len(encode_prompt(tokenizer, prompt, messages))
        if length > limit:
            long.append(f"{place(file, row)}: {length} tokens: {shown(prompt)}")
    if long:
        rule = f"prompts.max_tokens ({max_tokens})" if limit == max_tokens else f"what the model takes ({limit})"
        raise prompts_error(f"prompts are longer than {rule}", long, "shorten or remove them, or raise prompts.max_tokens as far as the model's context allows")
    _check_representable(frame, tokenizer)
