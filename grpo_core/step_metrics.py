"""A step in numbers: what is logged of rewards, advantages, completions, KL and updates. Pure functions, deterministic figures."""

import math
from collections.abc import Sequence

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool
from torch import Tensor

from grpo_core.advantages import EQUAL_WITHIN, zero_variance
from grpo_core.cloning import Cloning
from grpo_core.evaluation import CORRECT
from grpo_core.rewards.outcomes import STATUSES
from grpo_core.rewards.scoring import Scores
from grpo_core.rollout import RolloutBatch
from grpo_core.signal import Signal
from grpo_core.step import Minibatch, StepStatistics
from grpo_core.token_batch import padded

NGRAM = 4
"""Tokens of the n-grams that repetition counts."""


def solved_groups(scores: Scores, signal: Signal, full_marks: float, metric: str) -> Bool[Tensor, " P"]:
    """Groups alike at full marks, or alike and all right by the metric of `select` where it is among the rewards: full marks can be out of reach."""
    lowest = signal.rewards.masked_fill(~signal.scored, torch.inf).amin(dim=1)
    solved = (lowest - full_marks).abs() <= EQUAL_WITHIN
    if metric in scores.by_function:
        right = torch.tensor([value is not None and value >= CORRECT for value in scores.by_function[metric]]).view_as(signal.scored)
        solved |= (right | ~signal.scored).all(dim=1)
    return signal.alike & signal.scored.any(dim=1) & solved


def reward_metrics(scores: Scores, signal: Signal, solved: Bool[Tensor, " P"], scale: float) -> dict[str, float]:
    """Raw rewards: over the batch, by function, what became of completions, the share of groups alike, and of these the solved and the others."""
    known = signal.rewards[signal.scored]
    # Rewards that are all alike have a deviation of exactly 0: that of 128 times 0.7 would be 1e-16, as their mean is not 0.7.
    alike = len(known) == 0 or bool(zero_variance(known.unsqueeze(0), torch.ones_like(known, dtype=torch.bool).unsqueeze(0)))
    metrics = {"reward/mean": float(known.mean()) if len(known) else 0.0, "reward/std": 0.0 if alike else float(known.std(correction=0))}
    metrics |= spread_metrics(known.tolist(), scale)
    for name, values in scores.by_function.items():
        given = [value for value in values if value is not None]
        metrics[f"reward/{name}"] = sum(given) / max(len(given), 1)
    for status in STATUSES[1:]:
        metrics[f"status/{status}_fraction"] = scores.row_statuses.count(status) / len(scores.row_statuses)
        metrics |= {f"status/{status}_fraction/{name}": found.count(status) / len(found) for name, found in scores.statuses.items() if status in found}
    shares = {"zero_variance": signal.alike, "solved_group": solved, "hopeless_group": signal.alike & ~solved}
    return metrics | {f"{name}_fraction": float(groups.double().mean()) for name, groups in shares.items()}


