import polars as pl
import pytest

from assets import rewards
from assets.contracts import Outcome
from assets.page import Chart, Table
from assets.paths import Paths
from tests.assets.lifecycle import names, replace_table, violations

FIRST = (pl.col("step") == 3) & (pl.col("group") == 2) & (pl.col("completion_index") == 1)


def faults(paths: Paths, table: pl.DataFrame) -> dict[str, Outcome]:
    replace_table(paths.rewards, table)
    return violations(rewards.check(paths))


def test_a_trained_runs_rewards_keep_their_contract(lifecycle: Paths) -> None:
    outcome = rewards.check(lifecycle)
    assert outcome.success, outcome.summary()
    assert outcome.num_rows == 64


def test_an_advantage_that_is_no_number_is_found_and_named(spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.rewards)
    prompt = table.filter(FIRST)["prompt_id"][0]
    found = faults(spoilt, table.with_columns(advantage=pl.when(FIRST).then(float("nan")).otherwise("advantage")))["advantages are finite numbers"]
    assert found.unexpected_count == 1
    assert names(found, step=3, group=2, prompt_id=prompt, completion_index=1, advantage="nan")


def test_a_missing_and_a_doubled_reward_are_found_and_named(spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.rewards)
    row = {"step": 3, "group": 2, "prompt_id": table.filter(FIRST)["prompt_id"][0], "completion_index": 1}
    assert names(faults(spoilt, table.filter(~FIRST))["every rollout has a reward"], **row)
    assert names(faults(spoilt, pl.concat([table, table.filter(FIRST)]))["every completion is scored once"], **row)
    stray = table.filter(FIRST).with_columns(completion_index=pl.lit(9, pl.Int32))
    assert names(faults(spoilt, pl.concat([table, stray]))["every reward has a rollout"], **{**row, "completion_index": 9})


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("status", "fine", "a status is ok or no_opinion"),
        ("advantage", None, "every completion has an advantage"),
        ("advantage", float("inf"), "advantages are finite numbers"),
        ("advantage", 1.9, "a group's advantages add up to 0"),
        ("clipped_advantage", float("nan"), "advantages are finite numbers"),
        ("clipped_advantage", None, "advantages are finite numbers"),
        ("reward", float("nan"), "a scored completion has a finite reward"),
        ("reward", None, "a scored completion has a finite reward"),
        ("reward_code_hash", None, "every reward names the code that gave it"),
        ("status", "no_opinion", "a completion without an opinion has advantage 0"),
    ],
)
def test_a_seeded_fault_is_found(column: str, value: object, rule: str, spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.rewards).with_columns(advantage=pl.when(FIRST & (pl.col("advantage") == 0)).then(0.5).otherwise("advantage"))
    changed = table.with_columns(pl.when(FIRST).then(pl.lit(value, dtype=table.schema[column])).otherwise(column).alias(column))
    assert rule in faults(spoilt, changed)


def test_a_completion_without_an_opinion_is_no_fault(spoilt: Paths) -> None:
    group = (pl.col("step") == 3) & (pl.col("group") == 2)
    table = pl.read_parquet(spoilt.rewards).with_columns(
        status=pl.when(group).then(pl.lit("no_opinion")).otherwise("status"), reward=pl.when(~group).then("reward"),
        advantage=pl.when(group).then(0.0).otherwise("advantage"), clipped_advantage=pl.when(group).then(0.0).otherwise("clipped_advantage"),
    )  # fmt: skip
    assert faults(spoilt, table) == {}
    assert rewards.describe(spoilt)["without_opinion"] == 4


def test_the_page_shows_the_best_and_the_worst_of_the_last_step(lifecycle: Paths) -> None:
    table, page = pl.read_parquet(lifecycle.rewards), rewards.describe(lifecycle)
    last = table.filter(pl.col("step") == 4)["reward"]
    best, worst = page["best_of_last_step"], page["worst_of_last_step"]
    assert isinstance(best, Table)
    assert isinstance(worst, Table)
    assert best.frame["reward"][0] == last.max()
    assert worst.frame["reward"][0] == last.min()
    assert page["rewards"] == 64
    assert page["mean"] == pytest.approx(table["reward"].mean())
    assert page["mean_last_step"] == pytest.approx(last.mean())
    assert isinstance(page["histogram"], Chart)
