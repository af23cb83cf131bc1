"""Inside a program's process: it is compiled and run here, and what its tests ask of it is answered. None of this can be trusted."""

import builtins
import io
import operator
import os
import sys
from _collections_abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

from grpo_core.sandbox.link import BrokenLink, Message, Reader, RemoteIterator, ask, read_message, write_message
from grpo_core.sandbox.values import SHARED_MODULES, Any, CannotCross, decode, encode

ONLY_TREE = 0x400
"""The flag of `compile` that `ast.parse` sets."""
MODULE = "solution"
MAX_NAMES, NAMES_BYTES = 1000, 4 * 2**20
"""How many names tests are told of, and the bytes of all their values."""
OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: getattr(builtins, name) for name in ("getattr", "setattr", "delattr", "len", "iter", "bool", "str", "repr", "format", "isinstance")},
    **{name: getattr(operator, name) for name in ("getitem", "setitem", "delitem", "contains", "eq", "lt", "le", "gt", "ge", "neg", "pos", "abs")},
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor")},
}
"""What tests may ask of the program's objects besides calling them."""


class Unusable(Exception):
    """The text is no program that could be run."""


def bound_names(statements: Iterable[Any]) -> Iterator[str]:
    """Names that these statements (of a syntax tree) define, without looking into functions and classes."""
    for statement in statements:
        if hasattr(statement, "name") and isinstance(statement.name, str):
            yield statement.name
        for target in [*getattr(statement, "targets", ()), getattr(statement, "target", None)]:
            yield from (name for part in getattr(target, "elts", [target]) if (name := getattr(part, "id", None)))
        yield from (alias.asname or alias.name for alias in getattr(statement, "names", ()) if hasattr(alias, "asname"))
        if not hasattr(statement, "name") or type(statement).__name__ == "ExceptHandler":
            for field in ("body", "orelse", "handlers", "finalbody"):
                yield from bound_names(getattr(statement, field, ()))


def compile_first(texts: list[str], entry_point: str | None) -> CodeType:
    """The first text that is a program and defines the entry point. Unusable: there is none; says what is wrong with the first."""
    problems = []
    for text in texts:
        try:
            tree = compile(text, f"{MODULE}.py", "exec", ONLY_TREE)
            if entry_point is None or entry_point in set(bound_names(tree.body)):
                return compile(tree, f"{MODULE}.py", "exec")
            problems.append(f"does not define {entry_point!r}")
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            problems.append(f"does not compile: {type(error).__name__}: {error}"[:200])
    raise Unusable(problems[0])


class TestsFunction:
    """A function of the tests, handed to the program: it can be called, and nothing else."""

    def __init__(self, handle: int, call: Callable[..., Any]) -> None:
        self.handle = handle
        self._call = call

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._call(["call", self.handle], values, named)


