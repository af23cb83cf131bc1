"""The arms of an ablation: which settings they override, what they cost, and how they get into params.yaml and out again."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assets.comparison_report import make_report
from assets.paths import Paths
from grpo_core.config import RunConfig
from grpo_core.params import resolve_experiments
from grpo_core.requirements import ConfigError, nearest
from pipelines.outlook import Outlook, outlook
from pipelines.params import experiments, load_params
from pipelines.params_file import change_experiments, locked

Number = int | float
Overrides = Mapping[str, Mapping[str, Any]]
"""Section → key → value."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A factor of FACTORS in grpo_core/comparison.py as `grpo ablate` varies it."""

    values: tuple[Number, ...]
    """What is tried unless values are given."""
    overrides: Callable[[RunConfig, Number], Overrides]
    """What a value of it overrides in a configuration."""


@dataclass(frozen=True, slots=True)
class Ablation:
    """Arms to be added."""

    factor: str
    base: str
    arms: Mapping[str, Overrides]
    """Experiment → all that it overrides, what its base overrides included."""
    configs: Mapping[str, RunConfig]
    """Experiment → what comes of it."""
    notes: tuple[str, ...]
    """What had to follow the factor."""


def _group_size(base: RunConfig, value: Number) -> Overrides:
    """A group size at the sampling budget of the base: as many completions a step, of fewer or more prompts."""
    grpo = base.grpo
    budget = grpo.prompts_per_step * grpo.group_size
    if not isinstance(value, int) or value < 2 or budget % value:
        fitting = ", ".join(str(size) for size in range(2, budget + 1) if budget % size == 0)
        kept = f"grpo.prompts_per_step × grpo.group_size = {grpo.prompts_per_step} × {grpo.group_size} = {budget} completions a step"
        raise ConfigError(f"group_size {value} does not divide the sampling budget, which every arm shares ({kept}): take of {fitting}")
    prompts = budget // value
    minibatches = max(count for count in range(1, grpo.minibatches_per_rollout + 1) if prompts % count == 0)
    followed = {} if minibatches == grpo.minibatches_per_rollout else {"minibatches_per_rollout": minibatches}
    return {"grpo": {"group_size": value, "prompts_per_step": prompts, **followed}}


KINDS: Mapping[str, Kind] = {
    "group_size": Kind((4, 8, 16), _group_size),
    "clip": Kind((0.1, 0.2, 0.3), lambda base, value: {"grpo": {"clip_low": value, "clip_high": value}}),
    "beta": Kind((0.0, 0.01, 0.04), lambda base, value: {"grpo": {"beta": value}}),
    "temperature": Kind((0.7, 1.0, 1.3), lambda base, value: {"rollout": {"temperature": value}}),
}
SEEDS = (0, 1, 2)


def plan_ablation(params: Mapping[str, Any], factor: str, values: Sequence[Number], seeds: Sequence[int], steps: int | None, base: str) -> Ablation:
    """The arms of `factor`, every value with every seed, on top of the experiment `base`. Raises `ConfigError` when one of them could not be run."""
    configs = resolve_experiments(params)
    if base not in configs:
        raise ConfigError(f"unknown experiment {base!r}: {nearest(base, list(configs))} (--base is one of params.yaml's experiments)")
    arms = {
        arm_name(factor, base, value, seed): _laid_over(
            params["experiments"][base],
            KINDS[factor].overrides(configs[base], value),
            {"grpo": {"seed": seed} if steps is None else {"seed": seed, "steps": steps}},
        )
        for value in dict.fromkeys(values)
        for seed in dict.fromkeys(seeds)
    }
    resolved = resolve_experiments({**params, "experiments": {**params["experiments"], **arms}})
    return Ablation(factor, base, arms, {name: resolved[name] for name in arms}, tuple(_notes(configs[base], resolved, arms)))


def _laid_over(*layers: Overrides) -> dict[str, dict[str, Any]]:
    """Later overrides over earlier ones, key by key."""
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for section, values in layer.items():
            merged[section] = {**merged.get(section, {}), **values}
    return merged


def _notes(base: RunConfig, resolved: Mapping[str, RunConfig], arms: Mapping[str, Overrides]) -> list[str]:
    """Which arms take fewer optimizer steps a rollout batch than the base, because so few prompts cannot be shared out as evenly."""
    wanted = base.grpo.minibatches_per_rollout
    fewer = {resolved[name].grpo.group_size: resolved[name].grpo for name in arms if resolved[name].grpo.minibatches_per_rollout != wanted}
    return [
        f"group_size {size}: {grpo.prompts_per_step} prompts a step do not share out into {wanted} minibatches, so grpo.minibatches_per_rollout is "
        f"{grpo.minibatches_per_rollout}: its optimizer steps are fewer and larger"
        for size, grpo in fewer.items()
    ]


def arm_name(factor: str, base: str, value: Number, seed: int) -> str:
    """What an arm is called: `group_size-4-seed-0`, `clip-0_1-seed-0`; behind the name of its base where that is another than `default`."""
    return f"{'' if base == 'default' else f'{base}-'}{factor}-{_in_name(value)}-seed-{seed}"


def _in_name(value: Number) -> str:
    return str(value).removesuffix(".0").replace(".", "_").replace("+", "")


def write_arms(root: Path, ablation: Ablation) -> dict[str, str]:
    """Put the arms into params.yaml; experiment → what became of it. The file is not touched when nothing changes, and arms that differ stay as they are."""
    with locked(root):
        declared = load_params(root)["experiments"]
        fates = {
            name: "added" if name not in declared else "there already" if declared[name] == arm else "there already with other settings, left as it is"
            for name, arm in ablation.arms.items()
        }
        added = {name: arm for name, arm in ablation.arms.items() if name not in declared}
        if added:
            change_experiments(root / "params.yaml", added)
    return fates


def arms_to_remove(params: Mapping[str, Any], factor: str, base: str, values: Sequence[Number] | None, seeds: Sequence[int] | None) -> list[str]:
    """The experiments of params.yaml that are arms of `factor` on `base`, of these values and seeds where some are given.

    Raises `ConfigError` when no other experiment would be left.
    """
    resolve_experiments(params)
    prefix = "" if base == "default" else re.escape(f"{base}-")
    numbers = "[0-9_e-]+?" if values is None else "|".join(re.escape(_in_name(value)) for value in values)
    repeats = r"\d+" if seeds is None else "|".join(map(str, seeds))
    pattern = re.compile(rf"{prefix}{factor}-(?:{numbers})-seed-(?:{repeats})")
    found = [name for name in params["experiments"] if pattern.fullmatch(str(name))]
    if len(found) == len(params["experiments"]):
        raise ConfigError("params.yaml has no other experiments than these arms, and needs one: add `default: {}` to experiments first")
    return found


def remove_arms(root: Path, names: Sequence[str]) -> None:
    """Take experiments out of params.yaml; what they made stays where it is."""
    with locked(root):
        change_experiments(root / "params.yaml", {}, names)


def outlooks(root: Path, ablation: Ablation) -> dict[str, Outlook]:
    """What each arm will be, by the name of its first seed; times follow from the last run of the base, where there is one."""
    first: dict[str, str] = {}
    for name in ablation.arms:
        first.setdefault(name.rpartition("-seed-")[0], name)
    return {name: outlook(root, ablation.base, ablation.configs[name]) for name in first.values()}


def report_now(root: Path) -> dict[str, Any]:
    """The comparison of what is trained now, of the experiments that params.yaml declares now; nothing is written."""
    return make_report(Paths(root), experiments(root))
