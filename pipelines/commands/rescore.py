"""`grpo rescore`: what would a run's completions earn today?"""

import sys
from pathlib import Path

import click

from pipelines.commands.checkout import checkout
from pipelines.commands.errors import clear_errors
from pipelines.console import wide_console
from pipelines.params import choose_experiment

COLUMNS = 150
"""What the table of values takes."""


@click.command()
@click.argument("run", default="default")
@click.option("--params", is_flag=True, help="Take functions, weights and options from today's params.yaml, not from the run.")
@click.option("--experiment", metavar="NAME", help="With --params: the experiment whose rewards are taken. [default: the run's own]")
@click.option("--step", type=click.IntRange(min=1), help="Score this step only.")
@click.option("--from", "first", type=click.IntRange(min=1), help="First step to score. [default: 1]")
@click.option("--to", "last", type=click.IntRange(min=1), help="Last step to score. [default: the run's last]")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.parquet", help="Write the completions that changed into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print all numbers as JSON.")
@clear_errors
def rescore(run: str, params: bool, experiment: str | None, step: int | None, first: int | None, last: int | None, out: Path | None, as_json: bool) -> None:
    """Score a run's stored completions with today's reward code, and show what would have changed: values, statuses, rankings within groups.

    RUN is an experiment, a checkpoint folder, an MLflow run id, or MODEL@ALIAS of MLflow's registry. Nothing is sampled and nothing in data/
    changes. With --params it asks what another reward would have given. Exit status 0 whatever changed. Examples:

    \b
        grpo rescore
        grpo rescore default --from 40 --out changed.parquet
        grpo rescore default --params --experiment other_reward
    """
    if step is not None and (first is not None or last is not None):
        raise click.UsageError("--step is one step: leave --from and --to out, or it")
    if first is not None and last is not None and first > last:
        raise click.UsageError(f"--from {first} lies after --to {last}")
    if experiment is not None and not params:
        raise click.UsageError("--experiment names an experiment of params.yaml: it goes with --params")
    root = checkout()
    from pipelines.records.runs import find_run

    found = find_run(root, run)
    today = choose_experiment(root, experiment or found.experiment) if params else None
    from tqdm import tqdm

    from pipelines.reproduction import rescore as rescoring

    if out is not None:
        rescoring.check_place(out, root)
    begin, end = (first, last) if step is None else (step, step)
    with tqdm(desc="rescore", file=sys.stderr, dynamic_ncols=True, disable=not sys.stderr.isatty(), unit="step") as bar:

        def on_step(done: int, steps: int) -> None:
            bar.total = steps
            bar.update()

        outcome = rescoring.rescore_run(found, today, begin, end, on_step)
    if out is not None:
        outcome.changed.write_parquet(out)
    if as_json:
        click.echo(rescoring.as_json(outcome))
        return
    console = wide_console(COLUMNS)
    for table in rescoring.tables(outcome):
        console.print(table)
        console.print()
    click.echo(rescoring.verdict(outcome))
    if out is not None:
        click.echo(f"{len(outcome.changed):,} rows written to {out}")
