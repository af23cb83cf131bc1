"""Health within the loop: every step is shown to the monitors, and what they say is acted on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_core.checkpoint import write_text
from grpo_core.config import RunConfig
from grpo_core.errors import DivergedError, Halted
from grpo_core.health.halt import halted
from grpo_core.health.logged import halts_record
from grpo_core.health.measures import Found
from grpo_core.health.monitor import Alarm, Monitor, alarm_of, alarms_json, diagnose
from grpo_core.health.rows import rows_of
from grpo_core.trainer import StepResult, Trainer
from grpo_core.work_folder import WorkFolder


@dataclass(slots=True)
class Health:
    """The two monitors of a run and who hears of their alarms."""

    work: WorkFolder
    monitor: Monitor
    clock: Monitor
    on_alarm: Callable[[Alarm], None]

    @classmethod
    def of(cls, work: WorkFolder, config: RunConfig, on_alarm: Callable[[Alarm], None]) -> "Health":
        """Monitors that have seen all that the work folder logs: their memory is the log, so a resumed run goes on with it."""
        return cls(work, diagnose(work.lines(), Monitor.of(config)), diagnose(work.clock_lines(), Monitor.of_clock(config)), on_alarm)

    def watch(self, trainer: Trainer, step: int, result: StepResult, timings: dict[str, float]) -> None:
        """Look at the step just done, before it is kept. Raises Halted where that is what an alarm asks for."""
        raised = self.monitor.observe(step, result.metrics) + self.clock.observe(step, timings)
        told = [replace(alarm, rows=rows_of(alarm, result.rollouts, result.rewards)) for alarm in raised]
        for alarm in told:
            self.on_alarm(alarm)
        holding = [alarm for alarm in self.monitor.alarms if alarm.action == "halt" and alarm.open and alarm.last_step == step]
        if holding:
            rows = [replace(alarm, rows=rows_of(alarm, result.rollouts, result.rewards)) for alarm in holding]
            raise halted(self.work, rows, step, result.rollouts, result.rewards)
        adjust(trainer, told)

    def diverged(self, step: int, error: DivergedError) -> Halted:
        """What to raise for a step that could not be done: the weights before it are those of the newest checkpoint."""
        alarm = replace(alarm_of(error.condition, step, Found(str(error)), self.monitor.settings), action="halt")
        self.on_alarm(alarm)
        return halted(self.work, [alarm], step, error.rollouts, None)


def adjust(trainer: Trainer, alarms: Iterable[Alarm]) -> None:
    """Put in place, for the steps to come, what these alarms adjust."""
    for alarm in alarms:
        if alarm.adjustment:
            trainer.max_grad_norm = alarm.adjustment["max_grad_norm"]
            trainer.controller = replace(trainer.controller, beta=max(trainer.controller.beta, alarm.adjustment["beta"]))


def write_alarms(work: WorkFolder, config: RunConfig, path: Path, clock_path: Path) -> None:
    """The alarms of the whole log, with the rows that show them; those of the clock apart, as they differ from run to run, and so do halts that came before."""
    _write(path, work, config, diagnose(work.lines(), Monitor.of(config)))
    _write(clock_path, work, config, diagnose(work.clock_lines(), Monitor.of_clock(config)), halts=halts_record(work.folder))


def _write(path: Path, work: WorkFolder, config: RunConfig, seen: Monitor, **more: Any) -> None:
    alarms = [replace(alarm, rows=rows_of(alarm, *(work.rows(kind, alarm.first_step) for kind in ("rollouts", "rewards")))) for alarm in seen.alarms]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, alarms_json(alarms, config.grpo.steps, **more))
