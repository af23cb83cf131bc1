import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from grpo_core import reasoning_generation
from grpo_core.reasoning_generation import generated, level, marked
from grpo_core.reasoning_tasks import generate


def exact(value: Any) -> Any:
    """The reader of entries, as it lies in the cell's program."""
    source = (
        Path(reasoning_generation.__file__)
        .with_name("sandbox")
        .joinpath("grading_side.py")
        .read_text()
        .replace('serve(globals()["receive"]', "(lambda *_: 0)(0")
    )
    names: dict[str, Any] = {"send": None}
    exec(source, names)
    return names["exact"](value)


def test_questions_are_different_and_carry_what_their_verifier_needs() -> None:
    made = generate("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}, 30, seed=3)
    assert made.columns == ["prompt", "answer", "task", "difficulty", "reasoning_entry"]
    assert made.height == 30 == made["prompt"].n_unique()
    assert made["task"].unique().to_list() == ["chain_sum"]
    assert made["difficulty"].unique().to_list() == ["num_terms 2-2, num_digits 2-2"]
    recorded = json.loads(made["reasoning_entry"][0])
    assert recorded["config"] == {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}
    assert (recorded["entry"]["question"], recorded["entry"]["answer"]) == (made["prompt"][0], made["answer"][0])


def test_a_longer_table_starts_with_the_shorter_one_and_another_seed_makes_another() -> None:
    short, long, other = (generated("gcd", {}, size, seed)["rows"] for size, seed in ((5, 1), (9, 1), (5, 2)))
    assert long[:5] == short != other


@pytest.mark.parametrize("task", ["isomorphic_strings", "ransom_note"])
def test_tasks_that_go_through_sets_come_out_the_same_in_every_process(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = []
    for hash_seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        tables.append(generate(task, {}, 8, seed=5))
    assert tables[0].equals(tables[1])


@pytest.mark.parametrize(
    ("task", "config", "size", "message"),
    [
        ("chain_sums", {}, 5, "no task 'chain_sums' in reasoning-gym: did you mean 'chain_sum'?"),
        ("composite", {}, 5, "no task 'composite' in reasoning-gym"),
        ("chain_sum", {"min_term": 2}, 5, "reasoning_gym_config.min_term: chain_sum has no such key: did you mean 'min_terms'?"),
        ("chain_sum", {"seed": 2}, 5, "reasoning_gym_config.seed: chain_sum has no such key"),
        ("chain_sum", {"min_terms": 9}, 5, "prompts.reasoning_gym_config: chain_sum does not take {'min_terms': 9}"),
        (
            "chain_sum",
            {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "allow_negation": False},
            1000,
            "prompts.num_generated must be at most",
        ),
    ],
)
def test_mistakes_are_named(task: str, config: dict[str, object], size: int, message: str) -> None:
    assert message in generated(task, config, size, seed=0)["error"]


def test_what_the_script_says_is_raised() -> None:
    with pytest.raises(ValueError, match=r"^prompts\.reasoning_gym: no task 'gdc' in reasoning-gym: did you mean 'gcd'\?$"):
        generate("gdc", {}, 1, seed=0)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install reasoning-gym"):
        generate("gcd", {}, 1, seed=0)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        0.1,
        "text",
        [1, [2, "a"]],
        (1, (2.5, None)),
        {"a": (1, 2), "b": [{"c": ()}]},
        {1: "a", (2, 3): "b"},
        {"set": {1, 2, 3}},
        [],
        {},
    ],
)
def test_entries_come_back_from_json_as_they_were(value: Any) -> None:
    assert exact(json.loads(json.dumps(marked(value)))) == value
    assert repr(exact(json.loads(json.dumps(marked(value))))) == repr(value)


def test_what_cannot_be_written_down_is_refused() -> None:
    with pytest.raises(TypeError, match="put a object into an entry"):
        marked({"a": object()})
    assert marked(OrderedDict(a=1)) == {"a": 1}


@pytest.mark.parametrize(
    ("difficulty", "expected"),
    [
        (None, None),
        (1.0, "1.0"),
        ({"num_terms": (2, 6), "digits": 4}, "num_terms 2-6, digits 4"),
        ({"weights": [0.125] * 8, "n": 3}, "n 3"),
        ({"weights": [0.125] * 8}, None),
    ],
)
def test_difficulty_as_text(difficulty: Any, expected: str | None) -> None:
    assert level(difficulty) == expected
