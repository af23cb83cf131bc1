"""What a run recorded, worked out again: the same to the bit, and what was changed since is found and named."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from grpo_core.checkpoint import unchecked_manifest
from grpo_core.config import RunConfig
from grpo_core.ledger import reward_rows
from grpo_core.loop import Files, train
from grpo_core.params import section_values
from grpo_core.replay import Recorded, Replayed, ReplayError, oldest_step, replay, trained_config
from grpo_core.rewards.scoring import Scores
from grpo_core.signal import Signal
from grpo_core.tables import KEYS, ROLLOUT_SCHEMA, write_table
from grpo_core.work_folder import WorkFolder
from tests.tiny_run import REWARD, inputs, outputs, prompts_table, tiny_config

SETTINGS: dict[str, Any] = {"kl_control": "threshold", "kl_upper": 1e-3, "kl_lower": 1e-4, "updates_per_rollout": 2}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inputs(tmp_path_factory.mktemp("given")).prompts.parent


def run(root: Path, given: Path, config: RunConfig) -> Files:
    files = outputs(root, given)
    train(files, config, on_step=lambda report: None)
    return files


@pytest.fixture(scope="module")
def done(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Six steps, checkpoints of steps 4 and 6 kept."""
    return run(tmp_path_factory.mktemp("done"), given, tiny_config(**SETTINGS))


@pytest.fixture
def own(done: Files, given: Path, tmp_path: Path) -> Files:
    """A copy in which a test may change things."""
    shutil.copytree(done.checkpoint.parent, tmp_path / "own")
    return outputs(tmp_path / "own", given)


def recorded(files: Files) -> Recorded:
    return Recorded(
        prompts=files.prompts, start=files.start, reference=files.reference, rollouts=files.rollouts, rewards=files.rewards,
        metrics=files.checkpoint / "metrics.jsonl", manifest=unchecked_manifest(files.checkpoint), work=files.work,
    )  # fmt: skip


def again(files: Files, first: int = 5, last: int = 6) -> list[Replayed]:
    return list(replay(recorded(files), first, last))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_every_step_since_the_oldest_kept_checkpoint_comes_out_the_same_to_the_bit(done: Files) -> None:
    assert oldest_step(recorded(done), 6) == 5
    steps = again(done)
    assert [step.step for step in steps] == [5, 6]
    lines = {line["step"]: line for line in map(json.loads, (done.checkpoint / "metrics.jsonl").read_text().splitlines())}
    for step in steps:
        assert step.identical
        assert step.same_policy is True
        assert set(step.columns) == {f"reward/{REWARD}", "reward", "shaped_reward", "advantage", "clipped_advantage"}
        assert {"loss", "policy_loss", "kl_loss", "kl/mean", "grad_norm", "beta", "entropy"} <= set(step.metrics)
        assert {*step.columns.values(), *step.metrics.values()} == {0.0}
        assert step.replayed == {name: value for name, value in lines[step.step].items() if name != "step" and not name.startswith("eval/")}


def test_without_a_checkpoint_it_begins_at_the_start(own: Files) -> None:
    shutil.rmtree(own.work)
    assert oldest_step(recorded(own), 6) == 1
    steps = again(own, 1, 6)
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    assert all(step.identical for step in steps)
    assert [step.step for step in again(own, 2, 3)] == [1, 2, 3], "what lies before is done again, too"


def test_a_damaged_checkpoint_is_not_begun_from(own: Files) -> None:
    optimizer = own.work / "checkpoints" / "step-000004" / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-1])
    assert oldest_step(recorded(own), 6) == 1
    steps = again(own)
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    assert all(step.identical for step in steps)


def test_nothing_on_disk_changes(own: Files) -> None:
    before = tree(own.checkpoint.parent)
    again(own)
    assert tree(own.checkpoint.parent) == before


def test_it_waits_for_no_trainer_and_disturbs_none(own: Files) -> None:
    with WorkFolder.open(own.work), pytest.raises(ValueError, match="another process is at work in"):
        again(own)
    steps = replay(recorded(own), 5, 6)
    next(steps)
    with pytest.raises(ValueError, match="another process is at work in"), WorkFolder.open(own.work):
        pass
    assert [step.step for step in steps] == [6]
    with WorkFolder.open(own.work):
        pass


