"""`grpo`: the one command-line program. Every command works on the checkout that the current folder lies in."""

import os
import sys
from pathlib import Path

import click

from assets.paths import Paths
from grpo_core.determinism import overruled
from pipelines.commands.ablate import ablate
from pipelines.commands.audit_rewards import audit_rewards
from pipelines.commands.checkout import checkout, experiment_option
from pipelines.commands.compare import compare
from pipelines.commands.doctor import doctor
from pipelines.commands.errors import clear_errors
from pipelines.commands.explore import explore
from pipelines.commands.prune import prune
from pipelines.commands.replay import replay
from pipelines.commands.report import report
from pipelines.commands.reproduce import reproduce
from pipelines.commands.rescore import rescore
from pipelines.commands.review import review
from pipelines.commands.trace import trace
from pipelines.commands.verify import verify
from pipelines.console import INTERRUPTED, visible, wide_console
from pipelines.environment import prepare_libraries
from pipelines.params import choose_experiment, experiments
from pipelines.reward_code import check_reward_functions
from pipelines.signals import stop_at_once
from pipelines.tracking import DEFAULT_PORT


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def main() -> None:
    """Post-training with GRPO: from prompts with checkable answers to a better model and the evidence that it is better.

    The numbers of a run stand in params.yaml. The same work can be started here, in the Dagster UI (`grpo ui`) or with `dvc repro`.
    Set GRPO_TRACEBACK=1 to see where an error came from.
    """


@main.command()
@experiment_option
@click.option("--from-grpo", is_flag=True, help="Start at GRPO: prompts, SFT and reference stay as they are.")
@clear_errors
def run(experiment: str, from_grpo: bool) -> None:
    """Materialise the whole lifecycle: show what its numbers multiply to, do it, and show the evidence.

    Stages whose configuration, inputs and code did not change are skipped. Ctrl-C stops training after its step with a checkpoint;
    run again to go on.
    """
    root = checkout()
    config = choose_experiment(root, experiment)
    check_reward_functions(root, [config])
    from pipelines.definitions import run_job
    from pipelines.outlook import TOLD, tell
    from pipelines.summary import result, written_evidence

    paths = Paths(root, experiment)
    console = wide_console()
    tell(root, experiment, config, overruled(config.model))
    os.environ[TOLD] = "1"
    stop_at_once()
    outcome = run_job(root, experiment, from_grpo=from_grpo)
    if not outcome.success:
        if "heldout_eval" in outcome.done:
            console.print(written_evidence(paths))
        if outcome.interrupted:
            click.echo("interrupted: what was finished is kept; the same command goes on from there", err=True)
            sys.exit(INTERRUPTED)
        raise click.ClickException("the run failed: the first error above says why; what was finished before it is kept")
    console.print(result(paths, config))


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@clear_errors
def preset(file: Path) -> None:
    """Write the values of FILE (see params/) into params.yaml, comments kept, after checking that the result can be run.

    Keys that FILE does not name go back to their defaults in every section that it has; sections that it lacks stay as they are.
    `git diff params.yaml` shows what it did, `git checkout params.yaml` undoes it. Example:

        grpo preset params/smollm2_chain_sum.yaml
    """
    root = checkout()
    from pipelines.presets import apply_preset

    changes = apply_preset(root, file)
    click.echo("\n".join(changes) if changes else "params.yaml has these values already")


@main.command()
@clear_errors
def status() -> None:
    """Say of every stage whether it is out of date, and why.

    Exit status 0 either way. Nothing is run or written.
    """
    root = checkout()
    experiments(root)
    from pipelines.graph import RUN_CONFIG, load_graph
    from pipelines.staleness import all_out_of_sync

    names = [target.name for target in load_graph(root).targets if target.stage != RUN_CONFIG]
    reasons = all_out_of_sync(root, names)
    for name in names:
        click.echo(f"{name}: {'out of date' if reasons[name] else 'up to date'}")
        for reason in reasons[name]:
            click.echo(f"    {reason}")


@main.command()
@clear_errors
def sync() -> None:
    """Tell Dagster what `dvc repro` or `dvc checkout` did in a shell, so that its asset pages are right again."""
    root = checkout()
    from pipelines.sync import sync as report_to_dagster

    reported = report_to_dagster(root)
    click.echo("\n".join(map(str, reported)) if reported else "Dagster knew everything already")


@main.command()
@click.option("--port", default=3000, show_default=True, type=click.IntRange(1, 65535), help="Port of Dagster's page.")
@click.option(
    "--mlflow-port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="Port of MLflow's page; asset pages made from now on link there.",
)
@clear_errors
def ui(port: int, mlflow_port: int) -> None:
    """Open Dagster's and MLflow's pages on this machine (loopback only) until Ctrl-C."""
    root = checkout()
    experiments(root)
    from dagster import DagsterInstance

    from pipelines.dead_runs import release_dead_runs
    from pipelines.stage_assets import POOL
    from pipelines.tracking import port_file, tracking_uri
    from pipelines.ui import ServerError, running, servers, wait_for_end

    stop_at_once()
    release_dead_runs(DagsterInstance.get(), POOL)
    wanted = servers(root, port, mlflow_port)
    click.echo(f"starting {' and '.join(server.name for server in wanted)} ...", err=True)
    try:
        with running(root, wanted) as started:
            port_file(root).write_text(f"{mlflow_port}\n", encoding="utf-8")
            for server in wanted:
                click.echo(f"{server.name:8} {server.address}")
            if len(wanted) == 1:
                click.echo(f"{'MLflow':8} {tracking_uri(root)}")
            click.echo("Ctrl-C stops them.")
            wait_for_end(root, started)
    except ServerError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo("stopped", err=True)


@main.command()
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("prompt")
@click.option("--num", default=1, show_default=True, type=click.IntRange(min=1), help="Completions to draw.")
@click.option("--temperature", default=1.0, show_default=True, type=click.FloatRange(min=0), help="0 is greedy.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), help="Longest completion in tokens. [default: rollout.max_new_tokens]")
@click.option("--seed", default=0, show_default=True, help="The same seed draws the same completions.")
@clear_errors
def sample(checkpoint: Path, prompt: str, num: int, temperature: float, max_new_tokens: int | None, seed: int) -> None:
    """Let the model in the folder CHECKPOINT complete PROMPT.

    PROMPT is wrapped as training prompts are (prompts.template, prompts.chat). Example:

        grpo sample data/grpo_checkpoint/default '335+194='
    """
    root = checkout()
    config = next(iter(experiments(root).values()))
    prepare_libraries(config.model)
    from pipelines.sample import completions

    length = max_new_tokens or config.rollout.max_new_tokens
    for text in completions(checkpoint, prompt, config, num=1 if temperature == 0 else num, temperature=temperature, max_new_tokens=length, seed=seed):
        click.echo(visible(text))


for _command in (doctor, explore, audit_rewards, ablate, report, review, trace, compare, replay, rescore, reproduce, verify, prune):
    main.add_command(_command)


if __name__ == "__main__":
    sys.exit(main())
