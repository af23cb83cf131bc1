"""The loop of GRPO: steps, one after the other, every row kept, so that a run stopped anywhere continues as if it had never stopped.

Everything a step needs is a function of (configuration, step) or stands in the newest checkpoint. Nothing here knows who watches:
`on_step` hears of every step.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from grpo_core.battery import try_exploits
from grpo_core.checkpoint import file_sha256, folder_digest, write_folder
from grpo_core.config import ModelConfig, RunConfig
from grpo_core.errors import DivergedError, Interrupted
from grpo_core.evaluation import scoring_functions
from grpo_core.exploits import findings, notes, require_acknowledged, require_working
from grpo_core.health.adjustment import changes_steps
from grpo_core.health.health import Health, write_alarms
from grpo_core.health.monitor import Alarm
from grpo_core.models import arithmetic, policy_digest, save_model, source_of
from grpo_core.resume import ResumePoint, restore, save
from grpo_core.rewards.registry import code_hash, code_hashes
from grpo_core.step_metrics import select_metrics
from grpo_core.tables import no_answers
from grpo_core.trainer import StepResult, Trainer, evaluate_select, start_trainer, train_step
from grpo_core.work_folder import WorkFolder, code_digest, key_of, lasting_values

logger = logging.getLogger(__name__)

SECTIONS_READ = ("model", "rollout", "rewards", "reward_options", "scoring", "grpo")
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
    select: Path
    """Completions of the evaluations on the `select` split."""
    rewards: Path
    exploits: Path
    """What the exploit battery tried before the first step, and what it earned."""
    alarms: Path
    """What the health monitor said (JSON)."""
    checkpoint: Path
    """Folder of the trained policy, with metrics.jsonl."""
    timings: Path
    """Wall-clock figures a step (JSON lines), apart from everything that is hashed."""
    clock_alarms: Path
    """What the health monitor said of those (JSON)."""
    work: Path
    """This run's own folder of resume state, outside the outputs; its name is the run's key."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What `on_step` hears after each step; step 0 is the evaluation before training."""

    step: int
    metrics: dict[str, float]
    timings: dict[str, float]
    """Wall-clock figures: `timestamp_ms`, `seconds` (of the step and its evaluation), `tokens_per_second`, `seconds/<phase>`. Writing comes
    after them, so `seconds/rows` and `seconds/checkpoint` are what the step before took to write its rows and its checkpoint."""
    checkpointed: bool
    """A checkpoint on disk covers this step and all before it."""


def train(
    files: Files,
    config: RunConfig,
    *,
    on_step: Callable[[StepReport], None],
    should_stop: Callable[[], bool] = lambda: False,
    on_exploit: Callable[[int, int], None] = lambda tried, of: None,
    on_alarm: Callable[[Alarm], None] = lambda alarm: None,
) -> None:
    """Train the policy at `files.start` for `config.grpo.steps` rollout batches and write rollouts, rewards and checkpoint.

    A run that was interrupted continues from its newest checkpoint. Raises ExploitError when an exploit earns too much (`on_exploit` hears
    how many of how many were tried), before anything is trained; Interrupted (a checkpoint is written first) when
    `should_stop` says so, Halted when the health monitor ends it (before a number that is not finite reaches the weights, for one),
    RewardError when a reward function misbehaves. `on_alarm` hears of every alarm when it is raised.
    """
    trainer = start_trainer(files.prompts, files.start, files.reference, config)
    settings = config.grpo
    with WorkFolder.open(files.work) as work:
        point = restore(work, trainer.policy.model, trainer.optimizer, last_step=settings.steps)
        trainer.take_state(point.state)
        if point.step == 0:
            _keep_exploits(trainer, work, on_exploit)
        check_exploits(work.rows("exploits", 0), config)
        if point.step == 0:
            _keep_start(trainer, work, on_step)
        health = Health.of(work, config, on_alarm)
        writing: dict[str, float] = {}
        for step in range(point.step + 1, settings.steps + 1):
            started = time.perf_counter()
            try:
                result = train_step(trainer, step)
            except DivergedError as error:
                raise health.diverged(step, error) from error
            selected = evaluate_select(trainer, step) if is_evaluated(step, config) else None
            result.metrics.update(select_metrics(selected))
            timings = step_timings(trainer, result, time.perf_counter() - started) | writing
            health.watch(trainer, step, result, timings)
            stop = should_stop() and step < settings.steps
            due = stop or step == settings.steps or step % settings.checkpoint_every == 0
            writing = _keep(trainer, work, step, result, selected, timings, checkpoint=due)
            on_step(StepReport(step, result.metrics, timings, checkpointed=due))
            if stop:
                raise Interrupted(step)
        with work.explaining():
            write_outputs(trainer, files, work, config)


def check_exploits(table: pl.DataFrame, config: RunConfig) -> None:
    """Raise ExploitError unless everything that earns too much is acknowledged; a run that goes on is asked again, as that may have changed."""
    require_working(table, config.rewards)
    found = findings(table, config.rewards, config.scoring)
    require_acknowledged(found, config.scoring)
    for note in notes(found, config.scoring):
        logger.warning(note)


