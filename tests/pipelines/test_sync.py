"""Dagster and DVC know the same results, whoever made them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from assets.paths import Paths
from pipelines.definitions import build_definitions, run_job
from pipelines.environment import environment
from pipelines.graph import load_graph
from pipelines.lock import read_lock
from pipelines.stage_assets import stage_assets
from pipelines.sync import sync
from tests.pipelines.toy_project import THIRD_PARTY_WARNINGS, dvc, edit, make_project

pytestmark = [pytest.mark.filterwarnings(warning) for warning in THIRD_PARTY_WARNINGS]

ASSETS = ["prompts", "sft_checkpoint", "reference_checkpoint", "rollout_batches", "rewards", "grpo_checkpoint", "heldout_eval"]
ASSETS += ["blind_review_set", "blind_review_verdict", "champion_eval", "promotion_report", "comparison_report"]
SHARED = [*ASSETS[:3], "comparison_report"]
CHECKS = ("contract", "healthy", "in_sync")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_project(tmp_path / "toy")


@pytest.fixture
def instance(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """Dagster's record as of a checkout, in the checkout."""
    for name, value in environment(root, os.environ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with dg.DagsterInstance.get() as found:
        yield found


def latest(instance: dg.DagsterInstance, asset: str) -> dg.AssetMaterialization:
    event = instance.get_latest_materialization_event(dg.AssetKey(asset))
    assert event is not None and event.asset_materialization is not None
    return event.asset_materialization


def events(instance: dg.DagsterInstance, run_id: str) -> list[dg.DagsterEvent]:
    return [entry.dagster_event for entry in instance.all_logs(run_id) if entry.dagster_event is not None]


def evaluation(instance: dg.DagsterInstance, asset: str, check: str) -> dg.AssetCheckEvaluation | None:
    """The newest outcome of a check, if it was evaluated."""
    key = dg.AssetCheckKey(dg.AssetKey(asset), check)
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    event = record.event.dagster_event if record and record.event else None
    return event.asset_check_evaluation_data if event and event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION else None


def evaluations(instance: dg.DagsterInstance) -> int:
    """How often the check of health was evaluated."""
    key = dg.AssetCheckKey(dg.AssetKey("grpo_checkpoint"), "healthy")
    return len(instance.event_log_storage.get_asset_check_execution_history(key, limit=99))


def stale_assets(root: Path, instance: dg.DagsterInstance) -> dict[str, list[str]]:
    """Assets that Dagster itself calls stale or missing, with its reasons."""
    graph = build_definitions(root).resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    found = {}
    for asset in ASSETS:
        key, partition = dg.AssetKey(asset), None if asset in SHARED else "default"
        if resolver.get_status(key, partition) is not StaleStatus.FRESH:
            found[asset] = [cause.reason for cause in resolver.get_stale_causes(key, partition)]
    return found


def in_order(reported: list[str]) -> list[str]:
    """What was reported, the comparison first and the champion's answers after the verdict: their places among the others are any."""
    rest = [name for name in reported if name not in ("comparison_report", "champion_eval@default")]
    place = next((place for place, name in enumerate(rest) if name == "promotion_report@default"), len(rest))
    rest[place:place] = [name for name in reported if name == "champion_eval@default"]
    return [name for name in reported if name == "comparison_report"] + rest


def test_shell_runs_are_reported_once_and_leave_nothing_stale(root: Path, instance: dg.DagsterInstance) -> None:
    dvc(root, "repro", "--quiet")
    reported = sync(root, instance)
    assert in_order(reported) == ["comparison_report", *ASSETS[:3], *(f"{asset}@default" for asset in ASSETS[3:-1])]
    assert stale_assets(root, instance) == {}
    assert sync(root, instance) == []
    outs = read_lock(root)["grpo_checkpoint@default"].outs
    rewards = latest(instance, "rewards")
    assert rewards.partition == "default"
    assert (rewards.tags or {})["dagster/data_version"] == "+".join(outs[f"data/rewards/default/{name}.parquet"] for name in ("rewards", "exploits"))
    assert rewards.metadata["dvc/run"].value == "made in a shell"
    contract = evaluation(instance, "rewards", "contract")
    assert contract is not None and contract.passed
    edit(root, "params.yaml", "\n  default: {}", "\n  default: {grpo: {group_size: 4}}")
    dvc(root, "repro", "--quiet")
    sensor = build_definitions(root).resolve_sensor_def("dvc_sync")
    with dg.build_sensor_context(instance=instance) as context:
        first = sensor.evaluate_tick(context)
        told = str(first.skip_message).removeprefix("reported ").split(", ")
        again = [asset for asset in ASSETS[3:-1] if asset != "champion_eval"]  # the champion answers as before
        assert in_order(told) == ["comparison_report", *(f"{asset}@default" for asset in again)]
    with dg.build_sensor_context(instance=instance, cursor=first.cursor) as context:
        assert sensor.evaluate_tick(context).skip_message == "dvc.lock has not changed"
    assert stale_assets(root, instance) == {}


def test_a_dagster_run_and_a_shell_run_are_the_same_results(root: Path, instance: dg.DagsterInstance, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_job(root, "default", instance=instance).success
    assert stale_assets(root, instance) == {}
    assert "up to date" in dvc(root, "status")
    assert sync(root, instance) == []
    lock = read_lock(root)
    policy = latest(instance, "grpo_checkpoint")
    assert (policy.tags or {})["dagster/data_version"] == lock["grpo_checkpoint@default"].outs["data/grpo_checkpoint/default"]
    assert policy.metadata["dvc/target"].value == "grpo_checkpoint@default"
    observed = instance.fetch_observations(dg.AssetKey("grpo_checkpoint"), limit=1).records[0].asset_observation
    assert observed is not None and observed.metadata["reward/mean"].value == 0.25
    shown = capfd.readouterr().err
    assert "── sft_checkpoint\n" in shown
    assert "   sft_checkpoint: made (" in shown
    assert "warning" not in shown.lower()
    checks = {(asset, name): found.passed for asset in ASSETS for name in CHECKS if (found := evaluation(instance, asset, name))}
    assert checks == {
        **{(asset, "in_sync"): True for asset in ASSETS},
        **{(asset, "contract"): True for asset in ("prompts", "rollout_batches", "rewards", "heldout_eval")},
        ("grpo_checkpoint", "healthy"): True,
    }


@pytest.mark.parametrize("by", ["Dagster", "a shell"])
def test_an_open_alarm_fails_its_check_and_keeps_nobody_from_the_evaluation(
    by: str, root: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> None:
        if by == "Dagster":
            assert run_job(root, "default", instance=instance).success
        else:
            dvc(root, "repro", "--quiet")
            sync(root, instance)

    monkeypatch.setenv("TOY_GRPO_CHECKPOINT", "alarm")
    make()
    assert latest(instance, "heldout_eval").partition == "default"
    found = evaluation(instance, "grpo_checkpoint", "healthy")
    assert found is not None
    assert (found.passed, found.severity, found.blocking) == (False, dg.AssetCheckSeverity.ERROR, False)
    assert found.description == "default: early_explosion since step 3: it exploded"
    contract = evaluation(instance, "rewards", "contract")
    assert contract is not None and contract.blocking

    monkeypatch.delenv("TOY_GRPO_CHECKPOINT")
    edit(root, "params.yaml", "\n  default: {}", "\n  default: {health: {acknowledged: {early_explosion: a test}}}")
    make()
    found = evaluation(instance, "grpo_checkpoint", "healthy")
    assert found is not None and found.passed, "the same weights under another verdict"
    told = instance.fetch_materializations(dg.AssetKey("grpo_checkpoint"), limit=99).records, evaluations(instance)
    assert sync(root, instance) == []
    assert (instance.fetch_materializations(dg.AssetKey("grpo_checkpoint"), limit=99).records, evaluations(instance)) == told, "nothing is told twice"


def test_the_comparison_of_two_experiments_is_known_to_dagster_as_it_is_on_disk(root: Path, instance: dg.DagsterInstance) -> None:
    """Made in a shell, then by a run of one experiment alone: neither leaves it stale, and neither is reported twice."""
    edit(root, "params.yaml", "\n  default: {}", "\n  default: {}\n  small: {grpo: {group_size: 4}}")
    assert run_job(root, "default", instance=instance).success
    report = root / "data/comparison_report/report.json"
    assert json.loads(report.read_text())["missing"] == ["small"]
    assert sync(root, instance) == []
    dvc(root, "repro", "--quiet")
    assert json.loads(report.read_text())["missing"] == []
    reported = sync(root, instance)
    assert "comparison_report" in reported and "rewards@small" in reported and "rewards@default" not in reported
    assert sync(root, instance) == []
    assert stale_assets(root, instance) == {}
    comparison = latest(instance, "comparison_report")
    assert comparison.partition is None
    assert (comparison.tags or {})["dagster/data_version"] == read_lock(root)["comparison_report"].outs["data/comparison_report/report.json"]
    edit(root, "params.yaml", "  small: {grpo: {group_size: 4}}", "  small: {grpo: {group_size: 2}}")
    assert run_job(root, "small", from_grpo=True, instance=instance).success
    assert sync(root, instance) == []
    assert stale_assets(root, instance) == {}
    told = evaluations(instance)
    alarms = Paths(root, "default").alarms
    alarms.write_text(alarms.read_text().replace('"alarms": []', '"alarms": [], "judged": "anew"'))
    assert (sync(root, instance), evaluations(instance)) == ([], told), "the same alarms"
    alarms.unlink()
    os.utime(Paths(root, "small").alarms, (1, 1))
    sync(root, instance)
    found = evaluation(instance, "grpo_checkpoint", "healthy")
    assert found is not None
    assert (evaluations(instance), found.description) == (told + 1, "default: health was not recorded"), "though another experiment was judged since"


def test_a_comparison_is_stale_in_dagster_while_an_experiment_is_newer(root: Path, instance: dg.DagsterInstance) -> None:
    dvc(root, "repro", "--quiet")
    graph = load_graph(root)
    assert dg.materialize([stage_assets(root, graph, stage) for stage in graph.stages], selection=["comparison_report"], instance=instance).success
    sync(root, instance)
    assert stale_assets(root, instance) == {}, "Dagster knew of the comparison before it knew of what it was made from"
    edit(root, "params.yaml", "\n  default: {}", "\n  default: {grpo: {group_size: 4}}")
    dvc(root, "repro", "--quiet", "--single-item", "run_config", "grpo_checkpoint@default")
    assert "comparison_report" in sync(root, instance)
    assert set(stale_assets(root, instance)) == {"heldout_eval", "promotion_report", "comparison_report"}
    assert sync(root, instance) == []
    dvc(root, "repro", "--quiet")
    sync(root, instance)
    assert stale_assets(root, instance) == {}


def test_a_violated_contract_fails_the_run_and_is_shown_on_the_asset(root: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_GRPO_CHECKPOINT", "violate rewards")
    assert not run_job(root, "default", instance=instance).success
    violated = evaluation(instance, "rewards", "contract")
    assert violated is not None and not violated.passed
    assert "| 4 | nan |" in str(violated.metadata["violations"].value)
    (run,) = instance.get_runs(limit=1)
    (failure,) = (event.step_failure_data for event in events(instance, run.run_id) if event.event_type is dg.DagsterEventType.STEP_FAILURE)
    assert failure.user_failure_data is not None
    assert failure.user_failure_data.description == "error: contract of rewards violated: reward is finite: 1 row"
    assert instance.get_latest_materialization_event(dg.AssetKey("rewards")) is None
    assert instance.get_latest_materialization_event(dg.AssetKey("reference_checkpoint")) is not None


def test_an_old_contract_is_not_taken_for_the_outcome_of_a_run_that_failed_earlier(
    root: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    validation = root / "data/validation/prompts.json"
    validation.parent.mkdir(parents=True)
    validation.write_text(json.dumps({"noun": "prompts", "success": True, "num_rows": 1, "summary": "", "expectations": []}))
    os.utime(validation, (1, 1))
    monkeypatch.setenv("TOY_PROMPTS", "fail")
    assert not run_job(root, "default", instance=instance).success
    assert evaluation(instance, "prompts", "contract") is None
