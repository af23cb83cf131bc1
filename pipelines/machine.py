"""What this machine has to offer: memory, cores, disk, GPUs. Read from the system, without torch."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of main memory that processes here may use, and that are free now; None where the system does not say."""

    total: int | None
    free: int | None


def memory(proc: Path = PROC, cgroup: Path = CGROUP) -> Memory:
    """The machine's memory, or the control group's limit where that is lower (containers)."""
    values = _meminfo(proc)
    limits = [values.get("MemTotal"), *_cgroup_limits(proc, cgroup)]
    known = [limit for limit in limits if limit is not None]
    total, free = min(known, default=None), values.get("MemAvailable")
    return Memory(total, min(free, total) if free is not None and total is not None else free)


def _meminfo(proc: Path) -> dict[str, int]:
    """Name → bytes."""
    try:
        lines = (proc / "meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if rest.split()[1:] == ["kB"]}


def _cgroup_limits(proc: Path, cgroup: Path) -> Iterator[int]:
    """Limits of this process's control group and of those above it, of either version."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base, name = cgroup, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = cgroup / "memory", "memory.limit_in_bytes"
        else:
            continue
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts) + 1):
            try:
                text = base.joinpath(*parts[:depth], name).read_text(encoding="utf-8").strip()
            except OSError:
                continue
            if text.isdigit():
                yield int(text)


def cores() -> int:
    """Processor cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def free_disk(folder: Path) -> int:
    """Bytes free where `folder` lies."""
    return shutil.disk_usage(folder).free


def writable(path: Path) -> bool:
    """Whether `path`, or what would hold it as long as it does not exist, can be written."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return os.access(path, os.W_OK)


def gpu_memory() -> list[int]:
    """Bytes of every NVIDIA GPU; empty where there is none, or none that answers."""
    if not Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(line) * 2**20 for line in result.stdout.split() if line.isdigit()]
