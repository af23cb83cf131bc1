"""What `grpo prune` may delete, what it must keep, and that it says which is which."""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from dvc.repo import Repo

from assets.paths import Paths
from grpo_core.work_folder import WorkFolder
from pipelines.commands.prune import describe, prune
from pipelines.lock import read_lock
from pipelines.records.files import read_records
from pipelines.records.named_runs import NamesUnknown
from pipelines.records.runs import find_run
from pipelines.tracking import EXPERIMENT_TAG, RUN_KEY_TAG, mlflow_client
from pipelines.upkeep.prune import PruneError, carry_out, make_plan, trash
from pipelines.upkeep.unused_objects import UnknownUse, committed_texts, disk_bytes
from tests.pipelines.toy_project import THIRD_PARTY_WARNINGS, dvc, edit, git, make_project

pytestmark = pytest.mark.filterwarnings(*THIRD_PARTY_WARNINGS)

POLICY = "data/grpo_checkpoint/default"
FIRST_LOCK = "first.lock"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy checkout whose lifecycle was made twice, the second time with another learning rate; the first dvc.lock lies beside."""
    root = make_project(tmp_path_factory.mktemp("toy"))
    (root / "data" / "raw" / "mine.jsonl").write_text('{"prompt": "1+1="}\n', encoding="utf-8")
    dvc(root, "add", "--quiet", "data/raw/mine.jsonl")
    dvc(root, "repro", "--quiet")
    shutil.copy(root / "dvc.lock", root / FIRST_LOCK)
    edit(root, "params.yaml", "  learning_rate: 0.0001 ", "  learning_rate: 0.0002 ")
    dvc(root, "repro", "--quiet")
    shutil.rmtree(root / ".work" / "sft_checkpoint")
    shutil.rmtree(root / ".work" / "grpo_checkpoint")
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to prune in."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return shutil.copytree(made, tmp_path / "toy", symlinks=True)


def run_keys(root: Path) -> tuple[str, str]:
    """The run keys of the first training and of the current one."""
    current, first = read_records(Paths(root), "grpo_checkpoint")
    return str(first["run_key"]), str(current["run_key"])


def work_folder(root: Path, name: str, *steps: int, finished: bool = False, experiment: str = "default") -> Path:
    """A work folder with checkpoints of some bytes at these steps."""
    folder = root / ".work" / "grpo_checkpoint" / experiment / name
    with WorkFolder.open(folder) as work:
        for step in steps:
            work.append(step, {"loss": 0.5})
            work.save(step, lambda place: write_bytes(place / "optimizer.pt"), keep=len(steps))
    if finished:
        (folder / "finished").write_text(json.dumps({"md5": "0123.dir", "step": steps[-1]}), encoding="utf-8")
    return folder


def write_bytes(path: Path) -> None:
    path.write_bytes(b"x" * 5000)


def cached(root: Path) -> set[str]:
    """Every object in DVC's cache."""
    files = root / ".dvc" / "cache" / "files" / "md5"
    return {path.parent.name + path.name for path in files.glob("??/*")}


def named_in(root: Path, lock: str = "dvc.lock") -> set[str]:
    """The objects that a dvc.lock (and the .dvc file) needs, folders with their files."""
    hashes = {word for name in (lock, "data/raw/mine.jsonl.dvc") for word in (root / name).read_text().split()} & cached(root)
    for folder in [md5 for md5 in hashes if md5.endswith(".dir")]:
        hashes |= {file["md5"] for file in json.loads((root / ".dvc/cache/files/md5" / folder[:2] / folder[2:]).read_text())}
    return hashes


def status(root: Path) -> str:
    return dvc(root, "status").strip()


# ------------------------------------------------------------------------------------------------------- DVC's objects


def test_objects_that_only_an_earlier_run_used_go_and_the_rest_stays(root: Path) -> None:
    needed, first = named_in(root), named_in(root, FIRST_LOCK)
    plan = make_plan(root)
    assert set(plan.objects) == first - needed != set()
    assert plan.kept == [] and plan.folders == []
    freed = carry_out(root, plan)
    assert cached(root) == needed
    assert freed == sum(plan.objects.values()) > 0
    shutil.rmtree(root / "data" / "grpo_checkpoint")
    dvc(root, "checkout", "--quiet")
    assert status(root) == "Data and pipelines are up to date."
    assert find_run(root, "default").run_key == run_keys(root)[1]
    assert make_plan(root).is_empty


