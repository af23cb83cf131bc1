"""A run that nobody interrupts: what it reports, what it writes, and what does not change it."""

import json
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import polars as pl
import pytest
from transformers import AutoModelForCausalLM

from grpo_core.checkpoint import file_sha256, folder_digest, read_manifest
from grpo_core.config import GrpoConfig, HeldoutEvalConfig, ModelConfig, RolloutConfig, RunConfig
from grpo_core.loop import Files, StepReport, run_key, train
from grpo_core.models import NUMERICAL, policy_digest
from grpo_core.rewards.outcomes import RewardError
from tests.tiny_run import REWARD, inputs, outputs, prompts_table, tiny_config

ODD = "tests.every_field_rewards:of_odd_length"


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inputs(tmp_path_factory.mktemp("given")).prompts.parent


def run(root: Path, given: Path, config: RunConfig) -> tuple[Files, list[StepReport]]:
    root.mkdir(exist_ok=True)
    files = outputs(root, given)
    reports: list[StepReport] = []
    train(files, config, on_step=reports.append)
    return files, reports


@pytest.fixture(scope="module")
def done(given: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, list[StepReport]]:
    return run(tmp_path_factory.mktemp("done"), given, tiny_config())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_step_is_reported_once_and_in_order(done: tuple[Files, list[StepReport]]) -> None:
    files, reports = done
    assert [report.step for report in reports] == [0, 1, 2, 3, 4, 5, 6]
    assert [report.step for report in reports if report.checkpointed] == [2, 4, 6]
    assert [{"step": report.step, **report.metrics} for report in reports] == lines(files.checkpoint / "metrics.jsonl")
    assert [{"step": report.step, **report.timings} for report in reports] == lines(files.timings)


def test_step_zero_is_the_evaluation_before_training(done: tuple[Files, list[StepReport]]) -> None:
    metrics = lines(done[0].checkpoint / "metrics.jsonl")
    assert set(metrics[0]) == {"step", "eval/select_accuracy", "eval/select_graded", "eval/select_length"}
    assert [line["step"] for line in metrics if "eval/select_accuracy" in line] == [0, 3, 6]


def test_the_metrics_hold_what_their_readers_need_and_no_clock(done: tuple[Files, list[StepReport]]) -> None:
    files, _ = done
    needed = {
        "step", "reward/mean", "reward/std", f"reward/{REWARD}", "kl/mean", "kl/sequence", "loss", "policy_loss", "kl_loss", "grad_norm", "entropy",
        "clip_fraction", "ratio/max", "beta", "learning_rate", "length/mean", "length/max", "zero_variance_fraction", "solved_group_fraction",
        "truncated_fraction",
        "status/no_opinion_fraction", "status/invalid_fraction", "status/error_fraction",
        "advantage/mean", "advantage/std", "advantage/min", "advantage/max", "advantage/clipped_fraction", "logprob_gap", "tokens",
        "reward/min", "reward/max", "reward/lowest_fraction", "reward/outlier", "hopeless_group_fraction", "distinct_fraction", "repetition",
        "repeated_prompt_fraction", "advantage/mean_over_std", "grad_norm/max", "max_grad_norm", "policy_kl", "effective_sample_fraction", "sampler_gap",
    }  # fmt: skip
    for line in lines(files.checkpoint / "metrics.jsonl")[1:]:
        assert set(line) - {"eval/select_accuracy", "eval/select_graded", "eval/select_length"} == needed
    for line in lines(files.timings)[1:]:
        assert set(line) >= {"step", "timestamp_ms", "seconds", "tokens_per_second", "seconds/sample", "seconds/score", "seconds/reference", "seconds/update"}


def test_the_tables_hold_every_completion_of_every_step(done: tuple[Files, list[StepReport]]) -> None:
    rollouts, rewards = pl.read_parquet(done[0].rollouts), pl.read_parquet(done[0].rewards)
    keys = ["step", "group", "prompt_id", "completion_index"]
    assert rollouts.select(keys).equals(rewards.select(keys))
    assert rollouts.select("step", "group", "completion_index").rows() == [(s, p, g) for s in range(1, 7) for p in range(4) for g in range(4)]
    assert rollouts["policy_digest"].n_unique() == 6
    assert rollouts["policy_digest"][0] == read_manifest(done[0].start)["policy_digest"]


