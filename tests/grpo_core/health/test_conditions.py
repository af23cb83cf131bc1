"""The catalogue of conditions: complete, and in words that lead somewhere."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from grpo_core import config
from grpo_core.config import HealthAction, HealthConfig, RunConfig
from grpo_core.health.conditions import CONDITIONS, EXPLAINS, page_of
from grpo_core.health.rules import CLOCK_RULES, RULES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "health.md").read_text(encoding="utf-8")


def test_every_condition_of_the_configuration_is_in_the_catalogue_and_has_a_rule() -> None:
    assert tuple(CONDITIONS) == config.CONDITIONS
    assert set(RULES) | set(CLOCK_RULES) == set(CONDITIONS) - {"non_finite"}, "a step that is not finite ends before a rule could look at it"
    assert not set(RULES) & set(CLOCK_RULES)
    assert tuple(CLOCK_RULES) == config.BY_THE_CLOCK
    assert set(config.ADJUSTABLE) <= set(RULES)


def test_what_is_done_unless_the_user_says_otherwise_may_be_said() -> None:
    for name, condition in CONDITIONS.items():
        assert condition.action in get_args(HealthAction)
        HealthConfig(actions={name: condition.action})
    assert {condition.action for name, condition in CONDITIONS.items() if name in CLOCK_RULES} == {"warn"}
    assert "adjust" not in {condition.action for condition in CONDITIONS.values()}, "a run that nobody asked to be adjusted is what its settings say"


def test_only_what_is_grave_halts_unasked_and_it_stays_open() -> None:
    for name, condition in CONDITIONS.items():
        assert condition.action != "halt" or (condition.severity == "alarm" and condition.stays_open), name


def test_every_condition_has_a_heading_of_its_name_on_its_page() -> None:
    headings = re.findall(r"^#+ (\w+)$", PAGE, re.MULTILINE)
    assert [heading for heading in headings if heading in CONDITIONS] == list(CONDITIONS)
    assert {page_of(name) for name in CONDITIONS} == {f"docs/health.md#{heading}" for heading in headings if heading in CONDITIONS}


def test_the_page_speaks_of_every_setting() -> None:
    assert [f.name for f in fields(HealthConfig) if not re.search(rf"`(health\.)?{f.name}`", PAGE)] == []


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_remedy_names_settings_that_there_are(name: str) -> None:
    sections = {f.name: {g.name for g in fields(f.default_factory)} for f in fields(RunConfig) if hasattr(f.default_factory, "__dataclass_fields__")}  # type: ignore[arg-type]  # sections are classes
    named = re.findall(rf"\b({'|'.join(sections)})\.(\w+)", CONDITIONS[name].remedy)
    assert [(section, key) for section, key in named if key not in sections[section]] == []
    for path in re.findall(r"docs/\w+\.md", CONDITIONS[name].remedy):
        assert (ROOT / path).is_file()


def test_causes_are_looked_at_before_what_they_explain() -> None:
    order = list(RULES)
    assert set(EXPLAINS) | {name for names in EXPLAINS.values() for name in names} <= set(CONDITIONS)
    for cause, consequences in EXPLAINS.items():
        assert cause not in consequences
        for consequence in consequences:
            # Of two that explain each other, the one looked at first is named.
            known = cause == "non_finite" or cause in EXPLAINS.get(consequence, ())
            assert known or order.index(cause) < order.index(consequence), f"{consequence} would be raised in the same step as {cause}"
