"""Pairs for people to judge: a completion of the policy and one of the reference for the same held-out prompt, sides shuffled.

Among these comparisons are pairs of one model alone (`control`), and near the end a few pairs come once more with their sides swapped (`repeat`).
The pairs and the key that tells the sides apart are two files; whoever shows pairs never opens the key.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import polars as pl

from assets.page import Metadata, Progress, ProgressCallback
from assets.paths import Paths
from grpo_core.config import BlindReviewConfig, RunConfig

SCHEMA = {
    "pair_id": pl.String,
    "position": pl.Int64,
    "prompt": pl.String,
    "left_text": pl.String,
    "right_text": pl.String,
    "prompt_id": pl.String,
    "kind": pl.String,
    "left_model": pl.String,
    "right_model": pl.String,
    "left_sample_index": pl.Int64,
    "right_sample_index": pl.Int64,
    "repeat_of": pl.String,
}
PAIR_COLUMNS = ("pair_id", "position", "prompt", "left_text", "right_text")


def produce(paths: Paths, config: RunConfig, on_progress: ProgressCallback) -> None:
    """Write the pairs in the order they will be shown, and the key."""
    from grpo_core.checkpoint import write_file

    rows = make_pairs(pl.read_parquet(paths.heldout_completions), pl.read_parquet(paths.prompts), config.blind_review_set)
    write_file(paths.blind_review_key, rows.drop("position", "prompt", "left_text", "right_text").sort("pair_id").write_parquet)
    write_file(paths.blind_review_pairs, rows.select(PAIR_COLUMNS).write_parquet)
    asked, found = _asked(config.blind_review_set), len(rows.filter(pl.col("kind") != "repeat"))
    if found < asked:
        print(f"warning: {found} of {asked} pairs: too few held-out prompts were given differing texts; heldout_eval.max_prompts brings more", file=sys.stderr)
    on_progress(Progress(1, 1, {"pairs": float(len(rows))}))


def make_pairs(completions: pl.DataFrame, prompts: pl.DataFrame, config: BlindReviewConfig) -> pl.DataFrame:
    """Comparison, control and repeat pairs as one table, key columns included, in the order of showing.

    Comparisons take sampled (not greedy) completions, as users would see them. Pairs of equal text say nothing and are left out, so two
    models that speak alike give fewer pairs than `config` asks for, down to none: that is a finding, not a failure.
    """
    from grpo_core.randomness import generator, permutation

    answers: dict[tuple[str, str], list[str]] = {}
    for row in completions.filter(pl.col("decoding") == "sample").sort("model", "prompt_id", "sample_index").iter_rows(named=True):
        answers.setdefault((row["prompt_id"], row["model"]), []).append(row["text"])
    prompt_ids = sorted({prompt_id for prompt_id, _ in answers})
    shuffled = [prompt_ids[i] for i in permutation(len(prompt_ids), config.seed, "review prompts")]
    chosen = [*_take(_comparisons(answers, shuffled), config.num_pairs), *_take(_controls(answers, shuffled[::-1]), config.num_control_pairs)]
    swap = generator(config.seed, "review sides").random(len(chosen)) < 0.5
    order = permutation(len(chosen), config.seed, "review order")
    texts = dict(prompts.select("prompt_id", "prompt").iter_rows())
    shown = _with_repeats([_pair(chosen[i], bool(swap[i]), texts, config.seed) for i in order], config)
    return pl.DataFrame([{**pair, "position": position} for position, pair in enumerate(shown)], schema=SCHEMA)


def _asked(config: BlindReviewConfig) -> int:
    """How many pairs there should be, without repeats."""
    return config.num_pairs + config.num_control_pairs


Candidate = tuple[str, str, tuple[str, int, str], tuple[str, int, str]]
"""kind, prompt_id, and (model, sample index, text) of two completions."""


def _comparisons(answers: dict[tuple[str, str], list[str]], prompt_ids: list[str]) -> Iterator[Candidate]:
    for prompt_id in prompt_ids:
        reference, policy = answers[prompt_id, "reference"][0], answers[prompt_id, "policy"][0]
        if reference != policy:
            yield "comparison", prompt_id, ("reference", 0, reference), ("policy", 0, policy)


def _controls(answers: dict[tuple[str, str], list[str]], prompt_ids: list[str]) -> Iterator[Candidate]:
    """Two different completions of one model, the models taking turns."""
    for place, prompt_id in enumerate(prompt_ids):
        model = ("policy", "reference")[place % 2]
        texts = answers[prompt_id, model]
        other = next((i for i, text in enumerate(texts) if text != texts[0]), None)
        if other is not None:
            yield "control", prompt_id, (model, 0, texts[0]), (model, other, texts[other])


def _take(candidates: Iterator[Candidate], count: int) -> list[Candidate]:
    return [candidate for candidate, _ in zip(candidates, range(count), strict=False)]


def _pair_id(seed: int, kind: str, prompt_id: str) -> str:
    return hashlib.sha256(f"{seed}\n{kind}\n{prompt_id}".encode()).hexdigest()[:16]


Pair = dict[str, Any]
"""A row of the table, its position apart."""


def _pair(candidate: Candidate, swapped: bool, prompts: dict[str, str], seed: int) -> Pair:
    kind, prompt_id, first, second = candidate
    left, right = (second, first) if swapped else (first, second)
    return {
        "pair_id": _pair_id(seed, kind, prompt_id),
        "prompt": prompts[prompt_id],
        "left_text": left[2],
        "right_text": right[2],
        "prompt_id": prompt_id,
        "kind": kind,
        "left_model": left[0],
        "right_model": right[0],
        "left_sample_index": left[1],
        "right_sample_index": right[1],
        "repeat_of": None,
    }


def _with_repeats(pairs: list[Pair], config: BlindReviewConfig) -> list[Pair]:
    """Some comparisons of the first half once more, at places of the last third: a sixth of all pairs or more lies between the two."""
    from grpo_core.randomness import permutation

    count = next(count for count in range(min(config.num_repeat_pairs, len(pairs) // 2), -1, -1) if count <= len(_early_comparisons(pairs, count)))
    early, total = _early_comparisons(pairs, count), len(pairs) + count
    last_third = range(-(-2 * total // 3), total)
    chosen = permutation(len(early), config.seed, "review repeats")[:count]
    places = sorted(last_third[i] for i in permutation(len(last_third), config.seed, "review places of repeats")[:count])
    shown = list(pairs)
    for place, i in zip(places, chosen, strict=True):
        shown.insert(place, _repeat(early[i], config.seed))
    return shown


def _early_comparisons(pairs: list[Pair], num_repeats: int) -> list[Pair]:
    """Those in the first half of all that will be shown."""
    return [pair for pair in pairs[: (len(pairs) + num_repeats) // 2] if pair["kind"] == "comparison"]


def _repeat(pair: Pair, seed: int) -> Pair:
    """The same with its sides swapped."""
    swapped = {
        f"{side}_{what}": pair[f"{other}_{what}"] for side, other in (("left", "right"), ("right", "left")) for what in ("text", "model", "sample_index")
    }
    return {**pair, **swapped, "kind": "repeat", "pair_id": _pair_id(seed, "repeat", pair["prompt_id"]), "repeat_of": pair["pair_id"]}


def describe(paths: Paths) -> Metadata:
    """How many pairs wait. Their texts stay off this page: who has read them here would no longer judge blind."""
    pairs = pl.read_parquet(paths.blind_review_pairs)
    settings = BlindReviewConfig(**json.loads((paths.run_config / paths.experiment / "blind_review_set.json").read_text()))
    asked = _asked(settings)
    return {
        "pairs": len(pairs),
        "pairs_asked_for": asked + min(settings.num_repeat_pairs, asked // 2),
        "file": paths.blind_review_pairs,
        "key": "in a file of its own, read only when the verdict is computed",
    }
