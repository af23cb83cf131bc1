"""Tells Dagster what `dvc repro` made in a shell, so that both know the same results."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
from dagster._core.definitions.data_version import (  # not exported
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)

from pipelines.checks import CONTRACT, EXPERIMENT, HEALTHY, TRAINED, VERDICT, health_results, stage_results
from pipelines.graph import RUN_CONFIG, Graph, Target, code_version, load_graph
from pipelines.lock import Entry, read_lock
from pipelines.pages import OUTCOME, page
from pipelines.staleness import changed_data

MANY = 1000
"""Evaluations of the check of health that are looked through, the newest first; of an experiment without one among them it is told again."""
BEFORE_ALL = "1"
"""Points at the first event of the log: Dagster takes every version of the parent for newer."""


def sync(root: Path, instance: dg.DagsterInstance | None = None) -> list[str]:
    """Report every result in dvc.lock that Dagster (the instance of DAGSTER_HOME unless given) lacks; returns `asset` or `asset@experiment` of each.

    In topological order, each as soon as it is known: an event points at those of its parents, as a run's would.
    """
    instance = instance or dg.DagsterInstance.get()
    graph, lock = load_graph(root), read_lock(root)
    reported: list[str] = []
    judged = _last_verdicts(instance)
    for target in graph.targets:
        if target.stage == RUN_CONFIG or target.name not in lock:
            continue
        news = [asset for asset in target.assets if _report(instance, root, graph, target, asset, lock)]
        # The verdict on the same weights changes with the thresholds, and with what is acknowledged.
        for result in stage_results(root, target) if news else health_results(root, target):
            if news or result.metadata[VERDICT].value != judged.get(target.experiment):
                _report_check(instance, result)
        reported += [asset if target.experiment is None else f"{asset}@{target.experiment}" for asset in news]
    return reported


def _report(instance: dg.DagsterInstance, root: Path, graph: Graph, target: Target, asset: str, lock: Mapping[str, Entry]) -> bool:
    """Report one result unless Dagster's newest says the same."""
    entry, inputs = lock[target.name], input_versions(graph, target, asset, lock)
    tags = {
        DATA_VERSION_TAG: entry.data_version(target, asset),
        DATA_VERSION_IS_USER_PROVIDED_TAG: "true",
        CODE_VERSION_TAG: code_version(root, target),
        **{get_input_data_version_tag(dg.AssetKey(parent)): version for parent, version in inputs.items()},
    }
    known = _newest_tags(instance, asset, target.experiment)
    pointers = {get_input_event_pointer_tag(dg.AssetKey(parent)): _pointer(instance, graph, target, parent) for parent in inputs}
    of_all = [dg.AssetKey(parent) for parent in inputs if is_of_all(graph, target, parent)]
    if of_all and changed_data(root, target.name):
        pointers |= {get_input_event_pointer_tag(parent): BEFORE_ALL for parent in of_all}
    # Of what is read in part the other part's version is that of now, which says nothing of this result.
    in_part = [dg.AssetKey(parent) for parent in inputs if not is_of_all(graph, target, parent) and is_read_in_part(graph, target, parent, entry)]
    passing = {get_input_data_version_tag(parent) for parent in (*of_all, *in_part)}
    telling = {name: value for name, value in tags.items() if name not in passing} | {name: pointers[name] for name in map(get_input_event_pointer_tag, of_all)}
    if all(known.get(name) == value for name, value in telling.items()):
        return False
    metadata = {**page(root, target, asset, entry), OUTCOME: dg.MetadataValue.text("made in a shell")}
    instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=target.experiment, tags={**tags, **pointers}, metadata=metadata))
    return True


def input_versions(graph: Graph, target: Target, asset: str, lock: Mapping[str, Entry]) -> dict[str, str]:
    """Parent → the version of it that the result was made from, which may be older than what lies on disk now; spelled as a run spells it.

    What is made from all experiments together knows them by the folders they lie in, which are no version of anything: of its parents it gets
    the versions of now. Dagster tells whether it is stale by the events that it points at.
    """
    entry = lock[target.name]
    hashes = {**entry.deps, **entry.outs}
    versions = {}
    for parent in sorted(graph.parents(asset)):
        if is_of_all(graph, target, parent):
            made = sorted((other for other in graph.targets_of(graph.stage_of(parent)) if other.name in lock), key=lambda other: other.name)
            version = "".join(lock[other.name].data_version(other, parent) for other in made)
        else:
            maker = graph.target(graph.stage_of(parent), target.experiment)
            # Of a parent with several outputs some may not be read: those are as they are now.
            known = {**(lock[maker.name].outs if maker.name in lock else {}), **hashes}
            version = "+".join(known[path] for path in maker.outs_of(parent) if path in known)
        # Dagster hashes the versions of another step's partitions, in case there are many.
        hashed = graph.is_partitioned(parent) and parent not in target.assets
        versions[parent] = hashlib.sha256(version.encode()).hexdigest() if hashed else version
    return versions


def is_read_in_part(graph: Graph, target: Target, parent: str, entry: Entry) -> bool:
    """Whether some output of the parent is none of what the target reads (or makes itself)."""
    return not set(graph.target(graph.stage_of(parent), target.experiment).outs_of(parent)) <= {*entry.deps, *entry.outs}


def is_of_all(graph: Graph, target: Target, parent: str) -> bool:
    """Whether the target, which no experiment has for itself, reads the parent of every experiment."""
    return target.experiment is None and graph.is_partitioned(parent)


def _newest_tags(instance: dg.DagsterInstance, asset: str, partition: str | None) -> Mapping[str, str]:
    record = instance.get_latest_data_version_record(dg.AssetKey(asset), partition_key=partition)
    return (record.event_log_entry.tags or {}) if record else {}


def _pointer(instance: dg.DagsterInstance, graph: Graph, target: Target, parent: str) -> str:
    """Where the parent's newest event stands in the event log."""
    partition = target.experiment if graph.is_partitioned(parent) else None
    record = instance.get_latest_data_version_record(dg.AssetKey(parent), partition_key=partition)
    return str(record.storage_id) if record else "NULL"


def _last_verdicts(instance: dg.DagsterInstance) -> dict[str | None, str]:
    """Experiment → the digest of what was said last of its training's health."""
    key = dg.AssetCheckKey(dg.AssetKey(TRAINED), HEALTHY)
    found: dict[str | None, str] = {}
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=MANY):
        event = record.event.dagster_event if record.event else None
        evaluated = event.event_specific_data if event else None
        if isinstance(evaluated, dg.AssetCheckEvaluation) and {EXPERIMENT, VERDICT} <= evaluated.metadata.keys():
            found.setdefault(str(evaluated.metadata[EXPERIMENT].value), str(evaluated.metadata[VERDICT].value))
    return found


def _report_check(instance: dg.DagsterInstance, result: dg.AssetCheckResult) -> None:
    assert result.asset_key is not None and result.check_name is not None
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            asset_key=result.asset_key,
            check_name=result.check_name,
            passed=result.passed,
            description=result.description,
            metadata=dict(result.metadata),
            severity=result.severity,
            blocking=result.check_name == CONTRACT,
        )
    )
