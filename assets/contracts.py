"""What must hold of a table, run by Great Expectations: a violated contract stops the run and says which rows and why."""

import difflib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

MAX_ROWS = 20
"""Offending rows that an outcome keeps."""
MAX_SHOWN = 3
"""Offending rows that the summary prints."""
MAX_VALUE = 80
"""Characters of a value that the summary prints."""

ROW = "row of the table"
"""Column added for Great Expectations, by which offending rows are found again."""


class ContractError(ValueError):
    """A table that breaks its contract; the message is the validation's summary."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One thing that must hold, as Great Expectations knows it."""

    kind: str
    """Class name in great_expectations.expectations, such as `ExpectColumnValuesToBeBetween`; or the name of a fact computed here."""
    arguments: Mapping[str, Any]
    why: str
    """The rule in a person's words, read after "contract of rewards violated: "."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether one expectation held, and the rows where it did not."""

    expectation: Expectation
    success: bool
    unexpected_count: int = 0
    rows: Sequence[Mapping[str, Any]] = ()
    """The first offending rows: key columns and the value."""
    observed: Any = None
    """What was found, where it is not a matter of single rows."""

    @property
    def why(self) -> str:
        return self.expectation.why


@dataclass(frozen=True, slots=True)
class Validation:
    """All outcomes of one noun's contract."""

    noun: str
    num_rows: int
    outcomes: Sequence[Outcome]

    @property
    def success(self) -> bool:
        return all(outcome.success for outcome in self.outcomes)

    def summary(self) -> str:
        """One line when all holds; else one for each violation: the rule, how many rows, the first of them."""
        violated = [outcome for outcome in self.outcomes if not outcome.success]
        if not violated:
            return f"contract of {self.noun} holds: {len(self.outcomes)} expectations on {self.num_rows} rows"
        return "\n".join(f"contract of {self.noun} violated: {_describe(outcome)}" for outcome in violated)

    def write(self, path: Path) -> None:
        """Write the outcomes as JSON derived from the table alone (no clock, no random ids)."""
        path.parent.mkdir(parents=True, exist_ok=True)
        values = {"noun": self.noun, "success": self.success, "num_rows": self.num_rows, "summary": self.summary()}
        text = json.dumps(values | {"expectations": [_as_json(outcome) for outcome in self.outcomes]}, indent=2, ensure_ascii=False, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")

    def require(self) -> None:
        """Raise `ContractError` with the summary unless everything held."""
        if not self.success:
            raise ContractError(self.summary())


def _describe(outcome: Outcome) -> str:
    parts = [outcome.why]
    if outcome.unexpected_count:
        parts.append(f"{outcome.unexpected_count} row{'s' if outcome.unexpected_count > 1 else ''}")
    examples = ["e.g. " + ", ".join(f"{name} {_cut(value)}" for name, value in row.items()) for row in outcome.rows[:MAX_SHOWN]]
    if examples:
        parts.append("; ".join(examples))
    elif outcome.observed is not None:
        parts.append(f"found {outcome.observed}")
    return f"{parts[0]}: {', '.join(parts[1:])}" if parts[1:] else parts[0]


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 3]}..."


