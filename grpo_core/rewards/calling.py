"""One call of a reward function, and every value it returned made an outcome: a number, no opinion, invalid or failed. No torch here."""

import asyncio
import inspect
import math
import traceback
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from grpo_core.rewards.outcomes import Failed, Invalid, RewardError, Value
from grpo_core.rewards.registry import RewardFunction

MAX_DETAIL = 4000
"""Characters of a traceback that are kept: its end says what was raised."""
MAX_ERROR = 300
"""Characters of what was raised that are kept."""


def call(name: str, function: RewardFunction, columns: Mapping[str, Sequence[Any]], options: Mapping[str, Any]) -> list[Value] | Failed:
    """An outcome for each of the rows in `columns`; Failed when the function raised, so that nothing is known of any row.

    Raises RewardError when the function itself says that it cannot be used, or returns no list with one entry a completion.
    """
    try:
        returned = function(**columns, **options)
        if inspect.isawaitable(returned):
            returned = asyncio.run(_awaited(returned))
    except RewardError:
        raise
    except Exception as error:  # noqa: BLE001  # it is anybody's code; what it raised is told, row by row
        return raised(error, inspect.getsourcefile(function) or "")
    rows = len(columns["completions"])
    if hasattr(returned, "tolist"):  # an array or a tensor
        returned = returned.tolist()
    if not isinstance(returned, list | tuple) or len(returned) != rows:
        got = f"{len(returned)} values" if isinstance(returned, list | tuple) else f"a {type(returned).__name__}"
        raise RewardError(f"reward {name!r} must return a list of {rows} numbers, one a completion; it returned {got}")
    return [_outcome(value) for value in returned]


async def _awaited(returned: Any) -> Any:
    return await returned


def raised(error: BaseException, file: str) -> Failed:
    """What was raised, and the last line of `file` (of any file, if it passed through none of it) on the way to it."""
    frames = traceback.extract_tb(error.__traceback__)
    line = ([frame for frame in frames if frame.filename == file] or frames)[-1]
    place = f"{line.filename.rpartition('/')[2]} line {line.lineno}: {line.line}"
    detail = "".join(traceback.format_exception(error))
    return Failed(f"raised {type(error).__name__}: {str(error)[:MAX_ERROR]} ({place})", detail[-MAX_DETAIL:])


def _outcome(value: object) -> Value:
    if value is None or isinstance(value, Invalid):
        return value
    if not isinstance(value, Real) or not _is_finite(value):
        return Failed(f"returned {repr(value)[:MAX_ERROR]}, neither a finite number nor None")
    return float(value)


def _is_finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond any float
        return False
