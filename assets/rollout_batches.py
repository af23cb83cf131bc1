"""Every completion that was sampled for training, one row each, with its tokens and the logprobs they were drawn at.

Beside it, in a table of its own: what the policy answered the `select` prompts on the way, which is never trained on.
"""

import json
from collections.abc import Mapping
from typing import Any

import polars as pl

from assets.contracts import Expectation, Outcome, Validation, answer_facts, fact, sound_lists, validate
from assets.page import Chart, Metadata, Table
from assets.paths import Paths
from grpo_core.tables import EVALUATION_KEYS, KEYS


def contract(paths: Paths) -> list[Expectation]:
    """What must hold of every row."""
    return [
        Expectation("ExpectCompoundColumnsToBeUnique", {"column_list": ["step", "group", "completion_index"]}, "no completion stands in the table twice"),
        Expectation("ExpectColumnValuesToBeBetween", {"column": "step", "min_value": 1}, "steps count from 1"),
        Expectation("ExpectColumnValuesToNotBeNull", {"column": "prompt_id"}, "every completion has a prompt"),
        Expectation("ExpectColumnValuesToBeBetween", {"column": "length", "min_value": 1}, "every completion has at least one token"),
        Expectation("ExpectColumnValuesToBeInSet", {"column": "finish_reason", "value_set": ["eos", "length"]}, "a completion ends by EOS or by its length"),
        Expectation("ExpectColumnValuesToNotBeNull", {"column": "policy_digest"}, "every completion says which weights drew it"),
        Expectation("ExpectColumnValuesToNotBeNull", {"column": "text"}, "every completion has a text"),
    ]


def check(paths: Paths) -> Validation:
    """The contract's outcome on the file as it lies on disk."""
    frame = pl.read_parquet(paths.rollout_batches)
    prompts = pl.read_parquet(paths.prompts)
    manifest = json.loads((paths.grpo_checkpoint / "manifest.json").read_text())
    curve = pl.read_ndjson(paths.grpo_checkpoint / "metrics.jsonl", infer_schema_length=None)
    selected = select_facts(pl.read_parquet(paths.select_completions), frame, prompts, manifest, curve)
    held = [*facts(frame, prompts, manifest["step"]), *selected]
    return validate("rollout_batches", frame.drop("prompt_token_ids"), contract(paths), KEYS, held)


def facts(frame: pl.DataFrame, prompts: pl.DataFrame, num_steps: int) -> list[Outcome]:
    """What holds of groups, steps and lists: computed here, since it is not a matter of one row's value."""
    train = prompts.filter(pl.col("split") == "train").select("prompt_id")
    groups = frame.group_by("step", "group").agg(
        pl.len().alias("completions"), pl.col("prompt_id").n_unique().alias("prompts"), pl.col("prompt_id").first(), pl.col("completion_index").sort()
    )
    size = int(max(groups["completions"], default=0))
    whole = (pl.col("completions") == size) & (pl.col("prompts") == 1) & (pl.col("completion_index") == pl.lit(list(range(size))))
    broken = groups.filter(~whole).sort("step", "group")
    digests = frame.group_by("step").agg(pl.col("policy_digest").n_unique().alias("policies")).filter(pl.col("policies") != 1).sort("step")
    batches = groups.group_by("step").agg(pl.len().alias("groups"), pl.col("group").max().alias("last"))
    most = int(max(batches["groups"], default=0))
    thin = batches.filter((pl.col("groups") != most) | (pl.col("last") != most - 1)).sort("step")
    expected = pl.DataFrame({"step": pl.Series(range(1, num_steps + 1), dtype=pl.Int64)})
    gaps = expected.join(batches, on="step", how="full", coalesce=True).filter(pl.col("groups").is_null() | (pl.col("step") > num_steps)).sort("step")
    return [
        fact(f"a group is one prompt and {size} completions", broken, ["step", "group", "prompt_id", "prompts", "completions"]),
        fact(f"a step is {most} groups", thin, ["step", "groups"]),
        fact(f"all {num_steps} steps are there and no other", gaps, ["step"]),
        fact("one policy draws all completions of a step", digests, ["step", "policies"]),
        fact("only train prompts are trained on", frame.join(train, on="prompt_id", how="anti"), KEYS),
        *sound_lists(frame, KEYS),
    ]


