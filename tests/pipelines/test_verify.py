"""Whatever is damaged is found and named, and what is said to mend it does."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from grpo_core.work_folder import WorkFolder
from pipelines.commands import verify as command
from pipelines.lock import read_lock
from pipelines.records.dvc_cache import cached_listing, object_path
from pipelines.upkeep.verify import Report, num_bytes, verify
from tests.pipelines.toy_project import THIRD_PARTY_WARNINGS, dvc, git, make_project, toy_environment

pytestmark = [pytest.mark.filterwarnings(warning) for warning in THIRD_PARTY_WARNINGS]

WORK = ".work/grpo_checkpoint/default/0123456789abcdef"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy project after its lifecycle, with a prompt file that DVC tracks and a work folder as trainings leave it."""
    root = make_project(tmp_path_factory.mktemp("trained") / "toy")
    (root / "data/raw/own.jsonl").write_text('{"prompt": "1+1="}\n' * 20, encoding="utf-8")
    dvc(root, "add", "--quiet", "data/raw/own.jsonl")
    dvc(root, "repro", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "trained")
    with WorkFolder.open(root / WORK) as work:
        for step in (1, 2):
            for kind in ("rollouts", "rewards"):
                work.keep(kind, step, pl.DataFrame({"step": [step] * 50, "value": list(range(50))}))
            work.append(step, {"loss": 0.5}, {"seconds": 1.0})
            work.save(step, write_model, keep=2)
    return root


