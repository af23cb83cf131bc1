"""From a prompt forward to every completion that was ever sampled for it: in training, on `select`, in the held-out evaluation."""

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from assets.lineage import Locate
from assets.paths import Paths
from grpo_core.tables import EVALUATION_KEYS, KEYS

if TYPE_CHECKING:
    from pipelines.records.runs import Run

PART = "reward/"
"""Columns that hold what one reward function gave begin with it."""
DRAWN = ("text", "raw_text", "length", "finish_reason", "policy_digest")
EARNED = ("status", "reward", "shaped_reward", "advantage", "clipped_advantage", "reward_code_hash")
ANSWERED = (*EVALUATION_KEYS, "correct", "reward", *DRAWN)
NEAR = 5
"""Prompts named when none fits, or several do."""
MOST_COMPARED = 20_000
"""Texts that are compared letter by letter to name near ones."""


class PromptTraceError(ValueError):
    """A prompt that cannot be found, or is not the only one of that name."""


@dataclass(frozen=True, slots=True)
class PromptTrace:
    """One prompt and every completion of it. A completion's `parts` are what each reward function gave."""

    prompt: dict[str, Any]
    """Its row of the table of prompts; only the `prompt_id` when the table does not hold it any more."""
    training: list[dict[str, Any]]
    select: list[dict[str, Any]]
    heldout: list[dict[str, Any]]
    files: list[str]
    """Tables that were searched: tokens and logprobs stand there."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The tables of one experiment."""

    experiment: str
    locate: Locate

    def table(self, path: Path) -> Path | None:
        """Where a table is; None when it is not on this machine."""
        try:
            located = self.locate(path.as_posix())
        except ValueError:
            return None
        return located if located.is_file() else None

    @property
    def paths(self) -> Paths:
        return Paths(Path(), self.experiment)


def ledgers(root: Path, run: "Run | None") -> list[Ledger]:
    """The ledger of `run`, else those of every experiment that left tables in the checkout."""
    if run is not None:
        return [Ledger(run.experiment, run.file)]
    names = {path.parent.name for pattern in ("rollout_batches/*/*.parquet", "heldout_eval/*/*.parquet") for path in (root / "data").glob(pattern)}
    return [Ledger(name, lambda path: root / path) for name in sorted(names)]


def trace_prompt(root: Path, query: str, run: "Run | None" = None) -> PromptTrace:
    """Every completion of the prompt whose id is or begins with `query`, or whose text it is.

    Raises PromptTraceError when no prompt fits (naming near ones) or several do.
    """
    searched = ledgers(root, run)
    table = searched[0].table(searched[0].paths.prompts) if run is not None else root / Paths(Path()).prompts
    prompt = resolve(query, table if table is not None and table.is_file() else None, searched)
    name, files = prompt["prompt_id"], []
    found: dict[str, list[dict[str, Any]]] = {"training": [], "select": [], "heldout": []}
    for ledger in searched:
        paths = ledger.paths
        rollouts, rewards = ledger.table(paths.rollout_batches), ledger.table(paths.rewards)
        if rollouts is not None:
            found["training"] += _training(ledger.experiment, name, rollouts, rewards)
        answers = {"select": ledger.table(paths.select_completions), "heldout": ledger.table(paths.heldout_completions)}
        for kind, path in answers.items():
            found[kind] += [] if path is None else _answers(ledger.experiment, name, path)
        files += [str(path) for path in (rollouts, rewards, *answers.values()) if path is not None]
    return PromptTrace(prompt, **found, files=files)


def as_json(found: PromptTrace) -> str:
    """The prompt and its completions for machines."""
    return json.dumps(asdict(found), indent=2, ensure_ascii=False, default=str)


def limited(found: PromptTrace, most: int) -> PromptTrace:
    """At most `most` completions of each kind: the first and the last ones."""
    kinds = {kind: ends(getattr(found, kind), most) for kind in ("training", "select", "heldout")}
    return PromptTrace(found.prompt, **kinds, files=found.files)


