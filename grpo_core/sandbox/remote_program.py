"""The program as its tests' process knows it: requests over the link, and what comes back read without trust."""

import builtins

from grpo_core.sandbox.link import BrokenLink, Message, Reader, RemoteIterator, ask
from grpo_core.sandbox.stand_ins import Proxy
from grpo_core.sandbox.values import SHARED_MODULES, Any, CannotCross, decode, encode

MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError, RecursionError, MemoryError)
"""What reading a value raises that no honest program writes."""
NO_VALUE = "sent its tests what is no value"


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
        return self.result(reply, values, named)

    def result(self, reply: Message, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The value in a reply, or the exception."""
        if "ended" in reply:
            self.fault = f"the program raised {str(reply['ended'])[:100]}"
            raise ProgramEnded(self.fault)
        try:
            error = self.error(*reply["raised"]) if "raised" in reply else None
            value = None if error else decode(reply["value"], self.read)
            for place, data in reply.get("changed", []):
                overwrite(values[place] if isinstance(place, int) else named[place], decode(data, self.read))
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
            return RemoteIterator(body, lambda handle, count: self.ask(["take", handle], (count,), {}))
        return Proxy(self.ask, body)

    def stand_in(self, name: str, kind: str, body: Any) -> Any:
        """What the tests hold for one of the program's names."""
        if kind == "value":
            value = decode(body, self.read)
            if callable(value) and not isinstance(value, Proxy):
                raise ValueError("a function that is not the program's")
            return value
        if kind == "module" and body in SHARED_MODULES:
            return __import__(body)
        if kind == "exception":
            base = vars(builtins)[body]
            if not issubclass(base, Exception):
                raise ValueError("no exception")
            self.errors[name] = type(name, (base,), {})
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
            target = self.passed_in[handle] if type(handle) is int and handle >= 0 else None
            function: Any = target.take if kind == "take" and isinstance(target, Reader) else target
            return {"value": encode(function(*values, **named), self.write)}
        except Exception as error:  # noqa: BLE001  # the program is told, as a caller of the function would be
            return {"raised": [type(error).__name__, "raised by a function of the tests"]}


def overwrite(old: Any, new: Any) -> None:
    """`old`, an argument, has the content of `new`, and so have the containers in it that kept their place."""
    if isinstance(old, list) and isinstance(new, list):
        for number, (before, after) in enumerate(zip(old, new, strict=False)):
            if type(before) is type(after) and isinstance(before, list | dict | set | bytearray):
                overwrite(before, after)
                new[number] = before
        old[:] = new
    elif isinstance(old, dict) and isinstance(new, dict):
        for key in new.keys() & old.keys():
            if type(old[key]) is type(new[key]) and isinstance(old[key], list | dict | set | bytearray):
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
