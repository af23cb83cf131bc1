"""Every way of killing a lifecycle outright, then the same command again: what comes out is what a run that was left alone makes.

A small model goes through the real stages, DVC and Dagster. Takes minutes: `make test-slow`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path

import pytest

from assets.paths import Paths
from bench.resume import checkpoint_share, copy_working_tree, curve_faults, dvc, family, set_params, stage_process, start, tail
from pipelines.lock import read_lock
from pipelines.params import ROOT
from pipelines.processes import Process, living_processes
from pipelines.tracking import open_run

SMALL = {
    "model.hidden_size": 32, "model.num_layers": 1, "model.num_heads": 2, "model.intermediate_size": 64, "model.num_threads": 1,
    "prompts.num_generated": 800,
    "sft.steps": 300, "sft.batch_size": 8, "sft.micro_batch_size": 8, "sft.checkpoint_every": 50, "sft.keep_checkpoints": 9,
    "rollout.max_new_tokens": 16, "grpo.steps": 60, "grpo.prompts_per_step": 4, "grpo.group_size": 4, "grpo.micro_batch_size": 8,
    "grpo.checkpoint_every": 7, "grpo.eval_every": 5, "grpo.select_max_prompts": 8,
    "heldout_eval.max_prompts": 16, "heldout_eval.samples_per_prompt": 2, "heldout_eval.bootstrap_resamples": 200,
    "blind_review_set.num_pairs": 4, "blind_review_set.num_control_pairs": 1,
}  # fmt: skip
KILLED_AFTER_STEP = 24
"""Between two checkpoints, of 60 steps."""
REPRO = dvc("repro", "grpo_checkpoint@default")
GRPO_RUN = [sys.executable, "-m", "pipelines.cli", "run", "--from-grpo"]
PATIENCE_SECONDS = 120.0

Victims = Callable[[int], set[int]]
"""Pid of the command → pids to kill."""


def only_the_command(pid: int) -> set[int]:
    return {pid}


def everything(pid: int) -> set[int]:
    return {process.pid for process in family(pid)}


def only_the_training(pid: int) -> set[int]:
    process = stage_process(pid)
    return {process.pid} if process else set()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout as it is on disk, with a small model; nothing has been run in it."""
    root = copy_working_tree(ROOT, tmp_path_factory.mktemp("kills") / "bare")
    set_params(root, SMALL)
    return root


@pytest.fixture(scope="module")
def prepared(bare: Path) -> Path:
    """All but GRPO and what comes after it has been made."""
    root = shutil.copytree(bare, bare.with_name("prepared"), symlinks=True)
    finish(root, dvc("repro", "reference_checkpoint"))
    return root


@pytest.fixture(scope="module")
def untouched(prepared: Path) -> Path:
    """The whole lifecycle, never interrupted."""
    root = shutil.copytree(prepared, prepared.with_name("untouched"), symlinks=True)
    finish(root, GRPO_RUN)
    assert curve_faults(root) == []
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "victims"),
    [
        pytest.param(REPRO, only_the_training, id="the training process"),
        pytest.param(GRPO_RUN, everything, id="grpo run and all that it started"),
        pytest.param(GRPO_RUN, only_the_command, id="grpo run alone"),
        pytest.param(REPRO, only_the_command, id="dvc alone"),
        pytest.param(REPRO, everything, id="dvc and all that it started"),
    ],
)
def test_grpo_killed_and_started_again_ends_as_if_it_had_been_left_alone(
    prepared: Path, untouched: Path, tmp_path: Path, command: list[str], victims: Victims
) -> None:
    root = shutil.copytree(prepared, tmp_path / "killed", symlinks=True)
    kill(root, command, victims, "grpo_checkpoint", KILLED_AFTER_STEP)
    again = time.time()
    finish(root, command)
    assert written_before(Paths(root).provenance("grpo_checkpoint") / "timings.jsonl", again) >= KILLED_AFTER_STEP - 7, "resumed, not begun anew"
    made, expected = outs(root), outs(untouched)
    assert "grpo_checkpoint@default" in made and made == {target: expected[target] for target in made}
    assert curve_faults(root) == []


@pytest.mark.slow
def test_sft_killed_and_started_again_ends_as_if_it_had_been_left_alone(bare: Path, untouched: Path, tmp_path: Path) -> None:
    root = shutil.copytree(bare, tmp_path / "killed", symlinks=True)
    kill(root, dvc("repro", "sft_checkpoint"), only_the_training, "sft_checkpoint", 120)
    again = time.time()
    finish(root, dvc("repro", "sft_checkpoint"))
    (kept,) = (root / ".work" / "sft_checkpoint").glob("*/checkpoints/step-000100")
    assert kept.stat().st_mtime < again, "resumed, not begun anew"
    assert outs(root)["sft_checkpoint"] == outs(untouched)["sft_checkpoint"]