def test_every_answer_to_a_select_prompt_is_kept_with_the_weights_that_gave_it(done: tuple[Files, list[StepReport]]) -> None:
    files, reports = done
    rows, rollouts = pl.read_parquet(files.select), pl.read_parquet(files.rollouts)
    select = pl.read_parquet(files.prompts).filter(pl.col("split") == "select")["prompt_id"].sort().to_list()
    assert rows.select("step", "prompt_id").rows() == [(step, prompt) for step in (0, 3, 6) for prompt in select]
    digests = dict(rows.select("step", "policy_digest").unique().iter_rows())
    drew = dict(rollouts.select("step", "policy_digest").unique().iter_rows())
    assert digests == {0: drew[1], 3: drew[4], 6: read_manifest(files.checkpoint)["policy_digest"]}
    for report in reports:
        if report.step in (0, 3, 6):
            assert report.metrics["eval/select_accuracy"] == rows.filter(pl.col("step") == report.step)["correct"].mean()
    assert not set(rows["prompt_id"]) & set(rollouts["prompt_id"])


def test_right_answers_are_counted_in_training_where_the_metric_of_select_is_a_reward(given: Path, tmp_path: Path) -> None:
    counted = {"train_accuracy", "length_paid", "reward/beyond_accuracy"}
    for name, rewards in (("without", {REWARD: 1.0}), ("with", {REWARD: 1.0, ODD: 0.0})):
        files, reports = run(tmp_path / name, given, tiny_config(steps=1, eval_every=9, rewards=rewards, select_metric=ODD))
        assert set(reports[1].metrics) & counted == (counted if name == "with" else set())
    correct = pl.read_parquet(files.rewards)[f"reward/{ODD}"]
    share = sum(correct == 1.0) / len(correct)
    assert 0 < share < 1 and reports[1].metrics["train_accuracy"] == share


def test_without_evaluations_the_table_of_answers_is_empty_and_has_its_columns(done: tuple[Files, list[StepReport]], given: Path, tmp_path: Path) -> None:
    files, _ = run(tmp_path, given, tiny_config(steps=1, eval_every=0))
    rows = pl.read_parquet(files.select)
    assert rows.is_empty()
    assert rows.schema == pl.read_parquet(done[0].select).schema


