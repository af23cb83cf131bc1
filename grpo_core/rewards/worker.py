"""The reward worker: a process of its own in which reward functions run, so that one that hangs or crashes is killed and nothing is lost."""

import atexit
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from grpo_core.rewards import worker_main
from grpo_core.rewards.outcomes import Failed, RewardError, Value
from grpo_core.rewards.worker_main import LENGTH, from_json

LOAD_SECONDS = 300.0
"""Longest that importing a reward function's module may take: it may bring libraries along."""
LONGEST_SECONDS = 3600.0
"""Longest that a function which bounds the time of every completion itself may take over a batch."""
_START = f"import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {worker_main.__name__} import end_with, main; end_with(int(sys.argv[2])); main()"


class WorkerLost(Exception):
    """The worker answered too late, or died, and was killed; the next call starts a fresh one."""


@dataclass(slots=True)
class Worker:
    """A worker process, started when first needed. Calls come one after another, from one thread."""

    place: tuple[str, ...] = ()
    """Working folder and import path that it was started with."""
    batch: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """The columns that calls are about."""
    process: "subprocess.Popen[bytes] | None" = None
    loaded: set[str] = field(default_factory=set)
    is_fresh: bool = True
    """It has been asked nothing yet."""

    def take(self, batch: Mapping[str, Sequence[Any]]) -> None:
        """Calls from now on are about rows of `batch`."""
        self.batch = batch
        if self.process is not None:
            self._hand_over()

    def call(self, name: str, options: Mapping[str, Any], rows: Sequence[int], seconds: float) -> list[Value] | Failed:
        """The function's outcomes for these rows of the batch; raises WorkerLost, and RewardError when the function cannot be used."""
        if self.process is None or name not in self.loaded:
            self._load(name)
        self.is_fresh = False
        answer = self._ask(("call", name, dict(options), list(rows)), seconds)
        if "refused" in answer:
            raise RewardError(answer["refused"])
        return Failed(**answer["raised"]) if "raised" in answer else [from_json(value) for value in answer["values"]]

    def freshen(self) -> None:
        """See to it that the next call meets a worker that was asked nothing before."""
        if not self.is_fresh:
            self.kill()

    def kill(self) -> None:
        """End the process and everything that it started."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                with suppress(BrokenPipeError):
                    stream.close()  # type: ignore[union-attr]  # both are pipes
        self.process, self.loaded, self.is_fresh = None, set(), True

    def _start(self) -> None:
        place = json.dumps([entry or os.getcwd() for entry in sys.path])
        atexit.unregister(self.kill)
        atexit.register(self.kill)
        words = [sys.executable, "-c", _START, place, str(os.getpid())]
        environment = os.environ | {"PYTHONHASHSEED": "0"}  # sets come in one order, whichever worker is asked
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True)
        self._hand_over()

    def _hand_over(self) -> None:
        with suppress(BrokenPipeError):  # it died meanwhile: the call that follows says so
            self._send(("batch", pickle.dumps(self.batch)))

    def _load(self, name: str) -> None:
        """Import the function; a worker lost on the way is replaced once."""
        for last in (False, True):
            if self.process is None:
                self._start()
            try:
                answer = self._ask(("load", name), LOAD_SECONDS)
            except WorkerLost as lost:
                if last:
                    raise RewardError(f"rewards.{name}: importing it failed twice: {lost}") from lost
                continue
            if "refused" in answer:
                raise RewardError(answer["refused"])
            self.loaded.add(name)
            return

    def _ask(self, message: object, seconds: float) -> dict[str, Any]:
        assert self.process is not None and self.process.stdout is not None
        try:
            self._send(message)
            answer: dict[str, Any] = json.loads(self._receive(self.process.stdout.fileno(), seconds))
            return answer
        except TimeoutError as error:
            self.kill()
            raise WorkerLost(f"it took longer than {seconds:g} s") from error
        except (OSError, EOFError) as error:
            status = self.process.wait()
            self.kill()
            raise WorkerLost(f"its process died ({_ending(status)})") from error
        except BaseException:  # Ctrl-C: the answer that is still to come must not be taken for the next call's
            self.kill()
            raise

    def _send(self, message: object) -> None:
        assert self.process is not None and self.process.stdin is not None
        body = pickle.dumps(message)
        self.process.stdin.write(LENGTH.pack(len(body)) + body)
        self.process.stdin.flush()

    def _receive(self, descriptor: int, seconds: float) -> bytes:
        deadline = time.monotonic() + seconds
        (length,) = LENGTH.unpack(_read(descriptor, LENGTH.size, deadline))
        return _read(descriptor, length, deadline)


def _read(descriptor: int, count: int, deadline: float) -> bytes:
    """Exactly `count` bytes; TimeoutError after the deadline, EOFError when the other end closed."""
    found, waiting = bytearray(), select.poll()
    waiting.register(descriptor, select.POLLIN)
    while len(found) < count:
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
        chunk = os.read(descriptor, min(count - len(found), 1 << 20))
        if not chunk:
            raise EOFError
        found += chunk
    return bytes(found)


def _ending(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


_worker = Worker()
"""One for the whole process, started at the first call."""


def worker() -> Worker:
    """The process's reward worker; one that was started in another folder or with another import path is replaced."""
    place = (os.getcwd(), *sys.path)
    if _worker.place != place:
        _worker.kill()
        _worker.place = place
    return _worker
