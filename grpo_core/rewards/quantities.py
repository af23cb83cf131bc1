"""Numbers as people write them (`$1,234.50`, `\\frac{3}{4}`, `1\\frac{1}{2}`, `1.5\\times10^{3}`, `12\\%`, `5 meters`), read without any parser."""

import re
from dataclasses import dataclass, replace
from fractions import Fraction

PLAIN = re.compile(
    r"([+-]?)\s*([$£€]?)\s*([+-]?)((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:[eE]([+-]?[0-9]{1,3})|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*([+-]?[0-9]{1,3})\s*\}|([0-9])))?\s*([$£€]?)",
    re.ASCII,
)
LATEX_FRACTION = re.compile(
    r"([+-]?)\s*([0-9]*)\s*\\frac\s*(?:\{\s*([+-]?[0-9,]+)\s*\}\s*\{\s*([0-9,]+)\s*\}|([0-9])\s*([0-9])|([0-9])\s*\{\s*([0-9]+)\s*\})", re.ASCII
)
FRACTION = re.compile(r"([+-]?)\s*(?:([0-9]+)\s+)?([0-9,]+)\s*/\s*([0-9,]+)", re.ASCII)
PERCENT = re.compile(r"\s*(?:\\?%|\\text\{\s*(?:percent|percentage)\s*\}|\b(?:percent|percentage|pct)\b)\s*", re.ASCII | re.IGNORECASE)
TEXT_UNIT = re.compile(r"\s*\\text\{([^{}\\]{1,60})\}\s*(?:\^\s*\{?\s*[23]\s*\}?)?", re.ASCII)
WORD_UNIT = re.compile(r"\s*([A-Za-z][A-Za-z./ -]{0,60})(?:\^\{?[23]\}?)?", re.ASCII)

WORD = re.compile(r"[^\W\d_]{2,}")
LETTER_UNITS = frozenset("mgshLlNJWVKCF")
NO_UNITS = frozenset(
    (
        *("hundred", "thousand", "million", "billion", "trillion", "dozen", "score", "half", "halves", "third", "thirds", "quarter", "quarters"),
        *("fourth", "fourths", "fifth", "fifths", "sixth", "sixths", "eighth", "eighths", "tenth", "tenths", "hundredths", "thousandths"),
        *("percent", "percentage", "pct", "squared", "cubed", "square", "root", "factorial", "mod", "base", "power", "times", "plus", "minus", "over"),
        *("divided", "pi", "infinity", "inf", "nan", "and", "or", "to", "not", "no", "none", "if", "but", "less", "more", "than", "is"),
        *("sin", "cos", "tan", "log", "ln", "exp", "sqrt", "pairs", "pair", "couple", "twice", "double", "triple", "negative", "approximately", "about"),
    )
)
"""Words that change a number, or say something else of it, so that it cannot do without them."""
SAME_UNITS = (
    *("cm|centimeter|centimetre", "mm|millimeter|millimetre", "km|kilometer|kilometre", "m|meter|metre", "in|inch|inche", "ft|foot|feet", "yd|yard"),
    *("mi|mile", "mg|milligram", "g|gram", "kg|kilogram", "lb|lbs|pound", "oz|ounce", "ton|tonne", "ml|milliliter|millilitre", "l|liter|litre"),
    *("h|hr|hour", "min|minute", "s|sec|second", "day", "week", "month", "year|yr", "$|dollar|usd", "€|euro|eur", "£", "cent", "mph|mile per hour"),
    *("km/h|kmh|kilometer per hour", "degree|deg|°", "radian|rad"),
)
"""Known units, each under all its names (singular, in lower case), the first of which it is called by."""
KNOWN_UNITS = {name: names.split("|")[0] for names in SAME_UNITS for name in names.split("|")}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number, exact, and how it was written."""

    value: Fraction
    is_percent: bool = False
    has_point: bool = False
    """Written as a decimal fraction: possibly rounded."""
    unit: str = ""
    """The unit's one name where it is a known one."""


