"""Metrics whose value a random model earns now and then, so that every statistic of them has something to say."""


def of_odd_length(completions: list[str], **columns: object) -> list[float]:
    return [float(len(text) % 2) for text in completions]


def of_even_length(completions: list[str], **columns: object) -> list[float]:
    return [float(len(text) % 2 == 0) for text in completions]
