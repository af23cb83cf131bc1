"""A first look at one's prompts before any training: what a model draws for them, and what the rewards say of it.

`sampled` draws and scores groups as steps of training would, without learning from them; exploration_numbers.py counts what came out,
readiness.py says whether GRPO has something to learn from there.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import polars as pl

from grpo_core.config import RunConfig
from grpo_core.evaluation import CORRECT
from grpo_core.exploration_numbers import groups_of, with_marks
from grpo_core.ledger import reward_rows, rollout_rows
from grpo_core.models import LanguageModel, policy_digest
from grpo_core.rewards.registry import code_hash
from grpo_core.rollout import RolloutBatch, draw, score_batch
from grpo_core.signal import compare_within_groups
from grpo_core.trainer import check_context


@dataclass(frozen=True, slots=True)
class Sample:
    """One batch that was drawn and scored."""

    rows: pl.DataFrame
    """The columns of rollouts and rewards, `correct` (None: the metric failed) and `alike` (its group has nothing to compare)."""
    sampling_seconds: float
    scoring_seconds: float


@dataclass(frozen=True, slots=True)
class Pair:
    """A better and a worse completion of one prompt."""

    prompt_id: str
    right: int
    """Right completions of its group, among `graded`."""
    graded: int
    better: str
    better_reward: float
    worse: str
    worse_reward: float


def chosen_prompts(prompts: pl.DataFrame, most: int, seed: int) -> pl.DataFrame:
    """Up to `most` train prompts, in the order of a hash of seed and content: a larger number continues a smaller one, whatever else the table holds.

    Raises ValueError when there is no train prompt.
    """
    train = prompts.filter(pl.col("split") == "train")
    if train.is_empty():
        raise ValueError("the train split has no prompts: add prompts, or lower prompts.sft_fraction")
    return _by_hash(train, "exploration", seed).head(most)


def sampled(
    language_model: LanguageModel, prompts: pl.DataFrame, config: RunConfig, *, seed: int, on_batch: Callable[[int], None] = lambda completions: None
) -> Iterator[Sample]:
    """grpo.group_size completions of every row of `prompts`, drawn and scored grpo.prompts_per_step prompts at a time, as in training.

    A completion is a function of weights, seed and prompt (but for rounding by batch shape). Completions that a reward fails on are
    counted, never raised. Raises ValueError when a prompt and its completion do not fit into the model.
    """
    check_context(language_model, prompts, config.rollout.max_new_tokens)
    counting = replace(config, scoring=replace(config.scoring, max_error_rate=1.0))
    digest = policy_digest(language_model.model)
    for number, part in enumerate(prompts.iter_slices(config.grpo.prompts_per_step), start=1):
        started = time.perf_counter()
        batch = draw(
            language_model,
            part,
            step=0,
            group_size=config.grpo.group_size,
            temperature=config.rollout.temperature,
            max_new_tokens=config.rollout.max_new_tokens,
            batch_size=config.rollout.batch_size,
            stream=(seed, "exploration"),
            digest=digest,
            on_batch=on_batch,
        )
        drawn = time.perf_counter()
        rows = scored_rows(replace(batch, step=number), counting)
        yield Sample(rows, drawn - started, time.perf_counter() - drawn)


def scored_rows(batch: RolloutBatch, config: RunConfig) -> pl.DataFrame:
    """The batch as rows, with what the rewards and the select metric say of it."""
    metric = config.grpo.select_metric
    scores = score_batch(batch, config, metric)
    signal = compare_within_groups(batch, scores, 1, config, scale_by_std=config.grpo.scales_by_std)
    rollouts = rollout_rows(batch)
    rewards = reward_rows(rollouts, scores, signal, code_hash(list(config.rewards)))
    graded = zip(scores.by_function[metric], scores.statuses[metric], strict=True)
    correct = [None if status == "error" else value is not None and value >= CORRECT for value, status in graded]
    return rollouts.hstack(rewards.drop(set(rollouts.columns) & set(rewards.columns))).with_columns(
        pl.Series("correct", correct, dtype=pl.Boolean), pl.Series("alike", batch.per_completion(signal.alike.tolist()), dtype=pl.Boolean)
    )


def pairs_of(rows: pl.DataFrame, config: RunConfig, *, most: int, seed: int) -> list[Pair]:
    """The best and the worst completion of up to `most` groups that differ, chosen by hash and spread over how many of a group are right.

    Groups that the main rewards tell apart come first; the others differ in form alone.
    """
    differing = groups_of(with_marks(rows, config)).filter(~pl.col("alike"))
    ranked = _by_hash(differing, "pairs", seed).with_columns(pl.col("right").cum_count().over("differs", "right").alias("rank"))
    chosen = ranked.sort(pl.col("differs").not_(), "rank", maintain_order=True).head(most).sort("right", maintain_order=True)
    found = []
    for place in chosen.iter_rows(named=True):
        group = rows.filter((pl.col("step") == place["step"]) & (pl.col("group") == place["group"]) & pl.col("reward").is_not_null())
        best, worst = group.sort("reward", "completion_index", descending=[True, False])[[0, -1]].iter_rows(named=True)
        found.append(Pair(place["prompt_id"], place["right"], place["graded"], best["text"], best["reward"], worst["text"], worst["reward"]))
    return found


def _by_hash(rows: pl.DataFrame, purpose: str, seed: int) -> pl.DataFrame:
    """`rows` in the order of a hash of purpose, seed and their prompt."""
    places = [hashlib.sha256(f"{purpose}\n{seed}\n{prompt}".encode()).hexdigest() for prompt in rows["prompt_id"]]
    return rows.with_columns(pl.Series("place", places, dtype=pl.String)).sort("place").drop("place")
