"""Tells a command or an address of the user's about every alarm. Whatever goes wrong with it is a warning, and training waits ten seconds at most."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from http.client import HTTPException

from assets.page import Notice
from grpo_core.config import RunConfig
from pipelines.console import visible

LONGEST_SECONDS = 10.0
"""A command or a server that takes longer is given up."""


def notifier(config: RunConfig) -> Callable[[Notice], None]:
    """Sends a notice where `health.notify` says: JSON with `text` and everything that the alarm knows."""
    where = config.health.notify.strip()

    def notify(notice: Notice) -> None:
        body = json.dumps({"text": notice.text, **notice.facts}, default=str).encode() + b"\n"
        try:
            if where.startswith(("http://", "https://")):
                _post(where, body)
            else:
                _run(where, body)
        except (OSError, ValueError, HTTPException) as error:
            print(f"warning: health.notify ({_shown(where)}) could not be told: {visible(str(error).strip())}", file=sys.stderr, flush=True)

    return notify if where else lambda notice: None


def _shown(where: str) -> str:
    """As much as tells which it is: the rest of an address, or of a command, often holds a secret."""
    if where.startswith(("http://", "https://")):
        scheme, _, rest = where.partition("://")
        return f"{scheme}://{rest.split('/')[0].rpartition('@')[2]}/..."
    name, *more = where.split(maxsplit=1)
    return f"{name} ..." if more else name


def _run(command: str, body: bytes) -> None:
    # Files: a pipe would be waited for as long as anything that the command has left in the background holds it.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
        given.write(body)
        given.seek(0)
        process = subprocess.Popen(command, shell=True, stdin=given, stdout=subprocess.DEVNULL, stderr=errors, process_group=0)
        try:
            process.wait(LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the shell and whatever it waits for
            process.wait()
            raise ValueError(f"it timed out after {LONGEST_SECONDS:g} seconds") from None
        errors.seek(0)
        said = " ".join(errors.read()[-200:].decode(errors="replace").split())
    if process.returncode != 0:
        raise ValueError(f"it ended with status {process.returncode}" + (f": {said}" if said else ""))


def _post(address: str, body: bytes) -> None:
    request = urllib.request.Request(address, data=body, headers={"Content-Type": "application/json"}, method="POST")
    # What it answers beyond its status is not waited for.
    urllib.request.urlopen(request, timeout=LONGEST_SECONDS).close()
