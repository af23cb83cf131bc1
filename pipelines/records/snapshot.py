"""The code that ran as a Git commit: HEAD itself, or a commit on top of it that holds what was changed in the checkout.

Such commits are on no branch. The refs under `refs/grpo/snapshots/` keep them from Git's garbage collection (those of commits too, which
an amend would lose); `git push origin 'refs/grpo/*:refs/grpo/*'` takes them along, and the same with `git fetch` brings them.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from pipelines.git import GitError, git
from pipelines.records.files import lasting_root

CODE = (
    "params.yaml", "params", "dvc.yaml", ".dvc/config", ".dvcignore", "workspace.yaml", "pyproject.toml", "constraints.txt",
    "grpo_core", "assets", "pipelines", "reward_functions", ":(glob)data/**/*.dvc", ":(glob)data/**/.gitkeep", ":(glob)data/**/.gitignore",
)  # fmt: skip
"""What decides what a stage does, as Git pathspecs; of data/, only what points into DVC's cache."""
REFS = "refs/grpo/snapshots"


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
        head = git(root, "rev-parse", "--show-toplevel", "HEAD", "HEAD^{tree}")
    except (FileNotFoundError, GitError):
        return None
    top, commit, tree = head.splitlines()
    try:
        changed = _changed_files(root)
        sha = _commit(Path(top), commit, tree, changed) if changed else commit
        _keep(root, sha)
    except GitError as error:
        raise SnapshotError(str(error)) from error
    return Snapshot(commit, sha)


def _changed_files(root: Path) -> list[str]:
    """Code that differs from HEAD, new files that Git does not ignore included, as paths from the top of the repository."""
    status = git(root, "--no-optional-locks", "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=all", "--", *CODE)
    # A folder in this list is a repository of its own.
    return [line[3:] for line in status.split("\0") if line and not line.endswith("/")]


def _commit(top: Path, parent: str, parent_tree: str, changed: list[str]) -> str:
    """A commit of `parent` with the files as they lie on disk; the parent itself when they are the same after all."""
    date = git(top, "show", "--no-patch", "--format=%ct +0000", parent).strip()
    who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in (("NAME", "grpo"), ("EMAIL", "grpo@localhost"), ("DATE", date))}
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": f"{folder}/index"}
        git(top, "read-tree", parent, **index)
        git(top, "update-index", "--add", "--remove", "--replace", "-z", "--stdin", given="\0".join(changed), **index)
        tree = git(top, "write-tree", **index).strip()
    if tree == parent_tree:
        return parent
    return git(top, "-c", "i18n.commitEncoding=UTF-8", "commit-tree", tree, "-p", parent, "-m", "Code that ran with uncommitted changes", **who).strip()


def _keep(root: Path, sha: str) -> None:
    """Keep Git from forgetting the commit."""
    ref, lasting = f"{REFS}/{sha}", lasting_root(root)
    if lasting != root:
        git(root, "push", "--quiet", "--no-verify", str(lasting), f"{sha}:{ref}")
    try:
        git(root, "update-ref", ref, sha)
    except GitError:
        # Another process may hold the ref's lock; what it writes there is the same.
        if git(root, "for-each-ref", ref) == "":
            raise
