"""What stages tell MLflow, and what becomes of them when MLflow does not listen."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import mlflow
import polars as pl
import pytest
from mlflow.exceptions import MlflowException

import grpo_core
from assets import blind_review_set, grpo_checkpoint, heldout_eval
from assets.page import Progress
from assets.paths import Paths
from grpo_core.config import RunConfig, ScoringConfig
from grpo_core.errors import Halted, Interrupted
from grpo_core.health.measures import Found
from grpo_core.health.monitor import alarm_of
from pipelines.lock import folder_md5
from pipelines.params import ROOT
from pipelines.records.files import read_records
from pipelines.records.provenance import Making, begin
from pipelines.records.runs import find_run
from pipelines.resume_state import resumable
from pipelines.run_record import TrackingError, training_record
from pipelines.stage import tracked
from pipelines.tracking import CHANGED_TAG, HEALTH_TAG, RUN_KEY_TAG, SUPERSEDED_TAG, mlflow_client
from tests.assets.lifecycle import lifecycle_config, make_lifecycle, never
from tests.pipelines.toy_project import git
from tests.troubled_logs import DEAF

GONE = "http://127.0.0.1:9"
"""Nothing listens there."""
CHANGED_STEPS = f"{CHANGED_TAG}grpo.steps"


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


def runs(root: Path) -> list[mlflow.entities.Run]:
    """All runs, the newest first."""
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{root}/mlflow.db")
    return list(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()], order_by=["attributes.start_time DESC"]))


def steps(root: Path, run: mlflow.entities.Run) -> list[int]:
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{root}/mlflow.db")
    return sorted(metric.step for metric in client.get_metric_history(run.info.run_id, "loss"))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work folder whose training is at step 6."""
    work = tmp_path / "work" / "0123456789abcdef"
    work.mkdir(parents=True)
    (work / "metrics.jsonl").write_text("".join(json.dumps({"step": step, "loss": 1 / step}) + "\n" for step in range(1, 7)), encoding="utf-8")
    return work


def making(root: Path, noun: str = "grpo_checkpoint") -> Making:
    """The noun as its stage begins with it."""
    shutil.copy(ROOT / "dvc.yaml", root)
    return begin(Paths(root), noun)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """A lifecycle that knows of no training: its inputs and what comes after it lie there, its contracts hold, MLflow's database is empty."""
    paths = make_lifecycle(tmp_path_factory.mktemp("lifecycle"))
    shutil.rmtree(paths.work)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        mlflow_client(paths.root).search_experiments()
    for noun in ("prompts", "rollout_batches", "rewards", "heldout_eval"):
        paths.validation(noun).parent.mkdir(parents=True, exist_ok=True)
        paths.validation(noun).write_text("{}", encoding="utf-8")
    return paths


@pytest.fixture
def paths(made: Paths, tmp_path: Path) -> Paths:
    shutil.copytree(made.root, tmp_path, dirs_exist_ok=True)
    return Paths(tmp_path)


