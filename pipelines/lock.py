"""dvc.lock: what every target was made from and what came out, as hashes. DVC itself is not imported: these are asked for in a hurry."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pipelines.graph import Target


class LockError(ValueError):
    """A file of DVC's that cannot be read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A target's last successful run."""

    deps: Mapping[str, str]
    """Path → md5 it was made from."""
    outs: Mapping[str, str]
    """Path → md5 that came out."""
    sizes: Mapping[str, int]
    """Path → bytes that came out."""

    def data_version(self, target: "Target", asset: str) -> str:
        """The asset's hash as DVC knows it; several outputs are joined."""
        return "+".join(self.outs[path] for path in target.outs_of(asset))

    def size(self, target: "Target", asset: str) -> int:
        return sum(self.sizes[path] for path in target.outs_of(asset))


def read_lock(root: Path) -> dict[str, Entry]:
    """Target name → its entry; empty before the first run."""
    path = root / "dvc.lock"
    if not path.exists():
        return {}
    stages = read_yaml(path).get("stages") or {}
    return {name: _entry(stage) for name, stage in stages.items()}


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file of DVC's whose scalars all stay the text they are spelled as: hashes and paths must not turn into numbers.

    With the parser in C, which is twenty times as fast as the one that params.yaml is read with. Raises `LockError`.
    """
    loader = yaml.CBaseLoader if yaml.__with_libyaml__ else yaml.BaseLoader
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LockError(f"{path} cannot be read: {' '.join(str(error).split())}; `git diff {path.name}` shows what was done to it") from error
    if not isinstance(values, dict):
        raise LockError(f"{path} must be a mapping, got {values!r}: `git checkout {path.name}` brings it back")
    return values


def file_md5(path: Path) -> str:
    """The hash under which DVC knows a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def file_md5s(folder: Path) -> dict[str, str]:
    """Path within the folder → md5 of every file in it."""
    return {path.relative_to(folder).as_posix(): file_md5(path) for path in folder.rglob("*") if path.is_file()}


def listing_md5(files: Mapping[str, str]) -> str:
    """The hash under which DVC knows a folder of these files: the md5 of their list."""
    listing = json.dumps([{"md5": files[path], "relpath": path} for path in sorted(files)])
    return hashlib.md5(listing.encode(), usedforsecurity=False).hexdigest() + ".dir"


def folder_md5(folder: Path) -> str:
    """The hash under which DVC knows a folder."""
    return listing_md5(file_md5s(folder))


def _entry(stage: Mapping[str, list[dict[str, str]]]) -> Entry:
    deps, outs = stage.get("deps", []), stage.get("outs", [])
    return Entry(
        deps={dep["path"]: dep["md5"] for dep in deps},
        outs={out["path"]: out["md5"] for out in outs},
        sizes={out["path"]: int(out["size"]) for out in outs},
    )