def is_evaluated(step: int, config: RunConfig) -> bool:
    """Whether the policy after `step` answers the `select` prompts; step 0 is before training."""
    return config.grpo.eval_every > 0 and step % config.grpo.eval_every == 0


def run_key(files: Files, config: RunConfig) -> str:
    """16 hex digits that name a run: its configuration, inputs, code (grpo_core, the reward functions, the select metric) and arithmetic, and reward models.

    How long it runs and how often it is saved are left out: they change no step.
    """
    sections = {name: lasting_values(config, name) for name in SECTIONS_READ} | {"health": changes_steps(config)}
    del sections["grpo"]["steps"]
    inputs = [file_sha256(files.prompts), folder_digest(files.start), folder_digest(files.reference)]
    code = [code_digest(), code_hash(list(config.rewards)), code_hash([config.grpo.select_metric]), *reward_models(config)]
    return key_of(json.dumps(sections, sort_keys=True), *inputs, *code, *arithmetic(config.model.device))


def reward_models(config: RunConfig) -> list[str]:
    """What pins the weights of the learned reward model, if the run asks one."""
    path = config.reward_options.get("reward_model", {}).get("path")
    return [] if path is None else [source_of(ModelConfig(path=str(path)))]


def step_timings(trainer: Trainer, result: StepResult, seconds: float) -> dict[str, float]:
    """Wall-clock figures of the step just done."""
    phases = {f"seconds/{phase}": value for phase, value in trainer.seconds.items()}
    return {"timestamp_ms": _now_ms(), "seconds": seconds, "tokens_per_second": result.metrics["tokens"] / seconds, **phases}


def write_outputs(trainer: Trainer, files: Files, work: WorkFolder, config: RunConfig) -> None:
    """Copy what the run leaves out of the work folder: the tables, timings, and the checkpoint with its metrics and manifest."""
    steps = range(1, config.grpo.steps + 1)
    work.join("rollouts", steps, files.rollouts)
    work.join("rewards", steps, files.rewards)
    work.join("exploits", [0], files.exploits)
    write_alarms(work, config, files.alarms, files.clock_alarms)
    selected = [step for step in (0, *steps) if is_evaluated(step, config) and not trainer.select_prompts.is_empty()]
    work.join("select", selected, files.select, no_answers(scoring_functions(config.rewards, config.grpo.select_metric)))
    files.timings.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(work.timings, files.timings)

    def write(folder: Path) -> None:
        save_model(trainer.policy, folder)
        shutil.copyfile(work.metrics, folder / "metrics.jsonl")

    facts = {
        "noun": "grpo_checkpoint",
        "run_key": work.key,
        "step": config.grpo.steps,
        "config": {name: lasting_values(config, name) for name in SECTIONS_READ} | {"health": changes_steps(config)},
        "policy_digest": policy_digest(trainer.policy.model),
        "parents": {"prompts": file_sha256(files.prompts), "start": folder_digest(files.start), "reference": folder_digest(files.reference)},
        "reward_code_hash": trainer.reward_code_hash,
        "reward_code_hashes": code_hashes(list(config.rewards)),
        "reward_models": reward_models(config),
    }
    write_folder(files.checkpoint, write, facts)


def _keep_exploits(trainer: Trainer, work: WorkFolder, on_exploit: Callable[[int, int], None]) -> None:
    """What the rewards pay for exploits, tried before they can teach them."""
    table = try_exploits(trainer.train_prompts, trainer.config, trainer.policy.tokenizer, on_exploit)
    with work.explaining():
        work.keep("exploits", 0, table)


def _keep_start(trainer: Trainer, work: WorkFolder, on_step: Callable[[StepReport], None]) -> None:
    """How the policy does before any training: the curves' first point."""
    selected = evaluate_select(trainer, 0) if is_evaluated(0, trainer.config) else None
    metrics = select_metrics(selected)
    timings: dict[str, float] = {"timestamp_ms": _now_ms()}
    with work.explaining():
        if selected is not None:
            work.keep("select", 0, selected)
        work.append(0, metrics, timings)
    on_step(StepReport(0, metrics, timings, checkpointed=False))


def _keep(
    trainer: Trainer, work: WorkFolder, step: int, result: StepResult, selected: pl.DataFrame | None, timings: dict[str, float], *, checkpoint: bool
) -> dict[str, float]:
    """Write the step's rows and lines, and a checkpoint when asked for; the seconds that each took, for the next step's timings."""
    started = time.perf_counter()
    with work.explaining():
        work.keep("rollouts", step, result.rollouts)
        work.keep("rewards", step, result.rewards)
        if selected is not None:
            work.keep("select", step, selected)
        work.append(step, result.metrics, timings)
        rows_done = time.perf_counter()
        if not checkpoint:
            return {"seconds/rows": rows_done - started}
        save(work, ResumePoint(step, trainer.state), trainer.policy.model, trainer.optimizer, keep=trainer.config.grpo.keep_checkpoints)
    return {"seconds/rows": rows_done - started, "seconds/checkpoint": time.perf_counter() - rows_done}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
