"""Random numbers as a function of what they are for, never of what was drawn before: nothing to save, nothing to replay."""

import hashlib

import numpy as np


def generator(*key: object) -> np.random.Generator:
    """A Philox stream of its own for `key` (seed, purpose, step, prompt, …): equal keys give equal streams on every machine."""
    text = "\x1f".join(map(str, key))
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype="<u8")))


def uniforms(length: int, *key: object) -> np.ndarray:
    """`length` numbers in [0, 1), float64; the first n do not depend on `length`."""
    return generator(*key).random(length)


def permutation(length: int, *key: object) -> list[int]:
    """The order of `length` things for `key`."""
    return [int(i) for i in generator(*key).permutation(length)]


def epoch_indices(length: int, start: int, count: int, stream: tuple[object, ...]) -> list[int]:
    """Places `start` … `start + count - 1` of an endless sequence that goes through all `length` items once an epoch, in a new order each.

    A function of its arguments alone: resuming needs nothing but the step.
    """
    chosen = []
    orders: dict[int, list[int]] = {}
    for place in range(start, start + count):
        epoch = place // length
        if epoch not in orders:
            orders[epoch] = permutation(length, *stream, epoch)
        chosen.append(orders[epoch][place % length])
    return chosen
