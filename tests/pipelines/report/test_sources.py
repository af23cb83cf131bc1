"""Which run a report is about: what lies in the experiment's folder, a training under way, or what the cache still has."""

import json
import os
import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from assets.paths import Paths
from pipelines.records.dvc_cache import object_path
from pipelines.records.files import read_records, seal
from pipelines.records.runs import RunError
from pipelines.report.content import gather
from pipelines.report.render import html
from pipelines.report.sources import ReportError, find_sources
from pipelines.resume_state import FINISHED
from tests.pipelines.checkouts import copy_checkout
from tests.pipelines.report.conftest import ALARMS, write_alarms
from tests.pipelines.traced_runs import make_two_runs, rewritten


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the recorded runs `default` and `other`."""
    root = copy_checkout(tmp_path_factory.mktemp("made"))
    make_two_runs(root)
    return root


@pytest.fixture
def checkout(made: Path, tmp_path: Path) -> Path:
    """A copy in which a test may change things."""
    return Path(shutil.copytree(made, tmp_path / "checkout"))


def test_a_recorded_run_comes_with_its_records_and_checked_files(made: Path) -> None:
    found = find_sources(made, "other")
    assert list(found.records) == ["run_config", "prompts", "sft_checkpoint", "reference_checkpoint", "grpo_checkpoint", "heldout_eval"]
    assert found.made_from.code["commit"] == "c" * 40
    assert found.summary is not None
    assert found.rewards is not None
    assert not found.under_way
    assert (found.exploits, found.alarms) == (None, None), "neither was recorded by this run"


def test_a_file_that_was_altered_is_not_shown(checkout: Path) -> None:
    rewritten(Paths(checkout).rewards, reward=pl.lit(5.0))
    found = find_sources(checkout, "default")
    assert found.rewards is None
    assert found.files["data/rewards/default/rewards.parquet"] is None


def test_what_was_removed_from_the_workspace_comes_from_the_cache(checkout: Path) -> None:
    paths = Paths(checkout)
    (record,) = read_records(paths, "grpo_checkpoint")
    kept = object_path(checkout, record["outs"]["data/rewards/default/rewards.parquet"])
    kept.parent.mkdir(parents=True)
    paths.rewards.rename(kept)
    shutil.rmtree(paths.grpo_checkpoint)
    found = find_sources(checkout, "default")
    assert found.run_key == record["run_key"]
    assert found.rewards is not None
    assert found.files["data/rewards/default/rewards.parquet"] == kept
    assert found.metrics.is_empty(), "the curves lay in the checkpoint's folder, which is gone"


def test_held_out_answers_of_other_weights_are_not_evidence(spoilt: Paths) -> None:
    assert find_sources(spoilt.root, "default").summary is not None
    rewritten(spoilt.heldout_completions, policy_digest=pl.lit("0" * 16))
    found = find_sources(spoilt.root, "default")
    assert (found.heldout, found.summary) == (None, None)


def test_alarms_of_the_clock_stand_after_those_of_the_metrics(spoilt: Paths) -> None:
    stall = {**ALARMS["alarms"][0], "condition": "stall"}
    write_alarms(spoilt.clock_alarms, {"num_steps": 4, "num_open": 0, "alarms": [stall]})
    alarms = find_sources(spoilt.root, "default").alarms
    assert alarms is not None
    assert [alarm["condition"] for alarm in alarms["alarms"]] == ["weak_signal", "early_explosion", "stall"]
    spoilt.alarms.unlink()
    assert find_sources(spoilt.root, "default").alarms is None, "a run without the file was not watched"


def test_of_trainings_that_have_not_ended_the_newest_is_shown_and_a_finished_run_before_them(spoilt: Paths) -> None:
    (work,) = (spoilt.work / "grpo_checkpoint" / "default").iterdir()
    older = Path(shutil.copytree(work, work.with_name("older")))
    assert not find_sources(spoilt.root, "default").under_way
    shutil.rmtree(spoilt.grpo_checkpoint)
    for folder in (older, work):
        (folder / "metrics.jsonl").touch()
    assert find_sources(spoilt.root, "default").run_key == work.name
    (work / FINISHED).write_text(json.dumps({"md5": "0", "step": 4}))
    found = find_sources(spoilt.root, "default")
    assert (found.run_key, found.under_way) == ("older", True)


def test_of_a_halted_training_the_alarm_is_shown_until_it_has_come_past_it(spoilt: Paths) -> None:
    (work,) = (spoilt.work / "grpo_checkpoint" / "default").iterdir()
    shutil.rmtree(spoilt.grpo_checkpoint)
    for step in (3, 5):
        write_alarms(
            work / "halted" / f"step-{step:06d}" / "alarms.json", {**ALARMS, "alarms": [{**ALARMS["alarms"][1], "first_step": step, "last_step": step}]}
        )
    found = find_sources(spoilt.root, "default")
    assert found.halted_at == 5
    assert found.alarms is not None
    assert [(alarm["condition"], alarm["first_step"]) for alarm in found.alarms["alarms"]][-1] == ("early_explosion", 5)
    assert gather(found).verdict.startswith("Training was halted at step 5 and is back at step 4 of 4.")
    shutil.rmtree(work / "halted" / "step-000005")
    going = find_sources(spoilt.root, "default")
    assert going.halted_at is None
    assert gather(going).verdict.startswith("Training has not ended: step 4 of 4.")


def test_an_experiment_that_was_never_trained_is_refused(made: Path) -> None:
    params = (made / "params.yaml").read_text()
    (made / "params.yaml").write_text(params.replace("experiments:\n", "experiments:\n  small: {}\n"))
    try:
        with pytest.raises(RunError, match="experiment 'small' has not been trained here: `grpo run --experiment small` does it"):
            find_sources(made, "small")
    finally:
        (made / "params.yaml").write_text(params)


@pytest.mark.parametrize("name", ["defalt", "1a2b3c4d"])
def test_a_name_that_is_no_experiment_is_refused_though_other_commands_take_run_keys(name: str, made: Path) -> None:
    hint = "did you mean 'default'" if name == "defalt" else "there are default, other"
    with pytest.raises(ReportError, match=f"'{name}' is no experiment: {hint}"):
        find_sources(made, name)
    (record,) = read_records(Paths(made), "grpo_checkpoint")
    with pytest.raises(ReportError, match="is no experiment"):
        find_sources(made, record["run_key"])


@pytest.mark.parametrize(
    ("part", "lost"),
    [
        ("alarms", "alarms"), ("rewards", "rewards"), ("rollout_batches", "rollouts"), ("exploits", "exploits"), ("select_completions", "select"),
        ("prompts", "prompts"), ("heldout_completions", "heldout"), ("heldout_summary", "summary"), ("grpo_checkpoint", "metrics"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_costs_its_own_part_alone_and_is_named(part: str, lost: str, spoilt: Paths) -> None:
    whole = find_sources(spoilt.root, "default")
    path = getattr(spoilt, part)
    path = path / "metrics.jsonl" if path.is_dir() else path
    path.write_bytes(b"no such thing\n")
    found = find_sources(spoilt.root, "default")
    (sentence,) = found.unreadable
    assert sentence.startswith(f"{path.relative_to(spoilt.root)} cannot be read (")
    for name in ("alarms", "rewards", "rollouts", "exploits", "select", "prompts", "heldout", "summary", "metrics"):
        value = getattr(found, name)
        is_lost = value is None or (name == "metrics" and value.is_empty())
        assert is_lost == (name == lost), name
        assert getattr(whole, name) is not None
    page = html(gather(found))
    assert str(path.relative_to(spoilt.root)) in page


def test_a_table_that_is_cut_short_is_no_ledger(spoilt: Paths) -> None:
    whole = spoilt.rollout_batches.read_bytes()
    spoilt.rollout_batches.write_bytes(whole[:400] + bytes(200) + whole[600:])
    found = find_sources(spoilt.root, "default")
    assert found.rollouts is None
    assert "rollouts.parquet cannot be read" in found.unreadable[0]


def test_of_a_training_under_way_a_shard_that_cannot_be_read_is_named_and_left_out(spoilt: Paths) -> None:
    (work,) = (spoilt.work / "grpo_checkpoint" / "default").iterdir()
    shutil.rmtree(spoilt.grpo_checkpoint)
    for kind in ("rewards", "rollouts"):
        (work / kind / "step-000002.parquet").write_bytes(b"")
    found = find_sources(spoilt.root, "default")
    assert found.rewards is not None and found.rollouts is not None
    assert sorted(found.rewards["step"].unique()) == [1, 3, 4]
    assert sorted(found.rollouts.collect()["step"].unique()) == [1, 3, 4]
    assert [sentence.partition(" cannot")[0].rpartition("default/")[2].partition("/")[2] for sentence in found.unreadable] == [
        "rewards/step-000002.parquet", "rollouts/step-000002.parquet",
    ]  # fmt: skip


def test_alarms_that_were_altered_since_are_shown_as_they_were_recorded(checkout: Path) -> None:
    paths = Paths(checkout)
    (path,) = [
        paths.provenance("grpo_checkpoint") / name for name in os.listdir(paths.provenance("grpo_checkpoint")) if re.fullmatch(r"[0-9a-f]{16}.json", name)
    ]
    record = {name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"}
    record["metrics"] = {**record["metrics"], "data/health/default/alarms.json": ALARMS}
    path.write_text(json.dumps({**record, "sha256": seal(record)}))
    write_alarms(paths.alarms, ALARMS)
    assert find_sources(checkout, "default").unreadable == []
    write_alarms(paths.alarms, {**ALARMS, "num_open": 0, "alarms": []})
    found = find_sources(checkout, "default")
    assert found.alarms == ALARMS
    assert found.unreadable == ["data/health/default/alarms.json was altered since it was written; shown is what was recorded: `dvc repro` writes it again"]


def test_a_halt_that_came_before_stands_at_the_head(spoilt: Paths) -> None:
    halt = {"step": 3, "conditions": ["early_explosion"], "messages": ["it exploded"]}
    write_alarms(spoilt.clock_alarms, {"num_steps": 4, "num_open": 0, "halts": [halt], "alarms": []})
    assert gather(find_sources(spoilt.root, "default")).verdict.endswith(
        "1 alarm is open: early explosion. Training was halted before, at step 3 (early_explosion)."
    )
