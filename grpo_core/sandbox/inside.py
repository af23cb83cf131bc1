"""The first steps of an isolated process: a channel to the host, limits, no user; then the code that the host sends. Its text is run; it is never imported."""

import marshal
import os
import resource
import sys


def read_exactly(descriptor: int, count: int) -> bytes:
    """`count` bytes; when the host has hung up there is nothing left to do."""
    data = bytearray()
    while len(data) < count:
        chunk = os.read(descriptor, min(count - len(data), 2**20))
        if not chunk:
            os._exit(0)
        data += chunk
    return bytes(data)


def read_frame(descriptor: int) -> bytes:
    """The host's next frame: four bytes say how long it is."""
    return read_exactly(descriptor, int.from_bytes(read_exactly(descriptor, 4), "big"))


def write_all(descriptor: int, data: bytes) -> None:
    """All of `data` is on its way."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def open_channel() -> tuple[int, int]:
    """Descriptors from and to the host, away from 0, 1 and 2, which lead nowhere from now on."""
    requests, replies = os.dup(0), os.dup(1)
    nowhere = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    return requests, replies


def set_limits(cpu_seconds: int, memory_bytes: int, file_bytes: int, threads: int) -> None:
    """None above what the machine allows. The second of grace is for SIGXCPU, which says what the limit was, to come first."""
    for limit, soft, hard in (
        (resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 1),
        (resource.RLIMIT_AS, memory_bytes, memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes, file_bytes),
        (resource.RLIMIT_NPROC, threads, threads),
        (resource.RLIMIT_NOFILE, 128, 128),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
    ):
        allowed = resource.getrlimit(limit)[1]
        least = hard if allowed == resource.RLIM_INFINITY else min(hard, allowed)
        resource.setrlimit(limit, (min(soft, least), least))


def leave_root(user: int) -> None:
    """The process belongs to a user id that owns nothing, and has no capability left."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def load(modules: dict[str, bytes]) -> None:
    """The host's modules can be imported under their names."""
    for name, code in modules.items():
        sys.modules[name] = type(sys)(name)
        exec(marshal.loads(code), vars(sys.modules[name]))


def start() -> tuple[object, dict[str, object]]:
    """The code to run, and the names it runs with: `receive()`, `send(message)` and the descriptor that `send` writes to."""
    requests, replies = open_channel()
    cpu_seconds, memory_bytes, file_bytes, threads, user = map(int, sys.argv[1:6])
    sys.path += sys.argv[6:]
    if user:
        leave_root(user)
    set_limits(cpu_seconds, memory_bytes, file_bytes, threads)
    write_all(replies, b"ready")
    modules, code = marshal.loads(read_frame(requests))

    def send(message: object) -> None:
        import json  # takes a third of the time that a cell needs to start, and not every one sends JSON

        data = json.dumps(message).encode()
        write_all(replies, len(data).to_bytes(4, "big") + data)

    def receive() -> object:
        return marshal.loads(read_frame(requests))

    load(modules)
    return marshal.loads(code), {"__name__": "cell", "receive": receive, "send": send, "reply_descriptor": replies}


exec(*start())  # type: ignore[arg-type]  # it is a code object
