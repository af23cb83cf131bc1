"""The frozen copy of what GRPO starts from. KL is measured to it; nothing ever changes it."""

import json
import shutil
from pathlib import Path

from assets.page import Metadata, Progress, ProgressCallback
from assets.paths import Paths
from grpo_core.config import RunConfig


def produce(paths: Paths, config: RunConfig, on_progress: ProgressCallback) -> None:
    """Copy the checkpoint file by file once its own manifest proved whole, and note which one it is a copy of."""
    from grpo_core.checkpoint import MANIFEST, folder_digest, read_manifest, write_folder

    source = read_manifest(paths.sft_checkpoint)

    def write(folder: Path) -> None:
        for name in source["files"]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(paths.sft_checkpoint / name, folder / name)

    facts = {
        "noun": "reference_checkpoint",
        "policy_digest": source["policy_digest"],
        "tokenizer_fingerprint": source["tokenizer_fingerprint"],
        "parents": {"sft_checkpoint": folder_digest(paths.sft_checkpoint)},
    }
    write_folder(paths.reference_checkpoint, write, facts)
    copied = json.loads((paths.reference_checkpoint / MANIFEST).read_text())["files"]
    if copied != source["files"]:
        raise ValueError(f"{paths.reference_checkpoint} is not a faithful copy of {paths.sft_checkpoint}: the disk gave other bytes back; run the stage again")
    on_progress(Progress(1, 1))


def describe(paths: Paths) -> Metadata:
    """Which weights the reference holds, and of what it is a copy."""
    manifest = json.loads((paths.reference_checkpoint / "manifest.json").read_text())
    return {
        "weights": manifest["policy_digest"],
        "tokenizer": manifest["tokenizer_fingerprint"][:16],
        "copy_of": manifest["parents"]["sft_checkpoint"][:16],
        "files": len(manifest["files"]),
        "folder": paths.reference_checkpoint,
    }
