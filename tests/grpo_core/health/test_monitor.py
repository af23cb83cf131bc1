"""How alarms open, go on and close, what is done about them, and that the log alone decides."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import pytest

from grpo_core.config import ADJUSTABLE, HealthAction, HealthConfig, RunConfig, ScoringConfig
from grpo_core.health.adjustment import adjustment, changes_steps
from grpo_core.health.conditions import CONDITIONS, EXPLAINS, page_of
from grpo_core.health.history import History
from grpo_core.health.measures import Facts, Found
from grpo_core.health.monitor import Alarm, Monitor, alarm_of, alarms_json, diagnose
from grpo_core.health.rules import CLOCK_RULES, RULES, Rule
from tests.tiny_run import REWARD, tiny_config
from tests.troubled_logs import SETTINGS, TROUBLES, Trouble, lines

FACTS = Facts(full_marks=1.0, reward_range=1.0, batch_size=128, dtype="float32")
SETTING: dict[str, float] = {"beta": 0.5, "max_grad_norm": 1.0}
WAVERS, STAYS = "truncation", "reward_outlier"
"""A condition whose alarm closes, and one whose alarm stays open."""


def holds_where_it_stands(name: str, since: int | None = None) -> Rule:
    """A rule of a metric that has the condition's own name."""

    def rule(history: History, settings: HealthConfig, facts: Facts) -> Found | None:
        value = history.now(name)
        return None if value is None else Found(f"{name} is {value:g}", {name: value}, since)

    return rule


def monitor(*names: str, since: int | None = None, **settings: Any) -> Monitor:
    return Monitor(HealthConfig(**{"patience": 2, **settings}), FACTS, {name: holds_where_it_stands(name, since) for name in names or (WAVERS,)})


def test_there_are_conditions_of_both_kinds() -> None:
    assert (CONDITIONS[WAVERS].stays_open, CONDITIONS[STAYS].stays_open) == (False, True)


def told(made: Monitor, *held: Sequence[str]) -> list[list[str]]:
    """The conditions raised at each step, from step 1 on, in which these hold."""
    return [[alarm.condition for alarm in made.observe(step, SETTING | {name: float(step) for name in names})] for step, names in enumerate(held, start=1)]


def spans(made: Monitor) -> list[tuple[str, int, int, bool]]:
    return [(alarm.condition, alarm.first_step, alarm.last_step, alarm.open) for alarm in made.alarms]


# ------------------------------------------------------------------------------------------------------- the life of an alarm


def test_an_alarm_is_raised_once_and_goes_on_as_long_as_its_condition_holds() -> None:
    made = monitor()
    assert told(made, [], [WAVERS], [WAVERS], [WAVERS]) == [[], [WAVERS], [], []]
    (alarm,) = made.alarms
    assert (alarm.first_step, alarm.last_step, alarm.open) == (2, 4, True)
    assert (alarm.message, alarm.evidence) == (f"{WAVERS} is 2", {WAVERS: 2.0}), "it keeps what was seen when it was raised"
    assert made.open_alarms == made.alarms


@pytest.mark.parametrize("patience", [1, 2, 5])
def test_an_alarm_closes_when_its_condition_is_gone_for_longer_than_patience(patience: int) -> None:
    made = monitor(patience=patience)
    told(made, [WAVERS], *[[]] * patience)
    assert spans(made) == [(WAVERS, 1, 1, True)]
    made.observe(patience + 2, {})
    assert spans(made) == [(WAVERS, 1, 1, False)]
    assert made.open_alarms == []


def test_a_condition_that_comes_back_soon_is_the_same_alarm_and_a_later_one_another() -> None:
    made = monitor(patience=2, window=2)
    raised = told(made, [WAVERS], [], [], [], [WAVERS], [], [], [], [], [WAVERS])
    assert [step for step, names in enumerate(raised, start=1) if names] == [1, 10], "two windows are four steps"
    assert spans(made) == [(WAVERS, 1, 5, False), (WAVERS, 10, 10, True)]


def test_what_stays_open_is_not_undone_by_good_steps_and_not_told_twice() -> None:
    made = monitor(STAYS, patience=1)
    assert told(made, [STAYS], *[[]] * 6, [STAYS], []) == [[STAYS], *[[]] * 8]
    assert spans(made) == [(STAYS, 1, 8, True)]