def test_the_plan_says_which_outputs_of_which_run_are_lost(root: Path) -> None:
    first, current = run_keys(root)
    losses = {loss.noun: loss for loss in make_plan(root).losses}
    assert set(losses) == {"run_config", "grpo_checkpoint", "heldout_eval", "blind_review_set", "blind_review_verdict", "promotion_report", "comparison_report"}
    assert losses["grpo_checkpoint"].run_key == losses["heldout_eval"].run_key == first
    assert POLICY in losses["grpo_checkpoint"].outputs and "data/rewards/default/rewards.parquet" in losses["grpo_checkpoint"].outputs
    assert losses["heldout_eval"].outputs == ("data/heldout_eval/default/completions.parquet",)
    text = "\n".join(describe(make_plan(root)))
    assert f"grpo_checkpoint (default, run {first}, made 20" in text and "data/rewards/default/rewards.parquet" in text
    assert current not in text


@pytest.mark.parametrize("ref", ["refs/heads/earlier", "refs/tags/v1", "refs/remotes/origin/main", "refs/exps/ab/cdef/exp-1", "refs/stash"])
def test_what_any_commit_uses_is_kept(root: Path, ref: str) -> None:
    keep_in_git(root, ref)
    before = cached(root)
    assert make_plan(root).objects == {}
    git(root, "update-ref", "-d", ref)
    assert set(make_plan(root).objects) == before - named_in(root)


@pytest.mark.parametrize("ref", ["refs/stash", "refs/exps/stash"])
def test_what_an_older_stash_uses_is_kept(root: Path, ref: str) -> None:
    keep_in_git(root, ref, "--create-reflog")
    head = git(root, "rev-parse", "HEAD").strip()
    git(root, "update-ref", "-m", "a newer stash", ref, git(root, "commit-tree", f"{head}^{{tree}}", "-m", "newer").strip())
    assert make_plan(root).objects == {}
    git(root, "reflog", "delete", "--rewrite", f"{ref}@{{1}}")
    assert make_plan(root).objects


def test_what_two_stashes_of_a_person_use_is_kept(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "now")
    before = make_plan(root).objects
    for number in range(2):
        name = FIRST_LOCK if number == 0 else "params.yaml"
        text = (root / name).read_text(encoding="utf-8")
        (root / ("dvc.lock" if number == 0 else name)).write_text(text + "\n# changed\n", encoding="utf-8")
        git(root, "stash", "--quiet")
    assert before and make_plan(root).objects == {}


def test_nothing_of_the_cache_is_freed_when_git_cannot_tell(root: Path) -> None:
    (root / ".git" / "HEAD").write_text("damaged", encoding="utf-8")
    with pytest.raises(UnknownUse, match="what Git's commits use is not known"):
        committed_texts(root)


def test_what_commits_use_is_kept_on_a_branch_that_has_none_yet(root: Path) -> None:
    keep_in_git(root, "refs/heads/earlier")
    git(root, "symbolic-ref", "HEAD", "refs/heads/unborn")
    assert make_plan(root).objects == {}


def test_an_input_given_to_dvc_is_kept_though_only_an_old_commit_names_it(root: Path) -> None:
    md5 = (root / "data/raw/mine.jsonl.dvc").read_text().split("md5: ")[1][:32]
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "my prompts")
    (root / "data/raw/mine.jsonl.dvc").unlink()
    git(root, "commit", "--quiet", "--all", "--message", "no longer mine")
    assert md5 in cached(root) and md5 not in make_plan(root).objects


def test_a_run_with_an_alias_in_mlflow_is_kept(root: Path) -> None:
    first, _ = run_keys(root)
    folder = work_folder(root, first, 10, 20, finished=True)
    assert [item.folder for item in make_plan(root).superseded] == [folder]
    name_in_mlflow(root, first, with_records=True)
    plan = make_plan(root)
    assert {loss.noun for loss in plan.losses} == {"comparison_report", "promotion_report"}, "what was compared then is no part of the run"
    assert len(plan.objects) == 2 and plan.superseded == []
    assert [item.folder.name for item in plan.needed] == ["step-000010"]


