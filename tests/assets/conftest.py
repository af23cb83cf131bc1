"""One tiny lifecycle for all tests of the nouns: made once a process, never changed (copy it first)."""

import shutil
from pathlib import Path

import pytest

from assets.paths import Paths
from tests.assets.lifecycle import make_lifecycle


@pytest.fixture(scope="session")
def lifecycle(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    return make_lifecycle(tmp_path_factory.mktemp("lifecycle"))


@pytest.fixture
def spoilt(lifecycle: Paths, tmp_path: Path) -> Paths:
    """A copy of the lifecycle in which a test may break things."""
    shutil.copytree(lifecycle.data, tmp_path / "data")
    return Paths(tmp_path)
