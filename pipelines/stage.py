"""DVC's command: `python -m pipelines.stage NOUN [--experiment NAME]` makes one noun, checks its contract, records how it was made."""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from assets import run_config
from assets.page import Progress, ProgressCallback
from assets.paths import Paths
from grpo_core.config import ConfigError, RunConfig
from pipelines.environment import prepare_environment, prepare_libraries
from pipelines.params import experiments, find_root, read_run_config, section_files, written_experiments
from pipelines.provenance import collect, write_provenance
from pipelines.reward_code import check_reward_functions
from pipelines.signals import StopRequest, die_with_parent, stop_at_once

SHARED = ("run_config", "prompts", "sft_checkpoint", "reference_checkpoint")
"""Made once, for all experiments."""
NOUNS = (*SHARED, "grpo_checkpoint", "heldout_eval", "blind_review_set")
CONTRACTS = {"prompts": ("prompts",), "grpo_checkpoint": ("rollout_batches", "rewards"), "heldout_eval": ("heldout_eval",)}
"""Stage → the nouns of its contracts, each checked before the stage counts as done."""
INTERRUPTED = 130
"""Exit status after SIGINT or SIGTERM, as a shell has it for Ctrl-C."""
START_OVER = "nothing was kept; run again to start this stage over"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the noun; 0, or 1 with one message on stderr, or 130 when it was asked to stop."""
    options = parse(arguments)
    die_with_parent()
    stop_at_once()
    try:
        root = find_root(Path.cwd())
        prepare_environment(root)
        return make(options.noun, root, options.experiment)
    except KeyboardInterrupt:
        print(f"interrupted: {START_OVER}", file=sys.stderr)
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


def make(noun: str, root: Path, experiment: str) -> int:
    """Make one noun and write its provenance; returns the exit status."""
    if noun == "run_config":
        check_reward_functions(root, experiments(root).values())
        run_config.produce(Paths(root), section_files(root))
        return 0
    paths = Paths(root, _any_experiment(root) if noun in SHARED else experiment)
    config = read_run_config(paths)
    prepare_libraries(config.model)
    started, clock = datetime.now(UTC), time.monotonic()
    status = train(noun, paths, config) if noun in ("sft_checkpoint", "grpo_checkpoint") else produce(noun, paths, config)
    if status == 0:
        write_provenance(paths.provenance(noun), collect(root, started, time.monotonic() - clock))
    return status


def produce(noun: str, paths: Paths, config: RunConfig) -> int:
    """Make a noun that keeps no checkpoints on the way."""
    from pipelines.progress import reporting

    asset = import_module(f"assets.{noun}")
    with _record(noun, paths, config) as record, reporting(noun, record) as report:
        asset.produce(paths, config, report)
        check_contracts(noun, paths)
    return 0


def train(noun: str, paths: Paths, config: RunConfig) -> int:
    """Make a noun by training, which stops at the next step's end when asked to, with a checkpoint to go on from."""
    from pipelines.progress import reporting

    should_stop = StopRequest()
    should_stop.listen()
    from grpo_core.errors import Interrupted

    asset = import_module(f"assets.{noun}")
    try:
        with _record(noun, paths, config) as record, reporting(noun, record) as report:
            asset.produce(paths, config, report, should_stop)
            check_contracts(noun, paths)
    except Interrupted as interrupted:
        kept = f"work up to step {interrupted.step} is kept; run again to resume" if interrupted.step else START_OVER
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
def _record(noun: str, paths: Paths, config: RunConfig) -> Iterator[ProgressCallback]:
    """The MLflow record of the stages that have one, and the resume state of the training."""
    if noun not in ("grpo_checkpoint", "heldout_eval"):
        yield _ignore
        return
    from pipelines.resume_state import resumable, settle
    from pipelines.run_record import evaluation_record, training_record

    if noun == "grpo_checkpoint":
        with resumable(paths, config) as work, training_record(paths, config, work) as record:
            yield record
    else:
        settle(paths)
        with evaluation_record(paths, config) as record:
            yield record


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
