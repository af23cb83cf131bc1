"""What tests of the front doors share."""

from pathlib import Path

import pytest

from tests.pipelines.checkouts import copy_checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the checkout (no outputs, no Git, no DVC)."""
    return copy_checkout(tmp_path)
