"""dvc.lock: what every target was made from and what came out, as hashes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from pipelines.graph import Target


@dataclass(frozen=True, slots=True)
class Entry:
    """A target's last successful run."""

    deps: Mapping[str, str]
    """Path → md5 it was made from."""
    outs: Mapping[str, str]
    """Path → md5 that came out."""
    sizes: Mapping[str, int]
    """Path → bytes that came out."""

    def data_version(self, target: Target, asset: str) -> str:
        """The asset's hash as DVC knows it; several outputs are joined."""
        return "+".join(self.outs[path] for path in target.outs_of(asset))

    def size(self, target: Target, asset: str) -> int:
        return sum(self.sizes[path] for path in target.outs_of(asset))


def read_lock(root: Path) -> dict[str, Entry]:
    """Target name → its entry; empty before the first run."""
    path = root / "dvc.lock"
    if not path.exists():
        return {}
    stages = YAML(typ="safe", pure=True).load(path).get("stages") or {}
    return {name: _entry(stage) for name, stage in stages.items()}


def folder_md5(folder: Path) -> str:
    """The hash under which DVC knows a folder: the md5 of its list of files with theirs."""
    files = [{"md5": _file_md5(path), "relpath": path.relative_to(folder).as_posix()} for path in folder.rglob("*") if path.is_file()]
    listing = json.dumps(sorted(files, key=lambda file: file["relpath"]), sort_keys=True)
    return hashlib.md5(listing.encode(), usedforsecurity=False).hexdigest() + ".dir"


def _file_md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _entry(stage: Mapping[str, list[dict[str, str | int]]]) -> Entry:
    deps, outs = stage.get("deps", []), stage.get("outs", [])
    return Entry(
        deps={str(dep["path"]): str(dep["md5"]) for dep in deps},
        outs={str(out["path"]): str(out["md5"]) for out in outs},
        sizes={str(out["path"]): int(out["size"]) for out in outs},
    )
