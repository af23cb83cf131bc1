"""Who becomes the champion, and how: the evidence is checked, its conditions must hold or somebody answers for it, and the history says so for ever."""

import json
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from assets import chained
from assets.model_card import card_pictures, model_card
from assets.paths import Paths
from grpo_core.checkpoint import MANIFEST, file_sha256, write_folder
from pipelines.champion import OnNote, PromotionError, alone, dvc_file, history, is_settled, new_model, settle, weights_of
from pipelines.evidence import EvidenceError, check_evidence
from pipelines.params import choose_experiment, read_run_config
from pipelines.records.runs import RunError, find_run

LONGEST_NAME, LONGEST_REASON = 200, 2000
WORDS = {True: "holds", False: "fails", None: "pending"}
REMEDIES = {
    "disjoint": "take the overlapping prompts out of the data (they are listed in the report), then `grpo run`",
    "better": "train a better candidate; more held-out prompts or samples (heldout_eval.max_prompts, samples_per_prompt) tell smaller gains",
    "guards": "look at the guard's task in the report: train so that it does not fall, or widen promotion.guards in params.yaml",
    "health": "see `grpo report`: mend what the alarms name and train again, or accept them with a reason (health.acknowledged)",
    "reward_audit": "see `grpo audit-rewards`: mend the reward, or accept what it pays with a reason (scoring.acknowledged_exploits)",
    "blind_verdict": "let people judge (`grpo review`), then count their votes",
}
"""Condition → what to do about it."""


class RefusedError(PromotionError):
    """A candidate that does not fulfil the conditions."""


def promote(root: Path, experiment: str, *, by: str, override: str | None = None, on_note: OnNote = print, dry_run: bool = False) -> dict[str, Any]:
    """Make the policy of `experiment` the champion; the history's line, with `already` and the `report` that it rests on (None when it was the champion).

    `by` answers for it. An `override` is the reason to do so though conditions fail or are pending; it never stands in for evidence that is as it was
    written. A promotion that was stopped on the way is ended first. Raises ValueError (`EvidenceError`, `RefusedError`, `PromotionError`) in words for people.
    """
    paths = Paths(root, experiment)
    by, override = checked_words("--by", by, LONGEST_NAME), None if override is None else checked_words("--override", override, LONGEST_REASON)
    choose_experiment(root, experiment)
    with alone(root):
        lines = history(paths)
        weights = weights_of(paths.grpo_checkpoint)
        if weights is None:
            raise PromotionError(f"experiment {experiment!r} has no trained policy in {paths.grpo_checkpoint}: `grpo run --experiment {experiment}` makes one")
        is_champion = bool(lines) and weights == lines[-1]["weights_sha256"]
        if lines and not dry_run and (is_champion or not is_settled(paths, lines[-1])):
            if not is_settled(paths, lines[-1]):
                on_note(f"the promotion of {lines[-1]['experiment']!r} (version {lines[-1]['version']}) was stopped on the way and is ended now")
            settle(paths, lines[-1], on_note)
        if is_champion:
            return {**lines[-1], "already": True, "report": None}
        report = check_evidence(root, experiment)
        check_weights(paths, report, weights)
        require_passed(report, override)
        line = new_line(paths, report, by=by, override=override, version=len(lines) + 1)
        if dry_run:
            return {**line, "already": False, "report": report}
        build_model(paths, line, report)
        chained.append(paths.champion_history, line)
        settle(paths, line, on_note)
        return {**line, "already": False, "report": report}


def checked_words(option: str, text: str, longest: int) -> str:
    """A name or reason as it is recorded; raises `PromotionError` for one that says nothing."""
    words = " ".join(text.split())
    if not words or len(words) > longest or not words.isprintable():
        raise PromotionError(f"{option} must be 1 to {longest} printable characters, as it is recorded for ever; got {text[:longest]!r}")
    return words


def check_weights(paths: Paths, report: Mapping[str, Any], weights: str) -> None:
    """Raise `EvidenceError` when the report is on other weights than those that lie there."""
    if report["weights_sha256"] != weights:
        raise EvidenceError(f"the report is on the weights {report['weights_sha256'][:12]}, {paths.grpo_checkpoint} holds {weights[:12]}: `grpo run`")


def require_passed(report: Mapping[str, Any], override: str | None) -> None:
    """Raise `RefusedError` with the conditions and what to do, unless all hold or somebody answers for it."""
    if report["status"] == "passed" or override is not None:
        return
    lines = [f"{report['experiment']!r} is not promoted, its report is {report['status']}:", *condition_lines(report)]
    for condition in unmet(report):
        lines.append(f"{condition['name']}: {REMEDIES.get(condition['name'], 'see the report')}")
    lines.append(f"then `dvc repro promotion_report@{report['experiment']}`; `--override REASON` promotes all the same, and is recorded for ever")
    raise RefusedError("\n".join(lines))


def condition_lines(report: Mapping[str, Any]) -> list[str]:
    """The table of conditions, as text."""
    conditions: Sequence[Mapping[str, Any]] = report["conditions"]
    width = max((len(condition["name"]) for condition in conditions), default=0)
    return [f"  {condition['name']:<{width}}  {WORDS[condition['passed']]:<7}  {condition['summary']}" for condition in conditions]


def unmet(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The conditions that fail or are pending."""
    return [condition for condition in report["conditions"] if condition["passed"] is not True]


def new_line(paths: Paths, report: Mapping[str, Any], *, by: str, override: str | None, version: int) -> dict[str, Any]:
    """What the history will say of the promotion. An override that was not needed is none."""
    missed = [{"name": one["name"], "passed": one["passed"], "summary": one["summary"]} for one in unmet(report)]
    return {
        "version": version,
        "weights_sha256": report["weights_sha256"],
        "manifest_sha256": file_sha256(paths.grpo_checkpoint / MANIFEST),
        "experiment": paths.experiment,
        "run_key": report["run_key"],
        "by": by,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "override": {"reason": override, "conditions": missed} if override is not None and report["status"] != "passed" else None,
        "against": report["against"],
        "number": report["number"],
        "report_sha256": file_sha256(paths.promotion_report),
    }


def build_model(paths: Paths, line: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    """The checkpoint with its model card and pictures, whole, beside the champion of now."""
    config = read_run_config(paths)
    card = model_card(paths, config, made_from(paths), report=report, promotion=line)
    source = json.loads((paths.grpo_checkpoint / MANIFEST).read_bytes())
    facts = {name: value for name, value in source.items() if name != "files"}
    write_folder(new_model(paths), partial(_write, source=paths.grpo_checkpoint, names=source["files"], card=card, pictures=card_pictures(paths)), facts)


def made_from(paths: Paths) -> Any:
    """The lineage of the policy, for its card."""
    from assets.lineage import lineage

    try:
        run = find_run(paths.root, paths.experiment)
    except RunError:
        return lineage(paths.experiment, {}, lambda path: paths.root / path)
    return lineage(run.experiment, run.records, run.file)


def to_commit(paths: Paths) -> str:
    """The command that keeps the promotion in Git."""
    files = [paths.champion_record, paths.champion_history, paths.looks, dvc_file(paths), paths.promotion_report, paths.root / "dvc.lock"]
    return "git add " + " ".join(file.relative_to(paths.root).as_posix() for file in files if file.is_file())


def _write(folder: Path, *, source: Path, names: Mapping[str, str], card: str, pictures: Mapping[str, bytes]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, folder / name)
    (folder / "README.md").write_text(card, encoding="utf-8")
    for name, png in pictures.items():
        (folder / name).write_bytes(png)
