"""A step in numbers: what is logged of rewards, advantages, completions, KL and updates. Pure functions, deterministic figures."""

import polars as pl
import torch

from grpo_core.advantages import EQUAL_WITHIN
from grpo_core.cloning import Cloning
from grpo_core.rewards.outcomes import STATUSES
from grpo_core.rewards.scoring import Scores
from grpo_core.rollout import RolloutBatch
from grpo_core.signal import Signal
from grpo_core.step import Minibatch, StepStatistics


def reward_metrics(scores: Scores, signal: Signal, full_marks: float) -> dict[str, float]:
    """Raw rewards: over the batch, by function, what became of completions, the share of groups alike, and of these alike at full marks."""
    known = signal.rewards[signal.scored]
    metrics = {"reward/mean": float(known.mean()) if len(known) else 0.0, "reward/std": float(known.std(correction=0)) if len(known) else 0.0}
    for name, values in scores.by_function.items():
        given = [value for value in values if value is not None]
        metrics[f"reward/{name}"] = sum(given) / max(len(given), 1)
    for status in STATUSES[1:]:
        metrics[f"status/{status}_fraction"] = scores.row_statuses.count(status) / len(scores.row_statuses)
        metrics |= {f"status/{status}_fraction/{name}": found.count(status) / len(found) for name, found in scores.statuses.items() if status in found}
    lowest = signal.rewards.masked_fill(~signal.scored, torch.inf).amin(dim=1)
    solved = signal.alike & signal.scored.any(dim=1) & (lowest >= full_marks - EQUAL_WITHIN)
    return metrics | {"zero_variance_fraction": float(signal.alike.double().mean()), "solved_group_fraction": float(solved.double().mean())}


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
    accuracy = {"eval/select_accuracy": sum(graded) / len(graded)} if len(graded) else {}
    return accuracy | {"eval/select_length": sum(rows["length"]) / len(rows)}
