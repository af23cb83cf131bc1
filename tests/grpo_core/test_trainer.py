"""One training step on a tiny model: what it trains on, what it leaves alone, and what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pytest
import torch
from transformers import AutoTokenizer

from grpo_core.checkpoint import write_folder
from grpo_core.config import ModelConfig, RunConfig
from grpo_core.errors import DivergedError
from grpo_core.ledger import batch_of, rollout_rows
from grpo_core.loop import Files
from grpo_core.models import policy_digest, save_model
from grpo_core.rewards.outcomes import RewardError
from grpo_core.rewards.scoring import Scores
from grpo_core.rollout import RolloutBatch, score_batch
from grpo_core.signal import compare_within_groups
from grpo_core.step import Minibatch, accumulate_gradient
from grpo_core.step_metrics import select_metrics
from grpo_core.tokenization import TokenizerMismatch, encode_prompt
from grpo_core.trainer import (
    START_TOLERANCE,
    Trainer,
    check_context,
    check_finite,
    check_start,
    draw_batch,
    evaluate_select,
    keep_logprobs,
    learn,
    start_trainer,
    train_step,
    trainable,
)
from tests.tiny_models import language_model, tiny_gpt2
from tests.tiny_run import REWARD, inputs, prompts_table, tiny_config, with_rollout, write_start


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return inputs(tmp_path_factory.mktemp("inputs"))


def start(files: Files, config: RunConfig | None = None, **grpo: Any) -> Trainer:
    return start_trainer(files.prompts, files.start, files.reference, config or tiny_config(**grpo))


def forward_rows(trainer: Trainer) -> list[list[int]]:
    """A list that will hold every row that the policy is differentiated on."""
    seen: list[list[int]] = []

    def listen(module: object, args: object, given: dict[str, torch.Tensor]) -> None:
        if torch.is_grad_enabled():
            rows = zip(given["input_ids"].tolist(), given["attention_mask"].tolist(), strict=True)
            seen.extend([token for token, real in zip(ids, mask, strict=True) if real] for ids, mask in rows)

    trainer.policy.model.register_forward_pre_hook(listen, with_kwargs=True)
    return seen


def optimizer_steps(trainer: Trainer) -> set[int]:
    return {int(state["step"]) for state in trainer.optimizer.state_dict()["state"].values()}


def drawn_and_signal(trainer: Trainer) -> tuple[RolloutBatch, Scores, Minibatch, Minibatch, Any]:
    batch = draw_batch(trainer, 1)
    scores = score_batch(batch, trainer.config)
    signal = compare_within_groups(batch, scores, 1, trainer.config, scale_by_std=trainer.loss.scale_by_std)
    kept = keep_logprobs(trainer, batch, signal)
    return batch, scores, kept, trainable(trainer, kept, batch, signal), signal


def gradient(trainer: Trainer, minibatch: Minibatch) -> list[torch.Tensor]:
    trainer.policy.model.zero_grad()
    accumulate_gradient(trainer.policy.model, minibatch, trainer.loss, beta=trainer.controller.beta, temperature=1.0, micro_batch_size=8)
    return [weight.grad.clone() for weight in trainer.policy.model.parameters() if weight.grad is not None]


def test_a_step_moves_the_policy_and_never_the_reference(files: Files) -> None:
    trainer = start(files)
    before = policy_digest(trainer.policy.model)
    result = train_step(trainer, 1)
    assert policy_digest(trainer.policy.model) != before == policy_digest(trainer.reference.model)
    assert set(result.rollouts["policy_digest"]) == {before}, "rollouts name the weights that drew them"
    assert train_step(trainer, 2).rollouts["policy_digest"][0] == policy_digest_after_one_step(files)


def policy_digest_after_one_step(files: Files) -> str:
    trainer = start(files)
    train_step(trainer, 1)
    return policy_digest(trainer.policy.model)


def write_dropping(folder: Path) -> None:
    tiny_gpt2(dropout=0.1).save_pretrained(folder)
    language_model(tiny_gpt2()).tokenizer.save_pretrained(folder)


@pytest.mark.parametrize("architecture", ["llama", "gpt2 with dropout"])
def test_before_the_first_update_kl_is_zero_and_every_ratio_one(architecture: str, files: Files, tmp_path: Path) -> None:
    if architecture != "llama":
        folder = tmp_path / "start"
        write_folder(folder, write_dropping, {})
        files = replace(files, start=folder, reference=folder)
    metrics = train_step(start(files, minibatches_per_rollout=1), 1).metrics
    assert abs(metrics["kl/mean"]) < 1e-6
    assert abs(metrics["kl/sequence"]) < 1e-5
    assert metrics["logprob_gap"] < 1e-5
    assert metrics["ratio/max"] == pytest.approx(1, abs=1e-5)
    assert metrics["clip_fraction"] == 0
    assert metrics["kl_loss"] < 1e-9
    assert abs(metrics["policy_loss"]) < 1e-2
    assert metrics["grad_norm"] > 1e-3, "the value of the loss is near 0, its gradient is not"


def test_a_step_without_updates_ahead_reports_its_own_rewards(files: Files) -> None:
    result = train_step(start(files), 1)
    rewards, rollouts = result.rewards, result.rollouts
    assert len(rewards) == len(rollouts) == 16
    assert result.metrics["reward/mean"] == pytest.approx(rewards["reward"].mean())
    assert result.metrics["reward/std"] == pytest.approx(rewards["reward"].std(ddof=0))
    assert result.metrics["length/mean"] == rollouts["length"].mean()
    assert result.metrics["length/max"] == rollouts["length"].max()
    assert result.metrics["truncated_fraction"] == (rollouts["finish_reason"] == "length").mean()
    assert result.metrics["tokens"] == rollouts["length"].sum()
    by_group = rewards.group_by("group", maintain_order=True).agg("reward", "advantage")
    for reward, advantage in by_group.select("reward", "advantage").iter_rows():
        centred = torch.tensor(reward, dtype=torch.float64) - sum(reward) / 4
        assert advantage == pytest.approx((centred / (centred.square().sum() / 3).sqrt()).tolist(), abs=1e-9)
    assert result.metrics["advantage/max"] == rewards["advantage"].max()


@pytest.mark.parametrize(("updates", "minibatches"), [(1, 1), (1, 4), (2, 1), (2, 4)])
def test_every_group_is_trained_on_once_a_pass(updates: int, minibatches: int, files: Files) -> None:
    trainer = start(files, updates_per_rollout=updates, minibatches_per_rollout=minibatches, micro_batch_size=3)
    seen = forward_rows(trainer)
    rollouts = train_step(trainer, 1).rollouts
    rows = [list(prompt) + list(completion) for prompt, completion in rollouts.select("prompt_token_ids", "token_ids").iter_rows()]
    assert sorted(seen) == sorted(rows * updates)
    assert optimizer_steps(trainer) == {updates * minibatches}
    assert updates * minibatches < 8 or seen[:16] != seen[16:], "the second pass has an order of its own"
    size = len(rows) // minibatches
    for start_of_minibatch in range(0, len(seen), size):
        prompts = [tuple(prompt) for prompt in rollouts["prompt_token_ids"]]
        groups = [prompts[rows.index(row)] for row in seen[start_of_minibatch : start_of_minibatch + size]]
        assert all(groups.count(group) % 4 == 0 for group in groups), "a minibatch is made of whole groups"


def test_later_minibatches_see_a_ratio_that_has_moved(files: Files) -> None:
    assert train_step(start(files, minibatches_per_rollout=1), 1).metrics["ratio/max"] == pytest.approx(1, abs=1e-5)
    assert train_step(start(files, minibatches_per_rollout=2), 1).metrics["ratio/max"] > 1.001


def test_the_order_of_prompts_goes_through_all_of_them_once_an_epoch(files: Files) -> None:
    trainer = start(files, prompts_per_step=2, minibatches_per_rollout=1)
    ids = [tuple(draw_batch(trainer, step).prompts["prompt_id"]) for step in range(1, 11)]
    first, second = ([prompt for step in half for prompt in step] for half in (ids[:5], ids[5:]))
    train = set(pl.read_parquet(files.prompts).filter(pl.col("split") == "train")["prompt_id"])
    assert set(first) == set(second) == train
    assert first != second, "the second epoch has an order of its own"


def test_the_seed_decides_the_order_of_prompts_and_the_completions(files: Files) -> None:
    batches = [draw_batch(start(files, seed=seed, prompts_per_step=10), 1) for seed in (0, 0, 1)]
    orders = [batch.prompts["prompt_id"].to_list() for batch in batches]
    answers = [dict(zip(batch.per_completion(order), batch.texts, strict=True)) for batch, order in zip(batches, orders, strict=True)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])
    assert answers[0] == answers[1]
    assert not [prompt for prompt in orders[0] if answers[0][prompt] == answers[2][prompt]]


def test_a_prompt_twice_in_a_batch_is_not_answered_twice_alike(tmp_path: Path) -> None:
    trainer = start(inputs(tmp_path, prompts_table(train=5)))
    found = 0
    for step in range(1, 8):
        batch = draw_batch(trainer, step)
        ids = batch.prompts["prompt_id"].to_list()
        for first, second in ((a, b) for b in range(4) for a in range(b) if ids[a] == ids[b]):
            found += 1
            groups = [[tuple(c.token_ids) for c in batch.completions[4 * g : 4 * g + 4]] for g in (first, second)]
            assert not set(groups[0]) & set(groups[1])
    assert found, "epoch boundaries must bring a prompt twice for this test to mean something"


def test_masking_truncated_completions_takes_them_out_of_the_loss_but_not_out_of_the_baseline(files: Files) -> None:
    everything = drawn_and_signal(start(files))
    trainer = start(files, mask_truncated=True)
    batch, _, kept, learned, signal = drawn_and_signal(trainer)
    truncated = torch.tensor([completion.finish_reason == "length" for completion in batch.completions])
    assert 0 < int(truncated.sum()) < len(truncated)
    assert torch.equal(signal.advantages, everything[-1].advantages)
    assert torch.equal(learned.batch.mask.any(dim=1), ~truncated)
    assert torch.equal(everything[3].batch.mask, kept.batch.mask)
    assert torch.equal(learned.batch.mask[~truncated], kept.batch.mask[~truncated])
    assert any(not torch.equal(a, b) for a, b in zip(gradient(trainer, learned), gradient(trainer, kept), strict=True))
    expected = gradient(trainer, learned.rows((~truncated).nonzero().squeeze(1)))
    width = learned.batch.tokens.shape[1]
    ids = learned.batch.input_ids.clone()
    ids[truncated, -width:] = 9
    other = replace(learned, batch=replace(learned.batch, input_ids=ids, tokens=ids[:, -width:]))
    for changed, alone, plain in zip(gradient(trainer, other), expected, gradient(trainer, learned), strict=True):
        assert torch.allclose(plain, changed, atol=1e-7)
        assert torch.allclose(plain, alone, atol=1e-6), "the denominators count what is trained, too"


def test_a_completion_without_an_opinion_is_neither_baseline_nor_loss(files: Files) -> None:
    trainer = start(files, tiny_config(rewards={"tests.tiny_rewards:half_have_an_opinion": 1.0}))
    _, scores, _, learned, signal = drawn_and_signal(trainer)
    assert scores.totals[:4] == [0.0, None, 0.2, None]
    assert signal.advantages[0].tolist() == pytest.approx([-(0.5**0.5), 0.0, 0.5**0.5, 0.0])
    assert learned.batch.mask.any(dim=1).tolist() == [True, False] * 8
    result = train_step(trainer, 1)
    assert result.metrics["reward/mean"] == pytest.approx(0.7)
    assert result.rewards["status"].to_list() == ["ok", "no_opinion"] * 8


def test_a_batch_without_any_opinion_teaches_nothing_and_crashes_nothing(files: Files) -> None:
    trainer = start(files, tiny_config(rewards={"tests.tiny_rewards:never_an_opinion": 1.0}, beta=0.0))
    before = policy_digest(trainer.policy.model)
    result = train_step(trainer, 1)
    assert policy_digest(trainer.policy.model) == before
    assert result.metrics["loss"] == 0.0
    assert result.rewards["reward"].null_count() == 16


def test_dead_groups_with_beta_zero_move_no_weight(files: Files) -> None:
    trainer = start(files, tiny_config(rewards={"tests.tiny_rewards:constant": 1.0}, beta=0.0))
    before = policy_digest(trainer.policy.model)
    metrics = train_step(trainer, 1).metrics
    assert policy_digest(trainer.policy.model) == before
    assert metrics["zero_variance_fraction"] == 1.0
    assert metrics["grad_norm"] == 0.0


def test_a_batch_of_truncated_completions_only_moves_no_weight_when_they_are_masked(files: Files) -> None:
    trainer = start(files, mask_truncated=True)
    train_step(trainer, 1)
    before = policy_digest(trainer.policy.model)
    trainer.config = replace(trainer.config, rollout=replace(trainer.config.rollout, max_new_tokens=2))
    trainer.policy = replace(trainer.policy, eos_ids=frozenset())
    result = train_step(trainer, 2)
    assert result.metrics["truncated_fraction"] == 1.0
    assert result.rewards["advantage"].abs().max() > 0  # type: ignore[operator]
    assert policy_digest(trainer.policy.model) == before, "momentum alone must not move them"


def test_beta_zero_asks_no_reference_and_reports_no_kl(files: Files) -> None:
    trainer = start(files, beta=0.0)

    def refuse(*given: object) -> None:
        raise AssertionError("the reference was asked")

    trainer.reference.model.register_forward_pre_hook(refuse)
    metrics = train_step(trainer, 1).metrics
    assert not [name for name in metrics if name.startswith("kl/")]
    assert metrics["loss"] == metrics["policy_loss"]
    with pytest.raises(AssertionError, match="the reference was asked"):
        train_step(start_with(trainer, files), 1)


def start_with(asked: Trainer, files: Files) -> Trainer:
    """A trainer with beta above 0 whose reference is the one of `asked`."""
    trainer = start(files)
    trainer.reference = asked.reference
    return trainer


def test_beta_follows_the_kl_of_the_rollout_from_the_next_step_on(files: Files) -> None:
    trainer = start(files, kl_control="threshold", kl_upper=1e-3, kl_lower=1e-4)
    betas = [train_step(trainer, step).metrics for step in (1, 2, 3)]
    assert abs(betas[0]["kl/mean"]) < 1e-3 < betas[1]["kl/mean"]
    assert [metrics["beta"] for metrics in betas] == pytest.approx([0.01, 0.01, 0.015])


def test_the_learning_rate_warms_up_over_steps(files: Files) -> None:
    trainer = start(files, warmup_steps=4, learning_rate=4e-3)
    assert [train_step(trainer, step).metrics["learning_rate"] for step in (1, 2, 4, 5)] == pytest.approx([1e-3, 2e-3, 4e-3, 4e-3])
    assert [group["lr"] for group in trainer.optimizer.param_groups] == pytest.approx([4e-3])


def test_advantages_are_clipped_for_the_loss_and_recorded_unclipped(files: Files) -> None:
    result = train_step(start(files, advantage_clip=0.5), 1)
    assert result.rewards["advantage"].max() > 0.6  # type: ignore[operator]
    assert result.rewards["clipped_advantage"].to_list() == [max(-0.5, min(a, 0.5)) for a in result.rewards["advantage"]]
    assert result.metrics["advantage/clipped_fraction"] == (result.rewards["advantage"].abs() > 0.5).mean()


def test_a_length_penalty_lowers_the_shaped_reward_only(files: Files) -> None:
    result = train_step(start(files, length_penalty=0.01, length_target=5), 1)
    expected = result.rewards["reward"] - 0.01 * (result.rollouts["length"] - 5).cast(pl.Float64) ** 2
    assert result.rewards["shaped_reward"].to_list() == pytest.approx(expected.to_list())
    assert result.metrics["reward/mean"] == pytest.approx(result.rewards["reward"].mean())


@pytest.mark.parametrize(("function", "value", "row"), [("infinite_in_row_three", "inf", 3), ("nan_first", "nan", 0)])
def test_a_reward_that_is_no_number_stops_before_the_weights_move(function: str, value: str, row: int, files: Files) -> None:
    trainer = start(files, tiny_config(rewards={REWARD: 1.0, f"tests.tiny_rewards:{function}": 1.0}))
    before = policy_digest(trainer.policy.model)
    with pytest.raises(RewardError, match=f"'tests.tiny_rewards:{function}' returned {value}, .* for step 1, prompt [0-9a-f]+, completion {row}"):
        train_step(trainer, 1)
    assert policy_digest(trainer.policy.model) == before
    assert optimizer_steps(trainer) == set()


def test_a_reference_with_other_weights_is_refused(files: Files, tmp_path: Path) -> None:
    write_start(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match=r"the weights of the reference .*other are not those of the policy's start .*start: make reference_checkpoint again"):
        start(replace(files, reference=tmp_path / "other"))


def test_another_tokenizer_is_refused_though_the_weights_are_the_same(files: Files, tmp_path: Path) -> None:
    trainer = start(files)
    tokenizer = AutoTokenizer.from_pretrained(files.start)
    tokenizer.chat_template = "{{ messages }}"
    save_model(replace(trainer.policy, tokenizer=tokenizer), tmp_path / "other")
    with pytest.raises(TokenizerMismatch, match="policy and reference differ in chat template"):
        start(replace(files, reference=tmp_path / "other"))


def test_a_reference_that_drifts_from_the_sampler_is_noticed_at_step_one(files: Files) -> None:
    trainer = start(files)
    with torch.no_grad():
        next(iter(trainer.reference.model.parameters())).mul_(1.01)
    with pytest.raises(
        DivergedError,
        match=r"at step 1 sampler and reference differ by 0\.0\d+ nats a token on average, 1e-05 is rounding in float32: they do not hold the same weights",
    ):
        train_step(trainer, 1)


@pytest.mark.parametrize("dtype", START_TOLERANCE)
def test_the_mean_gap_over_completion_tokens_is_held_against_the_tolerance_of_the_precision(dtype: str, files: Files) -> None:
    kept = drawn_and_signal(start(files))[2]
    mask, tolerance = kept.batch.mask, START_TOLERANCE[dtype]
    assert not mask.all(), "padding must be there for this test to mean something"
    spread = torch.linspace(0, 2, int(mask.sum()), dtype=torch.float64)  # its mean is 1
    outlier = torch.zeros_like(spread)
    outlier[0] = len(outlier)
    for gaps in (spread, -spread, outlier):
        for factor in (0.99, 1.01):
            old = torch.full(mask.shape, 1e3, dtype=torch.float64)  # what padding holds is no gap
            old[mask] = gaps * factor * tolerance
            apart = replace(kept, old_logprobs=old, ref_logprobs=torch.zeros_like(old))
            if factor < 1:
                check_start(apart, dtype)
            else:
                with pytest.raises(DivergedError, match=rf"nats a token on average, {tolerance:g} is rounding in {dtype}"):
                    check_start(apart, dtype)
    check_start(replace(kept, ref_logprobs=None), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_old_logprobs_are_the_sampler_s_in_float32_and_the_trainer_s_own_in_bfloat16(dtype: Literal["float32", "bfloat16"], files: Files) -> None:
    config = tiny_config()
    trainer = start(files, replace(config, model=replace(config.model, dtype=dtype)))
    batch, _, kept, _, signal = drawn_and_signal(trainer)
    moved = replace(batch, completions=[replace(c, logprobs=[logprob - 1 for logprob in c.logprobs]) for c in batch.completions])
    again = keep_logprobs(trainer, moved, signal)
    difference = (kept.old_logprobs - again.old_logprobs)[kept.batch.mask]
    assert torch.allclose(difference, torch.full_like(difference, 1.0 if dtype == "float32" else 0.0), atol=1e-6)
    assert kept.ref_logprobs is not None
    assert torch.allclose(kept.old_logprobs[kept.batch.mask], kept.ref_logprobs[kept.batch.mask], atol=1e-5)


def test_in_bfloat16_the_first_ratio_is_one_and_the_weights_move_in_float32(files: Files) -> None:
    config = tiny_config(minibatches_per_rollout=1)
    trainer = start(files, replace(config, model=replace(config.model, dtype="bfloat16")))
    before = policy_digest(trainer.policy.model)
    metrics = train_step(trainer, 1).metrics
    assert metrics["logprob_gap"] < 1e-5
    assert metrics["ratio/max"] == pytest.approx(1, abs=1e-5)
    assert metrics["clip_fraction"] == 0
    assert metrics["kl/mean"] == 0
    assert metrics["grad_norm"] > 1e-3
    assert policy_digest(trainer.policy.model) != before
    assert {weight.dtype for weight in trainer.policy.model.parameters()} == {torch.float32}
    in_float32 = train_step(start(files, config), 1).metrics
    assert metrics["entropy"] != in_float32["entropy"], "the forward pass must be one in bfloat16 for this test to mean something"


def test_the_context_is_measured_with_the_longest_prompt_there_is() -> None:
    policy = language_model(tiny_gpt2(num_positions=20))
    prompts = prompts_table().select("prompt_id", "prompt", "messages").head(3).with_columns(prompt=pl.Series(["1+1=", "123+456=", "1+10="]))
    lengths = [len(encode_prompt(policy.tokenizer, prompt, None)) for prompt in prompts["prompt"]]
    assert lengths == [5, 9, 6]
    check_context(policy, prompts, 11)
    with pytest.raises(ValueError, match=rf"prompt {prompts['prompt_id'][1]} has 9 tokens; with rollout.max_new_tokens \(12\) .* the 20 the model takes"):
        check_context(policy, prompts, 12)
    check_context(policy, prompts[[0, 2]], 14)


def test_fewer_train_prompts_than_a_step_takes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the train split has 3 prompts, fewer than grpo.prompts_per_step \(4\)"):
        start(inputs(tmp_path, prompts_table(train=3)))


def test_prompts_and_completions_that_do_not_fit_into_the_model_are_refused(files: Files) -> None:
    config = replace(tiny_config(), model=ModelConfig(path=str(files.start), device="cpu", num_threads=1))
    with pytest.raises(ValueError, match=r"has 6 tokens; with rollout.max_new_tokens \(43\) that is more than the 48 the model takes"):
        start(files, with_rollout(config, max_new_tokens=43))
    start(files, with_rollout(config, max_new_tokens=42))


def test_selection_looks_at_select_prompts_only(files: Files) -> None:
    trainer = start(files)
    select = pl.read_parquet(files.prompts).filter(pl.col("split") == "select")
    assert sorted(trainer.select_prompts["prompt_id"]) == sorted(select["prompt_id"])
    rows = evaluate_select(trainer, 3)
    assert rows is not None
    assert sorted(rows["prompt_id"]) == sorted(select["prompt_id"])
    assert set(rows["step"]) == {3}
    assert set(rows["decoding"]) == {"greedy"}
    assert set(rows["policy_digest"]) == {policy_digest(trainer.policy.model)}
    assert select_metrics(rows) == {"eval/select_accuracy": rows["correct"].mean(), "eval/select_graded": 4.0, "eval/select_length": rows["length"].mean()}
    nobody = evaluate_select(replace(trainer, select_prompts=select.head(0)), 3)
    assert nobody is None
    assert select_metrics(nobody) == {}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_logprob_of_the_sampler_that_is_not_finite_stops_before_anything_is_learned(bad: float, files: Files) -> None:
    trainer = start(files)
    before = policy_digest(trainer.policy.model)
    batch = draw_batch(trainer, 1)
    check_finite(batch)
    batch.completions[6].logprobs[2] = bad
    batch.completions[9].logprobs[0] = bad
    prompt = batch.prompts["prompt_id"][1]
    expected = rf"^the policy's logprob of token 2 is {bad} for step 1, prompt {prompt}, completion 2: its weights or its code give such logits$"
    with pytest.raises(DivergedError, match=expected) as caught:
        learn(trainer, batch, 1)
    assert caught.value.condition == "non_finite"
    assert policy_digest(trainer.policy.model) == before


def test_a_step_that_diverged_brings_the_batch_that_it_could_not_learn_from(files: Files) -> None:
    trainer = start(files)
    with torch.no_grad():
        next(iter(trainer.reference.model.parameters())).mul_(1.01)
    with pytest.raises(DivergedError) as caught:
        train_step(trainer, 1)
    assert caught.value.condition == "reference_misaligned"
    assert caught.value.rollouts.equals(rollout_rows(draw_batch(start(files), 1)))


def test_the_largest_gradient_norm_is_state_that_a_checkpoint_gives_back(files: Files) -> None:
    trainer = start(files, max_grad_norm=0.75)
    assert trainer.state["max_grad_norm"] == 0.75
    trainer.max_grad_norm = 1e-3
    moved = start(files, max_grad_norm=0.75)
    moved.take_state(trainer.state)
    assert moved.state == trainer.state
    metrics = [train_step(made, 1).metrics for made in (trainer, moved, start(files, max_grad_norm=1e-3))]
    assert metrics[0] == metrics[1] == metrics[2], "it is what the gradient is clipped at"
    assert metrics[0]["max_grad_norm"] == 1e-3 < metrics[0]["grad_norm"]
    old = start(files, max_grad_norm=0.75)
    old.take_state({name: value for name, value in trainer.state.items() if name != "max_grad_norm"})
    assert old.max_grad_norm == 0.75, "a checkpoint from before it was state"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampler_and_trainer_are_near_each_other_until_the_sampler_holds_other_weights(dtype: Literal["float32", "bfloat16"], files: Files) -> None:
    config = tiny_config()
    trainer = start(files, replace(config, model=replace(config.model, dtype=dtype)))
    batch = draw_batch(trainer, 1)
    well = learn(trainer, batch, 1).metrics["sampler_gap"]
    stale = learn(trainer, batch, 2).metrics["sampler_gap"]
    assert 0 <= well < (1e-5 if dtype == "float32" else 0.1)
    assert stale > 10 * well and stale > 1e-3, "the batch was drawn before the weights moved"


def test_what_follows_sampling_is_a_function_of_the_batch(files: Files) -> None:
    """Learning from rows of the ledger gives the weights and numbers of the step that drew them."""
    trainer, again = start(files), start(files)
    drawn = train_step(trainer, 1)
    learned = learn(again, batch_of(drawn.rollouts, again.train_prompts), 1)
    assert learned.metrics == drawn.metrics
    assert learned.rewards.equals(drawn.rewards)
    assert learned.rollouts.equals(drawn.rollouts)
    assert policy_digest(again.policy.model) == policy_digest(trainer.policy.model)


def test_a_step_trains_on_train_prompts_only(files: Files) -> None:
    train = pl.read_parquet(files.prompts).filter(pl.col("split") == "train")["prompt_id"]
    assert set(train_step(start(files), 1).rollouts["prompt_id"]) <= set(train)
