"""`grpo ablate`: which value of a setting to take, found by training several with several seeds."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.commands.checkout import checkout
from pipelines.commands.errors import clear_errors
from pipelines.console import wide_console
from pipelines.params import load_params

if TYPE_CHECKING:
    from rich.table import Table

    from pipelines.ablation import Ablation, Number

FACTORS = ("group-size", "clip", "beta", "temperature")


class Factor(click.Choice[str]):
    """One of `FACTORS`, also as params.yaml spells it: `group_size`, `grpo.group_size`."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(value.rpartition(".")[2].replace("_", "-"), param, ctx)


@click.command()
@click.argument("factor", required=False, type=Factor(FACTORS))
@click.option("--values", metavar="V,V,...", help="Values to try. [default: 4,8,16; 0.1,0.2,0.3; 0,0.01,0.04; 0.7,1.0,1.3]")
@click.option("--seeds", metavar="S,S,...", help="Seeds of every value (grpo.seed). [default: 0,1,2]")
@click.option("--steps", type=click.IntRange(min=1), help="Steps of every arm. [default: those of the base]")
@click.option("--base", default="default", show_default=True, metavar="NAME", help="Experiment that the arms are like in everything else.")
@click.option("--remove", is_flag=True, help="Take the arms of this factor out of params.yaml again (with --values or --seeds only those).")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and leave params.yaml as it is.")
@click.option("--report", is_flag=True, help="Show how the arms that are trained compare (of FACTOR, if given), and which to take.")
@clear_errors
def ablate(factor: str | None, values: str | None, seeds: str | None, steps: int | None, base: str, remove: bool, dry_run: bool, report: bool) -> None:
    """Add experiments to params.yaml that differ in one setting, each with several seeds; then compare them.

    \b
    group-size   completions a group; prompts a step follow, so that a step samples as much in every arm
    clip         how far a ratio may go, down and up alike (clip_low, clip_high)
    beta         weight of the KL to the reference
    temperature  of sampling

    An experiment is a partition in Dagster, a run in MLflow, and trained by `dvc repro`. Arms that are there already stay. Example:

    \b
        grpo ablate group-size --values 4,8,16 --steps 100
        dvc repro comparison_report
        grpo ablate --report
    """
    root = checkout()
    if report:
        if remove or dry_run:
            raise click.UsageError("--report only shows: it takes no --remove and no --dry-run")
        if values is not None or seeds is not None or steps is not None:
            raise click.UsageError("--report shows all that is trained: it takes no --values, --seeds or --steps")
        show_report(root, factor)
        return
    if factor is None:
        raise click.UsageError(f"name what to vary, one of {', '.join(FACTORS)}, or ask for --report")
    from pipelines.ablation import KINDS, SEEDS, arms_to_remove, plan_ablation, remove_arms

    name = factor.replace("-", "_")
    numbers, repeats = parse_numbers("--values", values), parse_seeds(seeds)
    if remove:
        if steps is not None:
            raise click.UsageError("--remove takes arms out whatever their --steps: leave that out")
        names = arms_to_remove(load_params(root), name, base, numbers, repeats)
        if names and not dry_run:
            remove_arms(root, names)
        click.echo(removed_text(names, dry_run))
        return
    tell_added(root, plan_ablation(load_params(root), name, numbers or KINDS[name].values, repeats or SEEDS, steps, base), dry_run)


def parse_numbers(option: str, text: str | None) -> "list[Number] | None":
    """Numbers separated by commas, whole ones as ints; None where none are given."""
    if text is None:
        return None
    try:
        return [int(part) if part.strip().lstrip("-").isdigit() else float(part) for part in text.split(",")]
    except ValueError:
        raise click.UsageError(f"{option} takes numbers separated by commas, as in 4,8,16, got {text!r}") from None


def parse_seeds(text: str | None) -> list[int] | None:
    """Whole numbers separated by commas; None where none are given."""
    numbers = parse_numbers("--seeds", text)
    if numbers is None:
        return None
    seeds = [number for number in numbers if isinstance(number, int) and number >= 0]
    if len(seeds) != len(numbers):
        raise click.UsageError(f"--seeds takes whole numbers from 0, as in 0,1,2, got {text!r}")
    return seeds


def removed_text(names: list[str], dry_run: bool) -> str:
    """What was taken out."""
    if not names:
        return "params.yaml has no such arms: nothing to take out"
    head = "would be taken out of params.yaml" if dry_run else "taken out of params.yaml"
    kept = "What they made stays in data/ (a folder of their name beside `default`) and in .work/; `dvc repro` compares what is left."
    return f"{head}: {', '.join(names)}\n{kept}"


def tell_added(root: Path, ablation: "Ablation", dry_run: bool) -> None:
    """Write the arms unless it is a `dry_run`, and print them, what they cost, and how they are run."""
    from rich.text import Text

    from pipelines.ablation import outlooks, write_arms

    ahead = outlooks(root, ablation)
    fates = {} if dry_run else write_arms(root, ablation)
    console = wide_console()
    for fate in dict.fromkeys(fates.values()):
        names = [name for name, found in fates.items() if found == fate]
        console.print(Text(f"{fate}: {', '.join(names)}"))
    if dry_run:
        console.print(Text(f"would be experiments of params.yaml: {', '.join(ablation.arms)}"))
    console.print(arms_table(ablation, ahead))
    for line in (*ablation.notes, *cost_lines(ablation, ahead), *warnings(ahead)):
        console.print(Text(line))
    if not dry_run:
        console.print(Text(), Text(next_steps(ablation)), sep="\n")


