import time

import pytest

from grpo_core.rewards.normal_text import normal_text, phrase_end
from tests.grpo_core.rewards.hostile_texts import HOSTILE


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("  As\tAN\n\nAI ", "as an ai"),
        ("caf\u0065\u0301", "Caf\u00e9"),
        ("\uff14\uff12", "42"),
        ("STRASSE", "stra\u00dfe"),
        ("New\u00a0York", "new york"),
        ("as an\u200b A\u00adI", "as an ai"),
        ("that\u2019s \u201cit\u201d", 'that\'s "it"'),
        ("10 \u2212 3", "10 - 3"),
        ("\u202e42\u202c", "42"),
    ],
)
def test_spellings_of_one_text_have_one_normal_form(text: str, same: str) -> None:
    assert normal_text(text) == normal_text(same)


def test_an_accent_tells_words_apart() -> None:
    assert normal_text("resume") != normal_text("r\u00e9sum\u00e9")


@pytest.mark.parametrize(
    ("text", "phrase", "end"),
    [
        ("as an ai model", "as an ai", 8),
        ("as an aim, as an ai", "as an ai", 19),
        ("5+4=9", "5+4=9", 5),
        ("15+4=9", "5+4=9", -1),
        ("5+4=91", "5+4=9", -1),
        ("5+4=9.5", "5+4=9", -1),
        ("5+4=9. 5 more", "5+4=9", 5),
        ("2.5+4", "5+4", -1),
        ("1,234", "234", -1),
        ("5+4=9;3+1", "3+1", 9),
        ("cafe\u0301", "cafe", -1),
        ("\u56e0\u6b64\u7b54\u6848\u662f", "\u7b54\u6848", 4),  # Chinese has no spaces
        ("\u043a\u043e\u0442\u043e\u0440\u044b\u0439", "\u043a\u043e\u0442", -1),  # Russian has
        ("", "a", -1),
    ],
)
def test_a_phrase_is_found_but_not_inside_a_longer_word_or_number(text: str, phrase: str, end: int) -> None:
    assert phrase_end(text, phrase) == end


def test_a_phrase_is_looked_for_from_a_place_on() -> None:
    assert phrase_end("a b a b", "a b", 3) == 7
    assert phrase_end("a b a b", "a b", 5) == -1


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_seconds_at_most(name: str) -> None:
    start = time.process_time()
    phrase_end(normal_text(HOSTILE[name]), "as an ai language model")
    assert time.process_time() - start < 5
