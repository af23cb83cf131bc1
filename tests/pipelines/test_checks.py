"""What an asset's checks say, and that they say it before a failed run ends."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from assets.page import Chart, Markdown, Table
from assets.paths import Paths
from pipelines.checks import alarms_of, check_specs, contract_result, halt_results, health_results, in_sync_results, stage_results
from pipelines.graph import Target, load_graph
from pipelines.pages import WORD_JOINER, escaped, markdown_table, metadata_value
from pipelines.params import ROOT
from tests.pipelines.toy_project import THIRD_PARTY_WARNINGS, dvc, edit, make_project

pytestmark = [pytest.mark.filterwarnings(warning) for warning in THIRD_PARTY_WARNINGS]

VIOLATED = {
    "noun": "rewards",
    "success": False,
    "num_rows": 80,
    "summary": "contract of rewards violated: reward is finite: 2 rows; e.g. step 4 value nan",
    "expectations": [
        {
            "why": "reward is finite",
            "success": False,
            "unexpected_count": 2,
            "rows": [{"step": 4, "value": "nan"}, {"step": 5, "value": "a|b"}],
            "observed": None,
        },
        {"why": "every group is complete", "success": False, "unexpected_count": 0, "rows": [], "observed": "7 of 8"},
        {"why": "steps count from 1", "success": True, "unexpected_count": 0, "rows": [], "observed": None},
    ],
}


def test_a_violated_contract_shows_which_rows_and_why() -> None:
    result = contract_result("rewards", VIOLATED)
    assert (result.passed, result.check_name, result.asset_key) == (False, "contract", dg.AssetKey("rewards"))
    assert result.description == VIOLATED["summary"]
    assert result.metadata["violations"].value == (
        "**reward is finite** (2 rows)\n\n| step | value |\n| --- | --- |\n| 4 | nan |\n| 5 | a\\|b |\n\n**every group is complete**\n\nfound: 7 of 8"
    )


def alarm(condition: str, severity: str, **fields: Any) -> dict[str, Any]:
    said = {"first_step": 3, "last_step": 7, "open": True, "message": "a<b>", "remedy": "do it", "rows": [{"text": "x"}]}
    return {"condition": condition, "severity": severity, **said, **fields}


WARNING, GRAVE = alarm("truncation", "warning"), alarm("early_explosion", "alarm", first_step=5)


def training(root: Path, alarms: Sequence[Mapping[str, Any]] | None) -> Target:
    """The target that trains, with these alarms written down; none were where they are None."""
    (target,) = [target for target in load_graph(ROOT).targets if target.name == "grpo_checkpoint@default"]
    path = root / "data" / "health" / "default" / "alarms.json"
    path.parent.mkdir(parents=True)
    if alarms is not None:
        path.write_text(json.dumps({"num_steps": 9, "num_open": 0, "alarms": alarms}), encoding="utf-8")
    return target


@pytest.mark.parametrize(
    ("alarms", "passed", "severity", "description"),
    [
        ([], True, "WARN", "default: no alarm is open"),
        ([{**WARNING, "open": False}, {**GRAVE, "open": False}], True, "WARN", "default: no alarm is open"),
        ([WARNING], False, "WARN", "default: truncation since step 3: a<b>"),
        ([WARNING, GRAVE], False, "ERROR", "default: truncation since step 3: a<b>; early_explosion since step 5: a<b>"),
        ([WARNING, {**GRAVE, "open": False}], False, "WARN", "default: truncation since step 3: a<b>"),
    ],
)
def test_an_open_alarm_fails_the_check_of_health(alarms: list[dict[str, Any]], passed: bool, severity: str, description: str | None, tmp_path: Path) -> None:
    (result,) = health_results(tmp_path, training(tmp_path, alarms))
    assert (result.check_name, result.asset_key, result.passed) == ("healthy", dg.AssetKey("grpo_checkpoint"), passed)
    assert (result.severity, result.description) == (dg.AssetCheckSeverity[severity], description)
    assert (result.metadata["alarms"].value, result.metadata["open"].value) == (len(alarms), sum(one["open"] for one in alarms))
    seen = str(result.metadata["what was seen"].value)
    assert seen == "no alarm" if not alarms else all(one["condition"] in seen.replace("\\", "") for one in alarms)
    assert "<b>" not in seen, "what a rule says is no markup"


def test_health_is_told_only_of_a_training_that_wrote_it_and_not_of_an_earlier_one(tmp_path: Path) -> None:
    target = training(tmp_path, None)
    assert list(health_results(tmp_path, target, since=1.0)) == [], "it failed before there was anything to say"
    (unknown,) = health_results(tmp_path, target)
    assert (unknown.passed, unknown.severity, unknown.description) == (False, dg.AssetCheckSeverity.WARN, "default: health was not recorded")
    path = tmp_path / "data" / "health" / "default" / "alarms.json"
    path.write_text(json.dumps({"alarms": [GRAVE]}), encoding="utf-8")
    assert [result.passed for result in health_results(tmp_path, target, since=path.stat().st_mtime)] == [False]
    assert list(health_results(tmp_path, target, since=path.stat().st_mtime + 1)) == []
    for other in load_graph(ROOT).targets:
        assert alarms_of(other) == ("data/health/default/alarms.json" if other.name == target.name else None)


def test_a_halt_that_came_before_the_result_is_told_and_fails_nothing(tmp_path: Path) -> None:
    target = training(tmp_path, [])
    clock = Paths(tmp_path).clock_alarms
    clock.parent.mkdir(parents=True)
    clock.write_text(json.dumps({"halts": [{"step": 7, "conditions": ["early_explosion", "truncation"], "messages": []}], "alarms": []}))
    (result,) = health_results(tmp_path, target)
    assert (result.passed, result.description) == (True, "default: halted before, at step 7 (early_explosion, truncation)")


def test_a_halt_is_an_error_with_the_alarms_that_asked_for_it(tmp_path: Path) -> None:
    target = training(tmp_path, None)
    kept = Paths(tmp_path).work / "grpo_checkpoint" / "default" / "0123" / "halted"
    for step, alarms in ((4, [GRAVE]), (9, [WARNING])):
        path = kept / f"step-{step:06d}" / "alarms.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"alarms": alarms}))
        os.utime(path, (step, step))
    (result,) = halt_results(tmp_path, target, since=5)
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert result.description == "default: truncation since step 3: a<b>; halted at step 9"
    assert list(halt_results(tmp_path, target, since=10)) == []
    others = [other for other in load_graph(ROOT).targets if other.name != target.name]
    assert [result for other in others for result in halt_results(tmp_path, other, since=0)] == []


def test_a_stage_has_the_checks_that_it_writes_the_outcome_of(tmp_path: Path) -> None:
    graph = load_graph(ROOT)
    specs = {target.stage: {(spec.asset_key.to_user_string(), spec.name, spec.blocking) for spec in check_specs(target)} for target in graph.targets}
    assert specs.pop("grpo_checkpoint") == {
        ("rollout_batches", "contract", True), ("rewards", "contract", True), ("grpo_checkpoint", "healthy", False),
    }  # fmt: skip
    conditions = ("disjoint", "better", "guards", "health", "reward_audit", "blind_verdict")
    assert specs.pop("promotion_report") == {("promotion_report", name, False) for name in conditions}
    assert {name for checks in specs.values() for _, name, _ in checks} == {"contract"}
    target = training(tmp_path, [WARNING])
    for noun in ("rollout_batches", "rewards"):
        path = tmp_path / (target.contract_of(noun) or "")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**VIOLATED, "noun": noun}), encoding="utf-8")
    written = [(result.asset_key, result.check_name) for result in stage_results(tmp_path, target)]
    assert written == [(spec.asset_key, spec.name) for spec in check_specs(target)]


def test_every_condition_of_the_gate_is_a_check_with_its_numbers(tmp_path: Path) -> None:
    (target,) = [target for target in load_graph(ROOT).targets if target.name == "promotion_report@default"]
    path = Paths(tmp_path).promotion_report
    path.parent.mkdir(parents=True)
    states = {"disjoint": True, "better": False, "blind_verdict": None}
    conditions = [{"name": name, "passed": passed, "summary": f"{name}!", "numbers": {"low": 0.1}} for name, passed in states.items()]
    path.write_text(json.dumps({"conditions": conditions}))
    found = {result.check_name: result for result in stage_results(tmp_path, target)}
    assert {name: (result.passed, result.severity.value) for name, result in found.items()} == {
        "disjoint": (True, "WARN"), "better": (False, "ERROR"), "blind_verdict": (False, "WARN"),
    }  # fmt: skip
    assert found["better"].description == "default: better!"
    assert found["better"].metadata["numbers"].value == {"low": 0.1}
    assert list(stage_results(tmp_path, target, since=path.stat().st_mtime + 1)) == []


def test_in_sync_is_a_warning_that_names_the_key(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    dvc(root, "repro", "--quiet")
    edit(root, "params.yaml", "\n  default: {}", "\n  default: {blind_review_set: {num_pairs: 3}}")
    graph = load_graph(root)
    rewards, review = in_sync_results(root, graph, ["rewards", "blind_review_set"], ["default"])
    assert rewards.passed
    assert not review.passed
    assert review.severity is dg.AssetCheckSeverity.WARN
    assert review.description == "blind_review_set.num_pairs changed from 30 to 3"
    edit(root, "params.yaml", "\n  clip_high: ", "\n  clip_hihg: ")
    (result,) = in_sync_results(root, graph, ["rewards"], ["default"])
    assert not result.passed
    assert "clip_high" in (result.description or "")


def test_every_value_of_a_page_has_a_form_in_dagster() -> None:
    table = metadata_value(Table(pl.DataFrame({"prompt": ["1+1=", "x"], "reward": [0.123456, 1.0]}), max_rows=1))
    assert table == dg.MetadataValue.md("| prompt | reward |\n| --- | --- |\n| 1\\+1\\= | 0.1235 |")
    assert metadata_value(Chart(b"png")) == dg.MetadataValue.md("![chart](data:image/png;base64,cG5n)")
    assert metadata_value(Markdown("**a**")) == dg.MetadataValue.md("**a**")
    assert metadata_value(3) == dg.MetadataValue.int(3)
    assert metadata_value(0.5) == dg.MetadataValue.float(0.5)
    assert metadata_value("a") == dg.MetadataValue.text("a")
    assert metadata_value(Path("/x")) == dg.MetadataValue.path("/x")


def test_a_table_of_model_text_stays_a_table() -> None:
    rows: list[dict[str, object]] = [{"text": "<think>a\nb</think>|" + "x" * 300}, {"other": None}]
    lines = markdown_table(rows).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| &lt;think\\>a<br>b&lt;\\/think\\>\\|xxx")
    assert "…" in lines[2]
    assert markdown_table([]) == "(no rows)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("![x](http://evil/p.png)", "\\!\\[x\\]\\(http\\:~\\/\\/evil\\/p\\.png\\)"),
        ("[click](HTTPS://evil)", "\\[click\\]\\(HTTPS\\:~\\/\\/evil\\)"),
        ("<http://evil>", "&lt;http\\:~\\/\\/evil\\>"),
        ("www.evil.org a@evil.org", "www~\\.evil\\.org a~\\@evil\\.org"),
        ("`a` &lt; <b>", "\\`a\\` &amp;lt\\; &lt;b\\>"),
        ("a\n# b\r\n| c", "a<br>\\# b<br>\\| c"),
        ("\\|", "\\\\\\|"),
    ],
)
def test_text_of_models_and_data_is_never_markup(text: str, shown: str) -> None:
    shown = shown.replace("~", WORD_JOINER)
    assert escaped(text) == shown
    assert markdown_table([{text: text}]).splitlines()[::2] == [f"| {shown} |"] * 2
    outcome = {"why": text, "success": False, "unexpected_count": 0, "rows": [], "observed": text}
    result = contract_result("rewards", {"success": False, "num_rows": 1, "summary": "", "expectations": [outcome]})
    assert result.metadata["violations"].value == f"**{shown}**\n\nfound: {shown}"


def test_a_reason_is_never_markup(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    dvc(root, "repro", "--quiet")
    edit(root, "params.yaml", '\n  template: "{prompt}" ', "\n  template: '![x](http://evil){prompt}' ")
    (result,) = in_sync_results(root, load_graph(root), ["prompts"], ["default"])
    assert escaped("![x](http://evil)") in str(result.metadata["reasons"].value)
