"""The loop of GRPO: steps, one after the other, every row kept, so that a run stopped anywhere continues as if it had never stopped.

Everything a step needs is a function of (configuration, step) or stands in the newest checkpoint. Nothing here knows who watches:
`on_step` hears of every step.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpo_core.checkpoint import file_sha256, folder_digest, write_folder
from grpo_core.config import RunConfig, section_values
from grpo_core.errors import Interrupted
from grpo_core.models import policy_digest, save_model
from grpo_core.resume import ResumePoint, WorkFolder
from grpo_core.rewards import code_hash
from grpo_core.trainer import StepResult, Trainer, evaluate_select, start_trainer, train_step

SECTIONS_READ = ("model", "rollout", "rewards", "grpo")
"""Sections of the configuration that training reads."""


@dataclass(frozen=True, slots=True)
class Files:
    """What training reads and where it writes."""

    prompts: Path
    start: Path
    """Checkpoint folder that the policy starts from."""
    reference: Path
    """Checkpoint folder of its frozen copy."""
    rollouts: Path
    rewards: Path
    checkpoint: Path
    """Folder of the trained policy, with metrics.jsonl."""
    timings: Path
    """Wall-clock figures a step (JSON lines), apart from everything that is hashed."""
    work: Path
    """Folder of resume state, outside the outputs; every run has a folder of its key in it."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What `on_step` hears after each step; step 0 is the evaluation before training."""

    step: int
    metrics: dict[str, float]
    timings: dict[str, float]
    """Wall-clock figures: `timestamp_ms`, `seconds`, `tokens_per_second`, `seconds/<phase>`."""
    checkpointed: bool
    """A checkpoint on disk covers this step and all before it."""


def train(files: Files, config: RunConfig, *, on_step: Callable[[StepReport], None], should_stop: Callable[[], bool] = lambda: False) -> None:
    """Train the policy at `files.start` for `config.grpo.steps` rollout batches and write rollouts, rewards and checkpoint.

    A run that was interrupted continues from its newest checkpoint. Raises Interrupted (a checkpoint is written first) when
    `should_stop` says so, DivergedError before a number that is not finite reaches the weights, RewardError when a reward
    function misbehaves.
    """
    trainer = start_trainer(files.prompts, files.start, files.reference, config)
    settings = config.grpo
    key = run_key(files, config)
    with WorkFolder.open(files.work / key, key) as work:
        point = work.restore(trainer.policy.model, trainer.optimizer, last_step=settings.steps)
        trainer.controller = point.controller or trainer.controller
        if point.step == 0:
            _keep_start(trainer, work, on_step)
        for step in range(point.step + 1, settings.steps + 1):
            started = time.perf_counter()
            result = train_step(trainer, step)
            if settings.eval_every and step % settings.eval_every == 0:
                result.metrics.update(evaluate_select(trainer))
            timings = step_timings(trainer, result, time.perf_counter() - started)
            _keep(work, step, result, timings)
            stop = should_stop() and step < settings.steps
            due = stop or step == settings.steps or step % settings.checkpoint_every == 0
            if due:
                work.save(ResumePoint(step, trainer.controller), trainer.policy.model, trainer.optimizer, keep=settings.keep_checkpoints)
            on_step(StepReport(step, result.metrics, timings, checkpointed=due))
            if stop:
                raise Interrupted(step)
        write_outputs(trainer, files, work, config)


def run_key(files: Files, config: RunConfig) -> str:
    """16 hex digits that name a run: its configuration, inputs and code (all of grpo_core and the reward functions).

    How long it runs and how often it is saved are left out: they change no step.
    """
    sections = {name: section_values(config, name) for name in SECTIONS_READ}
    for key in ("steps", "checkpoint_every", "keep_checkpoints"):
        del sections["grpo"][key]
    inputs = [file_sha256(files.prompts), folder_digest(files.start), folder_digest(files.reference)]
    code = [file_sha256(path) for path in sorted(Path(__file__).parent.rglob("*.py"))]
    parts = [json.dumps(sections, sort_keys=True), *inputs, *code, code_hash(list(config.rewards))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def step_timings(trainer: Trainer, result: StepResult, seconds: float) -> dict[str, float]:
    """Wall-clock figures of the step just done."""
    phases = {f"seconds/{phase}": value for phase, value in trainer.seconds.items()}
    return {"timestamp_ms": _now_ms(), "seconds": seconds, "tokens_per_second": result.metrics["tokens"] / seconds, **phases}


def write_outputs(trainer: Trainer, files: Files, work: WorkFolder, config: RunConfig) -> None:
    """Copy what the run leaves out of the work folder: both tables, timings, and the checkpoint with its metrics and manifest."""
    work.rollouts.join(config.grpo.steps, files.rollouts)
    work.rewards.join(config.grpo.steps, files.rewards)
    files.timings.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(work.timings, files.timings)

    def write(folder: Path) -> None:
        save_model(trainer.policy, folder)
        shutil.copyfile(work.metrics, folder / "metrics.jsonl")

    facts = {
        "noun": "grpo_checkpoint",
        "run_key": work.run_key,
        "step": config.grpo.steps,
        "config": {name: section_values(config, name) for name in SECTIONS_READ},
        "policy_digest": policy_digest(trainer.policy.model),
        "parents": {"prompts": file_sha256(files.prompts), "start": folder_digest(files.start), "reference": folder_digest(files.reference)},
        "reward_code_hash": trainer.reward_code_hash,
    }
    write_folder(files.checkpoint, write, facts)


def _keep_start(trainer: Trainer, work: WorkFolder, on_step: Callable[[StepReport], None]) -> None:
    """How the policy does before any training: the curves' first point."""
    metrics = evaluate_select(trainer) if trainer.config.grpo.eval_every else {}
    timings: dict[str, float] = {"timestamp_ms": _now_ms()}
    work.append(0, metrics, timings)
    on_step(StepReport(0, metrics, timings, checkpointed=False))


def _keep(work: WorkFolder, step: int, result: StepResult, timings: dict[str, float]) -> None:
    work.rollouts.write(step, result.rollouts)
    work.rewards.write(step, result.rewards)
    work.append(step, result.metrics, timings)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
