"""Every pair is judged before anything is guessed."""

from pipelines.review.questions import Question, guess_positions, questions


def test_of_many_pairs_one_of_every_tenth_is_guessed_at() -> None:
    places = guess_positions("digest", 200)
    assert [place // 20 for place in places] == list(range(10))
    assert places != guess_positions("another digest", 200)


def test_of_few_pairs_all_are() -> None:
    assert questions("digest", 2) == [Question("preference", 0), Question("preference", 1), Question("guess", 0), Question("guess", 1)]
