"""Names of alarms stay legible: tracks in which nothing overlaps, words where there is room for them."""

from typing import Any

import pytest

from assets.alarm_marks import Placed, Span, _placed, color_of, condition_of, state_of, steps_of
from assets.canvas import ALARM, QUIET, WARNING


def span(first: float, last: float, words: str = "stall") -> Span:
    return Span(first, last, words, ALARM, is_open=True)


def placed(*spans: Span, last: float = 100, most: int = 6) -> list[Placed]:
    return _placed(spans, 0, last, most=most)


def test_words_stand_beside_the_bar_where_there_is_room_else_in_it() -> None:
    sides = [placed(one)[0].side for one in (span(10, 20), span(90, 100), span(1, 99), span(0, 100))]
    assert sides == ["right", "left", "inside", "inside"]


def test_spans_and_words_that_do_not_meet_share_a_track() -> None:
    assert [one.track for one in placed(span(0, 5), span(50, 55))] == [0, 0]
    assert [one.track for one in placed(span(0, 5), span(4, 9))] == [0, 1], "they overlap"
    assert [one.track for one in placed(span(0, 5, "a condition with a long name"), span(10, 15))] == [0, 1], "the first one's words reach into the second"


def test_a_track_that_is_free_again_is_taken_before_a_new_one() -> None:
    assert [one.track for one in placed(span(0, 5), span(1, 6), span(60, 65))] == [0, 1, 0]


def test_what_finds_no_track_is_left_out() -> None:
    assert len(placed(*[span(0, 100)] * 4, most=3)) == 3


@pytest.mark.parametrize(
    ("fields", "state", "color"),
    [
        ({"open": True, "severity": "alarm"}, "open", ALARM),
        ({"open": True, "severity": "warning"}, "open", WARNING),
        ({"open": False, "severity": "warning"}, "over", WARNING),
        ({"open": False, "severity": "alarm", "acknowledged": None}, "over", ALARM),
        ({"open": False, "severity": "alarm", "acknowledged": "on purpose"}, "acknowledged", QUIET),
    ],
)
def test_state_and_colour_of_an_alarm(fields: dict[str, Any], state: str, color: str) -> None:
    alarm = {"condition": "early_explosion", "first_step": 3, "last_step": 3, **fields}
    assert (state_of(alarm), color_of(alarm)) == (state, color)
    assert (condition_of(alarm), steps_of(alarm), steps_of({**alarm, "last_step": 9})) == ("early explosion", "3", "3–9")
