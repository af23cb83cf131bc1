"""The charts of a report, as SVG, each with what to look at in it."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from assets import canvas
from assets.alarm_marks import Alarms
from assets.rewards import COMPARED
from grpo_core.tables import KEYS
from pipelines.report.sources import Sources

CAPTIONS: Mapping[str, tuple[str, str]] = {
    "timeline": ("Alarms by step", "A bar spans the steps at which a condition held: filled while open, an outline once over, grey when acknowledged."),
    "heldout": ("Held-out accuracy", "Prompts that were neither trained on nor used to choose anything, answered greedily by both models."),
    "reward": ("Reward", "A reward that soars and then collapses is an early explosion: look at advantages, then KL, then the gradient norm."),
    "kl": ("KL to the reference", "Near 0 throughout, the policy stands still; above some 0.5 nats a token it has left what it started from."),
    "length": ("Completion length", "Length that grows without accuracy is what the reward pays for, not what was asked for."),
    "advantages": ("Advantage distribution", "Bounded by the group's size, so one absurd reward hides here; still, many beyond ±2 point to the reward."),
    "select": ("Accuracy on select", "Never trained on. Flat while the reward rises: the reward is being fooled. Bars are 95 % intervals."),
    "entropy": ("Entropy", "Near 0 the completions of a group are alike and nothing is left to compare: fine once the task is solved."),
    "grad_norm": ("Gradient norm", "Before clipping. Far above grpo.max_grad_norm for several steps: lower the learning rate."),
    "zero_variance": ("Zero-variance groups", "Too easy: these prompts are solved. Too hard: raise G, filter by difficulty, or make the reward denser."),
    "ratio": ("Ratio and clip", "How far one batch moves the policy. A clip that cuts much throws samples away."),
    "variety": ("Variety", "Falling distinct completions and rising repetition are the first signs of late degeneration."),
    "by_function": ("Rewards by function", "What each function gave in the first and in the last tenth of training."),
    "by_length": ("Reward against length", "A line that rises with length late in training says that length is being paid for."),
}
"""Chart → its name for those who cannot see it, and what to look at."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One chart."""

    name: str
    svg: bytes

    @property
    def alt(self) -> str:
        return CAPTIONS[self.name][0]

    @property
    def caption(self) -> str:
        return CAPTIONS[self.name][1]


def training_pictures(sources: Sources, alarms: Alarms) -> list[Picture]:
    """The four charts of training, then what else the monitor watched; steps at which an alarm held are marked in all of them."""
    from assets.charts import monitor_charts, training_charts

    nothing = pl.DataFrame()
    rewards, select = (nothing if table is None else table for table in (sources.rewards, sources.select))
    drawn = training_charts(sources.metrics, rewards, alarms, canvas.svg) | monitor_charts(sources.metrics, select, alarms, canvas.svg)
    return [Picture(name, svg) for name, svg in drawn.items()]


def heldout_picture(sources: Sources) -> Picture | None:
    """Both accuracies with their intervals; None where the evaluation has not run."""
    from assets.charts import accuracy_bars

    return None if sources.summary is None else Picture("heldout", accuracy_bars(sources.summary, canvas.svg))


def timeline_picture(sources: Sources, alarms: Alarms) -> Picture:
    """Every alarm on one time axis."""
    from assets.charts import alarm_timeline

    return Picture("timeline", alarm_timeline(sources.metrics, alarms, canvas.svg))


def reward_pictures(sources: Sources) -> list[Picture]:
    """What functions gave early and late, and whether longer completions earned more; none before anything was scored."""
    from assets.histograms import reward_by_length, reward_histograms

    if sources.rewards is None or sources.rewards.is_empty():
        return []
    pictures = [Picture("by_function", reward_histograms(sources.rewards, canvas.svg))]
    if sources.rollouts is not None:
        lengths = sources.rollouts.select(*KEYS, "length").collect()
        rows = sources.rewards.filter(COMPARED).join(lengths, on=KEYS, how="inner", maintain_order="left")
        pictures.append(Picture("by_length", reward_by_length(rows, canvas.svg)))
    return pictures
