"""What holds for every test process."""

import os
import sys
from collections.abc import Iterator

# Two test processes share two cores. Read when torch is imported, so set before any test module is.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest

from grpo_core.determinism import OVERRULING, SWITCHES, THREADS

HELD = (*THREADS, *SWITCHES, *OVERRULING)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """A command run in a test's own process sets the number of threads, and with it the order in which sums add: no later test sees that."""
    before = {name: os.environ[name] for name in HELD if name in os.environ}
    try:
        return (yield)
    finally:
        for name in HELD:
            os.environ.pop(name, None)
        os.environ.update(before)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)
