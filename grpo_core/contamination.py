"""Whether held-out prompts are new: the same text in what was trained on, or a passage of it.

The same text is compared as `prompts.normalise` does. A passage is 13 words in a row (T. Brown et al., 2020, appendix C, take 13 as well), without case
and punctuation; passages that stand in many prompts are a way of asking and say nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from grpo_core.prompts import normalise

NGRAM = 13
"""Words of a passage."""
COMMON = 0.01
"""A passage in more than this share of all prompts is a way of asking."""
FEW = 10
"""In so many prompts it is none, however few prompts there are."""
CHUNK = 20_000
"""Prompts whose passages are in memory at once."""
MULTIPLIER = np.uint64(0x100000001B3)


@dataclass(frozen=True, slots=True)
class Overlap:
    """What held-out prompts share with the prompts that training saw or chose by (`sft`, `train`, `select`)."""

    exact: pl.DataFrame
    """`heldout_id`, `other_id`, `split`: a row for every pair of the same text."""
    ngrams: pl.DataFrame
    """`heldout_id`, `other_id`, `split`, `ngram`: for every held-out prompt that shares a passage, the first such passage, with one prompt that has it."""
    common: int
    """Passages of held-out prompts that were left out, as they stand in too many prompts."""


def find_overlap(prompts: pl.DataFrame) -> Overlap:
    """The overlap within a table of prompts (`prompt_id`, `prompt`, `split`; `answer` and `completion` count as seen, too, where they are given)."""
    is_heldout = pl.col("split") == "heldout"
    heldout, others = prompts.filter(is_heldout), prompts.filter(~is_heldout)
    ngrams, common = _shared_passages(heldout, others)
    return Overlap(_same_texts(heldout, others), ngrams, common)


def _same_texts(heldout: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    own, other = (table.select("prompt_id", "split", text=pl.Series(map(normalise, table["prompt"]), dtype=pl.String)) for table in (heldout, others))
    both = own.drop("split").join(other, on="text", suffix="_other").rename({"prompt_id": "heldout_id", "prompt_id_other": "other_id"})
    return both.select("heldout_id", "other_id", "split").sort("heldout_id", "other_id")


def _shared_passages(heldout: pl.DataFrame, others: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The first shared passage of every held-out prompt that has one, and how many passages were too common to count."""
    own = pl.concat([_passages(part, heldout["prompt_id"], 0) for part in _chunks(heldout.select("prompt"))] or [_no_passages()])
    wanted = own.select("hash").unique()
    # Only passages of held-out prompts matter, so of all others nothing else is kept.
    seen = [_no_passages()]
    start = 0
    for part in _chunks(_texts_seen(others)):
        seen.append(_passages(part, others["prompt_id"], start).join(wanted, on="hash", how="semi"))
        start += len(part)
    found = pl.concat(seen)
    counts = pl.concat([own, found]).group_by("hash").agg(pl.col("prompt_id").n_unique().alias("prompts"))
    most = max(FEW, COMMON * (len(heldout) + len(others)))
    common = counts.filter(pl.col("prompts") > most)
    first = found.join(common, on="hash", how="anti").sort("prompt_id", "place").unique("hash", keep="first", maintain_order=True)
    hits = own.join(first.select("hash", pl.col("prompt_id").alias("other_id")), on="hash").sort("prompt_id", "place")
    hits = hits.unique("prompt_id", keep="first", maintain_order=True)
    texts = dict(heldout.select("prompt_id", "prompt").iter_rows())
    grams = [" ".join(_words_of(texts[prompt_id])[place : place + NGRAM]) for prompt_id, place in hits.select("prompt_id", "place").iter_rows()]
    shown = hits.with_columns(pl.Series("ngram", grams, dtype=pl.String)).join(others.select(other_id="prompt_id", split="split"), on="other_id", how="left")
    return shown.select(pl.col("prompt_id").alias("heldout_id"), "other_id", "split", "ngram").sort("heldout_id"), len(common)


def _texts_seen(others: pl.DataFrame) -> pl.DataFrame:
    """Everything of a prompt that a model may have read in training."""
    parts = [pl.col(name).cast(pl.String) for name in ("prompt", "completion", "answer") if name in others.columns]
    return others.select(pl.concat_str(parts, separator=" ", ignore_nulls=True).alias("prompt"))


def _chunks(texts: pl.DataFrame) -> Iterator[pl.DataFrame]:
    return iter(texts.iter_slices(CHUNK))


def _words(text: pl.Expr) -> pl.Expr:
    return text.str.to_lowercase().str.replace_all(r"[^\p{L}\p{N}]+", " ").str.strip_chars(" ").str.split(" ")


def _words_of(text: str) -> list[str]:
    found: list[str] = pl.select(_words(pl.lit(text))).item().to_list()
    return found


def _passages(texts: pl.DataFrame, ids: pl.Series, start: int) -> pl.DataFrame:
    """`prompt_id`, `place` (of its first word), `hash` of every passage; `texts` are those of `ids` from `start` on."""
    words = texts.select(_words(pl.col("prompt")).alias("word")).with_row_index("row", offset=start).explode("word")
    if len(words) < NGRAM:
        return _no_passages()
    rows, hashes = words["row"].to_numpy(), words["word"].hash().to_numpy()
    count = len(hashes) - NGRAM + 1
    found = np.zeros(count, np.uint64)
    for place in range(NGRAM):
        found = found * MULTIPLIER + hashes[place : place + count]
    within = rows[:count] == rows[NGRAM - 1 :]
    places = words.select(pl.int_range(pl.len(), dtype=pl.Int64).over("row")).to_series().to_numpy()[:count]
    return pl.DataFrame({"prompt_id": ids.gather(rows[:count][within]), "place": places[within], "hash": found[within]})


def _no_passages() -> pl.DataFrame:
    return pl.DataFrame(schema={"prompt_id": pl.String, "place": pl.Int64, "hash": pl.UInt64})