def write_model(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(bytes(range(250)))


@pytest.fixture
def toy(trained: Path, tmp_path: Path) -> Path:
    """A copy of `trained` in which a test may damage anything."""
    root = tmp_path / "toy"
    shutil.copytree(trained, root)
    return root


def flip(path: Path) -> None:
    """Flip one bit in place, as a disk would: name, size and times stay."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.write(bytes(content))
    path.chmod(status.st_mode)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def cached(root: Path, target: str, path: str, name: str | None = None) -> Path:
    """DVC's cache object of a target's output, or of a file in it."""
    md5 = read_lock(root)[target].outs[path]
    if name is not None:
        files = cached_listing(root, md5)
        assert files is not None
        md5 = files[name]
    return object_path(root, md5)


def only_damage(root: Path) -> str:
    """The one line that is said."""
    (damage,) = verify(root).damages
    return str(damage)


def shell(root: Path, line: str) -> None:
    subprocess.run(line, shell=True, cwd=root, env=toy_environment(root), check=True, capture_output=True)


def quoted(text: str) -> list[str]:
    """The commands that a text names."""
    return re.findall(r"`([^`]+)`", text)


def test_nothing_is_damaged_where_nothing_was(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    report = verify(toy, seen.append)
    assert (report.damages, report.notes) == ([], [])
    work = [path for path in (toy / WORK).rglob("*") if path.is_file()]
    assert report.num_files > len(work) + 7 + 16  # and 7 records, and 16 outputs with their copies in the cache
    assert sum(seen) == report.num_bytes
    assert num_bytes(toy) == pytest.approx(report.num_bytes, rel=0.2)
    monkeypatch.setattr(command, "checkout", lambda: toy)
    done = CliRunner().invoke(command.verify)
    assert done.exit_code == 0
    assert done.stdout == f"all {report.num_files} files ({report.num_bytes / 1e6:.1f} MB) are as they were written\n"


@pytest.mark.parametrize("name", ["checkpoints/step-000002/model.safetensors", "rollouts/step-000002.parquet", "metrics.jsonl"])
def test_a_flipped_byte_in_a_work_folder_is_found_and_named(toy: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(toy / WORK / name)
    found = verify(toy).damages
    assert found and all(name in damage.problem for damage in found)
    assert "goes on from the newest checkpoint that is whole" in found[0].remedy
    monkeypatch.setattr(command, "checkout", lambda: toy)
    done = CliRunner().invoke(command.verify)
    assert done.exit_code == 1
    assert str(found[0]) in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("target", "path", "name"),
    [
        ("prompts", "data/prompts/prompts.parquet", None),
        ("grpo_checkpoint@default", "data/grpo_checkpoint/default", "weights"),
        ("grpo_checkpoint@default", "data/rollout_batches/default/rollouts.parquet", None),
    ],
)
def test_a_flipped_byte_in_dvcs_cache_is_found_and_the_workspace_mends_it(toy: Path, target: str, path: str, name: str | None) -> None:
    place = cached(toy, target, path, name)
    flip(place)
    said = only_damage(toy)
    whole = path if name is None else f"{path}/{name}"
    assert said.startswith(f"{place.relative_to(toy)} in DVC's cache is damaged: its bytes have md5 ") and f"({whole} of {target})" in said
    (mending,) = quoted(said)
    shell(toy, mending)
    assert verify(toy).damages == []
    (toy / whole).unlink()
    dvc(toy, "checkout", path)
    assert verify(toy).damages == []


def test_a_damaged_listing_of_a_folder_is_found_and_made_again(toy: Path) -> None:
    place = cached(toy, "grpo_checkpoint@default", "data/grpo_checkpoint/default")
    flip(place)
    said = only_damage(toy)
    assert str(place.relative_to(toy)) in said and "(data/grpo_checkpoint/default of grpo_checkpoint@default)" in said
    place.unlink()
    shell(toy, quoted(said)[-1])
    assert place.is_file() and verify(toy).damages == []


@pytest.mark.parametrize(("path", "name"), [("data/grpo_checkpoint/default", "weights"), ("data/rewards/default/rewards.parquet", None)])
def test_a_flipped_byte_in_an_output_is_found_and_the_cache_mends_it(toy: Path, path: str, name: str | None) -> None:
    place = toy / path / name if name else toy / path
    place.write_bytes(place.read_bytes())  # a file of its own, if DVC has linked it to its cache
    flip(place)
    said = only_damage(toy)
    assert said.startswith(f"{place.relative_to(toy)} is not what grpo_checkpoint@default wrote down")
    assert quoted(said) == [f"dvc checkout {path}"] and "delete it, then" in said
    place.unlink()
    shell(toy, quoted(said)[0])
    assert verify(toy).damages == []


def linked(root: Path) -> tuple[Path, Path]:
    """An output and its cache object as one file under two names, as DVC leaves them after `dvc checkout` where it cannot copy on write."""
    place, obj = root / "data/rewards/default/rewards.parquet", cached(root, "grpo_checkpoint@default", "data/rewards/default/rewards.parquet")
    place.unlink()
    os.link(obj, place)
    return place, obj


@pytest.mark.parametrize("remote", [True, False])
def test_a_byte_that_output_and_cache_share_is_found_in_both_and_mended_from_a_remote_or_by_making_it_again(toy: Path, remote: bool) -> None:
    if remote:
        dvc(toy, "remote", "add", "--quiet", "--default", "--local", "store", "../store")
        dvc(toy, "push", "--quiet")
    place, obj = linked(toy)
    flip(place)
    in_cache, in_workspace = verify(toy).damages
    assert str(obj.relative_to(toy)) in in_cache.problem and str(place.relative_to(toy)) in in_workspace.problem
    assert in_cache.remedy == in_workspace.remedy
    pull, again = quoted(in_cache.remedy)
    place.unlink()
    obj.unlink()
    shell(toy, pull if remote else again)
    assert obj.is_file() and verify(toy).damages == []


@pytest.mark.parametrize("suffix", ["", ".dir"])
def test_a_damaged_object_that_nothing_names_is_found(toy: Path, suffix: str) -> None:
    place = object_path(toy, hashlib.md5(b"[]").hexdigest() + suffix)
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"[]")
    (place.parent / f"{place.name}.tmp").write_bytes(b"half of it")  # as DVC leaves one when it is killed
    assert verify(toy).damages == []
    flip(place)
    said = only_damage(toy)
    assert said.startswith(f"{place.relative_to(toy)} in DVC's cache is damaged: its bytes have md5 ") and "; delete it: no output" in said
    place.unlink()
    assert verify(toy).damages == []


@pytest.mark.parametrize("name", [None, "weights"])
def test_an_output_that_is_in_neither_workspace_nor_cache_is_lost(toy: Path, name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(toy, "grpo_checkpoint@default", "data/grpo_checkpoint/default", name).unlink()
    shutil.rmtree(toy / "data/grpo_checkpoint/default")
    said = only_damage(toy)
    assert said.startswith("data/grpo_checkpoint/default of grpo_checkpoint@default is lost: neither the workspace nor DVC's cache has it whole; ")
    pull, again = quoted(said)
    assert pull == "dvc pull data/grpo_checkpoint/default"
    monkeypatch.setattr(command, "checkout", lambda: toy)
    assert CliRunner().invoke(command.verify).exit_code == 1
    shell(toy, again)
    assert verify(toy).damages == []


def test_a_missing_metric_is_brought_back_by_git(toy: Path) -> None:
    (toy / "data/heldout_eval/default/summary.json").unlink()
    said = only_damage(toy)
    assert said.startswith("data/heldout_eval/default/summary.json of heldout_eval@default is not in the workspace; ")
    shell(toy, quoted(said)[0])
    assert verify(toy).damages == []


def test_a_damaged_input_is_named_with_what_tracks_it(toy: Path) -> None:
    place = toy / "data/raw/own.jsonl"
    place.unlink()
    shutil.copyfile(object_path(toy, re.findall(r"md5: (\w{32})", (toy / "data/raw/own.jsonl.dvc").read_text())[0]), place)
    flip(place)
    said = only_damage(toy)
    assert said.startswith("data/raw/own.jsonl is not what data/raw/own.jsonl.dvc wrote down")
    place.unlink()
    shell(toy, quoted(said)[0])
    assert verify(toy).damages == []


def test_a_metric_that_git_keeps_is_mended_by_git(toy: Path) -> None:
    flip(toy / "data/heldout_eval/default/summary.json")
    said = only_damage(toy)
    assert said.startswith("data/heldout_eval/default/summary.json is not what heldout_eval@default wrote down")
    (toy / "data/heldout_eval/default/summary.json").unlink()
    shell(toy, quoted(said)[0])
    assert verify(toy).damages == []


def alter_wall_seconds(path: Path) -> None:
    record = json.loads(path.read_bytes())
    path.write_text(json.dumps({**record, "wall_seconds": record["wall_seconds"] + 1}))


def alter_outs(path: Path) -> None:
    record = json.loads(path.read_text())
    (name,) = record["outs"]
    path.write_text(json.dumps({**record, "outs": {name: "0" * 32}}))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (flip, "is no record"),
        (lambda path: path.write_text("{}"), "is no record"),
        (alter_outs, "was altered"),
        (alter_wall_seconds, "was altered: its sha256"),
    ],
)
def test_a_damaged_record_is_found(toy: Path, change: Callable[[Path], None], told: str) -> None:
    (path,) = (toy / ".work/provenance/sft_checkpoint").glob("*.json")
    if change is flip:
        path.write_text(path.read_text()[:100])
    else:
        change(path)
    said = only_damage(toy)
    assert said.startswith(f"{path.relative_to(toy)} {told}")
    path.unlink()
    assert verify(toy).damages == []


def test_what_does_not_fit_its_manifest_was_altered_before_dvc_took_it(toy: Path) -> None:
    folder = toy / "data/grpo_checkpoint/default"
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "files": {"weights": "0" * 64}}))
    dvc(toy, "commit", "--quiet", "--force", "grpo_checkpoint@default")
    assert only_damage(toy).startswith("data/grpo_checkpoint/default/weights does not fit manifest.json: it was altered before DVC took it")


def test_without_the_cache_a_manifest_names_the_damaged_file(toy: Path) -> None:
    folder = toy / "data/grpo_checkpoint/default"
    manifest = json.loads((folder / "manifest.json").read_text())
    sha256 = subprocess.run(["sha256sum", "weights"], cwd=folder, capture_output=True, text=True, check=True).stdout.split()[0]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "files": {"weights": sha256}}))
    dvc(toy, "commit", "--quiet", "--force", "grpo_checkpoint@default")
    cached(toy, "grpo_checkpoint@default", "data/grpo_checkpoint/default").unlink()
    assert verify(toy).damages == []
    flip(folder / "weights")
    assert only_damage(toy).startswith("data/grpo_checkpoint/default/weights is not what grpo_checkpoint@default wrote down")


# ------------------------------------------------------------------------------------------------------- what is no damage


def notes(root: Path) -> list[str]:
    report: Report = verify(root)
    assert report.damages == []
    return report.notes


def test_what_is_not_in_the_workspace_is_a_note(toy: Path) -> None:
    shutil.rmtree(toy / "data/grpo_checkpoint/default")
    assert notes(toy) == ["data/grpo_checkpoint/default is not in the workspace: `dvc checkout data/grpo_checkpoint/default` brings it from the cache"]


def test_what_a_dvcignore_leaves_out_of_a_folder_is_no_damage(toy: Path) -> None:
    folder = toy / "data/raw/own"
    folder.mkdir()
    (folder / "rows.jsonl").write_text("{}\n", encoding="utf-8")
    dvc(toy, "add", "--quiet", "data/raw/own")
    (toy / ".dvcignore").write_text("__pycache__\n", encoding="utf-8")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "read.pyc").write_bytes(b"code")
    assert notes(toy) == []
    (folder / "rows.jsonl").unlink()
    (folder / "rows.jsonl").write_text("[]\n", encoding="utf-8")
    assert only_damage(toy).startswith("data/raw/own/rows.jsonl is not what data/raw/own.dvc wrote down")


def test_what_is_being_made_is_not_judged(toy: Path) -> None:
    (toy / "data/rewards/default/rewards.parquet").write_text("half")
    holder = {"write": {str(toy / "data/rewards/default/rewards.parquet"): {"pid": os.getpid(), "cmd": "repro"}}, "read": {}}
    (toy / ".dvc/tmp/rwlock").write_text(json.dumps(holder))
    assert notes(toy) == ["data/rewards/default/rewards.parquet is being made now: not looked at"]
    (toy / ".dvc/tmp/rwlock").write_text(json.dumps(holder).replace(str(os.getpid()), "999999999"))
    assert len(verify(toy).damages) == 1


def test_a_work_folder_in_use_is_not_judged(toy: Path) -> None:
    flip(toy / WORK / "rollouts/step-000001.parquet")
    with (toy / WORK / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert notes(toy) == [f"{WORK} was not looked at: another process is at work in {toy / WORK}: wait for it, or stop it"]
    assert verify(toy).damages
