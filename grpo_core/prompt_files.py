"""A user's file of prompts as columns: JSONL, CSV or Parquet by its ending, every fault named by file, line, value and remedy."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from grpo_core.requirements import nearest

MAX_SHOWN = 5
"""Offending rows that an error message shows; it counts the rest."""
MAX_VALUE = 100
"""Characters of a value that an error message shows."""


class PromptsError(ValueError):
    """Prompts that cannot be trained on: says which file, which rows, which values and what to do."""


def shown(value: object) -> str:
    """`value` as Python writes it, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 3]}..."


def prompts_error(what: str, offenders: Sequence[str], remedy: str) -> PromptsError:
    """The error for `what`, listing the first offenders, how many there are and the remedy."""
    lines = [f"{what} ({len(offenders)} in all):" if len(offenders) > 1 else f"{what}:"]
    lines += [f"  {offender}" for offender in offenders[:MAX_SHOWN]]
    if len(offenders) > MAX_SHOWN:
        lines.append(f"  ... and {len(offenders) - MAX_SHOWN} more")
    return PromptsError("\n".join([*lines, f"remedy: {remedy}"]))


def place(source_file: str, source_row: int) -> str:
    """A row's place as a person finds it: text files are counted in lines (a header is line 1), Parquet and generated rows in rows."""
    unit = "line" if Path(source_file).suffix.lower() in (".jsonl", ".csv") else "row"
    return f"{source_file} {unit} {source_row}"


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The columns of one file and where each row stands in it."""

    name: str
    rows: list[int]
    """Line (JSONL, CSV) or row (Parquet) of every record, from 1."""
    columns: Mapping[str, pl.Series | list[Any]]

    def values(self, column: str) -> list[Any]:
        """The column as Python values, None where a row has none."""
        values = self.columns[column]
        return values.to_list() if isinstance(values, pl.Series) else values

    def series(self, column: str) -> pl.Series:
        """The column as a typed series: Parquet's own type, else the one type all values share, else their JSON text."""
        values = self.columns[column]
        return values if isinstance(values, pl.Series) else _typed_series(column, values)

    def refuse(self, what: str, faults: Sequence[tuple[int, str]], remedy: str) -> None:
        """Raise `PromptsError` when there are faults, each the index of a record and what is wrong with it."""
        if faults:
            raise prompts_error(f"{self.name}: {what}", [f"{place(self.name, self.rows[index])}: {text}" for index, text in faults], remedy)


def _common_type(values: list[Any]) -> Any:
    """The polars type that holds all `values` unchanged, or None when they share none (objects, mixed kinds, huge integers)."""
    kinds = {type(value) for value in values}
    if kinds <= {int, float} and any(isinstance(value, int) and abs(value) > 2**53 for value in values):
        return pl.Int64 if kinds == {int} and all(-(2**63) <= value < 2**63 for value in values) else None
    if kinds == {list}:
        inner = _common_type([item for value in values for item in value if item is not None])
        return None if inner is None else pl.List(inner)
    if kinds == {int, float}:
        return pl.Float64
    return {frozenset(): pl.String, frozenset([str]): pl.String, frozenset([bool]): pl.Boolean, frozenset([int]): pl.Int64, frozenset([float]): pl.Float64}.get(
        frozenset(kinds)
    )


def _typed_series(name: str, values: list[Any]) -> pl.Series:
    dtype = _common_type([value for value in values if value is not None])
    if dtype is not None:
        return pl.Series(name, values, dtype=dtype, strict=dtype != pl.Float64)
    texts = [None if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True) for value in values]
    return pl.Series(name, texts, dtype=pl.String)


def _read_text(path: Path) -> str:
    """The file as text, without a byte order mark; raises at the first byte that is not UTF-8."""
    data = path.read_bytes()
    remedy = "save the file as UTF-8 (in a shell: iconv -f LATIN1 -t UTF-8 old > new, with the encoding it really has)"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise prompts_error(f"{path}: not UTF-8", [f"{place(str(path), 1)}: the byte order mark of UTF-16"], remedy)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # error.start counts within error.object, which is the data after a byte order mark.
        before = bytes(error.object)[: error.start]
        line, byte = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        fault = f"{place(str(path), line)}, byte {byte} of the line: 0x{error.object[error.start]:02x} does not belong to UTF-8"
        raise prompts_error(f"{path}: not UTF-8", [fault], remedy) from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} appears twice")
    return record


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON value")


