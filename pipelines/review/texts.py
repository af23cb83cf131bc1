"""A model's text as HTML that can do nothing: Markdown and formulas are formatted, everything that could act or load is shown as it was written."""

from functools import cache
from html import escape

import nh3
from markdown_it import MarkdownIt

from pipelines.report.render import shown
from pipelines.review.formulas import add_formulas

FOLDED = 20_000
"""Characters that are shown, and formatted, before the rest is folded."""
NEVER = ("link", "image", "autolink", "html_inline", "html_block", "reference", "entity")
"""Rules of Markdown that are off: their text stays as it is. (An entity could spell a character that must not be in the page.)"""
TEXT_TAGS = {
    "p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "ul", "ol", "li", "h1", "h2", "h3", "h4", "h5", "h6",
    "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
FORMULA_TAGS = {
    "math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "mroot", "msub", "msup", "msubsup", "munder", "mover", "munderover",
    "mtable", "mtr", "mtd", "menclose", "mpadded", "mphantom", "mstyle",
}  # fmt: skip
ATTRIBUTES = {
    "ol": {"start"}, "math": {"display"}, "mo": {"stretchy", "fence", "form", "accent", "minsize", "maxsize"}, "mi": {"mathvariant"},
    "mover": {"accent"}, "munder": {"accentunder"}, "mfrac": {"linethickness"}, "mtable": {"displaystyle"}, "mtd": {"columnalign"},
    "mstyle": {"displaystyle", "scriptlevel"}, "menclose": {"notation"},
}  # fmt: skip


def html_of(text: str) -> str:
    """The text formatted and as it was written, of which the page shows one; of a long text the rest is folded away."""
    head, rest = _folded(shown(text.replace("\r\n", "\n")))
    page = f'<div class="formatted">{formatted(head)}</div><pre class="written">{escape(head)}</pre>'
    return f"{page}<details><summary>Show all ({len(rest):,} more characters)</summary><pre>{escape(rest)}</pre></details>" if rest else page


def formatted(text: str) -> str:
    """Markdown as HTML of `TEXT_TAGS`, `FORMULA_TAGS` and `ATTRIBUTES` alone."""
    return _cleaner().clean(_markdown().render(text))


def _folded(text: str) -> tuple[str, str]:
    """What is shown and what is folded, parted where a line or a word ends."""
    if len(text) <= FOLDED:
        return text, ""
    end = max(text.rfind("\n", FOLDED // 2, FOLDED), text.rfind(" ", FOLDED - 200, FOLDED)) + 1 or FOLDED
    return text[:end], text[end:]


@cache
def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"]).disable(NEVER)
    add_formulas(markdown)
    return markdown


@cache
def _cleaner() -> nh3.Cleaner:
    return nh3.Cleaner(tags=TEXT_TAGS | FORMULA_TAGS, attributes=ATTRIBUTES, link_rel=None)
