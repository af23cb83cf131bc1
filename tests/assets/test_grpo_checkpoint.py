import json
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from assets import grpo_checkpoint
from assets.page import Chart, Progress
from assets.paths import Paths
from grpo_core.checkpoint import read_manifest
from grpo_core.config import HealthConfig
from grpo_core.errors import Interrupted
from grpo_core.health.measures import Found
from grpo_core.health.monitor import alarm_of
from grpo_core.probes import PROBES
from tests.assets.lifecycle import lifecycle_config, never
from tests.troubled_logs import DEAF


def hashed(paths: Paths) -> dict[str, bytes]:
    files = [paths.rollout_batches, paths.select_completions, paths.rewards, paths.exploits, paths.alarms, *sorted(paths.grpo_checkpoint.iterdir())]
    return {path.name: path.read_bytes() for path in files}


@pytest.fixture
def untrained(lifecycle: Paths, tmp_path: Path) -> Paths:
    """The inputs of training, nothing trained."""
    paths = Paths(tmp_path)
    for noun in ("prompts", "sft_checkpoint", "reference_checkpoint"):
        shutil.copytree(lifecycle.data / noun, paths.data / noun)
    return paths


def of_steps(heard: list[Progress]) -> list[Progress]:
    """Without what was told of the exploit battery and of alarms."""
    return [progress for progress in heard if "exploits" not in progress.numbers and not progress.notices]


def test_one_process_writes_three_nouns_and_keeps_the_clock_apart(lifecycle: Paths) -> None:
    manifest = read_manifest(lifecycle.grpo_checkpoint)
    assert manifest["step"] == 4
    assert manifest["policy_digest"] != read_manifest(lifecycle.reference_checkpoint)["policy_digest"]
    assert lifecycle.rollout_batches.is_file()
    assert lifecycle.rewards.is_file()
    assert lifecycle.exploits.is_file()
    timings = [json.loads(line) for line in (lifecycle.provenance("grpo_checkpoint") / "timings.jsonl").read_text().splitlines()]
    assert [line["step"] for line in timings] == [0, 1, 2, 3, 4]
    assert all("timestamp_ms" in line for line in timings)
    assert not lifecycle.provenance("grpo_checkpoint").is_relative_to(lifecycle.data)


def test_a_stopped_training_continues_to_the_same_bytes_and_names_its_work(lifecycle: Paths, untrained: Paths) -> None:
    config = lifecycle_config()
    heard: list[Progress] = []
    work = grpo_checkpoint.work_folder(untrained, config)
    assert work == untrained.root / ".work" / "grpo_checkpoint" / "default" / grpo_checkpoint.run_key(untrained, config)
    with pytest.raises(Interrupted):
        grpo_checkpoint.produce(untrained, config, heard.append, lambda: len(of_steps(heard)) == 2, work)
    assert work.is_dir()
    grpo_checkpoint.produce(untrained, config, heard.append, never, work)
    assert hashed(untrained) == hashed(lifecycle)
    assert [progress.step for progress in of_steps(heard)] == [0, 1, 2, 3, 4]
    assert work.is_dir(), "kept until the outputs are committed"
    assert grpo_checkpoint.finished_work_folder(untrained) == work


def test_a_finished_training_that_is_extended_ends_in_the_bytes_of_a_longer_one(lifecycle: Paths, untrained: Paths) -> None:
    config = lifecycle_config()
    shorter = replace(config, grpo=replace(config.grpo, steps=3))
    heard: list[Progress] = []
    for wanted in (shorter, config):
        grpo_checkpoint.produce(untrained, wanted, heard.append, never, grpo_checkpoint.work_folder(untrained, wanted))
    assert [progress.step for progress in of_steps(heard)] == [0, 1, 2, 3, 4]
    assert hashed(untrained) == hashed(lifecycle)


def test_another_configuration_has_a_folder_of_its_own(untrained: Paths) -> None:
    config = lifecycle_config()
    folder = grpo_checkpoint.work_folder(untrained, config)
    longer = replace(config.grpo, steps=9, checkpoint_every=1, keep_checkpoints=5)
    assert grpo_checkpoint.work_folder(untrained, replace(config, grpo=longer)) == folder
    assert grpo_checkpoint.work_folder(untrained, replace(config, grpo=replace(config.grpo, learning_rate=1.0))) != folder