def _plain(value: Any) -> Any:
    """`value` in JSON's types: numpy scalars as Python's, NaN and infinities as text, everything else unknown as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in (sorted(value, key=repr) if isinstance(value, set | frozenset) else value)]
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "kind": outcome.expectation.kind,
        "arguments": _plain(outcome.expectation.arguments),
        "why": outcome.why,
        "success": outcome.success,
        "unexpected_count": outcome.unexpected_count,
        "rows": _plain(outcome.rows),
        "observed": _plain(outcome.observed),
    }


def fact(why: str, offending: pl.DataFrame, columns: Sequence[str]) -> Outcome:
    """An outcome computed by the caller: it holds when no row is `offending`; `columns` are what to show of one."""
    rows = offending.select(columns).head(MAX_ROWS).to_dicts()
    return Outcome(Expectation("fact", {}, why), offending.is_empty(), offending.height, _plain(rows))


def sound_lists(frame: pl.DataFrame, keys: Sequence[str], prefix: str = "") -> list[Outcome]:
    """Facts about completions in any table: lists of one length, logprobs that are some."""
    logprobs = pl.col("sampling_logprobs")
    sound = logprobs.list.eval((pl.element().is_finite() & (pl.element() <= 0)).fill_null(False)).list.all()
    uneven = frame.filter(logprobs.list.len().ne_missing(pl.col("length")) | pl.col("token_ids").list.len().ne_missing(pl.col("length")))
    return [
        fact(f"{prefix}as many logprobs as tokens, as many tokens as the length", uneven, [*keys, "length"]),
        fact(f"{prefix}a logprob is finite and not above 0", frame.filter(~sound), keys),
    ]


def answer_facts(frame: pl.DataFrame, keys: Sequence[str], prefix: str = "") -> list[Outcome]:
    """Facts about the answers of an evaluation: sound lists, and rewards that are numbers wherever a function had an opinion."""
    parts = [name for name in frame.columns if name == "reward" or name.startswith("reward/")]
    infinite = frame.filter(pl.any_horizontal(pl.col(parts).is_finite().not_().fill_null(False)))
    return [*sound_lists(frame, keys, prefix), fact(f"{prefix}an answer's rewards are finite numbers or empty", infinite, [*keys, *parts])]


def _columns(expectation: Expectation) -> list[str]:
    """Columns that an expectation reads: the arguments that Great Expectations names `column...`."""
    named = [value for key, value in expectation.arguments.items() if key in ("column", "column_A", "column_B")]
    return named + list(expectation.arguments.get("column_list", ()))


def _missing(frame: pl.DataFrame, expectations: Sequence[Expectation]) -> list[Outcome]:
    """Failed outcomes of expectations on columns that the table lacks."""
    outcomes = []
    for expectation in expectations:
        for column in _columns(expectation):
            if column not in frame.columns:
                near = difflib.get_close_matches(column, frame.columns, n=1)
                outcomes.append(Outcome(expectation, False, observed=f"no column {column!r} (nearest: {near[0] if near else ', '.join(frame.columns)})"))
    return outcomes


def _not_finite(frame: pl.DataFrame, columns: Sequence[str], key_columns: Sequence[str]) -> list[Outcome]:
    """One fact for each column of floats: no NaN and no infinity. Great Expectations would pass them over as missing values."""
    floats = [column for column in columns if frame.schema[column].is_float()]
    return [
        fact(f"{column} is a finite number or empty", frame.filter(~pl.col(column).is_finite().fill_null(True)), list(dict.fromkeys([*key_columns, column])))
        for column in floats
    ]


def _outcome(expectation: Expectation, result: Any, frame: pl.DataFrame, key_columns: Sequence[str]) -> Outcome:
    """Great Expectations' result in our words; a check that crashed is a violation that says so."""
    failures = [info["exception_message"] for info in _exceptions(result.exception_info)]
    details = result.result
    places = [entry[ROW] for entry in details.get("unexpected_index_list") or []]
    shown = list(dict.fromkeys([*key_columns, *_columns(expectation)]))
    offending = frame.filter(pl.int_range(pl.len()).is_in(places)).select(shown).head(MAX_ROWS).to_dicts() if places else []
    observed = details.get("observed_value")
    if observed is None and details.get("partial_missing_list"):
        observed = f"nothing equal to {details['partial_missing_list']}"
    if failures:
        observed = failures[0]
    return Outcome(expectation, bool(result.success), int(details.get("unexpected_count") or 0), _plain(offending), _plain(observed))


def _exceptions(info: Any) -> list[Mapping[str, Any]]:
    """Raised exceptions: Great Expectations gives one mapping, or one for every metric."""
    entries = [info] if "raised_exception" in info else list(info.values())
    return [entry for entry in entries if entry.get("raised_exception")]


def _run(frame: pl.DataFrame, expectations: Sequence[Expectation], key_columns: Sequence[str]) -> list[Outcome]:
    """Outcomes of Great Expectations on a pandas copy, in the order of `expectations`."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    suite = gx.ExpectationSuite(name="contract")
    for index, expectation in enumerate(expectations):
        kind = getattr(gx.expectations, expectation.kind, None)
        if kind is None:
            near = difflib.get_close_matches(expectation.kind, dir(gx.expectations), n=1)
            raise ValueError(f"Great Expectations knows no {expectation.kind!r}" + (f": did you mean {near[0]!r}?" if near else ""))
        suite.add_expectation(kind(**expectation.arguments, meta={"index": index}))
    definition = context.data_sources.add_pandas("tables").add_dataframe_asset("table").add_batch_definition_whole_dataframe("whole")
    batch = definition.get_batch({"dataframe": frame.with_row_index(ROW).to_pandas()})
    report = batch.validate(suite, result_format={"result_format": "COMPLETE", "unexpected_index_column_names": [ROW]})
    results = {result.expectation_config.meta["index"]: result for result in report.results}
    return [_outcome(expectation, results[index], frame, key_columns) for index, expectation in enumerate(expectations)]


def validate(noun: str, frame: pl.DataFrame, expectations: Sequence[Expectation], key_columns: Sequence[str], facts: Sequence[Outcome] = ()) -> Validation:
    """Every expectation's outcome on the columns it reads, then the facts that the caller computed."""
    missing = _missing(frame, expectations)
    runnable = [expectation for expectation in expectations if all(column in frame.columns for column in _columns(expectation))]
    read = list(dict.fromkeys(column for expectation in runnable for column in _columns(expectation)))
    kept = list(dict.fromkeys([*key_columns, *read]))
    outcomes = _run(frame.select(kept), runnable, key_columns) if runnable else []
    return Validation(noun, frame.height, [*missing, *outcomes, *_not_finite(frame, read, key_columns), *facts])
