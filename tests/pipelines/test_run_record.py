"""What a training tells MLflow, and what becomes of the training when MLflow does not listen."""

import json
import shutil
from pathlib import Path

import mlflow
import pytest
from mlflow.exceptions import MlflowException

import grpo_core
from assets import grpo_checkpoint
from assets.page import Progress
from assets.paths import Paths
from grpo_core.errors import Interrupted
from pipelines.resume_state import resumable
from pipelines.run_record import TrackingError, training_record
from pipelines.tracking import RUN_KEY_TAG
from tests.assets.lifecycle import lifecycle_config, make_lifecycle, never

GONE = "http://127.0.0.1:9"
"""Nothing listens there."""


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


def runs(root: Path) -> list[mlflow.entities.Run]:
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{root}/mlflow.db")
    return list(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]))


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


def test_code_that_is_edited_while_training_changes_nothing_of_this_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, config = make_lifecycle(tmp_path), lifecycle_config()
    shutil.rmtree(paths.work)
    code = tmp_path / "code" / "grpo_core"
    shutil.copytree(Path(grpo_core.__file__).parent, code)
    monkeypatch.setattr("grpo_core.loop.__file__", str(code / "loop.py"))
    with resumable(paths, config) as work, training_record(paths, config, work) as record:

        def on_progress(progress: Progress) -> None:
            (code / "edited.py").write_text(f"# {progress.step}\n", encoding="utf-8")
            record(progress)

        grpo_checkpoint.produce(paths, config, on_progress, never)
    (run,) = runs(tmp_path)
    assert run.data.tags[RUN_KEY_TAG] == work.name == grpo_checkpoint.finished_work_folder(paths).name
    assert steps(tmp_path, run) == [1, 2, 3, 4]


def test_mlflow_failing_at_a_checkpoint_is_one_warning_and_the_next_sends_what_was_missed(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Interrupted), training_record(Paths(tmp_path), lifecycle_config(), work) as record:
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

    with pytest.raises(Interrupted), training_record(Paths(tmp_path), lifecycle_config(), work) as record:
        record(Progress(6, 6, checkpointed=True))
        monkeypatch.setattr("mlflow.MlflowClient.set_terminated", refuse)
        raise Interrupted(6)
    assert "database is locked" in capsys.readouterr().err


def test_mlflow_failing_at_the_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = make_lifecycle(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", GONE)
    work = grpo_checkpoint.finished_work_folder(paths)
    with pytest.raises(TrackingError, match=f"MLflow at {GONE} failed"), training_record(paths, lifecycle_config(), work):
        pass
