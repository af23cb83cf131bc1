"""The work folder of one training: what continues it after a stop, extends it and lets its steps be done again. No torch here.

Layout: `checkpoints/step-000010/` (model, optimizer.pt, state.json, manifest.json), `rollouts/`, `rewards/` and `select/` (a shard a
step), `exploits/` (one shard, before the first step), `metrics.jsonl` and `timings.jsonl` (a line a step), `damaged/` (checkpoints that
were passed over), `halted/` (batches that ended a run), `lock`. Its name is the run's key.

A checkpoint vouches for everything before it: its manifest holds the sha256 of its own files, of every shard up to its step, and of
metrics.jsonl as it was. It is whole when all of these still fit.
"""

import fcntl
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import polars as pl

from grpo_core.checkpoint import (
    MANIFEST,
    BrokenFolder,
    WriteError,
    altered_files,
    append_bytes,
    file_sha256,
    is_full_disk,
    sync,
    unchecked_manifest,
    write_folder,
    write_text,
)
from grpo_core.config import RunConfig
from grpo_core.params import section_values
from grpo_core.tables import write_table

CHANGE_NO_STEP = ("checkpoint_every", "keep_checkpoints", "exploit_threshold", "acknowledged_exploits")
"""Settings of a training that change no step, and so no byte of what it leaves."""

NOT_TRAINING = (
    "comparison.py",
    "contamination.py",
    "cost.py",
    "exploration.py",
    "exploration_numbers.py",
    "gate.py",
    "live_groups.py",
    "plan.py",
    "prompt_columns.py",
    "prompts.py",
    "readiness.py",
    "recommendation.py",
    "replay.py",
    "rescore.py",
)
"""Files of grpo_core that no training imports: an edit of theirs leaves an interrupted one resumable."""

Kind = Literal["rollouts", "rewards", "select", "exploits"]
KINDS: tuple[Kind, ...] = ("rollouts", "rewards", "select", "exploits")


def lasting_values(config: RunConfig, section: str) -> dict[str, Any]:
    """One section as plain values, without the settings that change no step."""
    return {name: value for name, value in section_values(config, section).items() if name not in CHANGE_NO_STEP}


