"""The checkout that a command works on."""

from pathlib import Path

import click

from grpo_core.requirements import ConfigError
from pipelines.environment import prepare_environment
from pipelines.params import ROOT, find_root


def checkout() -> Path:
    """The root of the checkout we are in, with its environment in force; refuses to mix one checkout's code with another's data."""
    root = find_root(Path.cwd())
    if root != ROOT:
        raise ConfigError(f"this `grpo` runs the code in {ROOT}, but the current folder belongs to {root}: use {root}/.venv/bin/grpo (`make install` there)")
    prepare_environment(root)
    return root


experiment_option = click.option("--experiment", default="default", show_default=True, metavar="NAME", help="Experiment of params.yaml.")
