"""Which objects of DVC's cache nothing needs: no dvc.lock or .dvc file of the workspace or of any commit, and no run that has a name."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.git import GitError, git
from pipelines.lock import file_md5
from pipelines.records.dvc_cache import cache_folder, cached_listing, object_path
from pipelines.records.runs import Run

if TYPE_CHECKING:
    from dvc.repo import Repo

MD5 = re.compile(r"\bmd5: ['\"]?([0-9a-f]{32}(?:\.dir)?)\b")
"""As dvc.lock and .dvc files name an object."""


class UnknownUse(ValueError):
    """What is in use cannot be told for sure, so nothing may be taken for unused."""


def unused_objects(repo: "Repo", root: Path, runs: Iterable[Run]) -> set[str]:
    """The objects in DVC's cache that neither the workspace, nor a commit that any reference or its log reaches, nor one of `runs` uses.

    Raises `UnknownUse` when the cache may serve other checkouts too, or when a listing in it is damaged.
    """
    odb = repo.cache.local
    if not cache_folder(root).resolve().is_relative_to(root.resolve()):
        raise UnknownUse(f"{cache_folder(root)} lies outside this checkout and others may use it: `dvc gc --projects` knows how to ask them")
    # Not DVC's own `used_objs`: it deletes a damaged listing when it comes across one.
    used = {str(out.hash_info.value) for out in repo.index.outs if out.hash_info}
    used |= recorded_hashes(root) | {md5 for run in runs for md5 in run_hashes(run)}
    return set(odb.all()) - with_files(root, used)


def run_hashes(run: Run) -> set[str]:
    """What a run was made from and what it left."""
    return {str(md5) for record in run.records.values() for part in ("deps", "files", "outs") for md5 in record[part].values()}


def recorded_hashes(root: Path) -> set[str]:
    """Every md5 in the dvc.lock and .dvc files of the workspace and of every commit that a reference or its log reaches."""
    files = [path for path in (root / "dvc.lock", *(root / "data").rglob("*.dvc")) if path.is_file()]
    texts = [path.read_text(encoding="utf-8") for path in files]
    return {md5 for text in [*texts, *committed_texts(root)] for md5 in MD5.findall(text)}


def committed_texts(root: Path) -> list[str]:
    """Every version of every dvc.lock and .dvc file in Git's history; stashes but the newest, and DVC's queue, are only in the logs of references."""
    if not any((folder / ".git").exists() for folder in (root, *root.resolve().parents)):
        return []
    shown = ("--raw", "--no-abbrev", "--no-renames", "--diff-merges=separate", "--format=")
    try:
        log = git(root, "log", "--all", "--reflog", *shown, "--", ":(top)*dvc.lock", ":(top)*.dvc")
        blobs = {fields[3] for line in log.splitlines() if len(fields := line.split()) > 3} - {"0" * 40, "0" * 64}
        return [git(root, "cat-file", "--batch", given="".join(f"{blob}\n" for blob in sorted(blobs)))] if blobs else []
    except GitError as error:
        raise UnknownUse(f"what Git's commits use is not known: {error}") from error


def with_files(root: Path, hashes: Iterable[str]) -> set[str]:
    """The hashes, and those of the files in the folders among them. A folder whose listing is not in the cache has none there to keep."""
    found = set(hashes)
    for folder in [md5 for md5 in found if md5.endswith(".dir")]:
        path = object_path(root, folder)
        if not path.is_file():
            continue
        if file_md5(path) != folder.removesuffix(".dir"):
            raise UnknownUse(f"{path} is damaged, so the files of that folder are not known: `grpo verify` says what mends it")
        found |= set((cached_listing(root, folder) or {}).values())
    return found


def remove_objects(repo: "Repo", doomed: set[str]) -> None:
    """Let DVC's own garbage collection remove these objects from its cache."""
    from dvc_data.hashfile.gc import gc
    from dvc_data.hashfile.hash_info import HashInfo

    odb = repo.cache.local
    gc(odb, [HashInfo("md5", md5) for md5 in odb.all() if md5 not in doomed])


def disk_bytes(path: Path) -> int:
    """What the disk gets back when this name goes; nothing while the file has another one."""
    status = path.lstat()
    return 0 if path.is_dir() or status.st_nlink > 1 else status.st_blocks * 512
