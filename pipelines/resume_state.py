"""How long a training's work folder is kept, and what starting the training again does with it.

A training that ends well leaves a marker in its work folder: the hash under which DVC will know its checkpoint, and the last step.
Started again with the same key, i.e. from the same configuration (but its number of steps), inputs and code, it

- resumes when there is no marker: it was interrupted;
- resumes, which is done at once, when DVC has not taken what the marker names: it was killed while DVC hashed the outputs;
- extends the finished training when more steps are asked for than the marker's;
- resumes, which is done at once, when settings that change no step were edited: it is judged anew by them, not trained anew;
- starts over at step 1 when DVC has taken the outputs and nothing else is asked for: DVC runs such a stage only when forced to.

An extension leaves the marker as it is until it ends well itself: abandoned, it is no reason to resume the shorter training when that is forced.

GRPO's folder stays until `grpo prune`, so that it can be extended and its steps replayed. SFT cannot be extended (its learning rate
depends on the number of steps), so its folder goes once DVC has the checkpoint.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from assets.paths import SHARED, Paths
from grpo_core.checkpoint import write_text
from grpo_core.config import RunConfig
from grpo_core.work_folder import WorkFolder, checkpoints, step_of
from pipelines.lock import read_lock
from pipelines.records.dvc_cache import object_path
from pipelines.records.provenance import Making

FINISHED = "finished"
"""The marker's name."""
TRAINED = ("sft_checkpoint", "grpo_checkpoint")
"""Nouns that are made by training, step by step."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What the marker of a finished training says."""

    md5: str
    """The checkpoint's hash, as DVC will know it."""
    step: int
    """The last step."""
    settings: Mapping[str, str]
    """Files of configuration → md5, as the training found them. That of GRPO is left out: it holds the number of steps."""


@contextmanager
def resumable(making: Making, config: RunConfig) -> Iterator[Path]:
    """The work folder for the training inside the block, emptied when it has to start over, and marked as finished when the block ends well."""
    paths, noun = making.paths, making.noun
    work: Path = import_module(f"assets.{noun}").work_folder(paths, config)
    steps = config.sft.steps if noun == "sft_checkpoint" else config.grpo.steps
    settings = _settings(making)
    with WorkFolder.open(work):
        finished = _marker(work)
        if finished is not None and steps <= finished.step and settings == finished.settings and is_taken(paths, noun, work):
            _empty(work)
    yield work
    write_text(work / FINISHED, json.dumps({"md5": making.record()["outs"][_out(paths, noun)], "step": steps, "settings": settings}) + "\n")


def read_marker(work: Path) -> Finished | None:
    """What a finished training left in its work folder; None when it has not finished, or an extension that has not goes beyond it."""
    finished = _marker(work)
    return finished if finished is not None and all(step_of(checkpoint) <= finished.step for checkpoint in checkpoints(work)) else None


def _marker(work: Path) -> Finished | None:
    """What the training that finished last left in the work folder, extended since or not."""
    try:
        values = json.loads((work / FINISHED).read_bytes())
        return Finished(str(values["md5"]), int(values["step"]), dict(values.get("settings", {})))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def is_taken(paths: Paths, noun: str, work: Path) -> bool:
    """Whether a training in the work folder has finished, and DVC has taken what it made: dvc.lock names it, or did so and was written anew since.

    DVC fills its cache before it writes dvc.lock, and a kill may come between the two: what is in the cache counts only when dvc.lock is
    newer than the marker. That is so after going back to settings whose outputs DVC had kept, which changes dvc.lock and runs nothing.
    """
    finished = _marker(work)
    if finished is None:
        return False
    lock, target = paths.root / "dvc.lock", noun if noun in SHARED else f"{noun}@{paths.experiment}"
    entry = read_lock(paths.root).get(target)
    if entry is not None and entry.outs.get(_out(paths, noun)) == finished.md5:
        return True
    return object_path(paths.root, finished.md5).is_file() and lock.is_file() and lock.stat().st_mtime_ns > (work / FINISHED).stat().st_mtime_ns


def settle(paths: Paths) -> None:
    """Remove the work folders of SFT whose checkpoint DVC has taken; all others stay."""
    for marker in (paths.work / "sft_checkpoint").glob(f"*/{FINISHED}"):
        if is_taken(paths, "sft_checkpoint", marker.parent):
            shutil.rmtree(marker.parent)


def _settings(making: Making) -> dict[str, str]:
    """The files of configuration that the training reads, but for the one with its number of steps."""
    return {path: md5 for path, md5 in making.deps.items() if path.startswith("data/run_config/") and not path.endswith("/grpo.json")}


def _empty(work: Path) -> None:
    """Remove everything from a work folder but the lock that is held on it. The marker goes last: a kill on the way is no interrupted training."""
    for path in sorted(work.iterdir(), key=lambda path: path.name == FINISHED):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()


def _out(paths: Paths, noun: str) -> str:
    """The checkpoint's path as dvc.lock spells it."""
    return str((paths.sft_checkpoint if noun == "sft_checkpoint" else paths.grpo_checkpoint).relative_to(paths.root))