def test_the_checkpoint_names_what_it_was_made_from(done: tuple[Files, list[StepReport]]) -> None:
    files, _ = done
    manifest = read_manifest(files.checkpoint)
    assert manifest["step"] == 6
    assert manifest["run_key"] == files.work.name, "the key is given, not worked out again"
    assert manifest["config"]["grpo"]["learning_rate"] == 3e-3
    assert not {"checkpoint_every", "keep_checkpoints"} & set(manifest["config"]["grpo"]), "how often a run is saved changes no byte of it"
    assert set(manifest["config"]) == {"model", "rollout", "rewards", "reward_options", "scoring", "grpo", "health"}
    assert manifest["config"]["health"] == {}, "a monitor that only watches changes no byte of it"
    assert not {"exploit_threshold", "acknowledged_exploits"} & set(manifest["config"]["scoring"])
    assert manifest["parents"] == {"prompts": file_sha256(files.prompts), "start": folder_digest(files.start), "reference": folder_digest(files.reference)}
    assert set(manifest["files"]) == {"config.json", "generation_config.json", "metrics.jsonl", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert policy_digest(AutoModelForCausalLM.from_pretrained(files.checkpoint)) == manifest["policy_digest"]


@pytest.mark.parametrize("every", [0, 1])
def test_evaluating_more_or_less_often_changes_no_rollout_and_no_weight(every: int, done: tuple[Files, list[StepReport]], given: Path, tmp_path: Path) -> None:
    files, _ = run(tmp_path, given, tiny_config(eval_every=every))
    assert files.rollouts.read_bytes() == done[0].rollouts.read_bytes()
    assert files.rewards.read_bytes() == done[0].rewards.read_bytes()
    assert (files.checkpoint / "model.safetensors").read_bytes() == (done[0].checkpoint / "model.safetensors").read_bytes()
    evaluated = [line["step"] for line in lines(files.checkpoint / "metrics.jsonl") if "eval/select_accuracy" in line]
    assert evaluated == ([] if every == 0 else list(range(7)))


def test_evaluation_settings_change_no_rollout_and_no_weight(done: tuple[Files, list[StepReport]], given: Path, tmp_path: Path) -> None:
    config = tiny_config(select_max_prompts=1, select_metric="tests.tiny_rewards:length_in_tokens")
    files, _ = run(tmp_path, given, replace(config, heldout_eval=OTHER_EVALUATION))
    assert files.rollouts.read_bytes() == done[0].rollouts.read_bytes()
    evaluated = [
        [line["eval/select_accuracy"] for line in lines(ran.checkpoint / "metrics.jsonl") if "eval/select_accuracy" in line] for ran in (files, done[0])
    ]
    assert len(evaluated[0]) == len(evaluated[1]) == 3
    assert evaluated[0] != evaluated[1], "another metric on one prompt must be read for this test to mean something"
    assert (files.checkpoint / "model.safetensors").read_bytes() == (done[0].checkpoint / "model.safetensors").read_bytes()


OTHER_EVALUATION = HeldoutEvalConfig(metric="number_answer", max_prompts=3, samples_per_prompt=3, pass_k=1, temperature=0.3, bootstrap_resamples=200, seed=9)


def test_how_the_end_is_evaluated_names_no_run(given: Path, tmp_path: Path) -> None:
    files, config = outputs(tmp_path, given), tiny_config()
    assert all(getattr(OTHER_EVALUATION, f.name) != getattr(config.heldout_eval, f.name) for f in fields(HeldoutEvalConfig))
    assert run_key(files, replace(config, heldout_eval=OTHER_EVALUATION)) == run_key(files, config)


CHANGES: list[dict[str, Any]] = [
    {"seed": 1}, {"learning_rate": 1e-3}, {"beta": 0.5}, {"clip_low": 0.01, "clip_high": 0.01}, {"advantage_clip": 0.1}, {"max_grad_norm": 1e-3},
    {"loss": "dapo"},
]  # fmt: skip


@pytest.mark.parametrize("change", [{}, *CHANGES])
def test_what_training_reads_changes_the_weights(change: dict[str, Any], done: tuple[Files, list[StepReport]], given: Path, tmp_path: Path) -> None:
    files, _ = run(tmp_path, given, tiny_config(steps=1, eval_every=0, **change))
    after_one_step = pl.read_parquet(done[0].rollouts).filter(pl.col("step") == 2)["policy_digest"][0]
    assert (read_manifest(files.checkpoint)["policy_digest"] == after_one_step) == (not change)


def test_updates_per_rollout_and_minibatches_train_to_the_end(given: Path, tmp_path: Path) -> None:
    files, reports = run(tmp_path, given, tiny_config(steps=2, updates_per_rollout=2, minibatches_per_rollout=4))
    assert [report.step for report in reports] == [0, 1, 2]
    assert lines(files.checkpoint / "metrics.jsonl")[2]["ratio/max"] > 1


def test_a_reward_that_returns_infinity_ends_the_run_and_writes_no_output(given: Path, tmp_path: Path) -> None:
    files, heard = outputs(tmp_path, given), []
    with pytest.raises(RewardError, match=r"'tests.tiny_rewards:infinite_in_row_three' returned inf, .* for step 1, prompt [0-9a-f]+, completion 3"):
        train(files, tiny_config(rewards={"tests.tiny_rewards:infinite_in_row_three": 1.0}, eval_every=0), on_step=lambda report: heard.append(report.step))
    assert heard == [0]
    assert not files.checkpoint.exists()
    assert not files.rollouts.exists()


def other(value: Any, options: tuple[Any, ...]) -> Any:
    """Another valid value of a field."""
    if options:
        return next(option for option in options if option != value)
    if isinstance(value, bool):
        return not value
    return f"{value}x" if isinstance(value, str) else value * 2 if isinstance(value, int) and value else 1 if isinstance(value, int) else (value or 1.0) / 2


KEPT_OUT = {"steps", "checkpoint_every", "keep_checkpoints"}
FIELDS = [(section, f.name) for section, kind in (("model", ModelConfig), ("rollout", RolloutConfig), ("grpo", GrpoConfig)) for f in fields(kind)]
GIVEN: dict[str, Any] = {"num_heads": 1, "device": "auto", "select_metric": "number_answer"}
"""Other values of fields that do not take just any."""
OWN_SIZES = {f.name: f.default for f in fields(ModelConfig) if f.name not in ("path", "device", "num_threads")}
CLONING: dict[str, Any] = {"cloning_weight": 1.0, "cloning_steps": 4, "cloning_batch_size": 2}
NEEDED: dict[str, dict[str, Any]] = {
    "path": OWN_SIZES,
    **{key: {"kl_control": "threshold"} for key in ("kl_statistic", "kl_upper", "kl_lower", "kl_patience")},
    **{key: {"kl_control": "pid"} for key in ("kl_target", "kl_proportional", "kl_integral", "kl_derivative")},
    "advantage_clip_start": {"advantage_clip_steps": 3},
    "length_target": {"length_penalty": 0.1},
    "aggregation_length": {"aggregation": "constant"},
    **{key: CLONING for key in ("cloning_weight", "cloning_schedule", "cloning_steps", "cloning_batch_size", "demonstration_fraction")},
}
"""What must be set so that a field has an effect, and may be changed at all."""


@pytest.mark.parametrize(("section", "name"), FIELDS)
def test_every_field_that_training_reads_names_the_run(section: str, name: str, given: Path, tmp_path: Path) -> None:
    files, config = outputs(tmp_path, given), tiny_config()
    old = replace(getattr(config, section), **NEEDED.get(name, {}))
    config = replace(config, **{section: old})
    hint = get_type_hints(type(old))[name]
    value = GIVEN[name] if name in GIVEN else other(getattr(old, name), get_args(hint) if get_origin(hint) is Literal else ())
    assert value != getattr(old, name)
    changed = replace(config, **{section: replace(old, **{name: value})})
    assert (run_key(files, changed) == run_key(files, config)) == (name in KEPT_OUT)


def test_the_run_key_names_configuration_inputs_and_code(given: Path, tmp_path: Path) -> None:
    files, config = outputs(tmp_path, given), tiny_config()
    key = run_key(files, config)
    assert len(key) == 16
    for same in (tiny_config(steps=60), tiny_config(checkpoint_every=1), tiny_config(keep_checkpoints=9)):
        assert run_key(files, same) == key, "how long it runs and how often it is saved change no step"
    changed = [
        tiny_config(seed=1),
        tiny_config(rewards={REWARD: 2.0}),
        tiny_config(rewards={"tests.tiny_rewards:constant": 1.0}),
        replace(config, rollout=replace(config.rollout, temperature=0.9)),
        replace(config, model=replace(config.model, dtype="bfloat16")),
    ]
    keys = {run_key(files, other) for other in changed}
    assert len(keys) == len(changed)
    assert key not in keys
    assert run_key(files, replace(config, sft=replace(config.sft, steps=9))) == key, "training reads the checkpoint, not how it was made"
    prompts_table(train=11).write_parquet(tmp_path / "prompts.parquet")
    assert run_key(replace(files, prompts=tmp_path / "prompts.parquet"), config) != key


@pytest.mark.parametrize("library", NUMERICAL)
def test_another_version_of_a_numerical_library_gives_another_key(library: str, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, config = outputs(tmp_path, given), tiny_config()
    key = run_key(files, config)
    monkeypatch.setattr("grpo_core.models.version", lambda name: "9.9" if name == library else version(name))
    assert run_key(files, config) != key


def test_another_kind_of_processor_gives_another_key(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, config = outputs(tmp_path, given), tiny_config()
    key = run_key(files, config)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX1024")
    assert run_key(files, config) != key


def test_the_code_of_the_select_metric_names_the_run(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metric = tmp_path / "a_select_metric.py"
    metric.write_text("def mine(completions, **columns):\n    return [0.0] * len(completions)\n")
    monkeypatch.syspath_prepend(tmp_path)
    files, config = outputs(tmp_path, given), tiny_config(select_metric="a_select_metric:mine")
    key = run_key(files, config)
    metric.write_text(metric.read_text().replace("0.0", "1.0"))
    assert run_key(files, config) != key
