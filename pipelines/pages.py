"""A noun's page in Dagster: what its module shows of it, its hash and size in DVC, the way to its MLflow run."""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from assets.lineage import lineage, table_rows
from assets.page import Chart, Markdown, Table, Value
from assets.paths import Paths
from pipelines.graph import Target
from pipelines.lock import Entry
from pipelines.records.files import read_record
from pipelines.records.runs import TRAINING, find_run

LONGEST_CELL = 200
WORD_JOINER = "\u2060"
ENTITIES = {"&": "&amp;", "<": "&lt;"}
OUTCOME = "dvc/run"
"""Metadata that says how a result came about."""


def page(root: Path, target: Target, asset: str, entry: Entry) -> dict[str, dg.MetadataValue]:
    """Everything shown beside a materialization. A page that cannot be drawn says why and never costs the result it describes."""
    paths = Paths(root, target.experiment or "default")
    try:
        described = dict(import_module(f"assets.{asset}").describe(paths))
        if asset == TRAINING:
            described["made_from"] = made_from(paths)
        shown = {name: metadata_value(value) for name, value in described.items()}
    except Exception as error:  # noqa: BLE001 - the files are made and hashed; a chart that fails must not undo hours of training
        shown = {"page": dg.MetadataValue.text(f"could not be drawn: {type(error).__name__}: {error}")}
    return {**shown, **_link(paths, target), **_hashes(target, asset, entry), **_code(paths, target, entry)}


def made_from(paths: Paths) -> Table:
    """What the experiment's policy was made from, found as `grpo trace` finds it; what the files alone tell where the run cannot be looked up."""
    try:
        run = find_run(paths.root, paths.experiment)
        found = lineage(run.experiment, run.records, run.file)
    except ValueError as error:
        found = lineage(paths.experiment, {}, lambda path: paths.root / path)
        found = replace(found, missing=(" ".join(str(error).split()), *found.missing))
    rows = table_rows(found)
    return Table(pl.DataFrame(rows, schema={"made from": pl.String, "": pl.String}, orient="row"), max_rows=len(rows))


def _hashes(target: Target, asset: str, entry: Entry) -> dict[str, dg.MetadataValue]:
    return {
        "dvc/md5": dg.MetadataValue.text(entry.data_version(target, asset)),
        "dvc/size": dg.MetadataValue.int(entry.size(target, asset)),
        "dvc/target": dg.MetadataValue.text(target.name),
    }


def _code(paths: Paths, target: Target, entry: Entry) -> dict[str, dg.MetadataValue]:
    """The commit that the result came from, and the one that holds the code as it ran where something of it was not committed."""
    try:
        record = read_record(paths, target.stage, entry.outs)
    except ValueError as error:
        return {"git/commit": dg.MetadataValue.text(f"not known: {error}")}
    if record is None or record["commit"] is None:
        return {}
    changed = {"git/snapshot": dg.MetadataValue.text(record["snapshot"])} if record["dirty"] else {}
    return {"git/commit": dg.MetadataValue.text(record["commit"]), **changed}


def _link(paths: Paths, target: Target) -> dict[str, dg.MetadataValue]:
    """The experiment's MLflow run, once training has written its address."""
    address = paths.provenance("grpo_checkpoint") / "mlflow_url.txt"
    if target.experiment is None or not address.is_file():
        return {}
    return {"mlflow": dg.MetadataValue.url(address.read_text(encoding="utf-8").strip())}


def metadata_value(value: Value) -> dg.MetadataValue:
    """One value of a page as Dagster shows it."""
    match value:
        case Table():
            return dg.MetadataValue.md(markdown_table(value.frame.head(value.max_rows).to_dicts()))
        case Chart():
            return dg.MetadataValue.md(f"![chart](data:image/png;base64,{base64.b64encode(value.png).decode()})")
        case Markdown():
            return dg.MetadataValue.md(value.text)
        case Path():
            return dg.MetadataValue.path(value)
        case bool() | str():
            return dg.MetadataValue.text(str(value))
        case int():
            return dg.MetadataValue.int(value)
        case float():
            return dg.MetadataValue.float(value)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table; text stands there as it is (see `escaped`), long cells are cut. A key that a row lacks is an empty cell."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if not columns:
        return "(no rows)"
    lines = [[_cell(row.get(column, "")) for column in columns] for row in rows]
    return "\n".join(["| " + " | ".join(line) + " |" for line in [[_cell(column) for column in columns], ["---"] * len(columns), *lines]])


def _cell(value: Any) -> str:
    if isinstance(value, int | float | None):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    text = str(value)
    return escaped(text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…")


def escaped(text: str) -> str:
    """Markdown that shows `text` to the letter: text of models and data sets must not become links, pictures or markup.

    Addresses are broken by an invisible word joiner, because Dagster's page makes links of them after it has undone all escapes.
    """
    broken = re.sub(r"(?i)https?:(?=//)|www(?=\.)|(?=@)", lambda found: found[0] + WORD_JOINER, text)
    marked = re.sub(r"[!-/:-@\[-`{-~]", lambda found: ENTITIES.get(found[0], "\\" + found[0]), broken)
    return "<br>".join(marked.splitlines())
