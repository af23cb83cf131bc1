import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from transformers import AutoModelForCausalLM

from assets import sft_checkpoint
from assets.page import Chart, Progress
from assets.paths import Paths
from grpo_core.checkpoint import file_sha256, read_manifest
from grpo_core.errors import Interrupted
from grpo_core.models import policy_digest, start_model
from tests.assets.lifecycle import ignore, lifecycle_config, never
from tests.tiny_run import prompts_table


def fresh(root: Path) -> Paths:
    paths = Paths(root)
    paths.prompts.parent.mkdir(parents=True)
    prompts_table().write_parquet(paths.prompts)
    return paths


def test_the_checkpoint_is_a_model_with_its_history(lifecycle: Paths) -> None:
    manifest = read_manifest(lifecycle.sft_checkpoint)
    assert manifest["parents"] == {"prompts": file_sha256(lifecycle.prompts), "model": "embedded"}
    assert manifest["config"]["sft"]["steps"] == 3
    assert set(manifest["config"]) == {"model", "sft"}
    assert policy_digest(AutoModelForCausalLM.from_pretrained(lifecycle.sft_checkpoint)) == manifest["policy_digest"]
    history = [json.loads(line) for line in (lifecycle.sft_checkpoint / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in history] == [1, 2, 3]
    assert history[-1]["loss"] < history[0]["loss"]


def test_zero_steps_keep_the_starting_model(tmp_path: Path) -> None:
    paths, config = fresh(tmp_path), lifecycle_config()
    prompts_table(sft=0).write_parquet(paths.prompts)
    config = replace(config, sft=replace(config.sft, steps=0))
    sft_checkpoint.produce(paths, config, ignore, never)
    assert read_manifest(paths.sft_checkpoint)["policy_digest"] == policy_digest(start_model(config.model).model)
    assert sft_checkpoint.describe(paths)["steps"] == 0


def test_the_same_inputs_give_the_same_bytes(lifecycle: Paths, tmp_path: Path) -> None:
    paths = fresh(tmp_path)
    heard: list[Progress] = []
    sft_checkpoint.produce(paths, lifecycle_config(), heard.append, never)
    assert (paths.sft_checkpoint / "manifest.json").read_bytes() == (lifecycle.sft_checkpoint / "manifest.json").read_bytes()
    assert [(progress.step, progress.total) for progress in heard] == [(1, 3), (2, 3), (3, 3)]


def test_stopped_in_the_middle_it_leaves_nothing(tmp_path: Path) -> None:
    paths = fresh(tmp_path)
    with pytest.raises(Interrupted):
        sft_checkpoint.produce(paths, lifecycle_config(), ignore, lambda: True)
    assert not paths.sft_checkpoint.exists()


def test_the_page_shows_loss_and_weights(lifecycle: Paths) -> None:
    page = sft_checkpoint.describe(lifecycle)
    assert page["weights"] == read_manifest(lifecycle.sft_checkpoint)["policy_digest"]
    assert page["steps"] == 3
    assert page["final_loss"] == pytest.approx(pl.read_ndjson(lifecycle.sft_checkpoint / "history.jsonl")["loss"].mean())
    assert isinstance(page["loss"], Chart)
