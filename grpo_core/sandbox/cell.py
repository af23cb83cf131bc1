"""One isolated Python process, and messages to and from it."""

import __future__

import json
import marshal
import math
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from grpo_core.sandbox.isolation import Limits, SandboxUnavailable, command, package_path, seccomp_filter, spare_user

INSIDE = Path(__file__).with_name("inside.py")
READY = b"ready"
START_SECONDS = 60.0
"""How long a cell may take to start on a busy machine."""
THREADS = 64
"""Threads (and processes, where a cell may fork) of one cell, at most."""
SIGNALLED = 128
"""bwrap ends with this plus the number of the signal that ended what it ran."""


class CellTimeout(Exception):
    """The process did not answer in time. It is still there: kill it."""


class CellDied(Exception):
    """The process has ended: says how. `by_limit`: its own doing, so that another try would end alike; else something outside may have killed it.

    `is_exit_status`: it came to its end, by an exception or an exit.
    """

    def __init__(self, how: str, *, by_limit: bool = True, is_exit_status: bool = False) -> None:
        super().__init__(how)
        self.by_limit = by_limit
        self.is_exit_status = is_exit_status


class CellFlooded(Exception):
    """The process sent more than a message may hold, or what is no message."""


@cache
def starter(process_id: int) -> ThreadPoolExecutor:
    """The one thread of this process that starts cells: they die with the thread that started them, and this one lives as long as the process."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"cells-{process_id}")


def bytecode(source: str, name: str) -> bytes:
    """`source` as code for a cell, which is of the same interpreter; annotations are not evaluated."""
    return marshal.dumps(compile(source, name, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True))


@cache
def first_frame(source: str, modules: tuple[str, ...]) -> bytes:
    """What a cell is sent first: the modules of this package it can import, and the code that it runs."""
    codes = {f"{__package__}.{name}": bytecode(Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8"), f"<{name}>") for name in modules}
    frame = marshal.dumps((codes, bytecode(source, "<cell>")))
    return len(frame).to_bytes(4, "big") + frame


@cache
def first_steps() -> str:
    """The program text that every cell begins with."""
    return INSIDE.read_text(encoding="utf-8")


def launch(limits: Limits, packages: Sequence[Path], may_fork: bool, pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """A bwrap process; the host's side of its pipes does not block."""
    user = spare_user()
    numbers = (math.ceil(limits.cpu_seconds), limits.memory_bytes, limits.file_bytes, THREADS, user or 0)
    with tempfile.TemporaryFile() as seccomp:
        seccomp.write(seccomp_filter(may_fork=may_fork))
        seccomp.seek(0)
        words = command(limits, user=user, seccomp_fd=seccomp.fileno(), packages=packages)
        words += ["-s", "-S", "-P", "-B", "-c", first_steps(), *map(str, numbers), *package_path(packages)]
        pipe = subprocess.PIPE
        kept = (seccomp.fileno(), *pass_fds)
        # in a process group of its own: Ctrl-C is for the trainer, and killing the group reaches what bwrap has only begun to set up
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env={}, pass_fds=kept, cwd="/", process_group=0)
    for end in (process.stdin, process.stdout, process.stderr):
        os.set_blocking(pipe_of(end), False)
    return process


def pipe_of(pipe: IO[bytes] | None) -> int:
    assert pipe is not None, "cells are started with pipes"
    return pipe.fileno()