def ends(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most `most` rows: the first and the last ones."""
    if len(rows) <= most:
        return list(rows)
    last = most // 2
    return [*rows[: most - last], *rows[len(rows) - last :]]


def resolve(query: str, table: Path | None, searched: Iterable[Ledger]) -> dict[str, Any]:
    """The row of the prompt that is meant; of one that only the ledger knows, its id."""
    if not query.strip():
        raise PromptTraceError("a prompt is named by its id, the beginning of its id, or its text: got nothing")
    prompts = pl.DataFrame(schema={"prompt_id": pl.String, "prompt": pl.String})
    if table is not None:
        prompts = pl.scan_parquet(table).select("prompt_id", "prompt").collect()
    meant = _meant(query, prompts)
    if len(meant) == 1 and table is not None:
        return pl.scan_parquet(table).filter(pl.col("prompt_id") == meant["prompt_id"][0]).collect().to_dicts()[0]
    if len(meant) > 1:
        raise PromptTraceError(f"{query!r} is the beginning of {len(meant)} prompts: write more of the id ({_listed(meant)})")
    known = pl.DataFrame({"prompt_id": _ids(searched)}, schema={"prompt_id": pl.String})
    sampled = _meant(query, known.with_columns(prompt=pl.lit("")))
    if len(sampled) == 1:
        return {"prompt_id": sampled["prompt_id"][0]}
    if len(sampled) > 1:
        raise PromptTraceError(f"{query!r} is the beginning of {len(sampled)} prompts: write more of the id ({_listed(sampled)})")
    if prompts.is_empty() and known.is_empty():
        raise PromptTraceError(f"no prompt {query!r}: there is neither a table of prompts nor a ledger yet; `grpo run` makes them")
    raise PromptTraceError(f"no prompt {query!r}: near ones are {_listed(_nearest(query, prompts if not prompts.is_empty() else known))}")


def _meant(query: str, prompts: pl.DataFrame) -> pl.DataFrame:
    """The rows that `query` names: by whole id, else by text, else by the beginning of an id."""
    for rule in (pl.col("prompt_id") == query, pl.col("prompt") == query, pl.col("prompt_id").str.starts_with(query)):
        found = prompts.filter(rule)
        if not found.is_empty():
            return found
    return prompts.clear()


def _ids(searched: Iterable[Ledger]) -> list[str]:
    """Every prompt that a ledger names."""
    ids: set[str] = set()
    for ledger in searched:
        paths = ledger.paths
        for path in map(ledger.table, (paths.rollout_batches, paths.select_completions, paths.heldout_completions)):
            ids |= set() if path is None else set(pl.scan_parquet(path).select(pl.col("prompt_id").unique()).collect()["prompt_id"])
    return sorted(ids)


def _nearest(query: str, prompts: pl.DataFrame) -> pl.DataFrame:
    """Prompts whose text holds `query`, else those whose id or text is most like it."""
    if "prompt" in prompts.columns:
        holding = prompts.filter(pl.col("prompt").str.to_lowercase().str.contains(query.lower(), literal=True)).head(NEAR)
        if not holding.is_empty():
            return holding
    compared = prompts.head(MOST_COMPARED)
    for column in ("prompt_id", "prompt"):
        close = difflib.get_close_matches(query, compared[column].to_list() if column in compared.columns else [], n=NEAR, cutoff=0.6)
        if close:
            return compared.filter(pl.col(column).is_in(close)).head(NEAR)
    return prompts.head(NEAR)


def _listed(prompts: pl.DataFrame) -> str:
    shown = [f"{row['prompt_id']} {row['prompt'][:40]!r}" if row.get("prompt") else row["prompt_id"] for row in prompts.head(NEAR).to_dicts()]
    return ", ".join(shown) + (", …" if len(prompts) > NEAR else "")


def _training(experiment: str, prompt_id: str, rollouts: Path, rewards: Path | None) -> list[dict[str, Any]]:
    """Its completions in training with what they earned, in the order they were drawn."""
    drawn = pl.scan_parquet(rollouts).filter(pl.col("prompt_id") == prompt_id).select(*KEYS, *DRAWN)
    if rewards is not None:
        scores = pl.scan_parquet(rewards)
        parts = [name for name in scores.collect_schema().names() if name.startswith(PART)]
        drawn = drawn.join(scores.filter(pl.col("prompt_id") == prompt_id).select(*KEYS, *EARNED, *parts), on=KEYS, how="left")
    return [{"experiment": experiment, **_with_parts(row)} for row in drawn.sort("step", "group", "completion_index").collect().to_dicts()]


def _answers(experiment: str, prompt_id: str, path: Path) -> list[dict[str, Any]]:
    """Its completions in an evaluation."""
    table = pl.scan_parquet(path)
    columns = [name for name in table.collect_schema().names() if name in ANSWERED or name.startswith(PART)]
    order = [name for name in ("step", "model", "decoding", "sample_index") if name in columns]
    rows = table.filter(pl.col("prompt_id") == prompt_id).select(columns).sort(order).collect().to_dicts()
    return [{"experiment": experiment, **_with_parts(row)} for row in rows]


def _with_parts(row: dict[str, Any]) -> dict[str, Any]:
    """The row with each function's reward under `parts`."""
    plain = {name: value for name, value in row.items() if not name.startswith(PART)}
    return {**plain, "parts": {name.removeprefix(PART): value for name, value in row.items() if name.startswith(PART)}}
