"""Ending a run that is not well: the bad batch is kept for a person to look at, and the work folder goes back to before the trouble."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from grpo_core.checkpoint import unchecked_manifest, write_text
from grpo_core.errors import Halted
from grpo_core.health.monitor import Alarm, alarms_json
from grpo_core.tables import write_table
from grpo_core.work_folder import WorkFolder, checkpoints, faults, step_of

WEIGHTS = "model.safetensors"


def halted(work: WorkFolder, alarms: Sequence[Alarm], step: int, rollouts: pl.DataFrame | None, rewards: pl.DataFrame | None) -> Halted:
    """Keep the batch of this step in `halted/`, go back to the newest whole checkpoint from before the trouble; says all of it.

    Of several alarms the one whose trouble began first decides how far.
    """
    alarm = min(alarms, key=lambda alarm: alarm.since)
    place = work.folder / "halted" / f"step-{step:06d}"
    for name, rows in (("rollouts", rollouts), ("rewards", rewards)):
        if rows is not None:
            write_table(place / f"{name}.parquet", rows)
    place.mkdir(parents=True, exist_ok=True)
    write_text(place / "alarms.json", alarms_json(alarms, step))
    chosen = last_healthy(work.folder, alarm)
    back = _roll_back(work, chosen, alarm)
    # A batch without rewards could not be learned from at all: accepting that would change nothing.
    accept = f", or accept it: health.acknowledged.{alarm.condition}: <why>" if rewards is not None else ""
    return Halted(
        f"halted at step {step}, {alarm.condition}: {alarm.message}\n  what to do: {alarm.remedy} ({alarm.page})\n  {back}\n  the batch lies in {place}{accept}"
    )


def last_healthy(folder: Path, alarm: Alarm) -> Path | None:
    """The newest whole checkpoint from before the trouble began; where none so old is kept, the oldest one from before it was seen."""
    whole = [checkpoint for checkpoint in checkpoints(folder) if not faults(folder, checkpoint)]
    before = [checkpoint for checkpoint in whole if step_of(checkpoint) <= alarm.since] or [c for c in reversed(whole) if step_of(c) < alarm.first_step]
    return before[0] if before else None


def _roll_back(work: WorkFolder, checkpoint: Path | None, alarm: Alarm) -> str:
    """Cut the folder back to the checkpoint (to the start without one) and say where it stands now."""
    work.cut_back(None if checkpoint is None else unchecked_manifest(checkpoint))
    if checkpoint is None:
        return "no checkpoint is older than the trouble: the same command starts anew"
    step, sha256 = step_of(checkpoint), unchecked_manifest(checkpoint)["files"][WEIGHTS]
    kept = f", the oldest that is kept, though trouble began after step {alarm.since} (grpo.keep_checkpoints)" if step > alarm.since else ""
    return (
        f"rolled back to the checkpoint of step {step} ({WEIGHTS} sha256 {sha256}){kept}: grpo.steps {step} makes it the result, "
        "the same command tries again from there (the same halt, unless its cause was outside of the run)"
    )
