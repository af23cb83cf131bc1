"""The gate on a tiny lifecycle: what it says without a champion, with one, and once the policy is the champion."""

import json
import shutil
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from assets import blind_review_verdict, champion_eval, promotion_report
from assets.champion import champion_of
from assets.looks import number_of, read_looks
from assets.page import Chart, Table
from assets.paths import Paths
from assets.promotion_report import make_report
from grpo_core.config import PromotionConfig, RunConfig
from pipelines.checks import CONDITIONS
from tests.assets.lifecycle import ignore, lifecycle_config, replace_table


def config(**promotion: Any) -> RunConfig:
    return replace(lifecycle_config(), promotion=PromotionConfig(**{"require_verdict": False, **promotion}))


def made(paths: Paths, wanted: RunConfig | None = None) -> dict[str, Any]:
    wanted = wanted or config()
    for noun in (blind_review_verdict, champion_eval, promotion_report):
        noun.produce(paths, wanted, ignore)
    return dict(json.loads(paths.promotion_report.read_text(encoding="utf-8")))


def grade(paths: Paths, model: str, correct: bool) -> None:
    table = pl.read_parquet(paths.heldout_completions)
    replace_table(paths.heldout_completions, table.with_columns(correct=pl.when(pl.col("model") == model).then(pl.lit(correct)).otherwise("correct")))


def calm(paths: Paths) -> None:
    alarms = json.loads(paths.alarms.read_text())
    paths.alarms.write_text(json.dumps({**alarms, "alarms": [{**alarm, "open": False} for alarm in alarms["alarms"]]}))


def crown(paths: Paths, folder: str) -> None:
    """Make a checkpoint of the lifecycle the champion."""
    shutil.copytree(getattr(paths, folder), paths.champion_model)
    weights = json.loads((paths.champion_model / "manifest.json").read_text())["files"]["model.safetensors"]
    paths.champion_record.write_text(json.dumps({"version": 3, "weights_sha256": weights, "experiment": "default"}))


def states(report: dict[str, Any]) -> dict[str, bool | None]:
    return {condition["name"]: condition["passed"] for condition in report["conditions"]}


def test_every_condition_is_reported_as_the_checks_name_it_and_the_same_files_give_the_same_report(spoilt: Paths) -> None:
    report = made(spoilt)
    assert list(states(report)) == list(CONDITIONS)
    assert (report["against"]["model"], report["against"]["version"], report["number"], report["policies"], report["level"]) == ("reference", 0, 1, 1, 0.05)
    assert json.loads(json.dumps(make_report(spoilt, config()))) == report
    assert set(report["inputs"]) >= {
        "data/prompts/prompts.parquet",
        "data/heldout_eval/default/completions.parquet",
        "data/champion_eval/default/completions.parquet",
    }
    assert "data/champion/looks.jsonl" not in report["inputs"], "another candidate's look changes nothing of this report"


def test_a_policy_that_is_better_and_well_passes_and_waits_for_people_where_they_are_asked(spoilt: Paths) -> None:
    grade(spoilt, "policy", True)
    grade(spoilt, "reference", False)
    calm(spoilt)
    report = made(spoilt)
    assert (report["status"], set(states(report).values())) == ("passed", {True})
    waiting = made(spoilt, config(require_verdict=True))
    assert (waiting["status"], waiting["summary"], states(waiting)["blind_verdict"]) == ("pending", "waits for: blind_verdict", None)
    grade(spoilt, "policy", False)
    worse = made(spoilt)
    assert (worse["status"], worse["summary"]) == ("failed", "failed: better")


def test_an_evaluation_is_a_look_whether_a_report_follows_or_not(spoilt: Paths) -> None:
    weights = json.loads((spoilt.grpo_checkpoint / "manifest.json").read_text())["files"]["model.safetensors"]
    assert [look["weights_sha256"] for look in read_looks(spoilt.looks)] == [weights], "the lifecycle's own"
    spoilt.looks.unlink()
    made(spoilt)
    assert [look["weights_sha256"] for look in read_looks(spoilt.looks)] == [weights], "an evaluation that was restored is counted by the report"


