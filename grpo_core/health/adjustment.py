"""What an alarm adjusts where `health.actions` asks for it, and which settings that depends on."""

from collections.abc import Mapping
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.params import section_values

ADJUSTED_GRAD_NORM, ADJUSTED_BETA_FACTOR, LEAST_BETA = 0.5, 1.5, 0.01
"""What `adjust` does: the gradient is clipped here at the latest, beta is multiplied by this and is at least that."""


def adjustment(metrics: Mapping[str, float]) -> dict[str, float]:
    """The settings that `adjust` puts in place of those of the step."""
    return {
        "max_grad_norm": min(metrics["max_grad_norm"], ADJUSTED_GRAD_NORM),
        "beta": max(metrics["beta"] * ADJUSTED_BETA_FACTOR, LEAST_BETA),
    }


def changes_steps(config: RunConfig) -> dict[str, Any]:
    """What of the `health` section changes a step: the conditions that adjust and, where there are any, when they are seen."""
    settings = config.health
    adjusting = {name: action for name, action in sorted(settings.actions.items()) if action == "adjust" and name not in settings.acknowledged}
    thresholds = {name: value for name, value in section_values(config, "health").items() if name not in ("actions", "acknowledged", "notify")}
    return {"actions": adjusting, **thresholds} if adjusting else {}
