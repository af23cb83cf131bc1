"""What a work folder keeps, forgets and finds damaged. Its checkpoints hold a line of text here, no model."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from grpo_core.checkpoint import WriteError
from grpo_core.work_folder import NOT_TRAINING, WorkFolder, checkpoints, code_digest, damages, faults, reading, step_of
from pipelines.code_deps import imported_files

ROOT = Path(__file__).resolve().parents[2]


def table(step: int) -> pl.DataFrame:
    return pl.DataFrame({"step": [step] * 2, "value": [step * 10, step * 10 + 1]})


def fill(folder: Path) -> None:
    (folder / "weights").write_text("weights")


def keep_step(work: WorkFolder, step: int, *, keep: int | None = None) -> None:
    """A step's rows and lines, and with `keep` a checkpoint."""
    work.keep("rollouts", step, table(step))
    work.keep("rewards", step, table(-step))
    work.append(step, {"loss": step / 10}, {"seconds": 1.0})
    if keep is not None:
        work.save(step, fill, keep=keep)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Steps 1 to 5 with checkpoints at 2 and 4."""
    with WorkFolder.open(tmp_path / "abc") as work:
        for step in range(1, 6):
            keep_step(work, step, keep=None if step % 2 else 2)
    return tmp_path / "abc"


def manifest(folder: Path, step: int) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "checkpoints" / f"step-{step:06d}" / "manifest.json").read_text())
    return found


def flip(path: Path, place: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1
    path.write_bytes(data)


def shards(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet"))


def test_a_checkpoint_vouches_for_every_row_and_line_before_it(folder: Path) -> None:
    assert [step_of(path) for path in checkpoints(folder)] == [4, 2]
    for step in (2, 4):
        assert sorted(manifest(folder, step)["shards"]) == shards_of(step)  # type: ignore[call-overload]
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert manifest(folder, 2)["metrics"]["bytes"] == len(b"".join(lines[:2]))  # type: ignore[index]
    assert manifest(folder, 4)["run_key"] == "abc"
    assert damages(folder) == []


def shards_of(last: int) -> list[str]:
    return sorted(f"{kind}/step-{step:06d}.parquet" for kind in ("rollouts", "rewards") for step in range(1, last + 1))


@pytest.mark.parametrize(
    ("name", "vouched_for_by"),
    [
        ("rollouts/step-000001.parquet", {4, 2}), ("rewards/step-000003.parquet", {4}), ("metrics.jsonl", {4, 2}), ("rollouts/step-000005.parquet", set()),
        ("timings.jsonl", set()), ("checkpoints/step-000002/weights", {2}), ("checkpoints/step-000004/manifest.json", {4}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_a_damaged_file_is_found_and_named_once(name: str, vouched_for_by: set[int], how: str, folder: Path) -> None:
    if how == "gone":
        (folder / name).unlink()
    else:
        flip(folder / name, 0)
    assert {step_of(path) for path in checkpoints(folder) if faults(folder, path)} == vouched_for_by
    found = damages(folder)
    assert len(found) == (2 if name == "metrics.jsonl" else bool(vouched_for_by)), found
    assert all(str(folder / name) in line for line in found)


def test_every_damaged_file_is_named(folder: Path) -> None:
    names = ["rollouts/step-000001.parquet", "rewards/step-000002.parquet", "rewards/step-000004.parquet", "checkpoints/step-000004/weights"]
    for name in names:
        flip(folder / name)
    found = damages(folder)
    assert len(found) == 4
    assert all(any(str(folder / name) in line for line in found) for name in names)


def test_a_flipped_bit_anywhere_in_a_checkpoint_s_manifest_is_found(folder: Path) -> None:
    path = folder / "checkpoints" / "step-000002" / "manifest.json"
    whole = path.read_bytes()
    for place in range(len(whole)):
        flip(path, place)
        assert damages(folder), f"byte {place} of the manifest: {path.read_bytes()[place - 20 : place + 20]!r}"
        path.write_bytes(whole)
    assert damages(folder) == []


def test_a_log_that_was_cut_short_is_found(folder: Path) -> None:
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:3]))
    (found,) = damages(folder)
    assert "checkpoint step-000004" in found


def test_cutting_back_keeps_exactly_what_the_checkpoint_vouches_for(folder: Path) -> None:
    (folder / "rollouts" / ".step-000006.parquet.partial").write_text("half")
    (folder / "checkpoints" / ".step-000006.partial").mkdir()
    (folder / "finished").write_text("a marker")
    with WorkFolder.open(folder) as work:
        work.cut_back(manifest(folder, 2))
        assert [step_of(path) for path in checkpoints(folder)] == [2]
        assert shards(folder) == shards_of(2)
        for log in (work.metrics, work.timings):
            assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [1, 2]
        assert not list(folder.rglob("*.partial"))
        for step in (3, 4):
            keep_step(work, step, keep=2)
        assert damages(folder) == []
        assert sorted(manifest(folder, 4)["shards"]) == shards_of(4)  # type: ignore[call-overload]
        work.cut_back(None)
        assert shards(folder) == []
        assert checkpoints(folder) == []
        assert work.metrics.read_text() == work.timings.read_text() == ""
    assert (folder / "finished").is_file(), "whose it is cares for it"


def test_an_old_checkpoint_goes_in_one_move(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(path: Path) -> None:
        (path / "weights").unlink()
        raise KeyboardInterrupt

    with WorkFolder.open(folder) as work:
        work.cut_back(manifest(folder, 4))
        monkeypatch.setattr("grpo_core.work_folder.shutil.rmtree", lambda path, **settings: None if settings else crash(path))
        with pytest.raises(KeyboardInterrupt):
            keep_step(work, 5, keep=1)
    assert [step_of(path) for path in checkpoints(folder)] == [5, 2], "no half of 4 is left under its name"
    assert damages(folder) == []


def test_shards_join_in_the_order_asked_for(tmp_path: Path) -> None:
    with WorkFolder.open(tmp_path / "key") as work:
        for step in (2, 10, 1, *range(3, 10), 11):
            work.keep("rollouts", step, table(step))
        work.join("rollouts", range(1, 11), tmp_path / "all.parquet")
        assert pl.read_parquet(tmp_path / "all.parquet")["step"].to_list() == [step for step in range(1, 11) for _ in range(2)]
        work.join("select", [], tmp_path / "none.parquet", table(1)[:0])
        assert pl.read_parquet(tmp_path / "none.parquet").equals(table(1)[:0])
        assert pl.read_parquet(tmp_path / "none.parquet").schema == table(1).schema


def test_a_step_that_is_missing_is_an_error_not_a_gap(tmp_path: Path) -> None:
    with WorkFolder.open(tmp_path / "key") as work:
        for step in (1, 3):
            work.keep("rollouts", step, table(step))
        with pytest.raises(FileNotFoundError, match="step-000002"):
            work.join("rollouts", range(1, 4), tmp_path / "all.parquet")
    assert not (tmp_path / "all.parquet").exists()


def test_readers_may_share_a_folder_and_nobody_shares_it_with_a_trainer(folder: Path) -> None:
    with reading(folder), reading(folder), pytest.raises(ValueError, match=r"another process is at work in .*abc: wait for it"), WorkFolder.open(folder):
        pass
    with WorkFolder.open(folder), pytest.raises(ValueError, match=r"another process is at work in .*abc: wait for it"), reading(folder):
        pass
    with reading(folder.parent / "never made"):
        assert not (folder.parent / "never made").exists()


@pytest.mark.parametrize(("name", "kept"), [("abc", "everything up to step 4 is kept"), ("new", "no step is kept yet")])
def test_a_full_disk_says_what_is_kept_and_how_to_go_on(name: str, kept: str, folder: Path) -> None:
    said = f"No space left on device; {kept}: free space"
    with WorkFolder.open(folder.parent / name) as work, pytest.raises(WriteError, match=said), work.explaining():
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file or directory", "a shard"), PermissionError(13, "Permission denied", "timings.jsonl")])
def test_another_failure_keeps_its_words_and_gets_no_advice_about_space(error: OSError, folder: Path) -> None:
    with WorkFolder.open(folder) as work, pytest.raises(type(error)) as raised, work.explaining():
        raise error
    assert str(raised.value) == f"{error}; everything up to step 4 is kept"


def test_a_missing_shard_is_not_taken_for_a_full_disk(folder: Path) -> None:
    (folder / "rewards" / "step-000002.parquet").unlink()
    with WorkFolder.open(folder) as work, pytest.raises(FileNotFoundError, match="step-000002") as raised, work.explaining():
        work.join("rewards", range(1, 5), folder / "all.parquet")
    assert "free space" not in str(raised.value)


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {"bytes": None, "sha256": "0"}}, {"metrics": {"bytes": 1e999, "sha256": "0"}}, {"metrics": {"bytes": "x", "sha256": "0"}},
        {"metrics": {"bytes": -1, "sha256": "0"}}, {"metrics": None}, {"shards": None}, {"shards": []}, {"shards": {"rewards/step-000001.parquet": None}},
        {"files": {"weights": None}}, {"files": None}, {"step": None},
    ],
)  # fmt: skip
def test_a_manifest_that_makes_no_sense_is_not_whole(change: dict[str, object], folder: Path) -> None:
    path = folder / "checkpoints" / "step-000004" / "manifest.json"
    path.write_text(json.dumps({**manifest(folder, 4), **change}))
    assert damages(folder)
    assert [bool(faults(folder, checkpoint)) for checkpoint in checkpoints(folder)] == [True, False]
    path.write_text(json.dumps([change]))
    assert [bool(faults(folder, checkpoint)) for checkpoint in checkpoints(folder)] == [True, False]


def test_only_folders_named_by_a_step_are_checkpoints(folder: Path) -> None:
    for name in ("step-000010.bak", "step-", "step-last"):
        (folder / "checkpoints" / name).mkdir()
    (folder / "checkpoints" / "step-000011").write_text("a file")
    assert [step_of(path) for path in checkpoints(folder)] == [4, 2]
    with WorkFolder.open(folder) as work:
        work.cut_back(manifest(folder, 2))
    assert (folder / "checkpoints" / "step-000010.bak").is_dir()


def test_a_checkpoint_that_is_passed_over_is_moved_aside_once(folder: Path) -> None:
    for text in ("first", "second"):
        (folder / "checkpoints" / "step-000004" / "weights").write_text(text)
        with WorkFolder.open(folder) as work:
            work.cut_back(manifest(folder, 2))
            assert [path.name for path in (folder / "damaged").iterdir()] == ["step-000004"]
            assert (folder / "damaged" / "step-000004" / "weights").read_text() == text
            for step in (3, 4):
                keep_step(work, step, keep=None if step % 2 else 2)
    assert damages(folder) == []


def test_what_the_code_digest_leaves_out_is_not_imported_by_training() -> None:
    imported = {path for paths in imported_files(["sft_checkpoint", "grpo_checkpoint"]).values() for path in paths}
    assert "grpo_core/loop.py" in imported
    assert not imported & {f"grpo_core/{name}" for name in NOT_TRAINING}
    assert all((ROOT / "grpo_core" / name).is_file() for name in NOT_TRAINING)


@pytest.mark.parametrize(("name", "changes"), [("plan.py", False), ("replay.py", False), ("loss.py", True), ("a_new_one.py", True)])
def test_the_code_digest_changes_with_the_code_that_trains(name: str, changes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copytree(ROOT / "grpo_core", tmp_path / "grpo_core", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr("grpo_core.work_folder.__file__", str(copy / "work_folder.py"))
    before = code_digest()
    with (copy / name).open("a") as stream:
        stream.write("# edited\n")
    assert (code_digest() != before) == changes


def test_looking_for_damage_needs_no_torch() -> None:
    code = "import sys; from grpo_core.work_folder import damages; import assets.rollout_batches, assets.rewards; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_logs_are_read_as_they_were_written_and_a_damaged_line_of_the_clock_is_left_out(tmp_path: Path) -> None:
    with WorkFolder.open(tmp_path / "key") as work:
        assert (work.lines(), work.clock_lines()) == ([], [])
        work.append(0, {})
        work.append(1, {"loss": 0.5}, {"seconds": 2.0})
        work.append(2, {"loss": 0.25}, {"seconds": 3.0})
        assert work.lines() == [{"step": 0}, {"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
        work.timings.write_bytes(work.timings.read_bytes().replace(b'{"step": 1', b'\xff"step": 1'))
        assert work.clock_lines() == [{"step": 2, "seconds": 3.0}]