def test_nothing_is_freed_while_it_is_not_known_what_a_named_run_used(root: Path) -> None:
    name_in_mlflow(root, "feedfacefeedface", with_records=False)
    with pytest.raises(NamesUnknown, match="policy@champion in MLflow's registry names a run"):
        make_plan(root)


def test_another_projects_models_in_the_registry_do_not_matter(root: Path) -> None:
    client = mlflow_client(root)
    run = client.create_run(client.create_experiment("theirs"))
    client.create_registered_model("theirs")
    client.create_model_version("theirs", "file:///tmp/nowhere", run.info.run_id)
    client.set_registered_model_alias("theirs", "champion", "1")
    assert make_plan(root).objects


def test_a_cache_outside_the_checkout_is_left_alone(root: Path, tmp_path: Path) -> None:
    dvc(root, "cache", "dir", str(tmp_path / "shared"))
    shutil.copytree(root / ".dvc" / "cache", tmp_path / "shared")
    plan = make_plan(root)
    assert plan.objects == {} and plan.losses == []
    assert "lies outside this checkout and others may use it" in plan.kept[0]


def test_a_damaged_listing_keeps_all_objects(root: Path) -> None:
    md5 = read_lock(root)["grpo_checkpoint@default"].outs[POLICY]
    listing = root / ".dvc/cache/files/md5" / md5[:2] / md5[2:]
    listing.chmod(0o644)
    listing.write_text("{", encoding="utf-8")
    plan = make_plan(root)
    assert plan.objects == {} and f"{listing} is damaged" in plan.kept[0]
    assert listing.is_file()


def test_what_came_into_use_since_the_plan_was_made_is_kept(root: Path) -> None:
    plan, before = make_plan(root), cached(root)
    keep_in_git(root, "refs/heads/meanwhile")
    assert carry_out(root, plan) == 0
    assert cached(root) == before


# -------------------------------------------------------------------------------------------------------- work folders


def test_work_folders_of_other_runs_go_and_current_ones_lose_old_checkpoints(root: Path) -> None:
    first, current = run_keys(root)
    old, interrupted = work_folder(root, first, 70, 80, finished=True), work_folder(root, "0123456789abcdef", 10, experiment="gone")
    kept = work_folder(root, current, 60, 70, 80, finished=True)
    plan = make_plan(root)
    assert [item.folder for item in plan.superseded] == [old]
    assert [item.folder for item in plan.interrupted] == [interrupted]
    assert plan.superseded[0].label.startswith(f"default ({first[:8]}), finished at step 80, 20")
    assert plan.interrupted[0].label.startswith("gone (01234567), interrupted at step 10, 20")
    assert [item.folder.name for item in plan.needed] == ["step-000070", "step-000060"]
    carry_out(root, plan)
    assert not old.exists() and not interrupted.exists()
    assert [folder.name for folder in (kept / "checkpoints").iterdir()] == ["step-000080"]
    assert (kept / "finished").is_file() and not list(trash(root).iterdir())


def test_more_checkpoints_or_none_of_the_work_can_be_kept(root: Path) -> None:
    kept = work_folder(root, run_keys(root)[1], 60, 70, 80, finished=True)
    assert [item.folder.name for item in make_plan(root, keep_checkpoints=2).needed] == ["step-000060"]
    assert make_plan(root, keep_checkpoints=3).needed == []
    plan = make_plan(root, whole_work=True)
    assert [item.folder for item in plan.needed] == [kept]
    carry_out(root, plan)
    assert not kept.exists() and status(root) == "Data and pipelines are up to date."


