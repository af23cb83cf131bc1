"""What programs earn that are no more than right, wrong or slow."""

import os
import random
import signal
import threading
from pathlib import Path

import pytest

from grpo_core.sandbox.isolation import Limits
from grpo_core.sandbox.run_tests import BadTests, InputOutput, Job, Verdict, judge_all, same_output

LIMITS = Limits(cpu_seconds=1, wall_seconds=20)


def judged(program: str, *tests: str, entry_point: str | None = None) -> Verdict | BadTests:
    return judge_all([Job([program], entry_point, list(tests))], LIMITS)[0]


def passed(program: str, *tests: str, entry_point: str | None = None) -> int:
    """How many tests it passes, with nothing that stopped it."""
    verdict = judged(program, *tests, entry_point=entry_point)
    assert isinstance(verdict, Verdict), verdict
    assert verdict.ended is None, verdict
    return verdict.passed


def test_the_tests_that_hold_are_counted() -> None:
    assert passed("def f(x): return x + 1", "assert f(1) == 2", "assert f(1) == 3", "assert f(-1) == 0") == 2


def test_check_is_called_with_the_entry_point_as_humaneval_does() -> None:
    check = "def check(candidate):\n    assert candidate(2) == 4\n    assert helper(1) == 2\n"
    assert passed("def helper(x): return x * 2\ndef double(x): return helper(x)", check, entry_point="double") == 1
    assert passed("def helper(x): return x * 2\ndef double(x): return 5", check, entry_point="double") == 0


def test_functions_and_cases_named_as_test_runners_expect_are_run() -> None:
    functions = "from solution import f\ndef test_one():\n    assert f(1) == 2\ndef test_two():\n    assert f(2) == {}\n"
    body = "        self.assertEqual(f(1), {})\n        self.assertRaises(TypeError, f, 'a')\n"
    cases = "import unittest\nclass Cases(unittest.TestCase):\n    def test(self):\n" + body
    program = "def f(x): return x + 1"
    assert passed(program, functions.format(3), functions.format(4), cases.format(2), cases.format(3)) == 2


def test_the_first_text_that_is_a_program_with_the_entry_point_is_the_program() -> None:
    texts = ["    return x + 1", "def g(x): return 0", "def f(x):\n    return x + 1"]
    assert judge_all([Job(texts, "f", ["assert f(1) == 2"])], LIMITS) == [Verdict(1, 1)]
    wanting = [Job(["x = (1", "y = 2"], "f", ["f()"]), Job(["y = 2"], "f", ["f()"])]
    assert judge_all(wanting, LIMITS) == [
        Verdict(0, 1, "does not compile: SyntaxError: '(' was never closed (solution.py, line 1)"),
        Verdict(0, 1, "does not define 'f'"),
    ]


@pytest.mark.parametrize(
    "definition",
    ["f = lambda: 1", "if True:\n    def f(): return 1", "from math import pi as f", "class f: pass", "try:\n    import f\nexcept ImportError:\n    f = max"],
)
def test_an_entry_point_may_be_defined_in_any_way(definition: str) -> None:
    verdict = judged(definition, "assert f is not None", entry_point="f")
    assert isinstance(verdict, Verdict)
    assert verdict.ended is None


def test_values_come_back_exactly() -> None:
    program = (
        "def f(x): return x\ndef all_kinds(): return [1, 1.0, True, None, (1,), {1: {2}}, frozenset([3]), b'b', 'é\\ud800', 2**100, 1j, range(3), float('inf')]"
    )
    kinds = "value = all_kinds()\nassert value == [1, 1.0, True, None, (1,), {1: {2}}, frozenset([3]), b'b', 'é\\ud800', 2**100, 1j, range(3), float('inf')]\n"
    types = kinds + "assert list(map(type, value)) == [int, float, bool, type(None), tuple, dict, frozenset, bytes, str, int, complex, range, float]"
    assert (
        passed(program, kinds, types, "assert f([{'a': (1, [2])}]) == [{'a': (1, [2])}]", "assert f(int) is int", "import math\nassert math.isnan(f(math.nan))")
        == 5
    )


