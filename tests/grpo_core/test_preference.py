"""What votes say, against numbers worked out by hand and published ones."""

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from grpo_core.preference import (
    Agreement,
    Share,
    agreement,
    decided_rate,
    half_width,
    is_enough,
    judge,
    pairs_needed,
    preferred_model,
    repeats_alike,
    reward_agreement,
    reward_change,
    reward_hacking,
    right_guesses,
    share,
    tags_by_model,
    votes_needed,
    win_rate,
    win_rates_by,
)
from grpo_core.statistics import Interval, clopper_pearson

KEY = pl.DataFrame(
    [
        ("a", "comparison", "policy", "reference", None),
        ("b", "comparison", "reference", "policy", None),
        ("c", "comparison", "policy", "reference", None),
        ("d", "comparison", "reference", "policy", None),
        ("x", "control", "policy", "policy", None),
        ("y", "control", "reference", "reference", None),
        ("a2", "repeat", "reference", "policy", "a"),
        ("b2", "repeat", "policy", "reference", "b"),
    ],
    schema=["pair_id", "kind", "left_model", "right_model", "repeat_of"],
    orient="row",
)


def votes(*rows: tuple[str, str, str]) -> pl.DataFrame:
    """Reviewer, pair and choice."""
    return pl.DataFrame(rows, schema={"reviewer": pl.String, "pair_id": pl.String, "choice": pl.String}, orient="row")


TWO_REVIEWERS = votes(
    ("ann", "a", "left"), ("bob", "a", "left"),  # the policy twice: 1
    ("ann", "b", "left"), ("bob", "b", "tie"),  # the reference and a tie: 1/4
    ("ann", "c", "both_bad"),  # 1/2
    ("ann", "x", "left"), ("bob", "x", "right"), ("ann", "y", "left"), ("bob", "y", "tie"),
    ("ann", "a2", "right"), ("bob", "a2", "tie"), ("ann", "b2", "left"),
)  # fmt: skip


def judged() -> dict[str, dict[str, Any]]:
    return {row["pair_id"]: row for row in judge(KEY, TWO_REVIEWERS).iter_rows(named=True)}


def test_a_pair_scores_the_mean_of_its_reviewers_whatever_side_the_policy_is_on() -> None:
    found = judged()
    assert {pair: row["score"] for pair, row in found.items()} == {"a": 1.0, "b": 0.25, "c": 0.5, "d": None, "x": None, "y": None, "a2": 0.75, "b2": 1.0}
    assert {pair: row["votes"] for pair, row in found.items()} == {"a": 2, "b": 2, "c": 1, "d": 0, "x": 2, "y": 2, "a2": 2, "b2": 1}


def test_a_model_is_preferred_by_more_than_half() -> None:
    """A tie counts against both: of a preference and a tie neither is a majority."""
    assert {pair: row["preferred"] for pair, row in judged().items() if row["preferred"]} == {"a": "policy", "b2": "policy"}
    three = votes(("ann", "b", "left"), ("bob", "b", "left"), ("eve", "b", "right"))
    assert judge(KEY, three).filter(pl.col("pair_id") == "b")["preferred"].item() == "reference"


def test_shares_of_left_are_over_decided_votes_and_of_both_bad_over_all() -> None:
    found = judged()
    assert (found["x"]["left"], found["y"]["left"], found["b"]["left"], found["c"]["left"]) == (0.5, 1.0, 1.0, None)
    assert (found["c"]["both_bad"], found["a"]["both_bad"], found["d"]["both_bad"]) == (1.0, 0.0, None)


def test_a_win_rate_counts_pairs_and_not_votes() -> None:
    pairs = judge(KEY, TWO_REVIEWERS).filter(pl.col("kind") == "comparison")
    assert win_rate(pairs) == Share(3, *as_tuple(clopper_pearson(1.75, 3)))
    assert decided_rate(pairs) == Share(1, *as_tuple(clopper_pearson(1, 1)))
    tasks = pairs.with_columns(pl.Series("task", ["sum", "sum", "word", None]))
    assert {task: (found.count, found.estimate) for task, found in win_rates_by(tasks, "task").items()} == {"sum": (2, 0.625), "word": (1, 0.5)}


def as_tuple(interval: Interval) -> tuple[float, float, float]:
    return interval.estimate, interval.low, interval.high


def test_nothing_is_known_of_no_pairs() -> None:
    nobody = judge(KEY, votes())
    assert nobody["votes"].sum() == 0 and nobody["score"].null_count() == len(KEY)
    assert win_rate(nobody) == decided_rate(nobody) == share([]) == Share(0)
    assert share([]).even() is None and preferred_model(share([])) is None and not is_enough(share([]), 0.4)
    assert repeats_alike(KEY, votes()) == {} and right_guesses(KEY, votes()) == Share(0) and agreement(votes()) == Agreement(0, None)


