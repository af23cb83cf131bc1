"""What a report says: one run's evidence, alarms, charts, examples and origin, gathered from its files. Nothing here knows HTML."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from assets.alarm_marks import Alarms, condition_of, state_of, steps_of
from assets.lineage import table_rows
from assets.rewards import commonest_reasons, status_counts
from assets.under_review import under_review, withheld_note
from grpo_core.config import ScoringConfig
from grpo_core.exploits import exploits_table, findings, notes
from grpo_core.params import parse_section
from grpo_core.tables import KEYS
from pipelines.report.examples import ChangedAnswer, Completion, changed_answers, extreme_completions, shown_answers
from pipelines.report.grids import Grid, grid_of, numbers_text
from pipelines.report.head import NOT_EVALUATED, Tile, Tone, evidence, tiles, verdict_of
from pipelines.report.origin import Setting, continued, files, hashes, settings, stages
from pipelines.report.pictures import Picture, heldout_picture, reward_pictures, timeline_picture, training_pictures
from pipelines.report.sources import Sources

IDENTITY = ("run", "policy", "reference", "start", "prompts", "not at default", "commit", "not found")
"""Rows of the lineage that stand at the head; the others are told at the end."""
MOST_REASONS = 5


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm in words."""

    condition: str
    severity: str
    state: str
    steps: str
    message: str
    evidence: str
    action: str
    """What was done: `warn`, `adjust` with what it set, or `halt`."""
    remedy: str
    page: str
    reason: str
    """Why it was acknowledged; empty when it was not."""
    completions: Grid | None
    """Those of its first step that show it best."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything on the page, in its order."""

    experiment: str
    verdict: str
    tone: Tone
    unreadable: Sequence[str]
    """What is missing on the page, as its file cannot be read."""
    tiles: Sequence[Tile]
    identity: Sequence[tuple[str, str]]
    alarms: Sequence[Alarm] | None
    """None when health was not recorded."""
    watched_steps: int
    timeline: Picture | None
    heldout: Picture | None
    evidence: Grid | None
    pictures: Sequence[Picture]
    best: Sequence[Completion]
    worst: Sequence[Completion]
    changed: Sequence[ChangedAnswer]
    changed_words: str
    statuses: Grid | None
    reasons: Grid | None
    reward_pictures: Sequence[Picture]
    exploits: Grid | None
    exploit_notes: Sequence[str]
    settings: Mapping[str, Sequence[Setting]]
    files: Grid
    made: Sequence[tuple[str, str]]
    stages: Grid | None
    hashes: Grid | None


def gather(sources: Sources) -> Report:
    """All of it; what has not been made yet is None or empty."""
    alarms: Alarms = () if sources.alarms is None else sources.alarms["alarms"]
    verdict, tone = verdict_of(sources.summary, sources.alarms, _training(sources), sources.halts)
    lines = table_rows(sources.made_from)
    changed = [] if sources.heldout is None else changed_answers(sources.heldout, sources.prompts)
    hidden = frozenset() if sources.heldout is None or sources.prompts is None else under_review(sources.paths, sources.prompts, sources.heldout)
    exploits, exploit_notes = _exploits(sources)
    return Report(
        experiment=sources.paths.experiment,
        verdict=verdict,
        tone=tone,
        unreadable=sources.unreadable,
        tiles=tiles(sources),
        identity=[(name, text) for name, text in continued(lines) if name in IDENTITY],
        alarms=None if sources.alarms is None else [_alarm(alarm) for alarm in _gravest_first(alarms)],
        watched_steps=0 if sources.alarms is None else sources.alarms["num_steps"],
        timeline=timeline_picture(sources, alarms) if alarms else None,
        heldout=heldout_picture(sources),
        evidence=None if sources.summary is None else evidence(sources.summary),
        pictures=training_pictures(sources, alarms),
        best=_extremes(sources, best=True),
        worst=_extremes(sources, best=False),
        changed=shown_answers([answer for answer in changed if answer.prompt_id not in hidden]),
        changed_words=" ".join(filter(None, [changed_words(changed, sources), withheld_note(len(hidden))])),
        statuses=None if sources.rewards is None else grid_of(status_counts(sources.rewards), {"": "reward"}),
        reasons=_reasons(sources),
        reward_pictures=reward_pictures(sources),
        exploits=exploits,
        exploit_notes=exploit_notes,
        settings=settings(sources.made_from.config),
        files=files(sources),
        made=[(name, text) for name, text in continued(lines) if name not in IDENTITY],
        stages=stages(sources),
        hashes=hashes(sources),
    )


