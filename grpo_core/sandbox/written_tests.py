"""What the text of a data set's test says of itself, read before any program is there: whether it can be run, and which names are its own."""

import sys
from _collections_abc import Iterator
from types import CodeType

from grpo_core.sandbox.values import Any

MODULE = "solution"
"""Under this name tests may import the program."""
ONLY_TREE = 0x400
"""The flag of `compile` that `ast.parse` sets."""
PLAIN_FUNCTION, NOT_PLAIN = 0x3, 0x20 | 0x80 | 0x200
"""Flags of the code of a function, and those of generators and coroutines, whose calling runs nothing."""
SCOPES = ("FunctionDef", "AsyncFunctionDef", "ClassDef", "Lambda", "ListComp", "SetComp", "DictComp", "GeneratorExp")
DEFINING = ("FunctionDef", "AsyncFunctionDef", "ClassDef", "Import", "ImportFrom", "Assign", "AnnAssign")
LIBRARIES = sys.stdlib_module_names | {"np", "numpy", "pd", "pandas", "plt", "pytest", "scipy", "sp", "sympy", "tf", "torch"}
"""Names that mean a library where a test does not call them."""


class BadTest(Exception):
    """The test cannot be run: our data's fault."""


class Written:
    """A test, compiled. Raises BadTest, whatever the program will be."""

    def __init__(self, text: str, entry_point: str | None) -> None:
        self.text = text
        try:
            tree = compile(text, "tests.py", "exec", ONLY_TREE)
            self.code: CodeType = compile(tree, "tests.py", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise BadTest(f"does not compile ({error})") from None
        found = list(nodes(tree))
        self.bound = {name for node, is_inner in found for name in names_bound(node, is_inner)}
        self.called = {node.func.id for node, _ in found if type(node).__name__ == "Call" and hasattr(node.func, "id")}
        self.has_cases = any(type(node).__name__ == "ClassDef" and node.bases for node, _ in found)
        self.runs_something = any(runs(statement) for statement in tree.body)
        self.defines_check = any(code.co_name == "check" for code in functions(self.code))
        self._require_something_to_run(entry_point)

    def _require_something_to_run(self, entry_point: str | None) -> None:
        if self.defines_check:
            if entry_point is None:
                raise BadTest("defines check(candidate), and no entry point is named")
            return
        has_tests = any(code.co_name.startswith("test") and code.co_argcount == 0 for code in functions(self.code))
        if not (self.runs_something or has_tests or self.has_cases):
            raise BadTest("only defines things: it needs an assert, check(candidate), functions named test… or cases of unittest")

    def leaves_open(self, name: str, *, is_module: bool) -> bool:
        """Whether a name of the program may stand in the test's namespace: the test neither binds it nor means a library by it."""
        return name not in self.bound and (is_module or name not in LIBRARIES or name in self.called)


def nodes(tree: Any) -> Iterator[tuple[Any, bool]]:
    """The nodes of a syntax tree that may name something, and whether each is in a scope of its own."""
    waiting = [(tree, False)]
    while waiting:
        node, is_inner = waiting.pop()
        yield node, is_inner
        is_inner = is_inner or type(node).__name__ in SCOPES
        for field in node._fields:
            value = getattr(node, field, None)
            parts = value if isinstance(value, list) else [value]
            waiting += [(part, is_inner) for part in parts if hasattr(part, "_fields") and type(part).__name__ != "Constant"]


def names_bound(node: Any, is_inner: bool) -> Iterator[str]:
    """Names of the module that this node alone assigns, deletes, defines or imports."""
    kind = type(node).__name__
    if kind == "Global":
        yield from node.names
    elif kind == "NamedExpr":
        yield node.target.id
    elif is_inner:
        return
    elif kind == "ImportFrom" and node.names[0].name == "*":
        yield from public_names(node.module or "")
    elif kind == "alias" and node.name != "*":
        yield (node.asname or node.name).split(".")[0]
    elif kind == "Name" and type(node.ctx).__name__ != "Load":
        yield node.id
    elif kind in ("FunctionDef", "AsyncFunctionDef", "ClassDef", "ExceptHandler", "MatchAs", "MatchStar", "MatchMapping"):
        yield from filter(None, [getattr(node, "rest" if kind == "MatchMapping" else "name")])


def public_names(module: str) -> list[str]:
    """What `from module import *` brings, but for the program's own names."""
    try:
        return [] if module == MODULE else list(vars(__import__(module, fromlist=["*"])))
    except (ImportError, ValueError):
        return []  # the test itself will say so


def functions(code: CodeType) -> list[CodeType]:
    """The functions that this code defines and whose calling runs them: no classes, generators and coroutines."""
    found = [const for const in code.co_consts if isinstance(const, CodeType)]
    return [each for each in found if each.co_flags & PLAIN_FUNCTION == PLAIN_FUNCTION and not each.co_flags & NOT_PLAIN]


def runs(statement: Any) -> bool:
    """Whether the statement does more than import, define, name a constant or say something."""
    return type(statement).__name__ not in DEFINING and not isinstance(getattr(getattr(statement, "value", None), "value", None), str)
