"""What a completion should not be, each from -1 to 0: too long, repetitive, or padded with phrases that say nothing."""

from collections.abc import Callable, Sequence
from typing import Any

from grpo_core.requirements import nearest
from grpo_core.rewards.answers import completion_text
from grpo_core.rewards.normal_text import normal_text, phrase_end
from grpo_core.rewards.outcomes import RewardError

LONGEST_WORD = 40
"""Characters of a word; a longer one counts as pieces of this length, so that leaving out the spaces hides no repetition."""
BOILERPLATE = (
    "as an AI language model",
    "as a large language model",
    "as an AI assistant",
    "I hope this helps",
    "I hope that helps",
    "hope this clarifies",
    "let me know if you have any",
    "let me know if you need",
    "feel free to ask",
    "feel free to reach out",
    "is there anything else I can help",
    "happy to help",
    "that's a great question",
    "I cannot assist with",
    "I can't assist with",
)


def soft_overlong(
    completions: Sequence[Any], completion_lengths: Sequence[int], *, max_tokens: int, buffer_tokens: int, **columns: object
) -> list[float | None]:
    """0 up to `max_tokens - buffer_tokens`, from there in a line to -1 at `max_tokens` and beyond (DAPO, arXiv:2503.14476, eq. 13)."""
    if not (isinstance(max_tokens, int) and isinstance(buffer_tokens, int) and 0 < buffer_tokens <= max_tokens):
        raise RewardError(
            f"reward_options.soft_overlong: buffer_tokens must be a whole number between 1 and max_tokens ({max_tokens!r}), got {buffer_tokens!r}: "
            "it is the last part of max_tokens, in which the penalty grows"
        )
    return [min(0.0, max(-1.0, (max_tokens - buffer_tokens - length) / buffer_tokens)) for length in completion_lengths]


def repetition_penalty(
    completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], *, ngram: int = 3, unit: str = "words", **columns: object
) -> list[float | None]:
    """Minus the share of n-grams that stood there before, 0 for a text of fewer than `ngram` units (arXiv:2502.03373, app. C.2).

    `unit` is `words`, `characters` (for scripts without spaces: take a longer n-gram) or `tokens` of the policy.
    """
    if ngram < 1:
        raise RewardError(f"reward_options.repetition_penalty.ngram must be at least 1, got {ngram!r}")
    if unit == "tokens":
        return [_minus_repeated(ids, ngram) for ids in completion_ids]
    if unit not in SPLITS:
        known = [*SPLITS, "tokens"]
        raise RewardError(f"reward_options.repetition_penalty.unit must be one of {', '.join(known)}, got {unit!r}: {nearest(str(unit), known)}")
    return [_minus_repeated(SPLITS[unit](normal_text(completion_text(c))), ngram) for c in completions]


def boilerplate_penalty(completions: Sequence[Any], *, phrases: Sequence[str] = BOILERPLATE, **columns: object) -> list[float | None]:
    """-1 when a completion holds one of the phrases (whatever its case, white space and unicode form), else 0."""
    wanted = [phrase for phrase in map(normal_text, phrases) if phrase]
    if not wanted:
        raise RewardError(f"reward_options.boilerplate_penalty.phrases must hold a phrase, got {phrases!r}; leave it out for the built-in list")
    texts = [normal_text(completion_text(c)) for c in completions]
    return [-1.0 if any(phrase_end(text, phrase) >= 0 for phrase in wanted) else 0.0 for text in texts]


def _minus_repeated(units: Sequence[Any], ngram: int) -> float:
    total = len(units) - ngram + 1
    return len(set(zip(*(units[start:] for start in range(ngram)), strict=False))) / total - 1 if total > 0 else 0.0


def _words(text: str) -> list[str]:
    return [word[start : start + LONGEST_WORD] for word in text.split() for start in range(0, len(word), LONGEST_WORD)]


def _characters(text: str) -> str:
    return text.replace(" ", "")


SPLITS: dict[str, Callable[[str], Sequence[str]]] = {"words": _words, "characters": _characters}