def code_digest() -> str:
    """A sha256 over grpo_core, without what takes no part in training."""
    hashes = [file_sha256(path) for path in sorted(Path(__file__).parent.rglob("*.py")) if path.name not in NOT_TRAINING]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def key_of(*parts: object) -> str:
    """16 hex digits that name a training by what it is made from."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


@dataclass(slots=True)
class WorkFolder:
    """A locked work folder, and the hashes of what was written into it: each is worked out once and carried from checkpoint to checkpoint."""

    folder: Path
    shards: dict[str, str] = field(default_factory=dict)
    """Every shard (path below the folder) and its sha256."""
    unsynced: list[str] = field(default_factory=list)
    """Shards that a power cut could still take: the next checkpoint, the first to vouch for them, syncs them all at once."""
    log_bytes: int = 0
    log_hash: Any = field(default_factory=hashlib.sha256)
    """Over the `log_bytes` of metrics.jsonl."""

    @staticmethod
    @contextmanager
    def open(folder: Path) -> "Iterator[WorkFolder]":
        """The folder, made when missing. Raises ValueError while another process works in it."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            _lock(lock.fileno(), fcntl.LOCK_EX, folder)
            yield WorkFolder(folder)

    @property
    def key(self) -> str:
        """What names the run."""
        return self.folder.name

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def timings(self) -> Path:
        return self.folder / "timings.jsonl"

    def keep(self, kind: Kind, step: int, rows: pl.DataFrame) -> None:
        """Write a step's rows, whole or not at all."""
        name = f"{kind}/step-{step:06d}.parquet"
        write_table(self.folder / name, rows, durable=False)
        self.shards[name] = file_sha256(self.folder / name)
        self.unsynced.append(name)

    def rows(self, kind: Kind, step: int) -> pl.DataFrame:
        """A step's rows as they were kept."""
        return pl.read_parquet(self.folder / kind / f"step-{step:06d}.parquet")

    def lines(self) -> list[dict[str, Any]]:
        """The log of metrics, a mapping a step; a line that is just being written is left out."""
        return [json.loads(line) for line in self.metrics.read_bytes().rpartition(b"\n")[0].splitlines()] if self.metrics.is_file() else []

    def clock_lines(self) -> list[dict[str, Any]]:
        """The log of the clock's figures, a mapping a step; lines that were damaged are left out."""
        lines = self.timings.read_text(encoding="utf-8", errors="replace").splitlines() if self.timings.is_file() else []
        return [json.loads(line) for line in lines if _step_in(line) is not None]

    def append(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float] | None = None) -> None:
        """One line a step in the log of metrics, and in that of the clock's figures when there are any."""
        line = _line(step, metrics)
        append_bytes(self.metrics, line)
        self.log_hash.update(line)
        self.log_bytes += len(line)
        if timings is not None:
            append_bytes(self.timings, _line(step, timings))

    def save(self, step: int, write: Callable[[Path], None], *, keep: int) -> None:
        """A checkpoint of `step` that holds what `write` puts into it and vouches for all before it; only the newest `keep` stay."""
        new = [self.folder / name for name in self.unsynced]
        logs = [log for log in (self.metrics, self.timings) if log.is_file()]
        for path in (*new, *sorted({shard.parent for shard in new}), *logs):
            sync(path)
        self.unsynced.clear()
        facts = {"step": step, "run_key": self.key, "shards": self.shards, "metrics": {"bytes": self.log_bytes, "sha256": self.log_hash.hexdigest()}}
        write_folder(self.folder / "checkpoints" / f"step-{step:06d}", write, facts)
        for old in checkpoints(self.folder)[keep:]:
            _remove_at_once(old)

    def join(self, kind: Kind, steps: Iterable[int], path: Path, empty: pl.DataFrame | None = None) -> None:
        """The shards of `steps` as one table at `path`; `empty` where there is no step."""
        tables = [self.rows(kind, step) for step in steps]
        write_table(path, pl.concat(tables) if empty is None else pl.concat([empty, *tables]))

    def cut_back(self, manifest: Mapping[str, Any] | None) -> None:
        """Forget every row and line that the checkpoint with this `manifest` does not vouch for; everything without one.

        Newer checkpoints are moved to `damaged/` first: there none counts among those to keep, and a person can look at it.
        """
        step = -1 if manifest is None else int(manifest["step"])
        for leftover in (self.folder / "checkpoints").glob(".step-*"):
            shutil.rmtree(leftover)
        for folder in checkpoints(self.folder):
            if step_of(folder) > step:
                _set_aside(folder, self.folder / "damaged" / folder.name)
        self.shards, self.unsynced = {} if manifest is None else dict(manifest["shards"]), []
        for path in (shard for kind in KINDS for shard in (self.folder / kind).glob("*")):
            if str(path.relative_to(self.folder)) not in self.shards:
                path.unlink()
        self.log_bytes = 0 if manifest is None else int(manifest["metrics"]["bytes"])
        with self.metrics.open("ab") as stream:
            stream.truncate(self.log_bytes)
        self.log_hash = hashlib.sha256(self.metrics.read_bytes())
        if self.timings.is_file():
            lines = self.timings.read_text(errors="replace").splitlines(keepends=True)
            write_text(self.timings, "".join(line for line in lines if _step_in(line) in range(step + 1)))

    @contextmanager
    def explaining(self) -> "Iterator[None]":
        """Up to which step everything is kept is said by every OSError from inside the block, and by a full disk's how to go on."""
        try:
            yield
        except OSError as error:
            newest = next(iter(checkpoints(self.folder)), None)
            said = f"{error}; " + ("no step is kept yet" if newest is None else f"everything up to step {step_of(newest)} is kept")
            if is_full_disk(error):
                raise WriteError(f"{said}: free space (`grpo prune`) and run again to go on from there") from error
            raise type(error)(said) from error


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Nobody changes the work folder inside the block, and the block changes nothing. Raises ValueError while a process works in it."""
    path = folder / "lock"
    if not path.is_file():
        yield
        return
    with path.open() as lock:
        _lock(lock.fileno(), fcntl.LOCK_SH, folder)
        yield


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a work folder, newest first, whole or not."""
    return sorted(_folders_of_steps(folder / "checkpoints"), key=step_of, reverse=True)


