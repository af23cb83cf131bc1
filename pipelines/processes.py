"""A command with all its descendants: started as a group of its own, heard while it runs, stopped as a whole."""

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

RUN_ID = "GRPO_RUN_ID"
"""Environment variable: the run that started a stage; it finds the stage's processes when the run's own are gone."""
TERMINAL = "GRPO_TERMINAL"
"""Environment variable: width of the terminal that a person watches, set by `terminal_for_stages`; stages then draw bars instead of lines."""
NARROWEST, USUAL = 40, 100
"""Columns. A terminal may call itself 0 wide, and then DVC's own bars shorten their text for ever."""
TAIL_LINES = 200
STOPPING = ((signal.SIGINT, None), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
"""Signal → seconds that the group gets to end after it (None: the caller's grace)."""

# PR_SET_PDEATHSIG = 1 outlives exec: when this process is killed outright, the command hears SIGTERM. Not preexec_fn: it may deadlock beside threads.
_GUARD = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@contextmanager
def terminal_for_stages() -> Iterator[None]:
    """While inside, stages started by this process draw progress bars, if its stderr is a terminal now."""
    if not sys.stderr.isatty():
        yield
        return
    columns = os.get_terminal_size(sys.stderr.fileno()).columns
    os.environ[TERMINAL] = str(max(columns, NARROWEST) if columns > 0 else USUAL)
    try:
        yield
    finally:
        del os.environ[TERMINAL]


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine; `started` tells it from a later one with the same number."""

    pid: int
    started: int
    parent: int = field(compare=False)
    group: int = field(compare=False)


def living_processes() -> set[Process]:
    """Every process that can still do something (zombies cannot)."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            # The name in parentheses may hold anything, so fields are counted from its end: state, parent, group, ..., start time.
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                found.add(Process(pid=int(path.parent.name), started=int(fields[19]), parent=int(fields[1]), group=int(fields[2])))
    return found


def processes_with(variable: str, value: str) -> set[Process]:
    """Living processes that were started with this environment variable, wherever their parents are."""
    wanted, found = f"{variable}={value}".encode(), set()
    for process in living_processes():
        with suppress(OSError):  # it ended meanwhile, or is another user's
            if wanted in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.add(process)
    return found


def end(members: Callable[[], set[Process]], grace: float) -> None:
    """SIGINT to every one of `members`, and SIGTERM and SIGKILL to what is left after `grace` seconds and more; returns when none lives."""
    for number, patience in STOPPING:
        for process in members():
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        deadline = time.monotonic() + (grace if patience is None else patience)
        while time.monotonic() < deadline:
            if not members():
                return
            time.sleep(0.05)


class Tee:
    """Copies what a process writes to a stream of ours as it comes, and remembers the last lines."""

    def __init__(self, source: int, copy_to: int, dropped: re.Pattern[str] | None = None) -> None:
        self._source, self._copy_to, self._dropped = source, copy_to, dropped
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> list[str]:
        """The last lines as a person would see them: without colours, and of a line redrawn in place only its last state."""
        self._thread.join(timeout=5.0)
        cleaned = (_ESCAPES.sub("", line).rstrip() for line in self._lines)
        return [line.rpartition("\r")[2] for line in cleaned]

    def _run(self) -> None:
        pending = b""
        while chunk := self._read():
            if self._dropped is None:
                self._write(chunk)
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self._take(line)
        self._take(pending)

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace")
        self._lines.append(text)
        if self._dropped is not None and text and not self._dropped.search(text):
            self._write(line + b"\n")

    def _read(self) -> bytes:
        try:
            return os.read(self._source, 65536)
        except OSError:  # a pseudo-terminal says so when its last writer has gone
            return b""

    def _write(self, chunk: bytes) -> None:
        try:
            os.write(self._copy_to, chunk)
        except OSError:  # nobody reads our own output any more; the process's work is not theirs to stop
            self._copy_to = os.open(os.devnull, os.O_WRONLY)


class Group:
    """A running command. Its stderr reaches ours while it runs; its stdout too, less the lines that `dropped` matches."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], dropped: re.Pattern[str] | None = None) -> None:
        errors_read, errors_write = _error_channel()
        guarded = [sys.executable, "-I", "-S", "-c", _GUARD, *command]
        self._process = subprocess.Popen(guarded, cwd=cwd, env=dict(env), stdout=subprocess.PIPE, stderr=errors_write, start_new_session=True)
        os.close(errors_write)
        assert self._process.stdout is not None
        self._tees = (Tee(errors_read, 2), Tee(self._process.stdout.fileno(), 1, dropped))
        self._known: set[Process] = set()
        self._errors_read = errors_read

    def poll(self) -> int | None:
        """The command's exit status once it has ended."""
        return self._process.poll()

    def close(self) -> list[str]:
        """Release what the ended command held; its last lines on stderr."""
        self._process.wait()  # it has ended, perhaps between the last look and now: an unread exit status would keep a zombie
        errors, _ = (tee.finish() for tee in self._tees)
        os.close(self._errors_read)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return errors

    def stop(self, grace: float) -> None:
        """SIGINT, and SIGTERM and SIGKILL to what is left after `grace` seconds and more; returns when nothing of the group lives."""
        end(self._members, grace)

    def _members(self) -> set[Process]:
        """Living members of the process group, and descendants that left it for a session of their own (torchrun's ranks do)."""
        self._process.poll()  # reaps the leader
        living = living_processes()
        self._known = {process for process in living if process in self._known or process.group == self._process.pid}
        while more := {process for process in living - self._known if process.parent in {known.pid for known in self._known}}:
            self._known |= more
        return self._known


def _error_channel() -> tuple[int, int]:
    """Read and write end for the command's stderr: a pseudo-terminal when a person watches (so that bars are drawn), else a pipe."""
    columns = os.environ.get(TERMINAL)
    if columns is None:
        return os.pipe()
    read, write = pty.openpty()
    attributes = termios.tcgetattr(write)
    attributes[1] &= ~termios.OPOST  # line ends pass unchanged
    termios.tcsetattr(write, termios.TCSANOW, attributes)
    termios.tcsetwinsize(write, (24, int(columns)))
    return read, write
