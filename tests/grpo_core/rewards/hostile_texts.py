"""Completions that a model might write to hang or break what reads them, each about a megabyte unless its trick needs less."""

HOSTILE: dict[str, str] = {
    "empty": "",
    "one word of a megabyte": "a" * 1_000_000,
    "a phrase inside a longer word, again and again": "as an ai language models" * 40_000,
    "deep nesting": "<think>" * 140_000 + "(" * 10_000,
    "tags that never close": "<answer>" * 120_000,
    "tags that close again and again": "<think>" + "</think>" * 120_000,
    "white space without end": "<think></think>" + " \t\n" * 330_000 + "!",
    "null bytes": "\0" * 500_000 + "42\0",
    "lone surrogates": "\ud800\udfff\udc00" * 100_000,
    "accents in the order that costs most to sort": "a" + "\u0301\u0327" * 250_000,
    "accents that hide as letters": "a" + "\u0f73\u0301\uff9e" * 150_000,
    "letters that grow eighteenfold": "\ufdfa" * 20_000,
    "right to left, invisible": "\u202e\u2066\u200b42\u2069\u202c" * 60_000,
    "every number there is": " ".join(map(str, range(150_000))),
    "digits without end": "0123456789" * 100_000,
}
