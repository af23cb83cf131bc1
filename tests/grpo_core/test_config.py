"""Whatever cannot be run is refused when it is read, by a message that names the key and the remedy."""

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, get_origin, get_type_hints

import pytest
import torch

from grpo_core.advantages import group_advantages
from grpo_core.config import (
    ADJUSTABLE,
    BUILT_IN_REWARDS,
    BY_THE_CLOCK,
    CONDITIONS,
    SECTIONS,
    SHARED_SECTIONS,
    BlindReviewConfig,
    GrpoConfig,
    HealthConfig,
    HeldoutEvalConfig,
    ModelConfig,
    PromotionConfig,
    PromptsConfig,
    RolloutConfig,
    RunConfig,
    ScoringConfig,
    SftConfig,
    largest_advantage,
)
from grpo_core.params import parse_sections, resolve_experiments, section_values
from grpo_core.requirements import ConfigError

CLASSES: dict[str, Any] = {
    "model": ModelConfig,
    "prompts": PromptsConfig,
    "sft": SftConfig,
    "rollout": RolloutConfig,
    "scoring": ScoringConfig,
    "grpo": GrpoConfig,
    "health": HealthConfig,
    "heldout_eval": HeldoutEvalConfig,
    "blind_review_set": BlindReviewConfig,
    "promotion": PromotionConfig,
}
FIELDS = [(section, f.name, get_type_hints(cls)[f.name]) for section, cls in CLASSES.items() for f in fields(cls)]
IDS = [f"{section}.{name}" for section, name, _ in FIELDS]


def wrong_values(expected: Any) -> list[object]:
    """Values that are not of the type, those that a careless reader would convert among them."""
    if get_origin(expected) is Literal:
        return ["no such choice", 1, None]
    if get_origin(expected) is Mapping:
        return ["a: b", 1, None, ["a"], {"a": None}, {"a": {"b": 1}}]
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
        with pytest.raises(ConfigError, match=rf"^{section}\.{name}(\.a)? must be "):
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
    assert set(CLASSES) | {"rewards", "reward_options"} == set(SECTIONS)
    assert {f.name: f.default_factory for f in fields(RunConfig) if f.name not in ("rewards", "reward_options")} == CLASSES
    assert all(f.default is not MISSING or f.default_factory is not MISSING for cls in CLASSES.values() for f in fields(cls))


def test_a_misspelt_section_names_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"^unknown section 'gpro': did you mean 'grpo'\?$"):
        parse_sections({"gpro": {}})