def halted_folders(folder: Path) -> list[Path]:
    """What was kept of each halt of a work folder, oldest step first."""
    return sorted((kept for kept in _folders_of_steps(folder / "halted") if (kept / "alarms.json").is_file()), key=step_of)


def step_of(folder: Path) -> int:
    """The step in a folder's name: the last that a checkpoint covers, or the one that halted."""
    return int(folder.name.removeprefix("step-"))


def _folders_of_steps(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*") if re.fullmatch(r"step-[0-9]+", path.name) and path.is_dir()]


def faults(folder: Path, checkpoint: Path, checked: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """What keeps a checkpoint of the work folder from being whole, a sentence a file: its own files, shards and log that it vouches for.

    Shards in `checked` were looked at already, for the same sha256.
    """
    try:
        manifest = unchecked_manifest(checkpoint)
        named = {"step": manifest["step"], "run_key": manifest["run_key"]}
        shards = {name: sha256 for name, sha256 in manifest["shards"].items() if name not in checked or checked[name] != sha256}
        log_bytes, log_sha256 = int(manifest["metrics"]["bytes"]), manifest["metrics"]["sha256"]
        found = [*altered_files(checkpoint, manifest["files"], MANIFEST), *altered_files(folder, shards, f"checkpoint {checkpoint.name}")]
    except BrokenFolder as error:
        return [str(error)]
    except KeyError as error:
        return [f"{checkpoint / MANIFEST} was altered: it has no {error}"]
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        return [f"{checkpoint / MANIFEST} was altered: {error}"]
    expected = {"step": step_of(checkpoint), "run_key": folder.name}
    if named != expected:
        found.append(f"{checkpoint / MANIFEST} was altered: it says {named}, its place says {expected}")
    log = folder / "metrics.jsonl"
    if not _starts_with(log, log_bytes, log_sha256):
        found.append(f"{log} was altered: its first {log_bytes} bytes are not those that checkpoint {checkpoint.name} lists")
    return found


def damages(folder: Path) -> list[str]:
    """A sentence for every damaged or missing file of a work folder that a checkpoint in it vouches for; none when all is whole."""
    checked: dict[str, str] = {}
    found: list[str] = []
    for checkpoint in checkpoints(folder):
        found += faults(folder, checkpoint, checked)
        with suppress(BrokenFolder):
            shards = unchecked_manifest(checkpoint).get("shards")
            checked |= {name: sha256 for name, sha256 in shards.items() if isinstance(sha256, str)} if isinstance(shards, dict) else {}
    return found


def _starts_with(path: Path, num_bytes: int, sha256: str) -> bool:
    """Whether the first `num_bytes` of the file have this sha256."""
    if not path.is_file() or not 0 <= num_bytes <= path.stat().st_size:
        return False
    with path.open("rb") as stream:
        return hashlib.sha256(stream.read(num_bytes)).hexdigest() == sha256


def _line(step: int, numbers: Mapping[str, float]) -> bytes:
    return (json.dumps({"step": step, **numbers}) + "\n").encode()


def _step_in(line: str) -> int | None:
    """The step that a line of a log is about; None for one that was damaged or half written."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def _set_aside(folder: Path, place: Path) -> None:
    """Move `folder` to `place`, where an older one is replaced."""
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(exist_ok=True)
    folder.rename(place)


def _remove_at_once(folder: Path) -> None:
    """Let `folder` vanish in one move, so that a crash leaves no half of it under its name."""
    hidden = folder.with_name(f".{folder.name}.old")
    folder.rename(hidden)
    shutil.rmtree(hidden)


def _lock(descriptor: int, kind: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(f"another process is at work in {folder}: wait for it, or stop it") from error
