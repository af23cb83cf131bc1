"""`grpo review`: people judge completions without knowing which model wrote them."""

import click

from pipelines.commands.checkout import checkout, experiment_option
from pipelines.commands.errors import clear_errors


@click.command()
@experiment_option
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port of the page, on this machine only. [default: a free one from 3001 on]")
@click.option("--reviewer", metavar="NAME", help="Open the page for this reviewer.")
@click.option("--invite", metavar="NAME", multiple=True, help="Print a link for this reviewer and let only invited ones in. May be repeated.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--needed", is_flag=True, help="Print how many votes a wished precision needs, and end.")
@clear_errors
def review(experiment: str, port: int, reviewer: str | None, invite: tuple[str, ...], no_browser: bool, needed: bool) -> None:
    """Judge pairs of completions blind, in the browser, until Ctrl-C.

    Every vote is on the disk when the page shows the next pair, and in data/blind_review_votes/<experiment>.parquet, which belongs in Git.
    `dvc repro blind_review_verdict@<experiment>` says what the votes come to. Examples:

    \b
        grpo review
        grpo review --invite Anna --invite Ben
        grpo review --needed
    """
    root = checkout()
    import webbrowser

    from assets.paths import Paths
    from pipelines.params import choose_experiment
    from pipelines.review.app import Review
    from pipelines.review.needed import needed_table, outlook
    from pipelines.review.pairs import PairsFile
    from pipelines.review.reviewers import Reviewers, read_secret
    from pipelines.review.serve import address, alone, bind, has_display, serve
    from pipelines.review.store import VoteStore
    from pipelines.signals import stop_at_once

    choose_experiment(root, experiment)
    if needed:
        click.echo(needed_table())
        return
    paths = Paths(root, experiment)
    invited = [*invite, reviewer] if invite and reviewer else invite
    pairs, reviewers = PairsFile(paths), Reviewers(read_secret(root / ".work" / "review" / "secret"), invited)
    stop_at_once()
    click.echo(outlook(len(pairs.current().pairs)))
    with bind(port) as listening, alone(paths.votes_database, address(listening)):
        votes = VoteStore(paths.votes_database, paths.blind_review_votes)
        here = address(listening)
        for name in invite:
            click.echo(f"{name}: {here}?token={reviewers.token(name)}")
        start = f"{here}?token={reviewers.token(reviewer)}" if reviewer else here
        click.echo(f"The page: {start}\nCtrl-C ends it; every vote is kept.")
        if not no_browser and has_display():
            webbrowser.open(start)
        try:
            serve(Review(experiment, pairs, votes, reviewers).app(), listening)
        except KeyboardInterrupt:
            click.echo("ended", err=True)
        finally:
            votes.close()