def test_a_key_like_no_other_names_all_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"^unknown key rollout\.zzz: valid keys: batch_size, max_new_tokens, temperature$"):
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
    ("sft", {"adam_beta1": 1.0}, "sft.adam_beta1 must be at least 0 and below 1"),
    ("sft", {"adam_beta2": 1}, "sft.adam_beta2 must be at least 0 and below 1"),
    ("sft", {"adam_beta2": -0.1}, "sft.adam_beta2"),
    ("grpo", {"adam_beta1": 1.0}, "grpo.adam_beta1 must be at least 0 and below 1"),
    ("grpo", {"adam_beta2": 1.0}, "grpo.adam_beta2 must be at least 0 and below 1"),
    ("grpo", {"adam_beta1": -0.1}, "grpo.adam_beta1"),
    ("grpo", {"select_max_prompts": 0}, "grpo.select_max_prompts must be at least 1"),
    ("model", {"dtype": "float16"}, "model.dtype must be one of 'float32', 'bfloat16'"),
    *(("model", {"device": device}, "model.device must be auto, cpu, cuda or cuda:N") for device in ("gpu", "cuda:", "cuda:x", "CPU", "", "cpu:0", "cuda:0 ")),
    ("prompts", {"answer_pattern": "("}, "prompts.answer_pattern must be a regular expression"),
    ("prompts", {"answer_pattern": "#### .+"}, "prompts.answer_pattern must hold a group"),
    ("prompts", {"select_fraction": 0}, "prompts.select_fraction must be above 0"),
    ("prompts", {"heldout_fraction": 0}, "prompts.heldout_fraction must be above 0 without prompts.heldout_path"),
    ("heldout_eval", {"pass_k": 0}, "heldout_eval.pass_k must be at least 1"),
    ("heldout_eval", {"pass_k": 5}, "heldout_eval.pass_k must be at most heldout_eval.samples_per_prompt (4)"),
    ("heldout_eval", {"max_select_prompts": 5}, "unknown key heldout_eval.max_select_prompts"),
    ("rollout", {"engine": "local"}, "unknown key rollout.engine"),
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
    ("grpo", {"kl_control": "threshold", "kl_upper": 0.01}, "grpo.kl_upper must be above grpo.kl_lower"),
    ("grpo", {"advantage_clip": -1}, "grpo.advantage_clip"),
    ("grpo", {"checkpoint_every": -1}, "grpo.checkpoint_every"),
    ("grpo", {"advantage_clip_steps": 5, "advantage_clip_start": 0.0}, r"grpo.advantage_clip_start must be above 0"),
    ("grpo", {"advantage_clip_steps": 5, "advantage_clip": 0.0}, r"grpo.advantage_clip must be above 0"),
    ("grpo", {"clip_high": 10}, "grpo.clip_high must be below 10 with 2 optimizer steps a rollout"),
    ("grpo", {"clip_low": 0.9}, "grpo.clip_low must be below 0.9 with 2 optimizer steps a rollout"),
    ("grpo", {"minibatches_per_rollout": 1, "updates_per_rollout": 3, "clip_high": 1e6}, "grpo.clip_high must be below 10 with 3 optimizer steps a rollout"),
    ("grpo", {"learning_rate": 1.5}, "grpo.learning_rate must be at most 1"),
    ("sft", {"learning_rate": 30}, "sft.learning_rate must be at most 1"),
    ("grpo", {"weight_decay": 1e4}, "grpo.weight_decay must be below 10000 with grpo.learning_rate 0.0001"),
    ("sft", {"weight_decay": 400}, "sft.weight_decay must be below 333.333 with sft.learning_rate 0.003"),
    ("grpo", {"kl_control": "pid", "kl_proportional": 0, "kl_integral": 0}, "grpo.kl_proportional must be above 0 (or grpo.kl_integral or grpo.kl_derivative)"),
    ("rollout", {"temperature": 1e-3}, "rollout.temperature must lie between 0.01 and 10"),
    ("rollout", {"temperature": 11}, "rollout.temperature must lie between 0.01 and 10"),
    ("heldout_eval", {"temperature": 1e-3}, "heldout_eval.temperature must lie between 0.01 and 10"),
    ("rollout", {"batch_size": 7}, "rollout.batch_size must be at least grpo.group_size (8)"),
    ("heldout_eval", {"samples_per_prompt": 200}, "rollout.batch_size must be at least heldout_eval.samples_per_prompt (200)"),
    ("heldout_eval", {"max_prompts": 20}, "blind_review_set.num_pairs must be at most heldout_eval.max_prompts (20)"),
    ("blind_review_set", {"num_control_pairs": 600}, "blind_review_set.num_control_pairs must be at most heldout_eval.max_prompts (512)"),
    ("rewards", {"exact_answer": 0, "answer_format": 0.0}, "rewards must hold a weight other than 0"),
    ("rewards", {"exact_answer": 0}, "rewards must hold a weight other than 0"),
    ("prompts", {"num_digits": 2}, "prompts.num_generated must be at most 8100"),
    ("prompts", {"chat": True}, "prompts.chat must be false without model.path"),
    ("prompts", {"sft_fraction": 0}, "prompts.sft_fraction must be above 0 when sft.steps is 800"),
    ("sft", {"checkpoint_every": 0}, "sft.checkpoint_every must be at least 1"),
    ("sft", {"keep_checkpoints": 0}, "sft.keep_checkpoints must be at least 1"),
    ("grpo", {"minibatches_per_rollout": 3}, r"grpo.minibatches_per_rollout must divide grpo.prompts_per_step (16)"),
    ("scoring", {"timeout_seconds": 0}, "scoring.timeout_seconds must be above 0"),
    ("scoring", {"max_error_rate": 1.1}, "scoring.max_error_rate must lie between 0 and 1"),
    ("scoring", {"exploit_threshold": -0.1}, "scoring.exploit_threshold must lie between 0 and 1"),
    ("scoring", {"exploit_prompts": 0}, "scoring.exploit_prompts must be at least 1"),
    ("scoring", {"combine": "max"}, "scoring.combine must be one of 'sum', 'gdpo'"),
    ("scoring", {"acknowledged_exploits": {"empty": "why not"}}, "scoring.acknowledged_exploits must be named function/probe"),
    ("scoring", {"acknowledged_exploits": {"f/empty": " "}}, "scoring.acknowledged_exploits.f/empty must say why"),
    ("reward_options", {"number_answer": {}}, "reward_options.number_answer must belong to a reward or metric of this run (exact_answer, answer_format)"),
    ("reward_options", {"exact_answer": {"x": None}}, "reward_options.exact_answer.x must be a number, a text, true or false, or a list of these"),
    ("rewards", {"exact_answer": {"weight": 1}}, "options go under reward_options.exact_answer"),
    ("prompts", {"reasoning_gym": "chain_sum", "path": "x.jsonl"}, "prompts.path must be empty when prompts.reasoning_gym names a task"),
    ("prompts", {"reasoning_gym": "chain_sum"}, "sft.steps must be 0 when prompts.reasoning_gym generates the prompts"),
    ("prompts", {"reasoning_gym_config": {"min_terms": 2}}, "prompts.reasoning_gym_config must stay at its default"),
    ("health", {"patience": 0}, "health.patience must be at least 1"),
    ("health", {"window": 1}, "health.window must be at least 2"),
    ("health", {"outlier_factor": 1.0}, "health.outlier_factor must be above 1"),
    ("health", {"slow_factor": 1}, "health.slow_factor must be above 1"),
    *(("health", {name: 0}, f"health.{name} must be above 0") for name in ("max_kl", "max_policy_kl", "max_grad_norm", "max_sampler_gap", "max_length_growth")),
    *(
        ("health", {name: value}, f"health.{name} must lie between 0 and 1")
        for name in (
            "max_alike_fraction",
            "sparse_fraction",
            "max_repeated_prompts",
            "min_distinct_fraction",
            "max_truncated_fraction",
            "reward_drop",
            "accuracy_drop",
            "length_paid",
            "max_repetition",
            "max_error_fraction",
            "max_invalid_fraction",
        )
        for value in (-0.01, 1.01)
    ),
    ("health", {"actions": {"entropy_colapse": "warn"}}, "health.actions must name a condition: did you mean 'entropy_collapse'?, got 'entropy_colapse'"),
    ("health", {"acknowledged": {"truncatoin": "so be it"}}, "health.acknowledged must name a condition: did you mean 'truncation'?, got 'truncatoin'"),
    ("health", {"actions": {"zzz": "warn"}}, f"health.actions must name a condition: valid keys: {', '.join(sorted(CONDITIONS))}, got 'zzz'"),
    ("health", {"actions": {"truncation": "stop"}}, "health.actions.truncation must be one of 'warn', 'adjust', 'halt', got 'stop'"),
    *(("health", {"actions": {name: "adjust"}}, "the others have no adjustment, got " + repr(name)) for name in CONDITIONS if name not in ADJUSTABLE),
    *(("health", {"actions": {name: "halt"}}, f"health.actions.{name} must be warn: what the clock says differs from run to run") for name in BY_THE_CLOCK),
    ("health", {"actions": {"non_finite": "warn"}}, "health.actions.non_finite must be halt: a number that is not finite cannot be learned from"),
    ("health", {"acknowledged": {"non_finite": "why not"}}, "health.acknowledged must leave out non_finite: it cannot be accepted"),
    ("health", {"acknowledged": {"truncation": " "}}, "health.acknowledged.truncation must say why it is accepted"),
    ("rewards", {}, "rewards must name at least one"),
    ("rewards", {"exact_answer": "1"}, "rewards.exact_answer"),
    ("rewards", {"exact_answer": float("nan")}, "rewards.exact_answer"),
    ("rewards", ["exact_answer"], "rewards must map"),
    ("heldout_eval", {"samples_per_prompt": 0}, "heldout_eval.samples_per_prompt"),
    ("heldout_eval", {"temperature": 0}, "heldout_eval.temperature"),
    ("heldout_eval", {"bootstrap_resamples": 10}, "heldout_eval.bootstrap_resamples"),
    ("blind_review_set", {"num_pairs": 0}, "blind_review_set.num_pairs"),
    ("blind_review_set", {"num_control_pairs": -1}, "blind_review_set.num_control_pairs"),
    ("blind_review_set", {"num_repeat_pairs": -1}, "blind_review_set.num_repeat_pairs must be at least 0, got -1"),
    ("blind_review_set", {"precision": 0.0}, "blind_review_set.precision must lie between 0.01 and 0.49"),
    ("blind_review_set", {"precision": 0.5}, "blind_review_set.precision must lie between 0.01 and 0.49"),
]


