"""How beta follows the rollout's KL: fixed, by two thresholds, or by a PID loop on a target. State in, state out."""

import math
from dataclasses import dataclass, replace

from grpo_core.config import GrpoConfig

FACTOR = 1.5
"""What the threshold rule multiplies or divides beta by."""

RANGE = 100.0
"""Beta stays within this factor of where it started: left alone at KL 0 it would sink to where no later KL brings it back."""
ERROR_SUM_LIMIT = 10.0
"""The PID's integral stops here (anti-windup): KL starts at 0, and an error summed over that start must not hold beta down later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KlController:
    """Beta and what its rule remembers; a checkpoint stores it as it is."""

    beta: float
    """Weight of the KL term in the next update."""
    armed: bool = False
    """`threshold`: the upper bound was exceeded once; before that beta never falls (KL starts at 0, which is no reason to loosen)."""
    steps_below: int = 0
    """`threshold`: consecutive steps under the lower bound."""
    error_sum: float = 0.0
    """`pid`: sum of relative errors."""
    last_error: float = 0.0
    """`pid`: relative error of the step before."""


def next_controller(controller: KlController, kl: float, config: GrpoConfig) -> KlController:
    """The controller after a rollout batch whose KL (the statistic `config.kl_statistic`, in nats) was `kl`."""
    if config.kl_control == "fixed":
        return controller
    moved = (_threshold if config.kl_control == "threshold" else _pid)(controller, kl, config)
    return replace(moved, beta=min(max(moved.beta, config.beta / RANGE), config.beta * RANGE))


def _threshold(controller: KlController, kl: float, config: GrpoConfig) -> KlController:
    if kl > config.kl_upper:
        return replace(controller, beta=controller.beta * FACTOR, armed=True, steps_below=0)
    if kl >= config.kl_lower or not controller.armed:
        return replace(controller, steps_below=0)
    if controller.steps_below + 1 < config.kl_patience:
        return replace(controller, steps_below=controller.steps_below + 1)
    return replace(controller, beta=controller.beta / FACTOR, steps_below=0)


def _pid(controller: KlController, kl: float, config: GrpoConfig) -> KlController:
    """Beta moves in proportion to itself (in its logarithm), so it stays positive and its unit does not matter."""
    error = max(-1.0, min(kl / config.kl_target - 1, 1.0))
    error_sum = max(-ERROR_SUM_LIMIT, min(controller.error_sum + error, ERROR_SUM_LIMIT))
    change = config.kl_proportional * error + config.kl_integral * error_sum + config.kl_derivative * (error - controller.last_error)
    return replace(controller, beta=controller.beta * math.exp(change), error_sum=error_sum, last_error=error)
