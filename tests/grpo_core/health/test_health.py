"""The monitor within a training: what it says and does is the same however often the training was stopped."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars as pl
import pytest

from grpo_core.checkpoint import unchecked_manifest
from grpo_core.config import ADJUSTABLE, RunConfig
from grpo_core.errors import Interrupted
from grpo_core.health.health import adjust, write_alarms
from grpo_core.health.measures import Found
from grpo_core.health.monitor import Alarm, alarm_of
from grpo_core.kl_control import KlController
from grpo_core.loop import Files, StepReport, run_key, train
from grpo_core.replay import Recorded, replay
from grpo_core.trainer import Trainer
from grpo_core.work_folder import WorkFolder
from tests.tiny_run import content, inputs, outputs, tiny_config
from tests.troubled_logs import DEAF

EXPLOSION = ADJUSTABLE[0]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inputs(tmp_path_factory.mktemp("given")).prompts.parent


def watched() -> RunConfig:
    """A run whose gradient, truncation and KL waver about their thresholds: alarms open, go on, close and come again."""
    wavering = replace(DEAF, patience=1, window=2, max_grad_norm=8.0, max_kl=0.2, max_truncated_fraction=0.8, slow_factor=1 + 1e-9)
    return replace(tiny_config(), health=wavering)


def adjusted() -> RunConfig:
    """A run whose gradient is clipped harder, and whose beta is higher, from the third step on."""
    return replace(tiny_config(max_grad_norm=9.0, beta=0.04), health=replace(DEAF, patience=2, max_policy_kl=1e-12, actions={EXPLOSION: "adjust"}))


RUNS = {"watched": watched(), "adjusted": adjusted()}


class Stopped(Exception):
    """As if the machine went down."""


def go(files: Files, config: RunConfig, *, stop_at: int | None = None, die_at: int | None = None) -> list[Alarm]:
    """Train to the end, until it is asked to stop, or until it dies after a step; the alarms told on the way, without those of the clock."""
    alarms: list[Alarm] = []
    steps: list[int] = []

    def on_step(report: StepReport) -> None:
        steps.append(report.step)
        if report.step == die_at:
            raise Stopped

    files.work.parent.mkdir(parents=True, exist_ok=True)
    stops = {True: Interrupted, False: Stopped}
    if stop_at is None and die_at is None:
        train(files, config, on_step=on_step, on_alarm=alarms.append)
    else:
        with pytest.raises(stops[die_at is None]):
            train(files, config, on_step=on_step, on_alarm=alarms.append, should_stop=lambda: steps[-1:] == [(stop_at or 99) - 1])
    return [alarm for alarm in alarms if alarm.condition not in ("slow_reward", "stall")]


def fresh(root: Path, given: Path) -> Files:
    root.mkdir(parents=True, exist_ok=True)
    return outputs(root, given)


def lines(files: Files) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (files.checkpoint / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def alone(given: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Files, list[Alarm]]]:
    """The runs that nobody interrupts, with the alarms they told."""
    files = {name: fresh(tmp_path_factory.mktemp(name), given) for name in RUNS}
    return {name: (made, go(made, RUNS[name])) for name, made in files.items()}


def test_the_alarms_file_is_what_was_told_carried_to_the_end(alone: dict[str, tuple[Files, list[Alarm]]]) -> None:
    for files, told in alone.values():
        written = json.loads(files.alarms.read_text())
        assert written["num_steps"] == 6
        assert written["num_open"] == sum(alarm["open"] for alarm in written["alarms"])
        moves = ("last_step", "open")
        kept = [{name: value for name, value in alarm.items() if name not in moves} for alarm in written["alarms"]]
        heard = [{name: value for name, value in json.loads(json.dumps(vars_of(alarm))).items() if name not in moves} for alarm in told]
        assert kept == heard, "rows and evidence are those of the step that raised it"
    written = json.loads(alone["watched"][0].alarms.read_text())["alarms"]
    assert len(written) > 2 and not all(alarm["open"] for alarm in written), "some must close for the tests below to mean something"


def vars_of(alarm: Alarm) -> dict[str, Any]:
    return {name: getattr(alarm, name) for name in Alarm.__dataclass_fields__}


def test_the_rows_of_an_alarm_stand_in_the_ledger(alone: dict[str, tuple[Files, list[Alarm]]]) -> None:
    files, told = alone["watched"]
    rollouts, rewards = pl.read_parquet(files.rollouts), pl.read_parquet(files.rewards)
    for alarm in told:
        assert len(alarm.rows) == 3
        for row in alarm.rows:
            key = (pl.col("step") == alarm.first_step) & (pl.col("prompt_id") == row["prompt_id"]) & (pl.col("completion_index") == row["completion_index"])
            assert row["text"] in rollouts.filter(key)["text"]
            assert row["reward"] in rewards.filter(key)["reward"]


def test_alarms_of_the_clock_lie_apart(alone: dict[str, tuple[Files, list[Alarm]]], tmp_path: Path) -> None:
    files, _ = alone["watched"]
    work = WorkFolder(Path(shutil.copytree(files.work, tmp_path / "work")))
    seconds = [1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0]
    work.timings.write_text("".join(json.dumps({"step": step, "seconds": took}) + "\n" for step, took in enumerate(seconds)))
    write_alarms(work, RUNS["watched"], tmp_path / "alarms.json", tmp_path / "clock_alarms.json")
    found = json.loads((tmp_path / "clock_alarms.json").read_text())
    assert found["num_steps"] == 6
    assert [(alarm["condition"], alarm["first_step"]) for alarm in found["alarms"]] == [("stall", 3)]
    conditions = {alarm["condition"] for alarm in json.loads((tmp_path / "alarms.json").read_text())["alarms"]}
    assert conditions
    assert not conditions & {"slow_reward", "stall"}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_run_interrupted_and_resumed_has_the_alarms_and_weights_of_one_left_alone(
    stop: int, name: str, given: Path, alone: dict[str, tuple[Files, list[Alarm]]], tmp_path: Path
) -> None:
    files = fresh(tmp_path, given)
    before = go(files, RUNS[name], stop_at=stop)
    assert all(alarm.first_step <= stop for alarm in before)
    after = go(files, RUNS[name])
    expected, told = alone[name]
    assert content(files) == content(expected)
    assert before + after == told, "each is told once"


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_died_between_checkpoints_tells_its_last_alarms_again(
    name: str, given: Path, alone: dict[str, tuple[Files, list[Alarm]]], tmp_path: Path
) -> None:
    files = fresh(tmp_path, given)
    before = go(files, RUNS[name], die_at=3)
    after = go(files, RUNS[name])
    expected, told = alone[name]
    assert content(files) == content(expected)
    assert before == [alarm for alarm in told if alarm.first_step <= 3]
    assert after == [alarm for alarm in told if alarm.first_step > 2], "the checkpoint of step 2 remembers what came before it"


# ---------------------------------------------------------------------------------------------------------------------- adjusting


def test_an_adjustment_acts_from_the_next_step_on_and_is_written_down(alone: dict[str, tuple[Files, list[Alarm]]], given: Path, tmp_path: Path) -> None:
    files, (alarm,) = alone["adjusted"]
    assert (alarm.condition, alarm.first_step, alarm.action) == (EXPLOSION, 2, "adjust")
    assert alarm.adjustment == pytest.approx({"max_grad_norm": 0.5, "beta": 0.06})
    steps = lines(files)[1:]
    assert [line["max_grad_norm"] for line in steps] == [9.0, 9.0, 0.5, 0.5, 0.5, 0.5]
    assert [line["beta"] for line in steps] == pytest.approx([0.04, 0.04, 0.06, 0.06, 0.06, 0.06])
    plain = fresh(tmp_path, given)
    config = adjusted()
    go(plain, replace(config, health=DEAF))
    assert [line["max_grad_norm"] for line in lines(plain)[1:]] == [9.0] * 6
    digests = [pl.read_parquet(ran.rollouts).group_by("step", maintain_order=True).agg(pl.col("policy_digest").first()) for ran in (files, plain)]
    alike = [first == second for first, second in zip(*(table["policy_digest"].to_list() for table in digests), strict=True)]
    assert alike == [True, True, True, False, False, False], "the first batch that other weights drew is that of step 4"


def test_a_run_with_an_adjustment_is_another_run_and_says_so(given: Path, alone: dict[str, tuple[Files, list[Alarm]]], tmp_path: Path) -> None:
    files, config = fresh(tmp_path, given), adjusted()
    plain = replace(config, health=replace(config.health, actions={}))
    assert run_key(files, config) != run_key(files, plain)
    assert run_key(files, plain) == run_key(files, replace(plain, health=DEAF)), "what only watches names no run"
    assert unchecked_manifest(alone["adjusted"][0].checkpoint)["config"]["health"]["actions"] == {EXPLOSION: "adjust"}
    assert unchecked_manifest(alone["watched"][0].checkpoint)["config"]["health"] == {}


def test_steps_after_an_adjustment_can_be_replayed(alone: dict[str, tuple[Files, list[Alarm]]], given: Path, tmp_path: Path) -> None:
    shutil.copytree(alone["adjusted"][0].checkpoint.parent, tmp_path / "own")
    files = outputs(tmp_path / "own", given)

    def identical(first: int, last: int) -> list[bool]:
        run = Recorded(
            prompts=files.prompts, start=files.start, reference=files.reference, rollouts=files.rollouts, rewards=files.rewards,
            metrics=files.checkpoint / "metrics.jsonl", manifest=unchecked_manifest(files.checkpoint), work=files.work,
        )  # fmt: skip
        return [step.identical for step in replay(run, first, last)]

    assert identical(5, 6) == [True] * 2, "from a checkpoint that was made after it"
    shutil.rmtree(files.work)
    assert identical(1, 6) == [True] * 6, "from before it"


# ------------------------------------------------------------------------------------------------- another verdict on the same steps


def test_a_finished_run_gets_the_verdict_of_edited_thresholds_without_training(
    given: Path, alone: dict[str, tuple[Files, list[Alarm]]], tmp_path: Path
) -> None:
    files = fresh(tmp_path, given)
    deaf = replace(watched(), health=DEAF)
    assert go(files, deaf) == []
    assert json.loads(files.alarms.read_text())["alarms"] == []
    reports: list[StepReport] = []
    train(files, watched(), on_step=reports.append)
    assert reports == []
    assert content(files) == content(alone["watched"][0])


def test_a_shorter_result_of_a_longer_run_has_the_alarms_of_its_own_steps(given: Path, alone: dict[str, tuple[Files, list[Alarm]]], tmp_path: Path) -> None:
    shorter = replace(watched(), grpo=replace(watched().grpo, steps=3))
    files, longer = fresh(tmp_path / "shorter", given), fresh(tmp_path / "longer", given)
    go(files, shorter)
    go(longer, watched(), stop_at=3)
    go(longer, shorter)
    assert longer.alarms.read_bytes() == files.alarms.read_bytes()
    assert json.loads(files.alarms.read_text())["num_steps"] == 3


@pytest.mark.parametrize(("beta", "expected"), [(0.03, 0.06), (0.5, 0.5)])
def test_an_adjustment_never_lowers_a_beta_that_its_controller_has_raised(beta: float, expected: float) -> None:
    trainer = Mock(spec=Trainer, max_grad_norm=9.0, controller=KlController(beta=beta))
    alarm = replace(alarm_of(EXPLOSION, 3, Found("it exploded"), DEAF), adjustment={"max_grad_norm": 0.5, "beta": 0.06})
    adjust(trainer, [alarm])
    assert (trainer.max_grad_norm, trainer.controller.beta) == (0.5, expected)
