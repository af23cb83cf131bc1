"""From a prompt forward to every completion that was ever sampled for it: in training, on `select`, in the held-out evaluation."""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from assets.paths import Paths
from assets.under_review import under_review
from grpo_core.tables import EVALUATION_KEYS, KEYS
from pipelines.lock import file_md5, read_lock
from pipelines.records.dvc_cache import object_path
from pipelines.records.files import Record, read_records, recorded_experiments
from pipelines.records.runs import EVALUATION, TRAINING

if TYPE_CHECKING:
    from pipelines.records.runs import Run

PART, STATUS = "reward/", "status/"
"""Columns that hold what one reward function gave, and what became of the completion there, begin with these."""
DRAWN = ("text", "raw_text", "length", "finish_reason", "policy_digest")
EARNED = ("status", "reason", "reward", "shaped_reward", "advantage", "clipped_advantage", "reward_code_hash")
ANSWERED = (*EVALUATION_KEYS, "correct", "reward", *DRAWN)
NEAR = 5
"""Prompts named when none fits, or several do."""
MOST_COMPARED = 20_000
"""Texts that are compared letter by letter to name near ones."""


class PromptTraceError(ValueError):
    """A prompt that cannot be found, or is not the only one of that name."""


@dataclass(frozen=True, slots=True)
class PromptTrace:
    """One prompt and every completion of it.

    A completion's `run` is its training's key; its `parts` are what each reward function gave, its `statuses` what became of it there if not `ok`.
    """

    prompt: dict[str, Any]
    """Its row of the table of prompts; only the `prompt_id` when the table does not hold it any more."""
    training: list[dict[str, Any]]
    select: list[dict[str, Any]]
    heldout: list[dict[str, Any]]
    files: list[str]
    """Tables that were searched: tokens and logprobs stand there."""
    unsearched: list[str]
    """Recorded runs with tables that are not on this machine."""
    withheld: list[str] = field(default_factory=list)
    """Experiments whose held-out answers to this prompt people judge blind."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The tables of one training or one evaluation: where each of them is, by what it holds; those that are on this machine."""

    experiment: str
    run: str | None
    """Key of the training; None where no record tells it."""
    tables: Mapping[str, Path]
    whole: bool = True
    """Every table of completions that is recorded is here."""


def tables_of(experiment: str) -> dict[str, str]:
    """Kind of table → its repository-relative path."""
    paths = Paths(Path(), experiment)
    tables = {"rollouts": paths.rollout_batches, "rewards": paths.rewards, "select": paths.select_completions, "heldout": paths.heldout_completions}
    return {kind: path.as_posix() for kind, path in tables.items()}


def ledgers(root: Path, run: "Run | None") -> list[Ledger]:
    """The ledgers of `run`, else of every training and evaluation that is recorded or left tables in the checkout, the oldest of an experiment first."""
    if run is not None:
        return _recorded(root, [run.records[noun] for noun in (TRAINING, EVALUATION) if noun in run.records])
    experiments = recorded_experiments(root)
    records = [record for name in experiments for noun in (TRAINING, EVALUATION) for record in reversed(read_records(Paths(root, name), noun))]
    found = _recorded(root, records)
    claimed = {path for ledger in found for path in ledger.tables.values()}
    here = {path.parent.name for pattern in ("rollout_batches/*/*.parquet", "heldout_eval/*/*.parquet") for path in (root / "data").glob(pattern)}
    for name in sorted(here):
        unclaimed = {kind: root / path for kind, path in tables_of(name).items() if (root / path).is_file() and root / path not in claimed}
        found += [Ledger(name, None, unclaimed)] if unclaimed else []
    return found


def _recorded(root: Path, records: Iterable[Record]) -> list[Ledger]:
    """The ledgers of these records, each set of tables once."""
    current = {path: md5 for entry in read_lock(root).values() for path, md5 in entry.outs.items()}
    trained: dict[tuple[str, str], str] = {}
    found: dict[frozenset[tuple[str, str]], Ledger] = {}
    for record in records:
        experiment = str(record["experiment"])
        policy = f"data/{TRAINING}/{experiment}"
        if record["noun"] == TRAINING:
            trained[policy, record["outs"][policy]] = record["run_key"]
        key = trained.get((policy, {**record["deps"], **record["outs"]}.get(policy, "")))
        hashes = {kind: (path, record["outs"][path]) for kind, path in tables_of(experiment).items() if path in record["outs"]}
        places = {kind: _place(root, path, md5, current) for kind, (path, md5) in hashes.items()}
        here = {kind: place for kind, place in places.items() if place is not None}
        whole = here.keys() >= places.keys() - {"rewards"}
        found.setdefault(frozenset(hashes.values()), Ledger(experiment, key, here, whole))
    return list(found.values())


def _place(root: Path, path: str, md5: str, current: Mapping[str, str]) -> Path | None:
    """Where the table with this hash is: in the workspace, in DVC's cache, or not on this machine."""
    workspace, cached = root / path, object_path(root, md5)
    if workspace.is_file() and current.get(path) == md5:
        return workspace
    if cached.is_file():
        return cached
    return workspace if workspace.is_file() and file_md5(workspace) == md5 else None


