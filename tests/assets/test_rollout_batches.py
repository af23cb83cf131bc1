import json

import polars as pl
import pytest

from assets import rollout_batches
from assets.contracts import Outcome
from assets.page import Chart, Table
from assets.paths import Paths
from tests.assets.lifecycle import names, replace_json, replace_table, violations

FIRST = (pl.col("step") == 2) & (pl.col("group") == 1) & (pl.col("completion_index") == 0)


def faults(paths: Paths, table: pl.DataFrame) -> dict[str, Outcome]:
    replace_table(paths.rollout_batches, table)
    return violations(rollout_batches.check(paths))


def test_a_trained_runs_rollouts_keep_their_contract(lifecycle: Paths) -> None:
    outcome = rollout_batches.check(lifecycle)
    assert outcome.success, outcome.summary()
    assert outcome.num_rows == 64


def test_the_contract_is_about_columns_the_table_has(lifecycle: Paths) -> None:
    columns = pl.read_parquet_schema(lifecycle.rollout_batches)
    for expectation in rollout_batches.contract(lifecycle):
        assert set(expectation.arguments.get("column_list", [expectation.arguments.get("column")])) <= set(columns)


def test_a_missing_and_a_doubled_completion_are_found_and_named(spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.rollout_batches)
    prompt = table.filter(FIRST)["prompt_id"][0]
    (missing,) = faults(spoilt, table.filter(~FIRST)).items()
    assert missing[0] == "a group is one prompt and 4 completions"
    assert names(missing[1], step=2, group=1, prompt_id=prompt, prompts=1, completions=3)
    doubled = faults(spoilt, pl.concat([table, table.filter(FIRST)]))
    assert names(doubled["no completion stands in the table twice"], step=2, group=1, prompt_id=prompt, completion_index=0)


def test_a_held_out_prompt_among_the_rollouts_is_found_and_named(spoilt: Paths) -> None:
    heldout = pl.read_parquet(spoilt.prompts).filter(pl.col("split") == "heldout")["prompt_id"][0]
    group = (pl.col("step") == 2) & (pl.col("group") == 1)
    table = pl.read_parquet(spoilt.rollout_batches).with_columns(prompt_id=pl.when(group).then(pl.lit(heldout)).otherwise("prompt_id"))
    found = faults(spoilt, table)
    assert set(found) == {"only train prompts are trained on"}
    assert found["only train prompts are trained on"].unexpected_count == 4
    assert names(found["only train prompts are trained on"], step=2, group=1, prompt_id=heldout, completion_index=0)


LOGPROBS = pl.col("sampling_logprobs")
FAULTS: list[tuple[str, pl.Expr, str]] = [
    ("prompt_id", pl.col("prompt_id").last(), "a group is one prompt and 4 completions"),
    ("completion_index", pl.lit(7, pl.Int32), "a group is one prompt and 4 completions"),
    ("policy_digest", pl.lit("stale"), "one policy draws all completions of a step"),
    ("policy_digest", pl.lit(None), "every completion says which weights drew it"),
    ("prompt_id", pl.lit(None), "every completion has a prompt"),
    ("finish_reason", pl.lit("stop"), "a completion ends by EOS or by its length"),
    ("text", pl.lit(None), "every completion has a text"),
    ("length", pl.lit(0, pl.Int32), "every completion has at least one token"),
    ("length", pl.col("length") + 1, "as many logprobs as tokens, as many tokens as the length"),
    ("token_ids", pl.col("token_ids").list.slice(1), "as many logprobs as tokens, as many tokens as the length"),
    ("sampling_logprobs", LOGPROBS.list.slice(1), "as many logprobs as tokens, as many tokens as the length"),
    ("sampling_logprobs", pl.lit(None), "as many logprobs as tokens, as many tokens as the length"),
    ("sampling_logprobs", LOGPROBS.list.eval(-pl.element()), "a logprob is finite and not above 0"),
    ("sampling_logprobs", LOGPROBS.list.eval(pl.element() * float("nan")), "a logprob is finite and not above 0"),
    ("sampling_logprobs", LOGPROBS.list.eval(pl.element() * float("inf")), "a logprob is finite and not above 0"),
    ("sampling_logprobs", LOGPROBS.list.eval(pl.when(pl.element() > 0).then(pl.element())), "a logprob is finite and not above 0"),
]


@pytest.mark.parametrize(("column", "value", "rule"), FAULTS, ids=[f"{column} {rule}" for column, _, rule in FAULTS])
def test_a_seeded_fault_is_found_and_named(column: str, value: pl.Expr, rule: str, spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.rollout_batches)
    changed = table.with_columns(pl.when(FIRST).then(value).otherwise(column).alias(column)).cast(dict(table.schema))  # type: ignore[arg-type]
    found = faults(spoilt, changed)
    assert rule in found
    assert names(found[rule], step=2)


def test_a_step_or_a_group_that_is_missing_is_found_and_named(spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.rollout_batches)
    of_step = pl.col("step") == 2
    assert names(faults(spoilt, table.filter(~(of_step & (pl.col("group") == 3))))["a step is 4 groups"], step=2, groups=3)
    assert names(faults(spoilt, table.filter(~(of_step & (pl.col("group") == 0))))["a step is 4 groups"], step=2, groups=3)
    rule = "all 4 steps are there and no other"
    assert names(faults(spoilt, table.filter(~of_step))[rule], step=2)
    assert names(faults(spoilt, table.filter(pl.col("step") < 4))[rule], step=4), "the last one, too"
    assert names(faults(spoilt, pl.concat([table, table.filter(of_step).with_columns(step=pl.lit(5, pl.Int64))]))[rule], step=5)
    assert rule in faults(spoilt, table.head(0))


