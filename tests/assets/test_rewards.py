import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from assets import grpo_checkpoint, rewards
from assets.contracts import Outcome
from assets.page import Chart, Table
from assets.paths import Paths
from grpo_core.checkpoint import write_text
from grpo_core.config import RunConfig
from tests.assets.lifecycle import ignore, names, never, replace_table, violations
from tests.tiny_run import REWARD, inputs, tiny_config

FIRST = (pl.col("step") == 3) & (pl.col("group") == 2) & (pl.col("completion_index") == 1)
FEW_RAISE, ALL_OUTCOMES = "tests.tiny_rewards:raises_on_a_few", "tests.tiny_rewards:has_all_outcomes"


def faults(paths: Paths, table: pl.DataFrame) -> dict[str, Outcome]:
    replace_table(paths.rewards, table)
    return violations(rewards.check(paths))


def trained(root: Path, config: RunConfig) -> Paths:
    """What the training leaves."""
    paths = Paths(root)
    given = inputs(root / "given")
    for made, place in ((given.prompts, paths.prompts), (given.start, paths.sft_checkpoint), (given.reference, paths.reference_checkpoint)):
        place.parent.mkdir(parents=True, exist_ok=True)
        made.rename(place)
    grpo_checkpoint.produce(paths, config, ignore, never, grpo_checkpoint.work_folder(paths, config))
    return paths


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """A run whose rewards have every status, beside a function of weight 0 that has them too."""
    config = tiny_config(rewards={ALL_OUTCOMES: -1.0, "answer_format": 0.5, FEW_RAISE: 0.0})
    return trained(tmp_path_factory.mktemp("troubled"), replace(config, scoring=replace(config.scoring, max_error_rate=1.0, exploit_threshold=1.0)))


def test_a_trained_runs_rewards_keep_their_contract(lifecycle: Paths, troubled: Paths) -> None:
    outcome = rewards.check(lifecycle)
    assert outcome.success, outcome.summary()
    assert outcome.num_rows == 64
    statuses = pl.read_parquet(troubled.rewards)["status"]
    assert set(statuses) == {"ok", "invalid", "error"}, "format has an opinion on every completion"
    outcome = rewards.check(troubled)
    assert outcome.success, outcome.summary()


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


VALUED = f"{REWARD} gave a number where it is ok or invalid, and none elsewhere"
EXPLAINED = "a reason is given where a function says invalid or error, and nowhere else"
OWN = "a completion's status is that of one of its functions"


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"status": "fine"}, "a status is ok, no_opinion, invalid or error"),
        ({"status": None}, "every completion has a status"),
        ({"status": "invalid"}, OWN),
        ({"advantage": None}, "every completion has an advantage"),
        ({"advantage": float("inf")}, "advantages are finite numbers"),
        ({"advantage": 1.9}, "a group's advantages add up to 0"),
        ({"clipped_advantage": float("nan")}, "advantages are finite numbers"),
        ({"clipped_advantage": None}, "advantages are finite numbers"),
        ({"reward": float("nan")}, "a scored completion has a finite reward"),
        ({"reward": None}, "a scored completion has a finite reward"),
        ({"status": "invalid", "reward": None}, "a scored completion has a finite reward"),
        ({"reward_code_hash": None}, "every reward names the code that gave it"),
        ({"status": "no_opinion"}, "a completion without a reward has advantage 0"),
        ({"status": "error"}, "a completion without an opinion or with an error has no reward"),
        ({f"status/{REWARD}": "fine"}, VALUED),
        ({f"status/{REWARD}": None}, VALUED),
        ({f"reward/{REWARD}": None}, VALUED),
        ({f"reward/{REWARD}": float("inf")}, VALUED),
        ({f"status/{REWARD}": "error"}, VALUED),
        ({f"status/{REWARD}": "no_opinion"}, VALUED),
        ({f"status/{REWARD}": "invalid"}, EXPLAINED),
        ({"reason": "for no reason"}, EXPLAINED),
    ],
)
def test_a_seeded_fault_is_found(changes: dict[str, Any], rule: str, spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.rewards).with_columns(advantage=pl.when(FIRST & (pl.col("advantage") == 0)).then(0.5).otherwise("advantage"))
    changed = table.with_columns(pl.when(FIRST).then(pl.lit(value, dtype=table.schema[name])).otherwise(name).alias(name) for name, value in changes.items())
    assert rule in faults(spoilt, changed)


def test_completions_that_nobody_scored_are_no_fault(spoilt: Paths) -> None:
    group = (pl.col("step") == 3) & (pl.col("group") == 2)
    table = pl.read_parquet(spoilt.rewards)
    functions = [name.removeprefix("reward/") for name in table.columns if name.startswith("reward/")]
    values: dict[str, Any] = dict.fromkeys(["reward", *(f"reward/{name}" for name in functions)])
    values |= dict.fromkeys(["advantage", "clipped_advantage"], 0.0) | dict.fromkeys(["status", *(f"status/{name}" for name in functions)], "no_opinion")
    silent = table.with_columns(pl.when(group).then(pl.lit(value, dtype=table.schema[name])).otherwise(name).alias(name) for name, value in values.items())
    assert faults(spoilt, silent) == {}
    assert rewards.describe(spoilt)["without_opinion"] == 4


