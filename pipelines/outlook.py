"""What a run will be, told before anything is spent: derived counts, memory, time, disk, and what will not do what it says."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from assets.paths import Paths
from grpo_core.config import ModelConfig, RunConfig
from grpo_core.cost import LastRun, ModelSize, disk_bytes, expected_seconds, model_size, peak_bytes, probe_core
from grpo_core.params import parse_sections
from grpo_core.plan import Plan, plan
from pipelines import machine
from pipelines.console import wide_console
from pipelines.records.dvc_cache import cache_folder
from pipelines.tracking import tracking_uri

TOLD = "GRPO_TOLD"
"""Environment variable: what the run will be was printed already; its stages need not."""
ROUGH = "rough: operations counted, against a short probe of the processor"


@dataclass(frozen=True, slots=True)
class Outlook:
    """An experiment's derived facts on this machine."""

    name: str
    plan: Plan
    size: ModelSize | None
    """None where nobody knows before the model is loaded."""
    on_gpu: bool
    peaks: Mapping[str, int]
    """Stage → bytes at its peak; empty where the model's size is unknown."""
    available: int | None
    """Bytes that the machine (or the GPU) has for it."""
    seconds: Mapping[str, float]
    """Stage → expected seconds; empty where unknown."""
    time_basis: str
    disk: int | None
    warnings: tuple[str, ...]


def outlook(root: Path, name: str, config: RunConfig) -> Outlook:
    """Look ahead at experiment `name`."""
    paths = Paths(root, name)
    planned, size = plan(config, split_sizes(paths)), model_size(config.model, root)
    gpus = machine.gpu_memory() if config.model.device != "cpu" else []
    on_gpu = bool(gpus) or config.model.device.startswith("cuda")
    memory = machine.memory()
    available = (min(gpus) if gpus else None) if on_gpu else memory.total
    peaks = {} if size is None else peak_bytes(config, size, gpu=on_gpu)
    seconds, basis = _time(config, size, planned, last_run(paths), on_gpu)
    disk = None if size is None else disk_bytes(config, size, planned.splits)
    warnings = [*planned.warnings, *_about_machine(config, gpus)]
    if peaks and available is not None and max(peaks.values()) > available:
        worst = max(peaks, key=lambda stage: peaks[stage])
        where = "the GPU" if on_gpu else "this machine"
        warnings.append(f"{worst} may need {size_text(peaks[worst])} of memory, {where} has {size_text(available)}: {_remedy(worst)}")
    elif peaks and not on_gpu and memory.free is not None and max(peaks.values()) > memory.free:
        warnings.append(f"a stage may need {size_text(max(peaks.values()))} of memory, only {size_text(memory.free)} of it is free now")
    if disk is not None and disk > machine.free_disk(root):
        warnings.append(f"the run may need {size_text(disk)} of disk, {size_text(machine.free_disk(root))} are free at {root}: `grpo prune` frees some")
    return Outlook(name, planned, size, on_gpu, peaks, available, seconds, basis, disk, tuple(warnings))


def split_sizes(paths: Paths) -> dict[str, int] | None:
    """Prompts of every split; None when the table was not made yet, or is broken and will be made again."""
    if not paths.prompts.exists():
        return None
    import polars as pl

    try:
        counted = pl.scan_parquet(paths.prompts).group_by("split").len().collect()
    except pl.exceptions.PolarsError:
        return None
    return dict.fromkeys(("train", "sft", "select", "heldout"), 0) | dict(counted.iter_rows())


def last_run(paths: Paths) -> LastRun | None:
    """The training whose outputs and timings lie here; None without one, or when it cannot be read."""
    try:
        manifest = json.loads((paths.grpo_checkpoint / "manifest.json").read_bytes())
        lines = (paths.provenance("grpo_checkpoint") / "timings.jsonl").read_text(encoding="utf-8").splitlines()
        seconds = [line["seconds"] for line in map(json.loads, lines) if "seconds" in line]
        sections = manifest["config"]
        config = parse_sections({**sections, "grpo": {**sections["grpo"], "steps": manifest["step"]}})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    size = model_size(config.model, paths.root)
    return LastRun(config, size, sum(seconds) / len(seconds)) if seconds and size is not None else None


def _time(config: RunConfig, size: ModelSize | None, planned: Plan, last: LastRun | None, on_gpu: bool) -> tuple[dict[str, float], str]:
    """Stage → seconds, and what they follow from."""
    if size is None:
        return {}, "unknown before the model has been loaded once"
    if last is not None and (last.config.model.dtype, last.config.model.device) != (config.model.dtype, config.model.device):
        last = None
    if last is None and (on_gpu or config.model.dtype != "float32"):
        return {}, f"unknown {'on a GPU' if on_gpu else f'in {config.model.dtype} on a CPU'} before a first run"
    core = probe_core()

    def rate(model: ModelConfig) -> float:
        return core * min(model.num_threads, machine.cores())

    basis = ROUGH if last is None else f"from the last run's {last.seconds_a_step:.2g} s a step"
    return expected_seconds(config, size, planned.splits, rate, last), basis