@pytest.mark.parametrize(("damaged", "keep", "gone"), [([20], 1, [20, 10]), ([30], 1, [10]), ([10, 20], 1, [20, 10]), ([30], 2, []), ([10, 20, 30], 1, [])])
def test_only_whole_checkpoints_count_as_kept(root: Path, damaged: list[int], keep: int, gone: list[int]) -> None:
    folder = work_folder(root, run_keys(root)[1], 10, 20, 30, finished=True)
    for step in damaged:
        (folder / "checkpoints" / f"step-{step:06d}" / "optimizer.pt").write_bytes(b"y" + b"x" * 4999)
    assert [item.folder.name for item in make_plan(root, keep_checkpoints=keep).needed] == [f"step-{step:06d}" for step in gone]


def test_an_interrupted_run_is_kept_when_the_next_one_goes_on_in_it(root: Path) -> None:
    from assets import grpo_checkpoint
    from pipelines.params import experiments

    other = work_folder(root, "0123456789abcdef", 10)
    assert "its inputs are not in data/ now" in make_plan(root).kept[0]
    for folder in (Paths(root).sft_checkpoint, Paths(root).reference_checkpoint):
        (folder / "manifest.json").write_text("{}", encoding="utf-8")
    key = grpo_checkpoint.work_folder(Paths(root), experiments(root)["default"]).name
    work_folder(root, key, 20)
    plan = make_plan(root)
    assert [item.folder for item in plan.interrupted] == [other] and plan.superseded == []
    lines = describe(plan)
    assert lines[0].startswith("work folders of interrupted runs whose code or settings have changed: ")
    assert "interrupted at step 10" in lines[1] and "Nothing goes on from the steps they got to unless code and settings are put back" in lines[2]
    assert len(plan.kept) == 1 and plan.kept[0].startswith(f"default ({key[:8]}), interrupted at step 20")
    assert plan.kept[0].endswith("the next run goes on in it")
    assert {item.folder.name for item in make_plan(root, whole_work=True).needed} == {key}


def test_work_is_kept_while_it_is_not_known_which_run_the_policy_came_from(root: Path) -> None:
    work_folder(root, "0123456789abcdef", 10, finished=True)
    shutil.rmtree(root / "data" / "grpo_checkpoint")
    shutil.rmtree(root / ".work" / "provenance")
    plan = make_plan(root)
    assert plan.superseded == plan.interrupted == []
    assert "which run the experiment's policy came from is not known" in plan.kept[0]


