"""Git in a folder of ours, whatever repository the caller's environment is about, without a person's hooks and out of Ctrl-C's reach."""

import os
import subprocess
from pathlib import Path

NOT_OURS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE")
"""What Git tells a hook of the repository that it works on, which need not be this one."""


class GitError(ValueError):
    """Git refused."""


def run_git(root: Path, *arguments: str, given: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Git in `root`, however it ends; `given` is its input, `variables` join its environment. Raises FileNotFoundError without Git."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_OURS} | variables
    # DVC's own hooks would fill a new worktree from the shared cache.
    command = ["git", "-c", "core.hooksPath=/dev/null", *arguments]
    return subprocess.run(
        command,
        cwd=root,
        env=environment,
        input=given,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
        start_new_session=True,
    )


def git(root: Path, *arguments: str, given: str | None = None, **variables: str) -> str:
    """What Git prints; raises GitError with the last of its own words when it refuses."""
    result = run_git(root, *arguments, given=given, **variables)
    if result.returncode != 0:
        reason = result.stderr.strip().rpartition("\n")[2] or f"exit status {result.returncode}"
        raise GitError(f"`git {' '.join(arguments)}` failed in {root}: {reason}")
    return result.stdout


def git_says(root: Path, *arguments: str) -> str | None:
    """What Git prints, without the line's end; None when it refuses or is not there."""
    try:
        return git(root, *arguments).rstrip()
    except (FileNotFoundError, GitError):
        return None
