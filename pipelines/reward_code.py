"""Whether the reward functions that a configuration names are there, found out before anything is spent, and are those that a run was trained with."""

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from assets.paths import Paths
from grpo_core.checkpoint import MANIFEST
from grpo_core.config import RunConfig
from grpo_core.requirements import ConfigError
from grpo_core.rewards.registry import check_options, code_hash, load_reward, source_file, traits

FOLDER = "reward_functions"
"""What DVC watches: a function elsewhere in the checkout could change without anything becoming stale."""


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A reward function whose code is not what a training recorded."""

    function: str
    recorded: str
    today: str | None
    """None when there is no such function any more."""
    why: str = ""
    """What was said when it could not be loaded."""

    def sentence(self) -> str:
        """For people."""
        if self.today is None:
            return f"reward {self.function} cannot be loaded any more: {self.why}"
        return f"reward code of {self.function} changed since (hash {self.recorded}, today {self.today})"


def check_reward_functions(root: Path, configs: Iterable[RunConfig]) -> None:
    """Import every reward function and metric that `configs` name, check their options, and the sandbox where one needs it.

    Raises RewardError when one cannot be found or has other options, ConfigError when its file is the checkout's own but not in
    `reward_functions/`, SandboxUnavailable when it needs the sandbox and this machine isolates nothing.
    """
    for config in configs:
        for name in {*config.rewards, config.grpo.select_metric, config.heldout_eval.metric}:
            path = Path(source_file(load_reward(name)) or inspect.getfile(import_module(traits(name).path.partition(":")[0]))).resolve()
            own = path.is_relative_to(root.resolve()) and not path.is_relative_to(root.resolve() / ".venv")
            allowed = path.is_relative_to(root.resolve() / FOLDER) or path.is_relative_to(root.resolve() / "grpo_core")
            if own and not allowed:
                raise ConfigError(f"reward function {name!r} lies in {path}: move it into {FOLDER}/, which DVC watches, so that an edit is seen")
            check_options(name, config.reward_options.get(name, {}))
            if traits(name).isolated:
                from grpo_core.sandbox.isolation import require_isolation

                require_isolation()


def changed_reward_code(recorded: Mapping[str, str], functions: Iterable[str]) -> list[CodeChange]:
    """Those of `functions` whose code has another hash than the `recorded` one; what is not recorded is passed over."""
    changes = []
    for name in functions:
        if name not in recorded:
            continue
        try:
            today = code_hash([name])
        except Exception as error:  # noqa: BLE001  # it is anybody's module; what it raised is told
            changes.append(CodeChange(name, recorded[name], None, " ".join(f"{type(error).__name__}: {error}".split())))
            continue
        if today != recorded[name]:
            changes.append(CodeChange(name, recorded[name], today))
    return changes


def reward_code_changes(paths: Paths, functions: Iterable[str]) -> list[CodeChange]:
    """Those of `functions` whose code is not what the experiment's trained policy was rewarded by; none when there is no policy to ask."""
    try:
        manifest = json.loads((paths.grpo_checkpoint / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return []
    return changed_reward_code(manifest.get("reward_code_hashes", {}), functions)
