"""The code location: everything Dagster shows and runs.

It imports no torch, transformers, MLflow or Great Expectations: stages do, in processes of their own.
"""

from pathlib import Path

import dagster as dg

from pipelines.automation import FROM_GRPO, LIFECYCLE, dvc_sync, jobs, weekly_retraining
from pipelines.checks import in_sync_checks
from pipelines.execution import Outcome, run_in_process
from pipelines.graph import load_graph
from pipelines.params import ROOT
from pipelines.promote_job import promote_job
from pipelines.stage_assets import stage_assets


def build_definitions(root: Path) -> dg.Definitions:
    """The definitions of the checkout at `root`. Raises `ConfigError` when its params.yaml cannot be run."""
    graph = load_graph(root)
    return dg.Definitions(
        assets=[stage_assets(root, graph, stage) for stage in graph.stages],
        asset_checks=[in_sync_checks(root, graph)],
        jobs=[*jobs(), promote_job(root)],
        schedules=[weekly_retraining(graph)],
        sensors=[dvc_sync(root)],
    )


def run_job(root: Path, experiment: str, *, from_grpo: bool = False, instance: dg.DagsterInstance | None = None) -> Outcome:
    """Run the lifecycle, or its part from GRPO on, in this process.

    Dagster keeps its record in `instance`, by default the one of DAGSTER_HOME.
    """
    location = defs if root.resolve() == ROOT else build_definitions(root)
    job = location.resolve_job_def(FROM_GRPO if from_grpo else LIFECYCLE)
    return run_in_process(job, experiment, instance or dg.DagsterInstance.get())


defs = build_definitions(ROOT)