def test_arguments_changed_in_place_are_changed_for_the_tests() -> None:
    program = (
        "def sort(items): items.sort()\ndef turn(matrix): matrix[:] = [list(row) for row in zip(*matrix)]\n"
        "def add(d, s, k=None): d['new'] = 1; s.add(2); k.append(3)"
    )
    tests = [
        "items = [3, 1, 2]\nassert sort(items) is None\nassert items == [1, 2, 3]",
        "matrix = [[1, 2], [3, 4]]\nrow = matrix[0]\nturn(matrix)\nassert matrix == [[1, 3], [2, 4]]",
        "d, s, k = {}, set(), []\nadd(d, s, k=k)\nassert (d, s, k) == ({'new': 1}, {2}, [3])",
    ]
    assert passed(program, *tests) == 3


def test_exceptions_keep_their_classes() -> None:
    program = (
        "class Mine(ValueError): pass\ndef f(kind):\n    if kind == 'mine': raise Mine('text')\n    if kind == 'key': raise KeyError('k')\n"
        "    if kind == 'bytes': b'\\xff'.decode()\n    class Other(Exception): pass\n    raise Other('other')\n"
    )
    caught = "try:\n    f({!r})\nexcept {} as error:\n    assert {}\nelse:\n    assert False"
    cases = [
        ("mine", "Mine", "str(error) == 'text'"),
        ("mine", "ValueError", "True"),
        ("key", "KeyError", "error.args == ('k',)"),
        ("bytes", "UnicodeError", "True"),
        ("x", "Exception", "str(error) == 'other'"),
    ]
    assert passed(program, *(caught.format(*case) for case in cases), caught.format("key", "IndexError", "True")) == 5


CLASSES = """
class Stack:
    limit = 3
    def __init__(self, items=()): self.items = list(items)
    def push(self, x): self.items.append(x); return self
    def __len__(self): return len(self.items)
    def __getitem__(self, i): return self.items[i]
    def __contains__(self, x): return x in self.items
    def __eq__(self, other): return self.items == other.items
    def __lt__(self, other): return len(self) < len(other)
    def __add__(self, other): return Stack(self.items + other.items)
    def __repr__(self): return f'Stack({self.items})'
def make(): return Stack([1])
def count(n):
    for i in range(n): yield i
def endless():
    i = 0
    while True:
        yield i
        i += 1
def apply(g, items): return [g(x) for x in items]
def total(items): return sum(items)
def adder(n): return lambda x: x + n
"""


@pytest.mark.parametrize(
    "test",
    [
        "s = Stack()\nassert s.push(1).push(2).items == [1, 2] and len(s) == 2 and s[0] == 1 and s[-1] == 2",
        "s = Stack([1, 2])\nassert 2 in s and 3 not in s and list(s) == [1, 2] and s and not Stack()",
        "assert Stack([1]) == Stack([1]) and Stack([1]) != Stack([2]) and Stack() < Stack([1])",
        "assert (Stack([1]) + Stack([2])).items == [1, 2] and Stack([1]) + Stack([2]) == Stack([1, 2])",
        "assert str(Stack([1])) == 'Stack([1])' and repr(make()) == 'Stack([1])' and f'{make()}' == 'Stack([1])'",
        "assert isinstance(make(), Stack) and not isinstance(3, Stack) and Stack.limit == 3",
        "s = Stack()\ns.items = [4]\nassert s.items == [4]",
        "assert list(count(3)) == [0, 1, 2] and sum(count(5000)) == 12497500",
        "from itertools import islice\nassert list(islice(endless(), 5)) == [0, 1, 2, 3, 4]",
        "assert apply(lambda x: x * 2, [1, 2]) == [2, 4] and apply(str.upper, ['a']) == ['A'] and apply(len, ['ab']) == [2]",
        "assert total(x for x in [1, 2]) == 3 and total(iter([])) == 0 and total(count(3)) == 3",
        "assert adder(2)(3) == 5 and apply(adder(1), [1]) == [2]",
    ],
)
def test_objects_that_cannot_cross_are_used_from_afar(test: str) -> None:
    assert passed(CLASSES, test) == 1


