"""What a data set's tests hold in place of the program's objects: every use of one is a request to the program's process."""

from _collections_abc import Callable

from grpo_core.sandbox.link import RemoteIterator
from grpo_core.sandbox.values import Any

COMPARISONS = ("lt", "le", "gt", "ge")
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
UNARY = ("neg", "pos", "abs")


class Proxy:
    """An object of the program. Its attributes, length and items are asked for; nothing it says of equality is believed.

    An operator sends the tests' own values to the program, which could agree to anything. So operators work only on an object that the tests
    made themselves, by calling a class that their text names in CapWords (or by an operator from such a one); `==` also needs two objects.
    """

    __slots__ = ("_cell_ask", "_cell_handle", "_cell_is_class", "_cell_made")

    def __init__(self, ask: Callable[..., Any], handle: int) -> None:
        for name, value in (("_cell_ask", ask), ("_cell_handle", handle), ("_cell_is_class", False), ("_cell_made", False)):
            object.__setattr__(self, name, value)

    def __call__(self, *values: Any, **named: Any) -> Any:
        result = self._cell_ask(["call", self._cell_handle], values, named)
        return made(result) if self._cell_is_class else result

    def __getattr__(self, name: str) -> Any:
        return self._cell_ask(["operator", "getattr"], (self, name), {})

    def __setattr__(self, name: str, value: Any) -> None:
        self._cell_ask(["operator", "setattr"], (self, name, value), {})

    def __len__(self) -> int:
        return self._cell_ask(["operator", "len"], (self,), {})

    def __bool__(self) -> bool:
        return self._cell_ask(["operator", "bool"], (self,), {}) is True

    def __str__(self) -> str:
        return self._cell_ask(["operator", "str"], (self,), {})

    def __repr__(self) -> str:
        return self._cell_ask(["operator", "repr"], (self,), {})

    def __getitem__(self, key: Any) -> Any:
        return self._cell_ask(["operator", "getitem"], (self, key), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        self._cell_ask(["operator", "setitem"], (self, key, value), {})

    def __delitem__(self, key: Any) -> None:
        self._cell_ask(["operator", "delitem"], (self, key), {})

    def __iter__(self) -> RemoteIterator:
        return self._cell_ask(["operator", "iter"], (self,), {})

    def __contains__(self, item: Any) -> bool:
        if self._cell_made:
            return self._cell_ask(["operator", "contains"], (self, item), {}) is True
        return any(each is item or each == item for each in self)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Proxy) and self._cell_ask(["operator", "isinstance"], (instance, self), {}) is True

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Proxy):
            return False
        if self._cell_made or other._cell_made:
            return self._cell_ask(["operator", "eq"], (self, other), {}) is True
        return bool(self._cell_handle == other._cell_handle)

    def __hash__(self) -> int:
        return hash(self._cell_handle)


def made(value: Any) -> Any:
    """`value`, as an object that the tests made themselves."""
    if type(value) is Proxy:
        object.__setattr__(value, "_cell_made", True)
    return value


def refuse(name: str) -> Any:
    raise TypeError(f"bad operand type for {name}: an object of the program")


def operation(name: str, count: int, *, is_reflected: bool = False) -> Callable[..., Any]:
    """A method of Proxy for an operator on `count` operands."""

    def method(self: Proxy, *others: Any) -> Any:
        if len(others) != count - 1 or not self._cell_made:
            return NotImplemented if count > 1 else refuse(name)
        values = (*others, self) if is_reflected else (self, *others)
        return made(self._cell_ask(["operator", f"{name}_" if name in ("and", "or") else name], values, {}))

    return method


def add_operators() -> None:
    """Proxy has a method for every operator."""
    for name in (*COMPARISONS, *BINARY):
        setattr(Proxy, f"__{name}__", operation(name, 2))
    for name in BINARY:
        setattr(Proxy, f"__r{name}__", operation(name, 2, is_reflected=True))
    for name in UNARY:
        setattr(Proxy, f"__{name}__", operation(name, 1))
