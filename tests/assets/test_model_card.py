"""The card says what the files say, its front matter is YAML, and no text of a person or a model breaks it."""

import json
from dataclasses import replace

import polars as pl
import pytest
from ruamel.yaml import YAML

from assets.lineage import Lineage, lineage
from assets.model_card import accuracies, card_pictures, model_card
from assets.paths import Paths
from grpo_core.config import ModelConfig
from tests.assets.lifecycle import lifecycle_config

REPORT = {
    "status": "failed", "summary": "it is not better", "number": 3, "level": 0.05 / 9, "policies": 4,
    "conditions": [{"name": "better", "passed": False, "summary": "+0.010 [-0.020, +0.040] | n", "numbers": {}}],
}  # fmt: skip
PROMOTION = {
    "version": 2, "by": "Anna | <b>", "when": "2026-01-02T03:04:05+00:00",
    "override": {"reason": "shown at [the](fair)", "conditions": [{"name": "better", "passed": False, "summary": ""}]},
}  # fmt: skip


def made_from(paths: Paths) -> Lineage:
    return lineage(paths.experiment, {}, lambda path: paths.root / path)


def front_matter(card: str) -> dict[str, object]:
    return dict(YAML(typ="safe").load(card.split("---\n")[1]))


def test_the_card_says_what_the_files_say(lifecycle: Paths) -> None:
    card = model_card(lifecycle, lifecycle_config(), made_from(lifecycle), report=REPORT, promotion=PROMOTION)
    assert front_matter(card) == {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["grpo", "reinforcement-learning"]}
    summary = json.loads(lifecycle.heldout_summary.read_text())
    manifest = json.loads((lifecycle.grpo_checkpoint / "manifest.json").read_text())
    accuracy = f"{summary['policy_accuracy']:.3f} [{summary['policy_accuracy_low']:.3f}, {summary['policy_accuracy_high']:.3f}]"
    assert f"| policy | {accuracy}".replace("[", r"\[").replace("]", r"\]") in card
    assert f"`{manifest['reward_code_hash']}`" in card and f"`{manifest['policy_digest']}`" in card
    assert r"| better | fails | +0.010 \[-0.020, +0.040\] \| n |" in card
    assert "number 3 (level 0.005556)" in card
    assert r"promoted by Anna \| \<b\>" in card
    assert r"**Promoted by override**, though not all conditions hold (better). The reason given: shown at \[the\](fair)" in card
    assert "grpo reproduce default" in card and "| grpo.steps | 4 |" in card


def test_a_hub_model_and_files_are_named_in_the_front_matter(lifecycle: Paths) -> None:
    config = replace(lifecycle_config(), model=ModelConfig(path="org/some-model"))
    found = replace(made_from(lifecycle), prompts={"splits": {"train": 5}, "num_rows": 5, "sources": {"data/raw/gsm8k.jsonl": 5}, "sha256": "ab"})
    card = model_card(lifecycle, config, found, report=None)
    assert front_matter(card)["base_model"] == "org/some-model" and front_matter(card)["datasets"] == ["gsm8k"]
    assert "No promotion report was made of this policy" in card


def test_every_picture_of_the_card_is_there(lifecycle: Paths) -> None:
    pictures = card_pictures(lifecycle)
    card = model_card(lifecycle, lifecycle_config(), made_from(lifecycle), report=None)
    assert all(png.startswith(b"\x89PNG") for png in pictures.values())
    assert {name for name in pictures if f"({name})" in card} == set(pictures) >= {"reward.png", "kl.png", "heldout.png"}


def test_alarms_are_told_with_what_became_of_them(spoilt: Paths) -> None:
    alarm = {"condition": "dead_reward", "severity": "alarm", "first_step": 2, "last_step": 3, "open": False, "message": "no reward moved", "action": "halt"}
    spoilt.alarms.write_text(json.dumps({"num_steps": 4, "num_open": 0, "alarms": [{**alarm, "acknowledged": "a trial"}]}))
    card = model_card(spoilt, lifecycle_config(), made_from(spoilt), report=None)
    assert "| dead_reward | 2–3 | accepted: a trial | halted training | no reward moved |" in card


def test_accuracies_are_those_of_one_answer_and_of_many() -> None:
    rows = pl.DataFrame(
        {
            "prompt_id": ["a", "a", "a", "b", "b", "b"],
            "decoding": ["greedy", "sample", "sample"] * 2,
            "correct": [True, True, False, False, False, False],
        }
    )
    greedy, sampled = accuracies(rows)
    assert greedy is not None and greedy.estimate == 0.5
    assert sampled is not None and sampled.estimate == 0.25
    # Two prompts, 0.5 and 0: standard error 0.25, t of one degree of freedom 12.706.
    assert sampled.high - sampled.estimate == pytest.approx(0.25 * 12.706, rel=1e-3)
