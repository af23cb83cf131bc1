"""Values that cross between a program and its tests: exact builtin values and a few of the library's, and nothing that runs code on arrival.

A value is a byte that says its kind, then its content. What is read here was written by a program: it may be anything, and becomes a value
or a `Malformed`. Every import costs each cell some milliseconds, so there are few.
"""

import builtins
import struct
import sys
from _collections_abc import Callable, Iterable  # what collections.abc and typing would load is not needed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
else:
    Any = object

Other = Callable[[Any], tuple[str, Any]]
"""Says what stands for a value that has no form, or raises CannotCross."""
Known = Callable[[str, Any], Any]
"""Reads what `Other` wrote on the other side."""

FUNCTIONS = ("abs", "all", "any", "bin", "chr", "divmod", "hex", "len", "max", "min", "oct", "ord", "pow", "repr", "round", "sorted", "sum")
BY_NAME = {name: value for name, value in vars(builtins).items() if isinstance(value, type) or name in FUNCTIONS or value in (Ellipsis, NotImplemented)}
"""Builtins that are the same on both sides: types, exceptions and functions without effects."""
NAMES = {id(value): name for name, value in BY_NAME.items()}
SHARED_MODULES = {"bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools", "json", "math"}
SHARED_MODULES |= {"operator", "random", "re", "statistics", "string"}
"""What a program may have imported for its tests: they get their own."""
LIBRARY: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
    ("collections", "deque"): lambda value: (list(value), value.maxlen),
    ("decimal", "Decimal"): lambda value: (str(value),),
    ("fractions", "Fraction"): lambda value: (value.numerator, value.denominator),
    ("datetime", "date"): lambda value: (value.year, value.month, value.day),
    ("datetime", "time"): lambda value: (value.hour, value.minute, value.second, value.microsecond),
    ("datetime", "datetime"): lambda value: (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond),
    ("datetime", "timedelta"): lambda value: (value.days, value.seconds, value.microseconds),
}
"""Types of the library that cross as what they are made of."""
EXACT: dict[type, Callable[[Any], Any]] = {
    int: lambda value: int.__add__(value, 0),
    float: float.__pos__,
    complex: complex.__pos__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda value: bytearray.__getitem__(value, slice(None)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    list: lambda value: list(list.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
}
"""A value of a subclass of one of these crosses as that, whatever methods it has."""
KINDS = {None: b"N", True: b"T", False: b"F"}
CONTAINERS: dict[type, bytes] = {list: b"l", tuple: b"t", dict: b"d", set: b"S", frozenset: b"Z"}
MAKERS: dict[int, Callable[[list[Any]], Any]] = {
    ord("l"): lambda items: items,
    ord("t"): tuple,
    ord("d"): lambda items: dict(zip(items[::2], items[1::2], strict=True)),
    ord("S"): set,
    ord("Z"): frozenset,
    ord("r"): lambda items: range(*items),
    ord("x"): lambda items: slice(*items),
    ord("c"): lambda items: complex(*items),
    ord("R"): lambda items: record(*items),
    ord("L"): lambda items: library_value(*items),
    ord("n"): lambda items: BY_NAME[items[0]],
}
"""What becomes of the items that follow a kind and their number."""
COUNT, INTEGER, FLOAT = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")


CATCHING_ALL = ("AssertionError", "BaseException", "Exception")


def forbid_catching_all() -> None:
    """From now on no value read here is a class that would catch the reader's own failed assertions."""
    for name in CATCHING_ALL:
        del BY_NAME[name]


class CannotCross(ValueError):
    """A value that has no exact form, or is too deep or too large."""


class Malformed(ValueError):
    """Bytes that no writer wrote."""


def refuse(value: Any) -> Any:
    """For messages, which hold plain values only."""
    raise CannotCross(f"a {type(value).__name__} has no form of its own")


def encode(value: Any, other: Other = refuse) -> bytes:
    """`value` as bytes. What has no form goes to `other`, which says what stands for it on the other side or raises CannotCross."""
    out: list[bytes] = []
    try:
        write(value, out, other)
    except (RecursionError, MemoryError):
        raise CannotCross("the value is too deep or too large") from None
    return b"".join(out)


def write(value: Any, out: list[bytes], other: Other) -> None:
    """The bytes of `value` are at the end of `out`."""
    kind = type(value)
    if kind is int:
        write_integer(value, out)
    elif kind is str:
        write_bytes(b"s", value.encode("utf-8", "surrogatepass"), out)
    elif kind is bool or value is None:
        out.append(KINDS[value])
    elif kind is float:
        out.append(b"f" + FLOAT.pack(value))
    elif kind in CONTAINERS:
        items = value if kind is not dict else [part for item in value.items() for part in item]
        write_items(CONTAINERS[kind], items, len(items), out, other)
    elif kind is bytes or kind is bytearray:
        write_bytes(b"b" if kind is bytes else b"B", value, out)
    else:
        write_unusual(value, kind, out, other)


def write_integer(value: int, out: list[bytes]) -> None:
    """An integer of any size."""
    if -(2**63) <= value < 2**63:
        out.append(b"i" + INTEGER.pack(value))
    else:
        write_bytes(b"I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True), out)


def write_bytes(kind: bytes, content: bytes | bytearray, out: list[bytes]) -> None:
    """A kind whose content has a length."""
    out.append(kind + COUNT.pack(len(content)))
    out.append(bytes(content))


def write_items(kind: bytes, items: Iterable[Any], count: int, out: list[bytes], other: Other) -> None:
    """A kind that is made of values."""
    out.append(kind + COUNT.pack(count))
    for item in items:
        write(item, out, other)


def write_unusual(value: Any, kind: type, out: list[bytes], other: Other) -> None:
    """A builtin, a value of the library's types, or of a subclass; all else is up to `other`."""
    if kind is complex:
        write_items(b"c", (value.real, value.imag), 2, out, other)
    elif kind is range or kind is slice:
        write_items(b"r" if kind is range else b"x", (value.start, value.stop, value.step), 3, out, other)
    elif id(value) in NAMES:
        write_items(b"n", (NAMES[id(value)],), 1, out, other)
    elif name := next((name for name in LIBRARY if kind is getattr(sys.modules.get(name[0]), name[1], None)), None):
        write_items(b"L", (*name, LIBRARY[name](value)), 3, out, other)
    elif base := next((base for base in EXACT if base in type.__dict__["__mro__"].__get__(kind)), None):
        fields = vars(kind).get("_fields") if base is tuple else None
        plain = EXACT[base](value)
        if isinstance(fields, tuple):
            write_items(b"R", (kind.__name__, fields, plain), 3, out, other)
        else:
            write(plain, out, other)
    else:
        write_items(b"o", other(value), 2, out, other)


def decode(data: bytes, known: Known = lambda name, body: refuse(name)) -> Any:
    """The value that `encode` wrote; `known` reads what its `other` wrote. Malformed."""
    try:
        value, end = read(data, 0, known)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError, RecursionError, MemoryError, struct.error) as error:
        raise Malformed(f"no value: {type(error).__name__}") from None
    if end != len(data):
        raise Malformed("more than one value")
    return value


def read(data: bytes, at: int, known: Known) -> tuple[Any, int]:
    """The value at this place, and where the next one begins."""
    kind = data[at]
    at += 1
    if kind == 105:  # i
        return INTEGER.unpack_from(data, at)[0], at + 8
    if kind == 102:  # f
        return FLOAT.unpack_from(data, at)[0], at + 8
    if kind in b"NTF":
        return (None, True, False)[b"NTF".index(kind)], at
    (count,) = COUNT.unpack_from(data, at)
    at += 4
    if kind in b"sbBI":
        return read_bytes(kind, data[at : at + count], count), at + count
    items = []
    for _ in range(count):
        item, at = read(data, at, known)
        items.append(item)
    return (known(*items) if kind == 111 else MAKERS[kind](items)), at


def read_bytes(kind: int, content: bytes, count: int) -> Any:
    """What has a length."""
    if len(content) != count:
        raise ValueError("cut off")
    if kind == 115:  # s
        return content.decode("utf-8", "surrogatepass")
    if kind == 73:  # I
        return int.from_bytes(content, "little", signed=True)
    return content if kind == 98 else bytearray(content)


def record(name: str, fields: tuple[str, ...], items: tuple[Any, ...]) -> Any:
    """A tuple whose items have names, as of collections.namedtuple, whose own making would evaluate text."""
    from operator import itemgetter

    properties: dict[str, Any] = {field: property(itemgetter(number)) for number, field in enumerate(fields) if not field.startswith("_")}
    return type(name, (tuple,), properties)(items)


def library_value(module: str, name: str, parts: tuple[Any, ...]) -> Any:
    """A value of one of the library's types; its module is imported when the first one arrives."""
    if (module, name) not in LIBRARY or type(parts) is not tuple:
        raise ValueError("no type that crosses")
    kinds = {"deque": (list, int, type(None)), "Decimal": (str,)}.get(name, (int,))
    if not all(type(part) in kinds for part in parts) or (name == "deque" and [type(part) for part in parts[:1]] != [list]):
        raise ValueError("not what such a value is made of")
    return getattr(__import__(module), name)(*parts)
