"""The code that ran as a Git commit: HEAD itself, or a commit on top of it that holds what was changed in the checkout.

Such commits are on no branch. The refs under `refs/grpo/snapshots/` keep them from Git's garbage collection (those of commits too, which
an amend would lose); `git push origin 'refs/grpo/*:refs/grpo/*'` takes them along, and the same with `git fetch` brings them.
"""

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pipelines.records.files import lasting_root

CODE = (
    "params.yaml", "params", "dvc.yaml", ".dvc/config", ".dvcignore", "workspace.yaml", "pyproject.toml", "constraints.txt",
    "grpo_core", "assets", "pipelines", "reward_functions", ":(glob)data/**/*.dvc", ":(glob)data/**/.gitkeep", ":(glob)data/**/.gitignore",
)  # fmt: skip
"""What decides what a stage does, as Git pathspecs; of data/, only what points into DVC's cache."""
REFS = "refs/grpo/snapshots"
NOT_OURS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE")
"""What Git tells a hook of the repository that it works on, which need not be this one."""


class SnapshotError(ValueError):
    """Git could not keep the code."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Code as it was at one moment."""

    commit: str
    """HEAD."""
    sha: str
    """The commit that holds the code; HEAD when nothing of it was changed."""

    @property
    def dirty(self) -> bool:
        """Whether the code was not the one of HEAD."""
        return self.sha != self.commit


def snapshot(root: Path) -> Snapshot | None:
    """The code of the checkout as it is now, kept in its Git repository; None outside one, before the first commit, or without Git.

    Branches, HEAD and the index stay as they are. The same code on the same HEAD gives the same commit, so two processes may ask at once.
    Raises `SnapshotError` when Git has a HEAD and yet cannot keep the code.
    """
    try:
        head = _git(root, "rev-parse", "--show-toplevel", "HEAD", "HEAD^{tree}")
    except (FileNotFoundError, SnapshotError):
        return None
    top, commit, tree = head.splitlines()
    changed = _changed_files(root)
    sha = _commit(Path(top), commit, tree, changed) if changed else commit
    _keep(root, sha)
    return Snapshot(commit, sha)


def _changed_files(root: Path) -> list[str]:
    """Code that differs from HEAD, new files that Git does not ignore included, as paths from the top of the repository."""
    status = _git(root, "--no-optional-locks", "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=all", "--", *CODE)
    # A folder in this list is a repository of its own.
    return [line[3:] for line in status.split("\0") if line and not line.endswith("/")]


def _commit(top: Path, parent: str, parent_tree: str, changed: list[str]) -> str:
    """A commit of `parent` with the files as they lie on disk; the parent itself when they are the same after all."""
    date = _git(top, "show", "--no-patch", "--format=%ct +0000", parent).strip()
    who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in (("NAME", "grpo"), ("EMAIL", "grpo@localhost"), ("DATE", date))}
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": f"{folder}/index"}
        _git(top, "read-tree", parent, **index)
        _git(top, "update-index", "--add", "--remove", "--replace", "-z", "--stdin", given="\0".join(changed), **index)
        tree = _git(top, "write-tree", **index).strip()
    if tree == parent_tree:
        return parent
    return _git(top, "-c", "i18n.commitEncoding=UTF-8", "commit-tree", tree, "-p", parent, "-m", "Code that ran with uncommitted changes", **who).strip()


def _keep(root: Path, sha: str) -> None:
    """Keep Git from forgetting the commit."""
    ref, lasting = f"{REFS}/{sha}", lasting_root(root)
    if lasting != root:
        _git(root, "push", "--quiet", "--no-verify", str(lasting), f"{sha}:{ref}")
    try:
        _git(root, "update-ref", ref, sha)
    except SnapshotError:
        # Another process may hold the ref's lock; what it writes there is the same.
        if _git(root, "for-each-ref", ref) == "":
            raise


def _git(root: Path, *arguments: str, given: str | None = None, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in NOT_OURS} | variables
    command = ["git", *arguments]
    result = subprocess.run(command, cwd=root, env=environment, input=given, capture_output=True, encoding="utf-8", errors="surrogateescape", check=False)
    if result.returncode != 0:
        reason = result.stderr.strip().rpartition("\n")[2] or f"exit status {result.returncode}"
        raise SnapshotError(f"`{' '.join(command)}` failed in {root}: {reason}")
    return result.stdout
