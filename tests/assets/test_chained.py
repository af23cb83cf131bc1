"""Files that only grow: what was written stays provable, and two writers lose nothing."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from assets import chained
from assets.looks import known_number, number_of, read_looks
from assets.paths import Paths


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        chained.append(tmp_path / "log.jsonl", {"name": name})
    return tmp_path / "log.jsonl"


def test_records_are_read_as_they_were_written(path: Path) -> None:
    records = chained.read(path)
    assert [record["name"] for record in records] == ["a", "b", "c"]
    assert records[0]["previous"] == "0" * 64
    assert chained.read(path.with_name("none")) == []
    path.with_name("empty").touch()
    assert chained.read(path.with_name("empty")) == []


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda lines: [lines[0].replace("a", "x", 1), *lines[1:]], "line 2 does not follow"),
        (lambda lines: [lines[0], lines[2]], "line 2 does not follow"),
        (lambda lines: lines[1:], "line 1 does not follow"),
        (lambda lines: [lines[0], lines[0], *lines[1:]], "line 2 does not follow"),
        (lambda lines: [lines[0], "{", *lines[2:]], "line 2 is not JSON"),
        (lambda lines: [lines[0], "[]", *lines[2:]], "line 2 does not follow"),
    ],
)
def test_a_line_that_was_changed_added_or_taken_out_is_seen_and_nothing_is_added(spoil: object, line: str, path: Path) -> None:
    lines = spoil(path.read_text().splitlines())  # type: ignore[operator]
    path.write_text("".join(f"{one}\n" for one in lines))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"log.jsonl, {line}"):
        chained.read(path)
    with pytest.raises(ValueError, match=line):
        chained.append(path, {"name": "d"})
    assert path.read_bytes() == before


def test_a_line_that_was_cut_is_seen(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="its last line was cut"):
        chained.read(path)


def test_writers_at_the_same_time_lose_nothing(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: chained.append(path, {"name": number}), range(40)))
    assert sorted(str(record["name"]) for record in chained.read(path)) == sorted([*map(str, range(40)), "a", "b", "c"])


def test_a_policy_keeps_the_number_of_its_first_look(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    assert known_number(paths, "x" * 64) == (1, 0)
    assert not paths.looks.exists(), "asking is not looking"
    assert [number_of(paths, sha256 * 64, experiment="default") for sha256 in "abcab"] == [1, 2, 3, 1, 2]
    assert known_number(paths, "b" * 64) == (2, 3)
    assert known_number(paths, "d" * 64) == (4, 3)
    assert [look["weights_sha256"][0] for look in read_looks(paths.looks)] == ["a", "b", "c"]
    assert json.loads(paths.looks.read_text().splitlines()[0])["experiment"] == "default"
