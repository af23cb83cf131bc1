"""`grpo doctor`: everything that can be known before a run, without running anything."""

import os
from pathlib import Path

import click

from grpo_core.config import RunConfig
from grpo_core.determinism import SHOWN, THREADS, guarantee, overruled, planned_switches
from grpo_core.requirements import ConfigError
from pipelines import machine
from pipelines.commands.checkout import checkout
from pipelines.commands.errors import clear_errors
from pipelines.console import wide_console
from pipelines.git import git_says
from pipelines.params import experiments
from pipelines.records.dvc_cache import cache_folder
from pipelines.reward_code import check_reward_functions
from pipelines.tracking import tracking_uri


@click.command()
@clear_errors
def doctor() -> None:
    """Check params.yaml and what it names, and say what a run would cost, what will not do what it says, and what is guaranteed.

    Prompts are read, nothing is run or written. Exit status 1 when params.yaml cannot be run, 0 with warnings. Example:

    \b
        grpo doctor
    """
    root = checkout()
    configs = experiments(root)
    check_reward_functions(root, configs.values())
    from rich.table import Table
    from rich.text import Text

    from pipelines.outlook import outlook, shown, unwritable

    console = wide_console()
    on_gpu = False
    for name, config in configs.items():
        ahead = outlook(root, name, config)
        on_gpu = on_gpu or ahead.on_gpu
        console.print(shown(ahead), Text())
    model = next(iter(configs.values())).model
    table = Table(title="This machine and this checkout", title_justify="left", show_header=False, box=None, padding=(0, 2))
    for row in (*machine_rows(root), *thread_rows(model.num_threads), *checkout_rows(root)):
        table.add_row(*row)
    console.print(table, Text())
    console.print(Text(guarantee("cuda" if on_gpu else "cpu")), Text())
    for warning in (*same_experiments(configs), *unwritable(root), *overruled(model)):
        console.print(Text(f"warning: {warning}", style="yellow"))
    check_inputs(root, next(iter(configs.values())))
    console.print(f"params.yaml is valid: {len(configs)} experiment{'s' if len(configs) > 1 else ''}")


def check_inputs(root: Path, config: RunConfig) -> None:
    """Raise ConfigError or PromptsError, as the stages would, where prompts or model (which all experiments share) are not there or not what they should be."""
    from grpo_core.prompts import make_prompts
    from grpo_core.reasoning_tasks import generate

    wanted = config.prompts
    if wanted.reasoning_gym:
        generate(wanted.reasoning_gym, wanted.reasoning_gym_config, 1, wanted.seed)  # one shows whether there is such a task
    else:
        make_prompts(wanted, root)
    path = config.model.path
    is_name = path.count("/") <= 1 and not path.startswith((".", "/", "~"))
    if path and not (root / path / "config.json").is_file() and ((root / path).is_dir() or not is_name):
        what = "holds no config.json" if (root / path).is_dir() else "is no folder, nor a name on a hub (ORG/NAME)"
        raise ConfigError(f"model.path {path!r} {what}: give a Hugging Face folder, from the root of the repository, or a hub name")


def machine_rows(root: Path) -> list[tuple[str, str]]:
    """Memory, disk and GPUs."""
    from pipelines.outlook import size_text

    memory, gpus = machine.memory(), machine.gpu_memory()
    known = [f"{size_text(count)} {what}" for count, what in ((memory.total, "in all"), (memory.free, "free")) if count is not None]
    return [
        ("memory", ", ".join(known) or "the system does not say"),
        ("disk", f"{size_text(machine.free_disk(root))} free at {root}"),
        ("GPUs", ", ".join(map(size_text, gpus)) or "none that answers"),
    ]


def thread_rows(num_threads: int) -> list[tuple[str, str]]:
    """Threads asked for against cores there are, and the switches that stages run under."""
    cores = machine.cores()
    switches = planned_switches(num_threads, os.environ)
    shown = ", ".join(f"{name}={switches[name]}" for name in SHOWN if switches[name] is not None and name not in THREADS)
    return [("threads", f"{num_threads} (model.num_threads) on {cores} core{'s' if cores > 1 else ''}"), ("switches", shown)]


def checkout_rows(root: Path) -> list[tuple[str, str]]:
    """What Git has, and where DVC and MLflow keep what is made."""
    return [("code", git_text(root)), ("DVC cache", str(cache_folder(root))), ("MLflow", tracking_uri(root))]


def git_text(root: Path) -> str:
    """The commit, and what a run does with code that was not committed."""
    commit = git_says(root, "rev-parse", "--short", "HEAD")
    if commit is None:
        return "no Git commit: the record of a run cannot say which code made it"
    changed = git_says(root, "--no-optional-locks", "status", "--porcelain")
    if not changed:
        return f"commit {commit}, nothing uncommitted"
    count = len(changed.splitlines())
    return f"commit {commit} and {count} uncommitted change{'s' if count > 1 else ''}: code among them is kept with the record of a run, as a snapshot"


def same_experiments(configs: dict[str, RunConfig]) -> list[str]:
    """Experiments that would train the same thing twice."""
    names = list(configs)
    return [
        f"experiments {first!r} and {second!r} are the same configuration: both would be trained"
        for place, first in enumerate(names)
        for second in names[place + 1 :]
        if configs[first] == configs[second]
    ]
