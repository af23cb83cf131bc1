"""Votes are kept, in order, and never changed."""

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from assets.paths import Paths
from assets.review_votes import SCHEMA, read_votes
from pipelines.review.answers import Answer
from pipelines.review.store import VoteStore

VOTE = Answer("preference", 0, "left", "clearer", ["wrong"], [], 2.5)


def store(paths: Paths) -> VoteStore:
    return VoteStore(paths.votes_database, paths.blind_review_votes)


def given(paths: Paths, *choices: str, reviewer: str = "anna") -> None:
    """Answers about positions 0, 1, ..., and the store closed."""
    votes = store(paths)
    for position, choice in enumerate(choices):
        votes.add("digest", reviewer, f"id{position}", Answer("preference", position, choice))
    votes.close()


def test_a_vote_is_in_both_files_as_it_was_given(paths: Paths) -> None:
    votes = store(paths)
    votes.add("digest", "anna", "id0", VOTE)
    found = read_votes(paths.blind_review_votes)
    assert found.drop("voted_at_ms").rows() == [(1, "digest", "anna", 0, "id0", "preference", "left", "clearer", ["wrong"], [], 2.5)]
    assert dict(found.schema) == SCHEMA
    votes.close()
    with closing(store(paths)) as again:
        assert again.standing("digest", "anna").equals(found)


@pytest.mark.parametrize(
    "statement", ["UPDATE votes SET choice = 'right'", "DELETE FROM votes", "INSERT OR REPLACE INTO votes SELECT * FROM votes WHERE vote = 1"]
)
def test_the_table_of_votes_only_grows(paths: Paths, statement: str) -> None:
    given(paths, "left")
    with closing(sqlite3.connect(paths.votes_database)) as database, pytest.raises(sqlite3.IntegrityError, match="a vote is never"):
        database.execute(statement)


def test_undoing_goes_back_answer_by_answer_in_the_order_given(paths: Paths) -> None:
    given(paths, "left", "right", "tie")
    votes = store(paths)
    votes.add("digest", "anna", "id0", Answer("preference", 0, "both_bad"))
    votes.add("digest", "ben", "id0", VOTE)
    left = []
    while votes.undo("digest", "anna"):
        left.append(votes.standing("digest", "anna")["position"].to_list())
    assert left == [[1, 2], [1], []]
    assert len(votes.standing("digest", "ben")) == 1
    assert len(read_votes(paths.blind_review_votes)) == 8
    votes.close()


def test_votes_of_other_pairs_do_not_stand(paths: Paths) -> None:
    given(paths, "left")
    votes = store(paths)
    assert len(votes.standing("another digest", "anna")) == 0
    votes.close()


def test_a_lost_database_is_made_from_the_table_again(paths: Paths) -> None:
    given(paths, "left", "right")
    before = read_votes(paths.blind_review_votes)
    for path in paths.votes_database.parent.glob("*.sqlite*"):
        path.unlink()
    given(paths)
    assert read_votes(paths.blind_review_votes).equals(before)
    with closing(sqlite3.connect(paths.votes_database)) as database:
        assert database.execute("SELECT count(*) FROM votes").fetchone() == (2,)


def test_a_lost_table_is_made_from_the_database_again(paths: Paths) -> None:
    given(paths, "left", "right")
    before = read_votes(paths.blind_review_votes)
    paths.blind_review_votes.unlink()
    given(paths)
    assert read_votes(paths.blind_review_votes).equals(before)


def test_votes_that_git_brought_from_another_machine_are_taken_in_once(paths: Paths, tmp_path: Path) -> None:
    given(paths, "left", "right")
    elsewhere = Paths(tmp_path / "elsewhere")
    given(elsewhere, "tie", reviewer="ben")
    paths.blind_review_votes.write_bytes(elsewhere.blind_review_votes.read_bytes())
    given(paths)
    given(paths)
    found = read_votes(paths.blind_review_votes)
    assert found.select("vote", "reviewer", "choice").rows() == [(1, "anna", "left"), (2, "anna", "right"), (3, "ben", "tie")]


def test_a_table_that_is_none_of_votes_is_refused(paths: Paths) -> None:
    paths.blind_review_votes.parent.mkdir(parents=True)
    pl.DataFrame({"a": [1]}).write_parquet(paths.blind_review_votes)
    with pytest.raises(ValueError, match="is no table of votes"):
        store(paths)
