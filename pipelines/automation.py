"""What starts by itself: jobs to launch, a weekly schedule, and a sensor for work done in a shell. Nothing here is switched on by default."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition  # not exported

from pipelines.graph import LOOP, Graph
from pipelines.stage_assets import GROUP
from pipelines.sync import sync

LIFECYCLE = "lifecycle"
FROM_GRPO = "from_grpo"
CHAMPION_EVAL = "champion_eval"
"""Reads nothing of GRPO, and the gate after it reads what it says."""


def jobs() -> list[UnresolvedAssetJobDefinition]:
    """The whole lifecycle, and what follows the reference checkpoint; a run is one experiment, and compares it with the others that are there."""
    return [
        dg.define_asset_job(
            LIFECYCLE, dg.AssetSelection.groups(GROUP), description="From prompts to the promotion report, for one experiment, and the comparison of all."
        ),
        dg.define_asset_job(
            FROM_GRPO,
            dg.AssetSelection.assets(*LOOP).downstream() | dg.AssetSelection.assets(CHAMPION_EVAL),
            description="GRPO and what follows it, for one experiment, and the comparison of all.",
        ),
    ]


def weekly_retraining(graph: Graph) -> dg.ScheduleDefinition:
    """A run of the lifecycle for every experiment. DVC skips what has not changed, so a quiet week costs seconds."""

    @dg.schedule(
        name="weekly_retraining",
        job_name=LIFECYCLE,
        cron_schedule="0 2 * * 0",
        description="The lifecycle of every experiment, Sundays at 02:00.",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )
    def schedule(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest]:
        for experiment in graph.experiments:
            yield dg.RunRequest(run_key=f"{context.scheduled_execution_time:%Y-%m-%d}-{experiment}", partition_key=experiment)

    return schedule


def dvc_sync(root: Path) -> dg.SensorDefinition:
    """Keeps Dagster's pages true when people use `dvc repro` or `dvc checkout` in a shell."""

    @dg.sensor(
        name="dvc_sync",
        minimum_interval_seconds=30,
        description="Reports what `dvc repro` made in a shell.",
        default_status=dg.DefaultSensorStatus.STOPPED,
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        lock = root / "dvc.lock"
        digest = hashlib.sha256(lock.read_bytes()).hexdigest() if lock.exists() else ""
        if digest == (context.cursor or ""):
            return dg.SkipReason("dvc.lock has not changed")
        # Reported here, one after another: returned as SensorResult(asset_events=...), partitioned assets would stay stale.
        reported = sync(root, context.instance)
        context.update_cursor(digest)
        return dg.SkipReason(f"reported {', '.join(reported)}" if reported else "Dagster knew everything already")

    return sensor
