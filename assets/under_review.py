"""Held-out prompts that people are judging, or will judge, blind: whoever read their answers with a model's name would not judge blind any more."""

import json

import polars as pl

from assets.blind_review_set import make_pairs
from assets.paths import Paths
from assets.review_votes import pairs_digest
from grpo_core.config import BlindReviewConfig
from grpo_core.params import parse_section

NOTE = "{} prompts are withheld: people judge them blind (`grpo review`); they are shown once the verdict is counted"


def under_review(paths: Paths, prompts: pl.DataFrame, completions: pl.DataFrame) -> frozenset[str]:
    """Ids of the prompts that the review of these answers shows, or will show once it is drawn; none once its verdict is counted.

    The pairs are drawn anew here, as the same answers give the same ones: neither they nor their key need to be there yet.
    """
    settings = paths.run_config / paths.experiment / "blind_review_set.json"
    values = json.loads(settings.read_bytes()) if settings.is_file() else {}
    pairs = make_pairs(completions, prompts, parse_section(BlindReviewConfig, "blind_review_set", values))
    verdict = json.loads(paths.blind_review_verdict.read_bytes()) if paths.blind_review_verdict.is_file() else {}
    if verdict.get("status") == "counted" and verdict.get("pairs_digest") == pairs_digest(shown(pairs)):
        return frozenset()
    return frozenset(pairs["prompt_id"])


def shown(pairs: pl.DataFrame) -> pl.DataFrame:
    """What reviewers see of the pairs."""
    from assets.blind_review_set import PAIR_COLUMNS

    return pairs.select(PAIR_COLUMNS)


def withheld_note(count: int) -> str:
    """What stands where texts are missing; empty where none is."""
    return NOTE.format(count) if count else ""
