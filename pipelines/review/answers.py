"""An answer as the page sends it, checked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assets.review_votes import CHOICES, TAGS
from pipelines.console import visible

LONGEST_REASON = 2_000
LONGEST_SECONDS = 86_400.0


class BadAnswer(ValueError):
    """An answer that the page cannot have sent: says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reviewer says of the pair at `position`."""

    question: str
    position: int
    choice: str
    reason: str = ""
    left_tags: Sequence[str] = ()
    right_tags: Sequence[str] = ()
    seconds: float = 0.0


def parse_answer(sent: Mapping[str, Any], num_pairs: int) -> Answer:
    """Raises `BadAnswer`."""
    question, position, choice, reason, seconds = (sent.get(name) for name in ("question", "position", "choice", "reason", "seconds"))
    if not isinstance(question, str) or question not in CHOICES:
        raise BadAnswer(f"question must be one of {', '.join(CHOICES)}, got {question!r}")
    if type(position) is not int or not 0 <= position < num_pairs:
        raise BadAnswer(f"position must lie between 0 and {num_pairs - 1}, got {position!r}")
    if choice not in CHOICES[question]:
        raise BadAnswer(f"choice must be one of {', '.join(CHOICES[question])}, got {choice!r}")
    if not isinstance(reason, str) or len(reason) > LONGEST_REASON:
        raise BadAnswer(f"reason must be a text of at most {LONGEST_REASON:,} characters")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < math.inf:
        raise BadAnswer(f"seconds must be a number that is not negative, got {seconds!r}")
    left_tags, right_tags = _tags(sent, "left_tags"), _tags(sent, "right_tags")
    return Answer(question, position, choice, visible(reason.strip()), left_tags, right_tags, float(min(seconds, LONGEST_SECONDS)))


def _tags(sent: Mapping[str, Any], side: str) -> list[str]:
    """In the order of `TAGS`, each once."""
    chosen = sent.get(side)
    if not isinstance(chosen, list) or any(tag not in TAGS for tag in chosen):
        raise BadAnswer(f"{side} must be a list of {', '.join(TAGS)}, got {chosen!r}")
    return [tag for tag in TAGS if tag in chosen]
