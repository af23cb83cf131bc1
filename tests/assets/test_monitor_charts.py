"""Facts about the pictures of the monitor: what was logged is drawn, alarms are marked where they held, and paper gets vectors."""

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest

from assets import canvas
from assets.charts import accuracy_bars, alarm_timeline, loss_curve, monitor_charts, reward_chart, training_charts
from assets.monitor_charts import entropy_chart, gradient_chart, select_chart, zero_variance_chart
from tests.assets.test_charts import EMPTY, ONLY_EVALUATED, SUMMARY, colored, make_metrics, make_rewards, pixels

# --------------------------------------------------------------------------------------------- what the monitor watches


HARD, EASY = (0xEA, 0x7D, 0x7D), (0x6E, 0xBF, 0xB7)
"""Red and green at 60 % on white."""


def near(picture: np.ndarray, color: tuple[int, int, int]) -> int:
    """How many pixels have this colour, give or take what blending rounds away."""
    return int((np.abs(picture.astype(int) - color).max(axis=2) <= 2).sum())


def drawn(png: bytes | None) -> np.ndarray:
    assert png is not None
    return pixels(png)


def watched(steps: int, **columns: Any) -> pl.DataFrame:
    """`make_metrics` with the other curves of a step."""
    more = {
        "entropy": 0.2, "grad_norm": 0.5, "ratio/max": 1.2, "clip_fraction": 0.01, "distinct_fraction": 0.8, "repetition": 0.1, "train_accuracy": 0.5,
        "hopeless_group_fraction": 0.125, "effective_sample_fraction": 0.9,
    }  # fmt: skip
    values = {name: pl.when(pl.col("step") > 0).then(pl.lit(value)) for name, value in (more | columns).items()}
    return make_metrics(steps).with_columns(**values)


def test_a_chart_is_there_for_all_that_was_logged_and_for_nothing_else() -> None:
    everything = monitor_charts(watched(5), EMPTY)
    assert list(everything) == ["select", "entropy", "grad_norm", "zero_variance", "ratio", "variety"]
    assert list(monitor_charts(make_metrics(5), EMPTY)) == ["select", "zero_variance"]
    assert monitor_charts(EMPTY, EMPTY) == {}
    for png in everything.values():
        pixels(png)


def test_groups_too_easy_and_too_hard_are_filled_as_high_as_they_are_many() -> None:
    """Half too hard and a quarter too easy: two areas of 60 %, one twice as high as the other."""
    metrics = watched(10, zero_variance_fraction=0.75, solved_group_fraction=0.25, hopeless_group_fraction=0.5)
    picture = drawn(zero_variance_chart(metrics, [], canvas.png))[120:]  # below the legend
    hard, easy = near(picture, HARD), near(picture, EASY)
    assert easy > 10_000
    assert hard / easy == pytest.approx(2, abs=0.1)
    old = drawn(zero_variance_chart(metrics.drop("hopeless_group_fraction"), [], canvas.png))
    assert near(old, HARD) == 0, "a run that did not tell them apart shows none as too hard"