def test_the_evaluation_before_training_raises_nothing() -> None:
    made = monitor()
    assert made.observe(0, {WAVERS: 1.0}) == []
    assert made.observe(1, {}) == []
    assert made.history.steps == [0, 1]


def test_an_accepted_alarm_is_told_and_listed_and_neither_open_nor_acting() -> None:
    condition = ADJUSTABLE[0]
    acting: Mapping[str, HealthAction] = {condition: "adjust", STAYS: "halt"}
    made = monitor(condition, STAYS, actions=acting, acknowledged={condition: "a test", STAYS: "so be it"})
    assert told(made, [condition, STAYS], [condition]) == [[condition, STAYS], []]
    assert [(alarm.acknowledged, alarm.action, alarm.open, alarm.adjustment) for alarm in made.alarms] == [
        ("a test", "warn", False, {}), ("so be it", "warn", False, {}),
    ]  # fmt: skip
    assert made.alarms[0].last_step == 2


# ---------------------------------------------------------------------------------------------------- causes and consequences

CAUSE = "low_diversity"
CONSEQUENCE = EXPLAINS[CAUSE][0]


def test_a_consequence_is_not_raised_beside_its_cause() -> None:
    made = monitor(CAUSE, CONSEQUENCE, patience=2)
    assert told(made, [CAUSE, CONSEQUENCE], [CONSEQUENCE], [CONSEQUENCE]) == [[CAUSE], [], []]
    assert told_from(made, 4, [CONSEQUENCE]) == [CONSEQUENCE], "once the cause is gone for longer than patience it is news"
    assert [alarm.condition for alarm in made.alarms] == [CAUSE, CONSEQUENCE]


def told_from(made: Monitor, step: int, names: Sequence[str]) -> list[str]:
    return [alarm.condition for alarm in made.observe(step, SETTING | dict.fromkeys(names, 1.0))]


def test_an_alarm_that_was_there_before_its_cause_goes_on() -> None:
    made = monitor(CAUSE, CONSEQUENCE)
    assert told(made, [CONSEQUENCE], [CAUSE, CONSEQUENCE], [CONSEQUENCE]) == [[CONSEQUENCE], [CAUSE], []]
    assert spans(made) == [(CONSEQUENCE, 1, 3, True), (CAUSE, 2, 2, True)]


def test_an_accepted_cause_explains_as_well() -> None:
    made = monitor(CAUSE, CONSEQUENCE, acknowledged={CAUSE: "a test"})
    assert told(made, [CAUSE, CONSEQUENCE]) == [[CAUSE]]


def test_a_warning_hides_nothing_graver_and_nothing_that_an_action_is_asked_for() -> None:
    cause, graver, alike = "truncation", "dead_rewards", "weak_signal"
    assert {graver, alike} <= set(EXPLAINS[cause])
    assert [CONDITIONS[name].severity for name in (cause, graver, alike)] == ["warning", "alarm", "warning"]
    assert told(monitor(cause, graver, alike), [cause, graver]) == [[cause, graver]]
    assert told(monitor(cause, alike), [cause, alike]) == [[cause]]
    assert told(monitor(cause, alike, actions={alike: "halt"}), [cause, alike]) == [[cause, alike]]


def test_a_cause_that_stays_open_explains_only_while_it_holds() -> None:
    consequence = EXPLAINS[STAYS][0]
    made = monitor(STAYS, consequence, patience=1)
    assert told(made, [STAYS], [consequence], [consequence]) == [[STAYS], [], [consequence]]


def test_what_is_not_explained_is_raised_beside_it() -> None:
    other = next(name for name in RULES if name != CAUSE and name not in EXPLAINS[CAUSE] and CAUSE not in EXPLAINS.get(name, ()))
    assert told(monitor(CAUSE, other), [CAUSE, other]) == [[CAUSE, other]]


# ------------------------------------------------------------------------------------------------------- what is done about it


@pytest.mark.parametrize("name", [name for name in CONDITIONS if name != "non_finite"])
def test_an_alarm_does_what_its_condition_or_the_user_says(name: str) -> None:
    usual = alarm_of(name, 5, Found("seen"), HealthConfig())
    condition = CONDITIONS[name]
    assert (usual.action, usual.severity, usual.remedy, usual.page) == (condition.action, condition.severity, condition.remedy, page_of(name))
    assert (usual.first_step, usual.last_step, usual.open, usual.acknowledged) == (5, 5, True, None)
    if name not in CLOCK_RULES:
        other: HealthAction = "warn" if condition.action == "halt" else "halt"
        assert alarm_of(name, 5, Found("seen"), HealthConfig(actions={name: other})).action == other


