"""Cells started ahead of use."""

import os
import threading

import pytest

from grpo_core.sandbox.cell import Cell
from grpo_core.sandbox.isolation import Limits
from grpo_core.sandbox.values import decode
from grpo_core.sandbox.warm_cells import MAX_JOBS, WarmCells, jobs_at_once, start_pair, stock_size

LIMITS = Limits(cpu_seconds=2, wall_seconds=20)
SOURCE = "import os\nopen('/tmp/used', 'a').write('x')\nreceive()\nsend(open('/tmp/used').read())"


def start() -> Cell:
    return Cell.start(SOURCE, LIMITS)


def use(cell: Cell) -> str:
    """What a taker finds in the cell's folder."""
    with cell:
        cell.send(None)
        found: str = cell.receive(20)
        return found


def test_every_taker_gets_a_fresh_cell_even_when_many_take_at_once() -> None:
    stock, found = WarmCells(start, 2), []
    threads = [threading.Thread(target=lambda: found.append(use(stock.take()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stock.close()
    assert found == ["x"] * 8


def test_what_is_left_in_the_stock_is_killed_when_it_closes() -> None:
    started: list[Cell] = []

    def note() -> Cell:
        started.append(start())
        return started[-1]

    stock = WarmCells(note, 2)
    use(stock.take())
    stock.close()
    assert len(started) == 3
    assert not any(os.path.exists(f"/proc/{cell.pid}") for cell in started)


def test_a_pair_is_linked_and_nobody_else_is() -> None:
    pair = start_pair(LIMITS)
    try:
        pair.program.send({"programs": ["def f(): return 5"], "entry_point": "f", "link": pair.program_link})
        pair.tests.send({"tests": ["assert f() == 5"], "entry_point": "f", "link": pair.tests_link})
        assert decode(pair.tests.receive_bytes(20)) == {"passed": [True], "ended": None}
    finally:
        pair.kill()


@pytest.mark.parametrize(("cores", "at_once", "standing_by"), [(1, 1, 2), (2, 2, 4), (6, 6, 8), (256, 8, 8)])
def test_a_machine_with_many_cores_runs_out_of_nothing(cores: int, at_once: int, standing_by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    assert (jobs_at_once(), stock_size()) == (at_once, standing_by)
    assert standing_by <= MAX_JOBS


def test_a_pair_holds_eight_file_descriptors() -> None:
    start_pair(LIMITS).kill()
    before = len(os.listdir("/proc/self/fd"))
    pair = start_pair(LIMITS)
    held = len(os.listdir("/proc/self/fd")) - before
    pair.kill()
    assert held == 8
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_cell_that_could_not_be_started_is_told_to_its_taker() -> None:
    def fail() -> Cell:
        raise OSError("no more processes")

    stock = WarmCells(fail, 1)
    with pytest.raises(OSError, match="no more processes"):
        stock.take()
    stock.close()
