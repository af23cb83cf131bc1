"""What a reward function can say of a completion besides a number, and what may go wrong when it is asked."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "no_opinion", "invalid", "error"]
"""Of one completion: scored; nobody had an opinion; its own text caused the failure (floor score, it stays in the baseline); the reward
function failed (it leaves baseline and loss)."""
STATUSES: tuple[Status, ...] = ("ok", "no_opinion", "invalid", "error")
"""From the mildest: a row has the gravest of its functions' statuses, but one opinion is enough for `ok`."""


class RewardError(ValueError):
    """A reward that cannot be used: names the function, the row and the value. Training stops before the update."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """Returned in place of a number: the model's text or program caused a failure. It earns the floor, so that breaking the grader never pays."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A reward function that raised, or returned what is no finite number, for one completion: no word against the completion."""

    error: str
    """One line: what was raised or returned, and where."""
    detail: str = ""
    """The traceback."""


Value = float | None | Invalid | Failed
"""One completion's outcome; None is "no opinion"."""
