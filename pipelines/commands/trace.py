"""`grpo trace`: what a model was made from, and what ever became of a prompt."""

from pathlib import Path

import click

from pipelines.commands.checkout import checkout
from pipelines.commands.errors import clear_errors
from pipelines.console import wide_console


@click.command()
@click.argument("run", required=False)
@click.option("--prompt", metavar="ID", help="Show every completion ever sampled for this prompt instead: its id, the beginning of it, or its text.")
@click.option("--steps", is_flag=True, help="Show every step, not only the first and the last ones.")
@click.option("--all", "every_setting", is_flag=True, help="Show the whole configuration, not only what differs from the defaults.")
@click.option("--limit", type=click.IntRange(min=1), help="Most completions shown of each kind. [default: 20; all with --json]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@clear_errors
def trace(run: str | None, prompt: str | None, steps: bool, every_setting: bool, limit: int | None, as_json: bool) -> None:
    """Show what a model was made from: data, configuration, seeds, code, libraries, machine, every step's rollouts, the evidence.

    RUN is an experiment (without it: default), a checkpoint folder, an MLflow run id, or MODEL@ALIAS of MLflow's registry. With --prompt and
    without RUN every run recorded here is searched. Examples:

    \b
        grpo trace
        grpo trace data/grpo_checkpoint/default --steps
        grpo trace --prompt 1c9a4bc3
    """
    if prompt is None and limit is not None:
        raise click.UsageError("--limit goes with --prompt: it is the number of completions shown")
    if prompt is not None and (steps or every_setting):
        raise click.UsageError("--steps and --all show a run: leave --prompt out, or them")
    root = checkout()
    if prompt is not None:
        _show_prompt(root, prompt, run, limit, as_json)
    else:
        _show_run(root, run or "default", steps, every_setting, as_json)


def _show_run(root: Path, name: str, steps: bool, every_setting: bool, as_json: bool) -> None:
    from pipelines.lineage import trace as traced
    from pipelines.records.runs import find_run

    with traced.readable_tables():
        found = traced.trace(find_run(root, name))
    if as_json:
        click.echo(traced.as_json(found))
        return
    from pipelines.lineage.trace_tables import shown

    wide_console().print(shown(found, root, every_step=steps, every_setting=every_setting))


def _show_prompt(root: Path, prompt: str, name: str | None, limit: int | None, as_json: bool) -> None:
    from pipelines.lineage import prompt_trace
    from pipelines.lineage.trace import readable_tables
    from pipelines.records.runs import find_run

    with readable_tables():
        found = prompt_trace.trace_prompt(root, prompt, None if name is None else find_run(root, name))
    if as_json:
        click.echo(prompt_trace.as_json(found if limit is None else prompt_trace.limited(found, limit)))
        return
    from pipelines.lineage.trace_tables import SHOWN_COMPLETIONS, shown_prompt

    wide_console().print(shown_prompt(found, limit or SHOWN_COMPLETIONS))