@pytest.mark.parametrize(("since", "expected"), [(None, 4), (2, 2), (-3, 0), (4, 4)])
def test_trouble_began_after_the_step_before_unless_the_rule_knows_better(since: int | None, expected: int) -> None:
    assert alarm_of(WAVERS, 5, Found("seen", {}, since), HealthConfig()).since == expected


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"beta": 0.5, "max_grad_norm": 1.0}, {"beta": 0.75, "max_grad_norm": 0.5}),
        ({"beta": 0.0, "max_grad_norm": 0.5}, {"beta": 0.01, "max_grad_norm": 0.5}),
        ({"beta": 0.004, "max_grad_norm": 0.25}, {"beta": 0.01, "max_grad_norm": 0.25}),  # it was clipped harder already
        ({"beta": 0.02, "max_grad_norm": 9.0, "loss": 1.0}, {"beta": 0.03, "max_grad_norm": 0.5}),
    ],
)
def test_an_adjustment_clips_at_a_half_and_makes_beta_half_as_much_again(metrics: dict[str, float], expected: dict[str, float]) -> None:
    assert adjustment(metrics) == pytest.approx(expected)


def test_only_an_alarm_that_adjusts_holds_an_adjustment() -> None:
    condition = ADJUSTABLE[0]
    for action, expected in (("adjust", adjustment(SETTING)), ("warn", {}), ("halt", {})):
        made = monitor(condition, STAYS, actions={condition: action})
        told(made, [condition, STAYS])
        assert [dict(alarm.adjustment) for alarm in made.alarms] == [expected, {}]


# ------------------------------------------------------------------------------------------------------ a function of the log


NEVER_ALONE = {"step", "reward/outlier", "reward/min", "reward/max", *SETTING}


def chance_lines(steps: int, seed: int) -> list[dict[str, float]]:
    """A log in which every metric that a rule reads jumps between well and ill, and is missing now and then."""
    chance = random.Random(seed)
    log: list[dict[str, float]] = [{"step": 0}]
    for step in range(1, steps + 1):
        line: dict[str, float] = {"step": step, **SETTING}
        for trouble in TROUBLES:
            for name, values in trouble.columns(trouble.ill if chance.random() < 0.4 else trouble.well).items():
                line[name] = next(value for value in reversed(values) if value is not None)
        log.append({name: value for name, value in line.items() if name in NEVER_ALONE or chance.random() < 0.9})
    return log


def watching(settings: HealthConfig = SETTINGS) -> Monitor:
    return Monitor(settings, FACTS, RULES)


@pytest.mark.parametrize("seed", range(4))
def test_a_fold_over_the_log_is_what_was_seen_live_wherever_it_is_taken_up(seed: int) -> None:
    log = [json.loads(json.dumps(line)) for line in chance_lines(40, seed)]
    live, raised = watching(), []
    for line in log:
        raised += live.observe(int(line["step"]), {name: value for name, value in line.items() if name != "step"})
    assert len({alarm.condition for alarm in raised}) > 5, "there must be some for this to mean something"
    assert diagnose(log, watching()).alarms == live.alarms
    for cut in (0, 1, 13, 40):
        assert diagnose(log[cut:], diagnose(log[:cut], watching())).alarms == live.alarms
    assert [(alarm.condition, alarm.first_step) for alarm in raised] == [(alarm.condition, alarm.first_step) for alarm in live.alarms]


def test_an_open_alarm_that_holds_is_never_raised_beside_itself() -> None:
    for seed in range(4):
        made = diagnose(chance_lines(40, seed), watching())
        for name in RULES:
            own = [alarm for alarm in made.alarms if alarm.condition == name]
            assert all(later.first_step > earlier.last_step + SETTINGS.patience for earlier, later in pairwise(own))


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
def test_every_trouble_is_named_in_a_log_of_it_alone(trouble: Trouble) -> None:
    rules = CLOCK_RULES if trouble.condition in CLOCK_RULES else RULES

    def named(number: float) -> set[str]:
        log = [{"step": step, **line} for step, line in enumerate(lines(trouble.columns(number)))]
        return {alarm.condition for alarm in diagnose(log, Monitor(SETTINGS, FACTS, rules)).alarms}

    assert named(trouble.well) == set()
    assert named(trouble.ill) == {trouble.condition}


