"""How far the policy is from the reference, one number a token (samples from the policy; http://joschu.net/blog/kl-approx.html).

In the loss the estimator's *gradient* matters, not its value. In expectation, with the samples held fixed:
k1 has none (a constant's score: noise, not a penalty); k2 and k3_ratio give the gradient of KL(policy‖reference); k3 that of
KL(reference‖policy).
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor


def k1(logprobs: Float[Tensor, "B T"], ref_logprobs: Float[Tensor, "B T"], log_ratio: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """`log π - log π_ref`: unbiased, noisy, of either sign; as a loss term its expected gradient is zero."""
    return logprobs - ref_logprobs


def k2(logprobs: Float[Tensor, "B T"], ref_logprobs: Float[Tensor, "B T"], log_ratio: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """`(log π - log π_ref)² / 2`: biased in value, but its gradient is that of KL(π‖π_ref)."""
    return (logprobs - ref_logprobs).square() / 2


def k3(logprobs: Float[Tensor, "B T"], ref_logprobs: Float[Tensor, "B T"], log_ratio: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """`exp(d) - d - 1` with `d = log π_ref - log π`: unbiased, never negative (DeepSeekMath, arXiv:2402.03300, eq. 4)."""
    difference = ref_logprobs - logprobs
    return difference.exp() - difference - 1


def k3_ratio(logprobs: Float[Tensor, "B T"], ref_logprobs: Float[Tensor, "B T"], log_ratio: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """`k3` times the importance ratio π/π_old, which turns its gradient into that of KL(π‖π_ref)."""
    return log_ratio.exp() * k3(logprobs, ref_logprobs, log_ratio)


Estimator = Callable[[Float[Tensor, "B T"], Float[Tensor, "B T"], Float[Tensor, "B T"]], Float[Tensor, "B T"]]
KL_ESTIMATORS: dict[str, Estimator] = {"k1": k1, "k2": k2, "k3": k3, "k3_ratio": k3_ratio}