@pytest.mark.parametrize(
    "change",
    [
        lambda config: replace(config, model=replace(config.model, dtype="bfloat16")),
        lambda config: replace(config, grpo=replace(config.grpo, beta=0.0)),
        lambda config: replace(config, grpo=replace(config.grpo, mask_truncated=True, length_penalty=0.01, length_target=5, advantage_clip=0.5)),
        lambda config: replace(config, rewards={"tests.tiny_rewards:half_have_an_opinion": 1.0, REWARD: 0.5}),
        lambda config: replace(config, rollout=replace(config.rollout, temperature=0.7, batch_size=4)),
    ],
    ids=["bfloat16", "without a reference", "shaped and masked", "some without an opinion", "tempered"],
)
def test_any_configuration_comes_out_the_same(change: Callable[[RunConfig], RunConfig], given: Path, tmp_path: Path) -> None:
    files = run(tmp_path, given, change(tiny_config(steps=3, eval_every=0, checkpoint_every=1, keep_checkpoints=2)))
    assert [(step.step, step.identical) for step in again(files, 3, 3)] == [(3, True)]
    shutil.rmtree(files.work)
    assert [(step.step, step.identical) for step in again(files, 1, 3)] == [(1, True), (2, True), (3, True)]


ROW = (pl.col("step") == 5) & (pl.col("group") == 2) & (pl.col("completion_index") == 1)


def tamper(path: Path, column: str, value: pl.Expr, where: pl.Expr = ROW) -> str:
    """Change one cell of a table and say whose it is, as a fault does."""
    table = pl.read_parquet(path)
    row = table.filter(where).row(0, named=True)
    write_table(path, table.with_columns(pl.when(where).then(value).otherwise(column).alias(column)).cast(dict(table.schema)))  # type: ignore[arg-type]
    return f"prompt {row['prompt_id']}, completion {row['completion_index']}"


def last_token(change: pl.Expr, column: str) -> pl.Expr:
    """The list with its third entry changed."""
    before, after = pl.col(column).list.head(2), pl.col(column).list.slice(3)
    return pl.concat_list(before, change, after)


@pytest.mark.parametrize("column", [f"reward/{REWARD}", "reward", "shaped_reward", "advantage", "clipped_advantage"])
def test_a_changed_reward_or_advantage_is_found_and_named(column: str, own: Files) -> None:
    place = tamper(own.rewards, column, pl.col(column) + 0.25)
    fifth, sixth = again(own)
    (fault,) = fifth.faults
    assert fault.startswith(f"{column} of {place}: recorded ")
    assert not fifth.identical
    assert fifth.columns[column] == pytest.approx(0.25)
    assert fifth.same_policy is True, "it learned from what it worked out itself"
    assert sixth.identical


def test_a_changed_logprob_is_found_and_named(own: Files) -> None:
    place = tamper(own.rollouts, "sampling_logprobs", last_token(pl.col("sampling_logprobs").list.get(2) - 0.125, "sampling_logprobs"))
    (fifth,) = again(own)
    assert fifth.faults[0].startswith(f"sampling_logprobs of step 5, {place}, token 2: recorded ")
    assert fifth.same_policy is False
    assert fifth.metrics["kl/mean"] > 0


def test_a_changed_logprob_of_the_very_first_step_is_named_though_training_would_stop_there(own: Files) -> None:
    shutil.rmtree(own.work)
    first = (pl.col("step") == 1) & (pl.col("group") == 2) & (pl.col("completion_index") == 1)
    place = tamper(own.rollouts, "sampling_logprobs", last_token(pl.col("sampling_logprobs").list.get(2) - 0.5, "sampling_logprobs"), first)
    (step,) = again(own, 1, 6)
    assert step.faults[0].startswith(f"sampling_logprobs of step 1, {place}, token 2: recorded ")
    assert "it cannot be done again: at step 1 sampler and reference differ" in step.faults[1]


def test_a_changed_token_is_found_and_named(own: Files) -> None:
    other = pl.when(pl.col("token_ids").list.get(2) == 9).then(10).otherwise(9)
    place = tamper(own.rollouts, "token_ids", last_token(other, "token_ids"))
    (fifth,) = again(own)
    assert fifth.faults[0].startswith(f"token_ids of step 5, {place} do not read as its text ")
    assert any(fault.startswith(f"sampling_logprobs of step 5, {place}, token 2: recorded ") for fault in fifth.faults)
    assert fifth.same_policy is False


def test_a_changed_text_is_found_and_named_with_the_reward_it_would_earn(own: Files) -> None:
    place = tamper(own.rollouts, "text", pl.lit("0000"))
    fifth = again(own)[0]
    assert fifth.faults[0] == f"token_ids of step 5, {place} do not read as its text '0000'"
    assert fifth.faults[1].startswith(f"reward/{REWARD} of {place}: recorded ")


def test_a_changed_prompt_is_found(own: Files) -> None:
    group = (pl.col("step") == 5) & (pl.col("group") == 2)
    other = next(prompt for prompt in prompts_table()["prompt_id"] if prompt not in set(pl.read_parquet(own.rollouts).filter(group)["prompt_id"]))
    for path in (own.rollouts, own.rewards):
        tamper(path, "prompt_id", pl.lit(other), group)
    fifth = again(own)[0]
    for number, table in ((0, "rollouts"), (2, "rewards")):
        assert fifth.faults[number].startswith(f"{table} has no row of step 5, group 2, prompt ")
        assert fifth.faults[number + 1] == f"{table} has a row that the seed does not give: step 5, group 2, prompt {other}, completion 0"
    assert any(f"prompt_token_ids of prompt {other} are not those of its text" in fault for fault in fifth.faults)


