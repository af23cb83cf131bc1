"""The checks on an asset's page: `contract` (later stages may rely on its table), `healthy` and `in_sync` (it is what the configuration would give now)."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import dagster as dg

from assets.alarms import NOT_RECORDED, halts_before, read_alarms
from assets.paths import Paths
from grpo_core.requirements import ConfigError
from pipelines.graph import Graph, Target
from pipelines.pages import escaped, markdown_table
from pipelines.staleness import all_out_of_sync

CONTRACT = "contract"
HEALTHY = "healthy"
EXPERIMENT, VERDICT = "experiment", "verdict"
"""Metadata of `healthy`: whose training it is about (the check is one for all of them), and a digest of what was said, by which a changed verdict is known."""
PROMOTION = "promotion_report"
CONDITIONS = {
    "disjoint": "No held-out prompt is among those that were trained on",
    "better": "The policy is better than the champion on held-out prompts, surely",
    "guards": "No guarded task has fallen further than it may",
    "health": "No alarm of the health monitor is open",
    "reward_audit": "No exploit pays more than is allowed",
    "blind_verdict": "People prefer the policy in blind review",
}
"""The gate's conditions, as its report names them, and what each asks."""
TRAINED = "grpo_checkpoint"
"""The asset whose page shows the training's health."""
IN_SYNC = "in_sync"


def contract_spec(asset: str) -> dg.AssetCheckSpec:
    """The gate in front of everything made from the asset."""
    return dg.AssetCheckSpec(CONTRACT, asset=asset, blocking=True, description=f"What must hold of {asset} (Great Expectations, run by the stage itself).")


def check_specs(target: Target) -> list[dg.AssetCheckSpec]:
    """The checks that the stage itself writes the outcome of."""
    contracts = [contract_spec(asset) for asset in target.assets if target.contract_of(asset) is not None]
    health = [health_spec(TRAINED)] if alarms_of(target) is not None else []
    return [*contracts, *health, *(condition_specs() if target.stage == PROMOTION else [])]


def stage_results(root: Path, target: Target, *, since: float = 0.0) -> Iterator[dg.AssetCheckResult]:
    """The outcome of each of them, as far as the stage wrote it after the time `since`."""
    yield from contract_results(root, target, since=since)
    yield from health_results(root, target, since=since)
    yield from condition_results(root, target, since=since)


def contract_results(root: Path, target: Target, *, since: float = 0.0) -> Iterator[dg.AssetCheckResult]:
    """The outcome of each contract of the target."""
    for asset in target.assets:
        path = root / (target.contract_of(asset) or "")
        if path.is_file() and path.stat().st_mtime >= since:
            yield contract_result(asset, json.loads(path.read_text(encoding="utf-8")))


def contract_result(asset: str, validation: Mapping[str, Any]) -> dg.AssetCheckResult:
    """One contract's outcome: what is violated, and which rows."""
    violated = [outcome for outcome in validation["expectations"] if not outcome["success"]]
    metadata: dict[str, Any] = {"rows checked": validation["num_rows"], "expectations": len(validation["expectations"]), "violated": len(violated)}
    if violated:
        metadata["violations"] = dg.MetadataValue.md("\n\n".join(map(_violation, violated)))
    return dg.AssetCheckResult(check_name=CONTRACT, asset_key=asset, passed=validation["success"], description=validation["summary"], metadata=metadata)


def _violation(outcome: Mapping[str, Any]) -> str:
    """The rule in words, how often it is broken, and the first rows that break it."""
    count = f" ({outcome['unexpected_count']} rows)" if outcome["unexpected_count"] else ""
    found = f"\n\nfound: {escaped(str(outcome['observed']))}" if outcome["observed"] is not None and not outcome["rows"] else ""
    table = f"\n\n{markdown_table(outcome['rows'])}" if outcome["rows"] else ""
    return f"**{escaped(outcome['why'])}**{count}{found}{table}"


def health_spec(asset: str) -> dg.AssetCheckSpec:
    """What the health monitor said of the training; it does not keep anybody from evaluating the policy, an open alarm only keeps it from promotion."""
    return dg.AssetCheckSpec(HEALTHY, asset=asset, description="No alarm of the health monitor is open (docs/health.md).")


def alarms_of(target: Target) -> str | None:
    """The file that the target's training writes its alarms to, if it trains with GRPO."""
    return next((path for path in target.metrics if PurePosixPath(path).name == "alarms.json"), None)


def health_results(root: Path, target: Target, *, since: float = 0.0) -> Iterator[dg.AssetCheckResult]:
    """What the alarms say that the target's training wrote after the time `since`, or that it wrote none (which only the beginning of time can tell)."""
    path = root / (alarms_of(target) or "")
    if alarms_of(target) is None or (since > 0 and not (path.is_file() and path.stat().st_mtime >= since)):
        return
    before = halts_before(Paths(root, target.experiment or "").clock_alarms)
    yield health_result(target, read_alarms(path), before)


