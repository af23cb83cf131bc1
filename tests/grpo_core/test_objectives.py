from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grpo_core.objectives import clip, is_clipped
from tests.golden import GOLDEN


def objective(ratio: float, advantage: float, clip_low: float = 0.2, clip_high: float = 0.2) -> tuple[float, float, bool]:
    """Value, gradient with respect to the logprob, and whether `is_clipped` says so, of one token."""
    log_ratio = torch.tensor([[ratio]], dtype=torch.float64).log().requires_grad_()
    advantages = torch.tensor([advantage], dtype=torch.float64)
    value = clip(log_ratio, advantages, clip_low, clip_high)
    (gradient,) = torch.autograd.grad(value.sum(), log_ratio)
    return float(value.detach()), float(gradient), bool(is_clipped(log_ratio, advantages, clip_low, clip_high))


@pytest.mark.parametrize("case", GOLDEN["clipped_objective"], ids=lambda case: f"ratio {case['ratio']}, advantage {case['adv']}, high {case['eps_high']}")
def test_the_clipped_objective_has_the_values_and_gradients_worked_out_by_hand(case: dict[str, Any]) -> None:
    value, gradient, _ = objective(case["ratio"], case["adv"], case["eps_low"], case["eps_high"])
    assert (value, gradient) == pytest.approx((case["objective"], case["dJ_dlogp"]), abs=1e-12)


@given(ratio=st.floats(0.05, 20), advantage=st.floats(-3, 3), clip_low=st.floats(0.01, 0.9), clip_high=st.floats(0.01, 5))
@settings(deadline=None)
def test_a_token_counts_as_clipped_exactly_when_it_has_no_gradient(ratio: float, advantage: float, clip_low: float, clip_high: float) -> None:
    assume(abs(advantage) > 1e-6 and abs(ratio - 1 + clip_low) > 1e-9 and abs(ratio - 1 - clip_high) > 1e-9)
    _, gradient, clipped = objective(ratio, advantage, clip_low, clip_high)
    assert clipped == (gradient == 0)
    assert clipped or gradient == pytest.approx(ratio * advantage)


def test_an_advantage_of_zero_has_no_gradient_and_is_not_called_clipped() -> None:
    assert objective(1.5, 0.0) == (0.0, 0.0, False)


def test_every_token_of_a_completion_has_the_advantage_of_its_own_row() -> None:
    value = clip(torch.zeros(2, 3, dtype=torch.float64), torch.tensor([1.5, -2.0], dtype=torch.float64), 0.2, 0.2)
    assert value.tolist() == [[1.5] * 3, [-2.0] * 3]
