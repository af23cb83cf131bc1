"""Text in a form that tells no spellings apart, and phrases found in it; both take time in proportion to the text, whatever the text is."""

import re
import unicodedata

INVISIBLE = "\u00ad\u034f\u061c\u180e\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2061\u2062\u2063\u2064\u2066\u2067\u2068\u2069\ufeff"
"""Characters that show nothing: soft hyphens, joiners and marks of direction, with which a phrase could be hidden."""
TYPED = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "−": "-", "‐": "-", "‑": "-"} | dict.fromkeys(INVISIBLE))
"""Typographic quotes, minus and hyphens as they are typed; invisible characters left out."""
UNSPACED = "\u0e00"
"""Scripts from Thai on (Chinese, Japanese, ...) write words without spaces, so a word may begin anywhere."""
NUMBER_BEGINS = re.compile(r"\d[.,]?\Z")
NUMBER_GOES_ON = re.compile(r"[.,]?\d")


def normal_text(text: str) -> str:
    """`text` with compatible characters made one (NFKD), case folded, white space single, what is invisible gone.

    Characters are decomposed one by one: normalising a text at once sorts its accents, in time quadratic in their number.
    """
    if not text.isascii():
        text = "".join([unicodedata.normalize("NFKD", character) for character in text.translate(TYPED)])
    return " ".join(text.casefold().split())


def phrase_end(text: str, phrase: str, start: int = 0) -> int:
    """Where the first `phrase` at or after `start` ends, or -1. Both are normal texts; a part of a longer word or number does not count."""
    at = text.find(phrase, start)
    while at >= 0:
        end = at + len(phrase)
        if not _goes_on(text, at) and not _goes_on(text, end):
            return end
        at = text.find(phrase, at + 1)
    return -1


def _goes_on(text: str, at: int) -> bool:
    """Whether a word or a number stands across `at`."""
    before, after = text[max(0, at - 2) : at], text[at : at + 2]
    if not before or not after:
        return False
    one_word = before[-1].isalnum() and after[0].isalnum() and max(before[-1], after[0]) < UNSPACED
    return one_word or bool(unicodedata.combining(after[0])) or _is_one_number(before, after)


def _is_one_number(before: str, after: str) -> bool:
    whole, fraction = before[-1].isdigit(), after[0].isdigit()
    return bool((whole and NUMBER_GOES_ON.match(after)) or (fraction and NUMBER_BEGINS.search(before)))
