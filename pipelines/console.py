"""How `grpo` prints: wide enough to be read where there is no terminal, and nothing that could steer one."""

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
FEWEST_COLUMNS = 120
"""Width of what is printed where there is no terminal: a log has none of its own."""


def wide_console(fewest: int = FEWEST_COLUMNS) -> "Console":
    """A console as wide as the terminal is, and `fewest` columns where there is none."""
    from rich.console import Console

    return Console(width=None if Console().is_terminal else fewest)


def visible(text: str) -> str:
    """`text` with control characters spelt out, all but line ends and tabs: a model must not steer the terminal."""
    return "".join(ascii(char)[1:-1] if unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t" else char for char in text)