def quantity(text: str, *, is_reference: bool = False) -> Quantity | None:
    """The number that `text` (tidied) is, or None when it is anything else. A single letter after a reference is a variable, not a unit."""
    text = text.strip()
    if (bare := _bare(text)) is not None:
        return bare
    for ending in (PERCENT, TEXT_UNIT, WORD_UNIT):
        if (found := _at_end(ending, text)) and (bare := _bare(text[: found.start()].strip())) is not None:
            if ending is PERCENT:
                return replace(bare, is_percent=True)
            if ending is WORD_UNIT and len(found[0]) == 2 and not unit_of(found[1]):
                return None  # `5xy` is a product
            return _with_unit(bare, found[1], letters=not is_reference or ending is TEXT_UNIT)
    return None


def are_equal(reference: Quantity, found: Quantity) -> bool:
    """Whether `found` is the number `reference`.

    Exactly, but for a fraction against a decimal one, which need only agree to six decimals and one part in ten thousand (1/3 and 0.333333).
    Percentages are their hundredths, or their number where one of both left the sign out (12% and 12). Known units must not contradict.
    """
    if reference.unit and found.unit and reference.unit != found.unit:
        return False
    if reference.is_percent != found.is_percent:
        percent, other = (reference, found) if reference.is_percent else (found, reference)
        return _agree(reference, found, percent.value / 100, other.value) or (percent.value == other.value and abs(percent.value) >= 1)
    return _agree(reference, found, reference.value, found.value)


def _agree(reference: Quantity, found: Quantity, one: Fraction, other: Fraction) -> bool:
    if one == other:
        return True
    if reference.has_point == found.has_point or 1 in (one.denominator, other.denominator):
        return False
    return round(one, 6) == round(other, 6) and abs(one - other) <= abs(one) / 10_000


def unit_of(words: str) -> str:
    """The one name of a known unit; empty for any other word."""
    name = " ".join(words.replace(".", " ").split())
    for spelling in (name, name.lower(), " ".join(word.removesuffix("s") for word in name.lower().split())):
        if spelling in KNOWN_UNITS:
            return KNOWN_UNITS[spelling]
    return ""


def _with_unit(bare: Quantity, words: str, *, letters: bool) -> Quantity | None:
    """With a known unit, or one of words; what an operator joins is a formula unless it is a known unit. A lone letter is one where `letters` are."""
    known, parts = unit_of(words), words.replace(".", " ").split()
    if not parts or any(part.lower() in NO_UNITS for part in re.split("[ /-]", " ".join(parts))):
        return None
    if len(words.strip()) == 1 and not (letters and words.strip() in LETTER_UNITS):
        return None
    if not known and len(words.strip()) > 1 and not all(WORD.fullmatch(part) for part in parts):
        return None
    return replace(bare, unit=known or bare.unit)


def _at_end(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The match that reaches the end of `text`; texts are short."""
    return next((found for found in pattern.finditer(text) if found.end() == len(text)), None)


def _bare(text: str) -> Quantity | None:
    """A number without percent sign and unit; a currency sign is a unit."""
    if found := PLAIN.fullmatch(text):
        first, before, second, digits, *exponents, after = found.groups()
        if (first and second) or (before and after):
            return None
        exponent = int(next((e for e in exponents if e), "0"))
        value = Fraction(digits.replace(",", "").rstrip(".")) * Fraction(10) ** exponent
        return Quantity(-value if "-" in first + second else value, has_point="." in digits or exponent < 0, unit=unit_of(before or after))
    for pattern in (LATEX_FRACTION, FRACTION):
        if found := pattern.fullmatch(text):
            sign, whole, *parts = found.groups()
            top, bottom = (int(part.replace(",", "") or "0") for part in parts if part is not None)
            return _mixed(sign, whole, top, bottom)
    return None


def _mixed(sign: str, whole: str | None, top: int, bottom: int) -> Quantity | None:
    if bottom == 0 or (whole and top < 0):
        return None
    value = int(whole or "0") + Fraction(top, bottom)
    return Quantity(-value if sign == "-" else value)