def test_a_candidate_that_comes_later_must_show_more(spoilt: Paths) -> None:
    spoilt.looks.unlink()
    for number in range(4):
        number_of(spoilt, f"{number}" * 64)
    report = made(spoilt)
    assert (report["number"], report["policies"], report["level"]) == (5, 5, 0.002)


def test_against_a_champion_its_own_answers_count(spoilt: Paths) -> None:
    crown(spoilt, "reference_checkpoint")
    report = made(spoilt)
    assert report["against"] == {"model": "champion", "version": 3, "weights_sha256": champion_of(spoilt)["weights_sha256"]}
    answers, own = pl.read_parquet(spoilt.champion_completions), pl.read_parquet(spoilt.heldout_completions).filter(pl.col("model") == "reference")
    assert answers["text"].to_list() == own["text"].to_list(), "the reference's weights answer as they did, with the same random numbers"
    assert set(answers["model"]) == {"champion"}
    page = champion_eval.describe(spoilt)
    assert page["version"] == 3 and isinstance(page["answers"], Table)


def test_a_policy_that_is_the_champion_already_is_said_to_be(spoilt: Paths) -> None:
    crown(spoilt, "grpo_checkpoint")
    report = made(spoilt)
    assert (report["status"], report["summary"]) == ("champion", "this policy is the champion")
    assert states(report)["better"] is False, "it is not better than itself"


def test_an_experiment_that_was_refilled_for_another_champion_must_be_refilled(spoilt: Paths) -> None:
    grade(spoilt, "policy", True)
    grade(spoilt, "reference", False)
    report = made(spoilt, config(champion="a" * 64))
    assert states(report)["better"] is False
    assert "is to be measured against the champion aaaaaaaaaaaa" in report["conditions"][1]["summary"]
    crown(spoilt, "reference_checkpoint")
    assert "is to be measured" not in made(spoilt, config(champion=champion_of(spoilt)["weights_sha256"]))["conditions"][1]["summary"]


def test_a_champion_whose_weights_are_others_is_refused(spoilt: Paths) -> None:
    crown(spoilt, "reference_checkpoint")
    record = champion_of(spoilt)
    spoilt.champion_record.write_text(json.dumps({**record, "weights_sha256": "0" * 64}))
    with pytest.raises(ValueError, match=r"does not hold the champion of champion.json \(version 3\): `dvc checkout data/champion/model.dvc`"):
        champion_eval.produce(spoilt, config(), ignore)


def test_prompts_that_share_a_passage_with_training_are_left_out_and_listed(spoilt: Paths) -> None:
    story = "a farmer has seventeen red apples and gives four of them to each of his sons"
    table = pl.read_parquet(spoilt.prompts)
    chosen = [table.filter(pl.col("split") == split)["prompt_id"][0] for split in ("heldout", "train")]
    replace_table(spoilt.prompts, table.with_columns(prompt=pl.when(pl.col("prompt_id").is_in(chosen)).then(pl.lit(story)).otherwise("prompt")))
    report = make_report(spoilt, config()) if spoilt.champion_completions.is_file() else made(spoilt)
    assert [row["heldout_id"] for row in report["dropped"]] == chosen[:1]
    assert states(report)["disjoint"] is False, "the whole text is the same"


def test_its_page_is_the_proposal(spoilt: Paths) -> None:
    crown(spoilt, "reference_checkpoint")
    shutil.copy(spoilt.grpo_checkpoint / "metrics.jsonl", spoilt.champion_model)
    report = made(spoilt)
    page = promotion_report.describe(spoilt)
    conditions = page["conditions"]
    assert isinstance(conditions, Table) and conditions.frame["condition"].to_list() == list(CONDITIONS)
    assert set(conditions.frame["state"]) <= {"holds", "fails", "waits"}
    assert isinstance(page["curves"], Chart)
    assert page["held_out_looks"] == "policy number 1 of 1 that were looked at: held to a level of 0.05"
    assert str(page["measured_against"]).startswith(f"champion {report['against']['weights_sha256'][:12]}")
