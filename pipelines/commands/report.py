"""`grpo report`: one page of a run to open from disk, to send and to print."""

from pathlib import Path

import click

from pipelines.commands.checkout import checkout, experiment_option
from pipelines.commands.errors import clear_errors


@click.command()
@experiment_option
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.html", help="The page. [default: reports/<experiment>.html]")
@clear_errors
def report(experiment: str, output: Path | None) -> None:
    """Write one self-contained HTML page of a run: evidence, alarms, charts, completions to read, configuration, lineage.

    It opens from disk without a network, and prints. Stages that have not run yet are named in their places, so it works during training too.
    Example:

    \b
        grpo report --experiment default
    """
    root = checkout()
    from pipelines.report.content import gather
    from pipelines.report.render import html, write_page
    from pipelines.report.sources import find_sources

    path = root / "reports" / f"{experiment}.html" if output is None else output
    page = html(gather(find_sources(root, experiment)))
    write_page(path, page, make_folder=output is None)
    click.echo(path)
