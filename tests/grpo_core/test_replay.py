"""What a run recorded, worked out again: the same to the bit, and what was changed since is found and named."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from grpo_core.checkpoint import unchecked_manifest
from grpo_core.config import RunConfig
from grpo_core.loop import Files, train
from grpo_core.replay import Recorded, Replayed, ReplayError, oldest_step, replay
from grpo_core.tables import write_table
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
    assert any("in this order the seed gives" in fault for fault in fifth.faults)
    assert any(f"prompt_token_ids of prompt {other} are not those of its text" in fault for fault in fifth.faults)


def test_a_missing_completion_and_a_missing_reward_are_found(own: Files) -> None:
    rewards = pl.read_parquet(own.rewards)
    write_table(own.rewards, rewards.filter(~ROW))
    assert "rewards has 15 rows of this step" in again(own)[0].faults[0]
    write_table(own.rewards, rewards)
    write_table(own.rollouts, pl.read_parquet(own.rollouts).filter(~ROW))
    (fifth,) = again(own)
    assert "15 rows of 4 groups are not the whole groups of one step" in fifth.faults[0]
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
    tamper(own.rollouts, "policy_digest", pl.lit("0123456789abcdef"), pl.col("step") == 5)
    fifth = again(own)[0]
    assert fifth.faults == ("the weights are not those that drew it (0123456789abcdef)",)
    tamper(own.rollouts, "policy_digest", pl.lit("0123456789abcdef"), pl.col("step") == 6)
    assert again(own, 5, 5)[0].same_policy is False


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
