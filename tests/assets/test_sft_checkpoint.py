import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from transformers import AutoModelForCausalLM

from assets import sft_checkpoint
from assets.page import Chart, Progress
from assets.paths import Paths
from grpo_core.checkpoint import file_sha256, read_manifest
from grpo_core.config import ModelConfig, SftConfig
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
    config = replace(config, sft=SftConfig(steps=0))
    sft_checkpoint.produce(paths, config, ignore, never, paths.work / "key")
    assert read_manifest(paths.sft_checkpoint)["policy_digest"] == policy_digest(start_model(config.model).model)
    assert sft_checkpoint.describe(paths)["steps"] == 0


def test_the_same_inputs_give_the_same_bytes(lifecycle: Paths, tmp_path: Path) -> None:
    paths = fresh(tmp_path)
    heard: list[Progress] = []
    sft_checkpoint.produce(paths, lifecycle_config(), heard.append, never, paths.work / "key")
    assert (paths.sft_checkpoint / "manifest.json").read_bytes() == (lifecycle.sft_checkpoint / "manifest.json").read_bytes()
    assert [(progress.step, progress.total) for progress in heard] == [(1, 3), (2, 3), (3, 3)]


def test_stopped_in_the_middle_it_goes_on_to_the_same_bytes(lifecycle: Paths, tmp_path: Path) -> None:
    paths, config = fresh(tmp_path), lifecycle_config()
    work = sft_checkpoint.work_folder(paths, config)
    with pytest.raises(Interrupted, match="work up to step 1 is kept"):
        sft_checkpoint.produce(paths, config, ignore, lambda: True, work)
    assert not paths.sft_checkpoint.exists()
    heard: list[Progress] = []
    sft_checkpoint.produce(paths, config, heard.append, never, work)
    assert [progress.step for progress in heard] == [2, 3]
    assert tree(paths.sft_checkpoint) == tree(lifecycle.sft_checkpoint)


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_how_often_it_is_saved_changes_no_byte(lifecycle: Paths, tmp_path: Path) -> None:
    paths, config = fresh(tmp_path), lifecycle_config()
    config = replace(config, sft=replace(config.sft, checkpoint_every=1, keep_checkpoints=7))
    sft_checkpoint.produce(paths, config, ignore, never, paths.work / "key")
    assert tree(paths.sft_checkpoint) == tree(lifecycle.sft_checkpoint)


def test_the_work_folder_is_named_by_what_fine_tuning_reads(tmp_path: Path) -> None:
    paths, config = fresh(tmp_path), lifecycle_config()
    folder = sft_checkpoint.work_folder(paths, config)
    assert folder.parent == tmp_path / ".work" / "sft_checkpoint"

    def changed(section: str, **changes: Any) -> Path:
        return sft_checkpoint.work_folder(paths, replace(config, **{section: replace(getattr(config, section), **changes)}))

    assert changed("sft", checkpoint_every=7, keep_checkpoints=3) == folder
    assert changed("grpo", learning_rate=1.0) == folder
    others = [changed("sft", steps=4), changed("sft", seed=1), changed("model", seed=1)]
    prompts_table(sft=5).write_parquet(paths.prompts)
    assert len({folder, *others, sft_checkpoint.work_folder(paths, config)}) == 5


def test_other_arithmetic_has_a_work_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, config = fresh(tmp_path), lifecycle_config()
    folders = {sft_checkpoint.work_folder(paths, config)}
    monkeypatch.setattr("grpo_core.models.version", lambda name: "9.9")
    folders.add(sft_checkpoint.work_folder(paths, config))
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX1024")
    folders.add(sft_checkpoint.work_folder(paths, config))
    assert len(folders) == 3


def test_a_starting_model_in_a_folder_is_pinned_by_its_content(lifecycle: Paths, tmp_path: Path) -> None:
    paths, config = fresh(tmp_path), lifecycle_config()
    given = shutil.copytree(lifecycle.sft_checkpoint, tmp_path / "given")
    config = replace(config, model=ModelConfig(path=str(given), device="cpu", num_threads=1), sft=SftConfig(steps=0))
    before = sft_checkpoint.work_folder(paths, config)
    sft_checkpoint.produce(paths, config, ignore, never, before)
    pinned = read_manifest(paths.sft_checkpoint)["parents"]["model"]
    assert re.fullmatch("[0-9a-f]{64}", pinned)
    (given / "generation_config.json").write_text("{}")
    assert sft_checkpoint.work_folder(paths, config) != before
    sft_checkpoint.produce(paths, config, ignore, never, before)
    assert read_manifest(paths.sft_checkpoint)["parents"]["model"] != pinned


def test_the_page_shows_loss_and_weights(lifecycle: Paths) -> None:
    page = sft_checkpoint.describe(lifecycle)
    assert page["weights"] == read_manifest(lifecycle.sft_checkpoint)["policy_digest"]
    assert page["steps"] == 3
    assert page["final_loss"] == pytest.approx(pl.read_ndjson(lifecycle.sft_checkpoint / "history.jsonl")["loss"].mean())
    assert isinstance(page["loss"], Chart)
