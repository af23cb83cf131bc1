"""Logs of a few steps in which one thing goes wrong each, and thresholds that tell it from what is just well."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from grpo_core.config import HealthConfig

SETTINGS = HealthConfig(
    patience=2, window=4, max_kl=0.5, max_policy_kl=2**-6, max_grad_norm=4.0, max_sampler_gap=2**-10, outlier_factor=64.0, max_alike_fraction=0.75,
    sparse_fraction=0.875, max_repeated_prompts=0.5, min_distinct_fraction=0.125, max_truncated_fraction=0.25, max_length_growth=0.5, reward_drop=0.25,
    accuracy_drop=0.125, length_paid=0.5, max_repetition=0.25, max_error_fraction=2**-5, max_invalid_fraction=0.5, slow_factor=4.0,
)  # fmt: skip
"""Every threshold, in numbers that binary fractions have: what is just at one is not beyond it by rounding."""

DEAF = HealthConfig(
    max_kl=1e9, max_policy_kl=1e9, max_grad_norm=1e9, max_sampler_gap=1e9, outlier_factor=1e9, max_alike_fraction=1.0, sparse_fraction=1.0,
    max_repeated_prompts=1.0, min_distinct_fraction=0.0, max_truncated_fraction=1.0, max_length_growth=1e9, reward_drop=1.0, accuracy_drop=1.0,
    length_paid=1.0, max_repetition=1.0, max_error_fraction=1.0, max_invalid_fraction=1.0, slow_factor=1e9,
)  # fmt: skip
"""Thresholds that no tiny run gets beyond, so that a test names the one that it is about."""

Columns = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A condition that one threshold decides about."""

    condition: str
    threshold: str
    columns: Callable[[float], Columns]
    """The log (a column a metric, from step 1 on) in which this number is what the threshold is held against."""
    well: float
    """The worst number that is no trouble with `SETTINGS`."""
    ill: float
    """One that is."""
    lenient: float
    """A threshold with which it is none."""

    @property
    def name(self) -> str:
        return f"{self.condition}: {self.threshold}"


def lines(columns: Columns) -> list[dict[str, float]]:
    """The log's lines; that of step 0, before training, has no metrics. A metric that is None is not there."""
    steps = zip(*columns.values(), strict=True)
    return [{}, *({name: value for name, value in zip(columns, step, strict=True) if value is not None} for step in steps)]


TROUBLES = [
    Trouble(
        condition="reward_outlier", threshold="outlier_factor", well=64.0, ill=64.5, lenient=128.0,
        columns=lambda number: {"reward/outlier": [number], "reward/min": [0.0], "reward/max": [number]},
    ),
    Trouble(
        condition="sampler_mismatch", threshold="max_sampler_gap", well=2**-10, ill=2**-9, lenient=2**-8,
        columns=lambda number: {"sampler_gap": [number]},
    ),
    Trouble(
        condition="early_explosion", threshold="max_kl", well=0.5, ill=0.75, lenient=1.0,
        columns=lambda number: {"kl/mean": [0.25, number]},
    ),
    Trouble(
        condition="early_explosion", threshold="max_policy_kl", well=2**-6, ill=2**-5, lenient=2**-4,
        columns=lambda number: {"policy_kl": [number, number]},
    ),
    Trouble(
        condition="early_explosion", threshold="max_grad_norm", well=4.0, ill=4.5, lenient=8.0,
        columns=lambda number: {"grad_norm": [number, number]},
    ),
    Trouble(
        condition="weak_signal", threshold="max_alike_fraction", well=0.75, ill=0.875, lenient=1.0,
        columns=lambda number: {"zero_variance_fraction": [number] * 3, "hopeless_group_fraction": [number] * 3},
    ),
    Trouble(
        condition="sparse_rewards", threshold="sparse_fraction", well=0.75, ill=0.875, lenient=1.0,
        columns=lambda number: {"reward/lowest_fraction": [number] * 3, "reward/std": [0.25] * 3, "reward/mean": [0.125] * 3},
    ),
    Trouble(
        condition="repeated_prompts", threshold="max_repeated_prompts", well=0.5, ill=0.75, lenient=1.0,
        columns=lambda number: {"repeated_prompt_fraction": [number]},
    ),
    Trouble(
        condition="low_diversity", threshold="min_distinct_fraction", well=0.125, ill=0.0625, lenient=0.03125,
        columns=lambda number: {"distinct_fraction": [number] * 2, "entropy": [0.5] * 2},
    ),
    Trouble(
        condition="truncation", threshold="max_truncated_fraction", well=0.25, ill=0.5, lenient=1.0,
        columns=lambda number: {"truncated_fraction": [number] * 2},
    ),
    Trouble(
        condition="runaway_length", threshold="max_length_growth", well=15.0, ill=16.0, lenient=1.0,
        columns=lambda number: {"length/mean": [10.0, 10.0, number, number], "train_accuracy": [0.5] * 4},
    ),
    Trouble(
        condition="reward_hacking", threshold="accuracy_drop", well=0.375, ill=0.25, lenient=0.5,
        columns=lambda number: {"reward/mean": [0.25, 0.25, 0.5, 0.5], "train_accuracy": [0.5, 0.5, number, number]},
    ),
    Trouble(
        condition="reward_hacking", threshold="length_paid", well=0.5, ill=0.75, lenient=1.0,
        columns=lambda number: {"length_paid": [number] * 3, "reward/beyond_accuracy": [0.5] * 3},
    ),
    Trouble(
        condition="late_degeneration", threshold="reward_drop", well=0.5, ill=0.25, lenient=0.75,
        columns=lambda number: {"reward/mean": [0.75] * 4 + [number] * 4},
    ),
    Trouble(
        condition="late_degeneration", threshold="max_repetition", well=0.375, ill=0.5, lenient=0.75,
        columns=lambda number: {"repetition": [0.125] * 4 + [number] * 4},
    ),
    Trouble(
        condition="reward_failures", threshold="max_error_fraction", well=2**-5, ill=2**-4, lenient=2**-3,
        columns=lambda number: {"status/error_fraction": [number]},
    ),
    Trouble(
        condition="reward_failures", threshold="max_invalid_fraction", well=0.5, ill=0.75, lenient=1.0,
        columns=lambda number: {"status/invalid_fraction": [number] * 2},
    ),
    Trouble(
        condition="slow_reward", threshold="slow_factor", well=4.0, ill=4.5, lenient=8.0,
        columns=lambda number: {"seconds/score": [1.0, 1.0, number], "seconds": [2.0, 2.0, number + 1]},
    ),
    Trouble(
        condition="stall", threshold="slow_factor", well=4.0, ill=4.5, lenient=8.0,
        columns=lambda number: {"seconds/score": [1.0, 1.0, 1.0], "seconds": [2.0, 2.0, number + 1]},
    ),
]  # fmt: skip
"""In each log the other thresholds of `SETTINGS` are far from anything that stands in it."""
