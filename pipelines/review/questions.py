"""What a reviewer is asked: which completion of every pair is better, and at the end of a few pairs which one the trained model wrote."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

MOST_GUESSES = 10


@dataclass(frozen=True, slots=True, order=True)
class Question:
    """About the pair at `position`."""

    question: str
    position: int


def questions(pairs_digest: str, num_pairs: int) -> Sequence[Question]:
    """All of them, in the order of asking; the same for every reviewer."""
    preferences = [Question("preference", position) for position in range(num_pairs)]
    return [*preferences, *(Question("guess", position) for position in guess_positions(pairs_digest, num_pairs))]


def guess_positions(pairs_digest: str, num_pairs: int) -> Sequence[int]:
    """One of each of up to ten equal stretches, by a hash: whoever shows pairs does not know of which kind they are."""
    count = min(MOST_GUESSES, num_pairs)
    edges = [stretch * num_pairs // count for stretch in range(count + 1)]
    return [low + _hash(f"{pairs_digest}\n{low}") % (high - low) for low, high in pairwise(edges)]


def _hash(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)
