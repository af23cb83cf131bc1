"""The study over seeds: what a finished seed may be taken for."""

from dataclasses import replace
from pathlib import Path

from bench.seeds import version
from grpo_core.config import GrpoConfig, RunConfig


def test_another_configuration_or_other_code_is_another_version(tmp_path: Path) -> None:
    for package in ("grpo_core", "assets"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "loop.py").write_text("one")
    config = RunConfig()
    first = version(config, tmp_path)
    assert version(RunConfig(), tmp_path) == first
    assert version(replace(config, grpo=GrpoConfig(group_size=4)), tmp_path) != first
    (tmp_path / "assets" / "loop.py").write_text("two")
    assert version(config, tmp_path) != first