def select_facts(frame: pl.DataFrame, rollouts: pl.DataFrame, prompts: pl.DataFrame, manifest: Mapping[str, Any], curve: pl.DataFrame) -> list[Outcome]:
    """What holds of the answers to `select` prompts, beside the rollouts, the manifest and the metrics of the same training."""
    settings, num_steps = manifest["config"]["grpo"], manifest["step"]
    select = prompts.filter(pl.col("split") == "select").select("prompt_id")
    asked = min(len(select), settings["select_max_prompts"])
    due = list(range(0, num_steps + 1, settings["eval_every"])) if settings["eval_every"] and asked else []
    expected = pl.DataFrame({"step": due, "due": True}, schema={"step": pl.Int64, "due": pl.Boolean})
    found = frame.group_by("step").agg(pl.col("prompt_id").n_unique().alias("prompts"), pl.len().alias("answers"), pl.col("correct").mean())
    asked_once = pl.col("prompts").eq_missing(asked) & pl.col("answers").eq_missing(asked) & pl.col("due").is_not_null()
    uneven = found.join(expected, on="step", how="full", coalesce=True).filter(~asked_once).sort("step")
    drew = rollouts.group_by("step").agg(pl.col("policy_digest").first().alias("own")).select(pl.col("step") - 1, "own")
    policies = pl.concat([drew, pl.DataFrame({"step": num_steps, "own": manifest["policy_digest"]}, schema=drew.schema)])
    strangers = frame.join(policies, on="step", how="left", maintain_order="left").filter(pl.col("policy_digest").ne_missing(pl.col("own")))
    accuracy = "eval/select_accuracy"
    stated = curve.select("step", accuracy).drop_nulls() if accuracy in curve.columns else pl.DataFrame(schema={"step": pl.Int64, accuracy: pl.Float64})
    apart = (
        found.drop_nulls("correct")
        .join(stated, on="step", how="full", coalesce=True)
        .filter(~((pl.col("correct") - pl.col(accuracy)).abs() < 1e-9).fill_null(False))
    )
    return [
        fact("only select prompts are asked to choose a checkpoint", frame.join(select, on="prompt_id", how="anti"), EVALUATION_KEYS),
        fact(f"each of {len(due)} evaluations asks {asked} select prompts once", uneven, ["step", "prompts", "answers"]),
        fact("the policy after a step is the one that answers at that step", strangers, [*EVALUATION_KEYS, "policy_digest"]),
        fact("the curve of select accuracy is that of the answers", apart.sort("step"), ["step", accuracy, "correct"]),
        *answer_facts(frame, EVALUATION_KEYS, "select: "),
    ]


def describe(paths: Paths) -> Metadata:
    """How many completions, how long, and the first and last ones to read."""
    from assets.histograms import length_histogram

    frame = pl.read_parquet(paths.rollout_batches)
    shown = ["step", "prompt_id", "text", "length", "finish_reason"]
    last = frame["step"].max()
    return {
        "completions": len(frame),
        "tokens": int(frame["length"].sum()),
        "mean_length": float(frame["length"].mean()),  # type: ignore[arg-type]
        "truncated_fraction": float((frame["finish_reason"] == "length").mean()),  # type: ignore[arg-type]
        "first_step": Table(frame.filter(pl.col("step") == 1).select(shown)),
        "last_step": Table(frame.filter(pl.col("step") == last).select(shown)),
        "lengths": Chart(length_histogram(frame)),
        "select_answers": pl.scan_parquet(paths.select_completions).select(pl.len()).collect().item(),
        "file": paths.rollout_batches,
        "select_file": paths.select_completions,
    }