def test_a_folder_in_which_a_training_works_is_kept(root: Path) -> None:
    folder = work_folder(root, "0123456789abcdef", 10, experiment="gone")
    plan = make_plan(root)
    with (folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "a training is at work in it" in make_plan(root).kept[0]
        carry_out(root, plan)
        assert folder.is_dir()
    carry_out(root, plan)
    assert not folder.exists()


def test_what_a_stopped_deletion_left_goes_with_the_next(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = work_folder(root, "0123456789abcdef", 10, experiment="gone")

    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", interrupted)
        carry_out(root, make_plan(root))
    assert not folder.exists()
    plan = make_plan(root)
    assert [item.label for item in plan.leftovers] == ["0123456789abcdef"]
    carry_out(root, plan)
    assert not list(trash(root).iterdir()) and make_plan(root).is_empty


# ----------------------------------------------------------------------------------------------------------- worktrees


def test_worktrees_go_unless_somebody_works_in_them(root: Path) -> None:
    stale, busy = root / ".work/reproduce/stale", root / ".work/reproduce/busy"
    for folder in (stale, busy):
        git(root, "worktree", "add", "--quiet", "--detach", str(folder))
    with busy.with_name("busy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        plan = make_plan(root)
        assert [item.folder for item in plan.worktrees] == [stale]
        carry_out(root, plan)
    assert busy.is_dir() and not stale.exists()
    listed = git(root, "worktree", "list", "--porcelain")
    assert str(busy) in listed and str(stale) not in listed


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.fixture
def stage_at_work(root: Path) -> Iterator[None]:
    """DVC's note that a living process (this one) makes an output."""
    path = root / ".dvc" / "tmp" / "rwlock"
    before = path.read_text(encoding="utf-8")
    path.write_text(json.dumps({"write": {str(root / POLICY): {"pid": os.getpid(), "cmd": "dvc repro"}}, "read": {}}), encoding="utf-8")
    yield
    path.write_text(before, encoding="utf-8")


def test_nothing_is_deleted_while_a_stage_is_at_work(root: Path, stage_at_work: None) -> None:
    before = cached(root)
    with pytest.raises(PruneError, match=f"a stage is at work \\(dvc repro, process {os.getpid()}\\)"):
        carry_out(root, make_plan(root))
    assert cached(root) == before


def test_nothing_is_deleted_while_dvc_holds_its_lock(root: Path) -> None:
    with Repo(str(root)) as repo, repo.lock, pytest.raises(PruneError, match="DVC is at work"):
        carry_out(root, make_plan(root))


# ----------------------------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize("arguments", [["--dry-run"], ["--dry-run", "--yes"], []])
def test_without_a_yes_the_command_only_prints(root: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    folder, before = work_folder(root, run_keys(root)[0], 10, finished=True), every_file(root)
    monkeypatch.setattr("pipelines.commands.prune.checkout", lambda: root)
    result = CliRunner().invoke(prune, arguments)
    assert result.exit_code == 0, result.output
    assert "no longer be resumed or extended" in result.output and "cannot be checked out" in result.output
    assert f"({folder.name[:8]})" in result.output
    assert ("Nothing was deleted: nobody is at a terminal to ask" in result.output) == (arguments == [])
    assert every_file(root) == before


def test_with_a_yes_it_deletes_and_says_how_much(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = work_folder(root, run_keys(root)[0], 10, 20, finished=True)
    monkeypatch.setattr("pipelines.commands.prune.checkout", lambda: root)
    result = CliRunner().invoke(prune, ["--yes"])
    assert result.exit_code == 0, result.output
    assert not folder.exists() and cached(root) == named_in(root)
    total = result.output.split(" in all.")[0].splitlines()[-1]
    assert result.output.endswith(f"Freed {total}.\n")
    assert CliRunner().invoke(prune, ["--yes"]).output == "Nothing to delete.\n"


def test_a_long_list_is_cut_and_counted(root: Path) -> None:
    for number in range(30):
        work_folder(root, f"{number:016x}", 10, experiment="gone")
    lines = describe(make_plan(root))
    assert sum(line.startswith("    gone (000000") for line in lines) == 19
    assert "    and 11 more" in lines


def test_a_file_with_another_name_frees_nothing(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * 5000)
    assert disk_bytes(tmp_path / "one") == 8192
    os.link(tmp_path / "one", tmp_path / "two")
    assert disk_bytes(tmp_path / "one") == 0
    assert disk_bytes(tmp_path) == 0


# --------------------------------------------------------------------------------------------------------------- helpers


def keep_in_git(root: Path, ref: str, *options: str) -> None:
    """Let a reference name a commit that holds the dvc.lock of the first run."""
    blob = subprocess.run(["git", "hash-object", "-w", FIRST_LOCK], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    tree = subprocess.run(["git", "mktree"], cwd=root, input=f"100644 blob {blob}\tdvc.lock\n", capture_output=True, text=True, check=True).stdout.strip()
    git(root, "update-ref", *options, ref, git(root, "commit-tree", tree, "-m", "first run").strip())


def name_in_mlflow(root: Path, run_key: str, *, with_records: bool) -> None:
    """An MLflow run of this key, registered under the alias policy@champion."""
    client = mlflow_client(root)
    run = client.create_run(client.create_experiment("grpo", artifact_location=(root / "mlruns").as_uri()))
    client.set_tag(run.info.run_id, RUN_KEY_TAG, run_key)
    client.set_tag(run.info.run_id, EXPERIMENT_TAG, "default")
    for record in read_records(Paths(root), "grpo_checkpoint") if with_records else []:
        if record["run_key"] == run_key:
            client.log_dict(run.info.run_id, dict(record), "record/grpo_checkpoint.json")
    client.create_registered_model("policy")
    client.create_model_version("policy", (root / POLICY).as_uri(), run.info.run_id)
    client.set_registered_model_alias("policy", "champion", "1")


def every_file(root: Path) -> dict[str, int]:
    """Path → size of every file, but DVC's own notes."""
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file() and ".dvc/tmp" not in str(path)}
