"""An exploration in numbers, against rows that were written by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from grpo_core.config import RunConfig
from grpo_core.exploration_numbers import (
    DIFFICULTY_NAMES,
    Histogram,
    Level,
    difficulty_shares,
    histogram,
    level_names,
    main_functions,
    mean_share,
    numbers_of,
    spread,
)
from tests.explored import asked, explored_rows

CONFIG = RunConfig()
GROUPS = [[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]
"""Solved, hopeless, told apart, hopeless but for its form, solved but for its form."""
FORMS = [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1]]


def of_four(config: RunConfig = CONFIG) -> RunConfig:
    return replace(config, grpo=replace(config.grpo, group_size=4))


def test_groups_are_told_apart_by_what_pays() -> None:
    groups = numbers_of(explored_rows(GROUPS, forms=FORMS), asked(5), of_four()).groups
    assert (groups.signal, groups.side_signal, groups.too_easy, groups.too_hard, groups.alike) == (0.2, 0.4, 0.2, 0.2, 0.0)
    assert (groups.solved, groups.hopeless) == (0.4, 0.4)


def test_what_each_function_gave() -> None:
    numbers = numbers_of(explored_rows(GROUPS, forms=FORMS), asked(5), of_four())
    exact, form, total = numbers.functions
    assert (exact.name, exact.weight, exact.is_main, exact.differs) == ("exact_answer", 1.0, True, 0.2)
    assert (exact.at_full_marks, exact.at_lowest, exact.spread.mean) == pytest.approx((9 / 20, 11 / 20, 9 / 20))
    assert exact.spread.std == pytest.approx(np.std([1] * 9 + [0] * 11))
    assert (form.is_main, form.differs, form.at_full_marks) == (False, 0.4, 0.9)
    assert (total.name, total.weight) == ("total", None)
    assert total.differs == pytest.approx(0.6)
    assert (total.at_full_marks, total.at_lowest) == pytest.approx((8 / 20, 1 / 20))
    assert total.spread.histogram.values == pytest.approx((0.0, 0.1, 1.0, 1.1))
    assert total.spread.histogram.shares == pytest.approx((0.05, 0.5, 0.05, 0.4))
    assert numbers.at_lowest == pytest.approx(11 / 20), "the form counts for nothing here"


def test_accuracy_and_difficulty_are_by_prompt() -> None:
    numbers = numbers_of(explored_rows(GROUPS), asked(5), of_four())
    shares = [1, 0, 0.25, 0, 1]
    assert numbers.accuracy is not None
    assert numbers.accuracy.estimate == pytest.approx(np.mean(shares))
    assert numbers.accuracy.high - numbers.accuracy.estimate == pytest.approx(1.959964 * np.std(shares, ddof=1) / 5**0.5)
    assert dict(zip(DIFFICULTY_NAMES, numbers.difficulty, strict=True)) == {
        "none": 0.4, "up to 1/4": 0.2, "up to 1/2": 0.0, "up to 3/4": 0.0, "more, not all": 0.0, "all": 0.4,
    }  # fmt: skip
    assert [(live.group_size, live.is_extrapolated) for live in numbers.live] == [(4, False), (8, True), (16, True)]
    assert numbers.live[0].share == pytest.approx(0.2)


def test_a_completion_that_could_not_be_graded_is_not_wrong() -> None:
    rows = explored_rows([[1, 0], [0, 0]], correct=[True, None, None, None], reward=[1.1, None, None, None])
    numbers = numbers_of(rows, asked(2), CONFIG)
    assert numbers.accuracy is not None
    assert (numbers.accuracy.estimate, numbers.difficulty[-1]) == (1.0, 1.0)
    assert numbers.groups.hopeless == 0.0
    nothing = numbers_of(explored_rows([[0, 0]], correct=[None, None], reward=[None, None]), asked(1), CONFIG)
    assert (nothing.accuracy, nothing.difficulty, nothing.live, nothing.at_lowest) == (None, (), (), 0.0)
    assert nothing.groups.alike == 1.0


def test_an_interval_of_prompts_that_are_all_alike_has_a_width() -> None:
    none = mean_share(np.zeros(48))
    assert (none.estimate, none.low) == (0.0, 0.0)
    assert 0.05 < none.high < 0.1
    all_half = mean_share(np.full(10, 0.25))
    assert all_half.low < 0.25 < all_half.high


def test_distinct_completions_are_counted_where_a_group_is_not_solved() -> None:
    tokens = [[1], [1], [1], [1], [1], [2], [1], [2], [1], [2], [3], [4]]
    numbers = numbers_of(explored_rows([[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]], token_ids=tokens), asked(3), of_four())
    assert numbers.distinct == pytest.approx((1 / 3 + 1) / 2)
    assert numbers_of(explored_rows([[1, 1]]), asked(1), CONFIG).distinct is None


def test_lengths_and_cut_completions() -> None:
    rows = explored_rows([[1, 0], [0, 0]], length=[1, 2, 3, 44], finish_reason=["eos", "eos", "eos", "length"])
    numbers = numbers_of(rows, asked(2), CONFIG)
    assert (numbers.truncated, numbers.lengths.mean, numbers.lengths.quantiles[0], numbers.lengths.quantiles[-1]) == (0.25, 12.5, 1.0, 44.0)


def test_troubles_are_shares_of_completions_with_a_reason() -> None:
    statuses: dict[str, Any] = {name: ["ok", "error", "invalid", "ok"] for name in ("status", "status/exact_answer")}
    rows = explored_rows([[1, 0], [0, 0]], reason=[None, "exact_answer: ZeroDivisionError", "exact_answer: no number", None], **statuses)
    exact, form, total = numbers_of(rows, asked(2), CONFIG).functions
    assert exact.statuses == total.statuses == {"ok": 0.5, "no_opinion": 0.0, "invalid": 0.25, "error": 0.25}
    assert (exact.reason, form.reason) == ("exact_answer: ZeroDivisionError", None)


def test_what_is_learned_is_what_pays() -> None:
    rows = explored_rows([[1, 0]]).with_columns(pl.Series("reward/soft_overlong", [0.0, -1.0]), pl.Series("reward/number_answer", [0.0, 1.0]))
    assert main_functions(rows, replace(CONFIG, rewards={"exact_answer": 1.0, "answer_format": 0.1})) == ["exact_answer"]
    assert main_functions(rows, replace(CONFIG, rewards={"exact_answer": 1.0, "number_answer": 0.25})) == ["exact_answer", "number_answer"]
    assert main_functions(rows, replace(CONFIG, rewards={"exact_answer": 1.0, "soft_overlong": 1.0})) == ["exact_answer"], "a penalty pays nothing"
    assert main_functions(rows, replace(CONFIG, rewards={"soft_overlong": 1.0})) == ["soft_overlong"], "unless there are penalties alone"


def test_prompts_are_counted_by_the_difficulty_they_came_with() -> None:
    numbers = numbers_of(explored_rows([[1, 1], [1, 0], [0, 0]]), asked(3, ["2 carries", "10 carries", "2 carries"]), CONFIG)
    assert numbers.levels == (Level("2 carries", 2, 0.5, 0.0), Level("10 carries", 1, 0.5, 1.0))
    assert numbers_of(explored_rows([[1, 0]]), asked(1), CONFIG).levels == ()


def test_many_levels_are_put_together() -> None:
    assert level_names(["easy", "hard", "easy"]) == ["easy", "hard", "easy"]
    numbers = [str(i / 10) for i in range(100)]
    found = level_names(numbers)
    assert (len(set(found)), found[0], found[-1]) == (5, "0 to 1.98", "7.92 to 9.9")
    assert {found.count(name) for name in found} == {20}
    texts = ["a", "a", *"bbccddeeffgg", "h", "i"]
    assert [name for name, kept in zip(texts, level_names(texts), strict=True) if kept == "others"] == ["h", "i"]


def test_histograms_have_a_bar_a_value_or_ten_bins() -> None:
    assert histogram(np.array([0.0, 1.0, 1.0, 0.5])) == Histogram((0.0, 0.5, 1.0), (), (0.25, 0.25, 0.5))
    many = histogram(np.arange(20.0))
    assert (many.values, len(many.edges), many.shares) == ((), 11, (0.1,) * 10)
    assert spread(np.array([])).histogram == Histogram((), (), ())


def test_bins_of_difficulty_hold_their_upper_end() -> None:
    assert difficulty_shares([0, 1, 2, 3, 4, 6, 7, 8], [8] * 8) == (1 / 8, 2 / 8, 2 / 8, 1 / 8, 1 / 8, 1 / 8)
    assert difficulty_shares([], []) == ()
