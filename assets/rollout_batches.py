"""Every completion that was sampled for training, one row each, with its tokens and the logprobs they were drawn at."""

import json

import polars as pl

from assets.contracts import Expectation, Outcome, Validation, fact, validate
from assets.page import Chart, Metadata, Table
from assets.paths import Paths

KEYS = ("step", "group", "prompt_id", "completion_index")


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
    trained = json.loads((paths.grpo_checkpoint / "manifest.json").read_text())["step"]
    return validate("rollout_batches", frame.drop("prompt_token_ids"), contract(paths), KEYS, facts(frame, pl.read_parquet(paths.prompts), trained))


def facts(frame: pl.DataFrame, prompts: pl.DataFrame, num_steps: int) -> list[Outcome]:
    """What holds of groups, steps and lists: computed here, since it is not a matter of one row's value."""
    train = prompts.filter(pl.col("split") == "train").select("prompt_id")
    logprobs = pl.col("sampling_logprobs")
    sound = logprobs.list.eval((pl.element().is_finite() & (pl.element() <= 0)).fill_null(False)).list.all()
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
        fact(
            "as many logprobs as tokens, as many tokens as the length",
            frame.filter(logprobs.list.len().ne_missing(pl.col("length")) | pl.col("token_ids").list.len().ne_missing(pl.col("length"))),
            [*KEYS, "length"],
        ),
        fact("a logprob is finite and not above 0", frame.filter(~sound), KEYS),
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
        "file": paths.rollout_batches,
    }
