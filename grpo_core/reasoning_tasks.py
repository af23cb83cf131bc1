"""Questions of any reasoning-gym task as prompts, each with the entry that the task's own verifier needs to score an answer."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from grpo_core import reasoning_generation

SCRIPT = Path(reasoning_generation.__file__)
SCHEMA = {name: pl.String() for name in ("prompt", "answer", "task", "difficulty", "reasoning_entry")}


def generate(task: str, config: Mapping[str, object], size: int, seed: int) -> pl.DataFrame:
    """`size` different questions with answer, task, difficulty and `reasoning_entry` (JSON); a longer table starts with the shorter one.

    The same everywhere for the same seed. The answer of a task that has many right ones is an example, or empty. Raises ValueError for an
    unknown task or configuration key (naming the nearest), and for more questions than the task can make.
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ValueError(f"prompts.reasoning_gym is {task!r}, and reasoning-gym is not installed: pip install reasoning-gym")
    made = _made({"task": task, "config": dict(config), "size": size, "seed": seed})
    if "error" in made:
        raise ValueError(made["error"])
    return pl.DataFrame(made["rows"], schema=SCHEMA)


def _made(asked: Mapping[str, object]) -> dict[str, Any]:
    """What the script answers: a fresh process, so that its hash seed is always the same."""
    environment = os.environ | {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-P", str(SCRIPT)], input=json.dumps(asked), env=environment, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        last = (ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"])[-1]
        raise ValueError(f"prompts.reasoning_gym: generating {asked['task']!r} with {asked['config']} failed: {last}")
    made: dict[str, Any] = json.loads(ran.stdout)
    return made