def test_the_page_shows_the_best_and_the_worst(lifecycle: Paths) -> None:
    table, page = pl.read_parquet(lifecycle.rewards), rewards.describe(lifecycle)
    for part, last in ((table, ""), (table.filter(pl.col("step") == 4), "_of_last_step")):
        best, worst = page[f"best{last}"], page[f"worst{last}"]
        assert isinstance(best, Table)
        assert isinstance(worst, Table)
        assert best.frame["reward"][0] == part["reward"].max()
        assert worst.frame["reward"][0] == part["reward"].min()
        assert best.frame["reward"].is_sorted(descending=True)
        assert best.frame["text"].is_unique().all()
        assert best.frame.columns == ["step", "prompt_id", "prompt", "answer", "text", "reward", "advantage", "length"]
    assert page["rewards"] == 64
    assert page["mean"] == pytest.approx(table["reward"].mean())
    assert page["mean_last_step"] == pytest.approx(table.filter(pl.col("step") == 4)["reward"].mean())
    assert (page["without_opinion"], page["invalid"], page["errors"]) == (0, 0, 0)
    assert isinstance(page["histogram"], Chart)
    assert isinstance(page["reward_by_length"], Chart)
    assert "reasons" not in page


def test_the_page_counts_statuses_and_says_why(troubled: Paths) -> None:
    table, page = pl.read_parquet(troubled.rewards), rewards.describe(troubled)
    counts = page["statuses"]
    assert isinstance(counts, Table)
    for row in counts.frame.to_dicts():
        name = row.pop("")
        status, value = ("status", "reward") if name == "weighted sum" else (f"status/{name}", f"reward/{name}")
        assert row.pop("mean") == pytest.approx(table[value].mean())
        assert row == {kind: (table[status] == kind).sum() for kind in ("ok", "no_opinion", "invalid", "error")}
    assert counts.frame[""].to_list() == [ALL_OUTCOMES, "answer_format", FEW_RAISE, "weighted sum"]
    assert page["invalid"] == (table["status"] == "invalid").sum() > 0
    assert page["errors"] == (table["status"] == "error").sum() > 0
    reasons = page["reasons"]
    assert isinstance(reasons, Table)
    by_reason = {row["reason"]: row["completions"] for row in reasons.frame.to_dicts()}
    assert by_reason[f"{ALL_OUTCOMES}: a seventh"] > 0
    assert sum(count for reason, count in by_reason.items() if reason.startswith(f"{ALL_OUTCOMES}: returned nan")) == page["errors"]
    assert sum(by_reason.values()) == table["reason"].is_not_null().sum()
    worst = page["worst"]
    assert isinstance(worst, Table)
    assert worst.frame["reason"][0] == f"{ALL_OUTCOMES}: a seventh", "the weight is negative: the floor is the highest value there is"


def test_the_page_shows_what_exploits_earned(troubled: Paths) -> None:
    found = rewards.describe(troubled)["exploits"]
    assert isinstance(found, Table)
    assert "answer_format" in found.frame["reward"].to_list()
    assert not any("acknowledged" in verdict for verdict in found.frame["verdict"])
    blocking = found.frame.filter((pl.col("reward") == "answer_format") & (pl.col("verdict") == "blocks training"))["exploit"][0]
    written = troubled.run_config / "default" / "scoring.json"
    written.parent.mkdir(parents=True)
    write_text(written, json.dumps({"acknowledged_exploits": {f"answer_format/{blocking}": "it is the format alone"}}))
    again = rewards.describe(troubled)["exploits"]
    assert isinstance(again, Table)
    assert "acknowledged: it is the format alone" in again.frame["verdict"].to_list()


def test_a_function_that_raises_on_a_few_completions_stops_nothing_and_is_seen(tmp_path: Path) -> None:
    config = tiny_config(rewards={FEW_RAISE: 1.0}, steps=4, prompts_per_step=8, group_size=8)
    paths = trained(tmp_path, replace(config, scoring=replace(config.scoring, exploit_threshold=1.0, max_error_rate=0.1)))
    table = pl.read_parquet(paths.rewards)
    failed = table.filter(pl.col("status") == "error")
    assert 0 < len(failed) < 0.1 * len(table)
    assert failed["reward"].is_null().all()
    assert (failed["advantage"] == 0).all()
    assert failed["reason"].str.starts_with(f"{FEW_RAISE}: raised ZeroDivisionError: a bug of ours (tiny_rewards.py line ").all()
    assert rewards.check(paths).success
    lines = [json.loads(line) for line in (paths.grpo_checkpoint / "metrics.jsonl").read_text().splitlines()]
    shares = {row["step"]: row["share"] for row in table.group_by("step").agg((pl.col("status") == "error").mean().alias("share")).to_dicts()}
    assert {line["step"]: line["status/error_fraction"] for line in lines if line["step"]} == pytest.approx(shares)
    page = rewards.describe(paths)
    assert page["errors"] == len(failed)
    assert isinstance(page["reasons"], Table)
    assert page["reasons"].frame["completions"].sum() == len(failed)
