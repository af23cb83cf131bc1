"""The records of how outputs were made, as files: a JSON file for every state that a noun's outputs ever had, named by their hashes.

They lie under `.work/provenance`, outside of DVC's outputs: the same content must have the same hash on any machine. Nothing heavy is
imported here, because commands that look a run up must answer at once.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assets.paths import Paths

Record = Mapping[str, Any]
"""How one stage's outputs were made. Its fields:

- `noun`, and `experiment` (null when all share it); `started`, `wall_seconds`, `command`;
- `commit` (HEAD), `snapshot` (the commit that holds the code as it ran), `dirty` (whether they differ), `code` (the folder it was imported from);
- `python`, `libraries` (name → version), `host`, `platform`, `cpu`, `cpu_capability`, `num_cpus`, `threads`, `determinism`, `device`;
- `deps` and `outs` (path → md5 as DVC knows it), `files` (the same of every file in a folder of `outs`), `metrics` (path → content);
- `run_key` of a training, `manifest_sha256` of a checkpoint.

A record's file also has `sha256`, over all the others.
"""

KEY_LENGTH = 16
NAMES = "[0-9a-f]" * KEY_LENGTH + ".json"

REMEDY = "delete it; the next forced run of its stage writes it again"
"""What mends a record that is not as it was written."""

UNKNOWN: Record = {
    "noun": "", "experiment": None, "commit": None, "dirty": None, "snapshot": None, "started": None, "wall_seconds": None, "python": None, "libraries": {},
    "host": None, "platform": None, "cpu": None, "cpu_capability": None, "num_cpus": None, "threads": {}, "determinism": {}, "device": None, "code": None,
    "command": [], "deps": {}, "outs": {}, "files": {}, "metrics": {},
}  # fmt: skip
"""Every field of a record, for one of which only the hashes are known."""


def outs_key(outs: Mapping[str, str]) -> str:
    """What names a record: 16 hex digits of its outputs' paths and hashes."""
    return hashlib.sha256("".join(f"{path} {outs[path]}\n" for path in sorted(outs)).encode()).hexdigest()[:KEY_LENGTH]


def record_path(paths: Paths, noun: str, outs: Mapping[str, str]) -> Path:
    """Where the record of these outputs lies, if it was written."""
    return paths.provenance(noun) / f"{outs_key(outs)}.json"


def read_record(paths: Paths, noun: str, outs: Mapping[str, str]) -> Record | None:
    """The record of these outputs; None when they were made elsewhere, or before there were records. Raises ValueError when it was altered."""
    return _read(record_path(paths, noun, outs))


def read_records(paths: Paths, noun: str) -> list[Record]:
    """Every record of the noun (of the experiment, where it has experiments), the newest first. Raises ValueError when one was altered."""
    found = [record for path in paths.provenance(noun).glob(NAMES) if (record := _read(path)) is not None]
    return sorted(found, key=lambda record: str(record["started"]), reverse=True)


def recorded_experiments(root: Path) -> list[str]:
    """Names of the experiments that have records of a training."""
    return sorted(folder.parent.name for folder in (root / ".work" / "provenance").glob("*/grpo_checkpoint"))


def write_record(paths: Paths, record: Record) -> None:
    """Keep the record, whole or not at all; one of the same outputs is replaced, but not the lasting checkout's by that of a passing folder."""
    for root in {paths.root, lasting_root(paths.root)}:
        path = record_path(Paths(root, paths.experiment), record["noun"], record["outs"])
        if root != paths.root and path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}.new")
        aside.write_text(json.dumps({**record, "sha256": seal(record)}, indent=2) + "\n", encoding="utf-8")
        aside.rename(path)


def seal(record: Record) -> str:
    """The sha256 over all fields of a record but `sha256`."""
    return hashlib.sha256(json.dumps({name: value for name, value in record.items() if name != "sha256"}, sort_keys=True).encode()).hexdigest()


def lasting_root(root: Path) -> Path:
    """The checkout itself; of a folder that `dvc exp run --temp` or `--queue` works in, and removes, the checkout that it was started in."""
    for folder in root.parents:
        if folder.parts[-3:] == (".dvc", "tmp", "exps"):
            return folder.parents[2]
    return root


def _read(path: Path) -> Record | None:
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}): {REMEDY}") from error
    if not isinstance(record, dict) or record.get("sha256") != seal(record):
        raise ValueError(f"{path} was altered, its sha256 is not that of its fields: {REMEDY}")
    return {**UNKNOWN, **{name: value for name, value in record.items() if name != "sha256"}}
