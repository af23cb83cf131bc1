"""How a stage's process hears that it should end: from a person, from its launcher, or from its parent's death."""

import ctypes
import os
import signal
import sys
from types import FrameType

PR_SET_PDEATHSIG = 1
STOPPING = (signal.SIGINT, signal.SIGTERM)


def die_with_parent() -> None:
    """Get SIGTERM when the parent dies: a killed `dvc` would otherwise leave its stage running."""
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("error: the parent process died before the stage began")


class StopRequest:
    """False until SIGINT or SIGTERM came; then the work at hand finishes its step and writes a checkpoint."""

    def __init__(self) -> None:
        self._requested = False

    def listen(self) -> None:
        """Take over SIGINT and SIGTERM."""
        for number in STOPPING:
            signal.signal(number, self._on_signal)

    def __call__(self) -> bool:
        return self._requested

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._requested:
            # Not print: the signal may have come in the middle of one, and buffered streams refuse to be entered twice.
            os.write(2, f"\n{signal.Signals(number).name}: finishing this step, then a checkpoint\n".encode())
        self._requested = True


def stop_once() -> None:
    """As `stop_at_once`, but only the first signal is heard: what cleans up after it is not to be interrupted by an impatient second one."""

    def first(number: int, frame: FrameType | None) -> None:
        for each in STOPPING:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in STOPPING:
        signal.signal(number, first)


def stop_at_once() -> None:
    """Both signals raise KeyboardInterrupt, also in a process that was started in the background and inherited an ignored SIGINT."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
