"""The monitor: a fold over the log of metrics that opens, extends and closes alarms. It moves nothing: the loop acts on what it says."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from grpo_core.config import HealthAction, HealthConfig, RunConfig
from grpo_core.health.adjustment import adjustment
from grpo_core.health.conditions import CONDITIONS, EXPLAINS, page_of
from grpo_core.health.history import History
from grpo_core.health.measures import Facts, Found
from grpo_core.health.rules import CLOCK_RULES, RULES, Rule
from grpo_core.rewards.registry import full_marks, reward_range

REOPENS = 2
"""Windows within which a closed alarm is opened again when its condition comes back; later it is raised anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """A condition over the steps in which it held."""

    condition: str
    severity: str
    first_step: int
    last_step: int
    open: bool
    """It holds at the end, or is of the kind that stays open; never when it is acknowledged."""
    message: str
    """What was seen when it was raised."""
    evidence: Mapping[str, float]
    """The metrics of that step that say so."""
    action: HealthAction
    remedy: str
    page: str
    since: int
    """The last step before trouble began."""
    adjustment: Mapping[str, float] = field(default_factory=dict)
    """Setting → its value from the next step on, where `adjust` changed it."""
    rows: Sequence[Mapping[str, Any]] = ()
    """Completions of that step that show it best (rows.py)."""
    acknowledged: str | None = None
    """Why it is accepted, by the user."""


@dataclass(slots=True)
class Monitor:
    """Alarms of a run, as its steps come in. `rules` are those over the metrics, or those over the clock."""

    settings: HealthConfig
    facts: Facts
    rules: Mapping[str, Rule]
    history: History = field(default_factory=History)
    alarms: list[Alarm] = field(default_factory=list)
    """In the order in which they were raised."""

    @classmethod
    def of(cls, config: RunConfig) -> "Monitor":
        """The monitor of the metrics: what it says is a function of metrics.jsonl and the configuration."""
        return cls(config.health, facts_of(config), RULES)

    @classmethod
    def of_clock(cls, config: RunConfig) -> "Monitor":
        """The monitor of the timings: what it says differs from run to run, and is kept apart from all that is hashed."""
        return cls(config.health, facts_of(config), CLOCK_RULES)

    def observe(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """Take in a step; the alarms that it raises. Step 0 (before training) raises none."""
        self.history.append(step, metrics)
        found = {name: rule(self.history, self.settings, self.facts) for name, rule in self.rules.items()} if step > 0 else {}
        raised: list[Alarm] = []
        for name, seen in found.items():
            if seen is None:
                continue
            place = next((place for place, alarm in enumerate(self.alarms) if alarm.condition == name and self._is_back(alarm)), None)
            if place is not None:
                self.alarms[place] = replace(self.alarms[place], last_step=step)
            elif not self._is_explained(name):
                self.alarms.append(self._alarm(name, seen, metrics))
                raised.append(self.alarms[-1])
        self.alarms = [self._aged(alarm) for alarm in self.alarms]
        return raised

    @property
    def open_alarms(self) -> list[Alarm]:
        return [alarm for alarm in self.alarms if alarm.open]

    def _is_current(self, alarm: Alarm) -> bool:
        """It held not long ago, so that the same condition goes on with it."""
        return self.history.step - alarm.last_step <= self.settings.patience

    def _is_back(self, alarm: Alarm) -> bool:
        """The same condition now is this alarm's, opened again: it is not raised anew while it comes and goes."""
        return self.history.step - alarm.last_step <= REOPENS * self.settings.window or CONDITIONS[alarm.condition].stays_open

    def _is_explained(self, condition: str) -> bool:
        """Another alarm leads to it: one no less grave, and never where the user wants something done about this one."""
        if self.settings.actions.get(condition, "warn") != "warn":
            return False
        return any(condition in EXPLAINS.get(alarm.condition, ()) and self._is_current(alarm) and self._is_as_grave(alarm, condition) for alarm in self.alarms)

    def _is_as_grave(self, alarm: Alarm, condition: str) -> bool:
        return alarm.severity == "alarm" or CONDITIONS[condition].severity == "warning"

    def _aged(self, alarm: Alarm) -> Alarm:
        """Closed once the condition is gone for more steps than `patience`."""
        lasts = self._is_current(alarm) or CONDITIONS[alarm.condition].stays_open
        return replace(alarm, open=lasts and alarm.acknowledged is None)

    def _alarm(self, name: str, seen: Found, metrics: Mapping[str, float]) -> Alarm:
        alarm = alarm_of(name, self.history.step, seen, self.settings)
        return replace(alarm, adjustment=adjustment(metrics)) if alarm.action == "adjust" else alarm


def facts_of(config: RunConfig) -> Facts:
    """What the rules must know of a run beside its metrics."""
    drawn = config.grpo.prompts_per_step * config.grpo.group_size
    return Facts(full_marks=full_marks(config.rewards), reward_range=reward_range(config.rewards), batch_size=drawn, dtype=config.model.dtype)


def alarm_of(name: str, step: int, seen: Found, settings: HealthConfig) -> Alarm:
    """The alarm that `seen` raises at `step`."""
    condition, reason = CONDITIONS[name], settings.acknowledged.get(name)
    return Alarm(
        condition=name,
        severity=condition.severity,
        first_step=step,
        last_step=step,
        open=reason is None,
        message=seen.message,
        evidence=seen.evidence,
        action="warn" if reason is not None else settings.actions.get(name, condition.action),
        remedy=condition.remedy,
        page=page_of(name),
        since=max(0, step - 1 if seen.since is None else seen.since),
        acknowledged=reason,
    )


def diagnose(lines: Iterable[Mapping[str, float]], monitor: Monitor) -> Monitor:
    """`monitor` after every line of a log, in its order."""
    for line in lines:
        monitor.observe(int(line["step"]), {name: value for name, value in line.items() if name != "step"})
    return monitor


def alarms_json(alarms: Sequence[Alarm], num_steps: int, **more: Any) -> str:
    """The alarms (and what else is said of the run) as the file that pages, reports and the promotion gate read."""
    facts = {"num_steps": num_steps, "num_open": sum(alarm.open for alarm in alarms), **more}
    return json.dumps({**facts, "alarms": [asdict(alarm) for alarm in alarms]}, indent=1) + "\n"
