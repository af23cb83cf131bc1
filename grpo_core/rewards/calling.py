"""One call of a reward function, and every value it returned made an outcome: a number, no opinion, invalid or failed. No torch here."""

import asyncio
import inspect
import math
import traceback
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from grpo_core.rewards.outcomes import Failed, Invalid, RewardError, Value, plain
from grpo_core.rewards.registry import RewardFunction, options_of, source_file


def call(name: str, function: RewardFunction, columns: Mapping[str, Sequence[Any]], options: Mapping[str, Any]) -> list[Value] | Failed:
    """An outcome for each of the rows in `columns`; Failed when the function raised, so that nothing is known of any row.

    Raises RewardError when the function itself says that it cannot be used, or returns no list with one entry a completion.
    """
    given = {column: values for column, values in columns.items() if column not in options_of(name)}
    try:
        returned = function(**given, **options)
        if inspect.isawaitable(returned):
            returned = _loop().run_until_complete(_awaited(returned))
        if hasattr(returned, "tolist"):  # an array or a tensor
            returned = returned.tolist()
    except (RewardError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # it is anybody's code, and it may end with SystemExit; what it raised is told, row by row
        return raised(error, source_file(function))
    rows = len(columns["completions"])
    if not isinstance(returned, list | tuple) or len(returned) != rows:
        got = f"{len(returned)} values" if isinstance(returned, list | tuple) else f"a {type(returned).__name__}"
        raise RewardError(f"reward {name!r} must return a list of {rows} numbers, one a completion; it returned {got}")
    return [_outcome(value) for value in returned]


_loops: list[asyncio.AbstractEventLoop] = []


def _loop() -> asyncio.AbstractEventLoop:
    """The process's one event loop: clients and locks of a function's module belong to the loop that they were first used in."""
    if not _loops:
        _loops.append(asyncio.new_event_loop())
    return _loops[0]


def rows_of(columns: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> dict[str, list[Any]]:
    """Only these rows of every column."""
    return {column: [values[row] for row in rows] for column, values in columns.items()}


async def _awaited(returned: Any) -> Any:
    return await returned


def raised(error: BaseException, file: str) -> Failed:
    """What was raised, and the last line of `file` (of any file, if it passed through none of it) on the way to it."""
    frames = traceback.extract_tb(error.__traceback__)
    line = ([frame for frame in frames if frame.filename == file] or frames)[-1]
    place = f"{line.filename.rpartition('/')[2]} line {line.lineno}: {line.line}"
    return Failed(f"raised {type(error).__name__}: {plain(error)[:200]} ({place})", "".join(traceback.format_exception(error)))


def _outcome(value: Any) -> Value:
    if value is None or isinstance(value, Invalid):
        return value
    if not isinstance(value, Real) and callable(getattr(value, "item", None)):
        try:
            value = value.item()  # a scalar of numpy or torch
        except Exception as error:  # noqa: BLE001  # a tensor of many numbers, or anything
            return Failed(f"returned a {type(value).__name__} that is no single number ({plain(error)})")
    if not isinstance(value, Real) or not _is_finite(value):
        return Failed(f"returned {_shown(value)}, neither a finite number nor None")
    return float(value)


def _shown(value: object) -> str:
    try:
        return repr(value)[:200]
    except Exception:  # noqa: BLE001  # its own __repr__ may raise anything
        return f"a {type(value).__name__}"


def _is_finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond any float
        return False
