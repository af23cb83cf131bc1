"""Sizes are those of the real models; memory and time grow with what they depend on, and agree with what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from grpo_core.addition import addition_tokenizer
from grpo_core.config import ModelConfig, RunConfig
from grpo_core.cost import (
    EMBEDDED_VOCABULARY,
    LastRun,
    ModelSize,
    disk_bytes,
    embedded_size,
    expected_seconds,
    folder_size,
    longest_prompt,
    model_size,
    peak_bytes,
    probe_core,
    stage_work,
    step_work,
)
from grpo_core.models import start_model
from grpo_core.params import parse_sections
from grpo_core.tokenization import encode_prompt
from tests.tiny_models import save, tiny_gpt2, tiny_llama

MIB = 2**20
SPLITS = {"train": 3700, "sft": 5500, "select": 241, "heldout": 549}


def weights(model: PreTrainedModel) -> int:
    return sum(weight.numel() for weight in model.parameters())


def test_the_embedded_vocabulary_is_its_tokenizers() -> None:
    assert len(addition_tokenizer()) == EMBEDDED_VOCABULARY


@pytest.mark.parametrize(
    "model",
    [
        ModelConfig(device="cpu"),
        ModelConfig(device="cpu", hidden_size=24, num_layers=3, num_heads=4, intermediate_size=50),
        ModelConfig(device="cpu", num_layers=1, intermediate_size=1),
    ],
    ids=["default", "narrow", "shallow"],
)
def test_the_embedded_model_has_the_weights_that_its_formula_says(model: ModelConfig) -> None:
    assert embedded_size(model).parameters == weights(start_model(model).model)
    assert model_size(model, Path("/")) == embedded_size(model)


def test_a_folder_tells_its_size(tmp_path: Path) -> None:
    llama, gpt2 = tiny_llama(), tiny_gpt2()
    save(llama, tmp_path / "llama")
    save(gpt2, tmp_path / "gpt2")
    assert folder_size(tmp_path / "llama") == ModelSize(weights(llama), llama.config.vocab_size, 16, 2, 32, 8), "one key and value head of two"
    assert folder_size(tmp_path / "gpt2") == ModelSize(weights(gpt2), gpt2.config.vocab_size, 16, 2, 64, 16)
    assert model_size(ModelConfig(path="llama"), tmp_path) == folder_size(tmp_path / "llama")


def test_a_model_in_several_files_is_counted_whole(tmp_path: Path) -> None:
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64))
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    found = folder_size(tmp_path)
    assert found is not None and found.parameters == weights(model)


@pytest.mark.parametrize("spoil", ["config.json", "model.safetensors", "no json", "cut", "hub"])
def test_what_does_not_tell_its_size_has_none(spoil: str, tmp_path: Path) -> None:
    save(tiny_llama(), tmp_path / "model")
    if spoil == "no json":
        (tmp_path / "model" / "config.json").write_text("[1")
    elif spoil == "cut":
        (tmp_path / "model" / "model.safetensors").write_bytes(b"\xff" * 20)
    elif spoil != "hub":
        (tmp_path / "model" / spoil).unlink()
    assert model_size(ModelConfig(path="owner/name" if spoil == "hub" else "model"), tmp_path) is None


def test_the_longest_prompt_of_the_embedded_task_is_known() -> None:
    assert longest_prompt(RunConfig()) == len(encode_prompt(addition_tokenizer(), "335+194=", None)) == 9
    assert longest_prompt(parse_sections({"prompts": {"template": "{prompt}?", "num_digits": 4}})) == len(
        encode_prompt(addition_tokenizer(), "3351+1941=?", None)
    )
    assert longest_prompt(parse_sections({"prompts": {"path": "my.jsonl", "max_tokens": 50}})) == 50


WIDE = {"hidden_size": 512, "num_layers": 8, "num_heads": 8, "intermediate_size": 1536}
WIDER = {"hidden_size": 1024, "num_layers": 8, "num_heads": 16, "intermediate_size": 3072}
MEASURED: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({}, {"sft_checkpoint": 532, "grpo_checkpoint": 833, "heldout_eval": 741}),
    ({"model": WIDE}, {"sft_checkpoint": 1854, "grpo_checkpoint": 2925, "heldout_eval": 1271}),
    ({"model": WIDER, "grpo": {"prompts_per_step": 8, "micro_batch_size": 16}}, {"sft_checkpoint": 4227, "grpo_checkpoint": 3957, "heldout_eval": 2032}),
]
"""Peaks in MiB of whole stages (the default) and of training alone plus what the stage around it takes."""


@pytest.mark.parametrize(("sections", "measured"), MEASURED, ids=["default", "wide", "wider"])
def test_memory_agrees_with_what_was_measured(sections: dict[str, Any], measured: dict[str, int]) -> None:
    config = parse_sections(sections)
    for stage, expected in peak_bytes(config, embedded_size(config.model)).items():
        assert expected / MIB == pytest.approx(measured[stage], rel=0.2), stage


def large(**changes: dict[str, Any]) -> tuple[RunConfig, ModelSize]:
    """SmolLM2-135M's sizes."""
    config = parse_sections({"model": {"path": "some/model"}, "prompts": {"path": "my.jsonl"}, "sft": {"steps": 0}, **changes})
    return config, ModelSize(134_515_008, 49_152, 576, 30, 1536, 192)


