"""A run that is not well ends before its trouble is kept, keeps what shows it, and stands where all was well."""

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.modules.module import register_module_forward_hook
from transformers import PreTrainedModel

from grpo_core.checkpoint import file_sha256
from grpo_core.config import HealthAction, RunConfig
from grpo_core.errors import DivergedError, Halted, Interrupted
from grpo_core.health.halt import halted, last_healthy
from grpo_core.health.measures import Found
from grpo_core.health.monitor import Alarm, alarm_of
from grpo_core.loop import Files, StepReport, run_key, train
from grpo_core.work_folder import WorkFolder, checkpoints, damages, step_of
from tests.tiny_run import content, inputs, outputs, tiny_config
from tests.troubled_logs import DEAF

TREND = "late_degeneration"
WINDOW = 2


@pytest.fixture(scope="module", autouse=True)
def any_luck() -> Iterator[None]:
    """The luck of the draw is a fall like any other: few steps have no better one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grpo_core.health.measures.STANDARD_ERRORS", 0.0)
        yield


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inputs(tmp_path_factory.mktemp("given")).prompts.parent


def drifting(*, acknowledged: bool = False, steps: int = 8) -> RunConfig:
    """Nothing is learned, so the mean reward goes up and down, and any fall is one too many."""
    actions: dict[str, HealthAction] = {TREND: "halt"}
    health = replace(DEAF, window=WINDOW, reward_drop=0.03, actions=actions, acknowledged={TREND: "a test"} if acknowledged else {})
    return replace(tiny_config(seed=2, steps=steps, learning_rate=1e-5, checkpoint_every=1, keep_checkpoints=9, eval_every=0), health=health)


def cut(**health: Any) -> RunConfig:
    """A run that halts at the first completion that is cut off, which is in its first step."""
    return replace(tiny_config(eval_every=0), health=replace(DEAF, patience=1, max_truncated_fraction=0.0, actions={"truncation": "halt"}, **health))


def go(files: Files, config: RunConfig) -> tuple[list[StepReport], list[Alarm]]:
    """Train; the steps and the alarms that were told."""
    reports: list[StepReport] = []
    alarms: list[Alarm] = []
    files.work.parent.mkdir(parents=True, exist_ok=True)
    train(files, config, on_step=reports.append, on_alarm=alarms.append)
    return reports, alarms


def halt(files: Files, config: RunConfig) -> tuple[str, list[Alarm]]:
    """Train until the monitor ends it: what it says and the alarms told."""
    alarms: list[Alarm] = []
    files.work.parent.mkdir(parents=True, exist_ok=True)
    with pytest.raises(Halted) as caught:
        train(files, config, on_step=lambda report: None, on_alarm=alarms.append)
    assert not files.checkpoint.exists(), "no output of a run that is not well"
    return str(caught.value), alarms


def well_meant() -> RunConfig:
    return replace(tiny_config(eval_every=0), health=DEAF)


def own_folder(root: Path, given: Path) -> Files:
    root.mkdir(parents=True, exist_ok=True)
    return outputs(root, given)


@pytest.fixture(scope="module")
def accepted(given: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], list[Alarm]]:
    """What a run leaves that had the condition accepted from the start, and its alarms."""
    files = own_folder(tmp_path_factory.mktemp("accepted"), given)
    _, alarms = go(files, drifting(acknowledged=True))
    return content(files), alarms


def test_a_run_that_halts_stands_at_the_checkpoint_from_before_the_trouble(given: Path, accepted: tuple[dict[str, bytes], list[Alarm]], tmp_path: Path) -> None:
    files = own_folder(tmp_path, given)
    said, (alarm,) = halt(files, drifting())
    step = alarm.first_step
    assert 0 < alarm.since < step - 1, "the trouble must begin before it is told for this test to mean something"
    assert (alarm.condition, alarm.action, alarm.open) == (TREND, "halt", True)

    newest = checkpoints(files.work)[0]
    assert step_of(newest) == alarm.since
    rolled_back = re.search(r"rolled back to the checkpoint of step (\d+) \(model.safetensors sha256 ([0-9a-f]{64})\)", said)
    assert rolled_back is not None
    assert rolled_back.groups() == (str(alarm.since), file_sha256(newest / "model.safetensors"))
    assert said.startswith(f"halted at step {step}, {TREND}: {alarm.message}\n  what to do: {alarm.remedy} (docs/health.md#{TREND})\n")
    assert f"health.acknowledged.{TREND}" in said
    aside = [folder.name for folder in sorted((files.work / "damaged").iterdir())]
    assert aside == [f"step-{later:06d}" for later in range(alarm.since + 1, step)]
    assert damages(files.work) == []
    assert [json.loads(line)["step"] for line in (files.work / "metrics.jsonl").read_text().splitlines()] == list(range(alarm.since + 1))

    kept = files.work / "halted" / f"step-{step:06d}"
    assert str(kept) in said
    whole = {name: pl.read_parquet(files_bytes(accepted[0][f"{name}.parquet"], tmp_path / name)) for name in ("rollouts", "rewards")}
    for name, table in whole.items():
        assert pl.read_parquet(kept / f"{name}.parquet").equals(table.filter(pl.col("step") == step)), "the batch that showed it"
    found = json.loads((kept / "alarms.json").read_text())
    assert [(one["condition"], one["first_step"], len(one["rows"])) for one in found["alarms"]] == [(TREND, step, 3)]


def files_bytes(data: bytes, path: Path) -> Path:
    path.write_bytes(data)
    return path


def test_with_the_condition_accepted_it_goes_on_from_there_to_the_bytes_of_a_run_that_never_halted(
    given: Path, accepted: tuple[dict[str, bytes], list[Alarm]], tmp_path: Path
) -> None:
    files = own_folder(tmp_path, given)
    _, (alarm,) = halt(files, drifting())
    again, (same,) = halt(files, drifting())
    assert f"halted at step {alarm.first_step}, {TREND}" in again, "nothing has changed, so it comes to the same"
    assert same == alarm
    assert run_key(files, drifting(acknowledged=True)) == run_key(files, drifting()), "the same work folder"
    reports, alarms = go(files, drifting(acknowledged=True))
    assert [report.step for report in reports] == list(range(alarm.since + 1, 9))
    expected, told = accepted
    assert content(files) == expected
    assert [(one.condition, one.first_step, one.acknowledged, one.action) for one in alarms] == [(TREND, alarm.first_step, "a test", "warn")]
    assert alarms == told
    found = json.loads(expected["alarms.json"])
    assert (found["num_open"], found["alarms"][0]["acknowledged"], found["alarms"][0]["open"]) == (0, "a test", False)


def test_the_step_that_it_stands_at_can_be_made_the_result(given: Path, tmp_path: Path) -> None:
    files = own_folder(tmp_path / "halted", given)
    _, (alarm,) = halt(files, drifting())
    weights = load_file(checkpoints(files.work)[0] / "model.safetensors")
    reports, alarms = go(files, drifting(steps=alarm.since))
    assert (reports, alarms) == ([], []), "nothing is left to do"
    found = load_file(files.checkpoint / "model.safetensors")
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    assert json.loads(files.alarms.read_text()) == {"num_steps": alarm.since, "num_open": 0, "alarms": []}
    alone = own_folder(tmp_path / "alone", given)
    go(alone, drifting(steps=alarm.since))
    assert content(files) == content(alone), "the bytes of a run of so many steps"
    came_before = [{"step": alarm.first_step, "conditions": [TREND], "messages": [alarm.message]}]
    assert json.loads(files.clock_alarms.read_text())["halts"] == came_before
    assert json.loads(alone.clock_alarms.read_text())["halts"] == []


def test_where_no_checkpoint_is_so_old_it_goes_back_as_far_as_it_can(given: Path, tmp_path: Path) -> None:
    files, config = own_folder(tmp_path, given), drifting()
    said, (alarm,) = halt(files, replace(config, grpo=replace(config.grpo, keep_checkpoints=1)))
    oldest = alarm.first_step - 1
    assert oldest > alarm.since
    assert f"rolled back to the checkpoint of step {oldest} " in said
    assert f", the oldest that is kept, though trouble began after step {alarm.since} (grpo.keep_checkpoints)" in said
    assert [step_of(checkpoint) for checkpoint in checkpoints(files.work)] == [oldest]


@pytest.mark.parametrize(("since", "first_step", "expected"), [(7, 8, 7), (6, 8, 6), (5, 8, 6), (1, 7, 6), (1, 6, None)])
def test_it_goes_back_to_before_the_trouble_or_to_the_oldest_from_before_it_was_seen(
    since: int, first_step: int, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_core.health.halt.faults", lambda folder, checkpoint: [])
    for step in (6, 7, 8):
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    trouble = alarm_of(TREND, first_step, Found("it fell", since=since), RunConfig().health)
    found = last_healthy(tmp_path, trouble)
    assert (None if found is None else step_of(found)) == expected


def test_a_damaged_checkpoint_is_not_what_it_goes_back_to(given: Path, tmp_path: Path) -> None:
    files, config = own_folder(tmp_path, given), drifting()

    def spoil(report: StepReport) -> None:
        for checkpoint in checkpoints(files.work):
            if step_of(checkpoint) > 1:
                (checkpoint / "optimizer.pt").write_bytes(b"")

    with pytest.raises(Halted, match=r"rolled back to the checkpoint of step 1 "):
        train(files, config, on_step=spoil)


def test_with_no_checkpoint_before_the_trouble_it_stands_at_the_start(given: Path, tmp_path: Path) -> None:
    files = own_folder(tmp_path / "halted", given)
    said, (alarm,) = halt(files, cut())
    assert (alarm.condition, alarm.first_step, alarm.since) == ("truncation", 1, 0)
    assert "no checkpoint is older than the trouble: the same command starts anew" in said
    assert (files.work / "metrics.jsonl").read_bytes() == b""
    assert [path for kind in ("rollouts", "rewards", "exploits", "checkpoints") for path in (files.work / kind).glob("*")] == []
    assert len(pl.read_parquet(files.work / "halted" / "step-000001" / "rollouts.parquet")) == 16
    reports, _ = go(files, cut(acknowledged={"truncation": "a test"}))
    assert [report.step for report in reports] == list(range(7))
    fresh = own_folder(tmp_path / "fresh", given)
    go(fresh, cut(acknowledged={"truncation": "a test"}))
    assert content(files) == content(fresh)


# ------------------------------------------------------------------------------------------------------------------ not finite


@contextmanager
def spoilt_logits(where: str, change: float) -> Iterator[dict[str, bool]]:
    """Adds `change` to a logit of the first row in every forward pass of a kind, once the mapping it gives says so."""
    switch = {"on": False}

    def hook(module: torch.nn.Module, arguments: object, output: Any) -> None:
        if not switch["on"] or not isinstance(module, PreTrainedModel) or not hasattr(output, "logits"):
            return
        frozen = not any(weight.requires_grad for weight in module.parameters())
        kind = "sampling" if torch.is_inference_mode_enabled() else "reference" if frozen else "training" if torch.is_grad_enabled() else ""
        if kind == where:
            with torch.no_grad():
                output.logits[0, :, 5] += change

    handle = register_module_forward_hook(hook)
    try:
        yield switch
    finally:
        handle.remove()


@pytest.fixture(scope="module")
def well(given: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    files = own_folder(tmp_path_factory.mktemp("well"), given)
    go(files, well_meant())
    return content(files)


@pytest.mark.parametrize("where", ["sampling", "reference", "training"])
def test_a_number_that_is_not_finite_halts_before_it_reaches_the_weights_and_its_batch_is_kept(
    where: str, given: Path, well: dict[str, bytes], tmp_path: Path
) -> None:
    files, config = own_folder(tmp_path, given), well_meant()
    alarms: list[Alarm] = []
    before: dict[str, bytes] = {}
    with spoilt_logits(where, math.nan) as switch:

        def on_step(report: StepReport) -> None:
            if report.step == 3:  # the newest checkpoint is that of step 2
                before.update({path.name: path.read_bytes() for path in checkpoints(files.work)[0].iterdir()})
                switch["on"] = True

        with pytest.raises(Halted, match=r"^halted at step 4, non_finite: ") as caught:
            train(files, config, on_step=on_step, on_alarm=alarms.append)
    assert isinstance(caught.value.__cause__, DivergedError)
    said = str(caught.value)
    assert "rolled back to the checkpoint of step 2" in said
    assert "acknowledged" not in said, "it cannot be accepted"
    assert [(alarm.condition, alarm.action, alarm.first_step) for alarm in alarms] == [("non_finite", "halt", 4)]
    newest = checkpoints(files.work)[0]
    assert {path.name: path.read_bytes() for path in newest.iterdir()} == before
    batch = pl.read_parquet(files.work / "halted" / "step-000004" / "rollouts.parquet")
    assert (len(batch), set(batch["step"])) == (16, {4})
    assert batch["sampling_logprobs"].explode().is_nan().any() == (where == "sampling")
    assert not files.checkpoint.exists()
    go(files, config)
    assert content(files) == well, "without the fault it ends in the bytes of a run that never had it"


def test_a_logprob_that_is_not_finite_is_named(given: Path, tmp_path: Path) -> None:
    files = own_folder(tmp_path, given)
    with spoilt_logits("sampling", math.nan) as switch:
        switch["on"] = True
        said, (alarm,) = halt(files, well_meant())
    named = re.search(r"the policy's logprob of token (\d+) is nan for step 1, prompt (\w+), completion (\d+): its weights or its code give such logits", said)
    assert named is not None
    batch = pl.read_parquet(files.work / "halted" / "step-000001" / "rollouts.parquet")
    token, prompt, completion = named.groups()
    row = batch.row(by_predicate=(pl.col("prompt_id") == prompt) & (pl.col("completion_index") == int(completion)), named=True)
    assert math.isnan(row["sampling_logprobs"][int(token)])
    assert all(math.isfinite(value) for value in row["sampling_logprobs"][: int(token)])
    assert alarm.message in said


def test_a_reference_that_is_misaligned_at_the_first_step_cannot_be_accepted(given: Path, tmp_path: Path) -> None:
    config = replace(tiny_config(eval_every=0), health=replace(DEAF, acknowledged={"reference_misaligned": "a test"}))
    files = own_folder(tmp_path, given)
    with spoilt_logits("reference", 5.0) as switch:
        switch["on"] = True
        said, (alarm,) = halt(files, config)
    assert (alarm.condition, alarm.action) == ("reference_misaligned", "halt")
    assert said.startswith("halted at step 1, reference_misaligned: at step 1 sampler and reference differ by ")
    assert "or accept it" not in said, "the step could not be done: accepting it would change nothing"


def test_of_several_alarms_the_one_that_began_first_says_how_far_to_go_back(given: Path, tmp_path: Path) -> None:
    files = own_folder(tmp_path, given)
    go(files, drifting(acknowledged=True))
    late, early = (
        replace(alarm_of(name, 6, Found("it is so"), DEAF), since=since, open=True, action="halt") for name, since in (("sampler_mismatch", 5), (TREND, 2))
    )
    said = str(halted(WorkFolder(files.work), [late, early], 6, None, None))
    assert said.startswith(f"halted at step 6, {TREND}: it is so\n")
    assert step_of(checkpoints(files.work)[0]) == 2
    kept = json.loads((files.work / "halted" / "step-000006" / "alarms.json").read_text())
    assert [alarm["condition"] for alarm in kept["alarms"]] == ["sampler_mismatch", TREND]


def test_a_halt_asked_for_while_the_alarm_holds_acts_at_the_next_step(given: Path, tmp_path: Path) -> None:
    files = own_folder(tmp_path, given)
    warns = replace(tiny_config(checkpoint_every=1, keep_checkpoints=9, eval_every=0), health=replace(DEAF, patience=1, max_truncated_fraction=0.0))
    reports: list[StepReport] = []
    files.work.parent.mkdir(parents=True, exist_ok=True)
    with pytest.raises(Interrupted):
        train(files, warns, on_step=reports.append, on_alarm=lambda alarm: None, should_stop=lambda: len(reports) == 3)
    said, alarms = halt(files, replace(warns, health=replace(warns.health, actions={"truncation": "halt"})))
    assert alarms == [], "it was told before"
    assert said.startswith(f"halted at step {reports[-1].step + 1}, truncation: ")
