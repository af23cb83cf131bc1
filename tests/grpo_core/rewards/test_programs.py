"""What code_tests pays for completions, and which of their texts it takes for the program."""

# ruff: noqa: E501  # a program is one text

import json
from typing import Any

import pytest

from grpo_core.rewards.outcomes import Invalid, RewardError
from grpo_core.rewards.programs import code_tests, last_block, programs, read_tests
from grpo_core.sandbox.run_tests import InputOutput

MARGIN = "from typing import List\n\n\n"
PROBLEMS: list[dict[str, Any]] = [  # in HumanEval's own format: the completion is the body
    {
        "prompt": MARGIN
        + 'def largest_gap(numbers: List[int]) -> int:\n    """ Largest difference of two neighbours in sorted order; 0 if there are none.\n    >>> largest_gap([1, 9, 4])\n    5\n    """\n',
        "entry_point": "largest_gap",
        "canonical_solution": "    ordered = sorted(numbers)\n    return max((b - a for a, b in zip(ordered, ordered[1:])), default=0)\n",
        "test": "\n\nMETADATA = {'author': 'us'}\n\n\ndef check(candidate):\n    assert candidate([1, 9, 4]) == 5\n    assert candidate([]) == 0\n    assert candidate([3, 3]) == 0\n",
    },
    {
        "prompt": 'def evaluate(coefficients: list, x: float) -> float:\n    """ Value at x of the polynomial with these coefficients, lowest first. """\n    return sum(c * x**n for n, c in enumerate(coefficients))\n\n\ndef find_root(coefficients: list) -> float:\n    """ A root of a polynomial of odd degree. """\n',
        "entry_point": "find_root",
        "canonical_solution": "    low, high = -1.0, 1.0\n    while evaluate(coefficients, low) * evaluate(coefficients, high) > 0:\n        low, high = 2 * low, 2 * high\n    for _ in range(200):\n        middle = (low + high) / 2\n        if evaluate(coefficients, low) * evaluate(coefficients, middle) <= 0:\n            high = middle\n        else:\n            low = middle\n    return low\n",
        "test": "\n\ndef check(candidate):\n    import math\n    import random\n    rng = random.Random(1)\n    for _ in range(20):\n        coefficients = [rng.randint(1, 9) for _ in range(4)]\n        root = candidate(list(coefficients))\n        assert math.fabs(evaluate(coefficients, root)) < 1e-4\n",
    },
    {
        "prompt": 'def encode_shift(s: str) -> str:\n    """ Every letter replaced by the one five places on. """\n    return "".join(chr((ord(c) - 97 + 5) % 26 + 97) for c in s)\n\n\ndef decode_shift(s: str) -> str:\n    """ The text that encode_shift made s of. """\n',
        "entry_point": "decode_shift",
        "canonical_solution": '    return "".join(chr((ord(c) - 97 - 5) % 26 + 97) for c in s)\n',
        "test": "\n\ndef check(candidate):\n    import copy\n    for text in ('', 'hello', 'xyz'):\n        assert candidate(copy.deepcopy(encode_shift(text))) == text\n",
    },
    {
        "prompt": 'def keep_numbers(values: list) -> list:\n    """ The ints among the values, in order. """\n',
        "entry_point": "keep_numbers",
        "canonical_solution": "    return [v for v in values if isinstance(v, int) and not isinstance(v, bool)]\n",
        "test": "\n\ndef check(candidate):\n    assert candidate([4, {}, [], 23.2, 9, 'adasd', True, None]) == [4, 9]\n    assert candidate([]) == []\n",
    },
]


def column(name: str) -> list[Any]:
    return [problem[name] for problem in PROBLEMS]


def paid(completion: Any, tests: Any, prompt: Any = "", **options: Any) -> float | Invalid | None:
    columns: dict[str, Any] = {"tests": [tests]} | {name: [options.pop(name)] for name in ("entry_point",) if name in options}
    return code_tests([completion], [prompt], **columns, **options)[0]