def test_intervals_of_select_come_from_its_answers() -> None:
    few, many = (pl.DataFrame({"step": [0] * asked, "correct": [True, False] * (asked // 2)}) for asked in (4, 400))
    pictures = [select_chart(make_metrics(5), table, [], canvas.png) for table in (EMPTY, many, few)]
    assert len(set(pictures)) == 3


def test_a_chart_of_rewards_draws_functions_and_no_other_number_about_rewards() -> None:
    metrics = make_metrics(10)
    more = metrics.with_columns(pl.lit(5.0).alias(name) for name in ("reward/min", "reward/max", "reward/outlier"))
    assert reward_chart(more, make_rewards(10)) == reward_chart(metrics, make_rewards(10))


# -------------------------------------------------------------------------------------------------------------- alarms


def alarm(condition: str, first: int, last: int, **fields: Any) -> dict[str, Any]:
    return {"condition": condition, "severity": "alarm", "first_step": first, "last_step": last, "open": True, **fields}


RED, BROWN, SLATE = (0xDC, 0x26, 0x26), (0xB4, 0x53, 0x09), (0x64, 0x74, 0x8B)
RED_BAND = (0xFB, 0xE9, 0xE9)
"""Red at 10 % on white."""


def test_every_chart_over_steps_marks_an_alarms_steps() -> None:
    metrics, rewards, raised = watched(40), make_rewards(40), [alarm("early_explosion", 11, 20)]
    charts = training_charts(metrics, rewards, raised) | monitor_charts(metrics, EMPTY, raised)
    quiet = training_charts(metrics, rewards) | monitor_charts(metrics, EMPTY)
    for name, png in charts.items():
        picture = pixels(png)
        assert picture.shape[0] == pixels(quiet[name]).shape[0] + 35, f"{name}: one track of 0.22 inches"
        assert colored(picture, RED) > 1_000, f"{name}: its bar"
        assert near(picture, RED_BAND) > 3_000, f"{name}: its band"
        assert near(pixels(quiet[name]), RED_BAND) == 0


def test_a_band_is_as_wide_as_the_alarm_was_long() -> None:
    def band(last: int) -> int:
        picture = drawn(gradient_chart(watched(40), [alarm("stall", 11, last)], canvas.png))[60:200]  # within the panel
        return int((np.abs(picture.astype(int) - RED_BAND).max(axis=2) <= 2).any(axis=0).sum())

    assert band(30) / band(20) == pytest.approx(2, rel=0.03)


def test_an_alarm_has_the_colour_of_its_severity_until_it_is_acknowledged() -> None:
    def bar(**fields: Any) -> list[bool]:
        picture = pixels(alarm_timeline(make_metrics(40), [alarm("weak_signal", 5, 30, **fields)]))[60:-80]
        return [colored(picture, color) > 5_000 for color in (RED, BROWN, SLATE)]

    assert bar() == [True, False, False]
    assert bar(severity="warning") == [False, True, False]
    assert bar(severity="warning", open=False) == [False, False, False], "one that is over is an outline"
    assert bar(open=False, acknowledged="on purpose") == [False, False, False]


def test_many_alarms_take_six_tracks_at_most() -> None:
    many = [alarm(f"condition_{place}", 1, 40, open=False) for place in range(9)]
    heights = [drawn(entropy_chart(watched(40), many[:count], canvas.png)).shape[0] for count in (0, 9)]
    assert heights == [464, 464 + 211]


def test_the_timeline_has_a_row_for_every_condition_and_says_so_when_there_are_none() -> None:
    raised = [alarm("weak_signal", 3, 5), alarm("weak_signal", 20, 22), alarm("stall", 7, 7)]
    heights = [pixels(alarm_timeline(make_metrics(40), raised[:count])).shape[0] for count in (1, 2, 3)]
    assert heights[0] == heights[1] == heights[2] - 48
    nothing = {steps: alarm_timeline(make_metrics(steps), []) for steps in (40, 80)}
    assert nothing[40] != nothing[80], "it says how many steps were watched"
    pixels(nothing[40])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metrics", [EMPTY, make_metrics(3).clear(), ONLY_EVALUATED, watched(1)], ids=["none", "no_row", "step_0", "one"])
def test_the_pictures_of_young_runs_decode(metrics: pl.DataFrame) -> None:
    raised = [alarm("stall", 1, 1)]
    for png in (*monitor_charts(metrics, EMPTY, raised).values(), reward_chart(metrics, EMPTY, raised), alarm_timeline(metrics, raised)):
        pixels(png)


# ----------------------------------------------------------------------------------------------------------- on paper


def test_charts_are_vector_pictures_when_asked_for() -> None:
    metrics, raised = watched(10), [alarm("stall", 3, 4)]
    vectors = training_charts(metrics, make_rewards(10), raised, canvas.svg) | monitor_charts(metrics, EMPTY, raised, canvas.svg)
    vectors |= {"bars": accuracy_bars(SUMMARY, canvas.svg), "none": alarm_timeline(metrics, [], canvas.svg), "empty": loss_curve(EMPTY, canvas.svg)}
    for name, svg in vectors.items():
        root = ElementTree.fromstring(svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg", name
        assert root.get("width") == "504pt", f"{name}: as wide as its PNG, 7 inches"
        kinds = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert kinds.isdisjoint({"script", "text", "foreignObject", "a"}), f"{name}: text is outlines, and nothing in it acts"
        targets = [value for element in root.iter() for key, value in element.items() if key.endswith("href")]
        assert all(target.startswith(("#", "data:image/png;base64,")) for target in targets), f"{name}: nothing is fetched"
        assert b"<dc:date>" not in svg
        assert len(svg) < 200_000, name


def test_the_same_table_gives_the_same_vector_picture_whatever_was_drawn_before() -> None:
    history = pl.DataFrame({"step": [1, 2], "loss": [2.0, 1.0]})
    first = loss_curve(history, canvas.svg)
    pixels(loss_curve(history))
    assert loss_curve(history, canvas.svg) == first
    assert not re.search(rb"\d{4}-\d\d-\d\dT", first), "it has no date"
