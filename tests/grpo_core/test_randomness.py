import pytest

from grpo_core.randomness import epoch_indices, generator, permutation, uniforms

PINNED_UNIFORMS = [0.8376627367555018, 0.1716932535715956, 0.4187017388086641]
PINNED_ORDER = [1, 2, 0, 4, 3]


def test_a_key_names_the_same_numbers_on_every_machine() -> None:
    assert uniforms(3, 0, "rollout", 1, "ab12", 0).tolist() == PINNED_UNIFORMS
    assert permutation(5, 0, "minibatches", 1, 0) == PINNED_ORDER


def test_the_first_numbers_do_not_depend_on_how_many_are_drawn() -> None:
    long = uniforms(100, 7, "rollout", 3).tolist()
    for length in (0, 1, 2, 44, 99):
        assert uniforms(length, 7, "rollout", 3).tolist() == long[:length]


def test_uniforms_lie_in_0_to_1_and_are_spread_evenly() -> None:
    numbers = uniforms(20_000, 0, "spread")
    assert numbers.min() >= 0 and numbers.max() < 1
    shares = [float(((numbers >= low / 4) & (numbers < (low + 1) / 4)).mean()) for low in range(4)]
    assert shares == pytest.approx([0.25] * 4, abs=0.012)  # four standard deviations


@pytest.mark.parametrize("other", [(1, "a", 2), (0, "b", 2), (0, "a", 3), (0, "a"), (0, "a", 2, 0), (0, "a2"), (0, "a", "b", 2)])
def test_every_part_of_a_key_matters(other: tuple[object, ...]) -> None:
    assert uniforms(4, *other).tolist() != uniforms(4, 0, "a", 2).tolist()


def test_streams_do_not_touch_each_other() -> None:
    first, second = generator(0, "a"), generator(0, "b")
    mixed = [first.random(), second.random(), first.random()]
    assert [mixed[0], mixed[2]] == uniforms(2, 0, "a").tolist()


@pytest.mark.parametrize("length", [1, 2, 7, 50])
def test_an_epoch_goes_through_every_item_once(length: int) -> None:
    places = epoch_indices(length, 0, 3 * length, (0, "prompts"))
    for epoch in range(3):
        assert sorted(places[epoch * length : (epoch + 1) * length]) == list(range(length))


def test_the_next_epoch_has_another_order_and_so_has_another_seed() -> None:
    places = epoch_indices(50, 0, 100, (0, "prompts"))
    assert places[:50] != places[50:]
    assert places[:50] != list(range(50))
    assert places[:50] != epoch_indices(50, 0, 50, (1, "prompts"))


@pytest.mark.parametrize("size", [1, 3, 7, 16])
def test_where_one_starts_reading_changes_nothing(size: int) -> None:
    whole = epoch_indices(7, 0, 48, (0, "prompts"))
    parts = [epoch_indices(7, start, size, (0, "prompts")) for start in range(0, 48 - size + 1, size)]
    assert [place for part in parts for place in part] == whole[: size * len(parts)]


def test_a_batch_may_be_larger_than_an_epoch() -> None:
    assert epoch_indices(3, 2, 8, (0, "prompts")) == epoch_indices(3, 0, 10, (0, "prompts"))[2:]