def changed_words(changed: Sequence[ChangedAnswer], sources: Sources) -> str:
    """How many greedy answers changed, and to what."""
    if sources.summary is None:
        return NOT_EVALUATED
    if sources.heldout is None:
        return "The held-out answers are not on this machine."
    kinds = [answer.kind for answer in changed]
    counts = [f"{kinds.count(kind):,} {kind}" for kind in ("newly right", "newly wrong", "still right", "still wrong", "not graded") if kind in kinds]
    total = f"{len(changed):,} of {sources.summary['num_prompts']:,.0f} greedy answers changed"
    return f"{total}: {', '.join(counts)}." if counts else f"{total}."


def _extremes(sources: Sources, *, best: bool) -> list[Completion]:
    if sources.rewards is None or sources.rollouts is None:
        return []
    return extreme_completions(sources.rewards, sources.rollouts, sources.prompts, best=best)


def _training(sources: Sources) -> str:
    """How far training has come, in a sentence."""
    step, planned = sources.made_from.step, sources.made_from.config.get("grpo", {}).get("steps")
    if not sources.under_way:
        return f"Trained for {step} steps." if step is not None else "Trained."
    come = f"step {step or 0}{f' of {planned}' if planned else ''}"
    if sources.halted_at is not None:
        return f"Training was halted at step {sources.halted_at} and is back at {come}."
    return f"Training has not ended: {come}."


def _gravest_first(alarms: Alarms) -> list[Mapping[str, Any]]:
    states, severities = ("open", "over", "acknowledged"), ("alarm", "warning")

    def order(alarm: Mapping[str, Any]) -> tuple[int, int, int]:
        severity = str(alarm["severity"])
        return states.index(state_of(alarm)), severities.index(severity) if severity in severities else len(severities), alarm["first_step"]

    return sorted(alarms, key=order)


def _alarm(alarm: Mapping[str, Any]) -> Alarm:
    rows = pl.DataFrame(alarm.get("rows") or [], infer_schema_length=None)
    adjusted = numbers_text(alarm.get("adjustment") or {})
    return Alarm(
        condition=condition_of(alarm),
        severity=str(alarm["severity"]),
        state=state_of(alarm),
        steps=steps_of(alarm),
        message=str(alarm["message"]),
        evidence=numbers_text(alarm.get("evidence") or {}),
        action=f"{alarm.get('action', '')}{': ' * bool(adjusted)}{adjusted}",
        remedy=str(alarm.get("remedy", "")),
        page=str(alarm.get("page", "")),
        reason=str(alarm.get("acknowledged") or ""),
        completions=None if rows.is_empty() else grid_of(rows, {"completion_index": "#"}),
    )


def _reasons(sources: Sources) -> Grid | None:
    """Why completions were invalid or failed; None when none was."""
    if sources.rewards is None or sources.rollouts is None:
        return None
    troubled = sources.rewards.drop_nulls("reason").lazy().join(sources.rollouts.select(*KEYS, "text"), on=KEYS, maintain_order="left").collect()
    found = commonest_reasons(troubled)
    return None if found.is_empty() else grid_of(found.head(MOST_REASONS), {})


def _exploits(sources: Sources) -> tuple[Grid | None, list[str]]:
    """What the battery found before training, under what params.yaml acknowledges; None when there is no table of it."""
    config = sources.made_from.config
    if sources.exploits is None or "rewards" not in config:
        return None, []
    # Which exploits are acknowledged changes no step, so a checkpoint's manifest leaves it out.
    written = sources.paths.run_config / sources.paths.experiment / "scoring.json"
    values = {**config.get("scoring", {}), **(json.loads(written.read_bytes()) if written.is_file() else {})}
    scoring = parse_section(ScoringConfig, "scoring", values)
    found = findings(sources.exploits, config["rewards"], scoring)
    quiet = sum(finding.verdict == "nothing" for finding in found)
    said = [f"{quiet} of {len(found)} findings earn nothing beyond their format and are not listed."] if quiet else []
    return grid_of(exploits_table(found), {}, "of full marks"), [*said, *notes(found, scoring)]
