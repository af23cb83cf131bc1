"""What a training leaves of an experiment, as far as it is compared, with curves made by hand."""

import json

import numpy as np
import polars as pl

from assets.paths import Paths
from grpo_core.config import RunConfig
from grpo_core.health.adjustment import changes_steps
from grpo_core.work_folder import lasting_values

TRAINED_FROM = ("model", "rollout", "rewards", "reward_options", "scoring", "grpo")
"""Sections that the manifest of a trained policy names."""


def write_trained(paths: Paths, config: RunConfig, *, rise: float, noise: float = 0.01, final: int = 80) -> None:
    """A run of `config.grpo.steps` steps of 100 tokens whose reward rises from 0.4 by `rise` a step; `final` of 100 answers are right in the end."""
    steps, seed = config.grpo.steps, config.grpo.seed
    shaken = np.random.default_rng(seed).normal(0, noise, steps)
    lines = [{"step": 0, "eval/select_accuracy": 0.4}]
    lines += [{"step": step, "reward/mean": 0.4 + rise * step + float(shaken[step - 1]), "tokens": 100.0} for step in range(1, steps + 1)]
    lines[-1]["eval/select_accuracy"] = final / 100
    answers = {"step": [0] * 100 + [steps] * 100, "correct": [place < 40 for place in range(100)] + [place < final for place in range(100)]}
    paths.grpo_checkpoint.mkdir(parents=True, exist_ok=True)
    manifest = {
        "config": {section: lasting_values(config, section) for section in TRAINED_FROM} | {"health": changes_steps(config)},
        "run_key": f"{paths.experiment} at {rise}",
        "step": steps,
    }
    (paths.grpo_checkpoint / "manifest.json").write_text(json.dumps(manifest))
    (paths.grpo_checkpoint / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    paths.rewards.parent.mkdir(parents=True, exist_ok=True)
    # Two groups a step, 0.02 apart: the standard error of their mean is 0.01.
    means = [(line["step"], group, line["reward/mean"] + (group - 0.5) / 50) for line in lines if "reward/mean" in line for group in (0, 1)]
    pl.DataFrame(means, schema=["step", "group", "reward"], orient="row").write_parquet(paths.rewards)
    paths.select_completions.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(answers).write_parquet(paths.select_completions)
