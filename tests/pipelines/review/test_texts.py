"""Text of a model can do nothing in the page, and is seen."""

import time
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.review.texts import ATTRIBUTES, FOLDED, FORMULA_TAGS, TEXT_TAGS, formatted, html_of

OURS = {("div", "class", "formatted"), ("pre", "class", "written")}
HOSTILE = (
    "<script>alert(1)</script>",
    "<svg onload=alert(1)><img src=x onerror=alert(2)>",
    "![picture](http://evil.example/x.png) ![a][b]\n\n[b]: http://evil.example",
    "[press](javascript:alert(1)) <javascript:alert(1)> <http://evil.example> http://evil.example",
    "<!-- a comment --> <!DOCTYPE html> <?php ?> <![CDATA[ x ]]>",
    "<div style='position:fixed'>\n\n<iframe srcdoc='<b>'></iframe>\n\n</div></pre></details></div>",
    "```html\n<script>alert(1)</script>\n```\n`<script>`",
    "$</math><script>alert(1)</script>$ \\(\\text{<script>alert(1)</script>}\\)",
    "$\\text{<img src=x onerror=alert(1)>}$ $$\\text{</math><svg onload=alert(1)>}$$ $\\text{&lt;script&gt;}$",
    "$\\href{javascript:alert(1)}{x}$ $\\class{a}{x}$ $\\style{position:fixed}{x}$ $\\color{red}{x}$ $\\id{a}{x}$",
    "$\\text{<annotation-xml encoding='text/html'><style>*{color:red}</style></annotation-xml>}$",
    "\\[\n\\text{<script>}\n\\]\n$$ unclosed \\( unclosed $ 5",
    "$\\frac{$ $}{$ $" + "{" * 500 + "$ $\\left($",
    "| a | <script> |\n|---|:-:|\n| <img src=x> | b |",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
)


class Page(HTMLParser):
    """What a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[tuple[str, str | None, str | None]] = set()
        self.others: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {(tag, None, None)} | {(tag, name, value) for name, value in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.others.append(data)

    def handle_decl(self, decl: str) -> None:
        self.others.append(decl)

    def handle_pi(self, data: str) -> None:
        self.others.append(data)

    def unknown_decl(self, data: str) -> None:
        self.others.append(data)


def assert_harmless(page: str) -> Page:
    seen = Page(page)
    assert seen.others == []
    for tag, name, value in seen.found - OURS:
        assert tag in TEXT_TAGS | FORMULA_TAGS | {"div", "details", "summary"}
        assert name is None or (name in ATTRIBUTES[tag] and ":" not in str(value)), (tag, name, value)
    return seen


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_of_a_completion_is_text(text: str) -> None:
    seen = assert_harmless(html_of(text))
    assert text.replace("\x00", "\\x00") in seen.text  # as it was written


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([*HOSTILE, "$", "\\(", "\\)", "\\[", "\\]", "`", "\n", "> ", "* ", "|", "<", "&#x3c;", "{", "}", "\\text{", "x"]), max_size=8).map(
        "".join
    )
)
def test_no_mixture_of_them_is_more(text: str) -> None:
    assert_harmless(html_of(text))


def test_links_and_pictures_are_shown_as_they_were_written() -> None:
    seen = Page(formatted("[press](javascript:alert(1)) ![picture](http://evil.example/x.png)"))
    assert seen.text.strip() == "[press](javascript:alert(1)) ![picture](http://evil.example/x.png)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\x00b", "a\\x00b"), ("a\u202eb", "a\\u202eb"), ("a\u2066b", "a\\u2066b"), ("a\x1b[31mb", "a\\x1b[31mb"), ("$a\u202eb$", "a\\u202eb")],
)
def test_characters_that_cannot_be_seen_are_spelt_out(text: str, shown: str) -> None:
    seen = Page(html_of(text))
    assert seen.text.count(shown) == 2  # formatted, and as it was written


@pytest.mark.parametrize("text", ["&#x202e; &#0; &lt;b&gt;", "$\\text{&#x202e;}$"])
def test_entities_spell_no_such_character(text: str) -> None:
    assert not set(Page(html_of(text)).text) & set("\u202e\x00")
    assert "<b>" not in html_of(text)


def test_markdown_is_formatted_and_line_ends_are_kept() -> None:
    assert formatted("**so**\n2. two\n") == "<p><strong>so</strong><br>\n2. two</p>\n"
    assert formatted("3. three\n4. four\n") == '<ol start="3">\n<li>three</li>\n<li>four</li>\n</ol>\n'


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("so $x^2$.", '<p>so <math display="inline"><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>.</p>\n'),
        ("\\(x\\)", '<p><math display="inline"><mrow><mi>x</mi></mrow></math></p>\n'),
        ("so\n\\[\nx\n+ 1\n\\]\n", '<p>so</p>\n<math display="block"><mrow><mi>x</mi><mo>+</mo><mn>1</mn></mrow></math>'),
        ("$$x$$", '<math display="block"><mrow><mi>x</mi></mrow></math>'),
    ],
)
def test_latex_becomes_mathml(text: str, formula: str) -> None:
    assert formatted(text) == formula


@pytest.mark.parametrize("text", ["$5 and $10", "costs 5$, or 6$", "$$ alone", "\\( alone"])
def test_what_is_no_formula_is_none(text: str) -> None:
    assert "<math" not in formatted(text)


@pytest.mark.parametrize("latex", ["\\frac{", "\\newcommand{\\a}{x}\\a", "\\def\\a{x}\\a"])
def test_latex_that_is_not_converted_is_shown_as_it_was_written(latex: str) -> None:
    assert formatted(f"${latex}$") == f"<p><code>${latex}$</code></p>\n"


def test_of_a_long_text_the_rest_is_folded_and_nothing_is_lost() -> None:
    text = "a word " * (1_000_000 // 7)
    page = html_of(text)
    head, _, rest = page.partition("<details>")
    assert len(head) < 3 * FOLDED
    written = head.partition('<pre class="written">')[2].removesuffix("</pre>")
    assert written + rest.partition("<pre>")[2].removesuffix("</pre></details>") == text


def test_a_text_of_the_most_characters_is_not_folded() -> None:
    assert "<details>" not in html_of("x" * FOLDED)
    assert "Show all (1 more characters)" in html_of("x" * (FOLDED + 1))


@pytest.mark.parametrize("shape", ["a\n", "\\[\n", "\\(", "$x$ ", "> ", "*a_", "# a\n", "{", "$$", "[", "`a``"])
def test_no_text_of_that_length_takes_long(shape: str) -> None:
    begun = time.process_time()
    html_of(shape * (FOLDED // len(shape)))
    assert time.process_time() - begun < 10.0
