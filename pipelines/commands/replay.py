"""`grpo replay`: does the ledger give again what was recorded?"""

import sys
from typing import TYPE_CHECKING

import click

from pipelines.commands.checkout import checkout
from pipelines.commands.errors import clear_errors
from pipelines.console import wide_console

if TYPE_CHECKING:
    from grpo_core.replay import Replayed

COLUMNS = 140
"""What the table of steps takes."""


@click.command()
@click.argument("run", default="default")
@click.option("--step", type=click.IntRange(min=1), help="Replay this step only.")
@click.option("--from", "first", type=click.IntRange(min=1), help="First step to replay. [default: after the oldest kept checkpoint]")
@click.option("--to", "last", type=click.IntRange(min=1), help="Last step to replay. [default: the run's last]")
@clear_errors
def replay(run: str, step: int | None, first: int | None, last: int | None) -> None:
    """Work rewards, advantages, loss and update of a run's steps out again from its ledger, and compare them with what was recorded.

    RUN is an experiment, a checkpoint folder, an MLflow run id, or MODEL@ALIAS of MLflow's registry. Nothing is sampled and nothing on disk
    changes. Without options all steps since the oldest kept checkpoint are done again (grpo.keep_checkpoints says how many are kept; where
    none is, from the start). Exit status 1 when something differs by more than rounding. Examples:

    \b
        grpo replay
        grpo replay default --step 37
        grpo replay default --from 1 --to 80
    """
    if step is not None and (first is not None or last is not None):
        raise click.UsageError("--step is one step: leave --from and --to out, or it")
    if first is not None and last is not None and first > last:
        raise click.UsageError(f"--from {first} lies after --to {last}")
    root = checkout()
    from pipelines.records.runs import find_run

    found = find_run(root, run)
    from tqdm import tqdm

    from pipelines.reproduction.replay import replay_run, table, verdict

    begin, end = (first, last) if step is None else (step, step)
    with tqdm(desc="replay", file=sys.stderr, dynamic_ncols=True, disable=not sys.stderr.isatty(), unit="step") as bar:

        def on_step(done: "Replayed", last_step: int) -> None:
            bar.total = bar.n + 1 + last_step - done.step
            bar.update()

        done = replay_run(found, begin, end, on_step)
    wide_console(COLUMNS).print(table(done))
    same, said = verdict(done)
    click.echo(said)
    sys.exit(0 if same else 1)