@pytest.mark.parametrize(("section", "values", "message"), OUT_OF_RANGE, ids=[f"{section}-{values}" for section, values, _ in OUT_OF_RANGE])
def test_a_value_out_of_range_is_refused(section: str, values: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_sections({section: values})
    assert message in str(caught.value)


IDLE: list[tuple[str, str, Any, dict[str, Any], str]] = [
    *(("model", size, 64, {"path": "some/model"}, "") for size in ("hidden_size", "num_layers", "num_heads", "intermediate_size", "context_length")),
    ("prompts", "num_generated", 100, {"path": "my.jsonl"}, ""),
    ("prompts", "num_digits", 4, {"path": "my.jsonl"}, ""),
    ("model", "seed", 1, {"path": "some/model"}, ""),
    *(("sft", name, value, {"steps": 0}, "")
      for name, value in {"batch_size": 8, "micro_batch_size": 8, "learning_rate": 0.1, "final_learning_rate_fraction": 0.5, "warmup_steps": 3,
                          "adam_beta1": 0.5, "adam_beta2": 0.5, "weight_decay": 0.5, "max_grad_norm": 2.0, "checkpoint_every": 3, "keep_checkpoints": 2,
                          "seed": 1}.items()),
    ("grpo", "kl_estimator", "k2", {"beta": 0.0}, "beta=0.1"),
    *(("grpo", name, 0.1, {"minibatches_per_rollout": 1}, "updates_per_rollout=2") for name in ("clip_low", "clip_high")),
    ("grpo", "advantage_clip", 2.5, {}, "loss=dr_grpo"),
    ("grpo", "advantage_clip", 2.5, {"loss": "dapo"}, "advantage_scale=none"),
    ("grpo", "advantage_clip", 1.5, {"group_size": 4}, "group_size=5"),
    ("grpo", "advantage_clip", 2.5, {"loss": "dr_grpo", "advantage_scale": "std"}, "length_penalty=0.1"),
    ("grpo", "advantage_clip", 1.5, {"group_size": 4, "advantage_clip_steps": 3}, "group_size=5"),
    ("grpo", "advantage_clip_start", 1.5, {"group_size": 4, "advantage_clip_steps": 3}, "advantage_clip_steps=3"),
    ("grpo", "kl_statistic", "sequence_sum", {}, "kl_control=threshold"),
    ("grpo", "kl_statistic", "sequence_sum", {}, "kl_control=pid"),
    *(("grpo", name, value, idle, "kl_control=threshold") for name, value in (("kl_upper", 0.6), ("kl_lower", 0.01), ("kl_patience", 2))
      for idle in ({}, {"kl_control": "pid"})),
    *(("grpo", name, 0.2, idle, "kl_control=pid") for name in ("kl_target", "kl_proportional", "kl_integral", "kl_derivative")
      for idle in ({}, {"kl_control": "threshold"})),
    ("grpo", "advantage_clip_start", 1.5, {}, "advantage_clip_steps=5"),
    ("grpo", "length_target", 20, {}, "length_penalty=0.1"),
    ("grpo", "aggregation_length", 20, {}, "aggregation=constant"),
    ("grpo", "aggregation_length", 20, {"loss": "dapo"}, "loss=dr_grpo"),
    ("grpo", "aggregation_length", 20, {"loss": "dr_grpo", "aggregation": "token_mean"}, "loss=dr_grpo"),
    ("grpo", "select_max_prompts", 5, {"eval_every": 0}, "eval_every=5"),
]  # fmt: skip
"""Section, key, a value of it, what leaves the key without effect, and what gives it one (nothing more where that is empty)."""


@pytest.mark.parametrize(("section", "name", "value", "idle", "active"), IDLE)
def test_a_key_without_effect_must_stay_at_its_default(section: str, name: str, value: Any, idle: dict[str, Any], active: str) -> None:
    default = getattr(CLASSES[section](), name)
    assert value != default
    with pytest.raises(ConfigError, match=rf"^{section}\.{name} must stay at its default {default!r}: .*, so it would do nothing, got {value!r}$"):
        parse_sections({section: {**idle, name: value}})
    assert getattr(parse_sections({section: {**idle, name: default}}), section) == CLASSES[section](**idle)
    key, _, text = active.partition("=")
    effective = {key: float(text) if text.startswith("0.") else int(text) if text.isdigit() else text} if active else {}
    assert getattr(CLASSES[section](**effective, **{name: value}), name) == value


@pytest.mark.parametrize(
    "key", ["task", "prompt_column", "answer_column", "answer_pattern", "id_column", "split_column", "difficulty_column", "completion_column"]
)
def test_a_key_about_a_file_is_idle_without_one(key: str) -> None:
    value = "(x)" if key == "answer_pattern" else "other"
    expected = (
        rf"^prompts\.{key} must stay at its default .*: prompts\.path is empty, so prompts are generated, so it would do nothing, got '{re.escape(value)}'$"
    )
    with pytest.raises(ConfigError, match=expected):
        parse_sections({"prompts": {key: value}})
    assert getattr(parse_sections({"prompts": {"path": "my.jsonl", key: value}}).prompts, key) == value


@pytest.mark.parametrize(
    "values",
    [
        {"grpo": {"minibatches_per_rollout": 2, "clip_high": 9.9, "clip_low": 0.89}},
        {"grpo": {"group_size": 4}},
        {"grpo": {"advantage_clip": 0}},
        {"grpo": {"group_size": 4, "advantage_clip_steps": 3, "advantage_clip": 1.4, "advantage_clip_start": 9.0}},
        {"grpo": {"beta": 0, "loss": "dapo", "clip_high": 0.28}},
        {"grpo": {"kl_control": "pid", "kl_proportional": 0, "kl_integral": 0, "kl_derivative": 0.1}},
        {"rewards": {"exact_answer": 1, "answer_format": 0}},
        {"rewards": {"exact_answer": -1}},
        {"prompts": {"sft_fraction": 0}, "sft": {"steps": 0}},
        {"prompts": {"path": "my.jsonl", "sft_fraction": 0}},
        {"model": {"path": "some/model"}, "prompts": {"chat": True}},
        {"prompts": {"num_digits": 2, "num_generated": 8100}},
        {"health": {"actions": {name: "halt" for name in CONDITIONS if name not in BY_THE_CLOCK}}},
        {"health": {"actions": {name: "adjust" for name in ADJUSTABLE} | {name: "warn" for name in BY_THE_CLOCK}}},
        {"health": {"acknowledged": {name: "a test" for name in CONDITIONS if name != "non_finite"}}},
        {"health": {"notify": "http://127.0.0.1:9/alarms", "patience": 1, "window": 2, "max_kl": 1e-9, "reward_drop": 0, "max_truncated_fraction": 1}},
    ],
    ids=str,
)
def test_what_may_stand_together_is_taken(values: dict[str, Any]) -> None:
    assert section_values(parse_sections(values), next(iter(values))).items() >= next(iter(values.values())).items()


@pytest.mark.parametrize("size", [2, 3, 4, 8, 64])
def test_the_largest_advantage_is_that_of_one_against_all_others(size: int) -> None:
    rewards = torch.zeros(1, size, dtype=torch.float64)
    rewards[0, 0] = 0.3
    found = group_advantages(rewards, torch.ones(1, size, dtype=torch.bool), scale_by_std=True)
    assert largest_advantage(size) == pytest.approx(float(found.abs().max()), rel=1e-12)
    others = torch.rand(200, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert float(group_advantages(others, torch.ones(200, size, dtype=torch.bool), scale_by_std=True).abs().max()) <= largest_advantage(size) * (1 + 1e-12)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:11"])
def test_a_device_is_a_name_that_torch_knows(device: str) -> None:
    assert parse_sections({"model": {"device": device}}).model.device == device


def test_without_a_heldout_share_there_is_a_heldout_file() -> None:
    parsed = parse_sections({"prompts": {"path": "my.jsonl", "heldout_path": "test.jsonl", "heldout_fraction": 0}})
    assert parsed.prompts.heldout_fraction == 0


@pytest.mark.parametrize("k", [1, 3, 4])
def test_pass_k_may_be_as_large_as_the_samples(k: int) -> None:
    assert parse_sections({"heldout_eval": {"pass_k": k}}).heldout_eval.pass_k == k


NAMED: list[tuple[str, dict[str, Any]]] = [
    ("rewards.{}", {"rewards": {"{}": 1.0}}),
    ("grpo.select_metric", {"grpo": {"select_metric": "{}"}}),
    ("heldout_eval.metric", {"heldout_eval": {"metric": "{}"}}),
]


@pytest.mark.parametrize(("where", "sections"), NAMED, ids=["rewards", "select_metric", "metric"])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("exact_answr", "did you mean 'exact_answer'?"),
        ("number_anser", "did you mean 'number_answer'?"),
        ("zzz", f"valid keys: {', '.join(sorted(BUILT_IN_REWARDS))}"),
    ],
)
def test_a_misspelt_reward_function_names_the_nearest(where: str, sections: dict[str, Any], name: str, hint: str) -> None:
    given = json.loads(json.dumps(sections).replace("{}", name))
    with pytest.raises(ConfigError) as caught:
        parse_sections(given)
    assert str(caught.value) == f"{where.format(name)}: unknown reward function {name!r}: {hint} (your own is package.module:function)"
    for valid in ("number_answer", "my.module:mine"):
        parse_sections(json.loads(json.dumps(sections).replace("{}", valid)))


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


