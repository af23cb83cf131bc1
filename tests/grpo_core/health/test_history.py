import pytest

from grpo_core.health.history import History, mean, median


def history(*metrics: dict[str, float], first: int = 0) -> History:
    made = History()
    for step, line in enumerate(metrics, start=first):
        made.append(step, line)
    return made


KL = history({}, {"kl": 1.0}, {"kl": 2.0}, {"other": 9.0}, {"kl": 4.0})


def test_the_newest_step_and_the_one_before_it() -> None:
    assert KL.step == 4
    assert KL.now("kl") == 4.0
    assert KL.now("other") is None
    assert (KL.before("kl"), KL.before("other")) == (None, 9.0), "step 3 lacks kl: an older one is no stand-in"
    assert history({"kl": 1.0}).before("kl") is None


@pytest.mark.parametrize(
    ("count", "ending", "expected"),
    [(1, 0, [4.0]), (2, 0, [4.0]), (3, 0, [2.0, 4.0]), (99, 0, [1.0, 2.0, 4.0]), (2, 2, [1.0, 2.0]), (2, 4, []), (2, 9, [])],
)
def test_the_last_values_are_those_of_so_many_steps(count: int, ending: int, expected: list[float]) -> None:
    assert KL.last("kl", count, ending=ending) == expected


def test_a_series_knows_its_steps() -> None:
    assert KL.series("kl") == [(1, 1.0), (2, 2.0), (4, 4.0)]
    assert list(KL.series("none")) == []
    assert history({"kl": 1.0}, {"kl": 2.0}, first=7).series("kl") == [(7, 1.0), (8, 2.0)]


@pytest.mark.parametrize(
    ("values", "count", "expected"),
    [
        ([3.0, 3.0], 2, True),
        ([0.0, 3.0, 3.0], 2, True),
        ([3.0, 2.0], 2, False),  # at the threshold is not above it
        ([3.0, 0.0, 3.0], 2, False),
        ([3.0], 2, False),
        ([None, 3.0], 2, False),  # a step that lacks the metric does not hold it
        ([3.0, None], 1, False),
    ],
)
def test_a_metric_is_held_only_above_the_threshold_at_every_one_of_the_newest_steps(values: list[float | None], count: int, expected: bool) -> None:
    assert history(*({} if value is None else {"kl": value} for value in values)).held(count, "kl", above=2.0) is expected


def test_mean_and_median() -> None:
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert median([9.0, 1.0, 2.0]) == 2.0
    assert median([9.0, 1.0, 2.0, 4.0]) == 2.0, "the lower one of two"


def test_the_means_of_windows_grow_with_the_log() -> None:
    history = History()
    for step, reward in enumerate([1.0, 3.0, 8.0, 1.0]):
        history.append(step, {"reward": reward} if step != 1 else {})
        assert list(history.window_means("reward", 2)) == [[], [], [4.5], [4.5, 4.5]][step]
    assert list(history.window_means("reward", 3)) == [10 / 3]
    assert list(history.window_means("none", 2)) == []
