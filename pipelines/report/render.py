"""A report as one HTML file that needs nothing else: styles and pictures inside, no script, no address to ask.

Text of models, prompts and alarms is untrusted: every value that the template prints is escaped, with control characters spelt out.
"""

import base64
from pathlib import Path
from typing import Any

from grpo_core.checkpoint import write_file
from pipelines.console import visible
from pipelines.report.content import Report
from pipelines.report.head import NOT_EVALUATED
from pipelines.report.pictures import Picture
from pipelines.report.sources import ReportError

ABSENT = {
    "heldout": f"{NOT_EVALUATED} It is the next stage: `grpo run` goes on from there.",
    "alarms": "Health was not recorded: training has not ended yet, or the run is older than the monitor.",
    "curves": "No step has finished yet.",
    "ledger": "No completion has been scored yet, or the tables of rollouts and rewards are not on this machine.",
    "exploits": "The battery has not been tried yet, or its table is not on this machine.",
    "records": "No record of the stages that made this run is on this machine (.work/provenance): a stage writes its own when it ends.",
}
"""Part of the page → what stands there while there is nothing to show."""
FOLDED = 600
"""Characters of a text that are shown before the rest is folded."""
LONGEST = 6_000
"""Characters of a text that the page holds."""
DIRECTING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that turn the direction of the text after them."""


def html(report: Report) -> str:
    """The page."""
    import jinja2

    folder = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"source": picture_source, "beginning": beginning, "rest": rest}
    return environment.get_template("page.html.j2").render(report=report, absent=ABSENT)


def shown(value: Any) -> Any:
    """What the template prints of a value: text with what cannot be seen spelt out (what is markup already, and no plain text, as it is)."""
    if type(value) is not str or (value.isascii() and value.isprintable()):
        return value
    return "".join(f"\\u{ord(char):04x}" if char in DIRECTING else char for char in visible(value))


def picture_source(picture: Picture) -> str:
    """The picture as the address of an image."""
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.svg).decode()}"


def beginning(text: str) -> str:
    """As much of a text as is shown at once."""
    return text if len(text) <= FOLDED else text[:FOLDED]


def rest(text: str) -> str:
    """What is folded away; of a text that is too long for the page its beginning, with how much is missing. Empty for a short text."""
    if len(text) <= LONGEST:
        return text[FOLDED:]
    return f"{text[FOLDED:LONGEST]}… ({len(text) - LONGEST:,} more characters are in the table that it is from)"


def write_page(path: Path, page: str, *, make_folder: bool) -> None:
    """The page at `path`, whole or not at all; raises `ReportError` when its folder is not there and is not to be made."""
    if not make_folder and not path.absolute().parent.is_dir():
        raise ReportError(f"{path.parent} is no folder: make it first, or leave --output out")
    write_file(path, lambda partial: partial.write_bytes(page.encode()))
