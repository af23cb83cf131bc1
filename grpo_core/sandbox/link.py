"""The line between the process of a program and that of its tests: either side asks the other to call something, and answers while it waits."""

import os
from _collections_abc import Callable, Iterator

from grpo_core.sandbox.values import Any, Malformed, decode, encode

MESSAGE_BYTES = 8 * 2**20
"""The largest message either side reads."""
HUNG_UP = "hung up"
"""What a BrokenLink says of a side that is no longer there."""
MAX_AHEAD = 1024
"""Items of the other side's iterator that are read at once, at most."""

Message = dict[str, Any]
"""`do` marks a request; values in it are bytes of their own."""


class BrokenLink(Exception):
    """The other side has gone, or what it sent is no message."""


def read_exactly(descriptor: int, count: int) -> bytes:
    """`count` bytes, or BrokenLink."""
    data = bytearray()
    while len(data) < count:
        try:
            chunk = os.read(descriptor, min(count - len(data), 2**20))
        except OSError:
            chunk = b""
        if not chunk:
            raise BrokenLink(HUNG_UP)
        data += chunk
    return bytes(data)


def read_message(descriptor: int) -> Message:
    """The next message: untrusted, but it is a dict."""
    size = int.from_bytes(read_exactly(descriptor, 4), "big")
    if size > MESSAGE_BYTES:
        raise BrokenLink(f"sent {size:,} bytes at once")
    try:
        message = decode(read_exactly(descriptor, size))
    except Malformed:
        message = None
    if not isinstance(message, dict):
        raise BrokenLink("sent what is no message")
    return message


def write_message(descriptor: int, message: Message) -> None:
    """`message` is on its way. ValueError if it is too large: nothing of it was written."""
    data = encode(message)
    if len(data) > MESSAGE_BYTES:
        raise ValueError(f"{len(data):,} bytes are more than the {MESSAGE_BYTES:,} that cross at once")
    view = memoryview(len(data).to_bytes(4, "big") + data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except OSError:
            raise BrokenLink(HUNG_UP) from None


def ask(descriptor: int, request: Message, serve: Callable[[Message], Message]) -> Message:
    """The answer to `request`; what the other side asks meanwhile is answered by `serve`."""
    write_message(descriptor, request)
    while "do" in (message := read_message(descriptor)):
        write_message(descriptor, serve(message))
    return message


class Reader:
    """An iterator of this side, read for the other one some items at a time."""

    def __init__(self, items: Iterator[Any]) -> None:
        self.items = items
        self.raised: Exception | None = None

    def take(self, count: int) -> tuple[list[Any], bool]:
        """The next items, at most `count`, and whether these were the last. An exception comes after the items before it."""
        if self.raised is not None:
            raise self.raised
        taken: list[Any] = []
        for _ in range(count):
            try:
                taken.append(next(self.items))
            except StopIteration:
                return taken, True
            except Exception as error:
                if not taken:
                    raise
                self.raised = error
                break
        return taken, False


class RemoteIterator:
    """An iterator of the other side. It is read ahead, twice as far each time, so that a long one crosses quickly and an endless one can be begun."""

    def __init__(self, handle: int, take: Callable[[int, int], Any]) -> None:
        self.handle = handle
        self._take = take
        self._ahead: list[Any] = []
        self._count = 1
        self._at_end = False

    def __iter__(self) -> "RemoteIterator":
        return self

    def __next__(self) -> Any:
        if not self._ahead and not self._at_end:
            taken, self._at_end = self._take(self.handle, self._count)
            self._ahead = list(reversed(taken))
            self._count = min(2 * self._count, MAX_AHEAD)
        if not self._ahead:
            raise StopIteration
        return self._ahead.pop()
