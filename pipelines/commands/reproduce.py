"""`grpo reproduce`: whether a run comes out the same, bit for bit, when it is made again."""

import sys
from pathlib import Path

import click

from pipelines.commands.checkout import checkout
from pipelines.commands.errors import clear_errors
from pipelines.console import INTERRUPTED, wide_console


@click.command()
@click.argument("run")
@click.option("--into", type=click.Path(path_type=Path), metavar="FOLDER", help="Work there. [default: .work/reproduce/<run key>]")
@click.option("--keep", is_flag=True, help="Leave the worktree there also when everything is identical.")
@clear_errors
def reproduce(run: str, into: Path | None, keep: bool) -> None:
    """Make RUN again from its recorded code and inputs, and compare every output of every stage with the recorded one.

    RUN is an experiment, a checkpoint folder, an MLflow run id, or MODEL@ALIAS of MLflow's registry. The recorded code is checked out into a
    Git worktree with a DVC cache and an MLflow of its own, so that nothing can be answered from an earlier result; this checkout stays as it
    is. Stops at the first stage that differs, and says what differs in its inputs. Exit status 0: identical; 1: not. Example:

    \b
        grpo reproduce default
        grpo reproduce data/grpo_checkpoint/default --keep
    """
    root = checkout()
    from pipelines.records.runs import find_run
    from pipelines.reproduction.reproduce import reproduce as make_again
    from pipelines.reproduction.result import table
    from pipelines.signals import stop_once

    stop_once()
    try:
        found = make_again(find_run(root, run), into=into, keep=keep, tell=_tell)
    except KeyboardInterrupt:
        click.echo("interrupted: the worktree is removed, and this checkout is as it was", err=True)
        sys.exit(INTERRUPTED)
    wide_console().print(table(found))
    if found.kept is not None:
        click.echo(f"the worktree is kept: {found.kept} (`git worktree remove --force {found.kept}` removes it)")
    click.echo(found.verdict())
    sys.exit(0 if found.identical else 1)


def _tell(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()
