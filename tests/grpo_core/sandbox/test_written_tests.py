"""What is read of a test's text before any program is there."""

import pytest

from grpo_core.sandbox.written_tests import BadTest, Written


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("import math, os.path as p\nfrom re import sub as s, match", {"math", "p", "s", "match"}),
        ("import os.path", {"os"}),
        ("a, (b, *c) = 1, (2, 3)\nd += 1\ne: int = 5\ndel g", {"a", "b", "c", "d", "e", "g"}),
        ("for i in x:\n    with y as z:\n        w = 1", {"i", "z", "w"}),
        ("try:\n    pass\nexcept E as error:\n    pass", {"error"}),
        ("assert (n := f(1)) == n\nassert all((last := m) for m in x)", {"n", "last"}),
        ("def g(a):\n    b = 1\n    global c\n    c = 2\nclass D:\n    e = 1\nassert [h for h in x] and (lambda k: k)", {"g", "c", "D"}),
        ("match x:\n    case [u, *v]: pass\n    case {'k': 1, **r}: pass", {"u", "v", "r"}),
        ("from bisect import *", {"bisect", "bisect_left", "insort"}),
        ("from solution import *\nassert f(1)", set()),
        ("from nowhere import *\nassert f(1)", set()),
        ("from . import *\nassert f(1)", set()),
    ],
)
def test_the_names_that_a_test_binds_are_its_own(text: str, bound: set[str]) -> None:
    found = Written(text + "\nassert True", "f").bound
    assert bound <= found if "bisect" in text else found == bound


def test_a_name_that_means_a_library_is_left_to_the_program_only_where_it_is_called() -> None:
    test = Written("assert np.allclose(f(1), 2)\nassert queue(3) == 4\nassert copy.copy(f(1))", None)
    assert [test.leaves_open(name, is_module=False) for name in ("f", "np", "queue", "copy")] == [True, False, True, False]
    assert test.leaves_open("copy", is_module=True)


@pytest.mark.parametrize(
    "text",
    [
        "assert f(",
        "x = '\0'",
        "def check(candidate): pass",
        "import math",
        "'''words'''",
        "async def test(): assert f()",
        "def test(): yield f()",
        "def test(x): assert f(x)",
        "class Cases:\n    def test(self): assert f()",
        "(" * 10**5,
    ],
)
def test_a_text_that_can_test_nothing_is_told_so_whatever_the_program(text: str) -> None:
    with pytest.raises(BadTest, match=r"does not compile|only defines things|no entry point is named"):
        Written(text, None)


@pytest.mark.parametrize("text", ["assert f()", "def test(): assert f()", "import unittest\nclass C(unittest.TestCase): pass", "f()", "if x:\n    f()"])
def test_a_text_that_may_test_something_is_taken(text: str) -> None:
    Written(text, None)


def test_a_long_chain_of_operators_is_read() -> None:
    assert Written("assert f() == " + " + ".join(["x"] * 900), None).runs_something
