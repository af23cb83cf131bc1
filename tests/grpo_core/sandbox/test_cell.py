"""Messages to and from one isolated process, and every way it can end."""

import glob
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_core.sandbox.cell import Cell, CellDied, CellFlooded, CellTimeout
from grpo_core.sandbox.isolation import Limits

LIMITS = Limits(cpu_seconds=1, wall_seconds=20, output_bytes=2**16)
ECHO = "while True: send(receive())"


def ending(source: str, seconds: float = 20) -> BaseException:
    """What is raised to one who waits for a message of `source`."""
    with Cell.start(source, LIMITS) as cell, pytest.raises((CellDied, CellFlooded, CellTimeout)) as caught:
        cell.receive(seconds)
    return caught.value


def test_messages_go_in_and_come_back() -> None:
    with Cell.start(ECHO, LIMITS) as cell:
        messages: list[Any] = [{"text": "é\0\ud83d", "list": [1, 2.5, None]}, [], "x" * 60000]
        for message in messages:
            cell.send(message)
            assert cell.receive(20) == message


def test_a_large_message_goes_in() -> None:
    with Cell.start("send(len(receive()))", LIMITS) as cell:
        cell.send("x" * 10**7)
        assert cell.receive(20) == 10**7


def test_two_cells_share_nothing() -> None:
    leave = "import os\nsend(os.listdir('/tmp'))\nopen('/tmp/mark', 'w').close()\nsend(os.listdir('/tmp'))\nreceive()"
    with Cell.start(leave, LIMITS) as one, Cell.start(leave, LIMITS) as other:
        assert [one.receive(20), one.receive(20)] == [[], ["mark"]]
        assert [other.receive(20), other.receive(20)] == [[], ["mark"]]


@pytest.mark.parametrize(
    ("source", "kind", "said", "by_limit"),
    [
        ("raise ValueError", CellDied, "ended with exit status 1", True),
        ("import os; os._exit(3)", CellDied, "ended with exit status 3", True),
        ("raise SystemExit(0)", CellDied, r"ended in the middle (exit status 0)", True),
        ("import os; os.abort()", CellDied, "crashed (SIGABRT)", True),
        ("import ctypes; ctypes.string_at(0)", CellDied, "crashed (SIGSEGV)", True),
        ("import os; os.kill(os.getpid(), 9)", CellDied, "was killed from outside", False),
        ("while True: pass", CellDied, "went over the limit of 1 s of processor time", True),
        ("send('x' * 70000)", CellFlooded, "sent a message of 70,002 bytes; at most 65,536 are read", None),
        ("import os; os.write(reply_descriptor, b'\\0\\0\\0\\2{[')", CellFlooded, "sent 2 bytes that are no message", None),
        ("import os; os.write(reply_descriptor, b'\\0\\0\\xff\\xff' + b'[' * 65535)", CellFlooded, "sent 65,535 bytes that are no message", None),
    ],
)
def test_how_it_ended_is_said(source: str, kind: type[Exception], said: str, by_limit: bool | None) -> None:
    ended = ending(source)
    assert isinstance(ended, kind)
    assert str(ended) == said
    assert by_limit is None or (isinstance(ended, CellDied) and ended.by_limit == by_limit)


def test_one_that_does_not_answer_is_not_waited_for() -> None:
    started = time.monotonic()
    assert str(ending("import time; time.sleep(100)", 0.5)) == "gave no answer within the wall-clock limit of 20 s"
    assert time.monotonic() - started < 10


def test_output_is_read_to_its_end_and_no_further_than_the_limit() -> None:
    with Cell.start("import os; [os.write(reply_descriptor, b'line\\n') for _ in range(3)]", LIMITS) as cell:
        assert cell.receive_rest(20) == b"line\n" * 3
    with (
        Cell.start("import os\nwhile True: os.write(reply_descriptor, b'line\\n')", LIMITS) as cell,
        pytest.raises(CellFlooded, match="wrote more than 65,536 bytes"),
    ):
        cell.receive_rest(20)
    with Cell.start("import os; os.write(reply_descriptor, b'line\\n'); os._exit(2)", LIMITS) as cell, pytest.raises(CellDied, match="exit status 2"):
        cell.receive_rest(20)


def descendants(process: int) -> set[int]:
    """All processes below one, by what the kernel tells of parents."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        parents[int(text.split()[0])] = int(text.rpartition(")")[2].split()[1])
    found: set[int] = {process}
    last: set[int] = set()
    while found != last:
        last, found = found, found | {child for child, parent in parents.items() if parent in found}
    return found - {process}


def read_if_there(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def is_alive(process: int) -> bool:
    """Whether it is there, and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_gone(processes: set[int]) -> bool:
    """Whether they end within some seconds."""
    deadline = time.monotonic() + 10
    while (alive := any(map(is_alive, processes))) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive


def test_a_killed_cell_leaves_no_process_however_many_it_made() -> None:
    family = (
        "import os, signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "for _ in range(3):\n    if os.fork() == 0: os.setsid()\nsend(1)\ntime.sleep(1000)"
    )
    with Cell.start(family, LIMITS, may_fork=True) as cell:
        cell.receive(20)
        processes = {cell.pid, *descendants(cell.pid)}
        assert len(processes) >= 3
    assert all_gone(processes)


