"""DVC's command: `python -m pipelines.stage NOUN [--experiment NAME]` makes one noun, checks its contract, records how it was made."""

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path

import assets
import grpo_core
from assets import run_config
from assets.page import Progress, ProgressCallback
from assets.paths import SHARED, Paths
from grpo_core.config import RunConfig
from grpo_core.determinism import overruled
from grpo_core.requirements import ConfigError
from pipelines.console import INTERRUPTED
from pipelines.environment import prepare_environment, prepare_libraries
from pipelines.params import ROOT, experiments, find_root, read_run_config, section_files, written_experiments
from pipelines.records.provenance import Making, begin
from pipelines.reward_code import check_reward_functions
from pipelines.signals import StopRequest, die_with_parent, stop_at_once

NOUNS = (*SHARED, "grpo_checkpoint", "heldout_eval", "blind_review_set", "blind_review_verdict", "champion_eval", "promotion_report")
CONTRACTS = {"prompts": ("prompts",), "grpo_checkpoint": ("rollout_batches", "rewards"), "heldout_eval": ("heldout_eval",)}
"""Stage → the nouns of its contracts, each checked before the stage counts as done."""
NOTHING_NEW = "nothing new was kept; run again to go on"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the noun; 0, or 1 with one message on stderr, or 130 when it was asked to stop."""
    options = parse(arguments)
    die_with_parent()
    stop_at_once()
    try:
        root = find_root(Path.cwd())
        check_code(root)
        prepare_environment(root)
        return make(options.noun, root, options.experiment)
    except KeyboardInterrupt:
        print(f"interrupted: {NOTHING_NEW}", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        if os.environ.get("GRPO_TRACEBACK") == "1":
            traceback.print_exc()
        # A bare ValueError may come from a library, and then its message alone can be too little.
        hint = " (GRPO_TRACEBACK=1 shows where)" if type(error) is ValueError and os.environ.get("GRPO_TRACEBACK") != "1" else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        return 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipelines.stage", description=__doc__)
    parser.add_argument("noun", choices=NOUNS)
    parser.add_argument("--experiment", default="default", help="name in params.yaml (default: %(default)s)")
    return parser.parse_args(arguments)


def check_code(root: Path) -> None:
    """Refuse to make a checkout's data with the code of another place: dvc.lock and the records would name code that did not run."""
    for folder in (ROOT, *(Path(package.__path__[0]).resolve().parent for package in (assets, grpo_core))):
        if folder != root:
            raise ConfigError(
                f"the code that was imported lies in {folder}, the checkout that it would work on is {root}: "
                f"run `dvc repro` in the checkout's own folder, with PYTHONPATH and PYTHONSAFEPATH unset"
            )


def make(noun: str, root: Path, experiment: str) -> int:
    """Make one noun and write its record; returns the exit status."""
    if noun == "run_config":
        making = begin(Paths(root), noun)
        check_reward_functions(root, experiments(root).values())
        run_config.produce(Paths(root), section_files(root))
        making.record()
        return 0
    paths = Paths(root, _any_experiment(root) if noun in SHARED else experiment)
    config = read_run_config(paths)
    disobeyed = overruled(config.model)
    prepare_libraries(config.model)
    from pipelines.outlook import TOLD, tell
    from pipelines.resume_state import TRAINED, settle

    if noun in (*TRAINED, "heldout_eval", "champion_eval"):
        choose_kernels(config)
    if noun in TRAINED and TOLD not in os.environ:
        tell(root, paths.experiment, config, disobeyed)
    settle(paths)
    making = begin(paths, noun, config)
    return train(making, config) if noun in TRAINED else produce(making, config)


def choose_kernels(config: RunConfig) -> None:
    """Have torch compute in the way that repeats, on the device that the configuration names."""
    from grpo_core.determinism import after_torch_import
    from grpo_core.models import resolve_device

    after_torch_import(str(resolve_device(config.model.device)))


def produce(making: Making, config: RunConfig) -> int:
    """Make a noun that keeps no checkpoints on the way."""
    from pipelines.progress import reporting

    asset = import_module(f"assets.{making.noun}")
    with tracked(making, config) as track, reporting(making.noun, track) as report:
        asset.produce(making.paths, config, report)
        check_contracts(making.noun, making.paths)
        making.record()
    return 0


def train(making: Making, config: RunConfig) -> int:
    """Make a noun by training, which stops at the next step's end when asked to, with a checkpoint to go on from."""
    from pipelines.notify import notifier
    from pipelines.progress import reporting
    from pipelines.resume_state import resumable

    should_stop = StopRequest()
    should_stop.listen()
    from grpo_core.errors import Interrupted

    asset = import_module(f"assets.{making.noun}")
    try:
        with resumable(making, config) as work, tracked(making, config, work) as track, reporting(making.noun, track, notifier(config)) as report:
            asset.produce(making.paths, config, report, should_stop, work)
            check_contracts(making.noun, making.paths)
            making.record()
    except Interrupted as interrupted:
        kept = f"work up to step {interrupted.step} is kept; run again to resume" if interrupted.step else NOTHING_NEW
        print(f"interrupted: {kept}", file=sys.stderr)
        return INTERRUPTED
    return 0


def check_contracts(noun: str, paths: Paths) -> None:
    """Write the outcome of every contract of the stage; raises `ContractError` with the rows and reasons when one is violated."""
    from assets.contracts import ContractError

    violated = []
    for name in CONTRACTS.get(noun, ()):
        validation = import_module(f"assets.{name}").check(paths)
        validation.write(paths.validation(name))
        if not validation.success:
            violated.append(validation.summary())
    if violated:
        raise ContractError("\n".join(violated))


@contextmanager
def tracked(making: Making, config: RunConfig, work: Path | None = None) -> Iterator[ProgressCallback]:
    """Tells MLflow what the stages that have a part in a run did; the others have no run to tell it of yet."""
    from pipelines.run_record import evaluation_record, judgement_record, review_record, training_record

    record: AbstractContextManager[ProgressCallback]
    if making.noun == "grpo_checkpoint" and work is not None:
        record = training_record(making, config, work)
    elif making.noun == "heldout_eval":
        record = evaluation_record(making, config)
    elif making.noun == "blind_review_set":
        record = review_record(making, config)
    elif making.noun in ("blind_review_verdict", "promotion_report"):
        record = judgement_record(making, config)
    else:
        record = nullcontext(_ignore)
    with record as track:
        yield track


def _ignore(progress: Progress) -> None:
    """For stages without an MLflow run."""


def _any_experiment(root: Path) -> str:
    """An experiment to read shared sections through: they are the same for all."""
    names = written_experiments(Paths(root))
    if not names:
        raise ConfigError(f"{Paths(root).run_config} holds no experiment: write it with `dvc repro run_config`")
    return "default" if "default" in names else names[0]


if __name__ == "__main__":
    sys.exit(main())
