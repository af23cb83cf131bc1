from pathlib import Path

import pytest
from ruamel.yaml import YAML

from grpo_core.params import section_values
from grpo_core.requirements import ConfigError
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
    for section, values in YAML(typ="safe", pure=True).load(preset.read_text(encoding="utf-8")).items():
        if section != "experiments":
            assert section_values(config, section).items() >= values.items()
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


def test_nothing_of_an_earlier_preset_stays_in_a_section_that_a_later_one_has(root: Path) -> None:
    for name in ("smollm2_gsm8k", "smollm2_chain_sum"):
        changes = apply_preset(root, ROOT / "params" / f"{name}.yaml")
    prompts = experiments(root)["default"].prompts
    assert (prompts.heldout_path, prompts.answer_pattern, prompts.task) == ("", "", "chain_sum")
    assert "prompts.heldout_path: 'data/raw/gsm8k/test.jsonl' -> ''" in changes


def test_a_section_that_params_lacks_is_made(root: Path) -> None:
    (root / "params.yaml").write_text("rollout:\nexperiments:\n  default: {}\n")
    preset = root / "mine.yaml"
    preset.write_text("grpo: {group_size: 4}\nrollout: {batch_size: 4}\nexperiments: {small: {grpo: {group_size: 2}}}\n")
    assert apply_preset(root, preset) == ["grpo.group_size: 4 (new)", "rollout.batch_size: 4 (new)", "experiments.small: {'grpo': {'group_size': 2}} (new)"]
    assert {name: config.grpo.group_size for name, config in experiments(root).items()} == {"default": 4, "small": 2}


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
