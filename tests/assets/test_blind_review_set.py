import json
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from assets import blind_review_set
from assets.blind_review_set import make_pairs
from assets.page import Progress
from assets.paths import Paths
from grpo_core.config import BlindReviewConfig
from grpo_core.params import section_values
from tests.assets.lifecycle import ignore, lifecycle_config, replace_table

NUM = 60
PROMPTS = pl.DataFrame({"prompt_id": [f"p{i:02}" for i in range(NUM)], "prompt": [f"question {i}" for i in range(NUM)]})


def answers(*, equal: int = 0, samples: int = 2, prompts: int = NUM) -> pl.DataFrame:
    """Two models' answers to every prompt; for the first `equal` prompts both give the same ones, again and again."""
    rows = []
    for p in range(prompts):
        for model in ("reference", "policy"):
            rows.append((model, f"p{p:02}", "greedy", 0, f"greedy {model} {p}"))
            rows += [(model, f"p{p:02}", "sample", k, f"same {p}" if p < equal else f"{model} {p} sample {k}") for k in range(samples)]
    return pl.DataFrame(rows, schema=["model", "prompt_id", "decoding", "sample_index", "text"], orient="row")


def pairs(completions: pl.DataFrame | None = None, **settings: Any) -> pl.DataFrame:
    config = BlindReviewConfig(**{"num_pairs": 20, "num_control_pairs": 4, "num_repeat_pairs": 0, **settings})
    return make_pairs(answers() if completions is None else completions, PROMPTS, config)


def test_the_pairs_file_holds_nothing_but_what_is_shown(lifecycle: Paths) -> None:
    shown, key = pl.read_parquet(lifecycle.blind_review_pairs), pl.read_parquet(lifecycle.blind_review_key)
    assert shown.columns == ["pair_id", "position", "prompt", "left_text", "right_text"]
    assert set(key.columns) == {"pair_id", "prompt_id", "kind", "left_model", "right_model", "left_sample_index", "right_sample_index", "repeat_of"}
    assert lifecycle.blind_review_pairs.parent != lifecycle.blind_review_key.parent
    assert b"reference" not in lifecycle.blind_review_pairs.read_bytes()
    assert b"policy" not in lifecycle.blind_review_pairs.read_bytes()


def test_the_key_says_where_each_text_came_from(lifecycle: Paths) -> None:
    shown, key = pl.read_parquet(lifecycle.blind_review_pairs), pl.read_parquet(lifecycle.blind_review_key)
    assert sorted(shown["pair_id"]) == key["pair_id"].to_list(), "the key lies in the order of ids, not in that of showing"
    assert shown["pair_id"].n_unique() == len(shown)
    completions = pl.read_parquet(lifecycle.heldout_completions).filter(pl.col("decoding") == "sample")
    texts = {(model, prompt, k): text for model, prompt, k, text in completions.select("model", "prompt_id", "sample_index", "text").iter_rows()}
    questions = dict(pl.read_parquet(lifecycle.prompts).select("prompt_id", "prompt").iter_rows())
    for row in shown.join(key, on="pair_id").iter_rows(named=True):
        for side in ("left", "right"):
            assert row[f"{side}_text"] == texts[row[f"{side}_model"], row["prompt_id"], row[f"{side}_sample_index"]]
        assert row["prompt"] == questions[row["prompt_id"]]


def test_comparisons_are_of_two_models_and_controls_of_one() -> None:
    table = pairs()
    assert table["kind"].value_counts().sort("kind").rows() == [("comparison", 20), ("control", 4)]
    for kind, left, right, first, second in table.select("kind", "left_model", "right_model", "left_sample_index", "right_sample_index").iter_rows():
        assert {left, right} == {"reference", "policy"} if kind == "comparison" else (left == right and first != second)
    assert table.filter(pl.col("kind") == "control")["left_model"].value_counts()["count"].to_list() == [2, 2], "both models are controlled"
    assert table["position"].to_list() == list(range(24))


