"""The work folder of a run: what continues it after a stop, and nothing that its outputs need once it is done.

Layout: `checkpoints/step-000010/` (model, optimizer.pt, state.json, manifest.json), `rollouts/` and `rewards/` (a shard a step),
`metrics.jsonl` and `timings.jsonl` (a line a step), `lock`.
"""

import fcntl
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from grpo_core.checkpoint import BrokenFolder, read_manifest, sync, write_folder, write_text
from grpo_core.kl_control import KlController
from grpo_core.ledger import Shards

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """What a checkpoint knows beside weights and optimizer. Random numbers are functions of the step: there is no state of theirs."""

    step: int
    """Last step that the checkpoint covers; 0 is the start."""
    controller: KlController | None = None
    """None at the start."""


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """A locked work folder."""

    folder: Path
    run_key: str

    @staticmethod
    @contextmanager
    def open(folder: Path, run_key: str) -> "Iterator[WorkFolder]":
        """The folder of the run `run_key`, made when missing. Raises ValueError while another process holds it."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"another process is training in {folder}: wait for it, or stop it") from error
            yield WorkFolder(folder, run_key)

    @property
    def rollouts(self) -> Shards:
        return Shards(self.folder / "rollouts")

    @property
    def rewards(self) -> Shards:
        return Shards(self.folder / "rewards")

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def timings(self) -> Path:
        return self.folder / "timings.jsonl"

    def save(self, point: ResumePoint, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, keep: int) -> None:
        """Write a checkpoint at `point`, whole or not at all, and forget all but the newest `keep`."""

        def write(folder: Path) -> None:
            save_file({name: weight.contiguous() for name, weight in _own_weights(model).items()}, folder / "model.safetensors")
            torch.save(optimizer.state_dict(), folder / "optimizer.pt")
            (folder / "state.json").write_text(json.dumps(asdict(point), indent=1))

        for log in (self.metrics, self.timings):
            sync(log)
        write_folder(self._checkpoint(point.step), write, {"step": point.step, "run_key": self.run_key})
        for old in self._checkpoints()[keep:]:
            shutil.rmtree(old)

    def restore(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, last_step: int) -> ResumePoint:
        """Put the newest whole checkpoint into model and optimizer and cut all else back to it; the start when there is none.

        Raises ValueError, with everything kept, when it lies beyond `last_step`: it belongs to a longer run that was interrupted.
        A checkpoint that does not match its manifest is passed over with a warning that says which file and what is redone.
        """
        for folder in self._checkpoints():
            try:
                read_manifest(folder)
            except BrokenFolder as error:
                logger.warning("checkpoint %s is not used: %s; the steps after the one before it are redone", folder.name, error)
                continue
            state = json.loads((folder / "state.json").read_text())
            if state["step"] > last_step:
                raise ValueError(
                    f"{self.folder} holds an interrupted run up to step {state['step']}, grpo.steps is {last_step}: "
                    f"set grpo.steps to {state['step']} or more to go on with it, or delete that folder to start over"
                )
            weights = load_file(folder / "model.safetensors")
            model.load_state_dict(weights, strict=False)
            assert set(weights) == set(_own_weights(model))
            optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
            return self._cut_back(ResumePoint(state["step"], KlController(**state["controller"])))
        return self._cut_back(ResumePoint(0))

    def append(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """One line a step in both logs."""
        for path, numbers in ((self.metrics, metrics), (self.timings, timings)):
            with path.open("a") as stream:
                stream.write(json.dumps({"step": step, **numbers}) + "\n")

    def _cut_back(self, point: ResumePoint) -> ResumePoint:
        """Forget every checkpoint, row and line after `point`: those steps are done again. At the start nothing is kept.

        Checkpoints go first: one that outlived its rows would be resumed from, and a damaged one would count among those to keep.
        """
        for folder in self._checkpoints():
            if folder > self._checkpoint(point.step):
                shutil.rmtree(folder)
        for shards in (self.rollouts, self.rewards):
            shards.cut_back(point.step)
        last = point.step if point.step > 0 else -1
        for path in (self.metrics, self.timings):
            lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= last]
            write_text(path, "".join(kept))
        return point

    def _checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step-{step:06d}"

    def _checkpoints(self) -> list[Path]:
        """Newest first."""
        return sorted((self.folder / "checkpoints").glob("step-*"), reverse=True)


def _own_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state dict with tied weights once, under the first of their names."""
    weights: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, weight in model.state_dict().items():
        if weight.data_ptr() not in seen:
            seen.add(weight.data_ptr())
            weights[name] = weight
    return weights