class Answerer:
    """What the tests know of the program's objects: numbers. Answers their requests, and asks them to call what they passed in."""

    def __init__(self, link: int) -> None:
        self.link = link
        self.objects: list[Any] = []
        self.handles: dict[int, int] = {}

    def handle_of(self, value: Any) -> int:
        """The same number for the same object."""
        if id(value) not in self.handles:
            self.handles[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.handles[id(value)]

    def write(self, value: Any) -> tuple[str, Any]:
        """What stands for a value that cannot cross."""
        if isinstance(value, TestsFunction | RemoteIterator):
            return "yours", value.handle
        if isinstance(value, type):
            return "class", self.handle_of(value)
        if hasattr(type(value), "__next__"):
            return "iterator", self.handle_of(Reader(value))
        return "object", self.handle_of(value)

    def read(self, tag: str, body: Any) -> Any:
        """What the tests' word stands for."""
        if tag == "yours":
            value = self.objects[body]
            return value.items if isinstance(value, Reader) else value
        if tag == "function":
            return TestsFunction(body, self.ask)
        return RemoteIterator(body, lambda handle, count: self.ask(["take", handle], (count,), {}))

    def ask(self, what: list[Any], values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What a function of the tests returned."""
        request: Message = {"do": what, "with": [encode(v, self.write) for v in values], "named": {n: encode(v, self.write) for n, v in named.items()}}
        reply = ask(self.link, request, self.answer)
        if "raised" in reply:
            name, text = reply["raised"]
            raise getattr(builtins, name, Exception)(text)
        return decode(reply["value"], self.read)

    def answer(self, request: Message) -> Message:
        """The reply to one request of the tests."""
        try:
            return self.perform(request)
        except BrokenLink:
            raise
        except CannotCross as error:
            return {"raised": [["RemoteError"], [str(error)]]}
        except Exception as error:  # noqa: BLE001  # whatever the program raises is for its tests to judge
            return {"raised": [[name_of(kind) for kind in mro_of(type(error))], [part for part in error.args if type(part) in (str, int, float, bool)]]}
        except BaseException as error:  # noqa: BLE001  # a program that exits has not passed
            return {"ended": name_of(type(error))}

    def perform(self, request: Message) -> Message:
        """Does what is asked for: `call` an object, `take` items of an iterator, or apply an operator."""
        kind, what = request["do"]
        values = [decode(data, self.read) for data in request["with"]]
        if kind == "operator":
            return self.value(OPERATORS[what](*values))
        if kind == "take":
            return self.value(self.objects[what].take(*values))
        named = {name: decode(data, self.read) for name, data in request["named"].items()}
        return self.value(self.objects[what](*values, **named)) | {"changed": self.changed(request, values, named)}

    def value(self, value: Any) -> Message:
        """A reply that holds `value`."""
        return {"value": encode(value, self.write)}

    def changed(self, request: Message, values: list[Any], named: dict[str, Any]) -> list[list[Any]]:
        """Place or name, and content, of the arguments that the program changed in place."""
        changes = []
        for (place, old), value in zip([*enumerate(request["with"]), *request["named"].items()], [*values, *named.values()], strict=True):
            if isinstance(value, list | dict | set | bytearray) and (new := encode(value, self.write)) != old:
                changes.append([place, new])
        return changes

    def names(self, module: ModuleType, entry_point: str | None) -> dict[str, list[Any]]:
        """The program's own public names and what each is, for its tests."""
        found: dict[str, list[Any]] = {}
        left = NAMES_BYTES
        for name, value in sorted(vars(module).items(), key=lambda item: item[0] != entry_point):
            if len(found) < MAX_NAMES and (name == entry_point or (not name.startswith("_") and is_own(name, value))):
                form = self.described(value)
                size = len(form[1]) if form and form[0] == "value" else 0
                if form and size <= left:
                    found[name], left = form, left - size
        return found

    def described(self, value: Any) -> list[Any] | None:
        """Modules and exceptions are remade on the tests' side, so that `except` can name them; None: it is a value that cannot cross."""
        if isinstance(value, ModuleType):
            return ["module", value.__name__]
        if isinstance(value, type) and issubclass(value, Exception):
            return ["exception", next(name_of(kind) for kind in mro_of(value) if kind.__module__ == "builtins")]
        if callable(value):
            return [*self.write(value)]
        try:
            return ["value", encode(value, self.write)]
        except CannotCross:
            return None


def is_own(name: str, value: Any) -> bool:
    """The program made it; what it imported from elsewhere counts only if it is a well-known module."""
    if isinstance(value, ModuleType):
        return name in SHARED_MODULES and value.__name__ == name
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        return value.__module__ == MODULE
    return type(value).__module__ != "typing"


def name_of(kind: type) -> str:
    """The name of a class, whatever its metaclass says."""
    name: str = type.__dict__["__name__"].__get__(kind)
    return name


def mro_of(kind: type) -> tuple[type, ...]:
    """A class and its base classes, whatever its metaclass says."""
    bases: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return bases


def prepare(job: Message, name: str) -> ModuleType:
    """The module that the program runs in, with the builtins that only `site` brings."""
    from _sitebuiltins import Quitter

    for word in ("exit", "quit"):
        setattr(builtins, word, Quitter(word, ""))
    if any("random" in text for text in job["programs"]):
        import random

        random.seed(0)
    sys.argv = [f"{MODULE}.py"]
    module = ModuleType(name)
    sys.modules[name] = module
    return module


def answer_tests(job: Message, link: int) -> None:
    """The program is loaded and answers its tests, until they hang up."""
    entry_point: str | None = job["entry_point"]
    answerer = Answerer(link)
    try:
        module = prepare(job, MODULE)
        exec(compile_first(job["programs"], entry_point), vars(module))
        names = answerer.names(module, entry_point)
    except Unusable as problem:
        write_message(link, {"invalid": str(problem)})
        return
    except BaseException as error:  # noqa: BLE001  # whatever it raises, it did not load
        write_message(link, {"invalid": f"raised {name_of(type(error))} while it was loaded"})
        return
    write_message(link, {"names": names})
    while True:
        reply = answerer.answer(read_message(link))
        try:
            write_message(link, reply)
        except (ValueError, RecursionError, MemoryError) as error:
            write_message(link, {"raised": [["RemoteError"], [f"the value cannot cross: {error}"]]})


def run_with_input(job: Message, output: int) -> None:
    """The program is run as a script on `job["stdin"]`; all it writes goes to the host as it is, and its exit status is the process's."""
    try:
        code = compile_first(job["programs"], None)
    except Unusable as problem:
        write_message(output, {"invalid": str(problem)})
        return
    descriptor = os.open("/tmp", os.O_RDWR | os.O_TMPFILE)
    with open(os.dup(descriptor), "wb") as file:
        file.write(job["stdin"].encode("utf-8", "surrogatepass"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.dup2(descriptor, 0)
    os.close(descriptor)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, "rb", closefd=False))
    module = prepare(job, "__main__")
    write_message(output, {"loaded": True})
    os.dup2(output, 1)
    os.close(output)
    exec(code, vars(module))


def main(job: Message, output: int) -> None:
    """One job: a program that answers tests over a link, or a script that reads an input."""
    if "stdin" in job:
        run_with_input(job, output)
        return
    os.close(output)
    try:
        answer_tests(job, job["link"])
    except BrokenLink:
        return