def train(paths: Paths, number: int = 4) -> mlflow.entities.Run:
    """Train as the stage does, and let DVC have the outputs; returns the run that MLflow holds of it."""
    config = lifecycle_config()
    config = replace(config, grpo=replace(config.grpo, steps=number))
    begun = making(paths.root)
    with resumable(begun, config) as work, tracked(begun, config, work) as track:
        grpo_checkpoint.produce(paths, config, track, never, work)
        begun.record()
    out = f"    - {{path: data/grpo_checkpoint/default, md5: {folder_md5(paths.grpo_checkpoint)}, size: 1}}\n"
    (paths.root / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n  grpo_checkpoint@default:\n    cmd: x\n    outs:\n{out}", encoding="utf-8")
    return runs(paths.root)[0]


def test_code_that_is_edited_while_training_changes_nothing_of_this_run(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    config, begun = lifecycle_config(), making(paths.root)
    code = paths.root / "code" / "grpo_core"
    shutil.copytree(Path(grpo_core.__file__).parent, code)
    monkeypatch.setattr("grpo_core.work_folder.__file__", str(code / "work_folder.py"))
    with resumable(begun, config) as work, training_record(begun, config, work) as record:

        def on_progress(progress: Progress) -> None:
            (code / "edited.py").write_text(f"# {progress.step}\n", encoding="utf-8")
            record(progress)

        grpo_checkpoint.produce(paths, config, on_progress, never, work)
    assert grpo_checkpoint.work_folder(paths, config) != work
    (run,) = runs(paths.root)
    assert run.data.tags[RUN_KEY_TAG] == work.name == grpo_checkpoint.finished_work_folder(paths).name
    assert steps(paths.root, run) == [1, 2, 3, 4]


def test_what_exploits_earned_is_a_table_of_the_run(paths: Paths) -> None:
    run = train(paths)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{paths.root}/mlflow.db")
    table = json.loads(Path(client.download_artifacts(run.info.run_id, "exploits.json", str(paths.root))).read_text())
    assert table["columns"] == ["reward", "exploit", "mean", "of full marks", "trouble", "verdict"]
    assert table["data"][0][1:2] + table["data"][0][-1:] == ["right_answer", "no exploit, for comparison"]
    assert any("nested_latex" in row[1] for row in table["data"]), "those that earn nothing, too"


def test_rewards_that_failed_are_seen_in_curves_samples_and_a_table_of_reasons(paths: Paths) -> None:
    name = "tests.tiny_rewards:has_all_outcomes"
    config = replace(lifecycle_config(), rewards={name: 1.0}, scoring=ScoringConfig(max_error_rate=1.0, exploit_threshold=1.0))
    begun = making(paths.root)
    with resumable(begun, config) as work, tracked(begun, config, work) as track:
        grpo_checkpoint.produce(paths, config, track, never, work)
        begun.record()
    client, (run, *_) = mlflow.MlflowClient(tracking_uri=f"sqlite:///{paths.root}/mlflow.db"), runs(paths.root)
    rewards = pl.read_parquet(paths.rewards)
    shares = rewards.group_by("step").agg((pl.col("status") == "error").mean()).sort("step")["status"].to_list()
    for curve in ("status/error_fraction", f"status/error_fraction/{name}"):
        points = client.get_metric_history(run.info.run_id, curve)
        assert [point.value for point in sorted(points, key=lambda point: point.step)] == pytest.approx(
            [share for share in shares if share or "/t" not in curve]
        )
    assert {"reward_troubles", "samples"} <= {Path(table["path"]).stem for table in json.loads(run.data.tags["mlflow.loggedArtifacts"])}
    troubles = json.loads(Path(client.download_artifacts(run.info.run_id, "reward_troubles.json", str(paths.root))).read_text())
    assert troubles["columns"][:2] == ["reason", "completions"]
    assert {row[0] for row in troubles["data"]} == set(rewards["reason"].drop_nulls())
    assert sum(row[1] for row in troubles["data"]) == rewards["reason"].count() > 0
    samples = json.loads(Path(client.download_artifacts(run.info.run_id, "samples.json", str(paths.root))).read_text())
    assert samples["columns"][-2:] == ["status", "reason"]


def test_an_extended_run_goes_on_in_its_curves_and_says_what_changed(paths: Paths) -> None:
    train(paths)
    run = train(paths, 6)
    assert len(runs(paths.root)) == 1
    assert steps(paths.root, run) == [1, 2, 3, 4, 5, 6]
    assert (run.data.params["grpo.steps"], run.data.tags[CHANGED_STEPS]) == ("4", "6")
    assert find_run(paths.root, run.info.run_id).records["grpo_checkpoint"] == find_run(paths.root, "default").records["grpo_checkpoint"]


def test_an_extended_run_that_was_not_evaluated_again_has_no_evaluation(paths: Paths) -> None:
    run_id = train(paths).info.run_id
    with tracked(making(paths.root, "heldout_eval"), lifecycle_config()):
        pass
    assert "heldout_eval" in find_run(paths.root, run_id).records
    train(paths, 6)
    for name in (run_id, "default"):
        assert "heldout_eval" not in find_run(paths.root, name).records


def test_a_forced_training_doubles_no_point(paths: Paths) -> None:
    train(paths)
    run = train(paths)
    assert len(runs(paths.root)) == 1
    assert steps(paths.root, run) == [1, 2, 3, 4]


def test_a_shorter_training_than_before_gets_curves_of_its_own_length(paths: Paths) -> None:
    train(paths)
    longer = train(paths, 6)
    shorter = train(paths)
    assert [steps(paths.root, run) for run in (shorter, longer)] == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]
    assert next(run for run in runs(paths.root) if run.info.run_id == longer.info.run_id).data.tags[SUPERSEDED_TAG] == shorter.info.run_id
    assert (shorter.data.params["grpo.steps"], CHANGED_STEPS in shorter.data.tags) == ("4", False)
    assert find_run(paths.root, shorter.info.run_id).run_key == find_run(paths.root, longer.info.run_id).run_key


def test_a_finished_training_has_the_records_of_all_that_it_came_from_and_the_stages_after_it_add_theirs(paths: Paths) -> None:
    config: RunConfig = lifecycle_config()
    for noun in ("prompts", "sft_checkpoint", "reference_checkpoint"):
        making(paths.root, noun).record()
    run_id = train(paths).info.run_id
    assert set(find_run(paths.root, run_id).records) == {"prompts", "sft_checkpoint", "reference_checkpoint", "grpo_checkpoint"}
    for noun, asset in (("heldout_eval", heldout_eval), ("blind_review_set", blind_review_set)):
        begun = making(paths.root, noun)
        with tracked(begun, config) as track:
            asset.produce(paths, config, track)
    here = find_run(paths.root, "default")
    shutil.rmtree(paths.root / ".work")
    there = find_run(paths.root, run_id)
    assert there.records == here.records
    assert tuple(there.records) == ("prompts", "sft_checkpoint", "reference_checkpoint", "grpo_checkpoint", "heldout_eval", "blind_review_set")
    assert there.json("data/heldout_eval/default/summary.json") == json.loads(paths.heldout_summary.read_bytes())


def test_an_evaluation_by_later_code_does_not_change_which_code_trained(paths: Paths) -> None:
    (paths.root / "params.yaml").write_text("a: 1\n", encoding="utf-8")
    git(paths.root, "init", "--quiet")
    git(paths.root, "add", "params.yaml")
    git(paths.root, "commit", "--quiet", "--message", "first")
    trained = train(paths)
    assert trained.data.tags["grpo.git.commit"] == git(paths.root, "rev-parse", "HEAD").strip()
    assert trained.data.tags["grpo.git.snapshot"] == git(paths.root, "for-each-ref", "--format=%(objectname)", "refs/grpo").strip()
    (paths.root / "params.yaml").write_text("a: 2\n", encoding="utf-8")
    git(paths.root, "commit", "--quiet", "--all", "--message", "second")
    with tracked(making(paths.root, "heldout_eval"), lifecycle_config()) as track:
        heldout_eval.produce(paths, lifecycle_config(), track)
    (run,) = runs(paths.root)
    assert {key: value for key, value in run.data.tags.items() if "git" in key} == {key: value for key, value in trained.data.tags.items() if "git" in key}
    assert read_records(paths, "heldout_eval")[0]["commit"] == git(paths.root, "rev-parse", "HEAD").strip()


def test_mlflow_failing_at_a_checkpoint_is_one_warning_and_the_next_sends_what_was_missed(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Interrupted), training_record(making(tmp_path), lifecycle_config(), work) as record:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", GONE)
        record(Progress(2, 6, checkpointed=True))
        record(Progress(4, 6, checkpointed=True))
        warning = capsys.readouterr().err
        assert warning.count("warning: ") == warning.count("\n") == 1
        assert warning.startswith(f"warning: MLflow at {GONE} failed: ")
        assert "; repair it or set MLFLOW_TRACKING_URI (checkpoints are kept)" in warning
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        record(Progress(6, 6, checkpointed=True))
        raise Interrupted(6)
    (run,) = runs(tmp_path)
    assert steps(tmp_path, run) == [1, 2, 3, 4, 5, 6]
    assert run.info.status == "KILLED"


def test_mlflow_failing_does_not_hide_why_a_training_stopped(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: object) -> None:
        raise MlflowException("database is locked")

    with pytest.raises(Interrupted), training_record(making(tmp_path), lifecycle_config(), work) as record:
        record(Progress(6, 6, checkpointed=True))
        monkeypatch.setattr("mlflow.MlflowClient.set_terminated", refuse)
        raise Interrupted(6)
    assert "database is locked" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------------------------- health


def health_tags(root: Path) -> dict[str, str]:
    (run,) = runs(root)
    return {key: value for key, value in run.data.tags.items() if key.startswith(("grpo.health", "grpo.alarm."))}


def cut_from(work: Path, first: int, until: int = 99) -> RunConfig:
    """Let the log say that completions are cut off in these steps, which is an alarm at once and for one step more."""
    log = [{"step": step, "loss": 1 / step, "truncated_fraction": float(first <= step < until)} for step in range(1, 7)]
    (work / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log), encoding="utf-8")
    return replace(lifecycle_config(), health=replace(DEAF, patience=1, max_truncated_fraction=0.5))


