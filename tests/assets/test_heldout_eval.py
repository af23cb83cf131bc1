import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from assets import heldout_eval
from assets.contracts import Outcome
from assets.page import Chart, Progress, Table
from assets.paths import Paths
from grpo_core.checkpoint import BrokenFolder, read_manifest
from grpo_core.evaluation import summarise
from tests.assets.lifecycle import ignore, lifecycle_config, names, replace_json, replace_table, violations

ROOT = Path(__file__).resolve().parents[2]


def faults(paths: Paths, table: pl.DataFrame | None = None) -> dict[str, Outcome]:
    if table is not None:
        replace_table(paths.heldout_completions, table)
    return violations(heldout_eval.check(paths))


ONE = (pl.col("model") == "policy") & (pl.col("decoding") == "sample") & (pl.col("sample_index") == 1)


def test_both_models_answer_every_held_out_prompt(lifecycle: Paths) -> None:
    table = pl.read_parquet(lifecycle.heldout_completions)
    heldout = pl.read_parquet(lifecycle.prompts).filter(pl.col("split") == "heldout")["prompt_id"]
    assert set(table["prompt_id"]) == set(heldout)
    assert len(table) == 2 * 6 * (1 + 2)
    outcome = heldout_eval.check(lifecycle)
    assert outcome.success, outcome.summary()


def test_an_answer_says_which_weights_gave_it_at_which_step(lifecycle: Paths) -> None:
    found = set(pl.read_parquet(lifecycle.heldout_completions).select("model", "step", "policy_digest").unique().iter_rows())
    digests = {
        name: read_manifest(folder)["policy_digest"] for name, folder in (("reference", lifecycle.reference_checkpoint), ("policy", lifecycle.grpo_checkpoint))
    }
    assert found == {("reference", 0, digests["reference"]), ("policy", 4, digests["policy"])}


FAULTS: list[tuple[str, pl.Expr, str]] = [
    ("step", pl.lit(3), "policy answered with its own weights, at its own step"),
    ("policy_digest", pl.col("policy_digest").first(), "policy answered with its own weights, at its own step"),
    ("policy_digest", pl.lit(None), "policy answered with its own weights, at its own step"),
    ("finish_reason", pl.lit("stop"), "an answer ends by EOS or by its length"),
    ("sampling_logprobs", pl.col("sampling_logprobs").list.slice(1), "as many logprobs as tokens, as many tokens as the length"),
    ("sampling_logprobs", pl.col("sampling_logprobs").list.eval(-pl.element()), "a logprob is finite and not above 0"),
    ("correct", pl.lit(None), "an answer is ungraded only where the metric gave nothing"),
    ("reward/answer_format", pl.lit(float("nan")), "an answer's rewards are finite numbers or empty"),
]


@pytest.mark.parametrize(("column", "value", "rule"), FAULTS, ids=[f"{column} {rule}" for column, _, rule in FAULTS])
def test_a_seeded_fault_is_found_and_named(column: str, value: pl.Expr, rule: str, spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.heldout_completions)
    one = ONE & (pl.col("prompt_id") == table["prompt_id"].min())
    found = faults(spoilt, table.with_columns(pl.when(one).then(value).otherwise(column).alias(column)).cast(dict(table.schema)))  # type: ignore[arg-type]
    assert names(found[rule], model="policy", prompt_id=table["prompt_id"].min(), decoding="sample", sample_index=1)


def test_the_summary_holds_the_evidence(lifecycle: Paths) -> None:
    summary = json.loads(lifecycle.heldout_summary.read_text())
    for name in ("reference_accuracy", "policy_accuracy", "difference", "mean_at_k_difference"):
        assert summary[f"{name}_low"] <= summary[name] <= summary[f"{name}_high"]
    assert summary["num_prompts"] == 6
    assert summary["pass_k"] == 2
    for name in ("mean_at_k", "pass_at_k", "mean_length"):
        assert {f"reference_{name}", f"policy_{name}"} <= set(summary)
    drawn = pl.read_parquet(lifecycle.heldout_completions).filter((pl.col("model") == "policy") & (pl.col("decoding") == "sample"))
    assert summary["kl_sequence_sum"] == pytest.approx(summary["kl_token_mean"] * drawn["length"].mean())
    assert summary["kl_token_mean"] != 0


