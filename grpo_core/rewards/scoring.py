"""Every reward function over a batch: run where it cannot hang the trainer, its failures told apart by whose fault they are, combined.

A function is called with the whole batch. When that raises, the batch is halved until the completions it fails on stand alone: they get
status `error`. When it hangs or its process dies, completions are tried alone in a fresh process: one that does it again is `invalid`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.config import Option, ScoringConfig
from grpo_core.rewards.answers import completion_text
from grpo_core.rewards.calling import call, rows_of
from grpo_core.rewards.outcomes import STATUSES, Failed, Invalid, RewardError, Status, Value
from grpo_core.rewards.registry import check_columns, load_reward, options_of, traits
from grpo_core.rewards.worker import LONGEST_SECONDS, WorkerLost, worker


@dataclass(frozen=True, slots=True)
class Scores:
    """What every reward function said about every completion."""

    by_function: dict[str, list[float | None]]
    """Numbers that count: of an invalid completion the floor, None without an opinion or after an error."""
    statuses: dict[str, list[Status]]
    """By function, one a completion."""
    reasons: list[str | None]
    """Why a completion is invalid or an error, by every function that says so."""
    totals: list[float | None]
    """Weighted sum over the functions that had an opinion; None where none had, and where one that counts failed."""
    row_statuses: list[Status]
    """Over the functions that count: `error` before `invalid`, then `ok` if any had an opinion."""


def score(
    weights: Mapping[str, float],
    columns: Mapping[str, Sequence[Any]],
    where: Sequence[str],
    *,
    options: Mapping[str, Mapping[str, Option]],
    settings: ScoringConfig,
) -> Scores:
    """Every function's outcomes and their weighted sum.

    `columns` holds what functions are given, one entry a completion; `where` names each row for messages ("step 3, prompt ab12,
    completion 0"). A function of weight 0 is asked and counts for nothing. Raises RewardError when a function cannot be used or fails
    on more than `max_error_rate` of the completions.
    """
    for name in weights:
        check_columns(name, columns, options.get(name, {}))
    worker().take(columns)
    values = {name: _outcomes(name, columns, options.get(name, {}), settings.timeout_seconds) for name in weights}
    for name, found in values.items():
        _check_errors(name, found, columns["completions"], where, settings.max_error_rate)
    counted = {name: _with_floor(found, _floor(name, weights[name], settings)) for name, found in values.items()}
    statuses = {name: [_status(value) for value in found] for name, found in values.items()}
    counting = [name for name, weight in weights.items() if weight != 0] or list(weights)
    rows = [_gravest([statuses[name][row] for name in counting]) for row in range(len(where))]
    totals = [None if rows[row] == "error" else _total(weights, counted, row, where[row]) for row in range(len(where))]
    return Scores(counted, statuses, _reasons(values, len(where)), totals, rows)


def _outcomes(name: str, columns: Mapping[str, Sequence[Any]], options: Mapping[str, Option], seconds: float) -> list[Value]:
    """The function's outcome for every row, found by calling it as seldom as can be."""
    clash = sorted(set(options) & set(columns) - options_of(name))
    if clash:
        raise RewardError(f"reward_options.{name}.{clash[0]}: a column of the prompts has this name, and the function is given that")
    here = traits(name)
    bound = LONGEST_SECONDS if here.limits_itself else seconds
    found: dict[int, Value] = {}
    waiting = [list(range(len(columns["completions"])))]
    while waiting:
        rows = waiting.pop()
        try:
            answer = _called_here(name, columns, options, rows) if here.in_trainer else worker().call(name, options, rows, bound)
        except WorkerLost:
            found |= _alone(name, options, rows, bound)
            continue
        if not isinstance(answer, Failed):
            found |= dict(zip(rows, answer, strict=True))
        elif len(rows) == 1:
            found[rows[0]] = answer
        else:
            waiting += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
    return [found[row] for row in range(len(found))]


def _called_here(name: str, columns: Mapping[str, Sequence[Any]], options: Mapping[str, Option], rows: Sequence[int]) -> list[Value] | Failed:
    return call(name, load_reward(name), rows_of(columns, rows), options)


def _alone(name: str, options: Mapping[str, Option], rows: Sequence[int], seconds: float) -> dict[int, Value]:
    """Outcomes of rows on which the worker was lost together, each row asked for alone, and once more in a fresh worker if it is lost again.

    Raises RewardError when the function is lost on an empty completion as well: then no text is to blame.
    """
    found: dict[int, Value] = {}
    is_proven = False
    for row in rows:
        for fresh in (False, True):
            if fresh:
                worker().freshen()
            try:
                answer = worker().call(name, options, [row], seconds)
            except WorkerLost as lost:
                found[row] = Invalid(f"{lost}, twice")
                continue
            found[row] = answer if isinstance(answer, Failed) else answer[0]
            break
        else:
            is_proven = is_proven or _prove(name, options, row, seconds)
    return found


def _prove(name: str, options: Mapping[str, Option], row: int, seconds: float) -> bool:
    """True: the function, lost on this row, is at home to one whose completion says nothing. RewardError otherwise."""
    whole = worker().batch
    said = whole["completions"][row]
    blank = "" if isinstance(said, str) else [*said[:-1], {**said[-1], "content": ""}]
    worker().take({column: [blank if column == "completions" else values[row]] for column, values in whole.items()})
    try:
        worker().call(name, options, [0], seconds)
    except WorkerLost as lost:
        raise RewardError(f"reward {name!r} cannot be used: {lost}, for an empty completion as well as for what a model wrote") from lost
    finally:
        worker().take(whole)
    return True


def _check_errors(name: str, values: Sequence[Value], completions: Sequence[Any], where: Sequence[str], most: float) -> None:
    """Raise RewardError, naming the function, the first row and what happened there, when it failed on too many completions."""
    failed = [row for row, value in enumerate(values) if isinstance(value, Failed)]
    allowed = max(most * len(values), 1.0) if most > 0 else 0.0  # one is not a rate yet
    if len(failed) > allowed:
        row, value = failed[0], values[failed[0]]
        assert isinstance(value, Failed)
        text = completion_text(completions[row])
        raise RewardError(
            f"reward {name!r} {value.error} for {where[row]}: it failed on {len(failed)} of {len(values)} completions, "
            f"scoring.max_error_rate allows {most:g} of them; that completion was {text[:200]!r}" + (f"\n{value.detail.rstrip()}" if value.detail else "")
        )


def _status(value: Value) -> Status:
    if value is None:
        return "no_opinion"
    return "invalid" if isinstance(value, Invalid) else "error" if isinstance(value, Failed) else "ok"


def _gravest(statuses: Sequence[Status]) -> Status:
    if "error" in statuses or "invalid" in statuses:
        return max(statuses, key=STATUSES.index)
    return "ok" if "ok" in statuses else "no_opinion"


def _floor(name: str, weight: float, settings: ScoringConfig) -> Callable[[Iterable[float]], float]:
    """The worst of numbers and of what the function can give: the end of its range that its weight punishes."""
    lowest, highest = traits(name).lowest, traits(name).highest
    end = settings.floors.get(name, lowest if weight >= 0 else highest)
    return (lambda given: min([end, *given])) if weight >= 0 else (lambda given: max([end, *given]))


def _with_floor(values: Sequence[Value], floor: Callable[[Iterable[float]], float]) -> list[float | None]:
    """Numbers, of an invalid completion the floor."""
    worst = floor(value for value in values if isinstance(value, float))
    return [worst if isinstance(value, Invalid) else value if isinstance(value, float) else None for value in values]


def _reasons(values: Mapping[str, Sequence[Value]], rows: int) -> list[str | None]:
    said: list[list[str]] = [[] for _ in range(rows)]
    for name, found in values.items():
        for row, value in enumerate(found):
            if isinstance(value, Failed | Invalid):
                said[row].append(f"{name}: {value.error if isinstance(value, Failed) else value.reason}")
    return ["; ".join(reasons) or None for reasons in said]


def _total(weights: Mapping[str, float], values: Mapping[str, Sequence[float | None]], row: int, where: str) -> float | None:
    parts = [weight * value for name, weight in weights.items() if weight != 0 and (value := values[name][row]) is not None]
    if not parts:
        return None
    try:
        total = math.fsum(parts)
    except OverflowError:
        total = math.inf
    if not math.isfinite(total):
        raise RewardError(f"the weighted sum of rewards for {where} is not a finite number ({' + '.join(map(str, parts))}): use smaller rewards or weights")
    return total
