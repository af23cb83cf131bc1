"""Facts about the MLflow sink, against a real sqlite store."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipelines.records.snapshot import Snapshot
from pipelines.tracking import (
    CHANGED_TAG,
    EXPERIMENT_TAG,
    HEALTH_TAG,
    RECORDS,
    RUN_KEY_TAG,
    SUPERSEDED_TAG,
    MlflowSink,
    flatten,
    open_run,
    page_address,
    port_file,
    provenance_tags,
    tracking_uri,
)

ROOT = Path(__file__).resolve().parents[2]
Opener = Callable[[], MlflowSink]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository root whose path has a space; one database for all tests, each with a run key of its own."""
    root = tmp_path_factory.mktemp("a root")
    open_run(root, "first", "0000", {}, {}).finish("FINISHED")
    return root


@pytest.fixture
def reopen(store: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Opener:
    """Opens this test's run, each time as a new process would."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return lambda: open_run(store, "default", request.node.name, {"grpo": {"steps": 60}}, {})


def write_files(folder: Path, steps: range, *, clock: int = 0, scale: float = 1.0) -> tuple[Path, Path]:
    """metrics.jsonl and timings.jsonl of these steps, loss = scale / step, timed from `clock`."""
    metrics, timings = folder / "metrics.jsonl", folder / "timings.jsonl"
    metrics.write_text("".join(json.dumps({"step": s, "loss": scale / s}) + "\n" for s in steps))
    timings.write_text("".join(json.dumps({"step": s, "timestamp_ms": clock + s, "seconds": 0.5 + clock, "tokens_per_second": 99.0}) + "\n" for s in steps))
    return metrics, timings


def curve(sink: MlflowSink, key: str) -> list[tuple[int, float]]:
    return sorted((m.step, m.value) for m in sink.client.get_metric_history(sink.run_id, key))


def test_the_same_experiment_and_run_key_find_the_same_run(store: Path) -> None:
    first = open_run(store, "default", "same", {}, {})
    assert open_run(store, "default", "same", {}, {}).run_id == first.run_id
    assert open_run(store, "default", "other", {}, {}).run_id != first.run_id
    assert open_run(store, "wide", "same", {}, {}).run_id != first.run_id
    tags = first.client.get_run(first.run_id).data.tags
    assert (tags[RUN_KEY_TAG], tags[EXPERIMENT_TAG]) == ("same", "default")


def test_only_steps_that_a_checkpoint_covers_are_sent(reopen: Opener, tmp_path: Path) -> None:
    files = write_files(tmp_path, range(1, 31))
    sink = reopen()
    assert sink.replay(*files, up_to_step=10) == 30
    assert curve(sink, "loss") == [(s, 1 / s) for s in range(1, 11)]


def test_a_kill_and_a_resume_neither_double_nor_gap_a_curve(reopen: Opener, tmp_path: Path) -> None:
    first = reopen()
    first.replay(*write_files(tmp_path, range(1, 18)), up_to_step=10)
    metrics, timings = write_files(tmp_path, range(1, 31), clock=5_000)  # killed at 17, cut back to 10, the rest done again later
    second = reopen()
    second.replay(metrics, timings, up_to_step=20)
    second.replay(metrics, timings, up_to_step=30)
    assert second.run_id == first.run_id
    for key in ("loss", "seconds", "tokens_per_second"):
        assert [step for step, _ in curve(second, key)] == list(range(1, 31))


def test_a_batch_that_was_half_sent_is_completed(reopen: Opener, tmp_path: Path) -> None:
    metrics, timings = write_files(tmp_path, range(1, 11))
    half = reopen()
    half.replay(metrics, tmp_path / "absent.jsonl", up_to_step=5)  # as if killed before the clock's curves were sent
    whole = reopen()
    whole.replay(metrics, timings, up_to_step=10)
    assert [s for s, _ in curve(whole, "loss")] == [s for s, _ in curve(whole, "seconds")] == list(range(1, 11))


def test_two_processes_that_overlap_send_each_point_once(store: Path, reopen: Opener, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    sink = reopen()
    metrics, timings = write_files(tmp_path, range(1, 201))
    program = (
        "import sys; from pathlib import Path; from pipelines.tracking import open_run\n"
        "root, key, metrics, timings, steps = sys.argv[1:]\n"
        "sink = open_run(Path(root), 'default', key, {'grpo': {'steps': 60}}, {})\n"
        "for step in range(10, int(steps) + 1, 10): sink.replay(Path(metrics), Path(timings), step)\n"
        "sink.finish('FINISHED')\n"
    )
    arguments = [sys.executable, "-c", program, str(store), request.node.name, str(metrics), str(timings)]
    processes = [subprocess.Popen([*arguments, steps], cwd=ROOT, stdout=subprocess.PIPE, text=True) for steps in ("150", "200")]
    printed = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert printed == ["", ""]
    assert curve(sink, "loss") == [(s, 1 / s) for s in range(1, 201)]


def test_training_that_came_out_different_gets_its_own_run(reopen: Opener, tmp_path: Path) -> None:
    old = reopen()
    old.log_inputs(pl.DataFrame({"prompt": ["1+1="]}), "ab" * 16)
    old.replay(*write_files(tmp_path, range(1, 11)), up_to_step=10)
    old.finish("FINISHED")
    new = reopen()
    old_id = new.run_id
    new.replay(*write_files(tmp_path, range(1, 11), scale=2.0), up_to_step=10)
    assert new.run_id != old_id == old.run_id
    assert curve(new, "loss") == [(s, 2 / s) for s in range(1, 11)]
    assert curve(old, "loss") == [(s, 1 / s) for s in range(1, 11)]
    assert reopen().run_id == new.run_id
    kept, begun = old.client.get_run(old.run_id), new.client.get_run(new.run_id)
    assert kept.data.tags[SUPERSEDED_TAG] == new.run_id
    assert (kept.info.status, begun.info.status) == ("FINISHED", "RUNNING")
    assert begun.data.params == kept.data.params == {"grpo.steps": "60"}
    assert begun.inputs.dataset_inputs[0].dataset.digest == "ab" * 16


def test_the_clock_differing_is_not_a_different_training(reopen: Opener, tmp_path: Path) -> None:
    first = reopen()
    first.replay(*write_files(tmp_path, range(1, 11)), up_to_step=10)
    again = reopen()
    assert again.replay(*write_files(tmp_path, range(1, 11), clock=7_000), up_to_step=10) == 0
    assert again.run_id == first.run_id


def test_points_carry_the_time_of_their_step(reopen: Opener, tmp_path: Path) -> None:
    sink = reopen()
    sink.replay(*write_files(tmp_path, range(1, 4), clock=1_700_000_000_000), up_to_step=3)
    assert sorted(m.timestamp for m in sink.client.get_metric_history(sink.run_id, "loss")) == [1_700_000_000_001, 1_700_000_000_002, 1_700_000_000_003]


def test_values_that_are_no_numbers_and_a_cut_line_are_left_out(reopen: Opener, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 0, "a": null, "b": NaN, "c": Infinity, "d": {"e": 1}, "f": true, "eval/select_accuracy": 0.5}\n{"step": 1, "loss": 0.')
    sink = reopen()
    assert sink.replay(metrics, tmp_path / "timings.jsonl", up_to_step=9) == 1
    assert sink.client.get_run(sink.run_id).data.metrics == {"eval/select_accuracy": 0.5}


def test_a_broken_line_in_the_middle_is_named(reopen: Opener, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1, "loss": 0.\n{"step": 2, "loss": 1.0}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1 is not JSON"):
        reopen().replay(metrics, tmp_path / "timings.jsonl", up_to_step=9)


def test_more_parameters_and_points_than_a_batch_holds_arrive(store: Path, tmp_path: Path) -> None:
    sink = open_run(store, "default", "many", {"section": {f"key{i}": i for i in range(250)}}, {})
    sink.replay(*write_files(tmp_path, range(1, 1202)), up_to_step=1201)
    assert len(sink.client.get_run(sink.run_id).data.params) == 250
    assert len(curve(sink, "loss")) == 1201


def test_parameters_are_flattened_named_validly_and_cut() -> None:
    nested = {"grpo": {"beta": 1e-2, "loss": "dapo", "mask": False}, "rewards": {"my.rewards:exact!": 1.0}, "long": "x" * 501, "none": None}
    assert flatten(nested) == {
        "grpo.beta": "0.01", "grpo.loss": "dapo", "grpo.mask": "false", "rewards.my.rewards:exact_": "1.0", "long": "x" * 499 + "…", "none": "null",
    }  # fmt: skip


def test_a_parameter_outside_the_run_key_that_changed_becomes_a_tag(store: Path) -> None:
    open_run(store, "default", "changed", {"blind_review_set": {"num_pairs": 30}}, {})
    sink = open_run(store, "default", "changed", {"blind_review_set": {"num_pairs": 40}}, {})
    data = sink.client.get_run(sink.run_id).data
    assert data.params == {"blind_review_set.num_pairs": "30"}
    assert data.tags["grpo.changed.blind_review_set.num_pairs"] == "40"


def test_a_finished_run_runs_again_when_reopened(reopen: Opener) -> None:
    sink = reopen()
    for status in ("KILLED", "FAILED", "FINISHED"):
        sink.finish(status)
        assert sink.client.get_run(sink.run_id).info.status == status
        assert reopen().client.get_run(sink.run_id).info.status == "RUNNING"


def test_a_parameter_that_is_the_logged_one_again_loses_its_tag(store: Path) -> None:
    for pairs in (30, 40, 30):
        sink = open_run(store, "default", "changed back", {"blind_review_set": {"num_pairs": pairs}}, {})
    assert not [key for key in sink.client.get_run(sink.run_id).data.tags if key.startswith(CHANGED_TAG)]


def test_a_last_step_before_points_of_a_longer_run_begins_a_run_and_evaluations_are_no_steps(reopen: Opener, tmp_path: Path) -> None:
    longer = reopen()
    longer.replay(*write_files(tmp_path, range(1, 21)), up_to_step=20, final=True)
    shorter = reopen()
    files = write_files(tmp_path, range(1, 11))
    shorter.replay(*files, up_to_step=8)
    assert shorter.run_id == longer.run_id  # a checkpoint on the way says nothing of where training will end
    shorter.replay(*files, up_to_step=10, final=True)
    assert shorter.run_id != longer.run_id
    assert [len(curve(sink, "loss")) for sink in (shorter, longer)] == [10, 20]
    for number in range(12):
        shorter.log_summary({"accuracy": number})
    again = reopen()
    again.replay(*files, up_to_step=10, final=True)
    assert again.run_id == shorter.run_id


def alarm(condition: str, first_step: int, **fields: Any) -> dict[str, Any]:
    return {"condition": condition, "first_step": first_step, "open": True, "message": f"{condition} it is", **fields}


def health_tags(sink: MlflowSink) -> dict[str, str]:
    return {key: value for key, value in sink.client.get_run(sink.run_id).data.tags.items() if key.startswith(("grpo.health", "grpo.alarm.", "grpo.halts"))}


def test_a_runs_alarms_are_tags_of_it_and_which_are_open_is_another(reopen: Opener) -> None:
    sink = reopen()
    sink.log_alarms([])
    assert health_tags(sink) == {HEALTH_TAG: "healthy"}
    sink.log_alarms([alarm("truncation", 3), alarm("stall", 4, open=False), alarm("early_explosion", 5), alarm("truncation", 9)])
    assert health_tags(sink) == {
        HEALTH_TAG: "open: early_explosion, truncation",
        "grpo.alarm.truncation": "step 3: truncation it is",  # the first of two
        "grpo.alarm.stall": "step 4: stall it is",
        "grpo.alarm.early_explosion": "step 5: early_explosion it is",
    }
    sink.log_alarms([alarm("stall", 4, open=False)], "halted before, at step 3 (truncation)")
    told = {HEALTH_TAG: "healthy", "grpo.alarm.stall": "step 4: stall it is"}
    assert health_tags(sink) == {**told, "grpo.halts": "halted before, at step 3 (truncation)"}, "another try did not have the others"
    sink.log_alarms([alarm("stall", 4, open=False, acknowledged="a busy machine")])
    assert health_tags(sink) == {HEALTH_TAG: "healthy", "grpo.alarm.stall": "step 4: stall it is (accepted: a busy machine)"}
    sink.log_alarms(None)
    assert health_tags(sink) == {HEALTH_TAG: "not recorded"}, "nobody watched, which is not the same as well"


def test_records_are_artifacts_by_noun_and_replaced(reopen: Opener) -> None:
    sink = reopen()
    sink.log_records({"prompts": {"a": 1}, "sft_checkpoint": {"a": 2}})
    sink.log_records({"prompts": {"a": 3}})
    paths = [artifact.path for artifact in sink.client.list_artifacts(sink.run_id, RECORDS)]
    assert paths == ["record/prompts.json", "record/sft_checkpoint.json"]
    assert [json.loads(Path(sink.client.download_artifacts(sink.run_id, path)).read_bytes()) for path in paths] == [{"a": 3}, {"a": 2}]


def test_a_heldout_number_is_logged_once_and_again_only_when_it_changed(reopen: Opener) -> None:
    sink = reopen()
    sink.log_summary({"policy_accuracy": 0.5, "num_prompts": 512, "metric": "exact_answer", "kl_token_mean": None})
    sink.log_summary({"policy_accuracy": 0.5})
    assert sink.client.get_run(sink.run_id).data.metrics == {"eval/heldout/policy_accuracy": 0.5, "eval/heldout/num_prompts": 512.0}
    sink.log_summary({"policy_accuracy": 0.25})
    assert curve(sink, "eval/heldout/policy_accuracy") == [(0, 0.5), (1, 0.25)]
    assert sink.client.get_run(sink.run_id).data.metrics["eval/heldout/policy_accuracy"] == 0.25


def test_samples_read_back_as_the_table_that_was_logged_last(store: Path, reopen: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = reopen()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(store))  # MLflow's own reader knows no other way
    sink.log_samples(pl.DataFrame({"prompt": ["old"]}))
    sink.log_samples(pl.DataFrame({"prompt": ["1+1=", "2+2="], "reward": [1.0, None], "token_ids": [[5, 6], [7]]}))
    table = sink.client.load_table(sink.experiment_id, "samples.json", run_ids=[sink.run_id])
    assert table["prompt"].tolist() == ["1+1=", "2+2="]
    assert table["token_ids"].tolist() == ["[5, 6]", "[7]"]
    assert json.loads(sink.client.get_run(sink.run_id).data.tags["mlflow.loggedArtifacts"]) == [{"path": "samples.json", "type": "table"}]


def test_figures_lie_under_the_root_byte_for_byte(store: Path, reopen: Opener) -> None:
    sink = reopen()
    sink.log_figures({"reward": b"first", "kl": b"kl"})
    sink.log_figures({"reward": b"second"})
    folder = store / "mlruns" / sink.run_id / "artifacts" / "figures"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"reward.png": b"second", "kl.png": b"kl"}


def test_prompts_are_a_dataset_named_by_their_hash(reopen: Opener) -> None:
    sink = reopen()
    messages = pl.Series("messages", [None, [{"role": "user", "content": "hi"}]], dtype=pl.List(pl.Struct({"role": pl.String, "content": pl.String})))
    frame = pl.DataFrame([pl.Series("prompt", ["1+1=", "hi"]), messages, pl.Series("difficulty", [None, None], dtype=pl.String)])
    sink.log_inputs(frame, "cd" * 20)
    sink.log_inputs(frame, "cd" * 20)
    (logged,) = sink.client.get_run(sink.run_id).inputs.dataset_inputs
    assert (logged.dataset.name, logged.dataset.digest) == ("prompts", "cd" * 18)
    assert json.loads(logged.dataset.profile)["num_rows"] == 2


def test_a_moved_repository_writes_artifacts_where_it_now_is(tmp_path: Path, store: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.copy(store / "mlflow.db", moved)
    sink = open_run(moved, "default", "same", {}, {})
    sink.log_figures({"reward": b"png"})
    assert (moved / "mlruns" / sink.run_id / "artifacts" / "figures" / "reward.png").exists()
    assert open_run(moved, "default", "same", {}, {}).run_id == sink.run_id
    names = {experiment.name for experiment in sink.client.search_experiments()}
    assert {"grpo", "grpo-moved-1"} <= names


def test_a_run_deleted_in_the_ui_is_begun_again_in_full(reopen: Opener, tmp_path: Path) -> None:
    files = write_files(tmp_path, range(1, 11))
    deleted = reopen()
    deleted.replay(*files, up_to_step=10)
    deleted.client.delete_run(deleted.run_id)
    sink = reopen()
    sink.replay(*files, up_to_step=10)
    assert curve(sink, "loss") == [(s, 1 / s) for s in range(1, 11)]


def test_importing_the_sink_does_not_import_mlflow() -> None:
    program = "import pipelines.tracking, sys; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_the_url_and_the_tags_name_the_run_and_its_sources(reopen: Opener) -> None:
    sink = reopen()
    page = f"http://127.0.0.1:5000/#/experiments/{sink.experiment_id}/runs/{sink.run_id}"
    assert sink.url("http://127.0.0.1:5000/") == f"{page}?workflowType=machine_learning"
    assert provenance_tags(Snapshot(commit="abc", sha="def"), {"data/prompts": "d1"}) == {
        "mlflow.source.git.commit": "abc", "grpo.git.commit": "abc", "grpo.git.snapshot": "def", "grpo.git.dirty": "true", "grpo.dvc.data/prompts": "d1",
    }  # fmt: skip
    assert provenance_tags(Snapshot(commit="abc", sha="abc"), {})["grpo.git.dirty"] == "false"
    assert provenance_tags(None, {})["grpo.git.snapshot"] == "none"


def test_links_point_at_the_tracking_server_or_at_the_page_that_was_opened_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert page_address(tmp_path) == "http://127.0.0.1:5000"
    port_file(tmp_path).parent.mkdir()
    port_file(tmp_path).write_text("5050\n")
    assert page_address(tmp_path) == "http://127.0.0.1:5050"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@mlflow.example.org:8443/team")
    assert page_address(tmp_path) == "https://mlflow.example.org:8443/team"
