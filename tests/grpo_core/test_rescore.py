"""What today's reward code would have given: hand-computed changes, rankings and correlations, and nothing at all where nothing changed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import grpo_core.rescore
from grpo_core.config import RunConfig
from grpo_core.ledger import reward_rows, rollout_rows
from grpo_core.loop import train
from grpo_core.rescore import Rescored, RescoreError, Stop, Stored, changed_rows, rescore, summarise
from grpo_core.rewards.scoring import Scores
from grpo_core.rollout import RolloutBatch
from grpo_core.sampling import Completion
from grpo_core.signal import compare_within_groups
from tests.tiny_run import REWARD, inputs, prompts_table, tiny_config

SAID = "tests.tiny_rewards:the_number_it_says"
CONSTANT = "tests.tiny_rewards:constant"
CONFIG = tiny_config(rewards={SAID: 1.0}, prompts_per_step=2, group_size=4)
Numbers = Sequence[float | None]


def batch(step: int, texts: Sequence[str]) -> RolloutBatch:
    """Two groups of four."""
    completions = [Completion([1, 2], [-0.5, -0.25]) for _ in texts]
    return RolloutBatch(step, prompts_table()[[0, 1]], [[1], [2]], completions, list(texts), list(texts), 4, "feed")


def recorded_rows(given: RolloutBatch, values: Numbers, config: RunConfig = CONFIG) -> pl.DataFrame:
    """What a run wrote down whose only function gave these values; None is no opinion."""
    statuses: list[Any] = ["no_opinion" if value is None else "ok" for value in values]
    scores = Scores({SAID: list(values)}, {SAID: statuses}, [None] * len(values), list(values), statuses)
    signal = compare_within_groups(given, scores, given.step, config, scale_by_std=True)
    return reward_rows(rollout_rows(given), scores, signal, "0" * 16)


def stored(folder: Path, steps: Sequence[tuple[Sequence[str], Numbers]]) -> Stored:
    """The tables of a run of these steps: texts, and what they earned then."""
    found = Stored(folder / "prompts.parquet", folder / "rollouts.parquet", folder / "rewards.parquet")
    batches = [batch(step, texts) for step, (texts, _) in enumerate(steps, start=1)]
    prompts_table().write_parquet(found.prompts)
    pl.concat([rollout_rows(given) for given in batches]).write_parquet(found.rollouts)
    pl.concat([recorded_rows(given, values) for given, (_, values) in zip(batches, steps, strict=True)]).write_parquet(found.rewards)
    return found


def rows_of(tables: Stored, config: RunConfig = CONFIG, steps: range = range(1, 2)) -> pl.DataFrame:
    return pl.concat(list(rescore(tables, config, steps)))


def found(folder: Path, texts: str, values: Numbers, config: RunConfig = CONFIG) -> Rescored:
    """One step: eight texts, parted by spaces (`_` is an empty one)."""
    rows = rows_of(stored(folder, [(["" if text == "_" else text for text in texts.split()], values)]), config)
    return summarise(rows, config.scoring.max_error_rate)


def test_todays_code_gives_a_trained_run_again_to_the_bit(tmp_path: Path) -> None:
    config = tiny_config(rewards={REWARD: 1.0, "answer_format": 0.1, CONSTANT: 0.0}, steps=3, length_penalty=1e-3, advantage_clip=0.8)
    files = inputs(tmp_path)
    train(files, config, on_step=lambda report: None)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    parts = list(rescore(Stored(files.prompts, files.rollouts, files.rewards), config, range(2, 4)))
    assert [part["step"].unique().to_list() for part in parts] == [[2], [3]]
    rows = pl.concat(parts)
    for name in pl.read_parquet(files.rewards).drop("step", "group", "prompt_id", "completion_index", "reward_code_hash").columns:
        assert rows[f"today/{name}"].equals(rows[f"recorded/{name}"]), name
    summary = summarise(rows, 0.05)
    assert (summary.steps, summary.rows, summary.rows_changed, summary.stop) == (2, 32, 0, None)
    assert (summary.ranking.reordered, summary.ranking.signs_flipped, summary.ranking.kendall) == (0, 0, 1.0)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")} == before


def test_values_correlations_and_ranking_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    # First group 0 1 2 3 → 3 1 2 0; second all alike → 1 1 1 2.
    summary = found(tmp_path, "3 1 2 0 1 1 1 2", [0.0, 1.0, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0])
    (said,) = summary.functions
    assert (said.name, said.rows, said.values_changed, said.statuses, said.largest) == (SAID, 8, 3, {}, 3.0)
    assert (said.mean_recorded, said.mean_today) == (10 / 8, 11 / 8)
    # Σ(x - x̄)(y - ȳ) = 10 - 8·1.25·1.375 = -3.75; Σ(x - x̄)² = 18 - 12.5; Σ(y - ȳ)² = 21 - 15.125.
    assert said.pearson == pytest.approx(-3.75 / (5.5 * 5.875) ** 0.5)
    # Ranks: 1 4 7 8 4 4 4 4 and 8 3.5 6.5 1 3.5 3.5 3.5 6.5, both with mean 4.5: Σxy = 143.5, Σx² = 194, Σy² = 198.5.
    assert said.spearman == pytest.approx((143.5 - 162) / ((194 - 162) * (198.5 - 162)) ** 0.5)
    assert replace(summary.total, name=SAID) == said
    ranking = summary.ranking
    assert (ranking.groups, ranking.compared, ranking.reordered, ranking.best_changed) == (2, 1, 1, 1)
    # Of the first group's six pairs only 1 < 2 stands as it did.
    assert ranking.kendall == pytest.approx((1 - 5) / 6)
    assert (ranking.now_alike, ranking.now_differ, ranking.signs_flipped) == (0, 1, 2)
    assert summary.rows_changed == 3


def test_a_change_that_turns_nothing_round_leaves_the_ranking_alone(tmp_path: Path) -> None:
    summary = found(tmp_path, "0 10 20 30 5 5 5 9", [0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 1.0])
    assert summary.rows_changed == 7
    assert (summary.ranking.compared, summary.ranking.reordered, summary.ranking.best_changed, summary.ranking.kendall) == (2, 0, 0, 1.0)
    assert summary.ranking.signs_flipped == 0


def test_a_tie_that_is_broken_is_another_order_with_the_tau_b_of_ties(tmp_path: Path) -> None:
    summary = found(tmp_path, "0 1 2 2 1 1 1 1", [0.0, 1.0, 1.0, 2.0, 0.0, 0.0, 0.0, 1.0])
    ranking = summary.ranking
    assert (ranking.compared, ranking.now_alike, ranking.reordered, ranking.best_changed) == (1, 1, 1, 1)
    # Then 5 of 6 pairs differ, today 5: four of them in both, all the same way.
    assert ranking.kendall == pytest.approx(4 / 5)


def test_statuses_that_changed_are_counted_and_the_first_stop_is_named(tmp_path: Path) -> None:
    texts = ["0", "1", "!", "3", "", "?", "6", "7"]
    tables = stored(tmp_path, [(["0"] * 8, [0.0] * 8), (texts, [0.0, 1.0, 2.0, 3.0, None, 5.0, None, 7.0])])
    rows = rows_of(tables, steps=range(1, 3))
    summary = summarise(rows, 0.05)
    (said,) = summary.functions
    assert said.statuses == {"no_opinion → ok": 1, "ok → error": 1, "ok → invalid": 1}
    assert said.statuses_changed == 3
    # The error has no number any more, `6` has one now, and of the invalid one it is the floor.
    assert (said.values_changed, said.largest) == (3, 5.0)
    assert summary.stop == Stop(2, SAID, 1, 8)
    assert summarise(rows, 0.125).stop is None
    failed = rows.filter(pl.col("today/status") == "error")
    assert failed.select("today/reward", "today/advantage").rows() == [(None, 0.0)]
    assert failed["today/reason"][0].startswith(f"{SAID}: raised KeyError: 'a bug of ours'")
    assert summary.total.rows == 8 + 5


def test_a_constant_side_has_no_correlation(tmp_path: Path) -> None:
    (said,) = found(tmp_path, "1 1 1 1 1 1 1 1", [float(n) for n in range(8)]).functions
    assert (said.pearson, said.spearman) == (None, None)
    (said,) = found(tmp_path, "_ _ _ _ _ _ _ _", [1.0] * 8).functions
    assert (said.rows, said.values_changed, said.mean_today, said.largest, said.pearson) == (0, 8, None, None, None)


def test_other_functions_and_weights_say_what_they_would_have_given(tmp_path: Path) -> None:
    config = replace(CONFIG, rewards={CONSTANT: 2.0, "exact_answer": 1.0})
    summary = found(tmp_path, "0 1 2 3 0 0 0 1", [0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 1.0], config)
    said, constant, exact = summary.functions
    assert (said.name, said.rows, said.values_changed, said.mean_recorded, said.mean_today) == (SAID, 0, 0, 7 / 8, None)
    assert (constant.name, constant.rows, constant.values_changed, constant.mean_recorded, constant.mean_today) == (CONSTANT, 0, 0, None, 0.7)
    assert exact.mean_today == 0.0
    assert (summary.total.mean_recorded, summary.total.mean_today, summary.total.values_changed) == (7 / 8, 1.4, 8)
    assert (summary.ranking.now_alike, summary.ranking.compared, summary.ranking.kendall) == (2, 0, None)


def test_changed_rows_come_with_their_texts_the_most_changed_first(tmp_path: Path) -> None:
    tables = stored(tmp_path, [(["0", "1", "!", "3", "5", "5", "6", "9"], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])])
    changed = changed_rows(rows_of(tables), tables)
    assert changed.select("text", "completion_index", "recorded/reward", "today/reward").rows() == [("!", 2, 2.0, None), ("9", 3, 7.0, 9.0), ("5", 0, 4.0, 5.0)]
    assert changed.select("prompt", "answer").row(0) == tuple(prompts_table().select("prompt", "answer").row(0))
    assert {"step", "group", "prompt_id", f"recorded/reward/{SAID}", f"today/reward/{SAID}", "today/reason", "today/advantage"} <= set(changed.columns)


def test_a_step_that_lies_across_what_is_read_at_once_is_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = stored(tmp_path, [([str(n + step) for n in range(8)], [0.0] * 8) for step in range(4)])
    whole = rows_of(tables, steps=range(1, 5))
    monkeypatch.setattr(grpo_core.rescore, "ROWS_READ", 5)
    assert rows_of(tables, steps=range(1, 5)).equals(whole)
    assert rows_of(tables, steps=range(2, 4)).equals(whole.filter(pl.col("step").is_between(2, 3)))
    assert whole["today/reward"].to_list() == [float(n + step) for step in range(4) for n in range(8)]


def test_tables_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    tables = stored(tmp_path, [(["0"] * 8, [0.0] * 8)] * 3)
    rollouts, rewards = pl.read_parquet(tables.rollouts), pl.read_parquet(tables.rewards)
    with pytest.raises(RescoreError, match="step 4 is not among the rollouts"):
        rows_of(tables, steps=range(3, 5))
    rollouts.filter(pl.col("step") != 2).write_parquet(tables.rollouts)
    with pytest.raises(RescoreError, match="step 3 stands where step 2 should"):
        rows_of(tables, steps=range(1, 4))
    rollouts[:-1].write_parquet(tables.rollouts)
    with pytest.raises(RescoreError, match=r"step 3: 7 rows of 2 groups are not the whole groups of one step.*grpo verify"):
        rows_of(tables, steps=range(1, 4))
    rollouts.write_parquet(tables.rollouts)
    rewards.filter(~((pl.col("step") == 2) & (pl.col("completion_index") == 3))).write_parquet(tables.rewards)
    with pytest.raises(RescoreError, match="step 2: rewards and rollouts are not of the same completions"):
        rows_of(tables, steps=range(1, 4))
