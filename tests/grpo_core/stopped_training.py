"""Training processes that die: at a named place in the code, or whenever the test kills them."""

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from grpo_core import checkpoint, ledger, loop, resume, trainer
from tests.tiny_run import outputs, tiny_config

PLACES: dict[str, tuple[Any, str]] = {
    "writing a file to disk": (checkpoint, "sync"),
    "writing a checkpoint": (resume, "write_folder"),
    "writing rows": (ledger, "write_file"),
    "sampling": (trainer, "draw"),
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
    loop.train(outputs(root, given), tiny_config(**settings), on_step=lambda report: None)


def child(*given: Any) -> BaseProcess:
    """A started process that trains. The fork server has torch imported, so it starts in a fraction of a second."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.grpo_core.stopped_training"])
    process = context.Process(target=train_in_process, args=given, daemon=True)
    process.start()
    return process
