"""A name, and what proves it."""

from pathlib import Path

import pytest

from pipelines.review.reviewers import NotInvited, Reviewers, StrangeName, read_secret, reviewer_name


@pytest.mark.parametrize("name", ["Anna B.", "anna  b.", " ANNA B. "])
def test_spellings_of_a_name_are_one_reviewer(name: str) -> None:
    assert reviewer_name(name) == "anna b."


@pytest.mark.parametrize("name", ["", "   ", "x" * 41, "<b>", "a/b", "a\u202eb", "a;b"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(StrangeName, match="1 to 40 letters"):
        reviewer_name(name)


def test_a_token_is_its_reviewers_in_this_checkout_alone() -> None:
    token = Reviewers(b"secret").token("Zoë")
    assert Reviewers(b"secret").reviewer(token) == "zoë"
    assert Reviewers(b"another").reviewer(token) is None
    assert [Reviewers(b"secret").reviewer(forged) for forged in ("", ".", token[1:], token + "0", "zoë", "\u202e.é")] == [None] * 6


def test_where_reviewers_are_invited_nobody_else_gets_in() -> None:
    reviewers = Reviewers(b"secret", ["Anna"])
    with pytest.raises(NotInvited, match="open the link"):
        reviewers.enter("anna")
    assert reviewers.reviewer(reviewers.token("ANNA")) == "anna"
    assert reviewers.reviewer(reviewers.token("ben")) is None


def test_the_secret_is_made_once_and_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / ".work" / "review" / "secret"
    assert read_secret(path) == read_secret(path)
    assert len(read_secret(path)) == 32 and path.stat().st_mode & 0o777 == 0o600
