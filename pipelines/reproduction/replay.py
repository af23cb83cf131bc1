"""A run's recorded steps done again from its ledger, and what came out in words. Nothing on disk changes."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from assets.paths import Paths
from grpo_core.checkpoint import MANIFEST
from grpo_core.config import ModelConfig
from grpo_core.params import parse_section
from pipelines.environment import prepare_libraries
from pipelines.records.runs import Run, RunError

if TYPE_CHECKING:
    from rich.table import Table

    from grpo_core.replay import Recorded, Replayed

ADVANTAGES = ("advantage", "clipped_advantage")


@contextmanager
def recorded_run(run: Run) -> "Iterator[Recorded]":
    """What the run was made from and what it recorded, wherever its bytes are now; raises `RunError` when some of them are nowhere."""
    paths = Paths(run.root, run.experiment)

    def file(path: Path) -> Path:
        return run.file(str(path.relative_to(run.root)))

    manifest = json.loads(file(paths.grpo_checkpoint / MANIFEST).read_bytes())
    prepare_libraries(_model(manifest))
    from grpo_core.determinism import after_torch_import
    from grpo_core.models import resolve_device
    from grpo_core.replay import Recorded

    after_torch_import(str(resolve_device(_model(manifest).device)))
    with TemporaryDirectory() as aside:
        yield Recorded(
            prompts=file(paths.prompts),
            start=_folder(run, paths.sft_checkpoint, Path(aside) / "start"),
            reference=_folder(run, paths.reference_checkpoint, Path(aside) / "reference"),
            rollouts=file(paths.rollout_batches),
            rewards=file(paths.rewards),
            metrics=file(paths.grpo_checkpoint / "metrics.jsonl"),
            manifest=manifest,
            work=paths.work / "grpo_checkpoint" / run.experiment / manifest["run_key"],
        )


def replay_run(run: Run, first: int | None, last: int | None, on_step: "Callable[[Replayed, int], None]") -> "list[Replayed]":
    """Steps `first` (None: the one after the oldest kept checkpoint) to `last` (None: the run's last) done again.

    `on_step` hears of each, and of the number of the last. Steps before `first`, down to the checkpoint below it, are done again too;
    they are left out of what is returned unless something is wrong with them.
    """
    with recorded_run(run) as recorded:
        from grpo_core.replay import oldest_step, replay

        end = recorded.last_step if last is None else last
        begin = oldest_step(recorded, end) if first is None else first
        done = []
        for step in replay(recorded, begin, end):
            on_step(step, end)
            if step.step >= begin or step.faults:
                done.append(step)
        return done


def verdict(done: "Sequence[Replayed]") -> tuple[bool, str]:
    """Whether all steps are as they were recorded, and what to say of it in a line (the faults of the first step that is not, in one each)."""
    for step in done:
        if step.faults:
            return False, "\n".join([f"step {step.step} differs: {step.faults[0]}", *(f"    {fault}" for fault in step.faults[1:])])
    steps = "1 step" if len(done) == 1 else f"{len(done)} steps"
    if all(step.identical for step in done):
        return True, f"{steps} replayed: identical"
    largest = max(step.largest for step in done)
    moved = next((f"; from step {step.step} on the weights are other ones to the bit" for step in done if step.same_policy is False), "")
    return True, f"{steps} replayed: agree within {largest:.1e}{moved} (another processor, library version or GPU rounds otherwise)"


def table(done: "Sequence[Replayed]") -> "Table":
    """A row a step: the loss twice, the largest differences, and whether all is identical."""
    from rich.table import Table

    shown = Table(title="Steps done again from the ledger: largest differences to what was recorded")
    for name in ("step", "recorded loss", "replayed loss", "rewards", "advantages", "metrics", "weights after", "identical"):
        shown.add_column(name, justify="right")
    for step in done:
        shown.add_row(
            str(step.step),
            _number(step.recorded.get("loss")),
            _number(step.replayed.get("loss")),
            _difference({name: gap for name, gap in step.columns.items() if name not in ADVANTAGES}),
            _difference({name: gap for name, gap in step.columns.items() if name in ADVANTAGES}),
            _difference(step.metrics),
            {True: "same", False: "others", None: "unknown"}[step.same_policy],
            "yes" if step.identical else "no",
        )
    return shown


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.6g}"


def _difference(gaps: Mapping[str, float]) -> str:
    """The largest of these differences, and whose it is."""
    if not gaps:
        return "—"
    name = max(gaps, key=lambda key: gaps[key])
    return "0" if gaps[name] == 0 else f"{gaps[name]:.1e} ({name})"


def _model(manifest: Mapping[str, Any]) -> ModelConfig:
    return parse_section(ModelConfig, "model", manifest["config"]["model"])


def _folder(run: Run, path: Path, aside: Path) -> Path:
    """The model folder at `path` as the run had it: in the workspace, or put together in `aside` from DVC's cache."""
    name = str(path.relative_to(run.root))
    try:
        return run.file(name)
    except RunError:
        manifest = run.file(f"{name}/{MANIFEST}")
        for file in (MANIFEST, *json.loads(manifest.read_bytes())["files"]):
            (aside / file).parent.mkdir(parents=True, exist_ok=True)
            (aside / file).symlink_to(run.file(f"{name}/{file}"))
        return aside
