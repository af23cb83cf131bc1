"""Which run a report is about: what lies in the experiment's folder, a training under way, or what the cache still has."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from assets.paths import Paths
from pipelines.records.dvc_cache import object_path
from pipelines.records.files import read_records
from pipelines.records.runs import RunError
from pipelines.report.content import gather
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


def test_an_experiment_that_was_never_trained_is_refused_with_those_that_were(made: Path) -> None:
    with pytest.raises(RunError, match="trained experiments here are default, other"):
        find_sources(made, "nobody")


def test_files_that_cannot_be_read_are_named(spoilt: Paths) -> None:
    spoilt.alarms.write_text("{")
    with pytest.raises(ReportError, match=r"alarms\.json is not JSON .*: delete it"):
        find_sources(spoilt.root, "default")
    spoilt.alarms.unlink()
    spoilt.rewards.write_bytes(b"no parquet")
    with pytest.raises(ReportError, match=r"a table of experiment 'default' cannot be read .*`grpo verify`"):
        find_sources(spoilt.root, "default")
