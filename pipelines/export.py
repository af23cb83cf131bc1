"""A policy as a folder that transformers and vLLM load, and nothing of its training's state; on request on a hub."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.paths import Paths
from grpo_core.checkpoint import MANIFEST, BrokenFolder, read_manifest, sync

if TYPE_CHECKING:
    from huggingface_hub import HfApi

OURS = (MANIFEST, "metrics.jsonl")
"""Files of a checkpoint that no loader reads."""


class ExportError(ValueError):
    """A model that cannot be exported or pushed."""


def champion_folder(paths: Paths) -> Path:
    """The champion's model, which history and champion.json agree on. Raises ValueError."""
    from pipelines.champion import PromotionError, history, weights_of

    lines = history(paths)
    if not lines:
        raise ExportError("there is no champion yet: `grpo promote` makes one, `grpo export EXPERIMENT FOLDER` exports any policy")
    if weights_of(paths.champion_model) != lines[-1]["weights_sha256"]:
        raise PromotionError(f"{paths.champion_model} does not hold the champion: `dvc pull` brings it, or `grpo promote` ends a promotion that was stopped")
    return paths.champion_model


def export(source: Path, folder: Path, *, force: bool, extra: Mapping[str, bytes]) -> None:
    """Make `folder` a copy of the checkpoint at `source` with the `extra` files (its card), whole or not at all, once it was loaded with the same weights."""
    check_target(folder, force=force)
    try:
        manifest = read_manifest(source)
    except BrokenFolder as error:
        raise ExportError(str(error)) from error
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        for name in [name for name in manifest["files"] if name not in OURS]:
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, partial / name)
        for name, content in extra.items():
            (partial / name).write_bytes(content)
        check_loads(partial, manifest)
        for path in partial.rglob("*"):
            sync(path)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_target(folder: Path, *, force: bool) -> None:
    """Raise `ExportError` when something lies at `folder` that is not to be replaced."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir() or not (folder / "config.json").is_file():
        raise ExportError(f"{folder} is there and is no exported model: name another folder")
    if not force:
        raise ExportError(f"{folder} holds a model already: name another folder, or replace it with --force")


def check_loads(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Load the folder as anybody would. Raises `ExportError` when that fails or other weights come out than the training left."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from grpo_core.models import policy_digest

    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        AutoTokenizer.from_pretrained(folder)
        GenerationConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ExportError(f"transformers cannot load what would be exported: {' '.join(str(error).split())}") from error
    if (digest := policy_digest(model)) != manifest["policy_digest"]:
        raise ExportError(f"the exported weights have the digest {digest}, the trained ones {manifest['policy_digest']}: `grpo verify` looks for the damage")


def card_of(paths: Paths) -> dict[str, bytes]:
    """File name → content: the card of an experiment's policy, and its pictures."""
    from assets.model_card import card_pictures, model_card
    from pipelines.params import read_run_config
    from pipelines.promotion import made_from

    report = json.loads(paths.promotion_report.read_bytes()) if paths.promotion_report.is_file() else None
    card = model_card(paths, read_run_config(paths), made_from(paths), report=report)
    return {"README.md": card.encode(), **card_pictures(paths)}


def push(folder: Path, name: str, api: "HfApi | None" = None) -> str:
    """Upload the folder to the hub repository `ORG/NAME`, which is made private where it is not there yet; its address. Raises `ExportError`."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, HTTPError

    hub = api or HfApi()
    try:
        hub.create_repo(name, repo_type="model", private=True, exist_ok=True)
        return str(hub.upload_folder(repo_id=name, repo_type="model", folder_path=folder, commit_message="grpo export"))
    except (HTTPError, HFValidationError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ExportError(
            f"{folder} was exported, and pushing it to {name} failed: {reason}; "
            f"look at the network, and at the token with the right to write there (`hf auth login`, or HF_TOKEN), then run the same command with --force"
        ) from error
