import time

import pytest

from grpo_core.sandbox.guard import EVALUATED, answer_refusal, formula_refusal


@pytest.mark.parametrize(
    "formula",
    [
        r"\frac{1}{2}",
        r"2\sqrt{3}+x^{2}",
        r"(-\infty, 2] \cup [3, \infty)",
        r"\{1, 2, 3\}",
        r"x = 5 \text{ or } x = 6",
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        r"2^{2023}-1",
        r"2^{3^{2}}",
        r"\frac{10!}{3!7!}",
        r"\log_2 3",
        r"a_1 + a_{12}",
        r"12\%",
        r"|x-1| < \lfloor 3.5 \rfloor",
        r"\sin^2 \theta",
        "3:2",
    ],
)
def test_answers_as_people_write_them_pass(formula: str) -> None:
    assert formula_refusal(formula) is None


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        ("1" * 401, "longer than 400"),
        ("x'", "U+0027"),
        ("4\u200b2", "U+200B"),
        (r"\input{x}", "commands that no answer needs: input"),
        (r"\begin{verbatim}", "verbatim"),
        (r"\%\(", "commands"),
        ("abs(x)", "words in a formula: abs"),
        ("x__class__", "words in a formula"),
        (r"\text{exec}", "words in a formula: exec"),
        ("(" * 13 + ")" * 13, "nested more than 12 deep"),
        ("9^{9^{9^9}}", "a tower of powers"),
        ("9^9^9", "a tower of powers"),
        ("x^{12345}", "an exponent"),
        ("1e9999", "an exponent"),
        ("10000!", "a factorial"),
        ("(3!)!", "a factorial"),
        ("1" * 61, "a number of more than 60 digits"),
        ("42_8", "a subscript"),
        (r"\{1,\ldots\}", "ldots"),
        (r"\operatorname{eye}(9)", "operatorname"),
    ],
)
def test_the_rest_is_refused_with_its_reason(formula: str, reason: str) -> None:
    assert reason in (formula_refusal(formula) or "")


@pytest.mark.parametrize("bait", ["(", "^", "\\text{", "a ", "!", "1", "\\", "{,}", "^{1}", "1_", "e", "\\begin{"])
def test_a_refusal_takes_no_time(bait: str) -> None:
    started = time.process_time()
    for length in (399, 1_000_000):
        formula_refusal((bait * length)[:length])
        for task in ("countdown", "simple_integration", "ab"):
            answer_refusal(task, (bait * length)[:length])
    assert time.process_time() - started < 2


@pytest.mark.parametrize("task", ["countdown", "puzzle24"])
@pytest.mark.parametrize("answer", ["40*(94 - 90) + 83 - 74", "53*58/53 + 53", "-7*3"])
def test_arithmetic_passes(task: str, answer: str) -> None:
    assert answer_refusal(task, answer) is None


@pytest.mark.parametrize(
    "answer",
    ["floor(pi)*8", "True+True", "4!", "2**3", "7//2", "24 # 1 2 3", "1.5", "1_0", "[24][0]", "(" * 20 + "24" + ")" * 20, "1+" * 300 + "1", "\uff11+1", "'a'"],
)
def test_anything_but_arithmetic_is_refused(answer: str) -> None:
    assert answer_refusal("countdown", answer) is not None


@pytest.mark.parametrize(
    "answer", ["2*x**10/5 + 5*x**9 - 2*x + C", "exp(2*X)*sin(X)/2 + C", "2*(4*x + 2)**(3/2)/3 + C", "0.5*x**2", "x*asin(3*x) + sqrt(1 - 9*x**2)/3 + C"]
)
def test_algebra_passes(answer: str) -> None:
    assert answer_refusal("intermediate_integration", answer) is None


@pytest.mark.parametrize(
    "answer",
    [
        "Integral(x**2, x)",
        "integrate(x)",
        "x.__class__",
        "x.diff",
        "S(1)",
        "N(pi, 99999)",
        "lambda: x",
        "x if x else x",
        "__import__('os')",
        "Symbol('x')",
        "x**99999",
        "9**9**99",
        "f(x)[0]",
        "x;y",
        "1" * 61,
        "0x41",
    ],
)
def test_anything_but_algebra_is_refused(answer: str) -> None:
    assert answer_refusal("simple_integration", answer) is not None


def test_other_tasks_may_be_answered_with_any_words() -> None:
    for answer in ("import lambda __class__", '{"0": 1}', "[['Q', '_'], ['_', 'Q']]", "\U0001f642", "\u00ac(P \u2194 Q)", "nan"):
        assert answer_refusal("ab", answer) is None
    assert answer_refusal("ab", "a\0b") is not None
    assert answer_refusal("ab", "a\ud800") is not None
    assert answer_refusal("ab", "a" * 20_001) is not None


def test_all_tasks_that_evaluate_an_answer_are_known() -> None:
    """Of the installed reasoning-gym: every module that gives text to sympy's parser or to `eval`."""
    import importlib.util
    import re
    from pathlib import Path

    spec = importlib.util.find_spec("reasoning_gym")
    assert spec is not None and spec.origin is not None
    calls = re.compile(r"(?<![\w.])(?:eval|exec)\(|(?:sympy\.|sp\.|\s|\()parse_expr\(|sympify\(")
    found = {path.stem for path in Path(spec.origin).parent.rglob("*.py") if calls.search(path.read_text(encoding="utf-8"))}
    reads_a_list = {"binary_matrix", "spiral_matrix", "string_insertion", "n_queens"}
    only_our_data = {"basic_arithmetic", "bitwise_arithmetic", "codeio", "number_sorting", "generators_00_49", "generators_50_99"}
    own_parser = {"propositional_logic"}
    assert found == set(EVALUATED) | reads_a_list | only_our_data | own_parser
