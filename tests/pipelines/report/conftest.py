"""A tiny trained run for all tests of the report: made once a process, never changed (copy it first)."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from assets.paths import Paths
from grpo_core.config import SECTIONS, SHARED_SECTIONS
from grpo_core.params import section_values
from pipelines.params import json_bytes
from pipelines.report.content import Report, gather
from pipelines.report.sources import find_sources
from tests.assets.lifecycle import lifecycle_config, make_lifecycle

ALARMS: dict[str, Any] = {
    "num_steps": 4,
    "num_open": 1,
    "alarms": [
        {
            "condition": "weak_signal", "severity": "warning", "first_step": 1, "last_step": 1, "open": False, "message": "groups are alike", "evidence": {},
            "action": "warn", "remedy": "raise grpo.group_size", "page": "docs/health.md#weak-signal", "acknowledged": None,
        },
        {
            "condition": "early_explosion", "severity": "alarm", "first_step": 2, "last_step": 3, "open": True, "message": "kl/mean is above its bound",
            "evidence": {"kl/mean": 0.61, "grad_norm": 7.0}, "action": "adjust", "adjustment": {"max_grad_norm": 0.5}, "remedy": "lower grpo.learning_rate",
            "page": "docs/health.md#early-explosion", "rows": [{"prompt_id": "1eef", "completion_index": 2, "reward": 1.5, "text": "a very good text"}],
        },
    ],
}  # fmt: skip


@pytest.fixture(scope="session")
def lifecycle(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """From prompts to the blind-review set, with the configuration and two alarms; without records (they are written by the stages)."""
    paths = make_lifecycle(tmp_path_factory.mktemp("lifecycle"))
    for section in SECTIONS:
        file = paths.run_config / ("" if section in SHARED_SECTIONS else paths.experiment) / f"{section}.json"
        file.write_bytes(json_bytes(section_values(lifecycle_config(), section)))
    write_alarms(paths.alarms, ALARMS)
    return paths


@pytest.fixture(scope="session")
def finished(lifecycle: Paths) -> Report:
    """What the report of the whole run says."""
    return gather(find_sources(lifecycle.root, lifecycle.experiment))


@pytest.fixture
def spoilt(lifecycle: Paths, tmp_path: Path) -> Paths:
    """A copy of the run, its work folder included, in which a test may change things."""
    for folder in (lifecycle.data, lifecycle.work):
        shutil.copytree(folder, tmp_path / folder.name)
    return Paths(tmp_path)


def write_alarms(path: Path, alarms: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(alarms), encoding="utf-8")
