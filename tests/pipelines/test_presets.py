from pathlib import Path

import pytest

from grpo_core.config import ConfigError
from pipelines.params import ROOT, experiments
from pipelines.presets import apply_preset


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with this checkout's params.yaml."""
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    return tmp_path


@pytest.mark.parametrize("preset", sorted((ROOT / "params").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_preset_gives_a_valid_configuration_with_its_values(preset: Path, root: Path) -> None:
    assert apply_preset(root, preset)
    config = experiments(root)["default"]
    assert config.sft.steps == 0
    assert dict(config.rewards) == {"number_answer": 1.0}
    assert apply_preset(root, preset) == []


def test_a_preset_changes_values_and_keeps_every_comment(root: Path) -> None:
    before = (root / "params.yaml").read_text().splitlines()
    preset = root / "mine.yaml"
    preset.write_text("grpo: {group_size: 4}\n")
    assert apply_preset(root, preset) == ["grpo.group_size: 8 -> 4"]
    after = (root / "params.yaml").read_text().splitlines()
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert len(changed) == 1
    assert changed[0][0].split("#")[1] == changed[0][1].split("#")[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grpo: {group_sise: 4}\n", "did you mean 'group_size'"),
        ("grpo: {group_size: 1}\n", "be at least 2"),
        ("grpo: 4\n", "must map sections to keys and values"),
        ("grpo: {", "is not a YAML file"),
    ],
)
def test_a_preset_that_cannot_be_run_leaves_params_as_they_were(text: str, message: str, root: Path) -> None:
    before = (root / "params.yaml").read_bytes()
    preset = root / "mine.yaml"
    preset.write_text(text)
    with pytest.raises(ConfigError, match=message):
        apply_preset(root, preset)
    assert (root / "params.yaml").read_bytes() == before