def _remedy(stage: str) -> str:
    keys = {
        "sft_checkpoint": "lower sft.micro_batch_size",
        "grpo_checkpoint": "lower grpo.micro_batch_size or rollout.batch_size",
        "heldout_eval": "lower rollout.batch_size",
    }
    return f"{keys[stage]}, or take a smaller model"


def _about_machine(config: RunConfig, gpus: list[int]) -> list[str]:
    """What the configuration asks of the machine that it does not have."""
    found, cores, threads = [], machine.cores(), config.model.num_threads
    if threads > cores:
        found.append(f"model.num_threads is {threads}, but this process may use {cores} core{'s' if cores > 1 else ''}: more threads than cores are slower")
    if config.model.device.startswith("cuda") and not gpus:
        found.append(f"model.device is {config.model.device!r}, but no NVIDIA GPU answers here: training will refuse")
    return found


def tell(root: Path, name: str, config: RunConfig, overruled: Sequence[str]) -> None:
    """Print what experiment `name` will be, on stdout, before anything is spent; `overruled` is what of the shell's environment is not obeyed."""
    console = wide_console()
    console.print(shown(outlook(root, name, config)))
    for warning in (*unwritable(root), *overruled):
        console.print(Text(f"warning: {warning}", style="yellow"))
    sys.stdout.flush()


def shown(ahead: Outlook) -> Group:
    """The counts as a table, and a line for every warning."""
    table = Table(title=f"Experiment {ahead.name!r}", title_justify="left", show_header=False, box=None, padding=(0, 2))
    for row in (*_counts(ahead.plan), *_costs(ahead)):
        table.add_row(*row)
    return Group(table, *(Text(f"warning: {text}", style="yellow") for text in ahead.warnings))


def _counts(planned: Plan) -> list[tuple[str, str]]:
    about = "" if planned.exact else "about "
    epochs = "" if planned.epochs is None else f" = {planned.epochs:.2f} epochs over {about}{planned.splits['train']:,} train prompts"
    sft_epochs = "" if planned.sft_epochs is None else f" = {planned.sft_epochs:.2f} epochs over {about}{planned.splits['sft']:,} demonstrations"
    group = planned.completions_per_step // planned.prompts_per_step
    return [
        ("fine-tuning reads", f"{planned.demonstrations:,} demonstrations{sft_epochs}" if planned.demonstrations else "nothing: sft.steps is 0"),
        ("rollout batches (steps)", f"{planned.steps:,}"),
        ("prompts a step", f"{planned.prompts_per_step:,}"),
        ("completions a step", f"{planned.completions_per_step:,} = {planned.prompts_per_step} prompts × {group}"),
        *(
            [("demonstrations a step", f"{planned.demonstrations_per_step:g} in the first {planned.cloning_steps:,} steps at most")]
            if planned.cloning_steps
            else []
        ),
        ("completions a minibatch", f"{planned.completions_per_minibatch:,}"),
        ("optimizer steps", f"{planned.optimizer_steps:,} = {planned.steps} × {planned.optimizer_steps_per_rollout} a rollout batch"),
        ("prompts drawn", f"{planned.prompts_drawn:,}{epochs}"),
        ("completions in all", f"{planned.completions:,}"),
        (
            "tokens at most",
            f"{planned.training_tokens:,} in training, {planned.select_tokens:,} in {planned.evaluations} evaluations on select, "
            f"{planned.heldout_tokens:,} held out",
        ),
    ]


def _costs(ahead: Outlook) -> list[tuple[str, str]]:
    rows = [("parameters", "unknown before the model has been loaded" if ahead.size is None else f"{ahead.size.parameters:,}")]
    if ahead.peaks:
        worst = max(ahead.peaks, key=lambda stage: ahead.peaks[stage])
        has = "" if ahead.available is None else f"; {'the GPU' if ahead.on_gpu else 'this machine'} has {size_text(ahead.available)}"
        rows.append(("memory at most", f"about {size_text(ahead.peaks[worst])} ({worst}){has}"))
    if ahead.seconds:
        parts = ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in ahead.seconds.items())
        rows.append(("time", f"about {duration(sum(ahead.seconds.values()))} ({ahead.time_basis}): {parts}"))
    else:
        rows.append(("time", ahead.time_basis))
    if ahead.disk is not None:
        rows.append(("disk at most", f"about {size_text(ahead.disk)}"))
    return rows


def size_text(count: int) -> str:
    """Bytes as a person reads them."""
    power = min(int(math.log(max(count, 1), 1024)), 4)
    value = count / 1024**power
    return f"{value:.0f} bytes" if power == 0 else f"{value:.{0 if value >= 10 else 1}f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def duration(seconds: float) -> str:
    """Seconds as a person reads them."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.{0 if seconds >= 10 * length else 1}f} {unit}"
    return f"{seconds:.0f} s"


def unwritable(root: Path) -> list[str]:
    """Places that a run must write and cannot."""
    paths = Paths(root)
    places = {"outputs": paths.data, "resume state": paths.work, "DVC's lock": root / "dvc.lock", "DVC's cache": cache_folder(root)}
    address = tracking_uri(root)
    if address.startswith("sqlite:///"):
        places["MLflow's database"] = Path(address.removeprefix("sqlite:///"))
    return [f"{what} cannot be written at {path}: a run would fail there" for what, path in places.items() if not machine.writable(path)]
