"""The program as its tests' process knows it: requests over the link, and what comes back read without trust."""

import builtins

from grpo_core.sandbox.link import MAX_AHEAD, BrokenLink, Message, Reader, RemoteIterator, ask
from grpo_core.sandbox.stand_ins import Proxy
from grpo_core.sandbox.values import SHARED_MODULES, Any, CannotCross, Malformed, decode, encode

MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError, RecursionError, MemoryError)
"""What reading a value raises that no honest program writes."""
NO_VALUE = "sent its tests what is no value"
MAX_NAMES, MAX_NAME, NAMES_BYTES = 1000, 100, 4 * 2**20
"""Names of a program, characters of one, and bytes of all their values, at most."""
MUTABLE = (list, dict, set, bytearray)
UNENDING = (StopIteration, StopAsyncIteration)
"""Out of a function they would end the tests' own loops as if all had been seen: as in a generator, they become a RuntimeError."""


class ProgramEnded(BaseException):
    """The program exited, or its process has gone: no test can catch this and pass."""


class RemoteError(Exception):
    """An exception of the program that is no builtin one."""


class Program:
    """The program, over the link. `fault` is what the current test cannot pass with; `ended`, what no test after it can."""

    def __init__(self, link: int) -> None:
        self.link = link
        self.passed_in: list[Any] = []
        self.errors: dict[str, type[Exception]] = {}
        self.ended: str | None = None
        self.fault: str | None = None
        self.requests = 0

    def ask(self, what: list[Any], values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What the program answers, its exceptions raised, and the arguments it changed in place changed here."""
        self.requests += 1
        if self.ended:
            raise ProgramEnded(self.ended)
        try:
            request: Message = {"do": what, "with": [encode(v, self.write) for v in values], "named": {n: encode(v, self.write) for n, v in named.items()}}
        except CannotCross as error:
            self.fault = f"an argument cannot cross: {error}"
            raise
        try:
            reply = ask(self.link, request, self.serve)
        except (BrokenLink, ValueError, RecursionError) as error:
            self.ended = str(error)
            raise ProgramEnded(self.ended) from None
        return self.result(reply, *((values, named) if what[0] == "call" else ((), {})))

    def result(self, reply: Message, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The value in a reply, or the exception. `values` and `named` are what the program was given and may have changed in place."""
        if "ended" in reply:
            self.fault = "the program exited"
            raise ProgramEnded(self.fault)
        try:
            error = self.error(*reply["raised"]) if "raised" in reply else None
            value = None if error else decode(reply["value"], self.read)
            for place, data in reply.get("changed", []):
                overwrite(argument(place, values, named), decode(data, self.read))
        except MALFORMED:
            self.ended = NO_VALUE
            raise ProgramEnded(self.ended) from None
        if error:
            raise error
        return value

    def error(self, names: list[str], arguments: list[Any]) -> Exception:
        """The program's exception, as the nearest class of its own or of Python's."""
        for name in names:
            kind = self.errors.get(name) or vars(builtins).get(name)
            if isinstance(kind, type) and issubclass(kind, Exception) and kind is not Exception:
                kind = RuntimeError if issubclass(kind, UNENDING) else kind
                try:
                    return kind(*(part for part in arguments if isinstance(part, str | int | float)))
                except TypeError:
                    continue  # some want more than a text: then their base class stands for them
        return RemoteError(*(part for part in arguments if isinstance(part, str)))

    def write(self, value: Any) -> tuple[str, Any]:
        """What stands for an argument that cannot cross: the program may call a function and read an iterator, and sees nothing else of it."""
        if isinstance(value, Proxy):
            return "yours", value._cell_handle
        if isinstance(value, RemoteIterator):
            return "yours", value.handle
        if callable(value) and not isinstance(value, type):
            self.passed_in.append(value)
            return "function", len(self.passed_in) - 1
        if hasattr(type(value), "__next__"):
            self.passed_in.append(Reader(value))
            return "iterator", len(self.passed_in) - 1
        raise CannotCross(f"a {type(value).__name__} has no form outside the tests")

    def read(self, tag: str, body: Any) -> Any:
        """A stand-in for an object of the program, or one of the tests' own come back."""
        if tag == "yours":
            return self.own(body)
        if tag not in ("object", "class", "iterator") or type(body) is not int:
            raise ValueError("no value")
        if tag == "iterator":
            return RemoteIterator(body, self.take)
        return Proxy(self.ask, body)

    def take(self, handle: int, count: int) -> tuple[list[Any], bool]:
        """The next items of an iterator of the program, and whether these are the last."""
        taken = self.ask(["take", handle], (count,), {})
        if type(taken) is not tuple or [type(part) for part in taken] != [list, bool] or len(taken[0]) > count:
            self.ended = NO_VALUE
            raise ProgramEnded(self.ended)
        return taken[0], taken[1]

    def stand_ins(self, told: dict[str, list[Any]], entry_point: str | None) -> dict[str, Any]:
        """What the tests may see of the program. A name of Python's own stays Python's: a program that defines `all` does not decide what is true."""
        if len(told) > MAX_NAMES or sum(len(body) for _, body in told.values() if isinstance(body, bytes)) > NAMES_BYTES:
            raise ValueError("too many names, or too much in them")
        usable = {name: form for name, form in told.items() if name == entry_point or is_public(name)}
        found = {}
        for name, form in usable.items():
            try:
                value = self.stand_in(name, *form)
            except Malformed:
                continue  # a constant that does not come across is no name of the tests'
            if not holds_function(value):
                found[name] = value
        return found

    def stand_in(self, name: str, kind: str, body: Any) -> Any:
        """What the tests hold for one of the program's names."""
        if kind == "value":
            return decode(body, self.read)
        if kind == "module" and body == name and body in SHARED_MODULES:
            return __import__(body)
        if kind == "exception":
            base = vars(builtins)[body]
            if not issubclass(base, Exception):
                raise ValueError("no exception")
            self.errors[name] = type(name, (RuntimeError if issubclass(base, UNENDING) else base,), {})
            return self.errors[name]
        stand_in = self.read(kind, body)
        if isinstance(stand_in, Proxy):
            object.__setattr__(stand_in, "_cell_is_class", kind == "class" and name[:1].isupper())
        return stand_in

    def own(self, handle: Any) -> Any:
        """What the tests passed in under this number; of an iterator, what it iterates over."""
        if type(handle) is not int or handle < 0:
            raise ValueError("no handle")
        value = self.passed_in[handle]
        return value.items if isinstance(value, Reader) else value

    def serve(self, request: Message) -> Message:
        """The answer to a program that calls what the tests passed in. It may do nothing else."""
        try:
            kind, handle = request["do"]
            values = [decode(data, self.read) for data in request["with"]]
            named = {name: decode(data, self.read) for name, data in request["named"].items()}
            function = self.function(kind, handle, values)
            return {"value": encode(function(*values, **named), self.write)}
        except Exception as error:  # noqa: BLE001  # the program is told, as a caller of the function would be
            return {"raised": [type(error).__name__, "raised by a function of the tests"]}

    def function(self, kind: Any, handle: Any, values: list[Any]) -> Any:
        """What the program may call: a function that was passed in, or the reading of an iterator that was."""
        if type(handle) is not int or handle < 0 or kind not in ("call", "take"):
            raise ValueError("no handle")
        target = self.passed_in[handle]
        if isinstance(target, Reader) != (kind == "take"):
            raise ValueError("not to be used so")
        if not isinstance(target, Reader):
            return target
        if len(values) != 1 or type(values[0]) is not int or not 0 < values[0] <= MAX_AHEAD:
            raise ValueError("not to be read so")
        return target.take


def is_public(name: Any) -> bool:
    """Whether a program may bring this name to its tests."""
    return type(name) is str and len(name) <= MAX_NAME and name.isidentifier() and not name.startswith("_") and not hasattr(builtins, name)


def holds_function(value: Any) -> bool:
    """Whether a function or class of Python's own is in this value: it would be called, or caught by, in the tests' process."""
    if isinstance(value, dict):
        return any(holds_function(part) for item in value.items() for part in item)
    if isinstance(value, tuple | list | set | frozenset) or type(value).__name__ == "deque":
        return any(holds_function(part) for part in value)
    return callable(value) and not isinstance(value, Proxy) and not (isinstance(value, type) and value.__module__ == __name__)


def argument(place: Any, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The argument that was passed at this place or under this name."""
    if type(place) is int and 0 <= place < len(values):
        return values[place]
    if type(place) is str:
        return named[place]
    raise ValueError("no argument")


def overwrite(old: Any, new: Any) -> None:
    """`old`, an argument, has the content of `new`, and so have the containers in it that kept their place."""
    if isinstance(old, list) and isinstance(new, list):
        for number, (before, after) in enumerate(zip(old, new, strict=False)):
            if type(before) is type(after) and isinstance(before, MUTABLE):
                overwrite(before, after)
                new[number] = before
        old[:] = new
    elif isinstance(old, dict) and isinstance(new, dict):
        for key in new.keys() & old.keys():
            if type(old[key]) is type(new[key]) and isinstance(old[key], MUTABLE):
                overwrite(old[key], new[key])
                new[key] = old[key]
        old.clear()
        old.update(new)
    elif isinstance(old, set) and isinstance(new, set):
        old.clear()
        old.update(new)
    elif isinstance(old, bytearray) and isinstance(new, bytearray):
        old[:] = new
    else:
        raise TypeError("an argument that has no place for this content")
