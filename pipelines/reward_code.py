"""Whether the reward functions that a configuration names are there, found out before anything is spent."""

import inspect
from collections.abc import Iterable
from pathlib import Path

from grpo_core.config import ConfigError, RunConfig
from grpo_core.rewards import load_reward

FOLDER = "reward_functions"
"""What DVC watches: a function elsewhere in the checkout could change without anything becoming stale."""


def check_reward_functions(root: Path, configs: Iterable[RunConfig]) -> None:
    """Import every reward function and metric that `configs` name.

    Raises RewardError when one cannot be found, and ConfigError when its file is the checkout's own but not in `reward_functions/`.
    """
    for config in configs:
        for name in {*config.rewards, config.grpo.select_metric, config.heldout_eval.metric}:
            path = Path(inspect.getfile(load_reward(name))).resolve()
            own = path.is_relative_to(root.resolve()) and not path.is_relative_to(root.resolve() / ".venv")
            allowed = path.is_relative_to(root.resolve() / FOLDER) or path.is_relative_to(root.resolve() / "grpo_core")
            if own and not allowed:
                raise ConfigError(f"reward function {name!r} lies in {path}: move it into {FOLDER}/, which DVC watches, so that an edit is seen")
