"""A candidate's training beside the champion's: the same four curves of both."""

import polars as pl

from assets import canvas
from assets.canvas import POLICY, REFERENCE
from assets.curves import curve_of, trend

PANELS = {"reward/mean": "mean reward", "eval/select_accuracy": "accuracy\non select", "kl/mean": "KL, nats\na token", "length/mean": "length,\ntokens"}


def proposal_chart(candidate: pl.DataFrame, champion: pl.DataFrame | None) -> bytes:
    """Rows of both runs' metrics.jsonl by step; the candidate alone where there is no champion."""
    runs = {"candidate": (candidate, POLICY), **({} if champion is None else {"champion": (champion, REFERENCE)})}
    shown = [column for column in PANELS if any(not curve_of(metrics, column).is_empty() for metrics, _ in runs.values())]
    title = "Candidate and champion in training" if champion is not None else "The candidate in training"
    if not shown:
        return canvas.nothing_yet(title, "no curve of either is on this machine")
    drawn = canvas.figure(0.8 + 1.5 * len(shown), title)
    axes = canvas.panels(drawn, [1] * len(shown), x_label="step (rollout batches)")
    for panel, column in zip(axes, shown, strict=True):
        for name, (metrics, color) in reversed(runs.items()):
            trend(panel, curve_of(metrics, column), column, label=name, color=color)
        canvas.label(panel, PANELS[column])
    canvas.legend(axes[0])
    canvas.whole_numbers(axes[-1])
    return canvas.png(drawn)
