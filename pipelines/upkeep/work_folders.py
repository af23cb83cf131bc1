"""The work folders of all trainings, finished or not."""

from collections.abc import Iterator
from pathlib import Path

from assets.paths import SHARED, Paths
from pipelines.resume_state import TRAINED


def work_folders(root: Path) -> Iterator[tuple[Path, str, str | None]]:
    """Every work folder with its noun and experiment; None for a noun that all experiments share."""
    for noun in TRAINED:
        for folder in sorted((Paths(root).work / noun).glob("*" if noun in SHARED else "*/*")):
            if folder.is_dir():
                yield folder, noun, None if noun in SHARED else folder.parent.name
