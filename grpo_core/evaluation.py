"""The same questions to every model: greedy and sampled answers, accuracies with intervals, and the paired difference."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
import torch

from grpo_core.config import HeldoutEvalConfig, RunConfig
from grpo_core.logit_budget import scored_rows
from grpo_core.logprobs import completion_logprobs
from grpo_core.models import LanguageModel, policy_digest
from grpo_core.randomness import generator
from grpo_core.rewards.outcomes import Status
from grpo_core.rewards.registry import load_reward
from grpo_core.rollout import RolloutBatch, draw, score_batch
from grpo_core.statistics import paired_bootstrap, pass_at_k, wilson
from grpo_core.tables import no_answers
from grpo_core.token_batch import token_batch

CORRECT = 1.0
"""A completion is correct when the metric's reward function gives at least this."""


def evaluation_prompts(prompts: pl.DataFrame, split: str, most: int) -> pl.DataFrame:
    """Up to `most` prompts of `split`, chosen by their content hash: the same ones every time, whatever else the table holds."""
    return prompts.filter(pl.col("split") == split).sort("prompt_id").head(most)


def evaluate(
    language_model: LanguageModel,
    prompts: pl.DataFrame,
    *,
    name: str,
    step: int,
    samples: int,
    settings: HeldoutEvalConfig,
    config: RunConfig,
    on_batch: Callable[[int], None] = lambda completions: None,
) -> pl.DataFrame:
    """One row a completion of the model called `name`: a greedy one a prompt (`decoding` greedy), and `samples` at temperature.

    `step` is the policy step that the model is at (0 before training). Random numbers depend on (seed, prompt, sample) alone: every
    model answers with the same ones, and training never sees them.
    """
    load_reward(settings.metric)
    digest = policy_digest(language_model.model)
    parts = []
    for decoding, size, temperature in (("greedy", 1, 0.0), ("sample", samples, settings.temperature)):
        if size == 0:
            continue
        batch = draw(
            language_model,
            prompts,
            step=0,
            group_size=size,
            temperature=temperature,
            max_new_tokens=config.rollout.max_new_tokens,
            batch_size=config.rollout.batch_size,
            stream=(settings.seed, "evaluation"),
            digest=digest,
            on_batch=on_batch,
        )
        parts.append(_rows(batch, name, step, decoding, settings.metric, config))
    return pl.concat(parts)


def scoring_functions(weights: Mapping[str, float], metric: str) -> list[str]:
    """The reward functions that an evaluation asks: those of training, and the metric."""
    return list(dict.fromkeys([*weights, metric]))


def _rows(batch: RolloutBatch, name: str, step: int, decoding: str, metric: str, config: RunConfig) -> pl.DataFrame:
    functions = scoring_functions(config.rewards, metric)
    scores = score_batch(batch, config, metric)
    count, size = len(batch.prompts), batch.group_size
    return pl.DataFrame(
        {
            "model": [name] * (count * size),
            "step": [step] * (count * size),
            "prompt_id": batch.per_completion(batch.prompts["prompt_id"].to_list()),
            "decoding": [decoding] * (count * size),
            "sample_index": list(range(size)) * count,
            "text": batch.texts,
            "raw_text": batch.raw_texts,
            "prompt_token_ids": batch.per_completion(batch.prompt_token_ids),
            "token_ids": [c.token_ids for c in batch.completions],
            "sampling_logprobs": [c.logprobs for c in batch.completions],
            "length": [len(c.token_ids) for c in batch.completions],
            "finish_reason": [c.finish_reason for c in batch.completions],
            "correct": [_is_correct(*graded) for graded in zip(scores.by_function[metric], scores.statuses[metric], strict=True)],
            **{f"reward/{function}": values for function, values in scores.by_function.items()},
            "reward": scores.totals,
            "policy_digest": [batch.policy_digest] * (count * size),
        },
        schema=no_answers(functions).schema,
    )


def _is_correct(value: float | None, status: Status) -> bool | None:
    """None where the metric failed: an error is not a wrong answer."""
    return None if status == "error" else value is not None and value >= CORRECT


