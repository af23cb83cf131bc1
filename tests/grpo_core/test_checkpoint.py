import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core.checkpoint import BrokenFolder, WriteError, append_bytes, file_sha256, folder_digest, is_full_disk, read_manifest, write_file, write_folder


def put(text: str, name: str = "") -> Callable[[Path], None]:
    """Write `text` to the path given, or to `name` in it."""

    def write(path: Path) -> None:
        (path / name if name else path).write_text(text)

    return write


def fill(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "weights").write_bytes(b"\x00\x01\x02")
    (folder / "inner" / "settings").write_text("hello")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "made", fill, {"step": 3, "why": "test"})
    return tmp_path / "made"


def test_a_written_folder_holds_its_files_and_a_manifest_of_them(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest == json.loads((folder / "manifest.json").read_text())
    assert (manifest["step"], manifest["why"]) == (3, "test")
    assert manifest["files"] == {
        "weights": "ae4b3280e56e2faf83f414a6e3dabe9d5fbe18976544c05fed121accb85b53fc",
        "inner/settings": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
    }
    assert [path.name for path in folder.parent.iterdir()] == ["made"], "nothing else is left behind"


def test_the_same_content_gives_the_same_digest_and_a_changed_fact_another(folder: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "again", fill, {"why": "test", "step": 3})
    assert folder_digest(tmp_path / "again") == folder_digest(folder)
    write_folder(tmp_path / "other", fill, {"why": "test", "step": 4})
    assert folder_digest(tmp_path / "other") != folder_digest(folder)


def test_a_write_that_fails_leaves_the_old_folder_as_it_was(folder: Path) -> None:
    before = folder_digest(folder)

    def fail(partial: Path) -> None:
        fill(partial)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_folder(folder, fail, {})
    read_manifest(folder)
    assert folder_digest(folder) == before


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_one_kind_of_error_in_whatever_words_it_comes(error: Exception, folder: Path) -> None:
    def fail(partial: Path) -> None:
        (partial / "half" if partial.is_dir() else partial).write_text("half")
        raise error

    before = folder_digest(folder)
    with pytest.raises(WriteError, match=r"made could not be written: .*(No space|unexpected pos).* \([\d,.]+ MB free there\)"):
        write_folder(folder, fail, {})
    with pytest.raises(WriteError, match=r"table could not be written: .* MB free there\)"):
        write_file(folder.parent / "table", fail)
    assert folder_digest(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["made"], "what was half written is gone"


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True), (OSError(errno.EDQUOT, "Quota exceeded"), True), (OSError(errno.EFBIG, "Too large"), True),
        (RuntimeError("I/O error: No space left on device (os error 28)"), True), (RuntimeError("[enforce fail at inline_container.cc:664]"), True),
        (OSError(errno.EACCES, "Permission denied"), False), (FileNotFoundError("No such file or directory (os error 2): a.parquet"), False),
        (RuntimeError("Read-only file system (os error 30)"), False),
    ],
)  # fmt: skip
def test_a_full_disk_is_told_from_other_failures(error: Exception, full: bool, tmp_path: Path) -> None:
    def fail(partial: Path) -> None:
        raise error

    assert is_full_disk(error) == full
    with pytest.raises(WriteError) as raised:
        write_folder(tmp_path / "made", lambda partial: write_file(partial / "file", fail), {})
    assert is_full_disk(raised.value) == full


def test_an_error_of_our_own_stays_what_it_is_and_leaves_nothing_half_written(folder: Path) -> None:
    def fail(partial: Path) -> None:
        (partial / "half" if partial.is_dir() else partial).write_text("half")
        raise ValueError("a bug")

    with pytest.raises(ValueError, match=r"^a bug$"):
        write_folder(folder, fail, {})
    with pytest.raises(ValueError, match=r"^a bug$"):
        write_file(folder.parent / "table", fail)
    assert [path.name for path in folder.parent.iterdir()] == ["made"]


def test_bytes_are_put_at_the_end(tmp_path: Path) -> None:
    for part in (b"one\n", b"two\n"):
        append_bytes(tmp_path / "log", part)
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
    with pytest.raises(WriteError, match=r"missing/log could not be written: .*No such file"):
        append_bytes(tmp_path / "missing" / "log", b"one\n")


def test_what_a_crash_left_behind_is_ignored(folder: Path) -> None:
    leftover = folder.with_name(f".{folder.name}.partial")
    leftover.mkdir()
    (leftover / "half").write_text("half a file")
    write_folder(folder, fill, {"step": 4})
    assert sorted(read_manifest(folder)["files"]) == ["inner/settings", "weights"]
    assert not (folder / "half").exists()
    assert not leftover.exists()


def test_a_newer_folder_replaces_the_older_whole(folder: Path) -> None:
    write_folder(folder, put("new", "only"), {})
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "only"]


def test_a_crash_while_the_old_folder_is_removed_leaves_no_half_of_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = shutil.rmtree

    def crash(path: Path, **settings: Any) -> None:
        if (path / "manifest.json").exists():
            (path / "weights").unlink()
            raise KeyboardInterrupt
        remove(path, **settings)

    monkeypatch.setattr(shutil, "rmtree", crash)
    with pytest.raises(KeyboardInterrupt):
        write_folder(folder, fill, {"step": 4})
    assert read_manifest(folder)["step"] in (3, 4)


def test_an_altered_a_truncated_and_a_missing_file_are_each_named(folder: Path, tmp_path: Path) -> None:
    flipped = shutil.copytree(folder, tmp_path / "flipped")
    (flipped / "weights").write_bytes(b"\x00\x01\x03")
    with pytest.raises(BrokenFolder, match=r"flipped/weights was altered: its sha256 is not the one in manifest.json \(ae4b3280e56e"):
        read_manifest(flipped)
    truncated = shutil.copytree(folder, tmp_path / "truncated")
    (truncated / "inner" / "settings").write_text("hell")
    with pytest.raises(BrokenFolder, match="truncated/inner/settings was altered"):
        read_manifest(truncated)
    missing = shutil.copytree(folder, tmp_path / "missing")
    (missing / "inner" / "settings").unlink()
    with pytest.raises(BrokenFolder, match=r"missing/inner/settings is missing, though manifest.json lists it"):
        read_manifest(missing)


@pytest.mark.parametrize("text", [None, "", '{"step": 3', '{"step": 3}'])
def test_a_folder_without_a_readable_manifest_is_incomplete(folder: Path, text: str | None) -> None:
    (folder / "manifest.json").unlink()
    if text is not None:
        (folder / "manifest.json").write_text(text)
    with pytest.raises(BrokenFolder, match=r"manifest.json cannot be read .*the folder is incomplete; make it again"):
        read_manifest(folder)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table"
    write_file(path, put("first"))
    assert path.read_text() == "first"

    def fail(partial: Path) -> None:
        partial.write_text("sec")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_file(path, fail)
    assert path.read_text() == "first"
    write_file(path, put("second"))
    assert path.read_text() == "second"
    assert file_sha256(path) == "16367aacb67a4a017c8da8ab95682ccb390863780f7114dda0a0e0c55644c7c4"
