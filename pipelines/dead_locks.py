"""Entries in DVC's lock file of processes that are gone. DVC drops them itself, but not while a killed process waits to be reaped."""

from pathlib import Path

from pipelines.processes import living_processes


def release_dead_locks(root: Path) -> None:
    """Forget what processes that no longer live hold in `root`'s DVC lock file; those of living ones stay."""
    folder = root / ".dvc" / "tmp"
    if not (folder / "rwlock").is_file():
        return
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
