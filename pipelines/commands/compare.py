"""`grpo compare`: what changed between two runs, and what it did."""

from pathlib import Path

import click

from pipelines.commands.checkout import checkout
from pipelines.commands.errors import clear_errors
from pipelines.console import wide_console


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--last", default=10, show_default=True, type=click.IntRange(min=1), help="Steps at the end of each training that are compared.")
@click.option("--chart", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png", help="Draw both runs' curves over each other into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@clear_errors
def compare(a: str, b: str, last: int, chart: Path | None, as_json: bool) -> None:
    """Say what changed from run A to run B, and what it did to reward, KL, length and accuracy, with 95 % intervals.

    A and B are experiments, checkpoint folders, MLflow run ids, or MODEL@ALIAS of MLflow's registry. Exit status 0 whatever differs. Example:

    \b
        grpo compare default small_groups --chart small_groups.png
    """
    root = checkout()
    from pipelines.lineage import compare as comparing
    from pipelines.lineage.trace import metrics, readable_tables
    from pipelines.records.runs import find_run

    runs = find_run(root, a), find_run(root, b)
    with readable_tables():
        found = comparing.compare(*runs, window=last)
    if chart is not None:
        from pipelines.lineage.compare_chart import comparison_chart, write_chart

        write_chart(chart, comparison_chart(metrics(runs[0]), metrics(runs[1]), (runs[0].label(), runs[1].label())))
    if as_json:
        click.echo(comparing.as_json(found))
        return
    from pipelines.lineage.compare_tables import shown

    wide_console().print(shown(found))