def test_positions_and_sides_tell_nothing() -> None:
    tables = [pairs(seed=seed) for seed in range(60)]
    left = [table.filter(pl.col("kind") == "comparison").select("position", policy_left=pl.col("left_model") == "policy") for table in tables]
    every = pl.concat(left)
    assert abs(every["policy_left"].cast(pl.Float64).mean() - 0.5) < 4 * 0.5 / 1200**0.5  # type: ignore[operator]
    assert abs(every.select(pl.corr("position", pl.col("policy_left").cast(pl.Float64))).item()) < 4 / 1200**0.5
    for at in range(24):
        share = every.filter(pl.col("position") == at)["policy_left"].cast(pl.Float64)
        assert abs(share.mean() - 0.5) < 4 * 0.5 / len(share) ** 0.5  # type: ignore[operator]
    assert len({tuple(table["policy_left"]) for table in left}) == 60
    controls = pl.concat([table.filter(pl.col("kind") == "control") for table in tables])
    assert abs(controls["position"].mean() - 11.5) < 4 * 6.93 / 240**0.5, "controls come at any place"  # type: ignore[operator]
    swapped = controls["left_sample_index"] > controls["right_sample_index"]
    assert abs(swapped.cast(pl.Float64).mean() - 0.5) < 4 * 0.5 / 240**0.5  # type: ignore[operator]


def test_the_order_of_ids_tells_nothing_either() -> None:
    every = pl.concat([pairs(seed=seed).sort("pair_id").with_row_index("place") for seed in range(60)])
    comparison = every.filter(pl.col("kind") == "comparison")
    assert abs(comparison.select(pl.corr("place", (pl.col("left_model") == "policy").cast(pl.Float64))).item()) < 4 / 1200**0.5
    assert every["pair_id"].n_unique() == len(every)
    assert set(every["pair_id"].str.len_chars()) == {16}


def test_the_seed_decides_and_nothing_else() -> None:
    assert pairs(seed=3).equals(pairs(answers().sample(fraction=1.0, shuffle=True, seed=1), seed=3))
    assert set(pairs(seed=3)["prompt_id"]) != set(pairs(seed=4)["prompt_id"])


def test_pairs_of_equal_text_are_left_out() -> None:
    table = pairs(answers(equal=30), num_pairs=30)
    assert (table["left_text"] != table["right_text"]).all()
    assert set(table["prompt_id"]) <= {f"p{p:02}" for p in range(30, 60)}


def test_greedy_answers_are_never_shown() -> None:
    table = pairs(num_pairs=60)
    assert not table["left_text"].str.contains("greedy").any()
    assert not table["right_text"].str.contains("greedy").any()


@pytest.mark.parametrize("controls", [0, 4])
def test_of_too_few_differing_answers_every_one_is_shown_however_many_controls_there_are(controls: int) -> None:
    table = pairs(answers(equal=42), num_control_pairs=controls)
    assert set(table.filter(pl.col("kind") == "comparison")["prompt_id"]) == {f"p{p:02}" for p in range(42, 60)}
    assert table["kind"].value_counts().sort("kind").rows() == [("comparison", 18), ("control", 4)][: 1 + (controls > 0)]
    assert table["position"].to_list() == list(range(18 + controls))


def test_models_that_speak_alike_leave_an_empty_table_of_the_same_columns() -> None:
    table = pairs(answers(equal=NUM))
    assert table.is_empty()
    assert table.schema == pairs().schema == blind_review_set.SCHEMA


