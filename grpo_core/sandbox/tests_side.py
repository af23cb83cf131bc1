"""Inside the process of a data set's tests: they are run here, on stand-ins for the program's names. The program itself never comes here."""

import builtins
import sys
from _collections_abc import Callable
from types import FunctionType, ModuleType

from grpo_core.sandbox.link import BrokenLink, Message, read_message, write_message
from grpo_core.sandbox.remote_program import MALFORMED, NO_VALUE, Program
from grpo_core.sandbox.stand_ins import add_operators
from grpo_core.sandbox.values import Any, forbid_catching_all
from grpo_core.sandbox.written_tests import MODULE, NOT_PLAIN, BadTest, Written


class Names:
    """The program's names, as stand-ins. Which of them a test sees is decided by the test's text, not by the program."""

    def __init__(self, stand_ins: dict[str, Any], entry_point: str | None) -> None:
        self.stand_ins = stand_ins
        self.entry_point = entry_point

    def open_to(self, test: Written) -> dict[str, Any]:
        """Those that the test may use without importing them."""
        return {name: value for name, value in self.stand_ins.items() if self._is_open(name, value, test)}

    def _is_open(self, name: str, value: Any, test: Written) -> bool:
        if name == self.entry_point:  # a check is handed it, so that it needs no name that is Python's own
            return not (test.defines_check and (hasattr(builtins, name) or name in test.bound))
        return test.leaves_open(name, is_module=isinstance(value, ModuleType))

    def as_module(self, open_names: dict[str, Any]) -> ModuleType:
        """What the test imports as `solution`; a star brings no name that is the test's own."""
        module = ModuleType(MODULE)
        vars(module).update(self.stand_ins)
        vars(module)["__all__"] = list(open_names)
        return module

    def are_named_in(self, test: Written, open_names: dict[str, Any]) -> bool:
        """Whether the test names something of the program: it may look at a constant and ask nothing."""
        named = {*test.code.co_names}
        return bool(open_names.keys() & named) or (MODULE in named and bool(self.stand_ins.keys() & named))


def definitions(namespace: dict[str, Any]) -> list[Callable[[], Any]]:
    """What a test's text only defined, in the way that test runners expect, and that must be called for it to be a test."""
    functions = [f for name, f in namespace.items() if name.startswith("test") and isinstance(f, FunctionType) and f.__code__.co_argcount == 0]
    plain = [f for f in functions if not f.__code__.co_flags & NOT_PLAIN]
    return [*plain, *([] if "unittest" not in sys.modules else cases(namespace))]


def cases(namespace: dict[str, Any]) -> list[Callable[[], Any]]:
    """The test cases of unittest in `namespace`."""
    import unittest

    def caller(suite: unittest.TestSuite) -> Callable[[], None]:
        def call() -> None:
            result = unittest.TestResult()
            suite.run(result)
            assert result.wasSuccessful() and result.testsRun > len(result.skipped), "a case failed, or none was run"

        return call

    found = [value for value in namespace.values() if isinstance(value, type) and issubclass(value, unittest.TestCase)]
    suites = [unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in found]
    return [caller(suite) for suite in suites if suite.countTestCases()]


def run(test: Written, names: Names, namespace: dict[str, Any]) -> None:
    """The test raises unless it passes."""
    try:
        exec(test.code, namespace)
    except SystemExit as exit_:  # as of unittest.main(): what the text defined is still to be called
        assert not exit_.code, f"ended with status {exit_.code}"
    if test.defines_check:
        namespace["check"](names.stand_ins[names.entry_point or ""])
        return
    defined = definitions(namespace)
    assert defined or test.runs_something, "no test was found"
    for call in defined:
        call()


def passes(test: Written, program: Program, names: Names) -> bool:
    """Whether the test passes; one that asked nothing of the program and names nothing of it does not."""
    program.fault, program.requests = None, 0
    if "random" in test.text:
        import random

        random.seed(0)
    open_names = names.open_to(test)
    sys.modules[MODULE] = names.as_module(open_names)
    sys.modules["__main__"] = module = ModuleType("tests")  # where unittest.main() looks
    vars(module).update({**open_names, "__name__": "tests", "__builtins__": builtins})
    try:
        run(test, names, vars(module))
    except BaseException as error:  # noqa: BLE001  # a test fails by raising, whatever it raises
        program.fault = program.fault or f"{type(error).__name__}"
    return program.fault is None and program.ended is None and (program.requests > 0 or names.are_named_in(test, open_names))


def read_tests(texts: list[str], entry_point: str | None) -> list[Written]:
    """The tests, compiled; BadTest says which cannot be run."""
    tests = []
    for number, text in enumerate(texts, 1):
        try:
            tests.append(Written(text, entry_point))
        except BadTest as bad:
            raise BadTest(f"test {number} {bad}") from None
    return tests


def report(job: Message) -> Message:
    """The verdict on every test up to the one that ended the program, and how it ended; or why there is none."""
    entry_point: str | None = job["entry_point"]
    try:
        tests = read_tests(job["tests"], entry_point)
    except BadTest as bad:
        return {"bad": str(bad)}
    program = Program(job["link"])
    try:
        hello = read_message(program.link)
        if "invalid" in hello:
            return {"invalid": str(hello["invalid"])[:300]}
        names = Names(program.stand_ins(hello["names"], entry_point), entry_point)
    except (BrokenLink, *MALFORMED) as error:
        return {"passed": [], "ended": str(error)[:300] if isinstance(error, BrokenLink) else NO_VALUE}
    verdicts: list[bool] = []
    for test in tests:
        verdicts.append(passes(test, program, names))
        if program.ended:
            break
    return {"passed": verdicts, "ended": program.ended}


def main(job: Message, output: int) -> None:
    """One job: tests, and the link to the program they are for."""
    add_operators()
    forbid_catching_all()
    sys.argv = ["tests.py"]
    write_message(output, report(job))
