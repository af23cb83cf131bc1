"""`grpo verify`: whether everything that is kept is as it was written."""

import sys

import click

from pipelines.commands.checkout import checkout
from pipelines.commands.errors import clear_errors


@click.command()
@clear_errors
def verify() -> None:
    """Read every byte that is kept, and name what is damaged and what mends it.

    Work folders (checkpoints, shards, logs) are compared with their manifests, outputs and DVC's cache with the hashes in dvc.lock and in the
    records, records with their names. Nothing is written. Exit status 1 when something is damaged. Example:

        grpo verify
    """
    root = checkout()
    from tqdm import tqdm

    from pipelines.upkeep.verify import num_bytes, verify

    with tqdm(total=num_bytes(root), desc="reading", unit="B", unit_scale=True, dynamic_ncols=True, disable=not sys.stderr.isatty(), leave=False) as bar:
        report = verify(root, bar.update)
    for note in report.notes:
        click.echo(f"note: {note}")
    for damage in report.damages:
        click.echo(str(damage))
    size = f"{report.num_bytes / 1e6:.1f} MB"
    if report.damages:
        click.echo(f"{len(report.damages)} damaged, {report.num_files} files ({size}) read")
        sys.exit(1)
    click.echo(f"all {report.num_files} files ({size}) are as they were written")
