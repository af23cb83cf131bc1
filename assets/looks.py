"""Who was looked at on held-out prompts: the more candidates are tried, the likelier one is lucky, so the gate asks more of each that follows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assets import chained
from assets.paths import Paths


def number_of(paths: Paths, weights_sha256: str, **about: Any) -> int:
    """Which policy, in order of first look, these weights are (1 is the first); they are added where they were not looked at before."""
    looks = chained.append_unless(paths.looks, {"weights_sha256": weights_sha256, **about}, "weights_sha256")
    return _place(looks, weights_sha256) or len(looks)


def known_number(paths: Paths, weights_sha256: str) -> tuple[int, int]:
    """The number that these weights have, or would get, and how many policies were looked at. Nothing is written."""
    looks = read_looks(paths.looks)
    return _place(looks, weights_sha256) or len(looks) + 1, len(looks)


def read_looks(path: Path) -> list[dict[str, Any]]:
    """Every policy that was looked at, oldest first. Raises ValueError for a file that was edited."""
    return chained.read(path)


def _place(looks: Sequence[dict[str, Any]], weights_sha256: str) -> int | None:
    return next((number for number, look in enumerate(looks, 1) if look["weights_sha256"] == weights_sha256), None)