def _parse_line(line: str) -> dict[str, Any]:
    """One record; raises ValueError saying what is wrong with the line."""
    try:
        record = json.loads(line, object_pairs_hook=_unique_keys, parse_constant=_not_json)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at character {error.colno} ({error.msg})") from error
    if not isinstance(record, dict):
        raise ValueError('not a JSON object such as {"prompt": ..., "answer": ...}')
    if "\\u" in line and any("\ud800" <= character <= "\udfff" for character in json.dumps(record, ensure_ascii=False)):
        raise ValueError("holds half of a surrogate pair (a \\ud... escape without its partner), which is no character")
    return record


def _read_jsonl(path: Path) -> PromptFile:
    records: list[dict[str, Any]] = []
    rows: list[int] = []
    faults = []
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            records.append(_parse_line(line))
            rows.append(number)
        except ValueError as error:
            faults.append(f"{place(str(path), number)}: {error}: {shown(line)}")
    if faults:
        raise prompts_error(f"{path}: broken lines", faults, "write one JSON object a line, nothing else on it")
    names = list(dict.fromkeys(name for record in records for name in record))
    return PromptFile(str(path), rows, {name: [record.get(name) for record in records] for name in names})


def _csv_records(path: Path) -> tuple[list[str], list[int], list[list[str]]]:
    """Header, the line each record starts on, and the records, blank lines skipped."""
    reader = csv.reader(io.StringIO(_read_text(path), newline=""), strict=True)
    lines, records, start = [], [], 1
    try:
        for record in reader:
            if record:
                lines.append(start)
                records.append(record)
            start = reader.line_num + 1
    except csv.Error as error:
        fault = f"{place(str(path), start)}: {error}"
        raise prompts_error(f"{path}: broken CSV", [fault], "close every quote and write a quote inside a quoted cell twice") from error
    return (records[0] if records else []), lines[1:], records[1:]


def _read_csv(path: Path) -> PromptFile:
    header, rows, records = _csv_records(path)
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise prompts_error(
            f"{path}: column names appear twice", [f"{place(str(path), 1)}: {', '.join(map(repr, repeated))}"], "give every column a name of its own"
        )
    ragged = [
        f"{place(str(path), row)}: {len(record)} cells where the header has {len(header)}: {shown(record)}"
        for row, record in zip(rows, records, strict=True)
        if len(record) != len(header)
    ]
    if ragged:
        raise prompts_error(f"{path}: rows of the wrong width", ragged, 'put a cell that holds commas or line breaks in double quotes ("...")')
    return PromptFile(str(path), rows, {name: [record[index] for record in records] for index, name in enumerate(header)})


def _read_parquet(path: Path) -> PromptFile:
    try:
        frame = pl.read_parquet(path)
    except pl.exceptions.PolarsError as error:
        raise PromptsError(f"{path}: not a readable Parquet file: {error}\nremedy: write it again, or give it the ending of what it is") from error
    return PromptFile(str(path), list(range(1, frame.height + 1)), {name: frame[name] for name in frame.columns})


def read_file(path: Path) -> PromptFile:
    """The rows of a JSONL, CSV or Parquet file, at least one; raises `PromptsError` at anything it cannot read as it is meant."""
    readers: dict[str, Callable[[Path], PromptFile]] = {".jsonl": _read_jsonl, ".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        hint = nearest(path.suffix, list(readers)) if path.suffix else f"valid endings: {', '.join(readers)}"
        raise PromptsError(f"{path}: the ending {path.suffix!r} is none of {', '.join(readers)}\nremedy: convert the file or rename it to what it is ({hint})")
    if not path.is_file():
        siblings = [str(p) for p in sorted(path.parent.glob("*")) if p.suffix.lower() in readers]
        hint = f" (beside it: {', '.join(siblings[:MAX_SHOWN])})" if siblings else ""
        raise PromptsError(f"{path}: no such file{hint}\nremedy: correct prompts.path or prompts.heldout_path; they count from the repository root")
    file = readers[path.suffix.lower()](path)
    if not file.rows:
        raise PromptsError(f"{path}: holds no rows\nremedy: write at least one prompt into it")
    return file
