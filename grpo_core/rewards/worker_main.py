"""Inside the reward worker: waits for batches and calls, runs reward functions on its main thread, answers in JSON. No torch here."""

import json
import os
import pickle
import select
import signal
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, BinaryIO

from grpo_core.rewards.calling import call, rows_of
from grpo_core.rewards.outcomes import Failed, Invalid, RewardError, Value
from grpo_core.rewards.registry import load_reward

LENGTH = struct.Struct("<Q")
"""What stands before every message: its length in bytes."""


def main() -> None:
    """Serve until the other end closes. What functions print goes to stderr: stdout is the way back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the trainer ends its step first
    requests, back = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)  # what a function starts must not read the requests
    os.dup2(2, 1)
    batch = pickle.dumps({})
    while (message := read(requests)) is not None:
        kind, *given = pickle.loads(message)
        if kind == "batch":
            (batch,) = given
        elif kind == "load":
            write(back, json.dumps(_loaded(*given)).encode())
        else:  # read anew for every call: a function may change what it is given
            write(back, json.dumps(_called(pickle.loads(batch), *given)).encode())


def end_with(trainer: int) -> None:
    """From now on this process's group, with all that functions start, ends when the process `trainer` does, however that ends."""
    descriptor = os.pidfd_open(trainer)
    if os.fork() != 0:
        os.close(descriptor)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.closerange(0, 2)  # stderr stays, to be the trainer's
    watched = select.poll()
    watched.register(descriptor, select.POLLIN)
    watched.poll()
    os.killpg(0, signal.SIGKILL)


def read(stream: BinaryIO) -> bytes | None:
    """The next message; None at the end."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


def write(stream: BinaryIO, message: bytes) -> None:
    stream.write(LENGTH.pack(len(message)) + message)
    stream.flush()


def _loaded(name: str) -> dict[str, Any]:
    try:
        load_reward(name)
    except RewardError as error:
        return {"refused": str(error)}
    return {}


def _called(columns: Mapping[str, Sequence[Any]], name: str, options: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """The answer to one call: `values`, or what was `raised`, or why the function is `refused`."""
    try:
        outcome = call(name, load_reward(name), rows_of(columns, rows), options)
    except RewardError as error:
        return {"refused": str(error)}
    return {"raised": asdict(outcome)} if isinstance(outcome, Failed) else {"values": list(map(_as_json, outcome))}


def _as_json(value: Value) -> Any:
    if isinstance(value, Invalid):
        return {"invalid": value.reason}
    return {"failed": asdict(value)} if isinstance(value, Failed) else value


def from_json(value: Any) -> Value:
    """The outcome that `_as_json` wrote."""
    if not isinstance(value, dict):
        return value
    return Invalid(value["invalid"]) if "invalid" in value else Failed(**value["failed"])


if __name__ == "__main__":
    main()
