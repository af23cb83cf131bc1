"""Experiments put into params.yaml and taken out again: every other byte stays."""

import pytest
from ruamel.yaml import YAML

from grpo_core.requirements import ConfigError
from pipelines.params import ROOT
from pipelines.params_file import with_experiments

NEW = {"a-1": {"grpo": {"group_size": 4, "clip_low": 0.1}}, "a-2": {"rollout": {"temperature": 0.7}, "rewards": {"mine.x:y": 1.0, "a: b": 2}}}
TEXTS = {
    "the shipped file": (ROOT / "params.yaml").read_text(encoding="utf-8"),
    "experiments last": "x: 1  # one\n\n# Names\nexperiments:\n  default: {}\n  # small_groups:\n  #   grpo: {group_size: 4}\n",
    "sections after them": "experiments:\n  default: {}  # the base\n  # mine\n\n# The loop\ngrpo:\n  steps: 3  # few\n",
    "an experiment of several lines": "experiments:\n  default: {}\n\n  other:\n    grpo:\n      steps: 3  # few\n\n# The loop\ngrpo: {steps: 4}\n",
    "wider indentation": "experiments:\n    default: {}\n    other: {}\nmodel: {}\n",
}


def read(text: str) -> dict[str, object]:
    return dict(YAML(typ="safe", pure=True).load(text)["experiments"])


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_is_added_is_there_and_taking_it_out_gives_the_same_bytes(text: str) -> None:
    more = with_experiments(text, NEW)
    assert read(more) == {**read(text), **NEW}
    assert list(read(more))[-2:] == ["a-1", "a-2"]
    assert with_experiments(more, {}, NEW) == text


def test_arms_stand_behind_the_last_experiment_a_line_each() -> None:
    lines = with_experiments(TEXTS["sections after them"], NEW).splitlines()
    assert lines == [
        "experiments:",
        "  default: {}  # the base",
        "  a-1: {grpo: {group_size: 4, clip_low: 0.1}}",
        "  a-2: {rollout: {temperature: 0.7}, rewards: {mine.x:y: 1.0, 'a: b': 2}}",
        "  # mine",
        "",
        "# The loop",
        "grpo:",
        "  steps: 3  # few",
    ]


def test_comments_between_experiments_stay() -> None:
    text = "experiments:\n  default: {}\n  # a comment of b\n  b:\n    grpo: {steps: 3}\n  # and of c\n  c: {}\n"
    assert with_experiments(text, {"d": {}}, ["c"]) == ("experiments:\n  default: {}\n  # a comment of b\n  b:\n    grpo: {steps: 3}\n  # and of c\n  d: {}\n")


def test_experiments_in_one_pair_of_braces_are_refused() -> None:
    with pytest.raises(ConfigError, match="write each on a line of its own"):
        with_experiments("experiments: {default: {}}\n", NEW)
