"""Whatever cannot be run is refused when it is read, by a message that names the key and the remedy."""

from dataclasses import MISSING, fields
from typing import Any, Literal, get_origin, get_type_hints

import pytest

from grpo_core.config import (
    SECTIONS,
    SHARED_SECTIONS,
    BlindReviewConfig,
    ConfigError,
    GrpoConfig,
    HeldoutEvalConfig,
    ModelConfig,
    PromptsConfig,
    RolloutConfig,
    RunConfig,
    SftConfig,
    parse_sections,
    resolve_experiments,
    section_values,
)

CLASSES: dict[str, Any] = {
    "model": ModelConfig,
    "prompts": PromptsConfig,
    "sft": SftConfig,
    "rollout": RolloutConfig,
    "grpo": GrpoConfig,
    "heldout_eval": HeldoutEvalConfig,
    "blind_review_set": BlindReviewConfig,
}
FIELDS = [(section, f.name, get_type_hints(cls)[f.name]) for section, cls in CLASSES.items() for f in fields(cls)]
IDS = [f"{section}.{name}" for section, name, _ in FIELDS]


def wrong_values(expected: Any) -> list[object]:
    """Values that are not of the type, those that a careless reader would convert among them."""
    if get_origin(expected) is Literal:
        return ["no such choice", 1, None]
    wrong: dict[Any, list[object]] = {
        int: ["1", 1.0, True, None, [1], "1e-3"],
        float: ["0.5", "1e-3", True, None, [0.5], float("nan"), float("inf")],
        bool: ["true", "yes", 1, 0, None],
        str: [1, 0.5, True, None, ["a"]],
    }
    return wrong[expected]


@pytest.mark.parametrize(("section", "name", "expected"), FIELDS, ids=IDS)
def test_a_value_of_the_wrong_type_is_refused_by_every_field(section: str, name: str, expected: Any) -> None:
    for value in wrong_values(expected):
        with pytest.raises(ConfigError, match=rf"^{section}\.{name} must be "):
            parse_sections({section: {name: value}})


@pytest.mark.parametrize(("section", "name", "expected"), FIELDS, ids=IDS)
def test_a_misspelt_key_names_the_right_one(section: str, name: str, expected: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^unknown key {section}\.{name}x: did you mean '\w+'\?$") as caught:
        parse_sections({section: {f"{name}x": 1}})
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(("section", "name", "expected"), FIELDS, ids=IDS)
def test_the_default_written_out_is_the_default(section: str, name: str, expected: Any) -> None:
    default = getattr(getattr(RunConfig(), section), name)
    assert parse_sections({section: {name: default}}) == RunConfig()


def test_the_fields_above_are_all_there_are() -> None:
    assert (*SECTIONS,) == tuple(f.name for f in fields(RunConfig))
    assert set(CLASSES) | {"rewards"} == set(SECTIONS)
    assert {f.name: f.default_factory for f in fields(RunConfig) if f.name != "rewards"} == CLASSES
    assert all(f.default is not MISSING for cls in CLASSES.values() for f in fields(cls))


def test_a_misspelt_section_names_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"^unknown section 'gpro': did you mean 'grpo'\?$"):
        parse_sections({"gpro": {}})


def test_a_key_like_no_other_names_all_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"^unknown key rollout\.zzz: valid keys: batch_size, engine, max_new_tokens, temperature$"):
        parse_sections({"rollout": {"zzz": 1}})


def test_a_number_in_quotes_says_so() -> None:
    with pytest.raises(ConfigError, match=r"^grpo\.learning_rate must be of type float, got '1e-3' of type str \(write numbers without quotes\)$"):
        parse_sections({"grpo": {"learning_rate": "1e-3"}})


def test_a_misspelt_choice_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"^grpo\.loss must be one of 'grpo', 'dapo', 'dr_grpo', got 'dr-grpo': did you mean 'dr_grpo'\?$"):
        parse_sections({"grpo": {"loss": "dr-grpo"}})


def test_a_whole_number_is_taken_for_a_float_and_becomes_one() -> None:
    beta = parse_sections({"grpo": {"beta": 0}}).grpo.beta
    assert beta == 0.0
    assert type(beta) is float


@pytest.mark.parametrize("values", [None, 3, "grpo", ["steps"]])
def test_a_section_must_be_a_mapping(values: object) -> None:
    with pytest.raises(ConfigError, match=r"^grpo must be a mapping"):
        parse_sections({"grpo": values})


