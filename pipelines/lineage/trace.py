"""From a run back to everything it was made from: its lineage, each step's rollouts, the evidence, and where every file is."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from assets.lineage import Lineage, lineage
from assets.paths import Paths
from grpo_core.statistics import wilson
from pipelines.lineage.logged_values import logged

if TYPE_CHECKING:
    from pipelines.records.runs import Run


class TableError(ValueError):
    """A table of the ledger that cannot be read."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What one model came from. Plain values throughout: `asdict` is its JSON."""

    run: Mapping[str, str | None]
    """`label`, `experiment`, `run_key`, `mlflow_run_id`."""
    made_from: Lineage
    steps: list[dict[str, Any]]
    """A row a step: `step`, `prompts`, `completions`, `tokens`, `reward`, `length` (means), `policy_digest` of the weights that drew it."""
    select: list[dict[str, Any]]
    """A row an evaluation on `select`: `step`, `num_prompts`, `accuracy` with its interval, `length`."""
    heldout: Mapping[str, Any]
    """The held-out summary; empty when there is none."""
    files: Mapping[str, str | None]
    """Repository-relative path of each output → where its bytes are now; None when they are not on this machine."""
    missing: tuple[str, ...]
    """What could not be found, and why."""


def trace(run: "Run") -> Trace:
    """Gather all of it; whatever is not on this machine is left out and named in `missing`."""
    missing: list[str] = []
    files = {path: _located(run, path, missing) for path in outputs(run.experiment)}
    found = lineage(run.experiment, run.records, run.file)
    if found.step is None:
        found = replace(found, config={**logged(run).config, **found.config})
    return Trace(
        run={"label": run.label(), "experiment": run.experiment, "run_key": run.run_key, "mlflow_run_id": run.mlflow_run_id},
        made_from=found,
        steps=steps(run),
        select=select_evaluations(run),
        heldout=heldout(run),
        files=files,
        missing=tuple(dict.fromkeys([*found.missing, *missing])),
    )


def as_json(found: Trace) -> str:
    """The whole trace for machines."""
    return json.dumps(asdict(found), indent=2, ensure_ascii=False, default=str)


def outputs(experiment: str) -> list[str]:
    """Repository-relative paths of what a run leaves, in the order it is made. Of a folder, the file that names the rest of it."""
    paths = Paths(Path(), experiment)
    folders = [paths.sft_checkpoint, paths.reference_checkpoint, paths.grpo_checkpoint]
    tables = [paths.rollout_batches, paths.rewards, paths.exploits, paths.select_completions]
    evidence = [paths.heldout_completions, paths.heldout_summary, paths.blind_review_pairs]
    made = [paths.prompts, *[folder / "manifest.json" for folder in folders], paths.grpo_checkpoint / "metrics.jsonl", *tables, *evidence]
    return [path.as_posix() for path in made]


def find(run: "Run", path: Path) -> Path | None:
    """Where the bytes of an output are; None when they are not on this machine."""
    located = _located(run, path.as_posix(), [])
    return Path(located) if located else None


def steps(run: "Run") -> list[dict[str, Any]]:
    """What was sampled and earned in each step: from the ledger, else from the curves kept beside the weights."""
    paths = Paths(Path(), run.experiment)
    rollouts, rewards = find(run, paths.rollout_batches), find(run, paths.rewards)
    if rollouts is None or rewards is None:
        return _steps_of_curves(metrics(run))
    drawn = pl.scan_parquet(rollouts).group_by("step").agg(
        pl.col("prompt_id").n_unique().alias("prompts"),
        pl.len().alias("completions"),
        pl.col("length").cast(pl.Int64).sum().alias("tokens"),
        pl.col("length").mean().alias("length"),
        pl.col("policy_digest").first(),
    )  # fmt: skip
    earned = pl.scan_parquet(rewards).group_by("step").agg(pl.col("reward").mean())
    columns = ("step", "prompts", "completions", "tokens", "reward", "length", "policy_digest")
    return drawn.join(earned, on="step", how="left").sort("step").select(columns).collect().to_dicts()


def metrics(run: "Run") -> pl.DataFrame:
    """The curves, a row a step: those beside the weights, else MLflow's; empty when there are none."""
    path = find(run, Paths(Path(), run.experiment).grpo_checkpoint / "metrics.jsonl")
    return logged(run).curves if path is None else pl.read_ndjson(path, infer_schema_length=None)


def select_evaluations(run: "Run") -> list[dict[str, Any]]:
    """Greedy accuracy on the `select` split during training, with Wilson's interval; an evaluation of which nothing could be graded is left out."""
    path = find(run, Paths(Path(), run.experiment).select_completions)
    if path is None:
        return []
    greedy = pl.scan_parquet(path).filter(pl.col("decoding") == "greedy")
    counted = greedy.group_by("step").agg(pl.col("correct").count().alias("num_prompts"), pl.col("correct").sum(), pl.col("length").mean()).sort("step")
    rows = []
    for row in counted.filter(pl.col("num_prompts") > 0).collect().to_dicts():
        share = wilson(row["correct"], row["num_prompts"])
        accuracy = _ends("accuracy", share.estimate, share.low, share.high)
        rows.append({"step": row["step"], "num_prompts": row["num_prompts"], **accuracy, "length": row["length"]})
    return rows


def heldout(run: "Run") -> dict[str, Any]:
    """The held-out summary as it was written; where it is gone each model's accuracy from its answers, else what MLflow holds."""
    paths = Paths(Path(), run.experiment)
    try:
        return run.json(paths.heldout_summary.as_posix())
    except (ValueError, OSError):
        answers = find(run, paths.heldout_completions)
    if answers is None:
        return logged(run).heldout
    graded = pl.scan_parquet(answers).filter((pl.col("decoding") == "greedy") & pl.col("correct").is_not_null())
    greedy = graded.group_by("model").agg(pl.len(), pl.col("correct").sum()).sort("model")
    found: dict[str, Any] = {}
    for name, asked, right in greedy.collect().rows():
        share = wilson(right, asked)
        found |= {"num_prompts": asked, **_ends(f"{name}_accuracy", share.estimate, share.low, share.high)}
    return found


@contextmanager
def readable_tables() -> Iterator[None]:
    """Say in a line that a table cannot be read; raises TableError."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        reason = str(error).strip().partition("\n")[0]
        raise TableError(f"a table of the ledger cannot be read ({reason}): `grpo verify` says which file is damaged") from error


def _located(run: "Run", path: str, missing: list[str]) -> str | None:
    try:
        located = run.file(path)
    except ValueError as error:
        missing.append(f"{path}: {' '.join(str(error).split())}")
        return None
    return str(located)


def _steps_of_curves(curves: pl.DataFrame) -> list[dict[str, Any]]:
    """Steps with what the curves tell of them; prompts, completions and digests stand in the ledger alone."""
    rows = [row for row in curves.to_dicts() if row.get("tokens") is not None]
    known = [{"tokens": int(row["tokens"]), "reward": row.get("reward/mean"), "length": row.get("length/mean")} for row in rows]
    return [{"step": row["step"], "prompts": None, "completions": None, **told, "policy_digest": None} for row, told in zip(rows, known, strict=True)]


def _ends(name: str, estimate: float, low: float, high: float) -> dict[str, float]:
    return {name: estimate, f"{name}_low": low, f"{name}_high": high}
