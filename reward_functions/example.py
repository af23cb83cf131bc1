"""Your own reward functions go into this folder: DVC watches it, so that an edit makes GRPO and the evaluation stale.

Name one in params.yaml by its import path with a weight, `reward_functions.example:short_and_right: 1.0`.
"""


def short_and_right(completions: list[str], answer: list[str], **columns: object) -> list[float | None]:
    """1 for the right answer and nothing else, less a thousandth for every character."""
    return [float(text.strip() == right) - 0.001 * len(text) for text, right in zip(completions, answer, strict=True)]
