"""`grpo explore`: whether GRPO has something to learn from here, before any training."""

import sys
from pathlib import Path

import click

from assets.paths import Paths
from pipelines.commands.checkout import checkout, experiment_option
from pipelines.commands.errors import clear_errors
from pipelines.console import INTERRUPTED, wide_console
from pipelines.environment import prepare_libraries
from pipelines.params import choose_experiment
from pipelines.reward_code import check_reward_functions
from pipelines.signals import stop_at_once

COLUMNS = 150
"""What the tables take."""


@click.command()
@experiment_option
@click.option("--prompts", "most", default=1000, show_default=True, type=click.IntRange(min=1), help="Train prompts to sample, at most (chosen by hash).")
@click.option("--group-size", type=click.IntRange(min=2), help="Completions a prompt. [default: grpo.group_size]")
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Model to start from. [default: data/sft_checkpoint if it is there, else model.path]",
)
@click.option("--seed", type=int, help="The same seed draws the same. [default: grpo.seed]")
@click.option("--check", is_flag=True, help="Exit status 1 when the verdict is `not yet`.")
@clear_errors
def explore(experiment: str, most: int, group_size: int | None, model: Path | None, seed: int | None, check: bool) -> None:
    """Look at what a run would learn from: sample train prompts with the model GRPO would start from, score them, train nothing.

    Shows rewards by function, groups with something to compare, difficulty, lengths, ten pairs, what a run would cost, and says whether GRPO
    has something to learn from here and what to change if not (docs/explore.md). Ctrl-C shows what was sampled so far. Exit status 0
    whatever it says, unless --check is given. Examples:

    \b
        grpo explore
        grpo explore --prompts 200 --group-size 16
        grpo explore --model data/grpo_checkpoint/default --check
    """
    root = checkout()
    config = choose_experiment(root, experiment)
    check_reward_functions(root, [config])
    from pipelines.exploration.explore import StoppedTooSoon, with_group_size, write
    from pipelines.exploration.start import find_start
    from pipelines.exploration.tables import shown, written_text
    from pipelines.outlook import outlook

    paths, explored = Paths(root, experiment), with_group_size(config, group_size)
    start = find_start(paths, explored, model)
    prepare_libraries(config.model)
    stop_at_once()
    from tqdm import tqdm

    from pipelines.exploration.explore import explore as explore_prompts

    try:
        with tqdm(desc="explore", file=sys.stderr, dynamic_ncols=True, disable=not sys.stderr.isatty(), unit="completion") as bar:
            found = explore_prompts(paths, explored, start, most=most, seed=config.grpo.seed if seed is None else seed, on_start=bar.reset, on_batch=bar.update)
    except StoppedTooSoon:
        click.echo("interrupted before a batch was sampled: nothing to show", err=True)
        sys.exit(INTERRUPTED)
    console = wide_console(COLUMNS)
    console.print(shown(found, outlook(root, experiment, config)))
    click.echo(written_text(write(paths, found), root))
    if not found.is_whole:
        sys.exit(INTERRUPTED)
    if check and found.readiness.verdict == "not yet":
        sys.exit(1)
