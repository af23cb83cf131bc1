"""The page: nothing in it acts, nothing is fetched, and text of models and prompts is shown to the letter."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from assets.paths import Paths
from pipelines.records.files import read_records, write_record
from pipelines.report.content import Alarm, Report
from pipelines.report.examples import ChangedAnswer
from pipelines.report.render import FOLDED, LONGEST, html, shown, write_page
from pipelines.report.sources import ReportError
from tests.pipelines.checkouts import ROOT, copy_checkout
from tests.pipelines.report.conftest import ALARMS
from tests.pipelines.toy_project import NUMBERS
from tests.pipelines.traced_runs import grpo, make_two_runs

TAGS = {
    "html", "head", "meta", "title", "link", "style", "body", "main", "header", "section", "nav", "footer", "h1", "h2", "h3", "p", "div", "span", "b",
    "small", "a", "code", "pre", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "img", "details", "summary",
}  # fmt: skip
ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"
CONTROL = "\x1b[31mred\x00\u202egnirts"


class Page(HTMLParser):
    """What a browser would see: tags, their attributes and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def hostile(finished: Report) -> Report:
    """The same report with markup in the place of all text that is not ours."""
    completion = replace(finished.best[0], prompt=f"prompt {ATTACK}", answer=f"answer {ATTACK}", text=f"text {ATTACK}{CONTROL}", reason=f"reason {ATTACK}")
    said = dict.fromkeys(("condition", "severity", "state", "steps", "message", "evidence", "action", "remedy", "page", "reason"), f"alarm {ATTACK}")
    return replace(
        finished,
        experiment=f"experiment {ATTACK}",
        verdict=f"verdict {ATTACK}",
        identity=[(f"name {ATTACK}", f"value {ATTACK}")],
        alarms=[Alarm(**said, completions=replace(finished.files, rows=[[ATTACK] * 3]))],
        best=[completion],
        changed=[ChangedAnswer("1", ATTACK, ATTACK, f"reference {ATTACK}", f"policy {ATTACK}", None, True)],
        exploit_notes=[ATTACK],
    )


def test_the_page_has_no_script_fetches_nothing_and_acts_on_nothing(finished: Report) -> None:
    page = Page(html(finished))
    assert set(page.tags) <= TAGS
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    addresses = [value or "" for name, value in page.attributes if name in ("src", "href", "srcset", "action", "data", "poster")]
    assert all(address.startswith(("#", "data:image/svg+xml;base64,")) or address == "data:," for address in addresses)
    anchors = {value for name, value in page.attributes if name == "id"}
    assert {address[1:] for address in addresses if address.startswith("#")} <= anchors, "every link of the page leads somewhere in it"
    assert not re.search(r"url\(|@import|https?:", html(finished))
    assert "default-src 'none'" in html(finished), "a browser is told to fetch nothing"


def test_markup_in_texts_names_and_alarms_is_shown_and_not_obeyed(hostile: Report) -> None:
    source = html(hostile)
    page = Page(source)
    assert set(page.tags) <= TAGS
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    text = "".join(page.texts)
    for what in ("experiment", "verdict", "prompt", "answer", "text", "reason", "alarm", "reference", "policy", "name", "value"):
        assert f"{what} {ATTACK}" in text, what
    assert "<script" not in source


def test_characters_that_cannot_be_seen_are_spelt_out(hostile: Report) -> None:
    source = html(hostile)
    assert r"\x1b[31mred\x00\u202egnirts" in "".join(Page(source).texts)
    assert not {"\x1b", "\x00", "\u202e"} & set(source)
    assert shown("two\nlines\tand \ud800 é") == "two\nlines\tand \\ud800 é"


def test_a_long_text_is_folded_after_its_beginning_and_an_endless_one_is_cut(finished: Report) -> None:
    long, endless = "a" * FOLDED + "b" * 400, "c" * (LONGEST + 1_000)
    page = html(replace(finished, best=[replace(finished.best[0], text=long)], worst=[replace(finished.worst[0], text=endless)]))
    assert f'<pre class="text">{"a" * FOLDED}…</pre>' in page
    assert f'<summary>400 more characters</summary><pre class="text">…{"b" * 400}</pre>' in page
    assert page.count("c" * FOLDED) > 0
    assert "c" * LONGEST not in page
    assert "… (1,000 more characters are in the table that it is from)" in page


