"""Cells that were started ahead of use: each is used once, and another one is started in its place."""

import atexit
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cache
from typing import Generic, NamedTuple, TypeVar

from grpo_core.sandbox.cell import Cell
from grpo_core.sandbox.isolation import Limits

PROGRAM_MODULES = ("values", "link", "program_side")
PROGRAM_SOURCE = "from grpo_core.sandbox.program_side import main\nmain(receive(), reply_descriptor)\n"
TESTS_MODULES = ("values", "link", "stand_ins", "remote_program", "written_tests", "tests_side")
TESTS_SOURCE = "from grpo_core.sandbox.tests_side import main\nmain(receive(), reply_descriptor)\n"
MAX_JOBS = 8
"""However many cores there are: a pair holds eight file descriptors of this process and two Pythons, in use or standing by."""


class Pair(NamedTuple):
    """The cell of a program and that of its tests, and the numbers under which each finds the link to the other."""

    program: Cell
    tests: Cell
    program_link: int
    tests_link: int

    def kill(self) -> None:
        """Both are gone."""
        self.program.kill()
        self.tests.kill()


Kind = TypeVar("Kind", Cell, Pair)


def start_pair(limits: Limits) -> Pair:
    """Two new cells with a link that nobody else holds."""
    one, other = socket.socketpair()
    with closing(one), closing(other):
        program = Cell.start(PROGRAM_SOURCE, limits, modules=PROGRAM_MODULES, pass_fds=(one.fileno(),))
        tests = Cell.start(TESTS_SOURCE, limits, modules=TESTS_MODULES, pass_fds=(other.fileno(),))
        return Pair(program, tests, one.fileno(), other.fileno())


def start_single(limits: Limits) -> Cell:
    """A new cell for a script."""
    return Cell.start(PROGRAM_SOURCE, limits, modules=PROGRAM_MODULES)


class WarmCells(Generic[Kind]):
    """A stock of started cells. `take` hands one out, to be used once and killed by the taker; it is replaced in the background."""

    def __init__(self, start: Callable[[], Kind], count: int) -> None:
        self._start: Callable[[], Kind] = start
        self._starting = ThreadPoolExecutor(max_workers=1, thread_name_prefix="warm-cells")
        self._stock: deque[Future[Kind]] = deque(self._starting.submit(start) for _ in range(count))
        self._lock = threading.Lock()

    def take(self) -> Kind:
        """The oldest cell of the stock."""
        with self._lock:
            self._stock.append(self._starting.submit(self._start))
            oldest = self._stock.popleft()
        return oldest.result()

    def close(self) -> None:
        """No cell of the stock is left."""
        with self._lock:
            self._starting.shutdown(wait=True, cancel_futures=True)
            for started in self._stock:
                if not started.cancelled() and started.exception() is None:
                    started.result().kill()
            self._stock.clear()


def jobs_at_once() -> int:
    """One for each core that this process may use, up to MAX_JOBS."""
    return min(MAX_JOBS, len(os.sched_getaffinity(0)))


def stock_size() -> int:
    """Cells or pairs that stand by: two for each job, up to MAX_JOBS."""
    return min(MAX_JOBS, 2 * jobs_at_once())


@cache
def _pairs(process_id: int, limits: Limits) -> WarmCells[Pair]:
    stock = WarmCells(lambda: start_pair(limits), stock_size())
    atexit.register(stock.close)
    return stock


@cache
def _singles(process_id: int, limits: Limits) -> WarmCells[Cell]:
    stock = WarmCells(lambda: start_single(limits), stock_size())
    atexit.register(stock.close)
    return stock


def pairs(limits: Limits) -> WarmCells[Pair]:
    """This process's stock of pairs, started when first asked for."""
    return _pairs(os.getpid(), limits)


def singles(limits: Limits) -> WarmCells[Cell]:
    """This process's stock of single cells, started when first asked for."""
    return _singles(os.getpid(), limits)