def spread_metrics(rewards: Sequence[float], scale: float) -> dict[str, float]:
    """Extremes of raw rewards (advantages are bounded and hide them), the share at the lowest, and how far the extremes lie outside of the middle 90 %.

    `reward/outlier` counts that distance in widths of the middle 90 % (of `scale`, the range of rewards, where that is wider); of fewer than 20 rewards
    the middle is all but the two extremes.
    """
    if not rewards:
        return {}
    ordered = sorted(rewards)
    tail = min(max(len(ordered) // 20, 1), (len(ordered) - 1) // 2)
    low, high = ordered[tail], ordered[-1 - tail]
    outside = max(ordered[-1] - high, low - ordered[0])
    return {
        "reward/min": ordered[0],
        "reward/max": ordered[-1],
        "reward/lowest_fraction": sum(reward - ordered[0] <= EQUAL_WITHIN * max(1.0, abs(ordered[0])) for reward in ordered) / len(ordered),
        "reward/outlier": outside / max(high - low, scale, EQUAL_WITHIN),
    }


def advantage_metrics(signal: Signal) -> dict[str, float]:
    """Advantages before clipping, and how many the clip cut."""
    known = signal.advantages[signal.scored]
    if len(known) == 0:
        return {}
    cut = (signal.clipped != signal.advantages)[signal.scored]
    mean, std = float(known.mean()), float(known.std(correction=0))
    return {
        "advantage/mean": mean,
        "advantage/std": std,
        "advantage/mean_over_std": mean / std if std > 0 else 0.0,
        "advantage/min": float(known.min()),
        "advantage/max": float(known.max()),
        "advantage/clipped_fraction": float(cut.double().mean()),
    }


def completion_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Lengths in tokens, the share that max_new_tokens cut, the share of n-grams that repeat earlier ones, and of prompts that stand in the batch twice."""
    lengths = [len(c.token_ids) for c in batch.completions]
    truncated = sum(c.finish_reason == "length" for c in batch.completions)
    return {
        "length/mean": sum(lengths) / len(lengths),
        "length/max": float(max(lengths)),
        "truncated_fraction": truncated / len(lengths),
        "tokens": float(sum(lengths)),
        "repetition": sum(repetition(c.token_ids) for c in batch.completions) / len(lengths),
        "repeated_prompt_fraction": 1 - batch.prompts["prompt_id"].n_unique() / len(batch.prompts),
    }


def repetition(token_ids: Sequence[int]) -> float:
    """Share of a completion's n-grams that it has used before; 0 where it is too short to have two."""
    grams = list(zip(*(token_ids[start:] for start in range(NGRAM)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def diversity_metrics(batch: RolloutBatch, solved: Bool[Tensor, " P"]) -> dict[str, float]:
    """`distinct_fraction`: how different the completions of a group are, 0 (all the same) to 1 (none twice), over groups that are not solved."""
    size = batch.group_size
    unsolved = [group for group, is_solved in enumerate(solved.tolist()) if not is_solved]
    kinds = [len({tuple(c.token_ids) for c in batch.completions[group * size : (group + 1) * size]}) for group in unsolved]
    return {"distinct_fraction": sum(kind - 1 for kind in kinds) / (len(kinds) * (size - 1))} if kinds else {}


def accuracy_metrics(batch: RolloutBatch, scores: Scores, metric: str) -> dict[str, float]:
    """How often the metric of `select` calls a training completion correct, and what rewards pay beyond that; nothing unless it is among the rewards.

    Both look within groups, at completions that are equally correct: `reward/beyond_accuracy` is the share of the rewards' variance
    in groups that is left among them, `length_paid` the correlation of that part with length (0 where there is none).
    """
    if metric not in scores.by_function:
        return {}
    rows = [
        (value >= CORRECT, row // batch.group_size, reward, len(batch.completions[row].token_ids))
        for row, (value, reward) in enumerate(zip(scores.by_function[metric], scores.totals, strict=True))
        if value is not None and reward is not None
    ]
    if not rows:
        return {}
    correct, groups, rewards, lengths = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    alike = groups * 2 + correct
    in_group, beyond, longer = _centred(rewards, groups), _centred(rewards, alike), _centred(lengths, alike)
    whole, left, scale = in_group @ in_group, beyond @ beyond, math.sqrt((beyond @ beyond) * (longer @ longer))
    noise = EQUAL_WITHIN * max(1.0, float(rewards @ rewards))
    return {
        "train_accuracy": float(correct.mean()),
        "reward/beyond_accuracy": float(left / whole) if whole > noise else 0.0,
        "length_paid": float(beyond @ longer / scale) if left > noise and scale > 0 else 0.0,
    }


def _centred(values: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Values less the mean of their cell."""
    _, place = np.unique(cells, return_inverse=True)
    return values - (np.bincount(place, values) / np.bincount(place))[place]


def kl_metrics(kept: Minibatch) -> dict[str, float]:
    """KL of the policy that drew the batch to the reference (k1 over its own samples), in nats a token and nats a completion."""
    if kept.ref_logprobs is None:
        return {}
    difference = (kept.old_logprobs - kept.ref_logprobs).double().masked_fill(~kept.batch.mask, 0.0)
    return {"kl/mean": float(difference.sum() / kept.batch.mask.sum()), "kl/sequence": float(difference.sum(dim=1).mean())}


def update_metrics(updates: list[StepStatistics]) -> dict[str, float]:
    """Means over the optimizer steps; extremes where the mean would hide them; the logprob gap before any weight moved."""

    def mean(name: str) -> float:
        return sum(float(getattr(u, name)) for u in updates) / len(updates)

    means = {name: mean(name) for name in ("loss", "policy_loss", "kl_loss", "grad_norm", "entropy", "clip_fraction")}
    last = updates[-1]
    seen = {"ratio/max": max(u.max_ratio for u in updates), "logprob_gap": updates[0].logprob_gap, "grad_norm/max": max(u.grad_norm for u in updates)}
    # Measured before the last step moves weights: with a single one nothing has moved yet.
    moved = {"policy_kl": last.policy_kl} if len(updates) > 1 else {}
    return means | seen | moved | {"effective_sample_fraction": last.effective_sample_fraction}


def sampler_metrics(batch: RolloutBatch, kept: Minibatch, updates: list[StepStatistics], *, are_samplers: bool) -> dict[str, float]:
    """`sampler_gap`: mean nats a token between what the sampler said of its tokens and what the trainer says of them before any weight moved.

    Where old logprobs are the sampler's (`are_samplers`) the first minibatch is compared, else the whole batch.
    """
    if are_samplers:
        return {"sampler_gap": updates[0].mean_gap}
    drawn = padded([c.logprobs for c in batch.completions], kept.old_logprobs.shape[1], torch.float32, kept.old_logprobs.device)
    gap = (kept.old_logprobs - drawn).double().abs().masked_fill(~kept.batch.mask, 0.0).sum() / kept.batch.mask.sum()
    return {"sampler_gap": float(gap)}


def cloning_metrics(cloning: Cloning, updates: list[StepStatistics]) -> dict[str, float]:
    """Weight and number of the rollout batch's demonstrations, and their mean nats a token over the optimizer steps that had some."""
    losses = [update.cloning_loss for update in updates if update.cloning_loss is not None]
    known = {"cloning/loss": sum(losses) / len(losses)} if losses else {}
    return {"cloning/weight": cloning.weight, "cloning/demonstrations": float(len(cloning.pairs))} | known


def select_metrics(rows: pl.DataFrame | None) -> dict[str, float]:
    """Accuracy and length of an evaluation on the `select` prompts (answers that could not be graded aside); nothing where there was none."""
    if rows is None:
        return {}
    graded = rows["correct"].drop_nulls()
    accuracy = {"eval/select_accuracy": sum(graded) / len(graded), "eval/select_graded": float(len(graded))} if len(graded) else {}
    return accuracy | {"eval/select_length": sum(rows["length"]) / len(rows)}