def test_made_twice_it_is_the_same_and_progress_ends_at_its_total(spoilt: Paths, lifecycle: Paths) -> None:
    heard: list[Progress] = []
    heldout_eval.produce(spoilt, lifecycle_config(), heard.append)
    assert spoilt.heldout_completions.read_bytes() == lifecycle.heldout_completions.read_bytes()
    assert spoilt.heldout_summary.read_bytes() == lifecycle.heldout_summary.read_bytes()
    assert heard[-1].step == heard[-1].total == 36
    assert [progress.step for progress in heard] == sorted(progress.step for progress in heard)


def test_a_damaged_checkpoint_is_refused(spoilt: Paths) -> None:
    weights = spoilt.grpo_checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    (spoilt.grpo_checkpoint / "config.json").unlink()
    before = spoilt.heldout_summary.read_bytes()
    with pytest.raises(BrokenFolder, match=r"grpo_checkpoint/default/config.json is missing"):
        heldout_eval.produce(spoilt, lifecycle_config(), ignore)
    assert spoilt.heldout_summary.read_bytes() == before


def test_fewer_prompts_are_the_same_ones(spoilt: Paths) -> None:
    config = lifecycle_config()
    everything = pl.read_parquet(spoilt.heldout_completions)["prompt_id"].unique().sort()
    heldout_eval.produce(spoilt, replace(config, heldout_eval=replace(config.heldout_eval, max_prompts=3)), ignore)
    assert pl.read_parquet(spoilt.heldout_completions)["prompt_id"].unique().sort().equals(everything.head(3))


def test_an_answer_that_only_one_model_gave_or_gave_twice_is_found_and_named(spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.heldout_completions)
    prompt = table["prompt_id"].min()
    one = ONE & (pl.col("prompt_id") == prompt)
    row = {"prompt_id": prompt, "decoding": "sample", "sample_index": 1}
    found = faults(spoilt, table.filter(~one))
    assert names(found["policy answered all that reference answered"], **row)
    assert "the summary's numbers are the table's" not in found, "there is nothing to compare"
    assert names(faults(spoilt, pl.concat([table, table.filter(one)]))["no answer is counted twice"], model="policy", **row)


def test_an_answer_that_both_models_owe_is_found_and_named(spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.heldout_completions)
    prompt = table["prompt_id"].min()
    gone = (pl.col("decoding") == "greedy") & (pl.col("prompt_id") == prompt)
    found = faults(spoilt, table.filter(~gone))["every model answers a prompt once greedily and 2 times at temperature"]
    assert found.unexpected_count == 2
    assert names(found, model="policy", prompt_id=prompt, greedy=0, sampled=2)
    assert names(faults(spoilt, table.filter(pl.col("prompt_id") != prompt))["the summary's numbers are the table's"], number="num_prompts", stated=6, found=5)


def test_a_training_prompt_among_the_answers_is_found_and_named(spoilt: Paths) -> None:
    train = pl.read_parquet(spoilt.prompts).filter(pl.col("split") == "train")["prompt_id"][0]
    table = pl.read_parquet(spoilt.heldout_completions)
    moved = table.with_columns(prompt_id=pl.when(pl.col("prompt_id") == table["prompt_id"].min()).then(pl.lit(train)).otherwise("prompt_id"))
    found = faults(spoilt, moved)["only held-out prompts are asked"]
    assert found.unexpected_count == 6
    assert names(found, prompt_id=train, model="reference", decoding="greedy")


