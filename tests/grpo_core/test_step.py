import copy
import math
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

from grpo_core.advantages import group_advantages
from grpo_core.aggregation import AGGREGATIONS
from grpo_core.errors import DivergedError
from grpo_core.kl import KL_ESTIMATORS
from grpo_core.logprobs import completion_logprobs
from grpo_core.loss import LossConfig
from grpo_core.step import Minibatch, StepStatistics, accumulate_gradient, optimizer_step
from tests.grpo_core.tiny_minibatch import COMPLETIONS, PROMPTS, policy, tiny_minibatch

ALIVE = [1.2, -0.7, 0.4, -1.1, 0.2]
"""Advantages of the five rows."""
ALL = 99
"""A micro-batch size that holds the whole minibatch."""


def gradient_of(minibatch: Minibatch, config: LossConfig, *, beta: float, size: int = ALL, temperature: float = 1.0) -> tuple[Tensor, dict[str, float]]:
    """The whole model's gradient as one vector, and the sums that came with it."""
    model = policy()
    sums = accumulate_gradient(model, minibatch, config, beta=beta, temperature=temperature, micro_batch_size=size)
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]), sums


def step(model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer, minibatch: Minibatch, **changes: Any) -> StepStatistics:
    settings: dict[str, Any] = {"config": LossConfig(length=5), "beta": 0.0, "temperature": 1.0, "micro_batch_size": 2, "max_grad_norm": 1.0} | changes
    return optimizer_step(model, optimizer, minibatch, **settings)


def after_one_step(*, dtype: torch.dtype = torch.float64) -> tuple[GPT2LMHeadModel, torch.optim.AdamW]:
    """A model and its AdamW with moments and weight decay alive: a step without gradient would still move the weights."""
    model = policy().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    step(model, optimizer, in_dtype(tiny_minibatch(ALIVE, beta=0.0), dtype))
    return model, optimizer


def in_dtype(minibatch: Minibatch, dtype: torch.dtype) -> Minibatch:
    ref = None if minibatch.ref_logprobs is None else minibatch.ref_logprobs.to(dtype)
    return replace(minibatch, old_logprobs=minibatch.old_logprobs.to(dtype), ref_logprobs=ref)


