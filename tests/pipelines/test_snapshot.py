"""The code that ran, kept as a commit, whatever state the checkout's Git is in."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.commands.doctor import git_text
from pipelines.git import git_says
from pipelines.params import ROOT
from pipelines.records.snapshot import CODE, REFS, Snapshot, SnapshotError, snapshot

IDENTITY = ("-c", "user.name=n", "-c", "user.email=n@example.org")


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *IDENTITY, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_py", ".py").replace("_yaml", ".yaml").replace("_md", ".md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with a commit."""
    write(tmp_path, params_yaml="a: 1\n", grpo_core__loss_py="x = 1\n", grpo_core__kl_py="y = 1\n", README_md="words\n")
    (tmp_path / ".gitignore").write_text("secret.py\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def changed(root: Path, made: Snapshot) -> dict[str, str]:
    """File → A, D or M, between HEAD and the snapshot."""
    lines = git(root, "diff", "--no-renames", "--name-status", "-z", made.commit, made.sha).split("\0")
    return dict(zip(lines[1::2], lines[0::2], strict=False))


def taken(root: Path) -> Snapshot:
    made = snapshot(root)
    assert made is not None
    return made


def test_unchanged_code_is_head_itself_and_kept(root: Path) -> None:
    head = git(root, "rev-parse", "HEAD").strip()
    assert taken(root) == Snapshot(commit=head, sha=head)
    assert not taken(root).dirty
    assert git(root, "for-each-ref", "--format=%(refname) %(objectname)", "refs/grpo").split() == [f"{REFS}/{head}", head]


def test_edited_new_and_deleted_code_is_in_the_commit_and_nothing_else(root: Path) -> None:
    write(root, params_yaml="a: 2\n", reward_functions__deep__mine_py="z = 1\n", README_md="other words\n", notes_md="mine\n")
    (root / "reward_functions" / "ä b.py").write_text("q = 1\n")
    (root / "reward_functions" / "secret.py").write_text("ignored = 1\n")
    (root / "data" / "raw").mkdir(parents=True)
    (root / "data" / "raw" / "own.jsonl.dvc").write_text("outs: []\n")
    (root / "data" / "raw" / "own.jsonl").write_text("{}\n")
    (root / "grpo_core" / "kl.py").unlink()
    made = taken(root)
    assert made.dirty
    assert changed(root, made) == {
        "params.yaml": "M",
        "grpo_core/kl.py": "D",
        "reward_functions/deep/mine.py": "A",
        "reward_functions/ä b.py": "A",
        "data/raw/own.jsonl.dvc": "A",
    }
    assert git(root, "show", f"{made.sha}:params.yaml") == "a: 2\n"
    assert git(root, "rev-parse", f"{made.sha}^").strip() == made.commit


def test_the_same_code_gives_the_same_commit_however_much_of_it_is_staged_and_whoever_asks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, params_yaml="a: 2\n", grpo_core__new_py="n = 1\n")
    first = taken(root)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "somebody else")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2001-01-01T00:00:00Z")
    assert taken(root) == first
    git(root, "add", "grpo_core/new.py")
    assert taken(root) == first


def test_what_is_staged_and_then_changed_back_or_gone_is_taken_as_it_lies_on_disk(root: Path) -> None:
    write(root, params_yaml="a: 2\n", grpo_core__new_py="n = 1\n")
    git(root, "add", "--all")
    write(root, params_yaml="a: 1\n")
    (root / "grpo_core" / "new.py").unlink()
    assert not taken(root).dirty


def test_a_file_where_a_folder_was_is_taken(root: Path) -> None:
    write(root, params__gpu_yaml="a: 1\n")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "second")
    (root / "params" / "gpu.yaml").unlink()
    (root / "params").rmdir()
    (root / "params").write_text("a file now\n")
    assert changed(root, taken(root)) == {"params": "A", "params/gpu.yaml": "D"}