def arms_table(ablation: "Ablation", ahead: Mapping[str, Any]) -> "Table":
    """The arms in numbers, a row a value."""
    from rich.table import Table

    from pipelines.outlook import duration

    table = Table(title=f"{ablation.factor} on {ablation.base!r}", title_justify="left", show_edge=False, pad_edge=False)
    for heading in ("arm", "seeds", "steps", "completions a step", "completions a minibatch", "completions a run", "a training"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for name, outlook in ahead.items():
        arm, planned = name.rpartition("-seed-")[0], outlook.plan
        seeds = [other.rpartition("-seed-")[2] for other in ablation.arms if other.rpartition("-seed-")[0] == arm]
        group = planned.completions_per_step // planned.prompts_per_step
        table.add_row(
            arm,
            ", ".join(seeds),
            f"{planned.steps:,}",
            f"{planned.completions_per_step:,} = {planned.prompts_per_step} prompts × {group}",
            f"{planned.completions_per_minibatch:,}",
            f"{planned.completions:,}",
            duration(outlook.seconds["grpo_checkpoint"]) if outlook.seconds else "unknown",
        )
    return table


def cost_lines(ablation: "Ablation", ahead: Mapping[str, Any]) -> list[str]:
    """What all arms take together."""
    from pipelines.outlook import duration

    repeats = {name: sum(other.rpartition("-seed-")[0] == name.rpartition("-seed-")[0] for other in ablation.arms) for name in ahead}
    lines = [f"{len(ablation.arms)} trainings, {sum(ahead[name].plan.training_tokens * count for name, count in repeats.items()):,} tokens at most"]
    first = next(iter(ahead.values()))
    if not all(outlook.seconds for outlook in ahead.values()):
        return [f"{lines[0]}; time: {first.time_basis}"]
    trained, evaluated = (sum(ahead[name].seconds[stage] * count for name, count in repeats.items()) for stage in ("grpo_checkpoint", "heldout_eval"))
    return [f"{lines[0]}, about {duration(trained)} ({first.time_basis}); their held-out evaluations take about {duration(evaluated)} more"]


def warnings(ahead: Mapping[str, Any]) -> list[str]:
    """What will not do what it says, with the arms of which that holds unless it holds of all."""
    said: dict[str, list[str]] = {}
    for name, outlook in ahead.items():
        for warning in outlook.warnings:
            said.setdefault(warning, []).append(name.rpartition("-seed-")[0])
    return [f"warning: {'' if len(names) == len(ahead) else ', '.join(names) + ': '}{warning}" for warning, names in said.items()]


def next_steps(ablation: "Ablation") -> str:
    """How the arms are run, compared and taken out."""
    first, option = next(iter(ablation.arms)), "" if ablation.base == "default" else f" --base {ablation.base}"
    lines = {
        "dvc repro comparison_report": "trains them one after another, then compares; held-out prompts stay unread",
        "dvc repro": "the same, and the held-out evaluation and review set of each",
        f"grpo run --experiment {first}": "one of them",
        "grpo ui": "as a backfill: asset grpo_checkpoint, Materialize, all partitions (reload the definitions first)",
        "grpo ablate --report": "how they compare so far",
        f"grpo ablate {ablation.factor.replace('_', '-')}{option} --remove": "takes them out of params.yaml again",
    }
    width = max(map(len, lines))
    return "\n".join(f"  {command:<{width}}  {what}" for command, what in lines.items())


# -------------------------------------------------------------------------------------------------------- the comparison


def show_report(root: Path, factor: str | None) -> None:
    """Print every comparison (of the factor, if one is named) with its recommendation, and what is in none."""
    from rich.text import Text

    from assets.comparison_report import open_alarms, remarks, to_take_it, wall_seconds
    from assets.paths import Paths
    from pipelines.ablation import report_now

    paths, report, console = Paths(root), report_now(root), wide_console()
    console.print(Text(report["summary"]))
    seconds = wall_seconds(paths)
    for compared in report["comparisons"]:
        if factor is not None and compared["factor"] != factor.replace("-", "_"):
            continue
        console.print(Text(), report_table(compared, seconds), Text(compared["reason"], style="bold"), sep="\n")
        if compared["recommended"] is not None:
            console.print(Text(to_take_it(compared)))
    notes = [*remarks(report), *open_alarms(paths, report)]
    if notes:
        console.print(Text(), Text("\n".join(["left out, or to look at:", *(f"  {note}" for note in notes)])), sep="\n")


def report_table(compared: Mapping[str, Any], seconds: Mapping[str, Any]) -> "Table":
    """The arms of one comparison."""
    from rich.table import Table

    from assets.comparison_report import arm_rows

    rows = arm_rows(compared, seconds)
    steps = f"steps 1 to {compared['num_steps']}, rises to step {compared['rising_steps']}"
    title = f"{compared['factor']}: {steps}; tokens and seconds of a run; means over seeds with 95 % intervals"
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for heading in rows[0]:
        table.add_column(heading, justify="left" if heading == compared["factor"] else "right", no_wrap=True)
    for row in rows:
        # The interval under its estimate: side by side the table would be wider than a terminal.
        table.add_row(*(cell.replace(" [", "\n[") for cell in row.values()), style="bold" if row[compared["factor"]] == compared["recommended"] else None)
    return table
