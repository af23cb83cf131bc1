"""Values cross exactly, and nothing of a program's own crosses with them."""

import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.sandbox.values import CannotCross, Malformed, decode, encode


def crossed(value: Any) -> Any:
    return decode(encode(value))


def same(one: Any, other: Any) -> bool:
    """Equal, of one type all through, and in one order; a NaN equals a NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (one == other and math.copysign(1, one) == math.copysign(1, other))
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same([*one.items()], [*other.items()])
    return bool(one == other)


TEXTS = st.text(st.characters(codec=None, exclude_categories=()))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary()
HASHABLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(), lambda inner: st.tuples(inner, inner) | st.frozensets(inner), max_leaves=5
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(HASHABLE, inner) | st.sets(HASHABLE), max_leaves=20)


@given(VALUES)
def test_builtin_values_cross_exactly(value: Any) -> None:
    assert same(crossed(value), value)


@pytest.mark.parametrize(
    "value",
    [
        10**5000,
        -(2**53),
        2**53 - 1,
        complex(-0.0, math.inf),
        bytearray(b"\xff"),
        range(5, -3, -2),
        slice(None, 3),
        deque([1, 2]),
        Decimal("1.10"),
        Fraction(1, 3),
        date(2020, 2, 29),
        datetime(2020, 2, 29, 1, 2, 3, 4),
        timedelta(days=-1, microseconds=1),
        "\ud83d\ude00",
        "é\0",
        int,
        ValueError,
        len,
        Ellipsis,
        {"int": "5", "tuple": []},
    ],
    ids=lambda value: type(value).__name__,
)
def test_these_cross_exactly_too(value: Any) -> None:
    assert same(crossed(value), value)


class EvilInt(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7


class EvilText(str):
    def __str__(self) -> str:
        return "lie"

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class EvilList(list[Any]):
    def __iter__(self) -> Any:
        return iter([42])

    def __len__(self) -> int:
        return 42


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (EvilInt(3), 3),
        (EvilText("true"), "true"),
        (EvilList([1, 2]), [1, 2]),
        (Level.HIGH, 3),
        (Counter("aab"), {"a": 2, "b": 1}),
        (defaultdict(list, {1: [2]}), {1: [2]}),
        (OrderedDict(a=1), {"a": 1}),
        ([{"x": (EvilInt(1),)}], [{"x": (1,)}]),
    ],
)
def test_a_value_of_a_subclass_crosses_as_the_plain_value(value: Any, plain: Any) -> None:
    assert same(crossed(value), plain)


def test_a_named_tuple_keeps_its_names_and_equals_a_tuple() -> None:
    Point = namedtuple("Point", ["x", "y"])
    point = crossed(Point(1, [2]))
    assert (point.x, point.y) == point == (1, [2])


def test_a_class_that_lies_about_itself_is_known_by_what_it_is() -> None:
    class Liar:
        __class__ = int  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

    with pytest.raises(CannotCross, match="a Liar has no form"):
        crossed([Liar()])


def test_a_value_without_end_or_too_deep_does_not_cross() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CannotCross, match="too deep"):
        crossed(loop)


def test_what_has_no_form_is_told_and_read_by_the_sides_themselves() -> None:
    thing = object()
    data = encode([thing, (thing,)], lambda value: ("thing", 7 if value is thing else 0))
    assert decode(data, lambda tag, body: f"{tag} {body}") == ["thing 7", ("thing 7",)]


def items(kind: bytes, *values: Any) -> bytes:
    """A kind made of values, as a writer would write it."""
    return kind + struct.pack("<I", len(values)) + b"".join(encode(value) for value in values)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"?",
        b"i\0",
        b"s\xff\xff\xff\xff",
        b"s\2\0\0\0\xff\xff",
        b"l\xff\xff\xff\xff",
        b"l\1\0\0\0" * 100_000,
        b"NN",
        items(b"n", "eval"),
        items(b"n", "open"),
        items(b"L", "os", "system", ("true",)),
        items(b"L", "decimal", "Decimal", ("x",)),
        items(b"L", "fractions", "Fraction", (1, 0)),
        items(b"L", "fractions", "Fraction", ("1e999999999",)),
        items(b"L", "fractions", "Fraction", [1, 2]),
        items(b"L", "decimal", "Decimal", (1,)),
        items(b"L", "collections", "deque", ("abc", None)),
        items(b"L", "datetime", "datetime", (bytes(10),)),
        items(b"R", "Point", ("x",), 5),
        items(b"o", "object", 3),
        items(b"d", 1),
        items(b"S", [1]),
        items(b"r", "a"),
        items(b"c", "1+1"),
    ],
    ids=range(24),
)
def test_what_no_writer_writes_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode(data)


@given(st.binary(max_size=60))
def test_no_bytes_do_more_than_be_malformed(data: bytes) -> None:
    try:
        value = decode(data)
    except Malformed:
        return
    assert same(crossed(value), value) or isinstance(value, tuple | dict | range | set | frozenset | complex)