def test_a_model_that_did_not_answer_is_found(spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.heldout_completions)
    assert "reference and policy both answered" in faults(spoilt, table.filter(pl.col("model") == "reference"))


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("policy_accuracy", 0.99), ("reference_accuracy", float("nan")), ("difference", 0.01), ("policy_mean_at_k", 0.5), ("num_prompts", 7),
        ("reference_pass_at_k", 0.77), ("policy_mean_length", 1.0), ("policy_accuracy_high", 0.1), ("policy_truncated_fraction", 0.3),
    ],
)  # fmt: skip
def test_a_summary_that_is_not_the_tables_is_found_and_named(number: str, value: float, spoilt: Paths) -> None:
    replace_json(spoilt.heldout_summary, **{number: value})
    shown = faults(spoilt)["the summary's numbers are the table's"].rows
    assert number in [row["number"] for row in shown]


def test_a_prompt_on_which_the_metric_failed_is_left_out_and_said_to_be(spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.heldout_completions)
    failed = ONE & (pl.col("prompt_id") == table["prompt_id"].min())
    table = table.with_columns(pl.when(~failed).then(name).alias(name) for name in ("correct", "reward/exact_answer"))
    assert "the summary's numbers are the table's" in faults(spoilt, table)
    before = heldout_eval.describe(spoilt)["accuracy"]
    found = summarise(table, heldout_eval.MODELS, lifecycle_config().heldout_eval)
    replace_json(spoilt.heldout_summary, **found)
    assert faults(spoilt) == {}
    page = heldout_eval.describe(spoilt)
    assert (page["num_prompts"], page["num_ungraded_prompts"]) == (5, 1)
    assert page["accuracy"] != before


def test_an_interval_beside_its_estimate_and_a_number_left_out_are_found(spoilt: Paths) -> None:
    replace_json(spoilt.heldout_summary, difference_low=0.9)
    assert names(faults(spoilt)["the summary's numbers are the table's"], number="difference_low to difference_high", stated=0.9)
    replace_json(spoilt.heldout_summary, difference_low=-1.0, policy_accuracy=None)
    summary = json.loads(spoilt.heldout_summary.read_text())
    del summary["policy_accuracy"]
    spoilt.heldout_summary.write_text(json.dumps(summary))
    assert names(faults(spoilt)["the summary's numbers are the table's"], number="policy_accuracy", stated=None)


def test_the_page_lays_answers_side_by_side(lifecycle: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assets.under_review.under_review", lambda *given: frozenset())  # nobody judges them
    page = heldout_eval.describe(lifecycle)
    table = page["side_by_side"]
    assert isinstance(table, Table)
    assert table.frame.columns == ["prompt", "answer", "reference", "policy", "reference_correct", "policy_correct"]
    assert len(table.frame) == 6
    assert isinstance(page["accuracy"], Chart)
    assert page["num_prompts"] == 6
    greedy = pl.read_parquet(lifecycle.heldout_completions).filter(pl.col("decoding") == "greedy")
    right = {name: set(greedy.filter((pl.col("model") == name) & pl.col("correct"))["prompt_id"]) for name in ("reference", "policy")}
    assert page["newly_right"] == len(right["policy"] - right["reference"])
    assert page["newly_wrong"] == len(right["reference"] - right["policy"])


PAGES = """
import sys
from pathlib import Path
from assets import blind_review_set, grpo_checkpoint, heldout_eval, reference_checkpoint, rewards, rollout_batches, sft_checkpoint
from assets.contracts import Outcome
from assets.page import Chart, Markdown, Table
from assets.paths import Paths

paths = Paths(Path(sys.argv[1]))
for noun in (sft_checkpoint, reference_checkpoint, rollout_batches, rewards, grpo_checkpoint, heldout_eval, blind_review_set):
    page = noun.describe(paths)
    assert page, noun.__name__
    for name, value in page.items():
        assert type(name) is str, (noun.__name__, name)
        assert type(value) in (int, float, str, Table, Markdown, Chart) or isinstance(value, Path), (noun.__name__, name, type(value))
heavy = sorted({"torch", "transformers", "great_expectations", "mlflow", "dagster"} & set(sys.modules))
assert not heavy, heavy
"""


def test_every_page_is_made_of_plain_values_without_torch(lifecycle: Paths) -> None:
    made = subprocess.run([sys.executable, "-c", PAGES, str(lifecycle.root)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
