"""Two runs on disk for tests of what looks runs up: a checkout with a ledger of 96 rollouts an experiment, and `grpo`'s commands in it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from bench.trace import make_run
from grpo_core.config import GrpoConfig, HeldoutEvalConfig, PromptsConfig, RunConfig
from grpo_core.prompts import make_prompts
from pipelines.records.runs import Run, find_run

CONFIG = RunConfig(
    prompts=PromptsConfig(num_generated=300),
    grpo=GrpoConfig(steps=6, prompts_per_step=4, group_size=4, eval_every=3, seed=7),
    heldout_eval=HeldoutEvalConfig(samples_per_prompt=2),
)
HEAVY = ("mlflow", "dvc", "dagster", "torch", "transformers", "great_expectations")
"""What a command that answers at once must not import."""


def prompts() -> pl.DataFrame:
    """Three hundred additions, split by their content."""
    return make_prompts(CONFIG.prompts, Path())


def make_two_runs(root: Path) -> None:
    """`default`, and `other` with another learning rate and another library, whose answers are right more often."""
    make_run(root, "default", CONFIG, prompts())
    other = replace(CONFIG, grpo=replace(CONFIG.grpo, learning_rate=1e-5))
    make_run(root, "other", other, prompts(), better=0.2, seed=1, libraries={"torch": "2.12.0", "transformers": "5.24.0", "polars": "2.1.0"})


def run_of(root: Path, experiment: str) -> Run:
    return find_run(root, experiment)


def grpo(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of the checkout at `root` in a process of its own; heavy modules that it imported are named on the last line of its stderr."""
    command, *rest = arguments
    code = (
        f"import sys; from pipelines.commands.{command} import {command}\n"
        f"try: {command}(sys.argv[1:], prog_name='grpo {command}')\n"
        f"finally: print('heavy:', *[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    return subprocess.run([sys.executable, "-W", "error", "-c", code, *rest], cwd=root, capture_output=True, text=True, check=False)


def cells(output: str) -> list[list[str]]:
    """Cells of the rows of a table drawn with lines."""
    return [[cell.strip() for cell in line.split("│")] for line in output.splitlines() if "│" in line]


def without(path: Path) -> Path:
    """`path`, gone."""
    path.unlink()
    return path


def rewritten(path: Path, **columns: Any) -> None:
    """The table at `path` with these columns replaced."""
    table = pl.read_parquet(path).with_columns(**columns)
    path.unlink()
    table.write_parquet(path)