@torch.inference_mode()
def kl_to_reference(reference: LanguageModel, rows: pl.DataFrame, *, temperature: float, batch_size: int) -> tuple[float, float]:
    """KL(policy‖reference) in nats a token and nats a completion, estimated on the policy's sampled `rows` (mean of k1)."""
    tokens, total = 0, 0.0
    for part in rows.iter_slices(scored_rows(batch_size, max(rows["length"], default=1), reference.model.config.vocab_size)):
        batch = token_batch(part["prompt_token_ids"].to_list(), part["token_ids"].to_list(), reference.model.device)
        logprobs = completion_logprobs(reference.model, batch, temperature)
        total += sum(map(sum, part["sampling_logprobs"].to_list())) - float(logprobs.masked_fill(~batch.mask, 0.0).double().sum())
        tokens += int(batch.mask.sum())
    return total / max(tokens, 1), total / max(len(rows), 1)


def summarise(rows: pl.DataFrame, models: Sequence[str], config: HeldoutEvalConfig) -> dict[str, Any]:
    """The evidence in numbers: per model greedy accuracy (Wilson), mean@k, pass@k and length; `second - first` paired by prompt.

    A prompt with an answer, of either model, on which the metric failed is left out for both and counted as ungraded.
    `models` are (baseline, candidate), as they are called in `rows`. Keys carry the model's name: `policy_accuracy_low`.
    """
    ungraded = rows.filter(pl.col("correct").is_null())["prompt_id"].unique()
    graded = rows.filter(~pl.col("prompt_id").is_in(ungraded.implode()))
    if graded.is_empty():
        raise ValueError(f"heldout_eval.metric {config.metric!r} failed on an answer to every prompt: nothing can be said of any")
    by_prompt = {name: _per_prompt(graded.filter(pl.col("model") == name)) for name in models}
    baseline, candidate = (by_prompt[name] for name in models)
    assert baseline["prompt_id"].equals(candidate["prompt_id"])
    k = config.samples_per_prompt
    summary: dict[str, Any] = {"num_prompts": len(baseline), "num_ungraded_prompts": len(ungraded), "samples_per_prompt": k, "pass_k": config.pass_k}
    summary |= {"metric": config.metric, "temperature": config.temperature}
    for name, table in by_prompt.items():
        accuracy = wilson(int(table["greedy"].sum()), len(table))
        passes = [pass_at_k(k, round(mean * k), config.pass_k) for mean in table["mean_at_k"]]
        summary |= {
            f"{name}_accuracy": accuracy.estimate,
            f"{name}_accuracy_low": accuracy.low,
            f"{name}_accuracy_high": accuracy.high,
            f"{name}_mean_at_k": table["mean_at_k"].mean(),
            f"{name}_pass_at_k": sum(passes) / len(passes),
            f"{name}_mean_length": table["length"].mean(),
            f"{name}_truncated_fraction": table["truncated"].mean(),
        }
    for prefix, column in (("difference", "greedy"), ("mean_at_k_difference", "mean_at_k")):
        interval = paired_bootstrap(
            baseline[column].to_list(), candidate[column].to_list(), resamples=config.bootstrap_resamples, generator=generator(config.seed, "bootstrap", column)
        )
        summary |= {prefix: interval.estimate, f"{prefix}_low": interval.low, f"{prefix}_high": interval.high}
    return summary


def _per_prompt(rows: pl.DataFrame) -> pl.DataFrame:
    """One row a prompt, in prompt_id order: greedy correctness, share of samples correct, greedy length and truncation."""
    greedy = rows.filter(pl.col("decoding") == "greedy").select(
        "prompt_id", pl.col("correct").cast(pl.Float64).alias("greedy"), "length", (pl.col("finish_reason") == "length").alias("truncated")
    )
    sampled = rows.filter(pl.col("decoding") == "sample").group_by("prompt_id").agg(pl.col("correct").mean().alias("mean_at_k"))
    return greedy.join(sampled, on="prompt_id", how="left").sort("prompt_id")
