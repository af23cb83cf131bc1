"""A clean Git worktree in which stages run on their own: its code is imported, its DVC cache is empty, its MLflow records stay in it."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipelines.environment import environment
from pipelines.git import NOT_OURS, git, run_git
from pipelines.processes import RUN_ID

LENT = Path(".work") / "reproduce"
"""Where worktrees lie unless a person names another place."""
FOREIGN = ("MLFLOW_", "DAGSTER_PIPES_", "DVC_", RUN_ID, *NOT_OURS)
"""Beginnings of environment variables that would lead a stage out of its worktree."""
HARMLESS = frozenset({"DVC_NO_ANALYTICS", "MLFLOW_DISABLE_TELEMETRY", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION"})


class WorktreeError(ValueError):
    """A worktree that cannot be made."""


@dataclass
class Worktree:
    """A worktree of `checkout`'s repository."""

    checkout: Path
    folder: Path
    """Where Git put the whole repository."""
    project: Path
    """The folder in it that corresponds to `checkout`."""
    keep: bool = False
    """Leave it where it is at the end."""

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of a stage in the worktree: the lifecycle's, with the worktree's code before that of any other checkout."""
        kept = {name: value for name, value in base.items() if name in HARMLESS or not name.startswith(FOREIGN)}
        others = [folder for folder in base.get("PYTHONPATH", "").split(os.pathsep) if folder and Path(folder).resolve() != self.checkout.resolve()]
        return {
            **environment(self.project, kept),
            "PYTHONPATH": os.pathsep.join([str(self.project), *others]),
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.project / 'mlflow.db'}",
            # What DVC remembers of files by their time stamps lies outside its repository.
            "DVC_SITE_CACHE_DIR": str(self.project / ".dvc" / "tmp" / "site"),
        }


@contextmanager
def worktree(checkout: Path, commit: str, name: str, into: Path | None = None) -> Iterator[Worktree]:
    """A worktree of `commit` under `.work/reproduce/<name>`, or at `into`; removed at the end unless `keep` was set.

    One that an earlier process left under the same name is removed first. Raises WorktreeError when the place is taken.
    """
    folder = (into or checkout / LENT / name).resolve()
    if into is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WorktreeError(f"{folder} is not empty: name a folder that is not there yet")
    (checkout / LENT).mkdir(parents=True, exist_ok=True)
    with (checkout / LENT / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WorktreeError(f"another process works in {folder}: wait for it, or name another folder with --into") from None
        _forget_stale(checkout)
        if into is None:
            remove_worktree(checkout, folder)
        lent = Worktree(checkout, folder, folder / git(checkout, "rev-parse", "--show-prefix").rstrip("\n"))
        try:
            git(checkout, "worktree", "add", "--quiet", "--detach", str(folder), commit)
            _keep_dvc_apart(lent.project)
            yield lent
        finally:
            if not lent.keep:
                whatever_comes(lambda: remove_worktree(checkout, folder))


def whatever_comes(work: Callable[[], None]) -> None:
    """Do `work` to its end, however often Ctrl-C is pressed."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        while not future.done():
            with suppress(KeyboardInterrupt):
                wait([future], 0.2)
        future.result()


def has_commit(root: Path, commit: str) -> bool:
    """Whether the repository holds the commit."""
    return run_git(root, "cat-file", "-e", f"{commit}^{{commit}}").returncode == 0


def _keep_dvc_apart(project: Path) -> None:
    """Give the worktree an empty DVC cache of its own, whatever cache the repository's settings name, and no earlier run to compare with."""
    local = project / ".dvc" / "config.local"
    local.parent.mkdir(parents=True, exist_ok=True)
    local.write_text("[core]\n    autostage = false\n[cache]\n    dir = cache\n", encoding="utf-8")  # beside this file
    (project / "dvc.lock").unlink(missing_ok=True)


def _forget_stale(checkout: Path) -> None:
    """Drop Git's records of lent worktrees whose folder is gone; other people's worktrees are left alone, wherever their folder is now."""
    lent = (checkout / LENT).resolve()
    for line in git(checkout, "worktree", "list", "--porcelain").splitlines():
        folder = Path(line.removeprefix("worktree "))
        if line.startswith("worktree ") and folder.is_relative_to(lent) and not folder.exists():
            remove_worktree(checkout, folder)


def remove_worktree(checkout: Path, folder: Path) -> None:
    """Remove a worktree and what Git keeps of it; nothing happens when it is not there."""
    run_git(checkout, "worktree", "remove", "--force", "--force", str(folder))
    if folder.exists():  # Git had no record of it, or was stopped while it made it
        shutil.rmtree(folder)
        run_git(checkout, "worktree", "remove", "--force", "--force", str(folder))
