"""Runs a stage for Dagster: live progress while it works, a clean stop on cancel, and its own last words when it fails."""

import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
from dagster import PipesContextInjector, PipesMessageHandler, PipesMessageReader, PipesSession, PipesTempFileContextInjector
from dagster._core.errors import DagsterExecutionInterruptedError  # not exported
from dagster._core.pipes.context import build_external_execution_context_data  # not exported
from dagster_pipes import PipesDefaultMessageWriter, PipesParams

from pipelines.environment import environment
from pipelines.processes import RUN_ID, Group

GRACE_SECONDS = 90.0
"""A training step and a checkpoint must fit in here when a run is cancelled."""
SECONDS_BETWEEN_OBSERVATIONS = 5.0
SHOWN_LINES = 20
EXIT_STATUS = "exit status"
"""Metadata of a failure that the stage itself has told on stderr."""
INTERRUPTIONS = (DagsterExecutionInterruptedError, KeyboardInterrupt)
DVC_CHATTER = re.compile(
    r"didn't change, skipping|^(Generating|Updating) lock file|dvc push|^To (track|enable)|^\s+(git add|dvc config core.autostage)|are up to date\.$"
)
"""What DVC says on stdout that a person watching the lifecycle need not read."""


class ProgressReader(PipesMessageReader):
    """Follows the file that the stage writes its Pipes messages to. A torn or foreign line is passed over: progress is a courtesy."""

    @property
    def expected_writer_count(self) -> int:
        return 1

    @contextmanager
    def read_messages(self, handler: PipesMessageHandler) -> Iterator[PipesParams]:
        ended = threading.Event()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "messages"
            path.touch()
            thread = threading.Thread(target=self._follow, args=(path, handler, ended), daemon=True)
            thread.start()
            try:
                yield {PipesDefaultMessageWriter.FILE_PATH_KEY: str(path)}
            finally:
                ended.set()
                thread.join()

    def no_messages_debug_text(self) -> str:
        return "The stage was up to date, or ended before it could send any."

    @staticmethod
    def _follow(path: Path, handler: PipesMessageHandler, ended: threading.Event) -> None:
        pending = ""
        with path.open(encoding="utf-8", errors="replace") as messages:
            while True:
                last = ended.is_set()
                *lines, pending = (pending + messages.read()).split("\n")
                for line in lines:
                    _handle(handler, line)
                if last:
                    return
                time.sleep(0.05)


def _handle(handler: PipesMessageHandler, line: str) -> None:
    try:
        message = json.loads(line)
    except ValueError:
        return
    if isinstance(message, dict) and "method" in message:
        handler.handle_message(message)  # type: ignore[arg-type]


@contextmanager
def pipes_session(context: dg.OpExecutionContext) -> Iterator[PipesSession]:
    """Dagster's `open_pipes_session`, without its warning about a process that sends nothing: a stage that is up to date sends nothing."""
    data = build_external_execution_context_data(context, None)
    injector: PipesContextInjector = PipesTempFileContextInjector()
    handler = PipesMessageHandler(context, ProgressReader())
    with injector.inject_context(data) as injected, handler.handle_messages() as messages:
        yield PipesSession(context_data=data, message_handler=handler, context_injector_params=injected, message_reader_params=messages, context=context)


@dataclass
class Observations:
    """Turns the stage's progress messages into observations on the asset's page, one every few seconds and always the last."""

    context: dg.AssetExecutionContext
    session: PipesSession
    asset: str
    every: float
    _num_seen: int = 0
    _last: float = field(default_factory=lambda: float("-inf"))
    _newest: Mapping[str, Any] | None = None

    def report(self, *, final: bool = False) -> None:
        messages = self.session.get_custom_messages()
        news = [message for message in messages[self._num_seen :] if isinstance(message, dict) and message.get("kind") == "progress"]
        for notice in messages[self._num_seen :]:
            if isinstance(notice, dict) and notice.get("kind") == "notice":
                self._log({"step": int(notice.get("step", 0)), "health": str(notice.get("text", ""))}, self.asset)
        self._num_seen = len(messages)
        self._newest = news[-1] if news else self._newest
        if self._newest is None or (not final and time.monotonic() - self._last < self.every):
            return
        metadata = observed(self._newest)
        asset, self._newest, self._last = self._newest.get("asset", self.asset), None, time.monotonic()
        self._log(metadata, asset)

    def _log(self, metadata: Mapping[str, Any], asset: str) -> None:
        partition = self.context.partition_key if self.context.has_partition_key else None
        try:
            self.context.log_event(dg.AssetObservation(asset_key=asset, partition=partition, metadata=metadata))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the event log, hours of training must not end for it
            self.context.log.warning(f"progress could not be shown: {error}")