def told(config: RunConfig, step: int) -> Progress:
    alarm = alarm_of("truncation", step, Found("it is cut"), config.health)
    return Progress(step, 6, notices=[grpo_checkpoint.notice(alarm)])


def test_alarms_are_tags_from_the_next_checkpoint_on(tmp_path: Path, work: Path) -> None:
    config = cut_from(work, 3)
    with pytest.raises(Interrupted), training_record(making(tmp_path), config, work) as record:
        record(told(config, 3))
        assert not (tmp_path / "mlflow.db").exists()
        record(Progress(4, 6, checkpointed=True))
        assert health_tags(tmp_path)[HEALTH_TAG] == "open: truncation"
        assert health_tags(tmp_path)["grpo.alarm.truncation"].startswith("step 3: ")
        raise Interrupted(4)


def test_a_resumed_training_keeps_the_tags_of_alarms_from_before_it(tmp_path: Path, work: Path) -> None:
    config = cut_from(work, 2)
    with pytest.raises(Interrupted), training_record(making(tmp_path), config, work) as record:
        record(told(config, 2))
        record(Progress(2, 6, checkpointed=True))
        raise Interrupted(2)
    before = health_tags(tmp_path)
    with pytest.raises(Interrupted), training_record(making(tmp_path), config, work) as record:
        record(Progress(4, 6, checkpointed=True))
        assert health_tags(tmp_path) == before
        raise Interrupted(4)
    assert health_tags(tmp_path) == before
    assert before[HEALTH_TAG] == "open: truncation"


