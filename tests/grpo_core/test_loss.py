import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_core.aggregation import count_totals
from grpo_core.config import GrpoConfig
from grpo_core.logprobs import pick, tempered_logprobs
from grpo_core.loss import LossConfig, LossTerms, loss_config, policy_loss
from grpo_core.params import parse_section
from tests.golden import GOLDEN

HAND = GOLDEN["end_to_end"]
ADVANTAGES, OLD, REF = (torch.tensor(HAND[name], dtype=torch.float64) for name in ("adv", "old_logp", "ref_logp"))
TOKENS, MASK = torch.tensor(HAND["tokens"]), torch.tensor(HAND["mask"]).bool()
KL = {"k3": "k3", "ratio_k3": "k3_ratio", "beta0": "k3"}


def hand_logits() -> Tensor:
    return torch.tensor(HAND["logits"], dtype=torch.float64, requires_grad=True)


def preset(name: str) -> LossConfig:
    return loss_config(parse_section(GrpoConfig, "grpo", {"loss": name}), max_new_tokens=HAND["dr_const"])


def terms_of(logits: Tensor, config: LossConfig, beta: float, **changes: Any) -> LossTerms:
    given: dict[str, Any] = {"old": OLD, "ref": REF, "advantages": ADVANTAGES, "tokens": TOKENS, "mask": MASK} | changes
    logprobs = pick(tempered_logprobs(logits, 1.0), given["tokens"])
    totals = count_totals(given["mask"], config.length)
    return policy_loss(logprobs, given["old"], given["ref"], given["advantages"], given["mask"], totals, config, beta)


@pytest.mark.parametrize("case", HAND["losses"])
def test_the_loss_from_logits_is_the_one_worked_out_by_hand(case: str) -> None:
    name, kl = case.split("|")
    beta = 0.0 if kl == "beta0" else HAND["beta"]
    logits = hand_logits()
    terms = terms_of(logits, replace(preset(name), kl_estimator=KL[kl]), beta)
    assert float(terms.loss.detach()) == pytest.approx(HAND["losses"][case], abs=1e-14)
    if beta:
        (gradient,) = torch.autograd.grad(terms.loss, logits)
        assert float(gradient.norm()) == pytest.approx(HAND["grad_norms"][case], abs=1e-9)


def test_the_gradient_on_every_logit_is_the_one_worked_out_by_hand() -> None:
    logits = hand_logits()
    (gradient,) = torch.autograd.grad(terms_of(logits, preset("dapo"), 0.0).loss, logits)
    assert float((gradient - torch.tensor(HAND["grad_logits_dapo_beta0"], dtype=torch.float64)).abs().max()) < 1e-9


def test_what_the_loss_reports_is_what_was_worked_out_by_hand() -> None:
    terms = terms_of(hand_logits(), preset("dapo"), HAND["beta"])
    clipped = HAND["clip_frac_high_A>0"] + HAND["clip_frac_low_A<0"]
    ratios = (torch.tensor(HAND["logp"], dtype=torch.float64) - OLD).exp()[MASK]
    assert float(terms.clipped_tokens) / int(MASK.sum()) == pytest.approx(clipped)
    assert float(terms.kl) == pytest.approx(HAND["mean_k3"], abs=1e-15)
    assert float(terms.policy) == pytest.approx(HAND["losses"]["dapo|beta0"], abs=1e-15)
    assert float(ratios.mean()) == pytest.approx(HAND["mean_ratio"])
    assert float(terms.max_ratio) == pytest.approx(float(ratios.max()))
    assert float(terms.ratio_sum) == pytest.approx(sum(ratios.tolist()))
    assert float(terms.ratio_squares) == pytest.approx(sum(ratio**2 for ratio in ratios.tolist()))
    assert float(terms.policy_kl) == pytest.approx(sum(ratio - 1 - math.log(ratio) for ratio in ratios.tolist()))


def test_the_largest_ratio_is_that_of_a_trained_token_even_when_all_are_below_1() -> None:
    logprobs = torch.tensor([[-1.0, -1.0, -1.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False]])
    old = logprobs - torch.tensor([[0.8, 0.9, 5.0]], dtype=torch.float64).log()
    terms = policy_loss(logprobs, old, None, torch.ones(1, dtype=torch.float64), mask, count_totals(mask, 3), LossConfig(), 0.0)
    assert float(terms.max_ratio) == pytest.approx(0.9)


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3_ratio"])
@pytest.mark.parametrize("hidden", [0.0, -7.0, math.nan, math.inf, -math.inf])
def test_whatever_stands_in_masked_columns_changes_no_number(name: str, estimator: str, hidden: float) -> None:
    config = replace(preset(name), kl_estimator=estimator)
    plain = hand_logits()
    expected = terms_of(plain, config, HAND["beta"])
    (expected_gradient,) = torch.autograd.grad(expected.loss, plain)
    wide = torch.cat([plain.detach(), torch.ones(3, 2, 3, dtype=torch.float64)], dim=1).requires_grad_()
    extra = torch.full((3, 2), hidden, dtype=torch.float64)
    mask = torch.cat([MASK, torch.zeros(3, 2, dtype=torch.bool)], dim=1)
    old, ref = (torch.cat([known.masked_fill(~MASK, hidden), extra], dim=1) for known in (OLD, REF))
    found = terms_of(wide, config, HAND["beta"], old=old, ref=ref, mask=mask, tokens=torch.cat([TOKENS, torch.ones(3, 2, dtype=torch.long)], dim=1))
    (gradient,) = torch.autograd.grad(found.loss, wide)
    for field in ("loss", "policy", "kl", "clipped_tokens", "max_ratio", "ratio_sum", "ratio_squares", "policy_kl"):
        assert float(getattr(found, field).detach()) == pytest.approx(float(getattr(expected, field).detach()), rel=1e-15, abs=1e-15)
    assert float((gradient[:, :4] - expected_gradient).abs().max()) < 1e-15
    assert float(gradient[:, 4:].abs().max()) == 0.0


