"""A stage of dvc.yaml as Dagster assets. Materializing them is `dvc repro` of that stage: the same path as in a shell."""

import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import dagster as dg

from assets.paths import Paths
from pipelines.checks import check_specs, halt_results, stage_results
from pipelines.dead_locks import wait_until_free
from pipelines.dead_runs import host_tags
from pipelines.graph import LOOP_STAGE, RUN_CONFIG, Graph, Target, code_version, description_of
from pipelines.launcher import repro_command, run_stage
from pipelines.lock import read_lock
from pipelines.pages import OUTCOME, page
from pipelines.resume_state import settle

GROUP = "lifecycle"
POOL = "training"
"""One stage at a time: there is one GPU, and DVC locks the repository."""


def partitions(graph: Graph) -> dg.StaticPartitionsDefinition:
    """An experiment of params.yaml is a partition."""
    return dg.StaticPartitionsDefinition(list(graph.experiments))


def asset_spec(root: Path, graph: Graph, asset: str) -> dg.AssetSpec:
    """What Dagster shows of an asset before it is made."""
    target = graph.targets_of(graph.stage_of(asset))[0]
    return dg.AssetSpec(
        asset,
        deps=sorted(graph.parents(asset)),
        description=description_of(root, target, asset),
        group_name=GROUP,
        code_version=code_version(root, target),
        kinds=kinds(asset, target),
        partitions_def=partitions(graph) if target.experiment is not None else None,
        metadata={"dvc/stage": target.stage, "dvc/command": target.command, "dvc/outs": ", ".join(target.outs_of(asset))},
    )


def kinds(asset: str, target: Target) -> set[str]:
    """What the asset's files are, as Dagster shows it."""
    if asset.endswith("_checkpoint"):
        return {"dvc", "huggingface", "pytorch"}
    return {"dvc", *(PurePosixPath(path).suffix[1:] for path in target.outs_of(asset))}


def stage_assets(root: Path, graph: Graph, stage: str) -> dg.AssetsDefinition:
    """The assets of one stage; all of a stage's assets are made together."""
    any_target = graph.targets_of(stage)[0]

    @dg.multi_asset(
        name=stage,
        specs=[asset_spec(root, graph, asset) for asset in any_target.assets],
        check_specs=check_specs(any_target),
        can_subset=False,
        pool=POOL,
    )
    def run(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        target = graph.target(stage, context.partition_key if context.has_partition_key else None)
        yield from materialize(context, root, target)

    return run


def materialize(context: dg.AssetExecutionContext, root: Path, target: Target) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
    """Run the target, then say what came out. When it fails, contracts that it found violated, and a halt, are reported first."""
    context.instance.add_run_tags(context.run.run_id, host_tags())
    started = time.time()
    wait_until_free(root)
    try:
        worked = run_stage(context, repro_command(RUN_CONFIG, target.name), root, observed_asset(target))
    except dg.Failure:
        # Whole seconds: some file systems keep no more.
        yield from stage_results(root, target, since=int(started))
        yield from halt_results(root, target, since=int(started))
        raise
    settle(Paths(root))
    entry = read_lock(root)[target.name]
    outcome = "made" if worked else "up to date, or taken from DVC's cache"
    for asset in target.assets:
        version = dg.DataVersion(entry.data_version(target, asset))
        yield dg.MaterializeResult(asset_key=asset, data_version=version, metadata={**page(root, target, asset, entry), OUTCOME: outcome})
    yield from stage_results(root, target)


def observed_asset(target: Target) -> str:
    """The asset whose page shows a stage's progress."""
    return LOOP_STAGE if target.stage == LOOP_STAGE else target.assets[0]
