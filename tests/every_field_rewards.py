"""Metrics whose value a random model earns now and then, so that every statistic of them has something to say."""

import time


def of_odd_length(completions: list[str], **columns: object) -> list[float]:
    return [float(len(text) % 2) for text in completions]


def of_even_length(completions: list[str], **columns: object) -> list[float]:
    return [float(len(text) % 2 == 0) for text in completions]


def sleepy(completions: list[str], **columns: object) -> list[float]:
    """Takes its time over signs that a random model writes and no exploit does."""
    if any(set(";:?") & set(text) for text in completions):
        time.sleep(0.3)
    return [float(len(text)) for text in completions]


def fails_on_odd_length(completions: list[str], **columns: object) -> list[float]:
    return [1 / (1 - len(text) % 2) for text in completions]
