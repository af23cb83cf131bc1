"""`grpo promote`: a policy becomes the champion, if its evidence says so."""

import sys

import click

from pipelines.commands.checkout import checkout
from pipelines.commands.errors import clear_errors


@click.command()
@click.argument("experiment")
@click.option("--by", required=True, metavar="NAME", help="Who promotes it; recorded for ever.")
@click.option("--override", metavar="REASON", help="Promote though conditions fail or are pending, for this reason; recorded for ever.")
@click.option("--dry-run", is_flag=True, help="Check everything, say what would be done, and do nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@clear_errors
def promote(experiment: str, by: str, override: str | None, dry_run: bool, yes: bool) -> None:
    """Make the policy of EXPERIMENT the champion.

    First everything that its promotion report rests on is read and compared with its hashes, and the report is made again: what was edited is refused,
    and no override helps. Then every condition must hold. Exit status 1 when it is not promoted. Examples:

    \b
        grpo promote default --by Anna --dry-run
        grpo promote default --by Anna
        grpo promote default --by Anna --override "shown at the fair tomorrow, nobody has time to judge"
    """
    root = checkout()
    from assets.paths import Paths
    from pipelines.champion import PromotionError
    from pipelines.promotion import condition_lines, to_commit
    from pipelines.promotion import promote as make_champion

    if not dry_run and not yes:
        planned = make_champion(root, experiment, by=by, override=override, on_note=click.echo, dry_run=True)
        if planned["report"] is not None:
            click.echo("\n".join([f"{experiment!r} would become the champion, version {planned['version']}:", *condition_lines(planned["report"])]))
            if not (sys.stdin.isatty() and sys.stdout.isatty()):
                raise PromotionError("nothing was promoted: nobody is at a terminal to ask; `--yes` promotes it")
            if not click.confirm("Promote it?"):
                raise PromotionError("nothing was promoted")
    done = make_champion(root, experiment, by=by, override=override, on_note=click.echo, dry_run=dry_run)
    if done["already"]:
        click.echo(f"{experiment!r} is already the champion (version {done['version']}, by {done['by']} on {done['when']})")
        return
    click.echo("\n".join(condition_lines(done["report"])))
    if dry_run:
        click.echo(f"{experiment!r} would become the champion, version {done['version']}; nothing was done")
        return
    click.echo(f"{experiment!r} is the champion, version {done['version']}. Commit it, and give DVC's copy to your remote:")
    click.echo(f"    {to_commit(Paths(root, experiment))}\n    git commit -m 'Champion {done['version']}: {experiment}' && dvc push")