def test_a_missing_completion_and_a_missing_reward_are_found(own: Files) -> None:
    rewards = pl.read_parquet(own.rewards)
    write_table(own.rewards, rewards.filter(~ROW))
    place = f"step 5, group 2, prompt {rewards.filter(ROW)['prompt_id'][0]}, completion 1"
    assert again(own)[0].faults == (f"rewards has no row of {place}",)
    write_table(own.rewards, pl.concat([rewards, rewards.filter(ROW)]))
    assert again(own)[0].faults == (f"rewards has twice {place}",)
    write_table(own.rewards, rewards)
    write_table(own.rollouts, pl.read_parquet(own.rollouts).filter(~ROW))
    (fifth,) = again(own)
    assert fifth.faults[0] == f"rollouts has no row of {place}"
    assert "15 rows of 4 groups are not the whole groups of one step" in fifth.faults[1]
    assert fifth.replayed == {}


def test_a_changed_metric_is_found_and_named(own: Files) -> None:
    log = own.checkpoint / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[5]["grad_norm"] *= 1.5
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    fifth, sixth = again(own)
    (fault,) = fifth.faults
    assert fault.startswith("metric grad_norm: recorded ")
    assert sixth.identical


def test_rows_of_other_weights_are_found(own: Files) -> None:
    rows = own.rollouts.read_bytes()
    place = tamper(own.rollouts, "policy_digest", pl.lit("0123456789abcdef"), pl.col("step") == 5)
    fifth, sixth = again(own)
    (fault,) = fifth.faults
    assert fault.startswith(f"policy_digest of {place}: recorded 0123456789abcdef, worked out again ")
    assert sixth.identical
    own.rollouts.write_bytes(rows)
    tamper(own.rollouts, "policy_digest", pl.lit("0123456789abcdef"), pl.col("step") == 6)
    fifth, sixth = again(own)
    assert fifth.same_policy is False
    assert sixth.faults[0].startswith("policy_digest: recorded 0123456789abcdef, but the weights after the step follow from ")


LAST = (pl.col("step") == 6) & (pl.col("group") == 3) & (pl.col("completion_index") == 3)
ONE = torch.ones(1, 1, dtype=torch.float64)
REWARD_SCHEMA = reward_rows(
    pl.DataFrame([[None] * len(ROLLOUT_SCHEMA)], schema=ROLLOUT_SCHEMA, orient="row"),
    Scores({REWARD: [1.0]}, {REWARD: ["ok"]}, [None], [1.0], ["ok"]),
    Signal(ONE, ONE.bool(), ONE[0].bool(), ONE, ONE, ONE),
    "",
).schema


def other_value(column: str, kind: Any) -> pl.Expr:
    """Another value of the same type for a cell."""
    if isinstance(kind, pl.List):
        return pl.concat_list(pl.col(column).list.slice(0, pl.col(column).list.len() - 1), (pl.col(column).list.last() - 1).cast(kind.inner))
    if column == "finish_reason":
        return pl.when(pl.col(column) == "eos").then(pl.lit("length")).otherwise(pl.lit("eos"))
    return pl.col(column) + 7 if kind.is_numeric() else pl.lit({"status": "no_opinion"}.get(column, "deadbeef"))


@pytest.mark.parametrize("table", ["rollouts", "rewards"])
def test_the_tables_have_the_columns_that_are_tampered_with(table: str, done: Files) -> None:
    schema = dict(pl.read_parquet_schema(getattr(done, table)))
    assert schema == dict(ROLLOUT_SCHEMA if table == "rollouts" else REWARD_SCHEMA)


@pytest.mark.parametrize(
    ("table", "column", "kind"),
    [("rollouts", column, kind) for column, kind in pl.Schema(ROLLOUT_SCHEMA).items()] + [("rewards", column, kind) for column, kind in REWARD_SCHEMA.items()],
)
def test_one_changed_cell_of_the_last_row_is_found_and_named(table: str, column: str, kind: Any, own: Files) -> None:
    path = getattr(own, table)
    prompt = pl.read_parquet(path).filter(LAST)["prompt_id"][0]
    place = tamper(path, column, other_value(column, kind), LAST)
    fifth, sixth = again(own)
    assert fifth.identical
    if column in KEYS:
        assert f"{table} has no row of step 6, group 3, prompt {prompt}, completion 3" in sixth.faults
    elif column in ("text", "raw_text"):
        assert sixth.faults[0] == f"token_ids of step 6, {place} do not read as its {column} 'deadbeef'"
    elif column in ("token_ids", "sampling_logprobs"):
        assert any(fault.startswith(f"{column} of step 6, {place}") for fault in sixth.faults)
    else:
        (fault,) = sixth.faults
        assert fault.startswith(f"{column} of {place}: recorded ")


