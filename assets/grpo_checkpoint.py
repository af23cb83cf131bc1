"""The policy after GRPO, and the rollouts and rewards it learned from. One process writes all three."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from assets.alarms import NOT_RECORDED, halts_before, open_conditions, read_alarms
from assets.page import Chart, Metadata, Notice, Progress, ProgressCallback
from assets.paths import Paths
from grpo_core.config import RunConfig

if TYPE_CHECKING:
    from grpo_core.health.monitor import Alarm
    from grpo_core.loop import Files


def produce(paths: Paths, config: RunConfig, on_progress: ProgressCallback, should_stop: Callable[[], bool], work: Path) -> None:
    """Train; a run that was stopped, or is to be longer, continues from its newest checkpoint in its `work_folder`."""
    from grpo_core.loop import StepReport, train

    def on_step(report: StepReport) -> None:
        speed = {name: value for name, value in report.timings.items() if name != "timestamp_ms"}
        on_progress(Progress(report.step, config.grpo.steps, {**report.metrics, **speed}, report.checkpointed))

    def on_exploit(tried: int, of: int) -> None:
        on_progress(Progress(0, config.grpo.steps, {"exploits_tried": tried, "exploits": of}))

    def on_alarm(alarm: "Alarm") -> None:
        on_progress(Progress(alarm.first_step, config.grpo.steps, notices=[notice(alarm)]))

    train(_files(paths, work), config, on_step=on_step, should_stop=should_stop, on_exploit=on_exploit, on_alarm=on_alarm)


def notice(alarm: "Alarm") -> Notice:
    """An alarm as a person hears of it while training goes on."""
    lines = [f"{alarm.severity} at step {alarm.first_step}, {alarm.condition}: {alarm.message}", f"  what to do: {alarm.remedy} ({alarm.page})"]
    if alarm.acknowledged is not None:
        lines[1:] = [f"  accepted: {alarm.acknowledged}"]
    if alarm.adjustment:
        lines.append("  adjusted: " + ", ".join(f"{name} is {value:g} from now on" for name, value in alarm.adjustment.items()))
    return Notice("\n".join(lines), asdict(alarm))


def run_key(paths: Paths, config: RunConfig) -> str:
    """What names the run: its configuration, inputs, code and arithmetic."""
    from grpo_core.loop import run_key as key

    return key(_files(paths, _work(paths)), config)


def work_folder(paths: Paths, config: RunConfig) -> Path:
    """Resume state of this very run, named by its key; another configuration has a folder of its own.

    Reads the inputs and the code as they are now: ask once, before training.
    """
    return _work(paths) / run_key(paths, config)


def finished_work_folder(paths: Paths) -> Path:
    """Where the run that the trained policy came from kept its resume state, by the key in the policy's manifest."""
    return _work(paths) / finished_run_key(paths)


def finished_run_key(paths: Paths) -> str:
    """The key that the trained policy's manifest names its run by."""
    return str(json.loads((paths.grpo_checkpoint / "manifest.json").read_text(encoding="utf-8"))["run_key"])


def _work(paths: Paths) -> Path:
    return paths.work / "grpo_checkpoint" / paths.experiment


def _files(paths: Paths, work: Path) -> "Files":
    from grpo_core.loop import Files

    return Files(
        prompts=paths.prompts,
        start=paths.sft_checkpoint,
        reference=paths.reference_checkpoint,
        rollouts=paths.rollout_batches,
        select=paths.select_completions,
        rewards=paths.rewards,
        exploits=paths.exploits,
        alarms=paths.alarms,
        checkpoint=paths.grpo_checkpoint,
        timings=paths.provenance("grpo_checkpoint") / "timings.jsonl",
        clock_alarms=paths.clock_alarms,
        work=work,
    )


def describe(paths: Paths) -> Metadata:
    """The four charts, what the health monitor saw, the last step's numbers, and which weights came out."""
    from assets.charts import alarm_timeline, monitor_charts, training_charts

    manifest = json.loads((paths.grpo_checkpoint / "manifest.json").read_text())
    metrics = pl.read_ndjson(paths.grpo_checkpoint / "metrics.jsonl", infer_schema_length=None)
    recorded = read_alarms(paths.alarms)
    alarms, before = recorded or [], halts_before(paths.clock_alarms)
    charts = training_charts(metrics, pl.read_parquet(paths.rewards), alarms)
    charts |= {"alarms": alarm_timeline(metrics, alarms), **monitor_charts(metrics, pl.read_parquet(paths.select_completions), alarms)}
    last = metrics.tail(1).to_dicts()[0]
    numbers = {name: last[name] for name in ("reward/mean", "kl/mean", "length/mean", "entropy", "grad_norm", "beta") if last.get(name) is not None}
    selected = metrics.drop_nulls("eval/select_accuracy")["eval/select_accuracy"].tail(1).to_list() if "eval/select_accuracy" in metrics.columns else []
    return {
        "steps": manifest["step"],
        **numbers,
        **({"select_accuracy": selected[0]} if selected else {}),
        "open_alarms": NOT_RECORDED if recorded is None else len(open_conditions(alarms)),
        **({"halts": before} if before else {}),
        **{f"chart/{name}": Chart(png) for name, png in charts.items()},
        "weights": manifest["policy_digest"],
        "run_key": manifest["run_key"],
        "folder": paths.grpo_checkpoint,
    }
