"""The evidence: reference and policy answer the same held-out prompts, and how sure the difference is."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from assets.champion import WEIGHTS
from assets.contracts import Expectation, Outcome, Validation, answer_facts, fact, validate
from assets.looks import number_of
from assets.page import Chart, Metadata, Progress, ProgressCallback, Table
from assets.paths import Paths
from grpo_core.config import HeldoutEvalConfig, RunConfig

MODELS = ("reference", "policy")
KEYS = ("model", "prompt_id", "decoding", "sample_index")


def produce(paths: Paths, config: RunConfig, on_progress: ProgressCallback) -> None:
    """Let both models answer greedily and at temperature, and write every answer and the summary. From then on the policy counts as looked at."""
    from grpo_core.checkpoint import read_manifest, write_text
    from grpo_core.evaluation import evaluate, evaluation_prompts, kl_to_reference, summarise
    from grpo_core.models import freeze, load_model
    from grpo_core.tables import write_table

    settings = config.heldout_eval
    prompts = evaluation_prompts(pl.read_parquet(paths.prompts), "heldout", settings.max_prompts)
    total, done, tables = len(MODELS) * len(prompts) * (1 + settings.samples_per_prompt), 0, []

    def on_batch(completions: int) -> None:
        nonlocal done
        done += completions
        on_progress(Progress(done, total))

    models = {}
    for name in MODELS:
        folder = _folder(paths, name)
        step = read_manifest(folder).get("step", 0)
        models[name] = freeze(load_model(folder, config.model))
        tables.append(
            evaluate(
                models[name],
                prompts,
                name=name,
                step=step,
                samples=settings.samples_per_prompt,
                settings=settings,
                config=config,
                on_batch=on_batch,
            )
        )
    rows = pl.concat(tables)
    drawn = rows.filter((pl.col("model") == "policy") & (pl.col("decoding") == "sample"))
    kl = kl_to_reference(models["reference"], drawn, temperature=settings.temperature, batch_size=config.rollout.batch_size)
    summary = summarise(rows, MODELS, settings) | {"kl_token_mean": kl[0], "kl_sequence_sum": kl[1]}
    write_table(paths.heldout_completions, rows)
    write_text(paths.heldout_summary, json.dumps(summary, indent=2) + "\n")
    number_of(paths, read_manifest(paths.grpo_checkpoint)["files"][WEIGHTS], experiment=paths.experiment)


def contract(paths: Paths) -> list[Expectation]:
    """What must hold of every answer."""
    return [
        Expectation("ExpectCompoundColumnsToBeUnique", {"column_list": list(KEYS)}, "no answer is counted twice"),
        Expectation("ExpectColumnDistinctValuesToEqualSet", {"column": "model", "value_set": list(MODELS)}, "reference and policy both answered"),
        Expectation("ExpectColumnValuesToBeBetween", {"column": "length", "min_value": 1}, "every answer has at least one token"),
        Expectation("ExpectColumnValuesToBeInSet", {"column": "finish_reason", "value_set": ["eos", "length"]}, "an answer ends by EOS or by its length"),
    ]


def check(paths: Paths) -> Validation:
    """The contract's outcome on the file as it lies on disk."""
    frame = pl.read_parquet(paths.heldout_completions)
    summary = json.loads(paths.heldout_summary.read_text())
    manifests = {name: json.loads((_folder(paths, name) / "manifest.json").read_text()) for name in MODELS}
    return validate("heldout_eval", frame, contract(paths), KEYS, facts(frame, pl.read_parquet(paths.prompts), summary, manifests))


