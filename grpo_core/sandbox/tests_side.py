"""Inside the process of a data set's tests: they are run here, on stand-ins for the program's names. The program itself never comes here."""

import builtins
import sys
from _collections_abc import Callable
from types import FunctionType, ModuleType

from grpo_core.sandbox.link import BrokenLink, Message, read_message, write_message
from grpo_core.sandbox.remote_program import MALFORMED, NO_VALUE, Program
from grpo_core.sandbox.stand_ins import add_operators
from grpo_core.sandbox.values import Any

MODULE = "solution"
"""Under this name tests may import the program."""
ONLY_TREE = 0x400
"""The flag of `compile` that `ast.parse` sets."""
DEFINING = ("FunctionDef", "AsyncFunctionDef", "ClassDef", "Import", "ImportFrom", "Assign", "AnnAssign")


class BadTest(Exception):
    """The tests cannot be run: our data's fault."""


def stand_ins(program: Program, names: dict[str, list[Any]], entry_point: str | None) -> dict[str, Any]:
    """The program's names for its tests. A name of Python's own stays Python's: a program that defines `all` does not decide what is true."""
    return {name: program.stand_in(name, *told) for name, told in names.items() if name == entry_point or not hasattr(builtins, name)}


def definitions(namespace: dict[str, Any]) -> list[Callable[[], Any]]:
    """What a test's text only defined, in the way that test runners expect, and that must be called for it to be a test."""
    functions = [f for name, f in namespace.items() if name.startswith("test") and isinstance(f, FunctionType) and f.__code__.co_argcount == 0]
    return [*functions, *([] if "unittest" not in sys.modules else cases(namespace))]


def cases(namespace: dict[str, Any]) -> list[Callable[[], Any]]:
    """The test cases of unittest in `namespace`."""
    import unittest

    def caller(case: type[unittest.TestCase]) -> Callable[[], None]:
        def call() -> None:
            result = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
            assert result.wasSuccessful(), "a case failed"

        return call

    return [caller(value) for value in namespace.values() if isinstance(value, type) and issubclass(value, unittest.TestCase)]


def runs_something(text: str) -> bool:
    """Whether the text does more than import, define and name constants."""
    statements = compile(text, "tests.py", "exec", ONLY_TREE).body
    return any(
        type(statement).__name__ not in DEFINING and not isinstance(getattr(getattr(statement, "value", None), "value", None), str) for statement in statements
    )


def run(text: str, namespace: dict[str, Any], entry_point: str | None) -> None:
    """The test raises unless it passes. BadTest says what is wrong with its text, whatever the program does."""
    exec(compile(text, "tests.py", "exec"), namespace)
    check = namespace.get("check")
    if isinstance(check, FunctionType):
        if entry_point is None:
            raise BadTest("defines check(candidate), and no entry point is named")
        check(namespace[entry_point])
        return
    defined = definitions(namespace)
    if not defined and not runs_something(text):
        raise BadTest("only defines things: it needs an assert, check(candidate), functions named test… or cases of unittest")
    for call in defined:
        call()


def passes(text: str, program: Program, names: dict[str, Any], entry_point: str | None) -> bool:
    """Whether the test passes; one that asked nothing of the program and names nothing of it does not."""
    program.fault, program.requests = None, 0
    if "random" in text:
        import random

        random.seed(0)
    try:
        constants = names.keys() & {*compile(text, "tests.py", "exec").co_names}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadTest(f"does not compile ({error})") from None
    try:
        run(text, {"__name__": "tests", **names}, entry_point)
    except BadTest:
        raise
    except SystemExit as exit_:
        program.fault = program.fault or (f"ended with status {exit_.code}" if exit_.code else None)
    except BaseException as error:  # noqa: BLE001  # a test fails by raising, whatever it raises
        program.fault = program.fault or f"{type(error).__name__}"
    return program.fault is None and program.ended is None and bool(program.requests or constants)


def report(job: Message) -> Message:
    """The verdict on every test up to the one that ended the program, and how it ended; or why there is none."""
    program = Program(job["link"])
    entry_point: str | None = job["entry_point"]
    try:
        hello = read_message(program.link)
        if "invalid" in hello:
            return {"invalid": str(hello["invalid"])[:300]}
        names = stand_ins(program, hello["names"], entry_point)
    except (BrokenLink, *MALFORMED) as error:
        return {"passed": [], "ended": str(error)[:300] if isinstance(error, BrokenLink) else NO_VALUE}
    sys.modules[MODULE] = ModuleType(MODULE)
    vars(sys.modules[MODULE]).update(names)
    verdicts: list[bool] = []
    for number, text in enumerate(job["tests"], 1):
        try:
            verdicts.append(passes(text, program, names, entry_point))
        except BadTest as bad:
            return {"bad": f"test {number} {bad}"}
        if program.ended:
            break
    return {"passed": verdicts, "ended": program.ended}


def main(job: Message, output: int) -> None:
    """One job: tests, and the link to the program they are for."""
    add_operators()
    write_message(output, report(job))
