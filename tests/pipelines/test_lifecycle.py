"""The shipped default from a clean clone to its evidence, through the real tools. Takes minutes: `make test-slow`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.environment import environment
from pipelines.params import ROOT


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean clone of the last commit in which the lifecycle has run."""
    root = tmp_path_factory.mktemp("lifecycle") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(root)], check=True)
    run(root, sys.executable, "-m", "pipelines.cli", "run")
    return root


def run(root: Path, *command: str) -> str:
    """What the command prints on stdout; its error is shown when it fails."""
    env = {name: value for name, value in environment(root, os.environ).items() if name not in ("OMP_NUM_THREADS", "PYTHONPATH")}
    result = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}\n{result.stderr}"
    return result.stdout


def dvc(root: Path, *arguments: str) -> str:
    return run(root, str(Path(sys.executable).parent / "dvc"), *arguments)


@pytest.mark.slow
def test_the_default_teaches(clone: Path) -> None:
    summary = json.loads((clone / "data" / "heldout_eval" / "default" / "summary.json").read_text())
    assert 0.25 <= summary["reference_accuracy"] <= 0.55
    assert summary["policy_accuracy"] >= 0.9
    assert summary["difference"] >= 0.4 and summary["difference_low"] > 0.3
    assert summary["policy_mean_length"] > summary["reference_mean_length"] + 10


@pytest.mark.slow
def test_afterwards_everything_is_up_to_date_and_an_edit_of_grpo_leaves_sft_alone(clone: Path) -> None:
    assert dvc(clone, "status").strip() == "Data and pipelines are up to date."
    assert "Running stage" not in dvc(clone, "repro")
    params = clone / "params.yaml"
    before = params.read_text()
    params.write_text(before.replace("  learning_rate: 0.0001 ", "  learning_rate: 0.0002 "))
    stages = [line for line in run(clone, sys.executable, "-m", "pipelines.cli", "status").splitlines() if not line.startswith(" ")]
    params.write_text(before)
    judged = {f"{noun}@default" for noun in ("heldout_eval", "blind_review_set", "blind_review_verdict", "promotion_report")}
    expected = {"grpo_checkpoint@default", *judged, "comparison_report"}
    assert {line.split(":")[0] for line in stages if line.endswith("out of date")} == expected
    assert "Running stage" not in dvc(clone, "repro")
