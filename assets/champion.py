"""Who the champion is."""

import json
from typing import Any

from assets.paths import Paths

WEIGHTS = "model.safetensors"
"""The file whose sha256 names a policy."""


def champion_of(paths: Paths) -> dict[str, Any]:
    """What champion.json says; `version` 0 stands for none."""
    found: dict[str, Any] = json.loads(paths.champion_record.read_bytes()) if paths.champion_record.is_file() else {"version": 0}
    return found
