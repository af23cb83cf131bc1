"""Folders that are whole or not there: written aside, hashed, synced, renamed; read back only when every hash still fits."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


class BrokenFolder(ValueError):
    """A folder whose files are not the ones its manifest lists."""


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_folder(folder: Path, write: Callable[[Path], None], facts: Mapping[str, Any]) -> None:
    """Make `folder` hold what `write` puts into it, and a manifest of `facts` and every file's sha256; an older one is replaced.

    A crash at any moment leaves the old folder or the new one (or, between two renames, neither), and never half of one.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
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


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Make `path` hold what `write` puts there, all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    write(partial)
    sync(partial)
    partial.rename(path)
    sync(path.parent)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of `folder`, once every file it lists was read and found unchanged.

    Raises BrokenFolder that names the first file which is missing, extra in the manifest, or altered.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        files: dict[str, str] = manifest["files"]
    except (OSError, ValueError, KeyError) as error:
        raise BrokenFolder(f"{folder / MANIFEST} cannot be read ({error}): the folder is incomplete; make it again") from error
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise BrokenFolder(f"{path} is missing, though {MANIFEST} lists it")
        if file_sha256(path) != expected:
            raise BrokenFolder(f"{path} was altered: its sha256 is not the one in {MANIFEST} ({expected[:12]}…)")
    return manifest


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