def facts(frame: pl.DataFrame, prompts: pl.DataFrame, summary: dict[str, Any], manifests: Mapping[str, Mapping[str, Any]]) -> list[Outcome]:
    """Same questions to both, none of them seen in training, answered by the weights there are, and a summary that is this table's."""
    heldout = prompts.filter(pl.col("split") == "heldout").select("prompt_id")
    keys = ["prompt_id", "decoding", "sample_index"]
    answered = {name: frame.filter(pl.col("model") == name).select(keys) for name in MODELS}
    missing = [answered[b].join(answered[a], on=keys, how="anti") for a, b in (MODELS, MODELS[::-1])]
    k, kinds = summary["samples_per_prompt"], pl.col("decoding")
    counts = frame.group_by("model", "prompt_id").agg((kinds == "greedy").sum().alias("greedy"), (kinds == "sample").sum().alias("sampled"))
    uneven = counts.filter((pl.col("greedy") != 1) | (pl.col("sampled") != k)).sort("model", "prompt_id")
    graded_by = f"reward/{summary['metric']}"
    unfounded = frame.filter(pl.col("correct").is_null() & pl.col(graded_by).is_not_null())
    comparable = uneven.is_empty() and all(table.is_empty() for table in missing) and not frame.is_empty()
    return [
        fact("only held-out prompts are asked", frame.join(heldout, on="prompt_id", how="anti"), KEYS),
        *[fact(f"{a} answered all that {b} answered", table, keys) for (a, b), table in zip((MODELS, MODELS[::-1]), missing, strict=True)],
        fact(f"every model answers a prompt once greedily and {k} times at temperature", uneven, ["model", "prompt_id", "greedy", "sampled"]),
        *[
            fact(f"{name} answered with its own weights, at its own step", _strangers(frame, name, manifests[name]), [*KEYS, "step", "policy_digest"])
            for name in MODELS
        ],
        fact("an answer is ungraded only where the metric gave nothing", unfounded, [*KEYS, graded_by]),
        *answer_facts(frame, KEYS),
        *([fact("the summary's numbers are the table's", misstated(frame, summary), ["number", "stated", "found"])] if comparable else []),
    ]


def _strangers(frame: pl.DataFrame, name: str, manifest: Mapping[str, Any]) -> pl.DataFrame:
    """Rows of the model called `name` that other weights answered than those of its manifest."""
    own = pl.col("policy_digest").eq_missing(manifest["policy_digest"]) & pl.col("step").eq_missing(manifest.get("step", 0))
    return frame.filter((pl.col("model") == name) & ~own)


def _folder(paths: Paths, name: str) -> Path:
    """Where the weights of the model called `name` lie."""
    return {"reference": paths.reference_checkpoint, "policy": paths.grpo_checkpoint}[name]


def misstated(frame: pl.DataFrame, summary: dict[str, Any]) -> pl.DataFrame:
    """Numbers of the summary that the table does not give again; of a bootstrapped interval (its seed is not here) only that it holds its estimate."""
    from grpo_core.evaluation import summarise

    stated = {name: summary[name] for name in ("metric", "samples_per_prompt", "pass_k", "temperature")}
    config = HeldoutEvalConfig(bootstrap_resamples=100, **stated)  # the least allowed: its intervals are thrown away below
    expected = {name: value for name, value in summarise(frame, MODELS, config).items() if isinstance(value, int | float)}
    rows = []
    for difference in ("difference", "mean_at_k_difference"):
        low, estimate, high = (f"{difference}_low", difference, f"{difference}_high")
        del expected[low], expected[high]
        if not summary[low] <= summary[estimate] <= summary[high]:
            rows.append({"number": f"{low} to {high}", "stated": summary[low], "found": summary[estimate]})
    rows += [
        {"number": name, "stated": summary.get(name), "found": found}
        for name, found in expected.items()
        if name not in summary or not math.isclose(summary[name], found, abs_tol=1e-9)
    ]
    return pl.DataFrame(rows, schema={"number": pl.String, "stated": pl.Float64, "found": pl.Float64})


def describe(paths: Paths) -> Metadata:
    """Accuracies with intervals as a picture, the numbers, and answers side by side, but for those that people judge blind."""
    from assets.charts import accuracy_bars
    from assets.under_review import under_review, withheld_note

    summary, completions = json.loads(paths.heldout_summary.read_text()), pl.read_parquet(paths.heldout_completions)
    greedy = completions.filter(pl.col("decoding") == "greedy")
    prompts = pl.read_parquet(paths.prompts, columns=["prompt_id", "prompt", "answer"])
    hidden = under_review(paths, prompts, completions)
    columns = {
        name: greedy.filter(pl.col("model") == name).select("prompt_id", pl.col("text").alias(name), pl.col("correct").alias(f"{name}_correct"))
        for name in MODELS
    }
    pairs = columns["reference"].join(columns["policy"], on="prompt_id").join(prompts, on="prompt_id").sort("prompt_id")
    return {
        "accuracy": Chart(accuracy_bars(summary)),
        **{name: value for name, value in summary.items() if isinstance(value, int | float)},
        **({"withheld": withheld_note(len(hidden))} if hidden else {}),
        "side_by_side": Table(
            pairs.filter(~pl.col("prompt_id").is_in(list(hidden))).select("prompt", "answer", "reference", "policy", "reference_correct", "policy_correct")
        ),
        "newly_right": int((pairs["policy_correct"] & ~pairs["reference_correct"]).sum()),
        "newly_wrong": int((~pairs["policy_correct"] & pairs["reference_correct"]).sum()),
        "file": paths.heldout_completions,
    }
