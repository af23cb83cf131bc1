"""`grpo doctor` and what a run says of itself before it begins: facts, warnings, costs against what the machine has."""

import io
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from assets.paths import Paths
from grpo_core.config import ModelConfig, RunConfig, SftConfig
from grpo_core.determinism import OVERRULING, SHOWN
from grpo_core.params import parse_sections, section_values
from pipelines import machine
from pipelines.commands.doctor import check_inputs, git_text, same_experiments
from pipelines.machine import Memory
from pipelines.outlook import duration, last_run, outlook, shown, size_text, split_sizes, unwritable
from pipelines.params import experiments
from tests.pipelines.checkouts import ROOT

CODE = "import sys; from pipelines.commands.doctor import doctor; doctor(standalone_mode=False); sys.exit(3 if 'torch' in sys.modules else 0)"
CLEAN = {name: value for name, value in os.environ.items() if name not in (*SHOWN, *OVERRULING, "MLFLOW_TRACKING_URI")}


def doctor(root: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`grpo doctor` of the checkout at `root`; exit status 3 when it had to import torch."""
    command = [sys.executable, "-c", CODE]
    return subprocess.run(command, cwd=root, env={**CLEAN, "COLUMNS": "200", **variables}, capture_output=True, text=True, check=False)


def flat(text: str) -> str:
    """`text` without its line breaks, so that no width matters."""
    return " ".join(text.split())


def edit(root: Path, pattern: str, replacement: str) -> None:
    path = root / "params.yaml"
    text, count = re.subn(pattern, replacement, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert count == 1, pattern
    path.write_text(text, encoding="utf-8")


def make_prompts(paths: Paths, **counts: int) -> None:
    paths.prompts.parent.mkdir(parents=True)
    pl.DataFrame({"split": [split for split, count in counts.items() for _ in range(count)]}).write_parquet(paths.prompts)


def test_the_default_is_told_in_a_second_without_torch(checkout: Path) -> None:
    before = sorted(path for path in checkout.rglob("*") if "__pycache__" not in path.parts)
    started = time.monotonic()
    result = doctor(checkout)
    assert time.monotonic() - started < 10, "a loaded machine may need some of it"
    assert (result.returncode, result.stderr) == (0, "")
    text = flat(result.stdout)
    for fact in (
        "completions a step 128 = 16 prompts × 8",
        "optimizer steps 160 = 80 × 2 a rollout batch",
        "prompts drawn 1,280 = 0.35 epochs over about 3,700 train prompts",
        "fine-tuning reads 38,400 demonstrations = 6.98 epochs over about 5,500 demonstrations",
        "tokens at most 450,560 in training, 50,688 in 9 evaluations on select, 225,280 held out",
        "parameters 331,776",
        "MiB (grpo_checkpoint)",
        "(rough: operations counted, against a short probe of the processor): sft_checkpoint",
        "warning: 2,420 of 3,700 train prompts would never be seen: grpo.steps 232",
        "2 (model.num_threads) on",
        "OMP_WAIT_POLICY=passive",
        "no Git commit",
        "On a CPU two runs with the same model.num_threads",
        "params.yaml is valid: 1 experiment",
    ):
        assert fact in text, fact
    assert sorted(path for path in checkout.rglob("*") if "__pycache__" not in path.parts) == before, "nothing is written"


def test_every_experiment_is_told(checkout: Path) -> None:
    edit(checkout, r"^  default: \{\}$", "  default: {}\n  again: {}\n  small: {grpo: {group_size: 4}}")
    text = flat(doctor(checkout).stdout)
    for fact in (
        "Experiment 'default'",
        "Experiment 'small'",
        "64 = 16 prompts × 4",
        "grpo.advantage_clip (2) never cuts",
        "params.yaml is valid: 3 experiments",
    ):
        assert fact in text, fact
    assert "warning: experiments 'default' and 'again' are the same configuration: both would be trained" in text


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"^  group_size: \d+", "  group_size: 1", "grpo.group_size must be at least 2"),
        (r"^  clip_high: [\d.]+", "  clip_high: 100", "grpo.clip_high must be below 10 with 2 optimizer steps a rollout"),
        (r"^  exact_answer: 1.0", "  my.module:mine: 1.0", "cannot import 'my.module'"),
    ],
)
def test_what_cannot_be_run_ends_it_with_one_line(checkout: Path, pattern: str, replacement: str, message: str) -> None:
    edit(checkout, pattern, replacement)
    result = doctor(checkout)
    assert (result.returncode, result.stdout) == (1, "")
    assert message in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("prompts", "model", "message"),
    [
        ({"path": "none.jsonl"}, {}, r"none\.jsonl: no such file \(beside it: .*questions\.jsonl\)"),
        ({"path": "questions.jsonl"}, {}, "prompts.prompt_column is 'prompt', which is no column of the file"),
        ({"reasoning_gym": "chain_sums"}, {"path": "gpt2"}, "did you mean 'chain_sum'"),
        ({}, {"path": "/no/such/model"}, "model.path '/no/such/model' is no folder, nor a name on a hub"),
        ({}, {"path": "a/b/c"}, "model.path 'a/b/c' is no folder, nor a name on a hub"),
        ({}, {"path": "empty"}, "model.path 'empty' holds no config.json"),
    ],
)
def test_inputs_that_no_stage_could_read_are_named_before_a_run(prompts: dict[str, Any], model: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text('{"question": "1+1", "solution": "2"}\n')
    (tmp_path / "empty").mkdir()
    config = RunConfig(sft=SftConfig(steps=0))
    with pytest.raises(ValueError, match=message):
        check_inputs(tmp_path, replace(config, prompts=replace(config.prompts, **prompts), model=replace(config.model, **model)))


def test_inputs_that_can_be_read_pass(tmp_path: Path) -> None:
    config = RunConfig()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for path in ("", "gpt2", "Qwen/Qwen3-0.6B", "model"):
        check_inputs(tmp_path, replace(config, model=replace(config.model, path=path)))


def test_what_the_shell_asks_for_in_vain_is_said(checkout: Path) -> None:
    result = doctor(checkout, OMP_NUM_THREADS="9", OMP_WAIT_POLICY="active")
    assert "warning: OMP_NUM_THREADS=9 in your environment is not obeyed: stages run with OMP_NUM_THREADS=2" in flat(result.stdout)
    assert "OMP_WAIT_POLICY=active" in flat(result.stdout)


def test_more_threads_than_cores_are_warned_of(checkout: Path) -> None:
    edit(checkout, r"^  num_threads: \d+", "  num_threads: 4000")
    assert "warning: model.num_threads is 4000, but this process may use" in flat(doctor(checkout).stdout)


# ------------------------------------------------------------------------------------------------------------------------ the outlook


def told(root: Path, config: RunConfig) -> str:
    stream = io.StringIO()
    Console(file=stream, width=300).print(shown(outlook(root, "default", config)))
    return flat(stream.getvalue())


def test_made_prompts_are_counted_exactly(tmp_path: Path) -> None:
    make_prompts(Paths(tmp_path), train=640, heldout=20, select=9)
    assert split_sizes(Paths(tmp_path)) == {"train": 640, "sft": 0, "select": 9, "heldout": 20}
    assert "1,280 = 2.00 epochs over 640 train prompts" in told(tmp_path, RunConfig())
    Paths(tmp_path).prompts.write_bytes(b"broken")
    assert split_sizes(Paths(tmp_path)) is None


def finish(root: Path, config: RunConfig, seconds: float) -> Paths:
    """What a finished training leaves that tells how long its steps took."""
    paths = Paths(root)
    for folder in (paths.grpo_checkpoint, paths.provenance("grpo_checkpoint")):
        folder.mkdir(parents=True)
    sections = {name: section_values(config, name) for name in ("model", "rollout", "rewards", "grpo")}
    del sections["grpo"]["steps"]
    (paths.grpo_checkpoint / "manifest.json").write_text(json.dumps({"config": sections, "step": config.grpo.steps}))
    lines = [{"step": 0}, *({"step": step, "seconds": seconds} for step in range(1, config.grpo.steps + 1))]
    (paths.provenance("grpo_checkpoint") / "timings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return paths


def test_the_last_run_tells_how_long_a_step_takes(tmp_path: Path) -> None:
    config = parse_sections({"grpo": {"steps": 100}})
    last = last_run(finish(tmp_path, config, 3.0))
    assert last is not None
    assert (last.config.grpo.steps, last.seconds_a_step, last.size.parameters) == (100, 3.0, 331_776)
    ahead = outlook(tmp_path, "default", config)
    assert ahead.time_basis == "from the last run's 3 s a step"
    assert ahead.seconds["grpo_checkpoint"] == pytest.approx(310, rel=0.01)
    slower = outlook(tmp_path, "default", parse_sections({"grpo": {"steps": 100}, "model": {"hidden_size": 512}}))
    assert slower.seconds["grpo_checkpoint"] > 900, "another model is scaled by its work"


def test_a_last_run_in_another_precision_or_place_tells_nothing(tmp_path: Path) -> None:
    finish(tmp_path, RunConfig(), 1.0)
    assert outlook(tmp_path, "default", parse_sections({"model": {"device": "cpu"}})).time_basis.startswith("rough")
    ahead = outlook(tmp_path, "default", parse_sections({"model": {"dtype": "bfloat16", "device": "cpu"}}))
    assert (ahead.time_basis, ahead.seconds) == ("unknown in bfloat16 on a CPU before a first run", {})


@pytest.mark.parametrize("spoil", ["manifest", "timings", "empty"])
def test_a_last_run_that_cannot_be_read_is_none(spoil: str, tmp_path: Path) -> None:
    paths = finish(tmp_path, RunConfig(), 1.0)
    file = paths.grpo_checkpoint / "manifest.json" if spoil == "manifest" else paths.provenance("grpo_checkpoint") / "timings.jsonl"
    file.write_text("{" if spoil != "empty" else "")
    assert last_run(paths) is None
    assert "rough" in told(tmp_path, RunConfig())


def test_a_hub_model_has_no_size_before_it_was_loaded(tmp_path: Path) -> None:
    text = told(tmp_path, parse_sections({"model": {"path": "owner/name"}}))
    assert "parameters unknown before the model has been loaded" in text
    assert "time unknown before the model has been loaded once" in text
    assert "memory" not in text


def test_a_gpu_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_memory", lambda: [2**30])
    ahead = outlook(tmp_path, "default", RunConfig())
    assert (ahead.on_gpu, ahead.available, ahead.time_basis) == (True, 2**30, "unknown on a GPU before a first run")
    wide = parse_sections({"model": {"hidden_size": 1024, "num_layers": 8}})
    assert [text for text in outlook(tmp_path, "default", wide).warnings if "the GPU has 1.0 GiB: lower" in text]
    on_cpu = outlook(tmp_path, "default", parse_sections({"model": {"device": "cpu"}}))
    assert not on_cpu.on_gpu
    monkeypatch.setattr(machine, "gpu_memory", list)
    missing = outlook(tmp_path, "default", parse_sections({"model": {"device": "cuda:0"}}))
    assert "model.device is 'cuda:0', but no NVIDIA GPU answers here: training will refuse" in missing.warnings


def test_what_does_not_fit_is_warned_of_with_the_key_to_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = parse_sections({"model": {"hidden_size": 1024, "num_layers": 8}})
    monkeypatch.setattr(machine, "memory", lambda: Memory(2**30, 2**29))
    warnings = outlook(tmp_path, "default", large).warnings
    assert [text for text in warnings if "of memory, this machine has 1.0 GiB: lower" in text and "micro_batch_size" in text], warnings
    monkeypatch.setattr(machine, "memory", lambda: Memory(2**40, 2**29))
    assert [text for text in outlook(tmp_path, "default", large).warnings if "only 512 MiB of it is free now" in text]
    monkeypatch.setattr(machine, "memory", lambda: Memory(None, None))
    assert not [text for text in outlook(tmp_path, "default", large).warnings if "memory" in text]
    monkeypatch.setattr(machine, "free_disk", lambda folder: 2**20)
    assert [text for text in outlook(tmp_path, "default", large).warnings if "of disk, 1.0 MiB are free" in text]


# ------------------------------------------------------------------------------------------------------------------------ the machine

MEMINFO = "MemTotal:       24000000 kB\nMemFree: 100 kB\nMemAvailable:   20000000 kB\nHugePages_Total:       0\n"


def system(folder: Path, groups: str, files: dict[str, str]) -> Memory:
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "meminfo").write_text(MEMINFO)
    (folder / "proc" / "self" / "cgroup").write_text(groups)
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return machine.memory(folder / "proc", folder / "cgroup")


@pytest.mark.parametrize(
    ("groups", "files", "total"),
    [
        ("0::/\n", {}, 24_000_000 * 1024),
        ("0::/box/inner\n", {"box/memory.max": "4096000\n", "box/inner/memory.max": "max\n"}, 4_096_000),
        ("0::/\n", {"memory.max": "5000000"}, 5_000_000),
        ("4:memory:/box\n1:cpu:/\n0::/\n", {"memory/box/memory.limit_in_bytes": "7000000"}, 7_000_000),
        ("4:memory:/box\n", {"memory/box/memory.limit_in_bytes": "9223372036854771712"}, 24_000_000 * 1024),
    ],
    ids=["none", "above", "own", "version 1", "version 1 without limit"],
)
def test_a_containers_limit_is_the_memory_there_is(groups: str, files: dict[str, str], total: int, tmp_path: Path) -> None:
    assert system(tmp_path, groups, files) == Memory(total, min(20_000_000 * 1024, total))


def test_where_the_system_does_not_say_nothing_is_made_up(tmp_path: Path) -> None:
    assert machine.memory(tmp_path / "proc", tmp_path / "cgroup") == Memory(None, None)


def test_this_machine_has_memory_cores_and_disk(tmp_path: Path) -> None:
    memory = machine.memory()
    assert memory.total is not None and memory.free is not None
    assert 0 < memory.free <= memory.total
    assert 1 <= machine.cores() <= (os.cpu_count() or 1)
    assert machine.free_disk(tmp_path) > 0


def test_what_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert unwritable(tmp_path) == []
    assert machine.writable(tmp_path / "not" / "there" / "yet")
    monkeypatch.setattr(os, "access", lambda path, mode: "data" not in str(path))
    (tmp_path / "data").mkdir()
    assert unwritable(tmp_path) == [f"outputs cannot be written at {tmp_path / 'data'}: a run would fail there"]


def test_code_that_was_not_committed_is_said_to_be_kept(tmp_path: Path) -> None:
    assert git_text(tmp_path) == "no Git commit: the record of a run cannot say which code made it"
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert re.fullmatch(r"commit [0-9a-f]{7,}, nothing uncommitted", git_text(tmp_path))
    (tmp_path / "new.py").touch()
    assert re.fullmatch(r"commit [0-9a-f]{7,} and 1 uncommitted change: code among them is kept .*snapshot", git_text(tmp_path))


def test_equal_experiments_are_named_in_pairs() -> None:
    other = replace(RunConfig(), model=ModelConfig(seed=1))
    assert same_experiments({"a": RunConfig(), "b": other}) == []
    assert same_experiments({"a": RunConfig(), "b": other, "c": RunConfig()}) == ["experiments 'a' and 'c' are the same configuration: both would be trained"]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (90, "1.5 min"), (900, "15 min"), (7200, "2.0 h"), (3e5, "3.5 days")])
def test_a_duration_is_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (830 * 2**20, "830 MiB"), (3 * 2**39, "1.5 TiB")])
def test_a_size_is_short(count: int, text: str) -> None:
    assert size_text(count) == text


def presets() -> list[Any]:
    return [pytest.param(path, id=path.stem) for path in sorted((ROOT / "params").glob("*.yaml"))]


@pytest.mark.parametrize("preset", presets())
def test_every_preset_is_told(preset: Path, checkout: Path) -> None:
    from pipelines.presets import apply_preset

    apply_preset(checkout, preset)
    result = doctor(checkout)
    assert "Experiment 'default'" in result.stdout and "This machine and this checkout" in result.stdout
    path = experiments(checkout)["default"].prompts.path
    if path:
        assert result.returncode == 1
        assert f"{path}: no such file" in result.stderr, "its prompts are not there yet"
    else:
        assert (result.returncode, result.stderr) == (0, "")
        assert "params.yaml is valid" in result.stdout


def test_demonstrations_beside_the_rollouts_are_told(tmp_path: Path) -> None:
    assert "demonstrations a step" not in told(tmp_path, RunConfig())
    cloning = parse_sections({"grpo": {"cloning_weight": 1.0, "cloning_steps": 30, "cloning_batch_size": 12}})
    assert "demonstrations a step 12 in the first 30 steps at most" in told(tmp_path, cloning)
