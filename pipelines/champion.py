"""The champion on disk: the history says who it is, and the model, champion.json, DVC and MLflow's registry follow it, whenever they were stopped.

A promotion is decided by one line of the history. The model was built beside before that line is written, so whatever is missing afterwards can be
done at any time, and doing it again changes nothing.
"""

import ctypes
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assets import chained
from assets.paths import Paths
from grpo_core.checkpoint import MANIFEST, BrokenFolder, read_manifest, sync, write_text
from pipelines.lock import LockError, folder_md5, read_yaml
from pipelines.registry import ALIAS, MODEL, RegistryError, register

WEIGHTS = "model.safetensors"
FACTS = ("version", "weights_sha256", "experiment", "run_key", "by", "when", "override")
"""What champion.json repeats of the history's last line."""
AT_FDCWD, RENAME_EXCHANGE = -100, 2
OnNote = Callable[[str], object]


class PromotionError(ValueError):
    """A promotion that cannot be made, or not ended."""


def new_model(paths: Paths) -> Path:
    """Where the next champion's model is built."""
    return paths.champion_model.with_name(".model.new")


def history(paths: Paths) -> list[dict[str, Any]]:
    """Every promotion there ever was. Raises ValueError when a line of it was altered, and `PromotionError` when champion.json is not its last line."""
    lines = chained.read(paths.champion_history) if paths.champion_history.is_file() else []
    recorded = read_champion(paths)
    possible = [{"version": 0}, *({name: line[name] for name in FACTS} for line in lines)]
    # The last line may be ahead: the promotion was stopped before champion.json was written.
    if recorded not in possible[-2:]:
        place = paths.champion_record.relative_to(paths.root)
        raise PromotionError(
            f"{place} (version {recorded.get('version')}) is not what the last line of {paths.champion_history.relative_to(paths.root)} says "
            f"(version {possible[-1]['version']}): one of them was edited; `git checkout {place.parent}` brings back what was committed"
        )
    return lines


def read_champion(paths: Paths) -> dict[str, Any]:
    """champion.json; version 0 stands for none."""
    if not paths.champion_record.is_file():
        return {"version": 0}
    try:
        found = json.loads(paths.champion_record.read_bytes())
    except ValueError as error:
        raise PromotionError(f"{paths.champion_record} is not JSON ({error}): `git checkout {paths.champion_record.relative_to(paths.root)}`") from error
    return dict(found)


def weights_of(folder: Path) -> str | None:
    """The sha256 of a checkpoint's weights by its manifest; None where there is no whole manifest."""
    try:
        return str(json.loads((folder / MANIFEST).read_bytes())["files"][WEIGHTS])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_settled(paths: Paths, line: Mapping[str, Any]) -> bool:
    """Whether the files are those of the history's last line; MLflow is not asked."""
    return read_champion(paths) == {name: line[name] for name in FACTS} and weights_of(paths.champion_model) == line["weights_sha256"] and is_added(paths)


def settle(paths: Paths, line: Mapping[str, Any], on_note: OnNote) -> str:
    """Make the model, champion.json, DVC and the registry those of the history's last line; the registry's version. What is so already stays."""
    place_model(paths, line)
    facts = {name: line[name] for name in FACTS}
    if read_champion(paths) != facts:
        write_text(paths.champion_record, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    shutil.rmtree(new_model(paths), ignore_errors=True)
    if not is_added(paths):
        dvc_add(paths)
        on_note(f"{paths.champion_model.relative_to(paths.root)} was given to DVC")
    hashes = {"grpo.weights_sha256": str(line["weights_sha256"]), "grpo.manifest_sha256": str(line["manifest_sha256"]), "grpo.run_key": str(line["run_key"])}
    try:
        version = register(paths.root, line, paths.champion_model, hashes)
    except RegistryError as error:
        raise PromotionError(
            f"{line['experiment']!r} is the champion on disk (version {line['version']}), but {error}; the same command again ends it"
        ) from error
    on_note(f"version {version} of {MODEL!r} in MLflow's registry, which {MODEL}@{ALIAS} stands for")
    return version


def place_model(paths: Paths, line: Mapping[str, Any]) -> None:
    """Put the model that was built beside in its place, in one move. Raises `PromotionError` when neither is the history's."""
    wanted, model, beside = line["weights_sha256"], paths.champion_model, new_model(paths)
    if weights_of(model) != wanted:
        if weights_of(beside) != wanted:
            raise PromotionError(
                f"{model.relative_to(paths.root)} does not hold the champion (version {line['version']}, weights {wanted[:12]}): "
                f"`dvc checkout {model.relative_to(paths.root)}.dvc` or `dvc pull` brings it back"
            )
        exchange(beside, model)
        sync(model.parent)
    try:
        read_manifest(model)
    except BrokenFolder as error:
        raise PromotionError(f"{error}; delete the folder, then `dvc checkout {model.relative_to(paths.root)}.dvc`") from error


def exchange(beside: Path, place: Path) -> None:
    """`place` is what lay beside, and the other way round where it was there: in one step, on file systems that can."""
    if not place.exists():
        beside.rename(place)
        return
    rename = ctypes.CDLL(None, use_errno=True).renameat2
    if rename(AT_FDCWD, os.fsencode(beside), AT_FDCWD, os.fsencode(place), RENAME_EXCHANGE) != 0:
        retired = place.with_name(f".{place.name}.old")
        shutil.rmtree(retired, ignore_errors=True)
        place.rename(retired)
        beside.rename(place)
        shutil.rmtree(retired)


def is_added(paths: Paths) -> bool:
    """Whether the model's `.dvc` file names the folder as it is."""
    try:
        outs = read_yaml(dvc_file(paths))["outs"]
    except (FileNotFoundError, KeyError, LockError):
        return False
    return paths.champion_model.is_dir() and [out["md5"] for out in outs] == [folder_md5(paths.champion_model)]


def dvc_add(paths: Paths) -> None:
    """`dvc add` the model."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(paths.root)) as repo:
            repo.add(str(paths.champion_model))
    except DvcException as error:
        reason = " ".join(str(error).split())
        raise PromotionError(
            f"DVC did not take {paths.champion_model.relative_to(paths.root)} ({reason}); the same command again ends the promotion"
        ) from error


def dvc_file(paths: Paths) -> Path:
    return paths.champion_model.with_name(f"{paths.champion_model.name}.dvc")


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """No other promotion in this checkout meanwhile. Raises `PromotionError` when one is at work."""
    path = root / ".work" / "promotion.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PromotionError("another promotion is at work in this checkout: wait for it to end") from None
        yield