@pytest.mark.parametrize("hidden", [math.nan, math.inf, 1e30])
def test_nan_in_the_policys_own_masked_logprobs_reaches_no_gradient(hidden: float) -> None:
    logprobs = torch.tensor(HAND["logp"], dtype=torch.float64).masked_fill(~MASK, hidden).requires_grad_()
    terms = policy_loss(logprobs, OLD, REF, ADVANTAGES, MASK, count_totals(MASK, 8), preset("grpo"), HAND["beta"])
    (gradient,) = torch.autograd.grad(terms.loss, logprobs)
    assert float(terms.loss.detach()) == pytest.approx(HAND["losses"]["grpo|k3"], abs=1e-14)
    assert bool(gradient.isfinite().all()) and gradient[~MASK].tolist() == [0.0] * 3


@pytest.mark.parametrize(("name", "golden"), [("grpo", "loss_grpo_when_ratio_1"), ("dapo", "loss_dapo_when_ratio_1")])
def test_at_ratio_1_the_loss_is_minus_the_mean_advantage_and_the_gradient_is_not_zero(name: str, golden: str) -> None:
    logits = hand_logits()
    old = pick(tempered_logprobs(logits.detach(), 1.0), TOKENS)
    terms = terms_of(logits, preset(name), 0.0, old=old)
    (gradient,) = torch.autograd.grad(terms.loss, logits)
    assert float(terms.loss.detach()) == pytest.approx(GOLDEN["on_policy_identities"][golden], abs=1e-15)
    assert float(terms.max_ratio) == 1.0
    assert (float(terms.ratio_sum), float(terms.ratio_squares), float(terms.policy_kl)) == (float(MASK.sum()), float(MASK.sum()), 0.0)
    assert float(gradient.norm()) > 0.1


def test_what_is_watched_of_ratios_is_worked_out_in_float64_and_has_no_gradient() -> None:
    logprobs = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    old = torch.tensor([[-1.0 - 1e-4, -1.0]])
    terms = policy_loss(logprobs, old, None, torch.ones(1), mask, count_totals(mask, 2), LossConfig(), 0.0)
    for field in ("ratio_sum", "ratio_squares", "policy_kl"):
        assert (getattr(terms, field).dtype, getattr(terms, field).requires_grad) == (torch.float64, False)
    moved = float((logprobs.detach() - old)[0, 0])
    assert float(terms.policy_kl) == pytest.approx(moved**2 / 2, rel=1e-3), "in float32 it would be rounding"


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3_ratio"])
def test_kl_is_exactly_0_when_the_policy_is_the_reference(estimator: str) -> None:
    logits = hand_logits()
    ref = pick(tempered_logprobs(logits.detach(), 1.0), TOKENS)
    assert float(terms_of(logits, LossConfig(kl_estimator=estimator), HAND["beta"], ref=ref).kl) == GOLDEN["on_policy_identities"]["kl_when_policy_is_ref"]


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo"])
def test_without_advantages_the_gradient_is_beta_times_that_of_the_kl_alone(name: str) -> None:
    logits, dead = hand_logits(), torch.zeros(3, dtype=torch.float64)
    without, small, large = (terms_of(logits, preset(name), beta, advantages=dead) for beta in (0.0, 0.01, 0.04))
    zero, first, second = (torch.autograd.grad(terms.loss, logits)[0] for terms in (without, small, large))
    assert zero.abs().max() == 0.0
    assert float(small.loss.detach()) == pytest.approx(0.01 * float(small.kl), abs=1e-16)
    assert float(first.norm()) > 0
    assert float((second - 4 * first).abs().max()) < 1e-16


def test_with_beta_0_the_reference_may_be_missing_and_its_kl_is_only_watched() -> None:
    watched, missing = (terms_of(hand_logits(), preset("grpo"), 0.0, ref=ref) for ref in (REF, None))
    assert float(watched.loss.detach()) == float(missing.loss.detach())
    assert float(watched.kl) > 0 == float(missing.kl)


@pytest.mark.parametrize(
    ("name", "aggregation", "scale_by_std"), [("grpo", "sequence_mean", True), ("dapo", "token_mean", True), ("dr_grpo", "constant", False)]
)
def test_a_named_loss_is_its_objective_aggregation_kl_and_scaling(name: str, aggregation: str, scale_by_std: bool) -> None:
    assert preset(name) == LossConfig(objective="clip", aggregation=aggregation, kl_estimator="k3", scale_by_std=scale_by_std, length=8)


def test_every_part_of_a_preset_can_be_replaced_by_name() -> None:
    config = GrpoConfig(
        loss="grpo", objective="clip", aggregation="constant", kl_estimator="k2", advantage_scale="none", aggregation_length=99, clip_low=0.1, clip_high=0.28
    )
    expected = LossConfig(objective="clip", aggregation="constant", kl_estimator="k2", scale_by_std=False, clip_low=0.1, clip_high=0.28, length=99)
    assert loss_config(config, max_new_tokens=44) == expected
    assert loss_config(GrpoConfig(loss="dr_grpo", advantage_scale="std"), max_new_tokens=44).scale_by_std