def observed(message: Mapping[str, Any]) -> dict[str, int | float]:
    """The numbers of a progress message, flat."""
    flat = {"step": message.get("step"), "total": message.get("total"), **message.get("numbers", {})}
    return {name: value for name, value in flat.items() if isinstance(value, int | float)}


def dvc_program() -> str:
    """The dvc that belongs to this interpreter. Raises `dg.Failure` when there is none: another one would run other code."""
    folder = str(Path(sys.executable).parent)
    program = shutil.which("dvc", path=folder)
    if program is None:
        raise dg.Failure(f"no dvc beside {sys.executable}: install the project into this environment (`make install`)", allow_retries=False)
    return program


def repro_command(*targets: str) -> list[str]:
    """Bring exactly these targets up to date, in this order."""
    return [dvc_program(), "repro", "--single-item", *targets]


def run_stage(
    context: dg.AssetExecutionContext,
    command: Sequence[str],
    root: Path,
    asset: str,
    *,
    grace_seconds: float = GRACE_SECONDS,
    observe_every: float = SECONDS_BETWEEN_OBSERVATIONS,
) -> bool:
    """Run `command` in `root` to its end; whether a stage did work (False: all was up to date, or came from DVC's cache).

    Progress appears on `asset`'s page. Raises `dg.Failure` with the stage's own error as description. When Dagster interrupts,
    the stage is asked to stop and everything it started has ended before the failure is raised, which forbids a retry.
    """
    with pipes_session(context.op_execution_context) as session:
        env = {**environment(root, os.environ), **session.get_bootstrap_env_vars(), RUN_ID: context.run.run_id}
        group = Group(command, cwd=root, env=env, dropped=DVC_CHATTER)
        observations = Observations(context, session, asset, observe_every)
        try:
            while (status := group.poll()) is None:
                time.sleep(0.1)
                observations.report()
        except INTERRUPTIONS as interruption:
            context.log.info("interrupted: asking the stage to stop, then waiting for all its processes")
            _stop(group, grace_seconds)
            raise dg.Failure(_interrupted(group.close()), metadata={EXIT_STATUS: group.poll()}, allow_retries=False) from interruption
        except BaseException:
            _stop(group, grace_seconds)
            group.close()
            raise
        errors = group.close()
    observations.report(final=True)
    if status != 0:
        stopped = any(line.startswith("interrupted:") for line in errors)
        raise dg.Failure(error_text(errors, status), metadata={EXIT_STATUS: status}, allow_retries=not stopped)
    return session.message_handler.received_opened_message


def _stop(group: Group, grace_seconds: float) -> None:
    """Stop the group whatever comes between: an impatient second Ctrl-C must not leave its processes behind."""
    stopping = threading.Thread(target=group.stop, args=(grace_seconds,))
    stopping.start()
    while stopping.is_alive():
        with suppress(*INTERRUPTIONS):
            stopping.join(0.2)


def error_text(errors: Sequence[str], status: int) -> str:
    """The stage's own `error: ...` message when it gave one, else the last lines it wrote to stderr."""
    told = [index for index, line in enumerate(errors) if line.startswith(("error:", "interrupted:"))]
    if told:
        message = list(errors[told[-1] :])
        ends = [index for index, line in enumerate(message) if line.startswith("ERROR: ")]  # DVC's own, after the stage's
        return "\n".join(message[: ends[0]] if ends else message).strip()
    lines = [line for line in errors if line.strip()][-SHOWN_LINES:]
    return "\n".join(lines) if lines else f"the stage ended with status {status} and said nothing on stderr"


def _interrupted(errors: Sequence[str]) -> str:
    """What the stage said about its checkpoint, else that it was stopped."""
    said = [line for line in errors if line.startswith("interrupted:")]
    return said[-1] if said else "interrupted: the stage was stopped; run again to resume from its newest checkpoint, if it keeps one"
