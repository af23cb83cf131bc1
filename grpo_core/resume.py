"""Training state in and out of a work folder: the newest whole checkpoint continues a run exactly where it was."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from grpo_core.checkpoint import unchecked_manifest
from grpo_core.work_folder import WorkFolder, checkpoints, damages, faults

__all__ = ["ResumePoint", "WorkFolder", "damages", "load", "restore", "save"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """What a checkpoint knows beside weights and optimizer. Random numbers are functions of the step: there is no state of theirs."""

    step: int
    """Last step that the checkpoint covers; 0 is the start."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """What else the training remembers, in JSON's types; empty at the start."""


def save(work: WorkFolder, point: ResumePoint, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, keep: int) -> None:
    """Write a checkpoint at `point`, whole or not at all, and forget all but the newest `keep`."""

    def write(folder: Path) -> None:
        save_file({name: weight.contiguous() for name, weight in _own_weights(model).items()}, folder / "model.safetensors")
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        (folder / "state.json").write_text(json.dumps(asdict(point), indent=1))

    work.save(point.step, write, keep=keep)


def restore(work: WorkFolder, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, last_step: int) -> ResumePoint:
    """Put the newest whole checkpoint into model and optimizer and cut all else back to it; the start when there is none.

    Raises ValueError, with everything kept, when it lies beyond `last_step`: it belongs to a longer run that was interrupted.
    A checkpoint that is not whole, or whose rows are not, is passed over with a warning that says which file and what is redone,
    and moved to `damaged/` in the work folder.
    """
    broken: dict[str, list[str]] = {}
    chosen = None
    for checkpoint in checkpoints(work.folder):
        found = faults(work.folder, checkpoint)
        if not found:
            chosen = checkpoint
            break
        broken[checkpoint.name] = found
    manifest = None if chosen is None else unchecked_manifest(chosen)
    step = 0 if manifest is None else int(manifest["step"])
    for name, (first, *others) in broken.items():
        more = f" (and {len(others)} more)" if others else ""
        logger.warning("checkpoint %s is not used: %s%s; the work from step %d on is redone", name, first, more, step + 1)
    if step > last_step:
        raise ValueError(
            f"{work.folder} holds an interrupted run up to step {step}, steps is {last_step}: "
            f"set steps to {step} or more to go on with it, or delete that folder to start over"
        )
    point = ResumePoint(0) if chosen is None else load(chosen, model, optimizer)
    work.cut_back(manifest)
    return point


def load(checkpoint: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> ResumePoint:
    """Put a checkpoint into model and optimizer; nothing on disk changes."""
    weights = load_file(checkpoint / "model.safetensors")
    model.load_state_dict(weights, strict=False)
    assert set(weights) == set(_own_weights(model))
    optimizer.load_state_dict(torch.load(checkpoint / "optimizer.pt", map_location="cpu", weights_only=True))
    return ResumePoint(**json.loads((checkpoint / "state.json").read_text()))


def _own_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state dict with tied weights once, under the first of their names."""
    weights: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, weight in model.state_dict().items():
        if weight.data_ptr() not in seen:
            seen.add(weight.data_ptr())
            weights[name] = weight
    return weights