def test_a_monitor_knows_full_marks_precision_and_thresholds_of_its_run() -> None:
    config = replace(tiny_config(rewards={REWARD: 0.75, "answer_format": 0.5, "repetition_penalty": 2.0}), health=SETTINGS)
    drawn = config.grpo.prompts_per_step * config.grpo.group_size
    facts = Facts(full_marks=1.25, reward_range=3.25, batch_size=drawn, dtype="float32")
    for made, rules in ((Monitor.of(config), RULES), (Monitor.of_clock(config), CLOCK_RULES)):
        assert (made.settings, made.facts, made.rules) == (SETTINGS, facts, rules)
        assert (made.alarms, made.history.steps) == ([], [])


# --------------------------------------------------------------------------------------------------------- what is written down


def test_the_alarms_file_holds_what_its_readers_need() -> None:
    closed = alarm_of(WAVERS, 3, Found("it was cut", {"truncated_fraction": 0.5}), HealthConfig())
    alarms = [replace(closed, open=False, last_step=9), alarm_of(STAYS, 4, Found("far away"), HealthConfig(acknowledged={STAYS: "known"}))]
    alarms += [replace(alarm_of("stall", 7, Found("slow"), HealthConfig()), rows=[{"prompt_id": "ab", "reward": None}])]
    text = alarms_json(alarms, 12)
    assert text.endswith("}\n")
    found = json.loads(text)
    assert (found["num_steps"], found["num_open"]) == (12, 1)
    assert found["alarms"][0] == {
        "condition": WAVERS, "severity": CONDITIONS[WAVERS].severity, "first_step": 3, "last_step": 9, "open": False, "message": "it was cut",
        "evidence": {"truncated_fraction": 0.5}, "action": "warn", "remedy": CONDITIONS[WAVERS].remedy, "page": f"docs/health.md#{WAVERS}", "since": 2,
        "adjustment": {}, "rows": [], "acknowledged": None,
    }  # fmt: skip
    assert [alarm["acknowledged"] for alarm in found["alarms"]] == [None, "known", None]
    assert found["alarms"][2]["rows"] == [{"prompt_id": "ab", "reward": None}]
    assert found["alarms"] == [json.loads(json.dumps(asdict(alarm))) for alarm in alarms]
    assert json.loads(alarms_json([], 3)) == {"num_steps": 3, "num_open": 0, "alarms": []}


def test_an_alarm_is_read_back_as_it_was() -> None:
    (alarm,) = diagnose([{"step": 1, "reward/outlier": 1e9, "reward/min": 0.0, "reward/max": 1e9}], watching()).alarms
    (found,) = json.loads(alarms_json([alarm], 1))["alarms"]
    assert Alarm(**{**found, "rows": tuple(found["rows"])}) == alarm


def health(**values: Any) -> RunConfig:
    return replace(RunConfig(scoring=ScoringConfig()), health=HealthConfig(**values))


def test_only_an_adjustment_changes_what_a_run_computes() -> None:
    condition = ADJUSTABLE[0]
    for watched in ({}, {"patience": 7}, {"actions": {condition: "halt"}}, {"acknowledged": {condition: "so be it"}}, {"notify": "true"}):
        assert changes_steps(health(**watched)) == {}
    adjusts: dict[str, Any] = {"actions": {condition: "adjust"}}
    assert changes_steps(health(**adjusts, acknowledged={condition: "an accepted alarm does not act"})) == {}
    changed = changes_steps(health(**adjusts))
    assert changed["actions"] == {condition: "adjust"}
    for unread in ({"notify": "true"}, {"acknowledged": {ADJUSTABLE[1]: "no adjustment of it is asked for"}}):
        assert changes_steps(health(**adjusts, **unread)) == changed
    assert changes_steps(health(actions={condition: "adjust", ADJUSTABLE[1]: "halt"})) == changed
    assert changes_steps(health(**adjusts, patience=7)) == {**changed, "patience": 7}, "when it acts does"