def everything(model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Copies of all weights and of all that the optimizer remembers."""
    moments = [value for state in optimizer.state_dict()["state"].values() for value in state.values()]
    return [copy.deepcopy(tensor) for tensor in [*model.state_dict().values(), *moments]]


def unchanged(before: list[Tensor], after: list[Tensor]) -> bool:
    return len(before) == len(after) and all(torch.equal(first, second) for first, second in zip(before, after, strict=True))


def without_rows(minibatch: Minibatch, *rows: int) -> Minibatch:
    """The minibatch with these rows masked out whole."""
    mask = minibatch.batch.mask.clone()
    mask[list(rows)] = False
    return replace(minibatch, batch=replace(minibatch.batch, mask=mask))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_splitting_a_batch_leaves_the_gradient_unchanged(aggregation: str, estimator: str, size: int) -> None:
    minibatch = without_rows(tiny_minibatch(ALIVE, beta=0.3), 3)
    config = LossConfig(aggregation=aggregation, kl_estimator=estimator, length=5)
    whole, sums = gradient_of(minibatch, config, beta=0.3)
    parts, part_sums = gradient_of(minibatch, config, beta=0.3, size=size)
    assert float(whole.norm()) > 0.01
    assert float((parts - whole).abs().max()) < 1e-9
    assert part_sums == pytest.approx(sums, abs=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_splitting_a_batch_leaves_what_is_watched_unchanged(size: int) -> None:
    minibatch = without_rows(tiny_minibatch(ALIVE, beta=0.3), 3)
    _, whole = gradient_of(minibatch, LossConfig(length=5), beta=0.3)
    _, parts = gradient_of(minibatch, LossConfig(length=5), beta=0.3, size=size)
    watched = ("mean_gap", "policy_kl", "effective_sample_fraction")
    assert [parts[name] for name in watched] == pytest.approx([whole[name] for name in watched], rel=1e-12)
    assert all(whole[name] > 0.1 for name in watched), "they must be of some size for this test to mean something"


def by_hand(minibatch: Minibatch, config: LossConfig, *, beta: float, temperature: float) -> Tensor:
    """The gradient from unpadded rows, one token after the other, with the formulas of the papers written out."""
    model = policy()
    loss = torch.zeros((), dtype=torch.float64)
    num_tokens = sum(map(len, COMPLETIONS))
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0] / temperature
        divisor = {"sequence_mean": len(completion) * len(PROMPTS), "token_mean": num_tokens, "constant": config.length * len(PROMPTS)}[config.aggregation]
        for t, token in enumerate(completion):
            logprob = logits[len(prompt) + t - 1].log_softmax(dim=-1)[token]
            ratio, advantage = (logprob - minibatch.old_logprobs[row, t]).exp(), minibatch.advantages[row]
            loss = loss - torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage) / divisor
            if minibatch.ref_logprobs is not None:
                d = minibatch.ref_logprobs[row, t] - logprob
                loss = loss + beta * (d.exp() - d - 1) / divisor
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(("beta", "temperature"), [(0.0, 1.0), (0.3, 1.0), (0.3, 0.6)])
def test_the_gradient_is_that_of_the_papers_formulas_on_unpadded_rows(aggregation: str, beta: float, temperature: float) -> None:
    minibatch, config = tiny_minibatch(ALIVE, beta=beta), LossConfig(aggregation=aggregation, length=5)
    found, _ = gradient_of(minibatch, config, beta=beta, size=2, temperature=temperature)
    assert float((found - by_hand(minibatch, config, beta=beta, temperature=temperature)).abs().max()) < 1e-12


@pytest.mark.parametrize("hidden", [math.nan, math.inf, -1e30])
def test_nan_in_masked_positions_changes_no_gradient_and_no_statistic(hidden: float) -> None:
    minibatch = without_rows(tiny_minibatch(ALIVE, beta=0.3), 3)
    mask = minibatch.batch.mask
    assert minibatch.ref_logprobs is not None
    spoilt = replace(minibatch, old_logprobs=minibatch.old_logprobs.masked_fill(~mask, hidden), ref_logprobs=minibatch.ref_logprobs.masked_fill(~mask, hidden))
    expected, sums = gradient_of(minibatch, LossConfig(), beta=0.3, size=2)
    found, spoilt_sums = gradient_of(spoilt, LossConfig(), beta=0.3, size=2)
    assert torch.equal(found, expected)
    assert spoilt_sums == sums


def test_a_dead_group_adds_no_policy_gradient_and_stays_in_the_denominator() -> None:
    minibatch = tiny_minibatch([1.0, -1.0, 0.0, 0.0, 0.0], beta=0.0)
    together, _ = gradient_of(minibatch, LossConfig(), beta=0.0)
    alone, _ = gradient_of(minibatch.rows(torch.tensor([0, 1])), LossConfig(), beta=0.0)
    assert float(alone.norm()) > 0.01
    assert float((5 * together - 2 * alone).abs().max()) < 1e-12


@pytest.mark.parametrize("rewards", [[0.7] * 5, [0.3] * 5, [0.1 + 0.2, 0.3, 0.3, 0.3, 0.3], [0.0] * 5, [1e6] * 5, [-0.1] * 5])
@pytest.mark.parametrize("scale_by_std", [True, False])
def test_equal_rewards_without_kl_move_no_weight_and_no_moment(rewards: list[float], scale_by_std: bool) -> None:
    model, optimizer = after_one_step()
    before = everything(model, optimizer)
    advantages = group_advantages(torch.tensor([rewards], dtype=torch.float64), torch.ones(1, 5, dtype=torch.bool), scale_by_std=scale_by_std)
    statistics = step(model, optimizer, tiny_minibatch(advantages[0].tolist(), beta=0.0))
    assert unchanged(before, everything(model, optimizer))
    assert (statistics.grad_norm, statistics.policy_loss) == (0.0, 0.0)


def test_equal_rewards_with_kl_learn_from_the_kl_alone() -> None:
    model, optimizer = after_one_step()
    before = everything(model, optimizer)
    minibatch = tiny_minibatch([0.0] * 5, beta=0.3)
    statistics = step(model, optimizer, minibatch, beta=0.3)
    assert statistics.policy_loss == 0.0
    assert statistics.loss == pytest.approx(0.3 * statistics.kl_loss)
    assert not unchanged(before, everything(model, optimizer))


def test_equal_rewards_with_kl_have_no_gradient_where_the_policy_is_the_reference() -> None:
    minibatch = tiny_minibatch([0.0] * 5, beta=0.3)
    with torch.no_grad():
        logprobs = completion_logprobs(policy(), minibatch.batch, 1.0)
    gradient, sums = gradient_of(replace(minibatch, old_logprobs=logprobs, ref_logprobs=logprobs), LossConfig(), beta=0.3)
    assert float(gradient.abs().max()) == 0.0
    assert (sums["kl_loss"], sums["logprob_gap"], sums["max_ratio"], sums["clip_fraction"]) == (0.0, 0.0, 1.0, 0.0)
    assert (sums["mean_gap"], sums["policy_kl"], sums["effective_sample_fraction"]) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_a_minibatch_without_a_trained_token_moves_no_weight_and_no_moment(beta: float) -> None:
    model, optimizer = after_one_step()
    before = everything(model, optimizer)
    statistics = step(model, optimizer, without_rows(tiny_minibatch(ALIVE, beta=beta), 0, 1, 2, 3, 4), beta=beta)
    assert unchanged(before, everything(model, optimizer))
    assert (statistics.loss, statistics.grad_norm) == (0.0, 0.0)
    assert (statistics.mean_gap, statistics.policy_kl, statistics.effective_sample_fraction) == (0.0, 0.0, 1.0)


def test_advantages_of_masked_rows_alone_move_no_weight() -> None:
    model, optimizer = after_one_step()
    before = everything(model, optimizer)
    step(model, optimizer, without_rows(tiny_minibatch([1.0, -1.0, 0.0, 0.0, 0.0], beta=0.0), 0, 1))
    assert unchanged(before, everything(model, optimizer))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_stops_before_the_weights(bad: float) -> None:
    model, optimizer = after_one_step()
    before = everything(model, optimizer)
    rewards = torch.tensor([[bad, 0, 0, 1, 0]], dtype=torch.float64)
    advantages = group_advantages(rewards, torch.ones(1, 5, dtype=torch.bool), scale_by_std=True)[0].clamp(-2, 2)
    with pytest.raises(DivergedError, match="stopped before the weights"):
        step(model, optimizer, tiny_minibatch(advantages.tolist(), beta=0.0))
    assert unchanged(before, everything(model, optimizer))


@pytest.mark.parametrize("name", ["old_logprobs", "ref_logprobs"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_trained_logprob_that_is_no_number_stops_before_the_weights(name: str, bad: float) -> None:
    model, optimizer = after_one_step()
    before = everything(model, optimizer)
    minibatch = tiny_minibatch(ALIVE, beta=0.3)
    values = getattr(minibatch, name).clone()
    values[2, 4] = bad
    changed = replace(minibatch, old_logprobs=values) if name == "old_logprobs" else replace(minibatch, ref_logprobs=values)
    with pytest.raises(DivergedError):
        step(model, optimizer, changed, beta=0.3)
    assert unchanged(before, everything(model, optimizer))


def test_a_kl_too_large_for_float32_stops_before_the_weights() -> None:
    model, optimizer = after_one_step(dtype=torch.float32)
    before = everything(model, optimizer)
    minibatch = in_dtype(tiny_minibatch(ALIVE, beta=0.3), torch.float32)
    assert minibatch.ref_logprobs is not None
    far = replace(minibatch, ref_logprobs=minibatch.ref_logprobs + 100)
    with pytest.raises(DivergedError, match="loss inf"):
        step(model, optimizer, far, beta=0.3)
    assert unchanged(before, everything(model, optimizer))


@pytest.mark.parametrize("max_grad_norm", [0.05, 1e3])
def test_the_step_is_the_gradient_scaled_down_to_the_largest_norm(max_grad_norm: float) -> None:
    minibatch, model = tiny_minibatch(ALIVE, beta=0.0), policy()
    before = torch.cat([weight.detach().clone().flatten() for weight in model.parameters()])
    statistics = step(model, torch.optim.SGD(model.parameters(), lr=1.0), minibatch, max_grad_norm=max_grad_norm)
    moved = before - torch.cat([weight.detach().flatten() for weight in model.parameters()])
    gradient, _ = gradient_of(minibatch, LossConfig(length=5), beta=0.0)
    norm = float(gradient.norm())
    assert statistics.grad_norm == pytest.approx(norm)
    assert norm > 0.05
    assert float((moved - gradient * min(1.0, max_grad_norm / norm)).abs().max()) < 1e-6


def test_a_gradient_left_behind_does_not_leak_into_the_step_nor_out_of_it() -> None:
    minibatch, clean, dirty = tiny_minibatch(ALIVE, beta=0.0), policy(), policy()
    for weight in dirty.parameters():
        weight.grad = torch.ones_like(weight)
    for model in (clean, dirty):
        step(model, torch.optim.SGD(model.parameters(), lr=1.0), minibatch)
    assert unchanged(list(clean.state_dict().values()), list(dirty.state_dict().values()))
    assert all(weight.grad is None for weight in dirty.parameters())


def test_a_step_makes_good_completions_likelier_and_bad_ones_less_likely() -> None:
    model, minibatch = policy(), tiny_minibatch([1.0, -1.0, 1.0, -1.0, -1.0], beta=0.0)

    def likelihoods() -> Tensor:
        with torch.no_grad():
            return completion_logprobs(model, minibatch.batch, 1.0).masked_fill(~minibatch.batch.mask, 0.0).sum(dim=1)

    on_policy = replace(minibatch, old_logprobs=completion_logprobs(model, minibatch.batch, 1.0).detach())
    before = likelihoods()
    step(model, torch.optim.SGD(model.parameters(), lr=0.05), on_policy)
    assert torch.sign(likelihoods() - before).tolist() == [1.0, -1.0, 1.0, -1.0, -1.0]


def test_statistics_are_means_and_extremes_over_trained_tokens() -> None:
    model, minibatch = policy(), without_rows(tiny_minibatch(ALIVE, beta=0.3), 3)
    mask = minibatch.batch.mask
    assert minibatch.ref_logprobs is not None
    with torch.no_grad():
        logits = model(input_ids=minibatch.batch.input_ids, attention_mask=minibatch.batch.attention_mask, position_ids=minibatch.batch.position_ids).logits
    distribution = torch.distributions.Categorical(logits=logits[:, -6:-1])
    logprobs = distribution.log_prob(minibatch.batch.tokens)
    ratio = (logprobs - minibatch.old_logprobs).exp()
    advantages = minibatch.advantages.unsqueeze(1).expand_as(ratio)
    clipped = torch.where(advantages > 0, ratio > 1.2, ratio < 0.8)
    found = asdict(step(model, torch.optim.SGD(model.parameters(), lr=0.0), minibatch, beta=0.3, config=LossConfig(aggregation="token_mean")))
    d = minibatch.ref_logprobs - logprobs
    objective = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)[mask].mean()
    kl = (d.exp() - d - 1)[mask].mean()
    assert 0 < float(clipped[mask].double().mean()) < 1
    expected = {
        "loss": float(0.3 * kl - objective),
        "policy_loss": -float(objective),
        "kl_loss": float(kl),
        "entropy": float(distribution.entropy()[mask].mean()),
        "clip_fraction": float(clipped[mask].double().mean()),
        "max_ratio": float(ratio[mask].max()),
        "logprob_gap": float((logprobs - minibatch.old_logprobs)[mask].abs().max()),
        "mean_gap": float((logprobs - minibatch.old_logprobs)[mask].abs().mean()),
        "policy_kl": float((ratio - 1 - ratio.log())[mask].mean()),
        "effective_sample_fraction": float(ratio[mask].sum() ** 2 / (mask.sum() * ratio[mask].square().sum())),
    }
    assert 0.1 < expected["effective_sample_fraction"] < 0.9
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-12)


def test_rows_and_micro_batches_keep_what_belongs_together() -> None:
    minibatch = tiny_minibatch(ALIVE, beta=0.3)
    assert minibatch.ref_logprobs is not None
    parts = list(minibatch.split(2))
    assert [len(part.advantages) for part in parts] == [2, 2, 1]
    chosen = minibatch.rows(torch.tensor([4, 0]))
    assert chosen.advantages.tolist() == [0.2, 1.2]
    for name in ("input_ids", "attention_mask", "position_ids", "tokens", "mask"):
        assert getattr(chosen.batch, name).tolist() == [getattr(minibatch.batch, name)[row].tolist() for row in (4, 0)]
        assert torch.cat([getattr(part.batch, name) for part in parts]).tolist() == getattr(minibatch.batch, name).tolist()
    assert chosen.old_logprobs.tolist() == minibatch.old_logprobs[[4, 0]].tolist()
    assert chosen.ref_logprobs is not None and chosen.ref_logprobs.tolist() == minibatch.ref_logprobs[[4, 0]].tolist()