OUT_OF_RANGE = [
    ("model", {"hidden_size": 0}, "model.hidden_size"),
    ("model", {"num_heads": 3}, "model.num_heads must divide"),
    ("model", {"num_heads": 128}, "model.num_heads must leave an even head width"),
    ("model", {"num_threads": 0}, "model.num_threads"),
    ("prompts", {"sft_fraction": -0.1}, "prompts.sft_fraction"),
    ("prompts", {"sft_fraction": 0.99}, "stay below 1"),
    ("prompts", {"template": "no place"}, "prompts.template"),
    ("prompts", {"template": "{prompt}{prompt}"}, "prompts.template"),
    ("prompts", {"system_prompt": "Be brief."}, "prompts.system_prompt"),
    ("prompts", {"heldout_path": "test.jsonl"}, "prompts.heldout_path"),
    ("prompts", {"max_tokens": 0}, "prompts.max_tokens"),
    ("prompts", {"max_tokens": 100}, "fit in model.context_length"),
    ("sft", {"steps": -1}, "sft.steps"),
    ("sft", {"batch_size": 0}, "sft.batch_size"),
    ("sft", {"learning_rate": 0}, "sft.learning_rate"),
    ("sft", {"adam_beta1": 1.5}, "sft.adam_beta1"),
    ("rollout", {"temperature": 0}, "rollout.temperature must be above 0"),
    ("rollout", {"temperature": -1}, "rollout.temperature"),
    ("rollout", {"max_new_tokens": 0}, "rollout.max_new_tokens"),
    ("grpo", {"steps": 0}, "grpo.steps"),
    ("grpo", {"group_size": 1}, "grpo.group_size must be at least 2"),
    ("grpo", {"clip_low": -1}, "grpo.clip_low"),
    ("grpo", {"clip_low": 1}, "grpo.clip_low"),
    ("grpo", {"clip_high": -1}, "grpo.clip_high"),
    ("grpo", {"clip_high": 0}, "grpo.clip_high"),
    ("grpo", {"learning_rate": -1e-4}, "grpo.learning_rate"),
    ("grpo", {"beta": -0.1}, "grpo.beta"),
    ("grpo", {"beta": 0, "kl_control": "pid"}, "grpo.beta must be above 0"),
    ("grpo", {"kl_upper": 0.01}, "grpo.kl_upper must be above grpo.kl_lower"),
    ("grpo", {"advantage_clip": -1}, "grpo.advantage_clip"),
    ("grpo", {"checkpoint_every": -1}, "grpo.checkpoint_every"),
    ("grpo", {"advantage_clip_steps": 5, "advantage_clip_start": 0.0}, r"grpo.advantage_clip_start must be above 0"),
    ("grpo", {"advantage_clip_steps": 5, "advantage_clip": 0.0}, r"grpo.advantage_clip must be above 0"),
    ("grpo", {"minibatches_per_rollout": 3}, r"grpo.minibatches_per_rollout must divide grpo.prompts_per_step (16)"),
    ("rewards", {}, "rewards must name at least one"),
    ("rewards", {"exact_answer": "1"}, "rewards.exact_answer"),
    ("rewards", {"exact_answer": float("nan")}, "rewards.exact_answer"),
    ("rewards", ["exact_answer"], "rewards must map"),
    ("heldout_eval", {"samples_per_prompt": 0}, "heldout_eval.samples_per_prompt"),
    ("heldout_eval", {"temperature": 0}, "heldout_eval.temperature"),
    ("heldout_eval", {"bootstrap_resamples": 10}, "heldout_eval.bootstrap_resamples"),
    ("blind_review_set", {"num_pairs": 0}, "blind_review_set.num_pairs"),
    ("blind_review_set", {"num_control_pairs": -1}, "blind_review_set.num_control_pairs"),
]


@pytest.mark.parametrize(("section", "values", "message"), OUT_OF_RANGE, ids=[f"{section}-{values}" for section, values, _ in OUT_OF_RANGE])
def test_a_value_out_of_range_is_refused(section: str, values: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_sections({section: values})
    assert message in str(caught.value)


def test_a_given_model_brings_its_own_context_length() -> None:
    assert parse_sections({"model": {"path": "some/model"}, "prompts": {"max_tokens": 4096}}).prompts.max_tokens == 4096


def test_overrides_are_laid_over_the_section_key_by_key() -> None:
    base = {"grpo": {"steps": 7, "group_size": 4}, "experiments": {"default": {}, "long": {"grpo": {"steps": 9}}}}
    resolved = resolve_experiments(base)
    assert list(resolved) == ["default", "long"]
    assert (resolved["default"].grpo.steps, resolved["default"].grpo.group_size) == (7, 4)
    assert (resolved["long"].grpo.steps, resolved["long"].grpo.group_size) == (9, 4)


def test_overriding_rewards_replaces_them_as_a_whole() -> None:
    resolved = resolve_experiments({"rewards": {"exact_answer": 1.0, "answer_format": 0.1}, "experiments": {"bare": {"rewards": {"exact_answer": 2}}}})
    assert dict(resolved["bare"].rewards) == {"exact_answer": 2.0}


@pytest.mark.parametrize("section", SHARED_SECTIONS)
def test_an_experiment_cannot_change_what_all_share(section: str) -> None:
    with pytest.raises(ConfigError, match=rf"^experiments\.mine\.{section}: all experiments share model, prompts, sft"):
        resolve_experiments({"experiments": {"mine": {section: {"seed": 1}}}})


@pytest.mark.parametrize(
    ("experiments", "message"),
    [
        ({"mine": {"grpo": {"group_size": 1}}}, "experiments.mine: grpo.group_size must be at least 2"),
        ({"mine": {"grpo": {"goup_size": 4}}}, "experiments.mine: unknown key grpo.goup_size: did you mean 'group_size'?"),
        ({"mine": {"gpro": {"steps": 4}}}, "experiments.mine: unknown section 'gpro': did you mean 'grpo'?"),
        ({"mine": {"grpo": 4}}, "experiments.mine.grpo must be a mapping"),
        ({"mine": None}, "experiments.mine must map sections to overrides"),
        ({"../mine": {}}, "experiments.../mine: a name is made of letters"),
        ({}, "experiments must map at least one name"),
        (None, "experiments must map at least one name"),
    ],
)
def test_a_bad_experiment_is_refused_by_name(experiments: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_experiments({"experiments": experiments})
    assert message in str(caught.value)


def test_a_bad_base_section_is_refused_even_if_every_experiment_overrides_it() -> None:
    with pytest.raises(ConfigError, match=r"^grpo\.group_size"):
        resolve_experiments({"grpo": {"group_size": 1}, "experiments": {"default": {"grpo": {"group_size": 8}}}})


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_written_out_reads_back_as_itself(section: str) -> None:
    config = resolve_experiments({"grpo": {"steps": 7}, "rewards": {"exact_answer": 0.5}, "experiments": {"default": {}}})["default"]
    again = parse_sections({name: section_values(config, name) for name in SECTIONS})
    assert getattr(again, section) == getattr(config, section)