def halt_results(root: Path, target: Target, *, since: float) -> Iterator[dg.AssetCheckResult]:
    """What ended the target's training, where its monitor has halted it after the time `since`."""
    if alarms_of(target) is None:
        return
    work = Paths(root, target.experiment or "").work / TRAINED / str(target.experiment)
    kept = [path for path in work.glob("*/halted/step-*/alarms.json") if path.stat().st_mtime >= since]
    for path in sorted(kept, key=lambda path: path.stat().st_mtime)[-1:]:
        yield health_result(target, read_alarms(path), f"halted at step {int(path.parent.name.removeprefix('step-'))}", halted=True)


def health_result(target: Target, alarms: Sequence[Mapping[str, Any]] | None, halts: str, *, halted: bool = False) -> dg.AssetCheckResult:
    """The check's outcome: an error when an alarm that is no mere warning is open, or when it has ended the training."""
    is_open = [alarm for alarm in alarms or () if alarm["open"]]
    grave = halted or any(alarm["severity"] == "alarm" for alarm in is_open)
    rows = [{name: alarm[name] for name in ("condition", "severity", "first_step", "last_step", "open", "message", "remedy")} for alarm in alarms or ()]
    said = [f"{alarm['condition']} since step {alarm['first_step']}: {alarm['message']}" for alarm in is_open]
    said += [f"health was {NOT_RECORDED}"] * (alarms is None) + [halts] * bool(halts)
    return dg.AssetCheckResult(
        check_name=HEALTHY,
        asset_key=TRAINED,
        passed=alarms is not None and not is_open and not halted,
        severity=dg.AssetCheckSeverity.ERROR if grave else dg.AssetCheckSeverity.WARN,
        description=f"{target.experiment}: {'; '.join(said) or 'no alarm is open'}",
        metadata={
            EXPERIMENT: str(target.experiment),
            "alarms": len(rows),
            "open": len(is_open),
            "what was seen": dg.MetadataValue.md(markdown_table(rows) if rows else NOT_RECORDED if alarms is None else "no alarm"),
            VERDICT: hashlib.sha256(json.dumps([alarms, halts], sort_keys=True).encode()).hexdigest(),
        },
    )


def condition_specs() -> list[dg.AssetCheckSpec]:
    """One check a condition of the gate. None keeps anything from running: a promotion asks for them all."""
    return [dg.AssetCheckSpec(name, asset=PROMOTION, description=f"{meaning} (docs/gate.md).") for name, meaning in CONDITIONS.items()]


def condition_results(root: Path, target: Target, *, since: float = 0.0) -> Iterator[dg.AssetCheckResult]:
    """What the promotion report says of each: an error where it does not hold, a warning where it cannot be told yet."""
    if target.stage != PROMOTION:
        return
    path = Paths(root, target.experiment or "").promotion_report
    if not path.is_file() or path.stat().st_mtime < since:
        return
    for condition in json.loads(path.read_text(encoding="utf-8"))["conditions"]:
        yield dg.AssetCheckResult(
            check_name=condition["name"],
            asset_key=PROMOTION,
            passed=condition["passed"] is True,
            severity=dg.AssetCheckSeverity.ERROR if condition["passed"] is False else dg.AssetCheckSeverity.WARN,
            description=f"{target.experiment}: {condition['summary']}",
            metadata={EXPERIMENT: str(target.experiment), "numbers": dg.MetadataValue.json(condition["numbers"])},
        )


def in_sync_checks(root: Path, graph: Graph) -> dg.AssetChecksDefinition:
    """One `in_sync` check an asset, in one step: reading DVC's index is most of the work. A warning: results stay usable while others are tried."""
    meaning = "Nothing it was made from has changed, reward functions of installed packages included: `dvc repro` would do nothing."
    specs = [dg.AssetCheckSpec(IN_SYNC, asset=asset, description=meaning) for asset in graph.assets]

    @dg.multi_asset_check(name=IN_SYNC, specs=specs, can_subset=True)
    def in_sync(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        assets = [key.asset_key.to_user_string() for key in sorted(context.selected_asset_check_keys)]
        experiments = [context.partition_key] if context.has_partition_key else list(graph.experiments)
        yield from in_sync_results(root, graph, assets, experiments)

    return in_sync


def in_sync_results(root: Path, graph: Graph, assets: Sequence[str], experiments: Sequence[str]) -> Iterator[dg.AssetCheckResult]:
    """Whether each asset, for each experiment, is what `dvc repro` would leave as it is."""
    wanted = {asset: [target.name for target in graph.targets_of(graph.stage_of(asset)) if target.experiment in (None, *experiments)] for asset in assets}
    try:
        reasons = all_out_of_sync(root, {name for names in wanted.values() for name in names})
    except ConfigError as error:
        reasons = {name: [str(error)] for names in wanted.values() for name in names}
    for asset, names in wanted.items():
        found = [(name, reason) for name in names for reason in reasons[name]]
        text = "\n".join(f"- `{name}`: {escaped(reason)}" for name, reason in found)
        yield dg.AssetCheckResult(
            check_name=IN_SYNC,
            asset_key=asset,
            passed=not found,
            severity=dg.AssetCheckSeverity.WARN,
            description=found[0][1] if found else None,
            metadata={"targets": ", ".join(names), "reasons": dg.MetadataValue.md(text or "none")},
        )
