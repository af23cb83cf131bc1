"""Serving the page on this machine until Ctrl-C: one process an experiment, on loopback only."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.types import ASGIApp

HOST = "127.0.0.1"
FIRST_PORT = 3001
TRIED_PORTS = 50


class AlreadyServed(ValueError):
    """Another process serves this experiment: says where."""


class NoPort(ValueError):
    """A port that cannot be used."""


def bind(port: int) -> socket.socket:
    """A listening socket; port 0 stands for the first free one from `FIRST_PORT` on. Raises `NoPort`."""
    for candidate in [port] if port else range(FIRST_PORT, FIRST_PORT + TRIED_PORTS):
        # With the protocol named asyncio sends small packets at once; without it every answer waits 40 ms for the browser's acknowledgement.
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((HOST, candidate))
            found.listen(128)
            return found
        except OSError:
            found.close()
    raise NoPort(f"port {port or f'{FIRST_PORT} and the {TRIED_PORTS - 1} after it'} cannot be used: choose another with --port")


def address(listening: socket.socket) -> str:
    return f"http://{HOST}:{listening.getsockname()[1]}/"


@contextmanager
def alone(database: Path, where: str) -> Iterator[None]:
    """While inside, no other process may serve this database; the system lets go of it however this process ends. Raises `AlreadyServed`."""
    database.parent.mkdir(parents=True, exist_ok=True)
    with database.with_name(f"{database.name}.lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise AlreadyServed(f"`grpo review` runs already for these pairs, at {lock.read().strip() or 'another port'}: use that page") from error
        lock.truncate(0)
        lock.write(f"{where}\n")
        lock.flush()
        yield


def has_display() -> bool:
    """Whether a browser could show a window here (a text browser would take the terminal over)."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def serve(app: ASGIApp, listening: socket.socket) -> None:
    """Answer requests until SIGINT or SIGTERM, and a second at most after it."""
    import uvicorn

    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listening])