def test_a_large_vocabulary_costs_logits_of_a_micro_batch_and_nothing_else() -> None:
    config, size = large(grpo={"micro_batch_size": 64})
    halved, _ = large(grpo={"micro_batch_size": 32})
    fewer = peak_bytes(config, size)["grpo_checkpoint"] - peak_bytes(halved, size)["grpo_checkpoint"]
    assert fewer == 32 * (4 * 30 * (14 * 576 + 4 * 1536) * (64 + 44) + 4 * 4 * 44 * 49_152)
    more, _ = large(rollout={"batch_size": 256})
    assert peak_bytes(more, size)["grpo_checkpoint"] == peak_bytes(config, size)["grpo_checkpoint"], "sampling is not the peak"


def test_training_holds_five_times_the_weights_and_the_rest_does_not_grow_with_them() -> None:
    config, size = large()
    twice = ModelSize(2 * size.parameters, size.vocabulary, size.width, size.layers, size.intermediate, size.cache_width)
    grown = {stage: peak_bytes(config, twice)[stage] - peak for stage, peak in peak_bytes(config, size).items()}
    assert grown == {"sft_checkpoint": size.weight_bytes, "grpo_checkpoint": 5 * size.weight_bytes, "heldout_eval": 2 * size.weight_bytes}


def test_a_gpu_holds_no_process() -> None:
    config, size = large()
    on_cpu, on_gpu = peak_bytes(config, size), peak_bytes(config, size, gpu=True)
    assert all(on_gpu[stage] < on_cpu[stage] for stage in ("grpo_checkpoint", "heldout_eval"))


RATE = 2e11
CLONING: dict[str, Any] = {"cloning_weight": 1.0, "cloning_steps": 40, "cloning_batch_size": 32, "demonstration_fraction": 0.25}


def seconds(sections: dict[str, Any], last: LastRun | None = None) -> dict[str, float]:
    config = parse_sections(sections)
    return expected_seconds(config, embedded_size(config.model), SPLITS, lambda model: RATE * model.num_threads / 2, last)


def test_time_agrees_with_what_was_measured_on_a_machine_of_such_a_rate() -> None:
    measured = {"sft_checkpoint": 57, "grpo_checkpoint": 45, "heldout_eval": 19}
    for stage, found in seconds({}).items():
        assert measured[stage] / 2 < found < 2 * measured[stage], stage


def test_the_work_of_a_step_is_counted_by_hand() -> None:
    config = RunConfig()
    size = embedded_size(config.model)
    rows, prompt, completion = 128, 9, 44
    sampled = 16 * prompt + rows * completion
    scored = rows * (prompt + completion)
    assert step_work(config, size).operations == 2 * size.parameters * (sampled + scored + 3 * scored)
    assert step_work(config, size).passes == completion + 2 + 3 * 2, "44 tokens in one batch, two micro-batches of the reference, two of the update"
    without = parse_sections({"grpo": {"beta": 0}})
    assert step_work(without, size).operations == 2 * size.parameters * (sampled + 3 * scored)


