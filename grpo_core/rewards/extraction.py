"""The final answer in a model's text, found by reading it once from left to right: nothing in it can be baited into more work, and there is no parser."""

import re
from collections.abc import Callable, Iterator

MAX_RUN = 2_000
"""Characters of a number that are looked at; an answer so long is none."""
END_OF_THOUGHT = "</think>"
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
DOLLAR = re.compile(r"\$")
BOX = re.compile(r"\\(?:boxed|fbox)[ \n\t]{0,9}\{")


def final_answers(text: str, where: str) -> list[str]:
    """What `text` gives as its final answer, in order; several entries when it gives several. Thoughts before `</think>` are left out.

    `where`: `boxed`, `answer` (between the tags), `math` (last formula between `$…$`, `\\(…\\)` or `\\[…\\]`), `number` (last one), `whole`
    text, or `auto`: the first of boxed, answer, math and number that is there (a box or tag that is opened and not closed is there, and empty).
    """
    said = text.rpartition(END_OF_THOUGHT)[2]
    if where != "auto":
        return PLACES[where](said)
    if BOX.search(said):
        return boxed(said)
    return tagged(said) if "<answer>" in said else last_formula(said) or last_number(said)


def boxed(text: str) -> list[str]:
    """The content of every outermost `\\boxed{…}` or `\\fbox{…}`; a box that is never closed ends the search."""
    found: list[str] = []
    position = 0
    while (start := _next_box(text, position)) is not None:
        end = _closing_brace(text, start)
        if end is None:
            break
        found.append(_unwrapped(text[start + 1 : end]))
        position = end + 1
    return found


def tagged(text: str) -> list[str]:
    """What stands between each `<answer>` and its `</answer>`."""
    found: list[str] = []
    position = 0
    while (start := text.find("<answer>", position)) >= 0 and (end := text.find("</answer>", start)) >= 0:
        found.append(text[start + len("<answer>") : end].strip())
        position = end + len("</answer>")
    return found


def last_formula(text: str) -> list[str]:
    """The content of the formula that closes last, or nothing."""
    spans = [span for opening, closing in (("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$")) for span in _spans(text, opening, closing)]
    spans += _dollar_spans(text)
    return [text[slice(*max(spans, key=lambda span: span[1]))].strip()] if spans else []


def last_number(text: str) -> list[str]:
    """The last number, with its sign, separators, fraction and percent sign: `-1,234.5`, `3/4`, `12%`; in `10-3` it is 3."""
    end = 1 + max(text.rfind(digit) for digit in "0123456789")
    start = end
    while start > max(0, end - MAX_RUN) and (_is_digit(text[start - 1]) or (text[start - 1] in ",./" and start > 1 and _is_digit(text[start - 2]))):
        start -= 1
    if start == end:
        return []
    if start and text[start - 1] == "." and (start == 1 or text[start - 2] in " \n\t-$"):
        start -= 1
    if start and text[start - 1] in "-−" and (start == 1 or not (text[start - 2].isalnum() or text[start - 2] in "._)]")):
        start -= 1
    return [_one_number(text[start:end]) + ("%" if text[end : end + 1] == "%" else "")]


def _one_number(run: str) -> str:
    """The last number of a run of digits, commas, points and slashes: all of `1,234.5`, 3 of `1,2,3`."""
    sign, digits = (run[0], run[1:]) if run[0] in "-−" else ("", run)
    groups = digits.split(",")
    is_thousands = 0 < len(groups[0]) <= 3 and all(len(group.partition(".")[0].partition("/")[0]) == 3 for group in groups[1:])
    if len(groups) > 1 and not is_thousands:
        sign, digits = "", groups[-1]
    if digits.count("/") > 1 or digits.count(".") > 1:
        sign, digits = "", digits.rpartition("/" if "/" in digits else ".")[2]
    return sign + digits


def _is_digit(character: str) -> bool:
    return "0" <= character <= "9"


def _next_box(text: str, position: int) -> int | None:
    """Where the next box's opening brace stands."""
    found = BOX.search(text, position)
    return found.end() - 1 if found else None


def _closing_brace(text: str, start: int) -> int | None:
    """The brace that closes the one at `start`; an escaped brace counts as a character."""
    depth = 0
    for found in BRACE.finditer(text, start):
        depth += (found[0] == "{") - (found[0] == "}")
        if depth == 0 and found[0] == "}":
            return found.start()
    return None


def _unwrapped(content: str) -> str:
    """`5` of `\\boxed{5}`: a box in a box."""
    inner = content.strip()
    start = _next_box(inner, 0) if BOX.match(inner) else None
    return inner[start + 1 : -1].strip() if start is not None and _closing_brace(inner, start) == len(inner) - 1 else inner


def _spans(text: str, opening: str, closing: str) -> Iterator[tuple[int, int]]:
    position = 0
    while (start := text.find(opening, position)) >= 0 and (end := text.find(closing, start + len(opening))) >= 0:
        yield start + len(opening), end
        position = end + len(closing)


def _dollar_spans(text: str) -> list[tuple[int, int]]:
    """Between `$` and `$` where it can be no money: nothing blank inside either sign, no digit after the second, all on one line."""
    found: list[tuple[int, int]] = []
    opened: int | None = None
    for place in (found.start() for found in DOLLAR.finditer(text)):
        before, after = text[place - 1 : place], text[place + 1 : place + 2]
        if before == "$" or after == "$" or before == "\\":
            opened = None
        elif opened is not None and before.strip() and not ("0" <= after <= "9") and "\n" not in text[opened:place]:
            found.append((opened, place))
            opened = None
        else:
            opened = place + 1 if after.strip() else None
    return found


PLACES: dict[str, Callable[[str], list[str]]] = {
    "boxed": boxed,
    "answer": tagged,
    "math": last_formula,
    "number": last_number,
    "whole": lambda text: [text.strip()] if text.strip() else [],
}
"""Ways to find the final answer, by the name they have as the option `extract`."""
