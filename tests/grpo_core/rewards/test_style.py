import time
from typing import Any

import pytest

from grpo_core.rewards.outcomes import RewardError
from grpo_core.rewards.style import BOILERPLATE, boilerplate_penalty, repetition_penalty, soft_overlong
from tests.grpo_core.rewards.hostile_texts import HOSTILE


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, 0), (16384, 0), (16385, -1 / 4096), (17408, -0.25), (18432, -0.5), (20479, -4095 / 4096), (20480, -1), (20481, -1), (10**9, -1)],
)
def test_soft_overlong_at_the_lengths_of_dapo(length: int, expected: float) -> None:
    """Sec. 4.1: 16,384 tokens are free, 4,096 more are the soft punishment cache."""
    assert soft_overlong([""], [length], max_tokens=20480, buffer_tokens=4096) == [expected]


@pytest.mark.parametrize(("length", "expected"), [(50, 0), (80, 0), (90, -0.5), (100, -1), (110, -1)])
def test_soft_overlong_agrees_with_the_published_cases_of_trl(length: int, expected: float) -> None:
    assert soft_overlong([""], [length], max_tokens=100, buffer_tokens=20) == [expected]


@pytest.mark.parametrize(("max_tokens", "buffer_tokens"), [(10, 11), (10, 0), (0, 0), (10, -1)])
def test_soft_overlong_refuses_a_buffer_that_is_no_part_of_the_most(max_tokens: Any, buffer_tokens: Any) -> None:
    with pytest.raises(RewardError, match="soft_overlong: buffer_tokens must be a whole number between 1 and max_tokens"):
        soft_overlong([""], [5], max_tokens=max_tokens, buffer_tokens=buffer_tokens)


def repeated(text: str, ngram: int = 3, **options: Any) -> float:
    (value,) = repetition_penalty([text], [[]], ngram=ngram, **options)
    assert value is not None
    return value


@pytest.mark.parametrize(
    ("text", "ngram", "expected"),
    [
        # The published cases of open-r1's get_repetition_penalty_reward, its max_penalty being the weight here.
        ("this is a test sentence", 2, 0),
        ("this this this this this", 2, -0.75),
        ("this is a this is a test", 2, -1 / 3),
        ("this is a test", 3, 0),
        ("test test test test", 3, -0.5),
        ("", 2, 0),
        ("this is a this is a test", 3, -0.2),
        ("This is A Test", 2, 0),
        ("word", 3, 0),
        ("two words", 3, 0),
        ("three different words", 3, 0),
        ("one two one two", 3, 0),
        ("A B C A B", 3, 0),
        ("A B C A B C", 3, -0.25),
        ("A B C A B C E F G A B C A B C", 3, -5 / 13),
        ("A B C D E F G H I J K L", 3, 0),
        # Case is no difference.
        ("this IS this is THIS is", 2, -0.6),
    ],
)
def test_the_share_of_repeated_ngrams(text: str, ngram: int, expected: float) -> None:
    assert repeated(text, ngram) == pytest.approx(expected)


def test_text_without_spaces_is_read_by_characters_or_tokens() -> None:
    assert repeated("\u54c8\u54c8\u54c8\u54c8\u54c8", 3) == 0  # one word
    assert repeated("\u54c8\u54c8\u54c8\u54c8\u54c8", 3, unit="characters") == pytest.approx(-2 / 3)
    assert repeated("1 2 3\n1 2 3", 3, unit="characters") == -0.25
    assert repetition_penalty(["", ""], [[7, 8, 9, 7, 8, 9], [7, 8]], unit="tokens") == [-0.25, 0]


def test_leaving_out_the_spaces_hides_no_repetition() -> None:
    assert repeated("loop" * 1000) < -0.9
    assert repeated("loop " * 1000) < -0.9


def test_a_repetition_that_cannot_be_measured_is_refused_by_name() -> None:
    with pytest.raises(RewardError, match=r"repetition_penalty\.ngram must be at least 1, got 0"):
        repeated("a", 0)
    with pytest.raises(RewardError, match="unit must be one of words, characters, tokens, got 'word': did you mean 'words'"):
        repeated("a", unit="word")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("As an AI language model, I cannot have opinions.", -1),
        ("The answer is 4.\n\nI hope  this\nhelps!", -1),
        ("That\u2019s a great question. It is 4.", -1),
        ("as an\u200b A\u00adI language model", -1),
        ("\uff29 hope this helps", -1),
        ("I hope this helps. I hope this helps.", -1),
        ("The answer is 4.", 0),
        ("This helps, I hope.", 0),
        ("as an AI language modeller", 0),
        ("", 0),
    ],
)
def test_a_phrase_of_boilerplate_costs_one(text: str, expected: float) -> None:
    assert boilerplate_penalty([text, [{"role": "assistant", "content": text}]]) == [expected, expected]


def test_every_phrase_of_the_list_is_found() -> None:
    assert boilerplate_penalty(list(BOILERPLATE)) == [-1] * len(BOILERPLATE)


def test_own_phrases_take_the_place_of_the_list() -> None:
    assert boilerplate_penalty(["In conclusion, 4.", "I hope this helps"], phrases=["in conclusion"]) == [-1, 0]
    with pytest.raises(RewardError, match=r"boilerplate_penalty.phrases must hold a phrase, got \[' '\]; leave it out for the built-in list"):
        boilerplate_penalty(["a"], phrases=[" "])


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_seconds_at_most_and_stays_within_the_range(name: str) -> None:
    start = time.process_time()
    text = HOSTILE[name]
    values = [
        *boilerplate_penalty([text]),
        *repetition_penalty([text], [list(range(len(text)))]),
        *repetition_penalty([text], [[]], unit="characters", ngram=10),
        *repetition_penalty([text], [[1] * len(text)], unit="tokens"),
    ]
    assert all(value is not None and -1 <= value <= 0 for value in values)
    assert time.process_time() - start < 10
