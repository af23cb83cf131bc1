"""A step in numbers: what is logged of rewards, advantages, completions, KL and updates. Pure functions, deterministic figures."""

from collections.abc import Mapping

import polars as pl
import torch

from grpo_core.advantages import EQUAL_WITHIN, zero_variance
from grpo_core.rewards import Scores
from grpo_core.rollout import RolloutBatch
from grpo_core.signal import Signal
from grpo_core.step import Minibatch, StepStatistics


def full_marks(weights: Mapping[str, float]) -> float:
    """What a completion earns when every reward function gives 1 where it counts for and 0 where it counts against."""
    return sum(weight for weight in weights.values() if weight > 0)


def reward_metrics(scores: Scores, signal: Signal, full_marks: float) -> dict[str, float]:
    """Raw rewards: over the batch, by function, the share of groups whose rewards are all alike, and of these alike at full marks."""
    known = signal.rewards[signal.scored]
    metrics = {"reward/mean": float(known.mean()) if len(known) else 0.0, "reward/std": float(known.std(correction=0)) if len(known) else 0.0}
    for name, values in scores.by_function.items():
        given = [value for value in values if value is not None]
        metrics[f"reward/{name}"] = sum(given) / max(len(given), 1)
    alike = zero_variance(signal.rewards, signal.scored)
    lowest = signal.rewards.masked_fill(~signal.scored, torch.inf).amin(dim=1)
    solved = alike & signal.scored.any(dim=1) & (lowest >= full_marks - EQUAL_WITHIN)
    return metrics | {"zero_variance_fraction": float(alike.double().mean()), "solved_group_fraction": float(solved.double().mean())}


def advantage_metrics(signal: Signal) -> dict[str, float]:
    """Advantages before clipping, and how many the clip cut."""
    known = signal.advantages[signal.scored]
    if len(known) == 0:
        return {}
    cut = (signal.clipped != signal.advantages)[signal.scored]
    return {
        "advantage/mean": float(known.mean()),
        "advantage/std": float(known.std(correction=0)),
        "advantage/min": float(known.min()),
        "advantage/max": float(known.max()),
        "advantage/clipped_fraction": float(cut.double().mean()),
    }


def completion_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Lengths in tokens, and the share that max_new_tokens cut."""
    lengths = [len(c.token_ids) for c in batch.completions]
    truncated = sum(c.finish_reason == "length" for c in batch.completions)
    return {
        "length/mean": sum(lengths) / len(lengths),
        "length/max": float(max(lengths)),
        "truncated_fraction": truncated / len(lengths),
        "tokens": float(sum(lengths)),
    }


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
    return means | {"ratio/max": max(u.max_ratio for u in updates), "logprob_gap": updates[0].logprob_gap}


def select_metrics(rows: pl.DataFrame | None) -> dict[str, float]:
    """Accuracy and length of an evaluation on the `select` prompts; nothing where there was none."""
    return {} if rows is None else {"eval/select_accuracy": sum(rows["correct"]) / len(rows), "eval/select_length": sum(rows["length"]) / len(rows)}
