"""Files of JSON lines that only grow: each line holds the sha256 of the one before, so that nothing in the middle can be changed unseen."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PREVIOUS = "previous"
"""Of a line: the sha256 of the one before."""
FIRST = "0" * 64
"""What the first line has there."""


def read(path: Path) -> list[dict[str, Any]]:
    """The records, oldest first; none where there is no file. Raises ValueError that names the first line that does not follow from the one before."""
    return _records(path, path.read_bytes()) if path.is_file() else []


def append(path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Add a record, on the disk for good when this returns; the line that was written. Raises ValueError when the file is broken already."""
    with _locked(path) as stream:
        return _add(path, stream, record)


def append_unless(path: Path, record: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """All records, after the record was added unless one has the same value under `key`."""
    with _locked(path) as stream:
        kept = _records(path, _content(stream))
        if any(one[key] == record[key] for one in kept):
            return kept
        return [*kept, _add(path, stream, record)]


def _add(path: Path, stream: int, record: Mapping[str, Any]) -> dict[str, Any]:
    kept = _content(stream)
    _records(path, kept)
    lines = kept.splitlines()
    line = {**record, PREVIOUS: _sha256(lines[-1]) if lines else FIRST}
    os.write(stream, json.dumps(line, ensure_ascii=False).encode() + b"\n")
    os.fsync(stream)
    return line


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream
    finally:
        os.close(stream)


def _content(stream: int) -> bytes:
    return os.pread(stream, os.fstat(stream).st_size, 0)


def _records(path: Path, content: bytes) -> list[dict[str, Any]]:
    records, before = [], FIRST
    if content and not content.endswith(b"\n"):
        raise ValueError(f"{path}: its last line was cut: {_REMEDY}")
    for number, line in enumerate(content.splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not JSON ({error}): {_REMEDY}") from error
        if not isinstance(record, dict) or record.get(PREVIOUS) != before:
            raise ValueError(f"{path}, line {number} does not follow from the line before it: a line was changed, added or taken out; {_REMEDY}")
        records.append(record)
        before = _sha256(line)
    return records


_REMEDY = "`git log` shows who changed the file, `git checkout` brings back what was committed"


def _sha256(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