@pytest.mark.slow
def test_pruning_all_that_may_go_leaves_the_workspace_whole(untouched: Path, tmp_path: Path) -> None:
    root = shutil.copytree(untouched, tmp_path / "pruned", symlinks=True)
    set_params(root, {"heldout_eval.seed": 1})
    finish(root, dvc("repro"))
    cache, before = root / ".dvc" / "cache" / "files", outs(root)
    num_objects = len(list(cache.rglob("*")))
    finish(root, [sys.executable, "-m", "pipelines.cli", "prune", "--work", "all", "--yes"])
    assert not list((root / ".work" / "grpo_checkpoint" / "default").iterdir())
    assert len(list(cache.rglob("*"))) < num_objects
    shutil.rmtree(root / "data" / "grpo_checkpoint")
    finish(root, dvc("checkout"))
    log = root.with_name("pruned.log")
    num_worked = log.read_text(encoding="utf-8").count("Running stage")
    finish(root, dvc("repro"))
    assert log.read_text(encoding="utf-8").count("Running stage") == num_worked and outs(root) == before
    finish(root, [sys.executable, "-m", "pipelines.cli", "trace", "default"])


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        ([0, 1, 2, 3], None),
        ([0, 1, 3], "loss: 3 points instead of 4, the first that is wrong: step 2"),
        ([0, 1, 2, 2, 3], "loss: 5 points instead of 4, the first that is wrong: step 2"),
        ([0, 1, 2, 3, 4], "loss: 5 points instead of 4, the first that is wrong: step 4"),
    ],
)
def test_a_step_that_a_curve_lacks_or_has_twice_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[int], fault: str | None) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    metrics = Paths(tmp_path).grpo_checkpoint / "metrics.jsonl"
    metrics.parent.mkdir(parents=True)
    metrics.write_text("".join(json.dumps({"step": step, "loss": step / 2}) + "\n" for step in range(4)), encoding="utf-8")
    assert curve_faults(tmp_path) == ["0 MLflow runs instead of one"]
    sink = open_run(tmp_path, "default", "0123", {}, {})
    for number, step in enumerate(sent):
        sink.client.log_metric(sink.run_id, "loss", step / 2, timestamp=number, step=step)
    for step in (1, 2, 3):
        sink.client.log_metric(sink.run_id, "seconds", 0.5, step=step)
    assert curve_faults(tmp_path) == ([fault] if fault else [])


def test_the_last_checkpoint_counts_as_an_average_one() -> None:
    lines = [{"step": 0.0}, {"seconds": 9.0, "seconds/rows": 0.5}, {"seconds": 9.0, "seconds/rows": 0.5, "seconds/checkpoint": 0.5}]
    assert checkpoint_share(lines) == pytest.approx(1 / 20)


def finish(root: Path, command: Sequence[str]) -> None:
    """Run the command to its end."""
    log = root.with_name(f"{root.name}.log")
    running = start(root, command, log)
    try:
        status = running.wait(timeout=5 * PATIENCE_SECONDS)
    finally:
        end(running)
    assert status == 0, tail(log, 40)


def kill(root: Path, command: Sequence[str], victims: Victims, noun: str, step: int) -> None:
    """Start the command and SIGKILL its victims once the training of `noun` has finished `step`; returns when nothing that it started lives."""
    log = root.with_name(f"{root.name}.log")
    running = start(root, command, log)
    started: set[Process] = set()
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while last_step(root, noun) < step:
            assert running.poll() is None and time.monotonic() < deadline, tail(log, 40)
            time.sleep(0.005)
        started, targets = family(running.pid), victims(running.pid)
        assert targets, "the training had ended"
        for pid in targets:
            os.kill(pid, signal.SIGKILL)
        assert running.wait(timeout=PATIENCE_SECONDS) != 0
        while started & living_processes():
            assert time.monotonic() < deadline, f"{started & living_processes()} outlived what started them"
            time.sleep(0.05)
    finally:
        end(running, started)
    assert step <= last_step(root, noun), "no step was lost"
    assert not list((root / ".work" / noun).rglob("finished")), "it was killed in the middle"


def last_step(root: Path, noun: str) -> int:
    """The last step that a work folder of `noun` has a whole line of."""
    steps = [0]
    for metrics in (root / ".work" / noun).rglob("metrics.jsonl"):
        steps += [int(json.loads(line)["step"]) for line in metrics.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    return max(steps)


def written_before(timings: Path, when: float) -> int:
    """The last step that was done before `when`."""
    lines = [json.loads(line) for line in timings.read_text(encoding="utf-8").splitlines()]
    return max((int(line["step"]) for line in lines if line["timestamp_ms"] < when * 1000), default=0)


def outs(root: Path) -> dict[str, dict[str, str]]:
    """Target → path → md5 of every output that DVC knows."""
    return {target: dict(entry.outs) for target, entry in read_lock(root).items()}


def end(running: subprocess.Popen[bytes], more: Set[Process] = frozenset()) -> None:
    """Leave nothing behind, whatever failed."""
    for process in (family(running.pid) | more) & living_processes():
        os.kill(process.pid, signal.SIGKILL)
    running.wait()