class Cell:
    """One isolated Python process. Used from one thread at a time; whoever starts it kills it (or leaves the `with`)."""

    def __init__(self, process: subprocess.Popen[bytes], first_frame: bytes, limits: Limits) -> None:
        self._process = process
        self._end = os.pidfd_open(process.pid)
        self._unsent = first_frame
        self._limits = limits
        self._is_ready = False

    @classmethod
    def start(
        cls,
        source: str,
        limits: Limits,
        *,
        modules: Sequence[str] = (),
        packages: Sequence[Path] = (),
        may_fork: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> "Cell":
        """A process that runs `source`, which finds `receive()` and `send(message)` (JSON) among its names.

        It can import the standard library, the `modules` of this package and what is in `packages` (folders of packages, or single
        packages), laid in read-only; `pass_fds` stay open in it under their numbers. Returns at once; a machine that cannot isolate shows
        at the first message (SandboxUnavailable).
        """
        process = starter(os.getpid()).submit(launch, limits, tuple(packages), may_fork, tuple(pass_fds)).result()
        return cls(process, first_frame(source, tuple(modules)), limits)

    @property
    def pid(self) -> int:
        """Of bwrap on the host: killing it kills all that runs inside."""
        return self._process.pid

    def send(self, message: Any) -> None:
        """`message` (of plain values) is in the process's pipe. CellDied, CellTimeout."""
        data = marshal.dumps(message)
        self._write(len(data).to_bytes(4, "big") + data, time.monotonic() + self._limits.wall_seconds)

    def receive(self, seconds: float) -> Any:
        """What the process `send`s next: untrusted data. CellDied, CellTimeout, CellFlooded."""
        data = self.receive_bytes(seconds)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise CellFlooded(f"sent {len(data):,} bytes that are no message") from None

    def receive_bytes(self, seconds: float) -> bytes:
        """The process's next message as it is. CellDied, CellTimeout, CellFlooded."""
        deadline = time.monotonic() + seconds
        self._flush(deadline)
        size = int.from_bytes(self._read(4, deadline), "big")
        if size > self._limits.output_bytes:
            raise CellFlooded(f"sent a message of {size:,} bytes; at most {self._limits.output_bytes:,} are read")
        return self._read(size, deadline)

    def receive_rest(self, seconds: float) -> bytes:
        """All bytes up to the process's end, which must be orderly (else CellDied); for a process that was told to write its output as it is."""
        deadline = time.monotonic() + seconds
        self._flush(deadline)
        chunks, size = [], 0
        while chunk := self._read_some(2**16, deadline):
            chunks.append(chunk)
            if (size := size + len(chunk)) > self._limits.output_bytes:
                raise CellFlooded(f"wrote more than {self._limits.output_bytes:,} bytes")
        if died := self._how_it_ended():
            raise died
        return b"".join(chunks)

    def kill(self) -> None:
        """The process is gone, with everything in its namespaces, and its pipes are closed."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._collect()
        if self._end >= 0:
            os.close(self._end)
            self._end = -1
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> "Cell":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def _flush(self, deadline: float) -> None:
        """The code has been sent, once the process has said that its limits are set."""
        if not self._is_ready:
            self._await_ready()
        if self._unsent:
            code, self._unsent = self._unsent, b""
            self._write_all(code, deadline)

    def _await_ready(self) -> None:
        try:
            said = self._read(len(READY), time.monotonic() + START_SECONDS)
        except CellDied as died:
            if not died.by_limit:
                raise
            raise SandboxUnavailable(f"bubblewrap could not start a process ({self._complaint() or died})") from None
        except CellTimeout:
            raise SandboxUnavailable(f"bubblewrap did not start a process within {START_SECONDS:g} seconds") from None
        assert said == READY, said
        self._is_ready = True

    def _complaint(self) -> str:
        """The last line that bwrap wrote to stderr, if any."""
        try:
            lines = os.read(pipe_of(self._process.stderr), 4096).decode(errors="replace").split("\n")
        except BlockingIOError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _write(self, data: bytes, deadline: float) -> None:
        self._flush(deadline)
        self._write_all(data, deadline)

    def _write_all(self, data: bytes, deadline: float) -> None:
        view, pipe = memoryview(data), pipe_of(self._process.stdin)
        while view:
            self._await(pipe, select.POLLOUT, deadline)
            try:
                view = view[os.write(pipe, view) :]
            except BrokenPipeError:
                raise self._death() from None

    def _read(self, count: int, deadline: float) -> bytes:
        chunks = []
        while count:
            chunk = self._read_some(min(count, 2**20), deadline)
            if not chunk:
                raise self._death()
            chunks.append(chunk)
            count -= len(chunk)
        return b"".join(chunks)

    def _read_some(self, count: int, deadline: float) -> bytes:
        pipe = pipe_of(self._process.stdout)
        self._await(pipe, select.POLLIN, deadline)
        return os.read(pipe, count)

    def _await(self, descriptor: int, event: int, deadline: float) -> None:
        """The pipe is ready, or closed. A bwrap that is killed while it sets up leaves a child that waits for it, with the pipes in hand, for ever."""
        waiting = select.poll()
        waiting.register(descriptor, event)
        if self._process.returncode is None:
            waiting.register(self._end, select.POLLIN)
        ready = waiting.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            raise CellTimeout(f"gave no answer within the wall-clock limit of {self._limits.wall_seconds:g} s")
        if all(found == self._end for found, _ in ready):
            self._collect()
            self._await(descriptor, event, deadline)

    def _collect(self) -> int:
        """bwrap's exit status, once it has ended; nothing of its group is left."""
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def _death(self) -> CellDied:
        """How the process ended, for one that should not have."""
        return self._how_it_ended() or CellDied("ended in the middle (exit status 0)")

    def _how_it_ended(self) -> CellDied | None:
        """None: with exit status 0. Its pipes are closed only once bwrap's first process inside has ended, so there is nothing to wait for."""
        status = self._process.returncode if self._process.returncode is not None else self._collect()
        if status == SIGNALLED + signal.SIGXCPU:
            return CellDied(f"went over the limit of {self._limits.cpu_seconds:g} s of processor time")
        if status in (-signal.SIGKILL, SIGNALLED + signal.SIGKILL, -signal.SIGTERM):
            return CellDied("was killed from outside", by_limit=False)
        if status > SIGNALLED:
            name = signal.Signals(status - SIGNALLED).name if status - SIGNALLED in signal.valid_signals() else f"signal {status - SIGNALLED}"
            return CellDied(f"crashed ({name})")
        return CellDied(f"ended with exit status {status}", is_exit_status=True) if status else None
