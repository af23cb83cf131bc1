"""The graph as DVC resolves it from dvc.yaml and params.yaml. Dagster's assets, edges and partitions derive from it: nothing is declared twice."""

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import Any

from pipelines.params import experiments

RUN_CONFIG = "run_config"
"""The stage that checks params.yaml. It is no asset: every asset's launch runs it first."""

LOOP_STAGE = "grpo_checkpoint"
LOOP: Mapping[str, frozenset[str]] = {
    "rollout_batches": frozenset({"prompts", "reference_checkpoint"}),
    "rewards": frozenset({"prompts", "rollout_batches"}),
    "grpo_checkpoint": frozenset({"sft_checkpoint", "rewards"}),
}
"""Asset → its parents within the one stage that writes three. DVC sees a loop unrolled in time as one stage, so these edges exist only here."""


@dataclass(frozen=True, slots=True)
class Target:
    """A stage of dvc.yaml, for one experiment where it has experiments: what `dvc repro` takes as an argument."""

    stage: str
    experiment: str | None
    command: str
    description: str
    data: tuple[str, ...]
    """Dependencies under data/."""
    code: tuple[str, ...]
    """All other dependencies."""
    outs: tuple[str, ...]
    metrics: tuple[str, ...]
    """Outputs that Git keeps instead of DVC's cache."""

    @property
    def name(self) -> str:
        return self.stage if self.experiment is None else f"{self.stage}@{self.experiment}"

    @property
    def assets(self) -> tuple[str, ...]:
        return tuple(LOOP) if self.stage == LOOP_STAGE else (self.stage,)

    def outs_of(self, asset: str) -> tuple[str, ...]:
        """The outputs whose hashes are the asset's data version: what DVC keeps of it, or, of one that is a metric alone, the metric."""
        return tuple(path for path in self.outs if noun_of(path) == asset) or tuple(path for path in self.metrics if noun_of(path) == asset)

    def contract_of(self, asset: str) -> str | None:
        """The file with the outcome of the asset's contract, if it has one."""
        return next((path for path in self.metrics if noun_of(path) == "validation" and PurePosixPath(path).stem == asset), None)


@dataclass(frozen=True, slots=True)
class Graph:
    """Every target, in an order in which they can be run."""

    targets: tuple[Target, ...]
    experiments: tuple[str, ...]

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages that are assets in Dagster."""
        return tuple(dict.fromkeys(target.stage for target in self.targets if target.stage != RUN_CONFIG))

    def targets_of(self, stage: str) -> tuple[Target, ...]:
        return tuple(target for target in self.targets if target.stage == stage)

    def target(self, stage: str, experiment: str | None) -> Target:
        """The target of `stage`; shared stages have one whatever the experiment."""
        return next(target for target in self.targets_of(stage) if target.experiment in (experiment, None))

    def parents(self, asset: str) -> frozenset[str]:
        """The assets whose files this one is made from."""
        if asset in LOOP:
            return LOOP[asset]
        return frozenset(noun_of(path) for path in self.targets_of(asset)[0].data) & frozenset(self.assets)

    @property
    def assets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(asset for stage in self.stages for asset in self.targets_of(stage)[0].assets))

    def stage_of(self, asset: str) -> str:
        return LOOP_STAGE if asset in LOOP else asset

    def is_partitioned(self, asset: str) -> bool:
        return self.targets_of(self.stage_of(asset))[0].experiment is not None


def noun_of(path: str) -> str:
    """`data/<noun>/...` → the noun; empty for any other path."""
    parts = PurePosixPath(path).parts
    return parts[1] if len(parts) > 1 and parts[0] == "data" else ""


def load_graph(root: Path) -> Graph:
    """Read dvc.yaml as DVC does. Raises `ConfigError` when params.yaml cannot be run, before DVC can say so less clearly."""
    from dvc.repo import Repo
    from dvc.stage import PipelineStage

    names = tuple(experiments(root))
    with Repo(str(root)) as repo:
        # The others are files that the user gave DVC with `dvc add`.
        stages = [stage for stage in repo.index.stages if isinstance(stage, PipelineStage)]
        targets = {target.name: target for target in map(_target, stages)}
    order = TopologicalSorter({name: _upstream(target, targets) for name, target in targets.items()}).static_order()
    return Graph(targets=tuple(targets[name] for name in order), experiments=names)


def _target(stage: Any) -> Target:
    """One of DVC's resolved stages in our words."""
    from dvc.dependency.param import ParamsDependency

    name, _, experiment = stage.name.partition("@")
    dependencies = [dep.def_path for dep in stage.deps if not isinstance(dep, ParamsDependency)]
    return Target(
        stage=name,
        experiment=experiment or None,
        command=stage.cmd,
        description=stage.desc or "",
        data=tuple(path for path in dependencies if path.startswith("data/")),
        code=tuple(path for path in dependencies if not path.startswith("data/")),
        outs=tuple(out.def_path for out in stage.outs if not out.metric),
        metrics=tuple(out.def_path for out in stage.outs if out.metric),
    )


def _upstream(target: Target, targets: Mapping[str, Target]) -> set[str]:
    """Names of the targets that write what `target` reads: a file, a part of a folder, or a folder in which several targets have a place."""
    read = list(map(PurePosixPath, target.data))
    written = [(PurePosixPath(out), other.name) for other in targets.values() for out in (*other.outs, *other.metrics)]
    return {name for out, name in written if any(path.is_relative_to(out) or out.is_relative_to(path) for path in read)}


def code_version(root: Path, target: Target) -> str:
    """Hash of the command and of the code it runs. The experiment's name is left out: all partitions of an asset share one code version."""
    digest = hashlib.sha256(target.command.removesuffix(target.experiment or "").encode())
    for path in sorted(target.code):
        digest.update(f"\0{path}\0".encode())
        for file in [root / path] if (root / path).is_file() else sorted((root / path).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def description_of(root: Path, target: Target, asset: str) -> str:
    """What stands on top of the noun's own file, else the stage's description."""
    path = root / "assets" / f"{asset}.py"
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path.is_file() else None
    return docstring or target.description