@pytest.mark.parametrize(
    "test",
    ["assert make() == 1", "assert 5 in make()", "assert make() < 5", "assert abs(make() - 3) < 1", "assert make() == make()", "s = Stack()\nassert s == 5"],
)
def test_no_object_that_a_function_returns_says_of_itself_what_it_equals(test: str) -> None:
    lies = "\n".join(
        f"    def __{name}__(self, *others): return {'self' if name in ('sub', 'abs') else 'True'}" for name in ("eq", "lt", "contains", "sub", "abs")
    )
    assert passed(f"class Stack:\n{lies}\ndef make(): return Stack()", test) == 0


def test_what_the_tests_pass_in_can_be_called_and_not_looked_into() -> None:
    """A function leads to the tests' own names, and so to what they expect."""
    program = (
        "def f(g):\n    for name in ('__globals__', '__closure__', '__code__', '__self__', 'gi_frame'):\n"
        "        if hasattr(g, name) and 'expected' in str(getattr(g, name)): return 42\n"
        "    for do in (['operator', 'getattr'], ['get', 0], ['call', 0]):\n"
        "        try: return getattr(g, '_call', g._take)(do, (g, '__globals__'), {})['expected']\n"
        "        except Exception: pass\n"
    )
    assert passed(program, "expected = 42\nassert f(lambda x: x) == 42", "expected = 42\nassert f(x for x in [expected]) == 42") == 0


def test_a_swallowed_exit_still_fails_the_test_and_only_that() -> None:
    program = "def f(x):\n    if x: raise SystemExit(0)\n    return 1"
    assert passed(program, "try:\n    f(1)\nexcept BaseException:\n    pass", "assert f(0) == 1") == 1


def test_a_limit_hit_in_one_test_fails_it_and_those_after_it() -> None:
    program = "def f(x):\n    while x == 2: pass\n    return x"
    assert judged(program, "assert f(1) == 1", "try:\n    f(2)\nexcept BaseException:\n    pass", "assert f(3) == 3") == Verdict(
        1, 3, "went over the limit of 1 s of processor time"
    )


def test_scripts_are_compared_by_what_they_print() -> None:
    add = "import sys\nprint(sum(map(int, sys.stdin.read().split())), end=' \\n\\n')\nexit()"
    tests = [InputOutput("1 2\n", "3\n"), InputOutput("1 2", "4"), InputOutput("x", "3"), InputOutput("", "0")]
    assert judge_all([Job([add], None, tests)], LIMITS) == [Verdict(2, 4)]
    main = "def main():\n    print(input(), input())\nif __name__ == '__main__':\n    main()"
    assert judge_all([Job([main], None, [InputOutput("é 1\nb\n", "é 1 b")])], LIMITS) == [Verdict(1, 1)]


@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        ("print(1)\nraise SystemExit(1)", Verdict(0, 2)),
        ("print(1)\nimport os, sys\nsys.stdout.flush()\nos._exit(0)", Verdict(2, 2)),
        ("print(1", Verdict(0, 2, "does not compile")),
        ("while True: pass", Verdict(0, 2, "went over the limit of 1 s of processor time")),
        ("while True: print('x' * 10**5)", Verdict(0, 2, "wrote more than 1,048,576 bytes")),
        ("import os\nos.kill(os.getpid(), 11)", Verdict(0, 2, "crashed (SIGSEGV)")),
    ],
)
def test_a_script_that_ends_badly(script: str, verdict: Verdict) -> None:
    assert judge_all([Job([script], None, [InputOutput("", "1"), InputOutput("", "1")])], LIMITS) == [verdict]


