"""What an asset's checks say, and that they say it before a failed run ends."""

from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from assets.page import Chart, Markdown, Table
from pipelines.checks import contract_result, in_sync_results
from pipelines.graph import load_graph
from pipelines.pages import WORD_JOINER, escaped, markdown_table, metadata_value
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