def test_a_repeat_is_answered_alike_when_the_same_model_is_chosen() -> None:
    """Ann chose the policy twice, then the reference and the policy; bob the policy and a tie."""
    assert {name: (found.count, found.estimate) for name, found in repeats_alike(KEY, TWO_REVIEWERS).items()} == {"ann": (2, 0.5), "bob": (1, 0.0)}
    once = votes(("ann", "a", "left"), ("bob", "a2", "right"))
    assert repeats_alike(KEY, once) == {}, "each answered one of the two"


FOUR_CODERS = ("123321412...", "1233224125.3", ".3332342251.", "12332441251.")
"""Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), section C: 12 units, 4 observers; nominal 0.743."""
THREE_CODERS = (".....34121133.3", "1.213343.......", "..21344.21133.4")
"""The example of Wikipedia's article: 15 units, 3 coders; nominal 0.691."""


@pytest.mark.parametrize(("coders", "alpha", "count"), [(FOUR_CODERS, 0.743, 11), (THREE_CODERS, 0.691, 12)])
def test_agreement_is_the_published_one(coders: tuple[str, ...], alpha: float, count: int) -> None:
    found = agreement(coded(coders))
    assert found.alpha == pytest.approx(alpha, abs=5e-4)
    assert found.alpha == pytest.approx(by_coincidences(coders))
    assert found.count == count


def coded(coders: tuple[str, ...]) -> pl.DataFrame:
    return votes(*((str(coder), f"unit {unit}", value) for coder, row in enumerate(coders) for unit, value in enumerate(row) if value != "."))


def by_coincidences(coders: tuple[str, ...]) -> float:
    """1 - observed / expected disagreement, pair by pair within units of two values or more."""
    units = [[value for value in column if value != "."] for column in zip(*coders, strict=True)]
    pairable = [unit for unit in units if len(unit) > 1]
    values = [value for unit in pairable for value in unit]
    differing = [sum(a != b for a in unit for b in unit) / (len(unit) - 1) for unit in pairable]
    expected = sum(a != b for a in values for b in values) / (len(values) - 1)
    return 1 - sum(differing) / expected


def test_agreement_needs_pairs_that_several_judged_and_more_than_one_answer() -> None:
    assert agreement(votes(("ann", "a", "left"), ("bob", "b", "right"))) == Agreement(0, None)
    assert agreement(votes(("ann", "a", "left"), ("bob", "a", "left"))) == Agreement(1, None)
    full = agreement(votes(("ann", "a", "left"), ("bob", "a", "left"), ("ann", "b", "tie"), ("bob", "b", "tie")))
    assert full.count == 2 and full.alpha == pytest.approx(1.0)


def test_guesses_are_right_where_the_side_is_the_policys() -> None:
    guesses = votes(("ann", "a", "left"), ("bob", "a", "right"), ("ann", "b", "right"), ("ann", "c", "unsure"), ("ann", "x", "left"), ("ann", "a2", "left"))
    assert right_guesses(KEY, guesses) == Share(2, *as_tuple(clopper_pearson(1.5, 2)))


def test_tags_are_counted_by_model() -> None:
    table = votes(("ann", "a", "left"), ("ann", "b", "left"), ("ann", "x", "left")).with_columns(
        left_tags=pl.Series([["wrong"], [], ["format"]], dtype=pl.List(pl.String)), right_tags=pl.Series([["too_long"], ["wrong", "too_long"], []])
    )
    assert tags_by_model(KEY, table) == {"too_long": {"policy": 1, "reference": 1}, "wrong": {"policy": 2, "reference": 0}}


def test_a_reward_agrees_where_it_is_higher_for_what_is_preferred() -> None:
    pairs = pl.DataFrame({
        "preferred": ["policy", "policy", "reference", "reference", "policy", None],
        "difference": [0.5, -0.1, -2.0, 0.0, None, 1.0],
    })  # fmt: skip
    found = reward_agreement(pairs, "difference")
    assert (found.agrees, found.equal, found.unscored) == (Share(3, *as_tuple(clopper_pearson(2, 3))), 1, 1)


def test_the_change_of_reward_is_paired_by_prompt() -> None:
    """Differences 0.5, 1.0 and 1.5 of the prompts' means; greedy answers and a prompt without a reward do not count."""
    rows: list[tuple[str, str, float | None]] = [
        ("p", "policy", 1.0),
        ("p", "policy", 0.0),
        ("p", "reference", 0.0),
        ("q", "policy", 1.0),
        ("q", "reference", 0.0),
    ]
    rows += [("r", "policy", 2.0), ("r", "reference", 0.5), ("s", "policy", 9.0), ("s", "reference", None)]
    table = pl.DataFrame(rows, schema=["prompt_id", "model", "reward"], orient="row").with_columns(decoding=pl.lit("sample"))
    greedy = table.with_columns(decoding=pl.lit("greedy"), reward=pl.lit(5.0))
    found = reward_change(pl.concat([table, greedy]))
    assert found is not None and as_tuple(found) == pytest.approx((1.0, 1 - 4.30265 * 0.5 / math.sqrt(3), 1 + 4.30265 * 0.5 / math.sqrt(3)), abs=1e-5)
    assert reward_change(greedy) is None


