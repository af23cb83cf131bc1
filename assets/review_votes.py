"""Votes of a blind review: one row an answer, in the order given, never changed. The page writes them, the verdict counts them."""

import hashlib
import json
from pathlib import Path

import polars as pl

SCHEMA: dict[str, pl.DataType] = {
    "vote": pl.Int64(),
    "pairs_digest": pl.String(),
    "reviewer": pl.String(),
    "position": pl.Int64(),
    "pair_id": pl.String(),
    "question": pl.String(),
    "choice": pl.String(),
    "reason": pl.String(),
    "left_tags": pl.List(pl.String),
    "right_tags": pl.List(pl.String),
    "seconds": pl.Float64(),
    "voted_at_ms": pl.Int64(),
}
"""`vote` counts from 1; `pairs_digest` is that of the pairs shown; `seconds` from showing to answering; `voted_at_ms` is UTC."""
CHOICES = {"preference": ("left", "right", "tie", "both_bad"), "guess": ("left", "right", "unsure")}
"""Question → its answers: which completion is better, and (at the end) which one the trained model wrote."""
UNDONE = "undone"
"""Takes the reviewer's last answer to that question about that pair back."""
TAGS = ("wrong", "repetitive", "evasive", "too_long", "format")
"""What a reviewer may say is amiss with a completion."""
ANSWER = ("pairs_digest", "reviewer", "pair_id", "question")


def pairs_digest(pairs: pl.DataFrame) -> str:
    """What tells one set of pairs from another: sha256 of its rows, whatever library wrote their file."""
    return hashlib.sha256(json.dumps(pairs.sort("position").rows(), ensure_ascii=False).encode()).hexdigest()


def read_votes(path: Path) -> pl.DataFrame:
    """Every vote of an experiment; none where nobody has voted. Raises ValueError for a table of another shape."""
    if not path.is_file():
        return pl.DataFrame(schema=SCHEMA)
    votes = pl.read_parquet(path)
    if dict(votes.schema) != SCHEMA:
        raise ValueError(f"{path} is no table of votes: it holds {', '.join(votes.columns)}; it is written by grpo review and edited by nobody")
    return votes


def standing(votes: pl.DataFrame, digest: str) -> pl.DataFrame:
    """The answers that count for the pairs of this digest: each reviewer's last one to a question about a pair, unless it was taken back."""
    newest = votes.filter(pl.col("pairs_digest") == digest).sort("vote").unique(ANSWER, keep="last", maintain_order=True)
    return newest.filter(pl.col("choice") != UNDONE)
