"""`grpo audit-rewards`: what the rewards pay for exploits, before anything learns from them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grpo_core.config import RunConfig
from pipelines.commands.checkout import checkout, experiment_option
from pipelines.commands.errors import clear_errors
from pipelines.console import visible, wide_console
from pipelines.environment import prepare_libraries
from pipelines.params import choose_experiment
from pipelines.reward_code import check_reward_functions

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table

    from grpo_core.exploits import Finding

COLUMNS = 150
"""What the table of exploits takes."""


@click.command("audit-rewards")
@experiment_option
@click.option("--all", "everything", is_flag=True, help="Show the exploits that earn nothing too.")
@clear_errors
def audit_rewards(experiment: str, everything: bool) -> None:
    """Try known exploits on the rewards of params.yaml, and say what each of them earns.

    It is what every run does before its first step (docs/exploits.md says what is tried): on some train prompts, made as `grpo run` would
    make them. Nothing is written. Exit status 1 when one earns more than scoring.exploit_threshold and is not acknowledged. Examples:

    \b
        grpo audit-rewards
        grpo audit-rewards --experiment default --all
    """
    root = checkout()
    config = choose_experiment(root, experiment)
    check_reward_functions(root, [config])
    prepare_libraries(config.model)
    from grpo_core.exploits import ExploitError, findings, notes, require_acknowledged, require_working

    table = tried(root, config)
    require_working(table, config.rewards)
    found = findings(table, config.rewards, config.scoring)
    wide_console(COLUMNS).print(shown(found, everything=everything))
    for note in notes(found, config.scoring):
        click.echo(f"note: {note}")
    try:
        require_acknowledged(found, config.scoring)
    except ExploitError as error:
        click.echo(visible(str(error)))
        sys.exit(1)
    click.echo(f"nothing blocks training: no exploit earns more than {config.scoring.exploit_threshold:.0%} of full marks unacknowledged")


def tried(root: Path, config: RunConfig) -> "pl.DataFrame":
    """The battery's rows for this configuration."""
    from tqdm import tqdm

    from grpo_core.addition import addition_tokenizer
    from grpo_core.battery import try_exploits
    from grpo_core.prompts import make_prompts
    from grpo_core.tokenization import load_tokenizer

    tokenizer = load_tokenizer(config.model.path) if config.model.path else addition_tokenizer()
    with tqdm(desc="exploits", file=sys.stderr, dynamic_ncols=True, disable=not sys.stderr.isatty(), leave=False) as bar:

        def on_probe(done: int, of: int) -> None:
            bar.total = of
            bar.update(done - bar.n)

        return try_exploits(make_prompts(config.prompts, root), config, tokenizer, on_probe)


def shown(found: "list[Finding]", *, everything: bool) -> "Table":
    """The findings as a table; those that earn nothing are counted unless `everything` is asked for."""
    from rich.table import Table
    from rich.text import Text

    from grpo_core.exploits import exploits_table

    rows = exploits_table(found, everything=everything)
    quiet = sum(finding.verdict == "nothing" for finding in found)
    caption = None if everything else f"{quiet} earn nothing (--all shows them)"
    table = Table(title="What exploits earn", title_justify="left", caption=caption, caption_justify="left")
    for name in rows.columns:
        table.add_column(name, justify="right" if name in ("mean", "of full marks") else "left", overflow="fold")
    for row in rows.iter_rows():
        table.add_row(*(Text("—" if cell is None else f"{cell:.3g}" if isinstance(cell, float) else visible(str(cell))) for cell in row))
    return table