def test_the_index_head_and_branches_stay_as_they_are(root: Path) -> None:
    write(root, params_yaml="a: 2\n")
    git(root, "add", "params.yaml")
    write(root, params_yaml="a: 3\n", grpo_core__new_py="n = 1\n")
    git(root, "status")
    index, head = (root / ".git" / "index").read_bytes(), (root / ".git" / "HEAD").read_bytes()
    branches = git(root, "for-each-ref", "refs/heads")
    os.utime(root / "grpo_core" / "loss.py")  # a status that refreshes the index would write it now
    assert changed(root, taken(root)) == {"params.yaml": "M", "grpo_core/new.py": "A"}
    assert ((root / ".git" / "index").read_bytes(), (root / ".git" / "HEAD").read_bytes(), git(root, "for-each-ref", "refs/heads")) == (index, head, branches)


def test_no_identity_no_hook_and_no_other_repository_get_in_the_way(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    git(other, "init", "--quiet")
    expected = taken(root).commit
    monkeypatch.setenv("HOME", str(other))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / "index"))
    write(root, params_yaml="a: 2\n")
    made = taken(root)
    assert (made.commit, made.dirty) == (expected, True)
    assert not (other / "index").exists()
    assert git_text(root).endswith(": code among them is kept with the record of a run, as a snapshot")
    assert git_says(root, "rev-parse", "HEAD") == expected


def test_garbage_collection_keeps_snapshots_and_amended_commits(root: Path) -> None:
    first = taken(root).sha
    write(root, params_yaml="a: 2\n")
    second = taken(root).sha
    git(root, "commit", "--quiet", "--all", "--amend", "-m", "amended")
    git(root, "reflog", "expire", "--expire=now", "--all")
    git(root, "gc", "--quiet", "--prune=now")
    assert [git(root, "cat-file", "-t", sha).strip() for sha in (first, second)] == ["commit", "commit"]


def test_a_clone_fetches_them(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    write(root, params_yaml="a: 2\n")
    made = taken(root)
    clone = tmp_path_factory.mktemp("clone") / "clone"
    git(root, "clone", "--quiet", str(root), str(clone))
    git(clone, "fetch", "--quiet", "origin", "refs/grpo/*:refs/grpo/*")
    assert git(clone, "show", f"{made.sha}:params.yaml") == "a: 2\n"


def test_a_project_in_a_folder_of_a_larger_repository_is_taken_without_the_rest(root: Path) -> None:
    project = root / "project"
    write(project, params_yaml="p: 1\n")
    write(root, params_yaml="a: 2\n")
    assert changed(root, taken(project)) == {"project/params.yaml": "A"}


def test_outside_git_and_before_the_first_commit_there_is_none(tmp_path: Path) -> None:
    assert snapshot(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    write(tmp_path, params_yaml="a: 1\n")
    assert snapshot(tmp_path) is None


def test_without_git_there_is_none(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert snapshot(root) is None


def test_a_repository_that_cannot_be_written_is_said_so(root: Path) -> None:
    refs = root / ".git" / "refs" / "grpo"
    refs.write_text("in the way")
    with pytest.raises(SnapshotError, match=r"^`git update-ref refs/grpo/snapshots/\w+ \w+` failed in "):
        snapshot(root)


TAKE = "import sys; from pathlib import Path; from pipelines.records.snapshot import snapshot; print(snapshot(Path(sys.argv[1])).sha)"


def test_many_at_once_agree(root: Path) -> None:
    write(root, params_yaml="a: 2\n", grpo_core__new_py="n = 1\n")
    command = [sys.executable, "-c", TAKE, str(root)]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(8)]
    said = [process.communicate() for process in processes]
    assert {(out, err) for out, err in said} == {(taken(root).sha + "\n", "")}


def test_everything_that_the_checkout_has_of_code_is_named() -> None:
    named = {path.partition("/")[0] for path in CODE}
    assert {
        "grpo_core",
        "assets",
        "pipelines",
        "reward_functions",
        "params.yaml",
        "params",
        "dvc.yaml",
        ".dvc",
        ".dvcignore",
        "pyproject.toml",
        "constraints.txt",
    } <= named
    assert all((ROOT / path).exists() for path in CODE if not path.startswith(":"))


def test_it_is_quick(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--no-local", str(ROOT), str(clone))
    (clone / "params.yaml").write_text("changed: 1\n")
    snapshot(clone)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        assert taken(clone).dirty
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.15
