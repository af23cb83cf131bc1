"""Sampling before training: the same completions every time, whatever else is asked; every completion scored as in training."""

from dataclasses import replace

import polars as pl
import pytest

from grpo_core.config import RunConfig
from grpo_core.exploration import chosen_prompts, pairs_of, sampled
from grpo_core.tables import ROLLOUT_SCHEMA
from tests.explored import explored_rows
from tests.tiny_models import TINY, language_model, tiny_llama
from tests.tiny_run import prompts_table, tiny_config, with_rollout

MODEL = language_model(tiny_llama(spread=0.3))
PROMPTS = prompts_table(train=10)


def explored(config: RunConfig, *, most: int = 10, seed: int = 0) -> pl.DataFrame:
    return pl.concat([sample.rows for sample in sampled(MODEL, chosen_prompts(PROMPTS, most, seed), config, seed=seed)])


def drawn(rows: pl.DataFrame) -> dict[tuple[str, int], list[int]]:
    return {(prompt, index): tokens for prompt, index, tokens in rows.select("prompt_id", "completion_index", "token_ids").iter_rows()}


def test_more_prompts_continue_fewer_whatever_else_the_table_holds() -> None:
    few, all_of_them = chosen_prompts(PROMPTS, 4, 0), chosen_prompts(PROMPTS, 1000, 0)
    assert set(all_of_them["split"]) == {"train"}
    assert len(all_of_them) == 10
    assert few.equals(all_of_them.head(4))
    thinned = PROMPTS.filter(pl.col("prompt_id") != all_of_them["prompt_id"][5])
    assert chosen_prompts(thinned, 5, 0).equals(all_of_them.head(5))
    assert chosen_prompts(PROMPTS, 10, 1)["prompt_id"].to_list() != all_of_them["prompt_id"].to_list()
    with pytest.raises(ValueError, match="the train split has no prompts"):
        chosen_prompts(PROMPTS.filter(pl.col("split") != "train"), 4, 0)


def test_the_same_seed_draws_the_same_and_larger_groups_continue_smaller_ones() -> None:
    rows = explored(tiny_config())
    assert explored(tiny_config()).equals(rows)
    assert drawn(explored(tiny_config(), seed=1)) != drawn(rows)
    six = drawn(explored(with_rollout(tiny_config(group_size=6), batch_size=24)))
    assert {place: six[place] for place in drawn(rows)} == drawn(rows)
    assert drawn(explored(tiny_config(), most=3)).items() <= drawn(rows).items()


def test_it_goes_by_batches_as_training_does() -> None:
    heard: list[int] = []
    chosen = chosen_prompts(PROMPTS, 10, 0)
    samples = list(sampled(MODEL, chosen, tiny_config(), seed=0, on_batch=heard.append))
    assert [len(sample.rows) for sample in samples] == [16, 16, 8]
    assert sum(heard) == 40
    assert [sample.rows["step"].unique().to_list() for sample in samples] == [[1], [2], [3]]
    assert pl.concat([s.rows for s in samples])["prompt_id"].unique(maintain_order=True).to_list() == chosen["prompt_id"].to_list()
    assert all(sample.sampling_seconds > 0 and sample.scoring_seconds > 0 for sample in samples)


def test_a_row_has_what_rollouts_and_rewards_have() -> None:
    rows = explored(tiny_config(rewards={"exact_answer": 1.0, "tests.tiny_rewards:share_of_small_digits": 0.5}, select_metric="number_answer"), most=4)
    assert rows.columns[: len(ROLLOUT_SCHEMA)] == list(ROLLOUT_SCHEMA)
    assert {"reward/exact_answer", "status/exact_answer", "reward/number_answer", "reward", "advantage", "reward_code_hash"} < set(rows.columns)
    right = rows["reward/number_answer"] == 1
    assert rows["correct"].to_list() == right.to_list()
    by_hand = rows["reward/exact_answer"] + 0.5 * rows["reward/tests.tiny_rewards:share_of_small_digits"]
    assert rows["reward"].to_list() == pytest.approx(by_hand.to_list()), "the metric counts for nothing"
    for _, group in rows.group_by("step", "group"):
        assert group["alike"].unique().to_list() == [group["reward"].n_unique() == 1]


def test_a_reward_that_fails_throughout_is_counted() -> None:
    rows = explored(tiny_config(rewards={"exact_answer": 1.0, "tests.tiny_rewards:words": 1.0}), most=4)
    assert rows["status"].unique().to_list() == ["error"]
    assert rows["reward"].null_count() == len(rows)
    assert rows["correct"].null_count() == 0


def test_what_does_not_fit_into_the_model_is_refused() -> None:
    config = replace(tiny_config(), model=replace(TINY, context_length=256))
    with pytest.raises(ValueError, match=r"more than the 48 the model takes: lower rollout\.max_new_tokens"):
        next(sampled(MODEL, chosen_prompts(PROMPTS, 4, 0), with_rollout(config, max_new_tokens=46), seed=0))


def test_pairs_are_spread_over_difficulty_and_hold_the_best_and_the_worst() -> None:
    one, two, three = [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]
    rows = explored_rows([one] * 8 + [two] * 2 + [three] + [[0, 0, 0, 0], [1, 1, 1, 1]])
    pairs = pairs_of(rows, RunConfig(), most=6, seed=0)
    assert [pair.right for pair in pairs] == [1, 1, 1, 2, 2, 3], "one of each kind before the second of any"
    assert pairs == pairs_of(rows, RunConfig(), most=6, seed=0)
    assert len({pair.prompt_id for pair in pairs}) == 6
    hardest = pairs[-1]
    assert (hardest.prompt_id, hardest.better, hardest.worse) == ("p10", "text 10 0", "text 10 3")
    assert (hardest.better_reward, hardest.worse_reward, hardest.graded) == (1.1, 0.1, 4)


def test_groups_that_differ_in_form_alone_are_shown_when_there_are_no_others() -> None:
    rows = explored_rows([[0, 0], [1, 0]], forms=[[1, 0], [1, 1]])
    assert [pair.prompt_id for pair in pairs_of(rows, RunConfig(), most=1, seed=0)] == ["p1"]
    assert {pair.prompt_id for pair in pairs_of(rows, RunConfig(), most=10, seed=0)} == {"p0", "p1"}
    assert pairs_of(explored_rows([[0, 0]]), RunConfig(), most=10, seed=0) == []