def test_bodies_of_functions_in_humanevals_format_are_paid_when_they_are_right() -> None:
    columns: dict[str, Any] = {"tests": column("test"), "entry_point": column("entry_point")}
    right, emptied = column("canonical_solution"), ["    pass\n"] * len(PROBLEMS)
    assert code_tests(right, column("prompt"), **columns) == [1.0] * len(PROBLEMS)
    assert code_tests(emptied, column("prompt"), **columns) == [0.0] * len(PROBLEMS)


def test_a_chat_completion_is_paid_for_the_code_in_its_last_block() -> None:
    problem = PROBLEMS[0]
    whole = MARGIN + problem["prompt"] + problem["canonical_solution"]
    reply = [
        {
            "role": "assistant",
            "content": f"First try:\n```python\ndef largest_gap(numbers): return 1\n```\nBetter:\n```python\n{whole}```\nRun it with\n```bash\npython x.py\n```",
        }
    ]
    prompt = [{"role": "user", "content": "Write largest_gap."}]
    assert paid(reply, problem["test"], prompt, entry_point="largest_gap") == 1.0


def test_the_reward_is_the_share_of_tests_that_pass() -> None:
    tests = ["assert f(1) == 1", "assert f(2) == 4", "assert f(3) == 9", "assert f(-1) == 1"]
    assert paid("def f(x): return x", tests) == 0.25
    assert paid("def f(x): return x * x", json.dumps(tests)) == 1.0
    assert paid("def f(x): return None", tests) == 0.0


def test_scripts_are_paid_by_their_output() -> None:
    tests = [{"input": "2 3\n", "output": "5"}, {"input": "1 1\n", "output": "2\n"}, {"input": "1\n", "output": "1"}]
    script = "```\na, b = map(int, input().split())\nprint(a + b)\n```"
    assert paid(script, tests) == paid(script, json.dumps(tests)) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("I do not know.", "the program does not compile: SyntaxError: invalid syntax (solution.py, line 1)"),
        ("def g(x): return x", "the program does not define 'f'"),
        ("import missing\ndef f(x): return x", "the program raised ModuleNotFoundError while it was loaded"),
        ("import os\ndef f(x): os._exit(0)", "the program ended in the middle (exit status 0)"),
        ("def f(x):\n    while True: pass", "the program went over the limit of 1 s of processor time"),
        ("def f(x): return x #" + "x" * 2**20, "the program is longer than 1,048,576 characters"),
    ],
)
def test_what_is_no_program_or_breaks_is_invalid_and_says_why(completion: str, reason: str) -> None:
    assert paid(completion, ["assert f(1) == 1", "assert f(2) == 2"], entry_point="f", cpu_seconds=1.0) == Invalid(reason)


def test_what_broke_late_is_paid_for_what_it_passed() -> None:
    assert paid(
        "def f(x): return x if x == 1 else f(1, 1) if x == 2 else exit()", ["assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3"]
    ) == pytest.approx(1 / 3)
    assert paid("def f(x):\n    while x > 1: pass\n    return x", ["assert f(1) == 1", "assert f(2) == 2"], cpu_seconds=1.0) == 0.5


def test_a_memory_limit_holds() -> None:
    program = "def f(): return len(bytearray(200 * 2**20))"
    assert paid(program, "assert f()", memory_mib=128) == 0.0
    assert paid(program, "assert f()", memory_mib=512) == 1.0


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("no block", None),
        ("```python\na\n```", "a"),
        ("```py\na\n```\ntext\n```\nb\n  c\n```", "b\n  c"),
        ("```python3\na\n```\n```json\n{}\n```", "a"),
        ("```bash\nls\n```", None),
        ("```python\na\n```\nand\n```python\nb = (", "a"),
        ("```python\nb = (", "b = ("),
        ("  ```Python  \na\n  ```  ", "a"),
        ("```python\ns = '```'\n```", "s = '```'"),
        ("x = '```python' in text", None),
        ("```" * 10**5, None),
        ("```\n" * 10**5, ""),
        ("```x = 1``` is how it starts.\n\n```python\na\n```", "a"),
        ("```` ``` ```` is a fence\n```\na\n```", "a"),
        ("~~~python\na\n~~~", "a"),
        ("~~~\na\n```\nb\n~~~", "a\n```\nb"),
        ("````python\na\n```\nb\n````", "a\n```\nb"),
        ("```python\na\n`````", "a"),
        ("~~~ python `x`\na\n~~~", "a"),
        ("```python3.11\na\n```", "a"),
        ("``` {.python .numberLines}\na\n```", "a"),
        ('```python title="a.py"\na\n```', "a"),
        ("```pycon\n>>> a\n```", None),
    ],
)
def test_the_last_block_is_found(text: str, block: str | None) -> None:
    assert last_block(text) == block


