"""Training processes that die: at a named place in the code, or whenever the test kills them."""

import os
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from grpo_core import checkpoint, evaluation, loop, sampling, trainer, work_folder
from grpo_core.config import RunConfig
from tests.tiny_run import outputs, tiny_config

PLACES: dict[str, tuple[Any, str]] = {
    "writing a file to disk": (checkpoint, "sync"),
    "writing a checkpoint": (work_folder, "write_folder"),
    "removing an old checkpoint": (work_folder, "_remove_at_once"),
    "writing rows": (work_folder, "write_table"),
    "writing a line": (work_folder, "append_bytes"),
    "sampling": (trainer, "draw"),
    "drawing one more token": (sampling, "_record"),
    "evaluating on select": (evaluation, "score_batch"),
    "between minibatches": (trainer, "optimizer_step"),
    "writing the outputs": (loop, "write_outputs"),
    "making the final checkpoint": (loop, "write_folder"),
}
"""Where a process can be told to die: the function's module and name."""


def die_at(place: str, call: int, after: bool) -> None:
    """Let this process kill itself before (or right after) the given call (from 1) of the function at `place`."""
    module, name = PLACES[place]
    original: Callable[..., Any] = getattr(module, name)
    calls = 0

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*given, **named)
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(module, name, counted)


def train_in_process(root: Path, given: Path, settings: dict[str, Any], place: str | None = None, call: int = 0, after: bool = False) -> None:
    """What the child does."""
    if place is not None:
        die_at(place, call, after)
    config = tiny_config(**settings)
    loop.train(keyed(outputs(root, given), config), config, on_step=lambda report: None)


def train_on_a_full_disk(root: Path, given: Path, settings: dict[str, Any], step: int, most_bytes: int, said: Connection) -> None:
    """What a child does for which no file grows beyond `most_bytes` once `step` was reported; what it dies of goes to `said`."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    config = tiny_config(**settings)

    def fill(report: loop.StepReport) -> None:
        if report.step == step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))

    try:
        loop.train(keyed(outputs(root, given), config), config, on_step=fill)
    except OSError as error:
        said.send(str(error))


def keyed(files: loop.Files, config: RunConfig) -> loop.Files:
    """The same files with the run's own folder to work in."""
    return replace(files, work=files.work.with_name(loop.run_key(files, config)))


def child(*given: Any, target: Callable[..., None] = train_in_process) -> BaseProcess:
    """A started process that trains. The fork server has torch imported, so it starts in a fraction of a second."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.grpo_core.stopped_training"])
    process = context.Process(target=target, args=given, daemon=True)
    process.start()
    return process
