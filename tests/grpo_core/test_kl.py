from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_core.kl import KL_ESTIMATORS, k1, k2, k3, k3_ratio
from tests.golden import GOLDEN

DISTRIBUTIONS = GOLDEN["kl_estimators"]
PI, REF = (torch.tensor([DISTRIBUTIONS[name]], dtype=torch.float64).log() for name in ("pi", "ref"))


def on_policy(name: str, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The estimator where the ratio is 1, its gradient alive."""
    return KL_ESTIMATORS[name](logprobs, ref_logprobs, logprobs - logprobs.detach())


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_each_estimator_has_its_values_and_expectation(name: str) -> None:
    values = on_policy(name, PI, REF)
    assert values[0].tolist() == pytest.approx(DISTRIBUTIONS[name], abs=1e-14)
    assert float((PI.exp() * values).sum()) == pytest.approx(DISTRIBUTIONS[f"E_{name}"], abs=1e-14)


@pytest.mark.parametrize("name", ["k1", "k3", "k3_ratio"])
def test_k1_and_k3_are_unbiased(name: str) -> None:
    assert float((PI.exp() * on_policy(name, PI, REF)).sum()) == pytest.approx(DISTRIBUTIONS["KL_pi_ref"], abs=1e-14)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("k1", [0.0, 0.0, 0.0]),
        ("k2", GOLDEN["kl_gradients_wrt_logits"]["grad_KL_pi_ref"]),
        ("k3", GOLDEN["kl_gradients_wrt_logits"]["grad_KL_ref_pi"]),
        ("k3_ratio", GOLDEN["kl_gradients_wrt_logits"]["grad_KL_pi_ref"]),
    ],
)
def test_as_a_loss_k1_is_noise_and_k3_forward_and_k2_and_k3_ratio_reverse_kl(name: str, expected: list[float]) -> None:
    logits = PI[0].clone().requires_grad_()
    logprobs = torch.log_softmax(logits, dim=-1).unsqueeze(0)
    expectation = (logprobs.detach().exp() * on_policy(name, logprobs, REF)).sum()
    (gradient,) = torch.autograd.grad(expectation, logits)
    assert gradient.tolist() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("point", GOLDEN["k3_points"], ids=lambda point: f"logprob {point['logp']}, reference {point['ref']}")
def test_each_estimator_at_points_worked_out_by_hand(point: dict[str, Any]) -> None:
    logprobs, ref, log_ratio = (torch.tensor([[value]], dtype=torch.float64) for value in (point["logp"], point["ref"], 0.3))
    for name, estimator in (("k1", k1), ("k2", k2), ("k3", k3)):
        assert float(estimator(logprobs, ref, log_ratio)) == pytest.approx(point[name], abs=1e-14)
    assert float(k3_ratio(logprobs, ref, log_ratio)) == pytest.approx(1.3498588075760032 * point["k3"], abs=1e-13)


@given(logprob=st.floats(-20, 0), ref_logprob=st.floats(-20, 0))
@settings(deadline=None)
def test_k3_is_never_negative_and_zero_where_policy_and_reference_agree(logprob: float, ref_logprob: float) -> None:
    first, second = (torch.tensor([[value]], dtype=torch.float64) for value in (logprob, ref_logprob))
    assert float(k3(first, second, torch.zeros_like(first))) >= -1e-15
    assert float(k3(first, first, torch.zeros_like(first))) == 0.0
