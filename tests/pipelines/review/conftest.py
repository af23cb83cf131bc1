"""A review of a few pairs, and a browser without a screen."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import polars as pl
import pytest
from starlette.testclient import TestClient

from assets.paths import Paths
from pipelines.review.app import Review
from pipelines.review.pairs import PairsFile
from pipelines.review.reviewers import Reviewers
from pipelines.review.store import VoteStore

HERE = "http://127.0.0.1:3001"
SECRET = b"secret of the tests"
Texts = tuple[str, str, str]
"""Prompt, left and right."""


def write_pairs(paths: Paths, texts: Sequence[Texts]) -> None:
    """The page's file alone: there is no key."""
    rows = [{"pair_id": f"id{place}", "position": place, "prompt": a, "left_text": b, "right_text": c} for place, (a, b, c) in enumerate(texts)]
    schema = {"pair_id": pl.String, "position": pl.Int64, "prompt": pl.String, "left_text": pl.String, "right_text": pl.String}
    paths.blind_review_pairs.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(rows, schema=schema).write_parquet(paths.blind_review_pairs)


def some_texts(count: int) -> list[Texts]:
    return [(f"{place}+1=", f"left {place}", f"right {place}") for place in range(count)]


def browser(review: Review, name: str | None = "anna") -> TestClient:
    """One that the page's own scripts run in, entered as `name`."""
    client = TestClient(review.app(), base_url=HERE, headers={"origin": HERE})
    if name is not None:
        assert client.post("/api/enter", json={"name": name}).status_code == 200
    return client


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


class ReviewOf(Protocol):
    """Makes a review of the pairs given."""

    def __call__(self, texts: Sequence[Texts], *, root: Path | None = None, invited: Sequence[str] = ()) -> Review: ...


@pytest.fixture
def review_of(tmp_path: Path) -> Iterator[ReviewOf]:
    """Their votes are closed when the test ends."""
    with ExitStack() as opened:

        def make(texts: Sequence[Texts], *, root: Path | None = None, invited: Sequence[str] = ()) -> Review:
            paths = Paths(root or tmp_path)
            write_pairs(paths, texts)
            votes = opened.enter_context(closing(VoteStore(paths.votes_database, paths.blind_review_votes)))
            return Review(paths.experiment, PairsFile(paths), votes, Reviewers(SECRET, invited))

        yield make
