"""The pairs that are shown. The key that tells their sides apart is never opened here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from assets.blind_review_set import PAIR_COLUMNS
from assets.paths import Paths
from assets.review_votes import pairs_digest


class NoPairs(ValueError):
    """There is nothing to show: says why."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two completions of a prompt."""

    pair_id: str
    prompt: str
    left_text: str
    right_text: str


@dataclass(frozen=True, slots=True)
class PairSet:
    """Pairs in the order of showing."""

    digest: str
    pairs: Sequence[Pair]


class PairsFile:
    """The pairs of an experiment, read anew when their file is another one."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._held: tuple[tuple[int, ...], PairSet] | None = None

    def current(self) -> PairSet:
        """The set that lies there now. Raises `NoPairs`."""
        path = self._paths.blind_review_pairs
        try:
            while self._held is None or self._held[0] != _signature(path):
                self._held = (_signature(path), read_pairs(path))
            return self._held[1]
        except FileNotFoundError:
            stage = f"blind_review_set@{self._paths.experiment}"
            raise NoPairs(f"{path.relative_to(self._paths.root)} is not there: run `dvc repro {stage}` (or `grpo run`) first") from None


def read_pairs(path: Path) -> PairSet:
    """Raises `NoPairs` for a set of none."""
    table = pl.read_parquet(path, columns=list(PAIR_COLUMNS)).sort("position")
    if table.is_empty():
        raise NoPairs(f"{path} holds no pair: policy and reference answered alike wherever they were compared, so there is nothing to judge")
    return PairSet(pairs_digest(table), [Pair(*row) for row in table.drop("position").select("pair_id", "prompt", "left_text", "right_text").iter_rows()])


def _signature(path: Path) -> tuple[int, ...]:
    """What changes when a file is written anew."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size