UP, FLAT = Interval(0.2, 0.1, 0.3), Interval(0.1, -0.1, 0.3)


@pytest.mark.parametrize(
    ("change", "wins", "of", "decided", "expected"),
    [
        (UP, 5, 30, 30, "shown"),
        (UP, 14, 30, 30, "suspected"),
        (UP, 15, 30, 10, "suspected"),
        (UP, 15, 30, 9, None),
        (UP, 16, 30, 30, None),
        (FLAT, 5, 30, 30, None),
        (None, 5, 30, 30, None),
    ],
)
def test_reward_hacking_is_a_reward_that_rose_without_people_preferring_it(
    change: Interval | None, wins: int, of: int, decided: int, expected: str | None
) -> None:
    assert reward_hacking(change, share([1.0] * wins + [0.0] * (of - wins)), decided) == expected


def test_the_preferred_model_is_the_one_beyond_doubt() -> None:
    shares = [share([1.0] * wins + [0.0] * (30 - wins)) for wins in (5, 15, 25)]
    assert [preferred_model(found) for found in shares] == ["reference", None, "policy"]
    assert [found.even() for found in shares] == [False, True, False]


@pytest.mark.parametrize(("preference", "pairs"), [(0.6, 210), (0.4, 210), (0.7, 54), (0.55, 820)])
def test_votes_needed_for_a_preference(preference: float, pairs: int) -> None:
    """Somewhat more than the normal approximation says: ((1.95996 · 0.5 + 0.84162 · √0.24) / 0.1)² = 193.85 for 0.6."""
    assert votes_needed(preference) == pairs


@pytest.mark.parametrize("preference", [0.55, 0.6, 0.7])
def test_a_verdict_on_the_votes_needed_finds_the_preference_4_times_of_5(preference: float) -> None:
    """Chances of the binomial distribution, with the verdict's own rule; one pair fewer would not do."""
    assert power(votes_needed(preference) - 1, preference) < 0.8
    assert all(power(votes_needed(preference) + more, preference) >= 0.8 for more in range(30))


def power(n: int, preference: float) -> float:
    chances = [math.comb(n, k) * preference**k * (1 - preference) ** (n - k) for k in range(n + 1)]
    return sum(chance for k, chance in enumerate(chances) if clopper_pearson(k, n).low > 0.5)


@pytest.mark.parametrize("preference", [0.0, 0.5, 0.505, 1.0])
def test_an_even_preference_cannot_be_looked_for(preference: float) -> None:
    with pytest.raises(ValueError, match=f"at least 0.01 from 0.5, got {preference}"):
        votes_needed(preference)


@pytest.mark.parametrize(("precision", "pairs"), [(0.1, 104), (0.05, 402), (0.2, 27), (0.49, 2)])
def test_the_pairs_needed_are_the_fewest_that_are_precise_enough(precision: float, pairs: int) -> None:
    assert pairs_needed(precision) == pairs
    assert half_width(pairs) <= precision
    assert pairs == 1 or half_width(pairs - 1) > precision
    assert is_enough(share([0.5] * pairs), precision)


@pytest.mark.parametrize(("num_pairs", "mean"), [(20, 0.5), (30, 0.6), (60, 0.8), (100, 0.9)])
@pytest.mark.parametrize(("reviewers", "ties", "alike"), [(1, 0.15, 50.0), (2, 0.1, 1.0), (3, 0.2, 0.5)])
def test_the_interval_holds_the_true_win_rate_at_least_95_times_of_100(num_pairs: int, mean: float, reviewers: int, ties: float, alike: float) -> None:
    """Pairs differ in how many people prefer the policy's text (beta distributed), reviewers of a pair vote on their own, some votes are ties."""
    generator, trials = np.random.default_rng(num_pairs), 4000
    chances = generator.beta(mean * alike, (1 - mean) * alike, (trials, num_pairs))
    chosen = generator.random((reviewers, trials, num_pairs)) < chances
    scores = np.where(generator.random(chosen.shape) < ties, 0.5, chosen).mean(axis=0)
    truth = ties / 2 + (1 - ties) * mean
    held = [found.low <= truth <= found.high for found in (clopper_pearson(float(total), num_pairs) for total in scores.sum(axis=1))]
    assert np.mean(held) >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / trials)