def test_an_alarm_that_has_closed_is_no_open_one_of_the_run(tmp_path: Path, work: Path) -> None:
    config = cut_from(work, 2, 3)
    with pytest.raises(Interrupted), training_record(making(tmp_path), config, work) as record:
        record(told(config, 2))
        record(Progress(6, 6, checkpointed=True))
        raise Interrupted(6)
    assert set(health_tags(tmp_path)) == {HEALTH_TAG, "grpo.alarm.truncation"}
    assert health_tags(tmp_path)[HEALTH_TAG] == "healthy"


def test_what_ended_a_training_stands_in_its_run_though_its_log_was_cut_back(tmp_path: Path, work: Path) -> None:
    config = cut_from(work, 99)
    with pytest.raises(Halted), training_record(making(tmp_path), config, work) as record:
        record(Progress(2, 6, checkpointed=True))
        assert health_tags(tmp_path) == {HEALTH_TAG: "healthy"}
        record(told(config, 4))
        raise Halted("halted at step 4")
    assert health_tags(tmp_path) == {HEALTH_TAG: "open: truncation", "grpo.alarm.truncation": "step 4: it is cut"}
    (run,) = runs(tmp_path)
    assert run.info.status == "FAILED"


def test_a_training_that_is_halted_before_its_first_checkpoint_has_a_run(tmp_path: Path, work: Path) -> None:
    config = cut_from(work, 99)
    with pytest.raises(Halted), training_record(making(tmp_path), config, work) as record:
        record(told(config, 1))
        raise Halted("halted at step 1")
    assert health_tags(tmp_path) == {HEALTH_TAG: "open: truncation", "grpo.alarm.truncation": "step 1: it is cut"}
    (run,) = runs(tmp_path)
    assert run.info.status == "FAILED"


def test_a_damaged_log_does_not_hide_why_a_training_stopped(tmp_path: Path, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Interrupted), training_record(making(tmp_path), lifecycle_config(), work) as record:
        record(Progress(6, 6, checkpointed=True))
        (work / "metrics.jsonl").write_text('{"step": 1, "lo\n', encoding="utf-8")
        raise Interrupted(6)
    assert capsys.readouterr().err.startswith("warning: ")
    (run,) = runs(tmp_path)
    assert run.info.status == "KILLED"


def test_a_finished_training_has_the_alarms_that_it_wrote_down_and_those_of_the_clock(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(lifecycle_config(), health=replace(DEAF, patience=1, max_truncated_fraction=0.0))
    monkeypatch.setattr("tests.pipelines.test_run_record.lifecycle_config", lambda: config)
    run = train(paths)
    found = json.loads(paths.alarms.read_text())["alarms"]
    assert [alarm["condition"] for alarm in found] == ["truncation"]
    assert run.data.tags[HEALTH_TAG] == "open: truncation"
    assert run.data.tags["grpo.alarm.truncation"] == f"step 1: {found[0]['message']}"
    assert "data/health/default/alarms.json" in find_run(paths.root, "default").records["grpo_checkpoint"]["outs"]


@pytest.mark.parametrize("noun", ["grpo_checkpoint", "heldout_eval", "blind_review_set"])
def test_mlflow_failing_at_the_end_is_an_error_and_the_record_stays_on_this_machine(paths: Paths, noun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", GONE)
    begun = making(paths.root, noun)
    with pytest.raises(TrackingError, match=f"MLflow at {GONE} failed"), tracked(begun, lifecycle_config(), paths.root / "work"):
        begun.record()
    assert len(read_records(paths, noun)) == 1


def test_mlflow_failing_at_the_end_of_a_training_leaves_it_to_be_done_at_once(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", GONE)
    with pytest.raises(TrackingError):
        train(paths)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    done: list[Progress] = []
    begun, config = making(paths.root), lifecycle_config()
    with resumable(begun, config) as work, tracked(begun, config, work):
        grpo_checkpoint.produce(paths, config, done.append, never, work)
    assert done == []
    (run,) = runs(paths.root)
    assert (steps(paths.root, run), run.info.status) == ([1, 2, 3, 4], "FINISHED")
