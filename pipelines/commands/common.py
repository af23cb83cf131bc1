"""What every command needs: the checkout it works on, errors in a line, text that cannot steer the terminal."""

import os
import unicodedata
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from grpo_core.config import ConfigError
from pipelines.environment import prepare_environment
from pipelines.params import ROOT, find_root

P = ParamSpec("P")
R = TypeVar("R")


def clear_errors(command: Callable[P, R]) -> Callable[P, R]:
    """One line on stderr and exit status 1 for what a person can mend; GRPO_TRACEBACK=1 shows where it came from."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except BrokenPipeError:  # nobody reads on (`| head`); click ends quietly
            raise
        except (ValueError, OSError) as error:
            if os.environ.get("GRPO_TRACEBACK") == "1":
                raise
            raise click.ClickException(str(error)) from error

    return wrapped


def checkout() -> Path:
    """The root of the checkout we are in, with its environment in force; refuses to mix one checkout's code with another's data."""
    root = find_root(Path.cwd())
    if root != ROOT:
        raise ConfigError(f"this `grpo` runs the code in {ROOT}, but the current folder belongs to {root}: use {root}/.venv/bin/grpo (`make install` there)")
    prepare_environment(root)
    return root


experiment_option = click.option("--experiment", default="default", show_default=True, metavar="NAME", help="Experiment of params.yaml.")


def visible(text: str) -> str:
    """`text` with control characters spelt out, all but line ends and tabs: a model must not steer the terminal."""
    return "".join(ascii(char)[1:-1] if unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t" else char for char in text)
