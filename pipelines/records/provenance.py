"""A noun in the making: what its stage starts from, and the record of it once its outputs lie there."""

import json
import os
import platform
import re
import socket
import sys
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from assets.paths import SHARED, Paths
from grpo_core.checkpoint import MANIFEST, file_sha256
from grpo_core.config import RunConfig
from grpo_core.determinism import THREADS, switches_in_force
from pipelines.lock import file_md5, file_md5s, listing_md5
from pipelines.params import ROOT
from pipelines.records.files import Record, write_record
from pipelines.records.snapshot import Snapshot, SnapshotError, snapshot
from pipelines.records.stage_files import StageFiles, stage_files

DISTRIBUTION = "grpo-lifecycle"


@dataclass
class Making:
    """One noun being made by this process."""

    paths: Paths
    noun: str
    files: StageFiles
    code: Snapshot | None
    """None outside Git, and when Git could not keep the code."""
    deps: Mapping[str, str]
    """Path under data/ → md5, as it was before the work began."""
    config: RunConfig | None
    """None for the stage that writes the configuration."""
    started: datetime
    clock: float
    _record: Record | None = field(default=None, repr=False)

    def record(self) -> Record:
        """How the outputs that lie there now were made. The first call hashes them and writes it down, later ones give the same again."""
        if self._record is None:
            self._record = self._collect()
            write_record(self.paths, self._record)
        return self._record

    def _collect(self) -> Record:
        root = self.paths.root
        hashes = {path: md5s(root, path) for path in (*self.files.outs, *self.files.metrics)}
        outs = {path: found[path] for path, found in hashes.items()}
        folders = [root / path for path in outs if (root / path / MANIFEST).is_file()]
        manifest = json.loads((folders[0] / MANIFEST).read_bytes()) if folders else {}
        return {
            "noun": self.noun,
            "experiment": None if self.noun in SHARED else self.paths.experiment,
            "commit": self.code.commit if self.code else None,
            "dirty": self.code.dirty if self.code else None,
            "snapshot": self.code.sha if self.code else None,
            "started": self.started.isoformat(timespec="milliseconds"),
            "wall_seconds": round(time.monotonic() - self.clock, 3),
            **process_facts(root, self.config),
            "deps": dict(self.deps),
            "outs": outs,
            "files": {path: md5 for found in hashes.values() for path, md5 in found.items() if path not in outs},
            # Git keeps these, and only the newest. Outcomes of contracts are left out: they are long, and those of a whole run all good.
            "metrics": {path: json.loads((root / path).read_bytes()) for path in self.files.metrics if not path.startswith("data/validation/")},
            **({"run_key": manifest["run_key"]} if self.noun == "grpo_checkpoint" else {}),
            **({"manifest_sha256": file_sha256(folders[0] / MANIFEST)} if folders else {}),
        }


def begin(paths: Paths, noun: str, config: RunConfig | None = None) -> Making:
    """Keep the code and hash the inputs as they are now, before the noun is made. Git failing to keep the code is a warning."""
    started, clock = datetime.now(UTC), time.monotonic()
    try:
        code = snapshot(paths.root)
    except SnapshotError as error:
        print(f"warning: {error}; the record of {noun} will not say which code made it", file=sys.stderr, flush=True)
        code = None
    files = stage_files(paths.root, noun, paths.experiment)
    deps = {path: md5s(paths.root, path)[path] for path in files.deps if (paths.root / path).exists()}
    return Making(paths, noun, files, code, deps, config, started, clock)


def md5s(root: Path, path: str) -> dict[str, str]:
    """The file's or folder's own path, and those of all files in it → the hashes under which DVC knows them."""
    if (root / path).is_file():
        return {path: file_md5(root / path)}
    if not (root / path).is_dir():
        raise FileNotFoundError(f"{root / path} is not there, though dvc.yaml lists it for this stage")
    files = file_md5s(root / path)
    return {path: listing_md5(files), **{f"{path}/{name}": md5 for name, md5 in files.items()}}


def process_facts(root: Path, config: RunConfig | None = None) -> dict[str, Any]:
    """The machine, the versions and the settings that this process computes with. What torch says is None where nothing needed it."""
    return {
        "python": platform.python_version(),
        "libraries": {name: library_version(name) for name in declared_libraries(root)},
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "num_cpus": os.cpu_count(),
        **_arithmetic(config),
        "code": str(ROOT),
        "command": list(sys.orig_argv),
    }


def _arithmetic(config: RunConfig | None) -> dict[str, Any]:
    """What decides in which order sums are added: threads, vector instructions, switches, and the device where torch is loaded."""
    switches = switches_in_force()
    threads = {name: switches.pop(name) for name in (*THREADS, "OMP_WAIT_POLICY")}
    return {
        "threads": {**threads, "torch": switches.pop("torch_num_threads", None)},
        "cpu_capability": switches.pop("torch_cpu_capability", None),
        "determinism": switches,
        "device": device_name(config.model.device) if config is not None and "torch" in sys.modules else None,
    }


def device_name(device: str) -> str:
    """The device that `model.device` stands for on this machine, a GPU with its model."""
    import torch

    from grpo_core.models import resolve_device

    resolved = resolve_device(device)
    return f"{resolved} ({torch.cuda.get_device_name(resolved)})" if resolved.type == "cuda" else str(resolved)


def declared_libraries(root: Path) -> list[str]:
    """Names of the libraries that the checkout's pyproject.toml asks for; in a checkout without one, those that the installed package asks for."""
    pyproject = root / "pyproject.toml"
    if pyproject.is_file():
        wanted = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]
    else:
        wanted = [line for line in requires(DISTRIBUTION) or () if "extra ==" not in line]
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in wanted]


def library_version(name: str) -> str | None:
    """The version that is installed, if any is."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