def test_white_space_at_the_ends_of_lines_does_not_count() -> None:
    assert same_output("a \nb\n\n", "a\nb")
    assert not same_output("a\n\nb", "a\nb")
    assert not same_output(" a", "a")


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("assert f(", r"test 2 does not compile \('\(' was never closed \(tests.py, line 1\)\)"),
        ("def check(candidate): candidate()", r"test 2 defines check\(candidate\), and no entry point is named"),
        ("import math\nVALUE = 3\ndef helper(): pass", "test 2 only defines things: it needs an assert"),
    ],
)
@pytest.mark.parametrize("program", ["def f(): return 1", "import os\nf = 3", "def check(c): pass\ndef f(): raise SystemExit"])
def test_tests_that_cannot_be_run_are_our_mistake_whatever_the_program(test: str, said: str, program: str) -> None:
    outcome = judged(program, "assert 1 + 1 == 2", test)
    assert isinstance(outcome, BadTests)
    with pytest.raises(BadTests, match=said):
        raise outcome


@pytest.mark.parametrize(
    "raising",
    [
        "class M(type):\n    __name__ = property(lambda c: '\\ud800x')\nclass E(Exception, metaclass=M): pass\nraise E()",
        "class M(type):\n    __name__ = 4\n    __mro__ = ()\nclass E(Exception, metaclass=M): pass\nraise E()",
        "raise type('E' * 10**6, (Exception,), {})()",
        "raise type('E\\n\\x1b[2J', (Exception,), {})()",
        "def f(:\\ud800",
    ],
)
def test_a_reason_is_short_plain_text_whatever_the_program_calls_its_exceptions(raising: str) -> None:
    verdict = judged(raising, "f()")
    assert isinstance(verdict, Verdict) and verdict.ended is not None
    assert verdict.ended.startswith(("raised E", "does not compile"))
    assert len(verdict.ended.encode()) <= 200 and verdict.ended.isprintable()


def test_an_exception_whose_class_lies_about_its_name_is_raised_for_the_tests() -> None:
    program = "class M(type):\n    __name__ = property(lambda c: 1 / 0)\nclass E(ValueError, metaclass=M): pass\ndef f(): raise E"
    assert passed(program, "try:\n    f()\nexcept ValueError:\n    pass") == 1


def test_an_end_of_iteration_does_not_end_the_loops_of_the_tests() -> None:
    program = "def f(x): raise StopIteration\nclass End(StopIteration): pass\ndef g(x): raise End"
    loop = "assert all(map(lambda x: {}(x) == x, [1, 2]))"
    assert passed(program, loop.format("f"), loop.format("g"), "assert list(map(f, [1])) == []") == 0


def test_a_class_of_exceptions_that_the_program_names_does_not_catch_failed_assertions() -> None:
    program = "class Stack:\n    Empty = AssertionError\n    Wide = (ValueError, Exception)\n    def pop(self): return 1\nErrors = (AssertionError,)"
    test = "try:\n    Stack().pop()\n    assert False, 'nothing was raised'\nexcept {}:\n    pass"
    assert judged(program, test.format("Stack.Empty")) == Verdict(0, 1, "sent its tests what is no value")
    assert judged(program, test.format("Stack.Wide")) == Verdict(0, 1, "sent its tests what is no value")
    assert passed(program, test.format("Errors"), "assert Stack().pop() == 1") == 1


def test_names_of_the_tests_and_of_libraries_are_not_the_programs() -> None:
    program = "def f(x): return 0\ndef isclose(*values): return True\nabs = all = check = isclose\nclass np: isclose = allclose = isclose\nmath = np"
    tests = [
        "from math import isclose\nassert isclose(f(1), 2)",
        "import math\nassert math.isclose(f(1), 2)",
        "assert math.isclose(f(1), 2)",
        "assert np.allclose(f(1), 2)",
        "from math import *\nfrom solution import *\nassert isclose(f(1), 2)",
        "import math\nfrom solution import *\nassert math.isclose(f(1), 2)",
        "assert all([f(1) == 2]) and abs(f(1) - 2) < 1",
        "def isclose(a, b):\n    return a == b\nassert isclose(f(1), 2)",
    ]
    assert passed(program, *tests) == 0


