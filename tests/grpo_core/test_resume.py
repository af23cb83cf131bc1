"""A run that is stopped, killed or damaged anywhere ends in the bytes of a run that never was."""

import json
import logging
import random
import re
import shutil
import signal
import time
from dataclasses import asdict
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core.errors import Interrupted
from grpo_core.kl_control import KlController
from grpo_core.loop import Files, StepReport, train
from grpo_core.models import policy_digest
from grpo_core.resume import ResumePoint, WorkFolder, damages, restore, save
from tests.grpo_core.stopped_training import PLACES, child, keyed, train_on_a_full_disk
from tests.tiny_models import tiny_gpt2, tiny_llama
from tests.tiny_run import content, inputs, outputs, tiny_config

SETTINGS: dict[str, Any] = {"kl_control": "threshold", "kl_upper": 1e-3, "kl_lower": 1e-4, "updates_per_rollout": 2}
"""A controller that moves, and two passes over each batch."""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inputs(tmp_path_factory.mktemp("given")).prompts.parent


@pytest.fixture(scope="module")
def expected(given: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the uninterrupted run leaves."""
    files = outputs(tmp_path_factory.mktemp("uninterrupted"), given)
    go(files)
    metrics = [json.loads(line) for line in (files.checkpoint / "metrics.jsonl").read_text().splitlines()]
    assert len({line["beta"] for line in metrics[1:]}) > 2, "the controller must move for this to mean something"
    return content(files)


def go(files: Files, *, stop_at: int | None = None, **settings: Any) -> list[StepReport]:
    """Train until the end or until `stop_at`, and what was reported."""
    reports: list[StepReport] = []
    config = tiny_config(**{**SETTINGS, **settings})
    files = keyed(files, config)
    if stop_at is None:
        train(files, config, on_step=reports.append)
    else:
        with pytest.raises(Interrupted, match=f"interrupted: work up to step {stop_at} is kept; run again to resume"):
            train(files, config, on_step=reports.append, should_stop=lambda: len(reports) == stop_at)
    return reports


def work(files: Files) -> Path:
    return keyed(files, tiny_config(**SETTINGS)).work


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_run_interrupted_once_ends_in_the_same_bytes(stop: int, given: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    files = outputs(tmp_path, given)
    reports = go(files, stop_at=stop)
    assert [report.step for report in reports] == list(range(stop + 1))
    assert reports[-1].checkpointed
    assert not files.checkpoint.exists()
    assert [report.step for report in go(files)] == list(range(stop + 1, 7))
    assert content(files) == expected


def test_a_run_interrupted_after_every_step_ends_in_the_same_bytes(given: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    files, heard = outputs(tmp_path, given), []
    for stop in range(1, 6):
        calls: list[StepReport] = []
        with pytest.raises(Interrupted):
            train(keyed(files, tiny_config(**SETTINGS)), tiny_config(**SETTINGS), on_step=calls.append, should_stop=lambda: True)
        assert calls[-1].step == stop
        heard += [report.step for report in calls]
    heard += [report.step for report in go(files)]
    assert heard == list(range(7))
    assert content(files) == expected
    steps = [json.loads(line)["step"] for line in files.timings.read_text().splitlines()]
    assert steps == list(range(7)), "the clock's lines, too, are there once each"


def test_asking_to_stop_in_the_last_step_lets_it_finish(given: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    files = outputs(tmp_path, given)
    reports: list[StepReport] = []
    config = tiny_config(**SETTINGS)
    train(keyed(files, config), config, on_step=reports.append, should_stop=lambda: len(reports) == 6)
    assert content(files) == expected


@pytest.mark.parametrize(
    ("place", "call", "after"),
    [
        ("sampling", 2, False),  # in step 2, before the first checkpoint
        ("sampling", 4, False),  # in the second pass over the data: ten prompts, four a step
        ("sampling", 5, True),
        ("drawing one more token", 12, False),  # in the middle of the first rollout batch
        ("drawing one more token", 37, False),  # in the middle of that of step 4
        ("between minibatches", 10, False),  # in the first of two updates of step 3
        ("between minibatches", 20, True),
        ("evaluating on select", 1, False),  # before training
        ("evaluating on select", 2, False),  # at step 3, whose update is done
        ("writing rows", 7, True),  # rewards of step 3 written, its select answers not
        ("writing rows", 1, True),  # the exploits that were tried
        ("writing rows", 10, False),
        ("writing a line", 9, True),  # metrics of step 4 written, its timings not
        ("writing a checkpoint", 1, False),
        ("writing a checkpoint", 2, True),
        ("removing an old checkpoint", 1, False),
        ("writing a file to disk", 14, False),  # inside the checkpoint of step 2
        ("writing a file to disk", 21, True),  # among the rows that the checkpoint of step 4 will vouch for
        ("writing a file to disk", 31, True),  # inside that checkpoint
        ("writing a file to disk", 33, True),  # before it has its name
        ("writing a file to disk", 34, False),  # just after
        ("writing the outputs", 1, False),
        ("making the final checkpoint", 1, False),
        ("making the final checkpoint", 1, True),
    ],
)  # fmt: skip
def test_a_process_killed_at_a_named_place_ends_in_the_same_bytes(
    place: str, call: int, after: bool, given: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    killed = child(tmp_path, given, SETTINGS, place, call, after)
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL, f"{place} is called fewer than {call} times"
    files = outputs(tmp_path, given)
    go(files)
    assert content(files) == expected


def test_a_process_killed_at_random_moments_ends_in_the_same_bytes(given: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    chance, codes = random.Random(0), []
    files = outputs(tmp_path, given)
    for _ in range(8):
        process = child(tmp_path, given, SETTINGS)
        steps, longer = chance.randint(0, 6), chance.uniform(0, 0.1)
        while process.is_alive() and num_lines(work(files) / "timings.jsonl") <= steps:
            time.sleep(0.002)
        time.sleep(longer)
        process.kill()
        process.join(60)
        codes.append(process.exitcode)
        if process.exitcode == 0:
            break
    assert set(codes) <= {0, -signal.SIGKILL}
    go(files)
    assert content(files) == expected


def num_lines(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("damage", "name"),
    [(flip, "model.safetensors"), (truncate, "optimizer.pt"), (Path.unlink, "state.json"), (truncate, "manifest.json"), (Path.unlink, "manifest.json")],
)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    damage: Any, name: str, given: Path, expected: dict[str, bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = outputs(tmp_path, given)
    go(files, stop_at=5)
    damage(work(files) / "checkpoints" / "step-000005" / name)
    with caplog.at_level(logging.WARNING):
        reports = go(files)
    assert [report.step for report in reports] == [5, 6], "step 4 is the newest whole one"
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "grpo_core.resume"]
    assert "checkpoint step-000005 is not used" in warning
    assert name in warning
    assert "redone" in warning
    assert content(files) == expected


def test_with_every_checkpoint_damaged_the_run_starts_anew(given: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    files = outputs(tmp_path, given)
    go(files, stop_at=5)
    for folder in (work(files) / "checkpoints").iterdir():
        flip(folder / "optimizer.pt")
    kept = {folder.name: tree(folder) for folder in (work(files) / "checkpoints").iterdir()}
    assert [report.step for report in go(files)] == list(range(7))
    assert content(files) == expected
    assert {folder.name: tree(folder) for folder in (work(files) / "damaged").iterdir()} == kept, "a person can still look at them"


def test_a_damaged_checkpoint_never_crowds_out_a_good_one(given: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    files = outputs(tmp_path, given)
    go(files, stop_at=5, keep_checkpoints=1)
    flip(work(files) / "checkpoints" / "step-000005" / "model.safetensors")
    go(files, stop_at=3, keep_checkpoints=1)
    assert [report.step for report in go(files, keep_checkpoints=1)] == [4, 5, 6], "the interrupted run said that step 3 is kept"
    assert content(files) == expected


@pytest.mark.parametrize(
    ("damage", "name", "resumed"),
    [
        (flip, "rollouts/step-000005.parquet", 4),  # the checkpoint of step 4 does not vouch for it
        (truncate, "rewards/step-000005.parquet", 4),
        (flip, "rollouts/step-000004.parquet", 0),
        (flip, "rewards/step-000001.parquet", 0),
        (Path.unlink, "rewards/step-000002.parquet", 0),
        (flip, "select/step-000000.parquet", 0),
        (flip, "select/step-000003.parquet", 0),
        (flip, "metrics.jsonl", 0),
        (Path.unlink, "metrics.jsonl", 0),
    ],
)
def test_rows_and_metrics_that_were_damaged_are_named_and_made_again(
    damage: Any, name: str, resumed: int, given: Path, expected: dict[str, bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = outputs(tmp_path, given)
    go(files, stop_at=5)
    assert damages(work(files)) == []
    damage(work(files) / name)
    assert damages(work(files))
    assert all(str(work(files) / name) in line for line in damages(work(files)))
    with caplog.at_level(logging.WARNING):
        reports = go(files)
    assert [report.step for report in reports] == (list(range(7)) if resumed == 0 else list(range(resumed + 1, 7)))
    warnings = [record.getMessage() for record in caplog.records if record.name == "grpo_core.resume"]
    assert len(warnings) == (2 if resumed == 0 else 1)
    for warning in warnings:
        assert name in warning
        assert f"the work from step {resumed + 1} on is redone" in warning
    assert content(files) == expected
    assert damages(work(files)) == []


def test_a_damaged_line_of_the_clock_redoes_nothing(given: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    files = outputs(tmp_path, given)
    go(files, stop_at=5)
    lines = (work(files) / "timings.jsonl").read_bytes().splitlines(keepends=True)
    lines[2] = b"\xff" + lines[2][1:]
    (work(files) / "timings.jsonl").write_bytes(b"".join(lines))
    assert [report.step for report in go(files)] == [6]
    assert content(files) == expected
    assert [json.loads(line)["step"] for line in files.timings.read_text().splitlines()] == [0, 1, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("step", "most_bytes", "unwritten", "kept"),
    [
        (0, 100, "rollouts/step-000001.parquet", "no step is kept yet"),
        (3, 100, "rollouts/step-000004.parquet", "everything up to step 2 is kept"),
        (3, 8_000, "checkpoints/step-000004", "everything up to step 2 is kept"),  # the weights do not fit
        (3, 20_000, "checkpoints/step-000004", "everything up to step 2 is kept"),  # the optimizer does not
        (6, 6_000, "rollouts.parquet", "everything up to step 6 is kept"),
        (6, 12_000, "checkpoint", "everything up to step 6 is kept"),
    ],
)
def test_a_full_disk_ends_the_run_with_advice_and_leaves_no_half_file(
    step: int, most_bytes: int, unwritten: str, kept: str, given: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    files = outputs(tmp_path, given)
    heard, said = Pipe(duplex=False)
    died = child(tmp_path, given, SETTINGS, step, most_bytes, said, target=train_on_a_full_disk)
    died.join(60)
    said.close()
    message = heard.recv()
    assert re.search(rf"{unwritten} could not be written: .*MB free there\); {kept}: free space \(`grpo prune`\) and run again", message), message
    assert not [path for path in tmp_path.rglob(".*")], "nothing half written is left to fill the disk further"
    go(files)
    assert content(files) == expected


def test_only_the_newest_checkpoints_are_kept(given: Path, tmp_path: Path) -> None:
    files = outputs(tmp_path, given)
    go(files, stop_at=5, checkpoint_every=1, keep_checkpoints=3)
    assert sorted(path.name for path in (work(files) / "checkpoints").iterdir()) == ["step-000003", "step-000004", "step-000005"]


def test_a_half_written_line_is_cut_off(given: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    files = outputs(tmp_path, given)
    go(files, stop_at=3)
    with (work(files) / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 4, "reward/me')
    go(files)
    assert content(files) == expected


def test_how_often_a_run_is_saved_changes_no_byte(given: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    files = outputs(tmp_path, given)
    go(files, checkpoint_every=5, keep_checkpoints=7)
    assert content(files) == expected


def test_saving_is_timed_in_the_step_after(given: Path, tmp_path: Path) -> None:
    reports = go(outputs(tmp_path, given), checkpoint_every=2)
    assert [report.step for report in reports if "seconds/checkpoint" in report.timings] == [3, 5]
    assert [report.step for report in reports if "seconds/rows" in report.timings] == [2, 3, 4, 5, 6]
    assert all(0 < report.timings["seconds/checkpoint"] < 10 for report in reports if report.step in (3, 5))


@pytest.mark.parametrize("steps", [3, 4])
def test_a_longer_run_continues_a_shorter_one(steps: int, given: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    files = outputs(tmp_path, given)
    assert go(files, steps=steps)[-1].checkpointed, "a checkpoint is always written at the end"
    assert [report.step for report in go(files)] == list(range(steps + 1, 7))
    assert content(files) == expected


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("steps", [1, 4])
def test_a_shorter_run_than_the_one_kept_is_refused_and_loses_nothing(steps: int, given: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    files = outputs(tmp_path, given)
    go(files, stop_at=5)
    before = tree(work(files))
    said = rf"{work(files)} holds an interrupted run up to step 5, steps is {steps}: set steps to 5 or more to go on with it, or delete that folder"
    for _ in range(2):
        with pytest.raises(ValueError, match=said):
            go(files, steps=steps)
        assert tree(work(files)) == before
        assert not files.checkpoint.exists()
    assert [report.step for report in go(files)] == [6], "the longer run goes on where it was"
    assert content(files) == expected


def test_as_many_steps_as_are_kept_is_a_run_that_is_done(given: Path, tmp_path: Path) -> None:
    fresh, files = outputs(tmp_path / "fresh", given), outputs(tmp_path / "kept", given)
    go(fresh, steps=5)
    go(files, stop_at=5)
    assert go(files, steps=5) == []
    assert content(files) == content(fresh)


@pytest.mark.parametrize("remedy", ["the folder is deleted", "all beyond is damaged"])
def test_a_shorter_run_holds_the_weights_of_its_own_last_step(remedy: str, given: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    fresh, files = outputs(tmp_path / "fresh", given), outputs(tmp_path / "kept", given)
    go(fresh, steps=4)
    go(files, stop_at=5)
    if remedy == "the folder is deleted":
        shutil.rmtree(work(files))
    else:
        flip(work(files) / "checkpoints" / "step-000005" / "model.safetensors")
    assert [report.step for report in go(files, steps=4)] == (list(range(5)) if remedy == "the folder is deleted" else [])
    assert content(files) == content(fresh)
    assert [report.step for report in go(files)] == [5, 6], "and may be extended again"
    assert content(files) == expected


def test_a_finished_run_whose_outputs_are_gone_writes_them_again(given: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    files = outputs(tmp_path, given)
    go(files)
    files.rollouts.unlink()
    assert go(files) == []
    assert content(files) == expected


def test_another_configuration_never_continues_this_run(given: Path, tmp_path: Path) -> None:
    files = outputs(tmp_path, given)
    go(files, stop_at=3)
    assert [report.step for report in go(files, learning_rate=1e-3, steps=2)] == [0, 1, 2]


def test_two_trainers_cannot_share_a_work_folder(given: Path, tmp_path: Path) -> None:
    files = outputs(tmp_path, given)
    with WorkFolder.open(work(files)):
        with pytest.raises(ValueError, match=r"another process is at work in .*: wait for it, or stop it"):
            go(files)
        assert [path.name for path in work(files).iterdir()] == ["lock"], "the second one touches nothing"
    go(files, stop_at=1)


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_a_checkpoint_gives_back_weights_moments_and_controller(make: Any, tmp_path: Path) -> None:
    def trained(seed: int, steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = make(seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(steps):
            model(input_ids=torch.tensor([[1, 8, 9]])).logits.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    model, optimizer = trained(0, 2)
    controller = KlController(beta=0.3, armed=True, steps_below=2, error_sum=1.5, last_error=-0.5)
    other, moments = trained(1, 0)
    with WorkFolder.open(tmp_path) as folder:
        folder.append(7, {}, {})
        save(folder, ResumePoint(7, asdict(controller)), model, optimizer, keep=1)
        point = restore(folder, other, moments, last_step=7)
    assert (point.step, KlController(**point.state)) == (7, controller)
    assert policy_digest(other) == policy_digest(model)
    before, after = optimizer.state_dict()["state"], moments.state_dict()["state"]
    assert before.keys() == after.keys()
    for index in before:
        for name in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(before[index][name], after[index][name])


def test_the_start_is_where_an_empty_folder_begins(tmp_path: Path) -> None:
    model = tiny_llama()
    before = policy_digest(model)
    with WorkFolder.open(tmp_path / "new") as folder:
        assert restore(folder, model, torch.optim.AdamW(model.parameters()), last_step=7) == ResumePoint(0)
    assert policy_digest(model) == before


def test_the_named_places_exist() -> None:
    for module, name in PLACES.values():
        assert callable(getattr(module, name))