REPEATED = [(20, 4, 4), (30, 4, 4), (3, 2, 2), (8, 8, 4), (5, 0, 9), (2, 0, 1), (1, 0, 4), (60, 40, 10)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("num_pairs", "controls", "repeats"), REPEATED)
def test_a_repeat_is_an_early_comparison_with_its_sides_swapped_late(num_pairs: int, controls: int, repeats: int, seed: int) -> None:
    table = pairs(answers(), num_pairs=num_pairs, num_control_pairs=controls, num_repeat_pairs=repeats, seed=seed)
    assert table["position"].to_list() == list(range(len(table)))
    by_id = {row["pair_id"]: row for row in table.iter_rows(named=True)}
    assert len(by_id) == len(table)
    found = table.filter(pl.col("kind") == "repeat")
    assert len(found) <= min(repeats, (num_pairs + controls) // 2)
    assert found["repeat_of"].n_unique() == len(found)
    for row in found.iter_rows(named=True):
        original = by_id[row["repeat_of"]]
        assert original["kind"] == "comparison" and row["prompt"] == original["prompt"] and row["prompt_id"] == original["prompt_id"]
        for what in ("text", "model", "sample_index"):
            assert (row[f"left_{what}"], row[f"right_{what}"]) == (original[f"right_{what}"], original[f"left_{what}"])
        assert original["position"] < len(table) / 2 and row["position"] >= 2 * len(table) / 3
        assert row["position"] - original["position"] >= max(2, len(table) / 6)
    assert table.filter(pl.col("kind") != "repeat")["repeat_of"].null_count() == num_pairs + controls


def test_as_many_are_repeated_as_asked_for_where_there_is_room() -> None:
    counts = [(pairs(num_repeat_pairs=4, seed=seed)["kind"] == "repeat").sum() for seed in range(20)]
    assert counts == [4] * 20
    assert (pairs(num_pairs=2, num_control_pairs=0, num_repeat_pairs=4)["kind"] == "repeat").sum() == 1
    assert (pairs(num_pairs=1, num_control_pairs=0, num_repeat_pairs=4)["kind"] == "repeat").sum() == 0


def test_repeats_leave_the_other_pairs_as_they_were_and_in_their_order() -> None:
    without, with_repeats = pairs(), pairs(num_repeat_pairs=4)
    others = with_repeats.filter(pl.col("kind") != "repeat")
    assert others.drop("position").equals(without.drop("position"))


def test_which_comparisons_come_again_and_where_is_chance() -> None:
    tables = [pairs(num_repeat_pairs=4, seed=seed).filter(pl.col("kind") == "repeat") for seed in range(60)]
    every = pl.concat(tables)
    assert set(every["position"]) == set(range(19, 28)), "every place of the last third"
    assert abs((every["left_model"] == "policy").cast(pl.Float64).mean() - 0.5) < 4 * 0.5 / 240**0.5  # type: ignore[operator]


@pytest.mark.parametrize("alike", [False, True])
def test_fewer_pairs_than_asked_for_are_written_with_a_warning(alike: bool, spoilt: Paths, lifecycle: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    blind_review_set.produce(spoilt, lifecycle_config(), ignore)
    assert capsys.readouterr().err == ""
    config = replace(lifecycle_config(), blind_review_set=BlindReviewConfig(num_pairs=40, num_control_pairs=0, num_repeat_pairs=0))
    if alike:
        table = pl.read_parquet(spoilt.heldout_completions)
        replace_table(spoilt.heldout_completions, table.with_columns(text=pl.lit("the same")))
    (spoilt.run_config / "default" / "blind_review_set.json").write_text(json.dumps(section_values(config, "blind_review_set")))
    heard: list[Progress] = []
    blind_review_set.produce(spoilt, config, heard.append)
    shown, key = pl.read_parquet(spoilt.blind_review_pairs), pl.read_parquet(spoilt.blind_review_key)
    assert len(shown) == len(key)
    assert len(shown) == 0 if alike else 0 < len(shown) <= 6
    assert capsys.readouterr().err.startswith(f"warning: {len(shown)} of 40 pairs: ")
    assert heard[-1].numbers == {"pairs": len(shown)}
    for path, table in ((lifecycle.blind_review_pairs, shown), (lifecycle.blind_review_key, key)):
        assert table.schema == pl.read_parquet(path).schema
    page = blind_review_set.describe(spoilt)
    assert (page["pairs"], page["pairs_asked_for"]) == (len(shown), 40)


def test_the_page_keeps_its_readers_blind(lifecycle: Paths) -> None:
    page = blind_review_set.describe(lifecycle)
    shown = pl.read_parquet(lifecycle.blind_review_pairs)
    assert page["pairs"] == page["pairs_asked_for"] == len(shown) == 7
    assert all(isinstance(value, int | str) or value == lifecycle.blind_review_pairs for value in page.values())


def test_made_twice_it_is_the_same(spoilt: Paths, lifecycle: Paths) -> None:
    blind_review_set.produce(spoilt, lifecycle_config(), ignore)
    assert spoilt.blind_review_pairs.read_bytes() == lifecycle.blind_review_pairs.read_bytes()
    assert spoilt.blind_review_key.read_bytes() == lifecycle.blind_review_key.read_bytes()
