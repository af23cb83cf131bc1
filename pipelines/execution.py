"""Runs a job in this process and tells a person at the terminal how it goes; Dagster keeps the same record as of a run from its UI."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

import dagster as dg
from dagster._core.events import StepFailureData
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.tags import REPOSITORY_LABEL_TAG
from dagster._core.utils import make_new_run_id

from pipelines.checks import CONTRACT, PROMOTION
from pipelines.dead_runs import host_tags, release_dead_runs, runs_at_work
from pipelines.launcher import EXIT_STATUS
from pipelines.pages import OUTCOME
from pipelines.processes import terminal_for_stages
from pipelines.stage_assets import POOL

RUN_CONFIG = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
"""Dagster's own lines would drown the progress bars; they are in the UI, and `narrate` prints what matters."""
CODE_LOCATION = "__repository__@pipelines.definitions"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run of the lifecycle ended."""

    success: bool
    """All of it succeeded."""
    done: frozenset[str]
    """Stages that succeeded, whatever became of others."""
    interrupted: bool = False
    """Somebody asked it to stop."""


def run_in_process(job: dg.JobDefinition, experiment: str, instance: dg.DagsterInstance) -> Outcome:
    """Run `job` for one experiment, its stages' start, end and errors told on stderr."""
    # Dagster shows a run's output through `tail`, which would be stopped before it has read the last lines.
    os.environ.setdefault("DAGSTER_COMPUTE_LOG_TAIL_WAIT_AFTER_FINISH", "0.5")
    make_way(instance)
    run_id = make_new_run_id()
    instance.add_event_listener(run_id, narrate(sys.stderr))
    with terminal_for_stages():
        result = job.execute_in_process(
            run_config=RUN_CONFIG,
            instance=instance,
            partition_key=experiment if job.partitions_def else None,
            run_id=run_id,
            tags={REPOSITORY_LABEL_TAG: CODE_LOCATION, **host_tags()},
            raise_on_error=False,
        )
    done = frozenset(event.step_key for event in result.get_step_success_events() if event.step_key)
    failures = [event.step_failure_data for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_FAILURE]
    told = [failure.user_failure_data.description or "" for failure in failures if failure.user_failure_data is not None]
    return Outcome(result.success, done, interrupted=any(text.startswith("interrupted") for text in told))


def make_way(instance: dg.DagsterInstance) -> None:
    """Free what dead runs hold, and say so when a living one must be waited for: Dagster would wait without a word."""
    release_dead_runs(instance, POOL)
    for run_id in runs_at_work(instance, POOL):
        print(f"waiting for run {run_id[:8]}, which is at work (see `grpo ui`); Ctrl-C gives up", file=sys.stderr, flush=True)


def narrate(stream: TextIO) -> Callable[[EventLogEntry], None]:
    """A listener that prints one line when a stage starts, one when it ends, and why it failed unless the stage has said so itself."""
    started: dict[str, float] = {}
    outcomes: dict[str, str] = {}

    def listen(entry: EventLogEntry) -> None:
        event = entry.dagster_event
        if event is None or event.step_key is None:
            return
        name, kind = event.step_key, event.event_type
        seconds = entry.timestamp - started.get(name, entry.timestamp)
        text = None
        if kind is dg.DagsterEventType.STEP_START:
            started[name] = entry.timestamp
            text = f"── {name}"
        elif kind is dg.DagsterEventType.ASSET_MATERIALIZATION:
            outcomes[name] = str(event.step_materialization_data.materialization.metadata[OUTCOME].value)
        elif kind is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            text = warning_text(event.asset_check_evaluation_data)
        elif kind is dg.DagsterEventType.STEP_SUCCESS:
            text = f"   {name}: {outcomes.get(name, 'done')} ({seconds:.1f} s)"
        elif kind is dg.DagsterEventType.STEP_FAILURE:
            text = "\n".join([f"   {name} failed after {seconds:.1f} s", *untold(event.step_failure_data)])
        if text is not None:
            print(text, file=stream, flush=True)

    return listen


def warning_text(evaluation: dg.AssetCheckEvaluation) -> str | None:
    """What to say of a check; a violated contract is also the text of the failure that follows it."""
    if evaluation.passed or evaluation.check_name == CONTRACT:
        return None
    if evaluation.asset_key.to_user_string() == PROMOTION:
        return f"   gate, {evaluation.check_name}: {evaluation.description}"  # a policy that is not promoted is no trouble
    return f"   warning: {evaluation.asset_key.to_user_string()} is not {evaluation.check_name}: {evaluation.description}"


def untold(failure: StepFailureData) -> list[str]:
    """Why a step failed, unless its stage wrote that to stderr."""
    told = failure.user_failure_data
    if told is None:
        return [failure.error_display_string.strip()]
    return [] if EXIT_STATUS in told.metadata else [told.description or ""]