def trace_prompt(root: Path, query: str, run: "Run | None" = None) -> PromptTrace:
    """Every completion of the prompt whose id is or begins with `query`, or whose text it is.

    Raises PromptTraceError when no prompt fits (naming near ones) or several do.
    """
    searched = ledgers(root, run)
    prompt = resolve(query, _prompts(root, run), searched)
    name, files, withheld = prompt["prompt_id"], [], []
    found: dict[str, list[dict[str, Any]]] = {"training": [], "select": [], "heldout": []}
    for ledger in searched:
        tables = ledger.tables
        if "rollouts" in tables:
            found["training"] += _training(ledger, name)
        hidden = "heldout" in tables and is_under_review(root, ledger.experiment, name, tables["heldout"])
        withheld += [ledger.experiment] * hidden
        for kind in ("select", "heldout"):
            found[kind] += _answers(ledger, name, tables[kind]) if kind in tables and not (hidden and kind == "heldout") else []
        files += [str(path) for path in tables.values()]
    lacking = [f"{ledger.experiment} ({ledger.run[:8]})" if ledger.run else ledger.experiment for ledger in searched if not ledger.whole]
    return PromptTrace(prompt, **{kind: _once(rows) for kind, rows in found.items()}, files=files, unsearched=list(dict.fromkeys(lacking)), withheld=withheld)


def is_under_review(root: Path, experiment: str, prompt_id: str, answers: Path) -> bool:
    """Whether these are the experiment's answers of now, and people judge the prompt blind."""
    paths = Paths(root, experiment)
    if answers != paths.heldout_completions or not paths.prompts.is_file():
        return False
    return prompt_id in under_review(paths, pl.read_parquet(paths.prompts), pl.read_parquet(answers))


def _prompts(root: Path, run: "Run | None") -> Path | None:
    """The table of prompts of the run, else of the checkout; None when it is not on this machine."""
    prompts = Paths(Path()).prompts
    try:
        table = root / prompts if run is None else run.file(prompts.as_posix())
    except ValueError:
        return None
    return table if table.is_file() else None


def _once(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without repetitions: a run that was extended has those of its shorter self in its tables as well."""
    return list({json.dumps(row, sort_keys=True, default=str): row for row in rows}.values())


def as_json(found: PromptTrace) -> str:
    """The prompt and its completions for machines."""
    return json.dumps(asdict(found), indent=2, ensure_ascii=False, default=str)


def limited(found: PromptTrace, most: int) -> PromptTrace:
    """At most `most` completions of each kind: the first and the last ones."""
    kinds = {kind: ends(getattr(found, kind), most) for kind in ("training", "select", "heldout")}
    return PromptTrace(found.prompt, **kinds, files=found.files, unsearched=found.unsearched, withheld=found.withheld)


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
    near = _nearest(query, prompts if not prompts.is_empty() else known)
    hint = f"near ones are {_listed(near)}" if not near.is_empty() else "none is near; data/prompts/prompts.parquet has all of them"
    raise PromptTraceError(f"no prompt {query!r}: {hint}")


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
        for path in (path for kind, path in ledger.tables.items() if kind != "rewards"):
            ids |= set(pl.scan_parquet(path).select(pl.col("prompt_id").unique()).collect()["prompt_id"])
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
    return prompts.clear()


def _listed(prompts: pl.DataFrame) -> str:
    shown = [f"{row['prompt_id']} {row['prompt'][:40]!r}" if row.get("prompt") else row["prompt_id"] for row in prompts.head(NEAR).to_dicts()]
    return ", ".join(shown) + (", …" if len(prompts) > NEAR else "")


def _training(ledger: Ledger, prompt_id: str) -> list[dict[str, Any]]:
    """Its completions in training with what they earned, in the order they were drawn."""
    drawn = pl.scan_parquet(ledger.tables["rollouts"]).filter(pl.col("prompt_id") == prompt_id).select(*KEYS, *DRAWN)
    if "rewards" in ledger.tables:
        scores = pl.scan_parquet(ledger.tables["rewards"])
        earned = [name for name in scores.collect_schema().names() if name in EARNED or name.startswith((PART, STATUS))]
        drawn = drawn.join(scores.filter(pl.col("prompt_id") == prompt_id).select(*KEYS, *earned), on=KEYS, how="left")
    return [_labelled(ledger, row) for row in drawn.sort("step", "group", "completion_index").collect().to_dicts()]


def _answers(ledger: Ledger, prompt_id: str, path: Path) -> list[dict[str, Any]]:
    """Its completions in an evaluation."""
    table = pl.scan_parquet(path)
    columns = [name for name in table.collect_schema().names() if name in ANSWERED or name.startswith(PART)]
    order = [name for name in ("step", "model", "decoding", "sample_index") if name in columns]
    rows = table.filter(pl.col("prompt_id") == prompt_id).select(columns).sort(order).collect().to_dicts()
    return [_labelled(ledger, row) for row in rows]


def _labelled(ledger: Ledger, row: dict[str, Any]) -> dict[str, Any]:
    """The row under its experiment and run, with each function's reward under `parts`."""
    plain = {name: value for name, value in row.items() if not name.startswith((PART, STATUS))}
    parts = {name.removeprefix(PART): value for name, value in row.items() if name.startswith(PART)}
    statuses = {name.removeprefix(STATUS): value for name, value in row.items() if name.startswith(STATUS) and value != "ok"}
    return {"experiment": ledger.experiment, "run": ledger.run, **plain, "parts": parts, "statuses": statuses}