def test_a_cell_killed_while_it_starts_leaves_no_process() -> None:
    delays, mark = random.Random(0), Limits(memory_bytes=200 * 2**20 + 4096 * 31)
    for _ in range(40):
        cell = Cell.start(ECHO, mark)
        time.sleep(0.006 * delays.random())
        cell.kill()
    commands = (Path(path) for path in glob.glob("/proc/[0-9]*/cmdline"))
    alive = {int(path.parent.name) for path in commands if str(mark.memory_bytes) in read_if_there(path).split("\0")}
    assert all_gone(alive)


def test_cells_die_with_the_process_that_started_them() -> None:
    owner = (
        "import os, signal, time\nfrom grpo_core.sandbox.cell import Cell\nfrom grpo_core.sandbox.isolation import Limits\n"
        f"cell = Cell.start({ECHO!r}, Limits())\ncell.send(1)\ncell.receive(60)\nprint(cell.pid, flush=True)\ntime.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None
        bubblewrap = int(process.stdout.readline())
        processes = {bubblewrap, *descendants(bubblewrap)}
        assert len(processes) == 3
        process.send_signal(signal.SIGKILL)
    assert all_gone(processes)


def test_cells_outlive_the_thread_that_asked_for_them() -> None:
    import threading

    made: list[Cell] = []
    thread = threading.Thread(target=lambda: made.append(Cell.start(ECHO, LIMITS)))
    thread.start()
    thread.join()
    with made[0] as cell:
        time.sleep(0.2)
        cell.send("still here")
        assert cell.receive(20) == "still here"


def test_descriptors_that_are_passed_keep_their_numbers() -> None:
    ours, theirs = os.pipe()
    with Cell.start("import os; os.write(receive(), b'through'); send(1)", LIMITS, pass_fds=(theirs,)) as cell:
        cell.send(theirs)
        cell.receive(20)
    assert os.read(ours, 100) == b"through"
    os.close(ours)
    os.close(theirs)


def test_modules_of_the_package_can_be_lent() -> None:
    source = "from grpo_core.sandbox.values import decode, encode\nsend(decode(encode([1, 2])))"
    with Cell.start(source, LIMITS, modules=("values",)) as cell:
        assert cell.receive(20) == [1, 2]


def test_a_cell_killed_while_it_waits_was_killed_from_outside() -> None:
    with Cell.start(ECHO, LIMITS) as cell:
        cell.send(1)
        cell.receive(20)
        os.kill(cell.pid, signal.SIGKILL)
        with pytest.raises(CellDied, match=re.escape("was killed from outside")) as died:
            for _ in range(100):
                cell.send("x" * 10000)
    assert not died.value.by_limit


def test_a_process_that_does_not_read_does_not_block_the_host() -> None:
    limits = Limits(cpu_seconds=0.5, wall_seconds=0.5)
    with Cell.start("import time; time.sleep(100)", limits) as cell, pytest.raises(CellTimeout):
        cell.send("x" * 10**7)


def test_what_it_sends_is_data_and_nothing_else() -> None:
    """The host reads JSON: a pickle, code or a huge number has no way of becoming more than a failed message."""
    attack: dict[str, Any] = {"__reduce__": ["os.system", "true"], "py/object": "os.system"}
    with Cell.start(ECHO, LIMITS) as cell:
        cell.send(attack)
        assert cell.receive(20) == attack
    assert isinstance(ending("import os, pickle; data = pickle.dumps(print); os.write(reply_descriptor, len(data).to_bytes(4, 'big') + data)"), CellFlooded)
    assert isinstance(ending("import os; data = b'9' * 60000; os.write(reply_descriptor, len(data).to_bytes(4, 'big') + data)"), CellFlooded)


def test_a_bwrap_that_is_killed_while_it_sets_up_is_noticed_at_once() -> None:
    """What it leaves waits for it for ever, with the pipes in hand: a process that has its output open stands for it here."""
    bwrap = subprocess.Popen(
        ["sh", "-c", "sleep 60 & exec sleep 60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, process_group=0
    )
    cell = Cell(bwrap, b"", Limits())
    threading.Timer(0.2, lambda: os.kill(bwrap.pid, signal.SIGKILL)).start()
    started = time.monotonic()
    with cell, pytest.raises(CellDied, match="killed from outside"):
        cell.receive(5.0)
    assert time.monotonic() - started < 4.0


def test_limits_of_the_machine_that_are_lower_already_are_kept() -> None:
    steps = (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\nresource.setrlimit(resource.RLIMIT_CPU, (50, 50))\n"
        "from grpo_core.sandbox.cell import Cell\nfrom grpo_core.sandbox.isolation import Limits\n"
        "source = 'import resource\\nsend([resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CPU)])'\n"
        "with Cell.start(source, Limits(cpu_seconds=60, wall_seconds=60)) as cell:\n    print(cell.receive(20))\n"
    )
    done = subprocess.run([sys.executable, "-c", steps], capture_output=True, text=True, check=True)
    assert done.stdout == "[[100, 100], [50, 50]]\n"