def test_progress_carries_the_figures_of_the_step(untrained: Paths) -> None:
    heard: list[Progress] = []
    grpo_checkpoint.produce(untrained, lifecycle_config(), heard.append, never, untrained.work / "key")
    heard = [progress for progress in heard if not progress.notices]
    tried = [progress.numbers for progress in heard if progress not in of_steps(heard)]
    assert tried == [{"exploits_tried": count, "exploits": len(PROBES)} for count in range(len(PROBES) + 1)]
    assert heard[: len(tried)] == [progress for progress in heard if progress not in of_steps(heard)], "before the first step"
    heard = of_steps(heard)
    assert [(progress.step, progress.total) for progress in heard] == [(step, 4) for step in range(5)]
    assert [progress.step for progress in heard if progress.checkpointed] == [2, 4]
    assert {"reward/mean", "kl/mean", "length/mean", "seconds", "tokens_per_second"} <= set(heard[1].numbers)
    assert not [progress.step for progress in heard if "timestamp_ms" in progress.numbers], "the clock is no figure of the step"


def test_an_alarm_is_told_before_its_step_and_written_down(untrained: Paths) -> None:
    config = replace(lifecycle_config(), health=replace(DEAF, patience=2, max_truncated_fraction=0.0))
    heard: list[Progress] = []
    grpo_checkpoint.produce(untrained, config, heard.append, never, untrained.work / "key")
    ((place, told),) = [(place, progress) for place, progress in enumerate(heard) if progress.notices]
    assert (told.step, told.total, told.numbers, told.checkpointed) == (2, 4, {}, False)
    assert heard[place + 1].step == 2
    (found,) = json.loads(untrained.alarms.read_text())["alarms"]
    (one,) = told.notices
    assert json.loads(json.dumps(one.facts)) == {**found, "last_step": 2}
    assert one.text.splitlines()[0] == f"{found['severity']} at step 2, truncation: {found['message']}"
    assert json.loads(untrained.clock_alarms.read_text()) == {"num_steps": 4, "num_open": 0, "halts": [], "alarms": []}
    assert not untrained.clock_alarms.is_relative_to(untrained.data)


def test_a_notice_says_what_is_wrong_and_what_to_do_or_what_was_done() -> None:
    alarm = alarm_of("early_explosion", 7, Found("it exploded", {"kl/mean": 9.0}), HealthConfig())
    first, second = grpo_checkpoint.notice(alarm).text.splitlines()
    assert first == f"{alarm.severity} at step 7, early_explosion: it exploded"
    assert second == f"  what to do: {alarm.remedy} (docs/health.md#early_explosion)"
    adjusted = grpo_checkpoint.notice(replace(alarm, adjustment={"max_grad_norm": 0.5, "beta": 0.015}))
    assert adjusted.text.splitlines() == [first, second, "  adjusted: max_grad_norm is 0.5 from now on, beta is 0.015 from now on"]
    accepted = grpo_checkpoint.notice(replace(alarm, acknowledged="a test"))
    assert accepted.text.splitlines() == [first, "  accepted: a test"]
    assert accepted.facts["acknowledged"] == "a test"


def test_the_finished_work_is_that_of_the_manifest_whatever_the_inputs_are_now(spoilt: Paths) -> None:
    work = grpo_checkpoint.work_folder(spoilt, lifecycle_config())
    assert work.name == read_manifest(spoilt.grpo_checkpoint)["run_key"]
    pl.read_parquet(spoilt.prompts).reverse().write_parquet(spoilt.prompts)
    assert grpo_checkpoint.work_folder(spoilt, lifecycle_config()) != work
    assert grpo_checkpoint.finished_work_folder(spoilt) == work


def test_the_page_shows_the_charts_what_was_watched_and_the_last_numbers(lifecycle: Paths) -> None:
    page = grpo_checkpoint.describe(lifecycle)
    last = json.loads((lifecycle.grpo_checkpoint / "metrics.jsonl").read_text().splitlines()[-1])
    assert page["steps"] == 4
    for name in ("reward/mean", "kl/mean", "length/mean", "entropy", "grad_norm", "beta"):
        assert page[name] == pytest.approx(last[name])
    shown = {name.removeprefix("chart/") for name in page if name.startswith("chart/")}
    assert shown == {"reward", "kl", "length", "advantages", "alarms", "select", "entropy", "grad_norm", "zero_variance", "ratio", "variety"}
    assert all(isinstance(value, Chart) for name, value in page.items() if name.startswith("chart/"))
    assert page["weights"] == read_manifest(lifecycle.grpo_checkpoint)["policy_digest"]
    assert "select_accuracy" in page
    assert page["open_alarms"] == json.loads(lifecycle.alarms.read_text())["num_open"]


def test_a_checkpoint_from_before_the_monitor_has_its_page(spoilt: Paths) -> None:
    spoilt.alarms.unlink()
    page = grpo_checkpoint.describe(spoilt)
    assert page["open_alarms"] == "not recorded"
    assert isinstance(page["chart/alarms"], Chart)
