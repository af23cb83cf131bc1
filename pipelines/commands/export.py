"""`grpo export`: a model for others to load."""

from pathlib import Path

import click

from pipelines.commands.checkout import checkout
from pipelines.commands.errors import clear_errors


@click.command()
@click.argument("places", nargs=-1, required=True, metavar="[EXPERIMENT] FOLDER")
@click.option("--champion", is_flag=True, help="Export the champion instead of an experiment's policy.")
@click.option("--push", "hub", metavar="ORG/NAME", help="Upload the folder to this repository of the Hugging Face hub, which is made private if it is new.")
@click.option("--force", is_flag=True, help="Replace a model that lies in FOLDER.")
@clear_errors
def export(places: tuple[str, ...], champion: bool, hub: str | None, force: bool) -> None:
    """Write a policy to FOLDER as transformers and vLLM load it: weights, configuration, tokenizer, model card.

    It is loaded once to see that it does, and that its weights are the trained ones. Without EXPERIMENT it is the one called `default`. Examples:

    \b
        grpo export default /models/addition
        grpo export --champion /models/champion --push my-org/champion
    """
    if len(places) > (1 if champion else 2):
        raise click.UsageError("name [EXPERIMENT] FOLDER, or --champion FOLDER")
    root = checkout()
    from assets.paths import Paths
    from pipelines.environment import prepare_libraries
    from pipelines.export import ExportError, card_of, champion_folder, push
    from pipelines.export import export as write_export
    from pipelines.params import choose_experiment

    *named, folder = places
    experiment = named[0] if named else "default"
    paths, target = Paths(root, experiment), Path(folder).absolute()
    if champion:
        source, card = champion_folder(paths), {}
    else:
        prepare_libraries(choose_experiment(root, experiment).model)
        source = paths.grpo_checkpoint
        if not source.is_dir():
            raise ExportError(f"experiment {experiment!r} has no trained policy in {source}: `grpo run --experiment {experiment}` makes one")
        card = card_of(paths)
    write_export(source, target, force=force, extra=card)
    click.echo(f"{target}: loads with transformers, weights as trained")
    if hub:
        click.echo(push(target, hub))