@pytest.mark.parametrize("column", ["policy_digest", "finish_reason"])
def test_a_changed_cell_of_the_first_row_is_named_and_not_the_others(column: str, own: Files) -> None:
    first = (pl.col("step") == 6) & (pl.col("group") == 0) & (pl.col("completion_index") == 0)
    place = tamper(own.rollouts, column, pl.lit("deadbeef"), first)
    fifth, sixth = again(own)
    assert fifth.identical
    (fault,) = sixth.faults
    assert fault.startswith(f"{column} of {place}: recorded deadbeef, worked out again ")


def test_a_column_that_went_or_came_is_found(own: Files) -> None:
    rewards = pl.read_parquet(own.rewards)
    write_table(own.rewards, rewards.drop("status").with_columns(pl.lit(1.0).alias("bonus")))
    status, bonus = again(own)[0].faults
    assert status.endswith("recorded None, worked out again ok")
    assert bonus.endswith("recorded 1.0, worked out again None")


def test_other_reward_code_is_said_as_such_and_a_changed_hash_is_not_taken_for_it(own: Files) -> None:
    now = pl.read_parquet(own.rewards)["reward_code_hash"][0]
    tamper(own.rewards, "reward_code_hash", pl.lit("0123"), pl.lit(value=True))
    assert "reward_code_hash of prompt " in again(own)[0].faults[0]
    known = recorded(own)
    (fault,) = next(replay(replace(known, manifest={**known.manifest, "reward_code_hash": "0123"}), 5, 6)).faults
    assert fault == f"scored by other reward code: the run's has hash 0123, today's {now}"


@pytest.fixture
def another_processor() -> Iterator[None]:
    """Every update ends in weights whose last bits are others, as sums in another order would leave them."""

    def round_otherwise(optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> None:
        with torch.no_grad():
            for weight in optimizer.param_groups[0]["params"]:
                weight.copy_(torch.nextafter(weight, torch.full_like(weight, torch.inf)))

    hook = register_optimizer_step_post_hook(round_otherwise)
    yield
    hook.remove()


@pytest.mark.usefixtures("another_processor")
def test_a_processor_that_rounds_otherwise_agrees_within_rounding_however_many_steps(own: Files) -> None:
    shutil.rmtree(own.work)
    steps = again(own, 1, 6)
    assert [(step.step, step.same_policy, step.faults) for step in steps] == [(number, False, ()) for number in range(1, 7)]
    assert 0 < max(step.largest for step in steps) < 1e-3
    assert not any(step.identical for step in steps)


@pytest.mark.usefixtures("another_processor")
def test_a_changed_cell_is_found_on_another_processor_too(own: Files) -> None:
    place = tamper(own.rollouts, "policy_digest", pl.lit("deadbeef"), LAST)
    fifth, sixth = again(own)
    assert fifth.faults == ()
    assert sixth.faults[0].startswith(f"policy_digest of {place}: recorded deadbeef, worked out again ")


@pytest.mark.parametrize("name", ["prompts", "start", "reference"])
def test_another_start_than_the_run_s_is_refused(name: str, own: Files, tmp_path: Path) -> None:
    path = tmp_path / "other"
    if name == "prompts":
        prompts_table(train=11).write_parquet(path)
    else:
        shutil.copytree(own.start, path)
        manifest = path / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"noun"', '"nuon"'))
    with pytest.raises(ReplayError, match=f"{path} is not what the run was trained from"):
        list(replay(replace(recorded(own), **{name: path}), 5, 6))  # type: ignore[arg-type]


@pytest.mark.parametrize(("first", "last"), [(0, 3), (3, 7), (4, 3)])
def test_steps_that_were_never_trained_are_refused(first: int, last: int, done: Files) -> None:
    with pytest.raises(ReplayError, match=f"steps {first} to {last} cannot be replayed: the run has steps 1 to 6"):
        again(done, first, last)


def test_options_of_a_metric_that_only_the_evaluation_asks_are_no_part_of_the_training() -> None:
    config = tiny_config()
    options: dict[str, Any] = {REWARD: {}, "exact_answer": {}, "regex_format": {"pattern": "a"}}
    sections = {name: section_values(config, name) for name in ("model", "rollout", "rewards", "scoring", "grpo")}
    found = trained_config({"config": {**sections, "reward_options": options}})
    assert dict(found.reward_options) == {REWARD: {}, "exact_answer": {}}
    assert (found.rewards, found.grpo, found.scoring) == (config.rewards, config.grpo, config.scoring)