def test_a_function_may_bear_the_name_of_a_library_and_a_check_the_name_of_a_builtin() -> None:
    assert passed("def queue(x): return x + 1", "assert queue(1) == 2") == 1
    check = "def check(candidate):\n    assert candidate([1, 2]) == 3 and sum([1, 1]) == 2"
    assert passed("def sum(x): return 3", check, entry_point="sum") == 1
    assert passed("def check(x): return 3", check, entry_point="check") == 1


def test_a_text_that_runs_its_own_cases_is_judged_by_them() -> None:
    text = "import unittest\nfrom solution import f\nclass Cases(unittest.TestCase):\n    def test(self):\n        self.assertEqual(f(1), {})\nunittest.main()"
    skipped = "import unittest\nclass Cases(unittest.TestCase):\n    def test(self):\n        f(1)\n        self.skipTest('')"
    assert passed("def f(x): return x + 1", text.format(2), text.format(3), skipped) == 1


def test_a_large_constant_of_the_program_is_no_trouble() -> None:
    assert passed("PRIMES = list(range(10**6))\nMORE = ['x' * 10**7]\ndef f(x): return PRIMES[x]", "assert f(3) == 3") == 1


def test_a_test_that_asks_nothing_of_the_program_is_not_passed() -> None:
    assert passed("def f(): return 1\nLIMIT = 3", "assert 1 + 1 == 2", "assert LIMIT == 3") == 1


def test_what_is_random_is_the_same_each_time() -> None:
    program = "import random\nVALUES = [random.random() for _ in range(3)] + list({'a', 'b', 'c'})\ndef f(): return VALUES"
    draw = "import random\nassert f()[:3] == [random.random() for _ in range(3)]"
    assert passed(program, draw) == 1


def test_verdicts_come_in_the_order_of_the_jobs_and_each_is_announced() -> None:
    jobs = [
        Job([f"import time\ntime.sleep({0.05 * (number % 3)})\ndef f(): return {number}"], "f", [f"assert f() == {number}"] * (number + 1))
        for number in range(9)
    ]
    heard: list[None] = []
    verdicts = judge_all(jobs, LIMITS, on_verdict=lambda: heard.append(None))
    assert verdicts == [Verdict(number + 1, number + 1) for number in range(9)]
    assert len(heard) == 9


def cells_of(mark: int) -> list[int]:
    """bwrap processes that have these bytes of memory as their limit."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"bwrap") and str(mark).encode() in words:
            found.append(int(command.parent.name))
    return found


def test_killing_cells_in_the_middle_loses_nothing() -> None:
    limits = Limits(cpu_seconds=2, wall_seconds=20, memory_bytes=256 * 2**20 + 4096 * (77 + os.getpid() % 4096))
    program = "import time\ndef f(x):\n    time.sleep(0.02)\n    return x + 1"
    jobs = [Job([program], "f", [f"assert f({number}) == {number + 1}"] * 5 + ["assert f(0) == 0"]) for number in range(24)]
    stop, generator = threading.Event(), random.Random(0)
    killed: list[int] = []

    def kill_some() -> None:
        while not stop.wait(0.1) and len(killed) < 10:
            if cells := cells_of(limits.memory_bytes):
                os.kill(generator.choice(cells), signal.SIGKILL)
                killed.append(len(cells))

    killer = threading.Thread(target=kill_some)
    killer.start()
    verdicts = judge_all(jobs, limits)
    stop.set()
    killer.join()
    assert killed
    assert verdicts == [Verdict(5, 6)] * 24