def test_a_text_of_nothing_is_said_to_be_empty(finished: Report) -> None:
    page = html(replace(finished, best=[replace(finished.best[0], text=""), replace(finished.best[0], text=" \n")]))
    assert '<pre class="text empty">empty</pre>' in page
    assert '<pre class="text empty">white space only</pre>' in page


def test_the_parts_stand_in_their_order(finished: Report) -> None:
    headings = re.findall(r"<h2>(.*?)</h2>", html(finished))
    assert headings == [
        "Held-out evidence", "Made from", "Alarms", "Training", "What else was watched", "Best and worst completions", "Changed answers",
        "Rewards by function", "Exploit battery", "Configuration", "Files", "How it was made",
    ]  # fmt: skip


def test_what_is_missing_is_said_in_its_place(finished: Report) -> None:
    bare = replace(
        finished, evidence=None, heldout=None, alarms=None, timeline=None, pictures=finished.pictures[:4], best=[], worst=[], changed=[],
        changed_words="It has not run yet.", statuses=None, reasons=None, reward_pictures=[], exploits=None, exploit_notes=[],
    )  # fmt: skip
    page = html(bare)
    assert page.count('class="absent"') == 8
    for words in ("has not run yet", "Health was not recorded", "No step has finished yet", "No completion has been scored yet", "has not been tried yet"):
        assert words in page
    assert "No alarm in 4 steps." in html(replace(finished, alarms=[], timeline=None))


def test_settings_that_differ_from_their_defaults_are_marked(finished: Report) -> None:
    steps = next(setting for setting in finished.settings["grpo"] if setting.name == "steps")
    assert (steps.value, steps.default) == ("4", "80")
    assert '<div class="setting changed"><span>steps</span><span class="mono">4<small>default 80</small></span></div>' in html(finished)


def test_the_same_run_gives_the_same_page_of_a_size_to_send(finished: Report) -> None:
    assert html(finished) == html(finished)
    assert len(html(finished).encode()) < 3_000_000


# ------------------------------------------------------------------------------------------------------- as a command


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with two recorded and evaluated runs."""
    root = copy_checkout(tmp_path_factory.mktemp("made"))
    make_two_runs(root)
    for experiment in ("default", "other"):
        paths = Paths(root, experiment)
        (record,) = read_records(paths, "heldout_eval")
        write_record(paths, {**record, "metrics": dict.fromkeys(record["metrics"], NUMBERS)})
    return root


def test_the_command_writes_the_page_and_prints_where(checkout: Path) -> None:
    result = grpo(checkout, "report")
    path = checkout / "reports" / "default.html"
    assert (result.returncode, result.stdout) == (0, f"{path}\n"), result.stderr
    assert result.stderr == "heavy:\n", "it loads neither torch nor a tool"
    page = path.read_text(encoding="utf-8")
    assert "<h1>default</h1>" in page
    assert "Held-out accuracy 43.0% → 99.0% on 500 prompts" in page
    assert "cccccccccccc" in page, "the commit"
    assert "torch 2.13.0" in page
    assert sorted(file.name for file in path.parent.iterdir()) == ["default.html"]


def test_the_command_writes_where_it_is_told_to(checkout: Path, tmp_path: Path) -> None:
    result = grpo(checkout, "report", "--experiment", "other", "--output", str(tmp_path / "mine.html"))
    assert result.returncode == 0, result.stderr
    assert "<h1>other</h1>" in (tmp_path / "mine.html").read_text(encoding="utf-8")


def test_the_command_refuses_what_it_cannot_do_in_a_line(checkout: Path, tmp_path: Path) -> None:
    unknown = grpo(checkout, "report", "--experiment", "nobody")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("Error: 'nobody' is no experiment: there are default, other")
    with pytest.raises(ReportError, match="is no folder: make it first"):
        write_page(tmp_path / "nowhere" / "page.html", "", make_folder=False)


def test_reports_are_not_versioned() -> None:
    assert "/reports/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_the_alarms_of_this_test_are_written_as_the_monitor_writes_them() -> None:
    from grpo_core.health.monitor import Alarm as Recorded

    for alarm in ALARMS["alarms"]:
        assert alarm.keys() <= set(Recorded.__dataclass_fields__)