def test_demonstrations_are_scored_with_a_gradient_as_long_as_they_have_weight() -> None:
    plain, imitating = (parse_sections({"grpo": {**changes, "updates_per_rollout": 2}}) for changes in ({}, CLONING))
    size = embedded_size(plain.model)
    more, less = (stage_work(config, size, SPLITS)["grpo_checkpoint"] for config in (imitating, plain))
    assert more.operations - less.operations == pytest.approx(40 * 2 * 36 * (9 + 44) * 3 * 2 * size.parameters)
    assert more.passes - less.passes == 40 * 2 * 2 * 3, "18 demonstrations in each of two minibatches fit into one pass"


def test_demonstrations_take_memory_when_they_are_more_than_completions() -> None:
    config, size = large(grpo={**CLONING, "micro_batch_size": 64, "cloning_batch_size": 16}, prompts={"path": "my.jsonl"})
    many, _ = large(grpo={**CLONING, "micro_batch_size": 96, "cloning_batch_size": 192}, prompts={"path": "my.jsonl"})
    more = peak_bytes(many, size)["grpo_checkpoint"] - peak_bytes(config, size)["grpo_checkpoint"]
    assert more == 32 * (4 * 30 * (14 * 576 + 4 * 1536) * (64 + 44) + 4 * 4 * 44 * 49_152)


def test_a_run_twice_as_long_takes_twice_the_time_of_its_steps() -> None:
    config = parse_sections({"grpo": {"eval_every": 0}})
    longer = parse_sections({"grpo": {"eval_every": 0, "steps": 160}})
    size = embedded_size(config.model)
    once, twice = (stage_work(c, size, SPLITS)["grpo_checkpoint"].seconds(size, RATE) for c in (config, longer))
    assert twice == pytest.approx(2 * once)


def test_the_last_run_says_how_long_a_step_takes_and_the_formula_compares() -> None:
    last = LastRun(RunConfig(), embedded_size(ModelConfig()), seconds_a_step=0.5)
    same = seconds({}, last)["grpo_checkpoint"]
    assert same == pytest.approx(10 + 80 * 0.5, rel=0.01)
    assert seconds({"grpo": {"steps": 160}}, last)["grpo_checkpoint"] == pytest.approx(10 + 160 * 0.5, rel=0.02)
    wider = {"grpo": {"prompts_per_step": 32}, "rollout": {"batch_size": 256}}
    assert 10 + 80 * 0.5 * 1.5 < seconds(wider, last)["grpo_checkpoint"] < 10 + 80 * 0.5 * 2
    slower = LastRun(RunConfig(), embedded_size(ModelConfig()), seconds_a_step=5.0)
    assert seconds({}, slower)["heldout_eval"] > 5 * seconds({}, last)["heldout_eval"] - 8 * 5


def test_the_probe_measures_a_plausible_core() -> None:
    assert 1e8 < probe_core() < 1e13


def test_a_run_without_fine_tuning_only_starts_that_stage() -> None:
    assert seconds({"sft": {"steps": 0}, "prompts": {"sft_fraction": 0}})["sft_checkpoint"] == 5


def test_disk_holds_models_checkpoints_and_completions() -> None:
    config, size = large(grpo={"keep_checkpoints": 2, "steps": 10, "prompts_per_step": 4, "group_size": 4}, heldout_eval={"max_prompts": 30})
    completions = 10 * 16 + 2 * 30 * 5
    assert disk_bytes(config, size, SPLITS) == 12 * size.weight_bytes + 16 * completions * 44


def test_a_token_on_disk_is_no_more_than_the_bound(tmp_path: Path) -> None:
    import numpy as np
    import polars as pl

    from grpo_core.cost import TOKEN_BYTES
    from grpo_core.tables import write_table

    draw = np.random.default_rng(0)
    ids = [draw.integers(0, 49_152, 100).tolist() for _ in range(200)]
    rows = pl.DataFrame(
        {
            "token_ids": pl.Series(ids, dtype=pl.List(pl.Int32)),
            "sampling_logprobs": pl.Series([draw.normal(size=100).tolist() for _ in ids], dtype=pl.List(pl.Float32)),
        }
    )
    write_table(tmp_path / "rows.parquet", rows)
    assert (tmp_path / "rows.parquet").stat().st_size / 20_000 < TOKEN_BYTES, "ids and logprobs that nothing can compress, with room for text"


def test_a_nested_configuration_is_read(tmp_path: Path) -> None:
    save(tiny_llama(), tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    plain = folder_size(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "multimodal", "text_config": settings}))
    assert folder_size(tmp_path) == plain
