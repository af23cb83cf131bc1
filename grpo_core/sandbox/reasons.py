"""Why something earned nothing, as text that may hold words of a program or an answer."""

MAX_REASON = 180
"""Characters of a reason, at most."""


def plain(said: str) -> str:
    """`said` as one short line that can be printed and written to any table, whatever it was."""
    text = " ".join(said[: 4 * MAX_REASON].encode("utf-8", "replace").decode().split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"
