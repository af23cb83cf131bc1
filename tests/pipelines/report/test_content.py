"""What a report says of a run, and of one of which a stage has not run yet."""

import itertools
import shutil
from typing import Any

import pytest

from assets.paths import Paths
from grpo_core.config import SECTIONS, RunConfig
from grpo_core.params import section_values
from pipelines.report.content import Report, gather
from pipelines.report.head import NOT_EVALUATED, alarm_words, verdict_of
from pipelines.report.origin import settings
from pipelines.report.pictures import training_pictures
from pipelines.report.sources import find_sources
from tests.pipelines.report.conftest import ALARMS, write_alarms
from tests.pipelines.toy_project import NUMBERS


def changed_by(difference: float, low: float, high: float) -> dict[str, Any]:
    return {**NUMBERS, "difference": difference, "difference_low": low, "difference_high": high}


def test_the_verdict_is_the_held_out_change_its_interval_and_the_open_alarms() -> None:
    assert verdict_of(changed_by(0.56, 0.515, 0.604), ALARMS, "Trained for 4 steps.") == (
        "Held-out accuracy 43.0% → 99.0% on 500 prompts never trained on (+56.0 points, 95 % interval +51.5 to +60.4): better. "
        "1 alarm is open: early explosion.",
        "good",
    )


@pytest.mark.parametrize(
    ("low", "high", "word", "tone"), [(0.01, 0.1, "better", "good"), (-0.1, -0.01, "worse", "bad"), (-0.01, 0.1, "no clear difference", "unclear")]
)
def test_a_change_is_clear_only_when_its_interval_leaves_out_zero(low: float, high: float, word: str, tone: str) -> None:
    verdict, found = verdict_of(changed_by((low + high) / 2, low, high), None, "")
    assert verdict.endswith(f": {word}. Health was not recorded.")
    assert found == tone


def test_only_open_alarms_count_against_a_run() -> None:
    first = ALARMS["alarms"][1]
    assert alarm_words({"num_steps": 4, "alarms": []}) == "No alarm is open."
    assert alarm_words({"num_steps": 4, "alarms": ALARMS["alarms"][:1]}) == "No alarm is open."
    assert alarm_words({"num_steps": 4, "alarms": [first, first, {**first, "condition": "stall"}]}) == "3 alarms are open: early explosion, stall."


def test_settings_that_are_not_at_their_default_say_what_that_is() -> None:
    grpo = {**section_values(RunConfig(), "grpo"), "group_size": 4}
    found = settings({"grpo": grpo, "rewards": {"exact_answer": 2.0}})
    assert [(one.name, one.value, one.default) for one in found["grpo"] if one.default is not None] == [("group_size", "4", "8")]
    assert [(one.name, one.value, one.default) for one in found["rewards"]] == [("exact_answer", "2.0", "1.0"), ("answer_format", "left out", "0.1")]


def test_a_finished_run_fills_every_part(finished: Report) -> None:
    assert finished.verdict.startswith("Held-out accuracy ")
    assert [picture.name for picture in finished.pictures[:4]] == ["reward", "kl", "length", "advantages"]
    assert {"select", "entropy", "grad_norm", "zero_variance", "ratio"} <= {picture.name for picture in finished.pictures[4:]}
    assert [tile.name for tile in finished.tiles] == ["held-out accuracy", "mean reward", "completion length", "KL to the reference", "open alarms"]
    assert None not in (finished.evidence, finished.heldout, finished.exploits, finished.statuses, finished.timeline)
    assert len(finished.best) == len(finished.worst) == 10
    assert finished.best[0].reward >= finished.best[-1].reward >= finished.worst[-1].reward >= finished.worst[0].reward
    assert list(finished.settings) == list(SECTIONS)
    assert dict(finished.identity)["run"].endswith(", 4 steps")
    assert ("data/heldout_eval/default/summary.json", "in the checkout") in [tuple(row[:2]) for row in finished.files.rows]
    assert (finished.stages, finished.hashes) == (None, None), "nothing recorded how it was made"


def test_alarms_come_open_ones_first_with_evidence_rows_and_what_was_adjusted(finished: Report) -> None:
    assert finished.alarms is not None
    first, second = finished.alarms
    assert (first.condition, first.state, first.steps, second.condition, second.state) == ("early explosion", "open", "2–3", "weak signal", "over")
    assert (first.evidence, first.action) == ("kl/mean 0.61, grad_norm 7", "adjust: max_grad_norm 0.5")
    assert first.completions is not None
    assert [list(first.completions.headings), list(first.completions.rows[0])] == [
        ["prompt id", "#", "reward", "text"],
        ["1eef", "2", "1.5", "a very good text"],
    ]


def test_the_charts_mark_the_alarms(lifecycle: Paths, finished: Report) -> None:
    quiet = training_pictures(find_sources(lifecycle.root, "default"), [])
    assert [picture.name for picture in finished.pictures] == [picture.name for picture in quiet]
    assert all(marked.svg != plain.svg for marked, plain in zip(finished.pictures, quiet, strict=True))


def test_a_trained_run_that_was_not_evaluated_is_reported_as_far_as_it_goes(spoilt: Paths) -> None:
    spoilt.heldout_completions.unlink()
    spoilt.heldout_summary.unlink()
    write_alarms(spoilt.alarms, {"num_steps": 4, "num_open": 0, "alarms": []})
    found = gather(find_sources(spoilt.root, "default"))
    assert found.verdict == f"Trained for 4 steps. {NOT_EVALUATED} No alarm is open."
    assert (found.evidence, found.heldout, found.changed, found.changed_words) == (None, None, [], NOT_EVALUATED)
    assert (found.alarms, found.watched_steps, found.timeline) == ([], 4, None)
    assert len(found.best) == 10
    assert len(found.pictures) >= 9


def test_a_training_that_has_not_ended_is_reported_from_its_work_folder(spoilt: Paths) -> None:
    shutil.rmtree(spoilt.grpo_checkpoint)
    (work,) = (spoilt.work / "grpo_checkpoint" / "default").iterdir()
    lines = (work / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (work / "metrics.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:20])  # steps 0 to 2, and the beginning of a line
    for kind, step in itertools.product(("rollouts", "rewards"), (3, 4)):
        (work / kind / f"step-{step:06d}.parquet").unlink()
    found = gather(find_sources(spoilt.root, "default"))
    assert found.verdict.startswith(f"Training has not ended: step 2 of 4. {NOT_EVALUATED}")
    assert dict(found.identity)["run"] == f"{work.name}, 2 steps"
    assert {one.step for one in (*found.best, *found.worst)} <= {1, 2}
    assert found.exploits is not None
    assert found.evidence is None
