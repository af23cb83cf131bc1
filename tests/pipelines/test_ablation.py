"""The arms of an ablation: what they override, what they are called, how they get into params.yaml and out again."""

from pathlib import Path
from typing import Any

import pytest

from grpo_core.comparison import FACTORS
from grpo_core.config import RunConfig
from grpo_core.requirements import ConfigError
from pipelines.ablation import KINDS, SEEDS, Ablation, arms_to_remove, plan_ablation, remove_arms, write_arms
from pipelines.params import ROOT, experiments, load_params

DEFAULT: dict[str, Any] = {"experiments": {"default": {}}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with this checkout's params.yaml."""
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    return tmp_path


def planned(params: dict[str, Any], factor: str = "group_size", **options: Any) -> Ablation:
    return plan_ablation(
        params, factor, options.get("values", KINDS[factor].values), options.get("seeds", SEEDS), options.get("steps"), options.get("base", "default")
    )


def test_every_factor_that_is_compared_by_name_can_be_varied() -> None:
    assert list(KINDS) == [factor.name for factor in FACTORS]
    for factor in FACTORS:
        arms = planned(DEFAULT, factor.name).arms.values()
        assert {f"{section}.{key}" for arm in arms for section, values in arm.items() for key in values} <= {*factor.keys, "grpo.seed"}


def test_group_sizes_share_the_sampling_budget_of_the_base() -> None:
    ablation = planned(DEFAULT)
    assert list(ablation.arms) == [f"group_size-{size}-seed-{seed}" for size in (4, 8, 16) for seed in (0, 1, 2)]
    assert ablation.arms["group_size-16-seed-2"] == {"grpo": {"group_size": 16, "prompts_per_step": 8, "seed": 2}}
    assert {config.grpo.group_size * config.grpo.prompts_per_step for config in ablation.configs.values()} == {128}
    assert {config.grpo.minibatches_per_rollout for config in ablation.configs.values()} == {2}
    assert ablation.notes == ()


def test_too_few_prompts_for_the_minibatches_are_told() -> None:
    ablation = planned({"grpo": {"prompts_per_step": 16, "minibatches_per_rollout": 4}, **DEFAULT}, values=[8, 64], seeds=[0])
    assert ablation.arms["group_size-64-seed-0"] == {"grpo": {"group_size": 64, "prompts_per_step": 2, "minibatches_per_rollout": 2, "seed": 0}}
    (note,) = ablation.notes
    assert note.startswith("group_size 64: 2 prompts a step do not share out into 4 minibatches, so grpo.minibatches_per_rollout is 2")


@pytest.mark.parametrize("value", [12, 1, 256, 4.0])
def test_a_group_size_that_does_not_fit_the_budget_is_refused_with_those_that_do(value: float) -> None:
    with pytest.raises(ConfigError, match=r"16 × 8 = 128 completions a step\): take of 2, 4, 8, 16, 32, 64, 128$"):
        planned(DEFAULT, values=[value])


@pytest.mark.parametrize(
    ("factor", "first", "overrides"),
    [
        ("clip", "clip-0_1-seed-0", {"grpo": {"clip_low": 0.1, "clip_high": 0.1, "seed": 0}}),
        ("beta", "beta-0-seed-0", {"grpo": {"beta": 0.0, "seed": 0}}),
        ("temperature", "temperature-0_7-seed-0", {"rollout": {"temperature": 0.7}, "grpo": {"seed": 0}}),
    ],
)
def test_an_arm_says_what_it_is(factor: str, first: str, overrides: dict[str, Any]) -> None:
    arms = planned(DEFAULT, factor).arms
    assert len(arms) == 9
    assert next(iter(arms.items())) == (first, overrides)


def test_arms_keep_what_their_base_overrides() -> None:
    params = {"experiments": {"default": {}, "hot": {"rollout": {"temperature": 1.2}, "grpo": {"learning_rate": 2e-4, "seed": 9}}}}
    ablation = planned(params, "clip", base="hot", values=[0.3], seeds=[4], steps=12)
    expected = {"rollout": {"temperature": 1.2}, "grpo": {"learning_rate": 2e-4, "seed": 4, "clip_low": 0.3, "clip_high": 0.3, "steps": 12}}
    assert ablation.arms == {"hot-clip-0_3-seed-4": expected}
    assert ablation.configs["hot-clip-0_3-seed-4"].grpo.steps == 12
    with pytest.raises(ConfigError, match=r"unknown experiment 'hott': did you mean 'hot'\?"):
        planned(params, "clip", base="hott")


def test_the_values_of_the_base_are_an_arm_like_any_other() -> None:
    config = planned(DEFAULT).configs["group_size-8-seed-0"]
    assert config == RunConfig()


def test_an_arm_that_could_not_be_run_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^experiments\.clip-7-seed-0: grpo\.clip_low must lie between 0 and 1"):
        planned(DEFAULT, "clip", values=[7])


def test_arms_are_added_once_left_as_they_are_and_taken_out_without_a_trace(root: Path) -> None:
    before = (root / "params.yaml").read_bytes()
    assert set(write_arms(root, planned(load_params(root), "clip")).values()) == {"added"}
    added = (root / "params.yaml").read_bytes()
    assert experiments(root)["clip-0_1-seed-2"].grpo.clip_high == 0.1
    assert experiments(root)["default"] == RunConfig()
    assert set(write_arms(root, planned(load_params(root), "clip")).values()) == {"there already"}
    assert (root / "params.yaml").read_bytes() == added
    (fate,) = write_arms(root, planned(load_params(root), "clip", values=[0.1], seeds=[0], steps=9)).values()
    assert fate == "there already with other settings, left as it is"
    assert (root / "params.yaml").read_bytes() == added
    remove_arms(root, arms_to_remove(load_params(root), "clip", "default", None, None))
    assert (root / "params.yaml").read_bytes() == before


def test_only_the_arms_that_are_meant_are_taken_out() -> None:
    names = ["default", "clip-0_1-seed-0", "clip-0_1-seed-1", "clip-0_2-seed-0", "hot-clip-0_1-seed-0", "clip-wide-seed-0", "clip-0_1-seed-0-mine"]
    params: dict[str, Any] = {"experiments": {name: {} for name in [*names, "beta-0_1-seed-0"]}}
    assert arms_to_remove(params, "clip", "default", None, None) == names[1:4]
    assert arms_to_remove(params, "clip", "default", [0.1], None) == names[1:3]
    assert arms_to_remove(params, "clip", "default", None, [0]) == ["clip-0_1-seed-0", "clip-0_2-seed-0"]
    assert arms_to_remove(params, "clip", "hot", None, None) == ["hot-clip-0_1-seed-0"]
    assert arms_to_remove(params, "temperature", "default", None, None) == []


def test_the_last_experiment_is_not_taken_out() -> None:
    with pytest.raises(ConfigError, match=r"needs one: add `default: \{\}`"):
        arms_to_remove({"experiments": {"clip-0_1-seed-0": {}}}, "clip", "default", None, None)


def test_values_that_differ_a_little_are_arms_of_their_own() -> None:
    assert list(planned(DEFAULT, "beta", values=[0.1234567, 0.1234568], seeds=[0]).arms) == ["beta-0_1234567-seed-0", "beta-0_1234568-seed-0"]


def test_a_file_without_experiments_is_refused_when_arms_are_taken_out() -> None:
    for params in ({}, {"experiments": None}):
        with pytest.raises(ConfigError, match="experiments must map at least one name"):
            arms_to_remove(params, "beta", "default", None, None)


def test_what_cannot_be_changed_alone_is_refused_and_the_file_stays(root: Path) -> None:
    path = root / "params.yaml"
    text = "experiments:\n  default: {}\n  beta-0-seed-0: &b {grpo: {beta: 0.0, seed: 0}}\n  mine: *b\n"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="by hand"):
        remove_arms(root, ["beta-0-seed-0"])
    assert path.read_text(encoding="utf-8") == text
    path.write_text("experiments:\n  default: {}\n...\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="by hand"):
        write_arms(root, planned(DEFAULT, "beta", values=[0], seeds=[0]))


def test_a_link_and_its_lines_ends_stay(root: Path) -> None:
    place, path = root / "elsewhere.yaml", root / "params.yaml"
    place.write_bytes(b"experiments:\r\n  default: {}  # the base\r\n")
    place.chmod(0o640)
    path.unlink()
    path.symlink_to(place.name)
    write_arms(root, planned(DEFAULT, "beta", values=[0], seeds=[0]))
    assert place.read_bytes() == b"experiments:\r\n  default: {}  # the base\r\n  beta-0-seed-0: {grpo: {beta: 0, seed: 0}}\r\n"
    assert path.is_symlink() and place.stat().st_mode & 0o777 == 0o640
