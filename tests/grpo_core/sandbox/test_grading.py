import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from grpo_core.rewards.outcomes import RewardError
from grpo_core.sandbox.grading import Graders, Verdict, graders, library_folders


@pytest.fixture
def fresh() -> Iterator[Graders]:
    made = Graders("mathematics")
    yield made
    made.close()


def formulas(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"reference": reference, "found": found, "is_real": True} for reference, found in pairs]


def grade(*pairs: tuple[str, str], cpu_seconds: float = 3.0) -> list[Verdict]:
    return graders("mathematics").grade(formulas(*pairs), cpu_seconds)


def test_verdicts_come_in_the_order_of_the_items() -> None:
    pairs = [(str(n), f"{n - 1}+{1 + n % 2}") for n in range(20)]
    assert [verdict.score for verdict in grade(*pairs)] == [float(n % 2 == 0) for n in range(20)]


def test_an_item_over_its_processor_time_costs_the_others_nothing() -> None:
    slow, right = grade(("x", r"\binom{9999999}{4999999}"), ("4", "2+2"), cpu_seconds=0.5)
    assert slow == Verdict(None, "took more than 0.5 s of processor time")
    assert right == Verdict(1.0)


def test_deep_nesting_is_no_crash() -> None:
    verdicts = grade(("1", "(" * 3000 + "1" + ")" * 3000), ("1", r"\frac{1}{" * 200 + "1" + "}" * 200), cpu_seconds=1.0)
    assert [verdict.score for verdict in verdicts] == [None, None]
    assert all("RecursionError" in verdict.reason or "processor time" in verdict.reason for verdict in verdicts)


def test_our_own_data_is_told_from_the_models_text() -> None:
    ours, theirs = grade((r"\frac{1}{", "2"), ("2", r"\frac{1}{"))
    assert ours.is_our_data and not theirs.is_our_data
    assert ours.score is None and theirs.score is None


CODE = [
    "__import__('os').system('id')",
    "eval('42')",
    r"\text{__import__('os')._exit(0)}",
    r"f(__import__('os').getpid())",
    r"\variable{__import__('os').abort()}",
    r"x_{__import__('os').abort()}",
    r"\operatorname{__import__}(42)",
    r"\gcd(42, __import__('os').abort())",
    r"\begin{pmatrix} exec('1') \end{pmatrix}",
    r"\frac{d}{d__import__('os')} 42",
]


@pytest.mark.parametrize("text", CODE)
def test_what_passes_the_guard_by_mistake_is_still_not_executed(text: str) -> None:
    """The grammar alone, without the guard: no text becomes 42, and none ends the child."""
    (verdict,) = grade(("42", text))
    assert verdict.score in (0.0, None) and "ended" not in verdict.reason and "crashed" not in verdict.reason


def reasoning(task: str, answer: str, metadata: dict[str, Any]) -> Verdict:
    entry = {"question": "?", "answer": "24", "metadata": metadata}
    (verdict,) = graders("reasoning").grade([{"task": task, "config": {}, "entry": entry, "answer": answer}], 3.0)
    return verdict


ESCAPES = [
    "__import__('os').system('true') * 0 + 1 + 2 + 3 + 18",
    "().__class__.__base__.__subclasses__()",
    "(lambda: 24)()",
    "[c for c in (1,)]",
    "open('/etc/passwd')",
    "exec('import os')",
    "sympify('24')",
    "S('24')",
    "Symbol('x').__class__",
    "getattr(Symbol('x'), 'name')",
    "print(24)",
    "globals()",
]


@pytest.mark.parametrize("answer", ESCAPES)
@pytest.mark.parametrize("task", ["puzzle24", "simple_integration"])
def test_the_audit_hook_stops_what_a_parser_would_evaluate(task: str, answer: str) -> None:
    """Given to the verifiers that evaluate, without the guard: the child refuses to run it."""
    metadata = {"numbers": ["list", 1, 2, 3, 18], "variable": "x", "integrand": "24"}
    verdict = reasoning(task, answer, metadata)
    assert verdict.score is None or verdict.score <= 0.01, verdict


@pytest.mark.parametrize("task", ["binary_matrix", "spiral_matrix", "string_insertion", "n_queens"])
def test_verifiers_that_read_a_list_no_longer_evaluate_it(task: str) -> None:
    verdict = reasoning(task, "__import__('os')._exit(0) or [24]", {"valid_answers": ["list", "24"]})
    assert verdict == Verdict(0.0)


def test_a_cell_killed_from_outside_loses_nothing(fresh: Graders) -> None:
    assert fresh.grade(formulas(("1", "2-1")), 3.0) == [Verdict(1.0)]

    def kill_once() -> None:
        time.sleep(0.05)
        for cell in list(fresh.cells):
            os.kill(cell.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_once)
    killer.start()
    verdicts = fresh.grade(formulas(*((str(n), f"{n - 1}+1") for n in range(16))), 3.0)
    killer.join()
    assert verdicts == [Verdict(1.0)] * 16


def loop(answer: str) -> str:
    """A cell's program that says it is ready, and does this with every `item`."""
    return f"import os\nreceive(); send({{'ready': True}})\nwhile True:\n    item = receive()\n    {answer}"


def test_an_item_that_takes_cells_along_is_invalid(fresh: Graders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_core.sandbox.grading.side", lambda: loop("send({'score': 1.0}) if item['found'] == '1+1' else os._exit(3)"))
    verdicts = fresh.grade(formulas(("2", "1+1"), ("1", "1"), ("2", "1+1")), 3.0)
    assert verdicts == [Verdict(1.0), Verdict(None, "the grader was lost twice (ended with exit status 3)"), Verdict(1.0)]


def test_nonsense_from_a_cell_is_no_verdict(fresh: Graders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_core.sandbox.grading.side", lambda: loop("send({'score': 1.0} if item['found'] == '1+1' else 'score 1.0')"))
    (verdict,) = fresh.grade(formulas(("1", "1")), 3.0)
    assert verdict == Verdict(None, "the grader was lost twice (said score 1.0)")


def test_graders_that_do_not_work_are_our_fault(fresh: Graders, monkeypatch: pytest.MonkeyPatch) -> None:
    for program, message in (
        (loop("os._exit(3)"), "do not work: one was lost over an answer that is surely right"),
        (loop("send({'score': 0.0}) if item['found'] == '1+1' else os._exit(3)"), "do not work: of an answer that is surely right"),
        ("import os; os._exit(3)", "cannot start: ended with exit status 3"),
        ("receive(); send({'failed': 'ImportError: gone'})", "cannot start: {'failed': 'ImportError: gone'}"),
    ):
        monkeypatch.setattr("grpo_core.sandbox.grading.side", lambda program=program: program)
        with pytest.raises(RuntimeError, match=re.escape(message)):
            fresh.grade(formulas(("1", "1")), 3.0)
        fresh.close()


def test_a_late_verdict_is_tried_again_alone(fresh: Graders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_core.sandbox.grading.side", lambda: "receive(); send({'ready': True})\nwhile True:\n    receive(); send({'late': True})")
    assert fresh.grade(formulas(("1", "1")), 0.5) == [Verdict(None, "no verdict within 10 s, twice")]
    assert len(fresh.cells) >= 1


def test_closing_ends_the_cells(fresh: Graders) -> None:
    fresh.grade(formulas(("1", "2-1")), 3.0)
    pids = [cell.pid for cell in fresh.cells]
    fresh.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RewardError, match="pip install math-verify"):
        library_folders("mathematics")