def select_faults(paths: Paths, table: pl.DataFrame) -> dict[str, Outcome]:
    replace_table(paths.select_completions, table)
    return violations(rollout_batches.check(paths))


ASKED = "each of 2 evaluations asks 4 select prompts once"
OTHERS = "the policy after a step is the one that answers at that step"


def test_answers_to_select_prompts_keep_the_contract_and_lie_apart(lifecycle: Paths) -> None:
    select, rollouts = pl.read_parquet(lifecycle.select_completions), pl.read_parquet(lifecycle.rollout_batches)
    assert select["step"].unique().sort().to_list() == [0, 3]
    assert not set(select["prompt_id"]) & set(rollouts["prompt_id"])
    held = {outcome.why for outcome in rollout_batches.check(lifecycle).outcomes}
    assert {ASKED, OTHERS, "only select prompts are asked to choose a checkpoint", "the curve of select accuracy is that of the answers"} <= held


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_a_prompt_of_another_split_among_the_select_answers_is_found_and_named(split: str, spoilt: Paths) -> None:
    other = pl.read_parquet(spoilt.prompts).filter(pl.col("split") == split)["prompt_id"][0]
    table = pl.read_parquet(spoilt.select_completions)
    found = select_faults(spoilt, table.with_columns(prompt_id=pl.when(pl.int_range(pl.len()) == 5).then(pl.lit(other)).otherwise("prompt_id")))
    assert names(found["only select prompts are asked to choose a checkpoint"], step=3, prompt_id=other, model="policy")


def test_an_evaluation_that_is_missing_doubled_or_not_due_is_found_and_named(spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.select_completions)
    third = pl.col("step") == 3
    assert names(select_faults(spoilt, table.filter(~third))[ASKED], step=3, prompts=None)
    assert names(select_faults(spoilt, table[1:])[ASKED], step=0, prompts=3, answers=3)
    assert names(select_faults(spoilt, pl.concat([table, table[:1]]))[ASKED], step=0, prompts=4, answers=5)
    assert names(select_faults(spoilt, pl.concat([table, table.filter(third).with_columns(step=pl.lit(2, pl.Int64))]))[ASKED], step=2)
    assert names(select_faults(spoilt, table.head(0))[ASKED], step=0)


ANSWER_FAULTS: list[tuple[str, pl.Expr, str]] = [
    ("policy_digest", pl.lit("stale"), OTHERS),
    ("policy_digest", pl.lit(None), OTHERS),
    ("correct", ~pl.col("correct"), "the curve of select accuracy is that of the answers"),
    ("length", pl.col("length") + 1, "select: as many logprobs as tokens, as many tokens as the length"),
    ("sampling_logprobs", pl.col("sampling_logprobs").list.eval(pl.element() * float("nan")), "select: a logprob is finite and not above 0"),
    ("reward", pl.lit(float("inf")), "select: an answer's rewards are finite numbers or empty"),
    ("reward/exact_answer", pl.lit(float("nan")), "select: an answer's rewards are finite numbers or empty"),
]


@pytest.mark.parametrize(("column", "value", "rule"), ANSWER_FAULTS, ids=[f"{column} {rule}" for column, _, rule in ANSWER_FAULTS])
def test_a_seeded_fault_among_the_select_answers_is_found(column: str, value: pl.Expr, rule: str, spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.select_completions)
    one = pl.int_range(pl.len()) == 6
    found = select_faults(spoilt, table.with_columns(pl.when(one).then(value).otherwise(column).alias(column)).cast(dict(table.schema)))  # type: ignore[arg-type]
    assert set(found) == {rule}
    assert names(found[rule], step=3)


def test_an_evaluation_of_which_nothing_could_be_graded_is_no_fault(spoilt: Paths) -> None:
    metrics = spoilt.grpo_checkpoint / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    kept = [{name: value for name, value in line.items() if line["step"] != 3 or name != "eval/select_accuracy"} for line in lines]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in kept))
    table = pl.read_parquet(spoilt.select_completions)
    assert select_faults(spoilt, table.with_columns(correct=pl.when(pl.col("step") != 3).then("correct"))) == {}


def test_a_training_without_evaluations_keeps_the_contract(spoilt: Paths) -> None:
    manifest = json.loads((spoilt.grpo_checkpoint / "manifest.json").read_text())
    manifest["config"]["grpo"]["eval_every"] = 0
    replace_json(spoilt.grpo_checkpoint / "manifest.json", config=manifest["config"])
    metrics = spoilt.grpo_checkpoint / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    kept = [{name: value for name, value in line.items() if not name.startswith("eval/")} for line in lines]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert select_faults(spoilt, pl.read_parquet(spoilt.select_completions).head(0)) == {}


def test_the_page_shows_lengths_and_samples(lifecycle: Paths) -> None:
    table, page = pl.read_parquet(lifecycle.rollout_batches), rollout_batches.describe(lifecycle)
    assert page["completions"] == 64
    assert page["select_answers"] == 2 * 4
    assert page["tokens"] == table["length"].sum()
    assert page["mean_length"] == pytest.approx(table["length"].mean())
    assert page["truncated_fraction"] == pytest.approx((table["finish_reason"] == "length").mean())
    first, last = page["first_step"], page["last_step"]
    assert isinstance(first, Table)
    assert isinstance(last, Table)
    assert set(first.frame["step"]) == {1}
    assert set(last.frame["step"]) == {4}
    assert isinstance(page["lengths"], Chart)