def test_the_block_that_has_the_function_is_meant_not_the_one_that_shows_its_use() -> None:
    text = "```python\ndef f(x):\n    return x\n```\nUse it so:\n```python\nprint(f(1))\n```\n"
    assert last_block(text) == "print(f(1))"
    assert last_block(text, "f") == "def f(x):\n    return x"
    assert last_block(text, "g") == "print(f(1))"
    assert last_block("```\nf = max\n```\n```\nf(1, 2)\n```", "f") == "f = max"
    assert programs("", text, "f")[0] == "def f(x):\n    return x"


def test_the_program_may_be_the_completion_or_the_prompt_continued() -> None:
    assert programs("def f():\n", "    return 1") == ["    return 1", "def f():\n    return 1"]
    assert programs("P\n", "so:\n```\nx\n```") == ["x", "P\nx", "P\nso:\n```\nx\n```"]


@pytest.mark.parametrize(
    ("given", "tests"),
    [
        ("assert f()", ["assert f()"]),
        ('["assert f()", "assert g()"]', ["assert f()", "assert g()"]),
        ('"assert f()"', ["assert f()"]),
        ("[f() for _ in range(3)]", ["[f() for _ in range(3)]"]),
        ([{"input": "", "output": "1"}], [InputOutput("", "1")]),
        ('[{"input": "a", "output": "1"}]', [InputOutput("a", "1")]),
    ],
)
def test_tests_come_in_three_kinds_and_as_json_of_them(given: Any, tests: Any) -> None:
    assert read_tests(0, given) == tests


@pytest.mark.parametrize(
    "given", ["", "  ", [], None, 5, [1], ["assert f()", ""], [{"input": "a"}], [{"input": 1, "output": "1"}], "[]", ["a", {"input": "", "output": ""}]]
)
def test_tests_of_no_known_kind_name_the_row(given: Any) -> None:
    with pytest.raises(
        RewardError, match=r"reward 'code_tests': row 3: tests must be Python text, a list of such texts, or a list of {'input': text, 'output': text}, got"
    ):
        read_tests(3, given)


def test_data_that_cannot_be_used_is_our_mistake_and_named() -> None:
    with pytest.raises(RewardError, match=r"there is no column 'unit_tests'; name the one that holds tests in reward_options.code_tests.tests_column"):
        code_tests(["x = 1"], [""], tests_column="unit_tests", tests=["assert x"])
    with pytest.raises(RewardError, match=r"row 1: test 1 does not compile .*; correct the tests of this prompt"):
        code_tests(["x = 1", "x = 1"], ["", ""], tests=["assert x", "assert ("])
    with pytest.raises(RewardError, match=r"row 0: the entry point must be the name of a function, got 'a b'"):
        paid("x = 1", "assert x", entry_point="a b")
    with pytest.raises(RewardError, match=r"row 0: test 1 defines check\(candidate\), and no entry point is named"):
        paid("x = 1", "def check(candidate): pass")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory_mib": 8}, "memory_mib must be at least 64 .*, got 8"),
        ({"cpu_seconds": -1.0}, "cpu_seconds must be a positive number, got -1"),
        ({"cpu_seconds": 20.0}, r"wall_seconds must be at least cpu_seconds \(20\), got 10"),
    ],
)
def test_an_option_that_limits_nothing_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(RewardError, match=rf"reward_options.code_tests.*{said}"):
        paid("x = 1", "assert x", **options)


def test_columns_may_have_other_names() -> None:
    assert code_tests(["def f(): return 1"], [""], tests_column="checks", entry_point_column="name", checks=["def check(c): assert c() == 1"], name=["f"]) == [
        1.0
    ]
