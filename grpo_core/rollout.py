"""One rollout batch: prompts in, groups of completions out, and what the reward functions say of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from grpo_core.config import RunConfig
from grpo_core.models import LanguageModel
from grpo_core.randomness import uniforms
from grpo_core.rewards.scoring import Scores, score
from grpo_core.sampling import Completion, sample
from grpo_core.tokenization import clean_text, encode_prompt, raw_text


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """P prompts × G completions, rows group by group."""

    step: int
    prompts: pl.DataFrame
    """The P rows of the prompts table, in group order."""
    prompt_token_ids: list[list[int]]
    """P lists."""
    completions: list[Completion]
    """P·G completions."""
    texts: list[str]
    """P·G texts without special tokens."""
    raw_texts: list[str]
    """P·G texts with them."""
    group_size: int
    policy_digest: str
    """Of the weights that drew the completions."""

    def row_names(self) -> list[str]:
        """How error messages call each completion."""
        return [f"step {self.step}, prompt {p}, completion {g}" for p in self.prompts["prompt_id"] for g in range(self.group_size)]

    def per_completion(self, values: Sequence[Any]) -> list[Any]:
        """One value a prompt → one a completion."""
        return [value for value in values for _ in range(self.group_size)]


def draw(
    language_model: LanguageModel,
    prompts: pl.DataFrame,
    *,
    step: int,
    group_size: int,
    temperature: float,
    max_new_tokens: int,
    batch_size: int,
    stream: tuple[object, ...],
    digest: str,
    on_batch: Callable[[int], None] = lambda completions: None,
) -> RolloutBatch:
    """`group_size` completions for every row of `prompts`; `stream` names the random numbers (seed and purpose).

    A completion's uniforms are a function of (stream, step, prompt, completion index, token position). A prompt that stands in the
    batch twice continues counting completion indices, so that its second group is not a copy of the first.
    """
    ids = [encode_prompt(language_model.tokenizer, p, m) for p, m in zip(prompts["prompt"], prompts["messages"].to_list(), strict=True)]
    prompt_ids = prompts["prompt_id"].to_list()
    repeats = [prompt_ids[:p].count(prompt_ids[p]) for p in range(len(prompt_ids))]

    def numbers(p: int, g: int) -> np.ndarray:
        return uniforms(max_new_tokens, *stream, step, prompt_ids[p], repeats[p] * group_size + g)

    groups = sample(
        language_model.model,
        ids,
        group_size=group_size,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        eos_ids=language_model.eos_ids,
        uniforms=numbers,
        batch_size=batch_size,
        on_batch=on_batch,
    )
    completions = [completion for group in groups for completion in group]
    return RolloutBatch(
        step=step,
        prompts=prompts,
        prompt_token_ids=ids,
        completions=completions,
        texts=[clean_text(language_model.tokenizer, c.token_ids) for c in completions],
        raw_texts=[raw_text(language_model.tokenizer, c.token_ids) for c in completions],
        group_size=group_size,
        policy_digest=digest,
    )


def score_batch(batch: RolloutBatch, config: RunConfig, metric: str | None = None) -> Scores:
    """What the rewards of `config` say of every completion, and `metric`, which counts for nothing unless it is one of them."""
    weights = dict(config.rewards) | ({metric: 0.0} if metric is not None and metric not in config.rewards else {})
    return score(weights, reward_columns(batch), batch.row_names(), options=config.reward_options, settings=config.scoring)


def reward_columns(batch: RolloutBatch) -> dict[str, Sequence[Any]]:
    """What reward functions are given, one entry a completion; chat prompts reach them as messages, text prompts as text."""
    messages = batch.prompts["messages"].to_list()
    asked = [text if chat is None else chat for text, chat in zip(batch.prompts["prompt"], messages, strict=True)]
    chats = batch.per_completion([chat is not None for chat in messages])
    completions = [[{"role": "assistant", "content": text}] if chat else text for text, chat in zip(batch.texts, chats, strict=True)]
    columns: dict[str, Sequence[Any]] = {
        name: batch.per_completion(batch.prompts[name].to_list()) for name in batch.prompts.columns if name not in ("prompt", "messages", "completion")
    }
    drawn = [c.token_ids for c in batch.completions]
    given = {"prompts": batch.per_completion(asked), "completions": completions, "raw_completions": batch.raw_texts}
    return columns | given | {"completion_ids": drawn, "completion_lengths": list(map(len, drawn))}
