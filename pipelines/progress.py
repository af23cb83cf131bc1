"""Where a stage's progress goes while it runs: a bar or lines on stderr, and messages to Dagster when it started the stage."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from dagster_pipes import PipesContext, open_dagster_pipes
from tqdm import tqdm

from assets.page import Notice, Progress, ProgressCallback
from pipelines.console import visible

SHOWN = {"reward/mean": "reward", "kl/mean": "kl", "length/mean": "length", "loss": "loss", "eval/select_accuracy": "select"}
"""Metric → its short name beside a bar, in this order."""
SECONDS_BETWEEN_LINES = 5.0


def figures(progress: Progress) -> str:
    """The numbers shown beside a bar: those of `SHOWN` that are there, else the first three."""
    chosen = {short: progress.numbers[name] for name, short in SHOWN.items() if name in progress.numbers} or dict(list(progress.numbers.items())[:3])
    return ", ".join(f"{name}={value:.4g}" for name, value in chosen.items())


@contextmanager
def bar(noun: str, stream: TextIO) -> Iterator[ProgressCallback]:
    """A bar that is redrawn in place."""
    with tqdm(desc=noun, file=stream, dynamic_ncols=True, mininterval=0.2) as drawn:

        def show(progress: Progress) -> None:
            for notice in progress.notices:
                tqdm.write(visible(notice.text), file=stream)
            if progress.notices:
                return
            drawn.total = progress.total
            drawn.set_postfix_str(figures(progress), refresh=False)
            drawn.update(progress.step - drawn.n)

        yield show
        drawn.refresh()


@contextmanager
def lines(noun: str, stream: TextIO, now: Callable[[], float] = time.monotonic) -> Iterator[ProgressCallback]:
    """The same bar as a line of its own, for logs: the first and the last, and one every few seconds between them."""
    started, last = now(), -SECONDS_BETWEEN_LINES

    def show(progress: Progress) -> None:
        nonlocal last
        for notice in progress.notices:
            print(visible(notice.text), file=stream, flush=True)
        if progress.notices:
            return
        if now() - last >= SECONDS_BETWEEN_LINES or progress.step >= progress.total:
            last = now()
            text = tqdm.format_meter(progress.step, progress.total, now() - started, ncols=120, prefix=noun, postfix=figures(progress))
            print(text, file=stream, flush=True)

    yield show


@contextmanager
def dagster_messages() -> Iterator[ProgressCallback]:
    """Progress as Dagster Pipes messages; nothing unless Dagster started this process. When Dagster has gone, work goes on without it."""
    if "DAGSTER_PIPES_CONTEXT" not in os.environ:
        yield lambda progress: None
        return
    pipes = open_dagster_pipes()
    heard = True

    def send(progress: Progress) -> None:
        nonlocal heard
        if heard:
            heard = _sent(pipes, progress)

    try:
        yield send
    finally:
        with suppress(OSError):
            pipes.close()


def _sent(pipes: PipesContext, progress: Progress) -> bool:
    if progress.notices:
        return all([_delivered(pipes, {"kind": "notice", "step": progress.step, "text": notice.text}) for notice in progress.notices])
    message = {"kind": "progress", "step": progress.step, "total": progress.total, "checkpointed": progress.checkpointed, "numbers": dict(progress.numbers)}
    return _delivered(pipes, message)


def _delivered(pipes: PipesContext, message: dict[str, Any]) -> bool:
    try:
        pipes.report_custom_message(message)
    except OSError as error:
        print(f"warning: Dagster no longer takes messages ({error}); going on without", file=sys.stderr)
        return False
    return True


@contextmanager
def reporting(noun: str, record: ProgressCallback, notify: Callable[[Notice], None] = lambda notice: None) -> Iterator[ProgressCallback]:
    """One callback that shows progress on stderr, tells Dagster, passes it to `record`, and its notices to `notify`."""
    on_stderr = bar if sys.stderr.isatty() else lines
    with on_stderr(noun, sys.stderr) as show, dagster_messages() as send:

        def report(progress: Progress) -> None:
            show(progress)
            send(progress)
            record(progress)
            for notice in progress.notices:
                notify(notice)

        yield report
