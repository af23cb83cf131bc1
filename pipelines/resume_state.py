"""How long a training's resume state is kept: until DVC has the outputs in its cache and in dvc.lock.

A finished training leaves a marker in its work folder with the hash under which DVC will know its checkpoint. A run that was killed
while DVC hashed the outputs finds no such hash in dvc.lock and goes on from its last checkpoint, which is done at once. When the hash
is there the outputs are safe: the folder is removed, and training again (`dvc repro --force`) starts at step 1.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from assets.paths import Paths
from grpo_core.config import RunConfig
from pipelines.graph import LOOP_STAGE
from pipelines.lock import folder_md5, read_lock

FINISHED = "finished"
"""The marker's name."""


@contextmanager
def resumable(paths: Paths, config: RunConfig) -> Iterator[Path]:
    """The work folder of the training inside the block, marked as finished when the block ends well."""
    from assets.grpo_checkpoint import work_folder

    work = work_folder(paths, config)
    forget_committed(paths, work)
    (work / FINISHED).unlink(missing_ok=True)
    yield work
    (work / FINISHED).write_text(folder_md5(paths.grpo_checkpoint) + "\n", encoding="utf-8")


def settle(paths: Paths) -> None:
    """Forget the resume state of the training that the experiment's policy came from, if DVC keeps what it made."""
    from assets.grpo_checkpoint import finished_work_folder

    if (paths.grpo_checkpoint / "manifest.json").is_file():
        forget_committed(paths, finished_work_folder(paths))


def forget_committed(paths: Paths, work: Path) -> None:
    """Remove the work folder of a finished training whose checkpoint dvc.lock names; any other is left as it is."""
    marker = work / FINISHED
    entry = read_lock(paths.root).get(f"{LOOP_STAGE}@{paths.experiment}")
    if marker.is_file() and entry is not None:
        committed = entry.outs.get(str(paths.grpo_checkpoint.relative_to(paths.root)))
        if marker.read_text(encoding="utf-8").strip() == committed:
            shutil.rmtree(work)
