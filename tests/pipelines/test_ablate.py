"""`grpo ablate` as a person meets it: what it prints, what it writes, and how it shows a comparison."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from assets.paths import Paths
from pipelines.ablation import report_now
from pipelines.params import experiments
from tests.assets.trained_experiments import write_trained

CODE = "import sys; from pipelines.commands.ablate import ablate; ablate(standalone_mode=False); sys.exit(3 if 'torch' in sys.modules else 0)"


def ablate(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`grpo ablate` of the checkout at `root`; exit status 3 when it had to import torch, 1 with a traceback when it refuses."""
    return subprocess.run([sys.executable, "-c", CODE, *arguments], cwd=root, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True, check=False)


def flat(text: str) -> str:
    return " ".join(text.split())


def test_arms_are_added_and_told_with_their_cost_and_what_to_do_next(checkout: Path) -> None:
    result = ablate(checkout, "group-size", "--values", "4,16", "--seeds", "0,1", "--steps", "10")
    assert (result.returncode, result.stderr) == (0, "")
    text = flat(result.stdout)
    for fact in (
        "added: group_size-4-seed-0, group_size-4-seed-1, group_size-16-seed-0, group_size-16-seed-1",
        "group_size-4 │ 0, 1 │ 10 │ 128 = 32 prompts × 4 │ 64 │ 1,280 │",
        "group_size-16 │ 0, 1 │ 10 │ 128 = 8 prompts × 16 │ 64 │ 1,280 │",
        "4 trainings, 225,280 tokens at most, about ",
        "warning: group_size-4: grpo.advantage_clip (2) never cuts",
        "dvc repro comparison_report trains them one after another",
        "grpo run --experiment group_size-4-seed-0 one of them",
        "grpo ablate group-size --remove takes them out",
    ):
        assert fact in text, fact
    assert list(experiments(checkout)) == ["default", *(f"group_size-{size}-seed-{seed}" for size in (4, 16) for seed in (0, 1))]
    again = ablate(checkout, "group-size", "--values", "4,16", "--seeds", "0,1", "--steps", "10")
    assert "there already: group_size-4-seed-0" in again.stdout and "added" not in again.stdout


def test_a_dry_run_and_a_removal_say_what_they_mean(checkout: Path) -> None:
    before = (checkout / "params.yaml").read_bytes()
    dry = ablate(checkout, "clip", "--dry-run")
    assert "would be experiments of params.yaml: clip-0_1-seed-0, clip-0_1-seed-1" in dry.stdout
    assert (checkout / "params.yaml").read_bytes() == before
    assert ablate(checkout, "clip", "--seeds", "3").returncode == 0
    kept = ablate(checkout, "clip", "--remove", "--dry-run")
    assert kept.stdout.startswith("would be taken out of params.yaml: clip-0_1-seed-3, clip-0_2-seed-3, clip-0_3-seed-3\n")
    gone = ablate(checkout, "clip", "--remove")
    assert gone.stdout.startswith("taken out of params.yaml: clip-0_1-seed-3") and "stays in data/" in gone.stdout
    assert (checkout / "params.yaml").read_bytes() == before
    assert ablate(checkout, "clip", "--remove").stdout == "params.yaml has no such arms: nothing to take out\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name what to vary, one of group-size, clip, beta, temperature, or ask for --report"),
        (["learning-rate"], "is not one of 'group-size'"),
        (["clip", "--values", "0.1,wide"], "--values takes numbers separated by commas, as in 4,8,16, got '0.1,wide'"),
        (["clip", "--seeds", "0,1.5"], "--seeds takes whole numbers from 0"),
        (["clip", "--seeds", "0,-1"], "--seeds takes whole numbers from 0"),
        (["--report", "--dry-run"], "--report only shows"),
        (["group-size", "--values", "12"], "group_size 12 does not divide the sampling budget"),
        (["clip", "--values", "1.5"], "experiments.clip-1_5-seed-0: grpo.clip_low must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_is_refused_with_params_as_they_were(arguments: list[str], message: str, checkout: Path) -> None:
    before = (checkout / "params.yaml").read_bytes()
    result = ablate(checkout, *arguments)
    assert result.returncode == 1
    assert message in result.stderr
    assert (checkout / "params.yaml").read_bytes() == before


def test_the_report_shows_the_arms_and_the_recommendation(checkout: Path) -> None:
    assert "one experiment: nothing to compare yet" in ablate(checkout, "--report").stdout
    assert ablate(checkout, "group-size", "--values", "4,8", "--steps", "20").returncode == 0
    for name, config in experiments(checkout).items():
        if name not in ("default", "group_size-8-seed-0"):
            write_trained(Paths(checkout, name), config, rise=0.02 if config.grpo.group_size == 8 else 0.005, noise=0.001)
    few = ablate(checkout, "--report")
    assert "default: not trained yet" in few.stdout and "no recommendation yet: it takes 3 seeds" in few.stdout
    write_trained(Paths(checkout, "group_size-8-seed-0"), experiments(checkout)["group_size-8-seed-0"], rise=0.02, noise=0.001)
    result = ablate(checkout, "--report")
    assert (result.returncode, result.stderr) == (0, "")
    assert "4 rises more slowly than 8" in flat(result.stdout) and ": take 8" in flat(result.stdout)
    assert "in params.yaml: grpo.group_size: 8, grpo.prompts_per_step: 16" in flat(result.stdout)
    assert "4 rises more slowly" in flat(ablate(checkout, "group-size", "--report").stdout)
    assert "4 rises more slowly" not in flat(ablate(checkout, "clip", "--report").stdout)
    found: Mapping[str, Any] = report_now(checkout)
    assert found["comparisons"][0]["recommended"] == "8"
    assert not (checkout / "data/comparison_report").exists(), json.dumps(found)
