"""Folders that are whole or not there: written aside, hashed, synced, renamed; read back only when every hash still fits."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"

DISK_ERRORS = ("os error", "inline_container", "PytorchStreamWriter")
"""What polars, safetensors and torch have in their own exceptions when the disk took no more: none of them raises an OSError then."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system calls a disk, a quota or a file that takes no more."""


class BrokenFolder(ValueError):
    """A folder whose files are not the ones its manifest lists."""


class WriteError(OSError):
    """Something that could not be written, a full disk above all: says what and why. What was there before still is."""


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_folder(folder: Path, write: Callable[[Path], None], facts: Mapping[str, Any]) -> None:
    """Make `folder` hold what `write` puts into it, and a manifest of `facts` and every file's sha256; an older one is replaced.

    A crash at any moment leaves the old folder or the new one (or, between two renames, neither), and never half of one.
    Raises WriteError when the disk does not take it.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with _removed_on_failure(folder, partial):
        partial.mkdir(parents=True)
        write(partial)
        files = {str(path.relative_to(partial)): file_sha256(path) for path in sorted(partial.rglob("*")) if path.is_file()}
        (partial / MANIFEST).write_text(json.dumps({**facts, "files": files}, indent=1, sort_keys=True) + "\n")
        for path in partial.rglob("*"):
            sync(path)
        sync(partial)
        retired = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(retired, ignore_errors=True)
        if folder.exists():
            folder.rename(retired)
        partial.rename(folder)
    sync(folder.parent)
    shutil.rmtree(retired, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Make `path` hold `text`, all of it or nothing."""
    write_file(path, lambda partial: partial.write_text(text))


def write_file(path: Path, write: Callable[[Path], object], *, durable: bool = True) -> None:
    """Make `path` hold what `write` puts there, all of it or nothing. Raises WriteError when the disk does not take it.

    What is not `durable` outlives a kill, and not a power cut: whoever relies on it syncs file and folder first.
    """
    partial = path.with_name(f".{path.name}.partial")
    with _removed_on_failure(path, partial):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        if durable:
            sync(partial)
        partial.rename(path)
    if durable:
        sync(path.parent)


def append_bytes(path: Path, added: bytes) -> None:
    """Put `added` at the end of the file at `path`. Raises WriteError when the disk does not take it; a part may then be there."""
    try:
        with path.open("ab") as stream:
            stream.write(added)
    except OSError as error:
        raise WriteError(f"{path} could not be written: {error} ({_free(path)} free there)") from error


def is_full_disk(error: BaseException) -> bool:
    """Whether a full disk or quota, or a file's largest size, is behind an error, in whatever words it came."""
    while isinstance(error, WriteError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in FULL
    number = re.search(r"os error (\d+)", str(error))
    return int(number[1]) in FULL if number else any(words in str(error) for words in DISK_ERRORS)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of `folder`, once every file it lists was read and found unchanged.

    Raises BrokenFolder that names the first file which is missing, extra in the manifest, or altered.
    """
    manifest = unchecked_manifest(folder)
    for fault in altered_files(folder, manifest["files"], MANIFEST):
        raise BrokenFolder(fault)
    return manifest


def unchecked_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of `folder`, whatever its files hold. Raises BrokenFolder when there is none that can be read."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        manifest["files"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenFolder(f"{folder / MANIFEST} cannot be read ({error}): the folder is incomplete; make it again") from error
    return manifest


def altered_files(root: Path, files: Mapping[str, str], listed_in: str) -> Iterator[str]:
    """A sentence for each of `files` (path below `root` → sha256, as `listed_in` has them) that is missing or holds other bytes."""
    for name, expected in files.items():
        path = root / name
        if not path.is_file():
            yield f"{path} is missing, though {listed_in} lists it"
        elif file_sha256(path) != expected:
            yield f"{path} was altered: its sha256 is not the one in {listed_in} ({expected[:12]}…)"


def folder_digest(folder: Path) -> str:
    """The sha256 of the manifest: names every byte of the folder."""
    return file_sha256(folder / MANIFEST)


def sync(path: Path) -> None:
    """Force a file's or folder's contents to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _removed_on_failure(path: Path, partial: Path) -> Iterator[None]:
    """Leave no `partial` behind when writing `path` fails; a failure of the disk is a WriteError, in whatever words it came."""
    try:
        yield
    except BaseException as error:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) or (isinstance(error, Exception) and any(words in str(error) for words in DISK_ERRORS)):
            raise WriteError(f"{path} could not be written: {error} ({_free(path)} free there)") from error
        raise


def _free(path: Path) -> str:
    """Free space where `path` would lie."""
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    return f"{shutil.disk_usage(folder).free / 1e6:,.1f} MB"
