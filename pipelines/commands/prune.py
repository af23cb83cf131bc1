"""`grpo prune`: free disk, after saying what that costs."""

import sys
from datetime import datetime
from typing import TYPE_CHECKING

import click

from pipelines.commands.checkout import checkout
from pipelines.commands.errors import clear_errors

if TYPE_CHECKING:
    from pipelines.upkeep.prune import Item, Loss, Plan

SHOWN = 20
"""Lines of a kind; more are counted."""


@click.command()
@click.option("--work", type=click.Choice(["superseded", "all"]), default="superseded", show_default=True, help="Which work folders may go whole.")
@click.option("--keep-checkpoints", default=1, show_default=True, type=click.IntRange(min=1), help="Newest whole checkpoints that stay in the others.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@clear_errors
def prune(work: str, keep_checkpoints: int, dry_run: bool, yes: bool) -> None:
    """Free disk: say what can be deleted and what that costs, ask, delete.

    What the workspace, any Git commit, any DVC experiment or a run with an alias in MLflow's registry uses is never deleted from DVC's cache;
    data/ and the records of runs are not touched. Example:

        grpo prune --dry-run
    """
    root = checkout()
    from pipelines.upkeep.prune import carry_out, make_plan

    plan = make_plan(root, keep_checkpoints=keep_checkpoints, whole_work=work == "all")
    click.echo("\n".join(describe(plan)))
    if plan.is_empty or dry_run:
        return
    if not yes:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            click.echo("Nothing was deleted: nobody is at a terminal to ask. `grpo prune --yes` deletes it.")
            return
        if not click.confirm(f"Delete all this ({megabytes(plan.num_bytes)})?"):
            click.echo("Nothing was deleted.")
            return
    click.echo(f"Freed {megabytes(carry_out(root, plan))}.")


def describe(plan: "Plan") -> list[str]:
    """The plan in lines: what of each kind, how much disk it takes, what cannot be done without it; then what stays."""
    whole = "Without them these runs can no longer be resumed or extended, and a step of theirs replayed only after training again from step 1."
    old = "Without them steps before the oldest checkpoint that stays can be replayed only after training again from step 1."
    stopped = "Nothing goes on from the steps they got to unless code and settings are put back as they were; without them that starts at step 1."
    lines = [
        *section("work folders of runs that nothing needs any more", plan.superseded, whole),
        *section("work folders of interrupted runs whose code or settings have changed", plan.interrupted, stopped),
        *(
            section("work folders of current runs", plan.needed, whole)
            if plan.whole_work
            else section(f"checkpoints of current runs but the newest {plan.keep_checkpoints} that are whole", plan.needed, old)
        ),
        *objects_section(plan),
        *section("worktrees that `grpo reproduce` left", plan.worktrees, "Without them what differed can be looked at only after reproducing again."),
        *section("what a prune that was stopped had still to delete", plan.leftovers, "Nothing can read it any more."),
        *(f"kept: {reason}" for reason in plan.kept),
    ]
    return [*lines, f"{megabytes(plan.num_bytes)} in all." if not plan.is_empty else "Nothing to delete."]


def section(title: str, items: "list[Item]", consequence: str) -> list[str]:
    """One kind of folders; nothing when there is none."""
    if not items:
        return []
    shown = [f"    {item.label} ({megabytes(item.num_bytes)})" for item in items]
    return [f"{title}: {megabytes(sum(item.num_bytes for item in items))}", *shortened(shown), f"  {consequence}"]


def objects_section(plan: "Plan") -> list[str]:
    """The objects of DVC's cache, by the stages whose outputs they are."""
    if not plan.objects:
        return []
    shown = [f"    {loss_text(loss)}" for loss in plan.losses] or ["    no record says whose they are"]
    return [
        f"files in DVC's cache that nothing uses any more: {megabytes(sum(plan.objects.values()))}, {len(plan.objects)} files",
        *shortened(shown),
        "  Without them these outputs cannot be checked out, traced to their rows or compared, until they are made again: their records stay, and",
        "  `grpo reproduce` or going back to their configuration does that.",
    ]


def loss_text(loss: "Loss") -> str:
    """Which outputs of which run would be lost."""
    made = datetime.fromisoformat(loss.made).astimezone().strftime("%Y-%m-%d %H:%M")
    names = [loss.experiment, f"run {loss.run_key}" if loss.run_key else None, f"MLflow {loss.mlflow_run_id}" if loss.mlflow_run_id else None]
    return f"{loss.noun} ({', '.join([name for name in names if name] + [f'made {made}'])}) loses {', '.join(loss.outputs)}"


def shortened(lines: list[str]) -> list[str]:
    """The first lines, and how many more there are."""
    return lines if len(lines) <= SHOWN else [*lines[: SHOWN - 1], f"    and {len(lines) - SHOWN + 1} more"]


def megabytes(num_bytes: int) -> str:
    """A size to read."""
    return f"{num_bytes / 1e6:.1f} MB"
