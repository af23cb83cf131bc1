"""Who holds DVC's locks: the dead let go, the living are waited for.

DVC drops entries of processes that are gone itself, but not while a killed process waits to be reaped; before the living it gives up at once.
"""

import sys
import time
from pathlib import Path

from pipelines.processes import living_processes


def wait_until_free(root: Path) -> None:
    """Return when no process works in `root` through DVC; the first time that one does, say so on stderr."""
    told = False
    while holders := release_dead_locks(root):
        if not told:
            who = ", ".join(f"process {pid} ({command})" for pid, command in sorted(holders.items()))
            print(f"waiting for {who}, which works in this checkout; Ctrl-C gives up", file=sys.stderr, flush=True)
        told = True
        time.sleep(0.5)


def release_dead_locks(root: Path) -> dict[int, str]:
    """Forget what processes that no longer live hold in `root`'s DVC lock file; those of living ones stay, and are returned: pid → command."""
    return release_dead(root / ".dvc" / "tmp")


def release_dead(folder: Path) -> dict[int, str]:
    """The same of the lock file in a folder of DVC's own, if there is one."""
    if not (folder / "rwlock").is_file():
        return {}
    from dvc.fs import localfs
    from dvc.rwlock import _edit_rwlock

    living = {process.pid for process in living_processes()}
    with _edit_rwlock(str(folder), localfs, False) as lock:
        for path, holder in list(lock["write"].items()):
            if holder["pid"] not in living:
                del lock["write"][path]
        for path, holders in list(lock["read"].items()):
            lock["read"][path] = [holder for holder in holders if holder["pid"] in living]
            if not lock["read"][path]:
                del lock["read"][path]
        held = [*lock["write"].values(), *(holder for holders in lock["read"].values() for holder in holders)]
        return {holder["pid"]: holder["cmd"] for holder in held}
