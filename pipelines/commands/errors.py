"""What a person can mend is told in a line."""

import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import click

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
