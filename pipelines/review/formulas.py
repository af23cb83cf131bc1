r"""LaTeX in completions as MathML: `$...$`, `\(...\)`, `$$...$$` and `\[...\]`. A formula that cannot be converted is shown as it was written."""

import re
from collections.abc import Mapping, Sequence
from html import unescape
from typing import Any
from xml.etree.ElementTree import tostring

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from pipelines.report.render import shown

MOST_LINES = 50
"""Lines of a formula."""
DEFINITION = re.compile(r"\\(?:def|(?:re)?newcommand|(?:re)?newenvironment|DeclareMathOperator)")
"""A few definitions can unfold to more than memory holds."""
# A dollar opens before a letter and not after one, and closes after a letter and not before a digit: $5 and $10 are no formula, nor are 5$ and 10$.
INLINE = re.compile(
    r"\$\$(?P<dollars>[^$]{1,2000}?)\$\$|(?<!\w)\$(?P<dollar>(?=\S)[^$\n]{1,2000}?(?<=[^\s\\]))\$(?!\d)|\\\[(?P<bracket>.{1,2000}?)\\\]|\\\((?P<round>.{1,2000}?)\\\)",
    re.DOTALL,
)
BLOCK = {"$$": "$$", "\\[": "\\]"}
"""A line that begins a formula of its own lines → the end of the line that ends it."""
UNKNOWN = {"aligned": "align*", "gathered": "matrix"}
"""Environments that the converter does not know → one that looks alike."""


def add_formulas(markdown: MarkdownIt) -> None:
    """Let `markdown` read formulas, before anything else can take their characters."""
    markdown.inline.ruler.before("escape", "formula", _inline)
    markdown.block.ruler.before("code", "formula", _block, {"alt": ["paragraph", "blockquote", "list"]})
    markdown.add_render_rule("formula", _render)


def mathml(latex: str, *, display: bool) -> str | None:
    """The formula as MathML in which all text is escaped; None where it cannot be converted."""
    from latex2mathml.converter import Converter

    if DEFINITION.search(latex):
        return None
    known = re.sub(r"(?<=\{)(aligned|gathered)(?=\})", lambda match: UNKNOWN[match[0]], latex)
    try:
        formula = Converter(display="block" if display else "inline").convert_to_element(known)
        # Converter.convert would do this after serialising, and so make markup of a model's text.
        for part in formula.iter():
            part.text = shown(unescape(part.text or ""))
        return tostring(formula, encoding="unicode")
    except Exception:  # noqa: BLE001 - the converter stumbles over a model's LaTeX in a dozen ways, and none is the reviewer's concern
        return None


def _inline(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] not in "$\\":
        return False
    match = INLINE.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        _push(state, match[0], str(match[match.lastgroup or 0]), display=match.lastgroup in ("dollars", "bracket"))
    state.pos = match.end()
    return True


def _block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    opening = _line(state, start_line)[:2]
    if opening not in BLOCK:
        return False
    written = ""
    for line in range(start_line, min(end_line, start_line + MOST_LINES)):
        written += _line(state, line).rstrip() + "\n"
        if written[2:].endswith(BLOCK[opening] + "\n"):
            if not silent:
                _push(state, written, written[2:-3], display=True)
                state.line = line + 1
            return True
    return False


def _line(state: StateBlock, line: int) -> str:
    return state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]]


def _push(state: StateInline | StateBlock, written: str, latex: str, *, display: bool) -> None:
    token = state.push("formula", "", 0)
    token.markup, token.content, token.meta = written, latex, {"display": display}


def _render(self: Any, tokens: Sequence[Token], place: int, options: Mapping[str, Any], env: Mapping[str, Any]) -> str:
    token = tokens[place]
    display = bool(token.meta["display"])
    return mathml(token.content.strip(), display=display) or f"<code>{escapeHtml(token.markup)}</code>"
