"""What DVC sees of a folder."""

from pathlib import Path


def seen_files(root: Path, folder: Path) -> list[Path]:
    """Every file of a folder that no .dvcignore of the checkout `root` leaves out."""
    from dvc.fs import localfs
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        return [Path(file) for file in repo.dvcignore.find(localfs, str(folder))]