GDPO = {"scoring": {"combine": "gdpo"}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rewards": {"exact_answer": 1}}, "rewards must name at least two functions when scoring.combine is gdpo"),
        ({"grpo": {"loss": "dr_grpo"}}, "grpo.advantage_scale must divide by the standard deviation (std) when scoring.combine is gdpo"),
        ({"grpo": {"length_penalty": 0.1}}, "grpo.length_penalty must be 0 when scoring.combine is gdpo"),
    ],
)
def test_gdpo_is_refused_where_it_would_do_nothing_or_something_else(values: dict[str, Any], message: str) -> None:
    parse_sections(GDPO)
    with pytest.raises(ConfigError) as caught:
        parse_sections({**GDPO, **values})
    assert message in str(caught.value)


def test_a_task_of_reasoning_gym_is_one_line_with_a_given_model() -> None:
    config = parse_sections({"model": {"path": "some/model"}, "sft": {"steps": 0}, "prompts": {"reasoning_gym": "chain_sum"}})
    assert config.prompts.reasoning_gym == "chain_sum"
    with pytest.raises(ConfigError, match=r"model.path must name a model when prompts.reasoning_gym generates the prompts"):
        parse_sections({"sft": {"steps": 0}, "prompts": {"reasoning_gym": "chain_sum"}})


def test_options_stay_as_they_were_written() -> None:
    options = {"exact_answer": {"a": 1, "b": 0.5, "c": True, "d": "x", "e": ["y", "z"]}}
    assert section_values(parse_sections({"reward_options": options}), "reward_options") == options
