"""What a reward function can say of a completion besides a number, and what may go wrong when it is asked."""

import re
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "no_opinion", "invalid", "error"]
"""Of one completion: scored; nobody had an opinion; its own text caused the failure (floor score, it stays in the baseline); the reward
function failed (it leaves baseline and loss)."""
STATUSES: tuple[Status, ...] = ("ok", "no_opinion", "invalid", "error")
"""From the mildest: a row has the gravest of its functions' statuses, but one opinion is enough for `ok`."""


MOST_SAID = 300
"""Characters of a reason that are kept."""
MOST_DETAIL = 4000
"""Characters of a traceback that are kept: its end says what was raised."""
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def plain(said: object) -> str:
    """Anybody's words as text that every table can hold, and that is the same each time: no lone surrogates, no addresses in memory."""
    try:
        text = str(said)
    except Exception as error:  # noqa: BLE001  # its own __str__ may raise anything
        text = f"a {type(said).__name__} that cannot be shown ({type(error).__name__})"
    return ADDRESS.sub(" at 0x…", text).encode("utf-8", "replace").decode()


class RewardError(ValueError):
    """A reward that cannot be used: names the function, the row and the value. Training stops before the update."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """Returned in place of a number: the model's text or program caused a failure. It earns the floor, so that breaking the grader never pays."""

    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", plain(self.reason)[:MOST_SAID])


@dataclass(frozen=True, slots=True)
class Failed:
    """A reward function that raised, or returned what is no finite number, for one completion: no word against the completion."""

    error: str
    """One line: what was raised or returned, and where."""
    detail: str = ""
    """The traceback."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", plain(self.error)[:MOST_SAID])
        object.__setattr__(self, "detail", plain(self.detail)[-MOST_DETAIL:])


Value = float | None | Invalid | Failed
"""One completion's outcome; None is "no opinion"."""
