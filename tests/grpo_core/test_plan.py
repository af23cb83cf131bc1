"""What the numbers of a configuration multiply to, checked by hand, and a warning for every number that will not do what it says."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from grpo_core.config import GrpoConfig
from grpo_core.loss import PRESETS, loss_config
from grpo_core.params import parse_sections
from grpo_core.plan import plan

SPLITS = {"train": 1000, "sft": 500, "select": 50, "heldout": 100}


def planned(sections: dict[str, Any], splits: dict[str, int] | None = SPLITS) -> Any:
    return plan(parse_sections(sections), splits)


def test_the_counts_are_the_products_that_they_claim_to_be() -> None:
    found = planned(
        {
            "grpo": {"steps": 60, "prompts_per_step": 16, "group_size": 8, "minibatches_per_rollout": 2, "updates_per_rollout": 3, "eval_every": 7},
            "rollout": {"max_new_tokens": 10},
            "sft": {"steps": 25, "batch_size": 40},
            "heldout_eval": {"max_prompts": 30, "samples_per_prompt": 4},
        }
    )
    assert (found.prompts_per_step, found.completions_per_step, found.completions_per_minibatch) == (16, 128, 64)
    assert (found.steps, found.optimizer_steps_per_rollout, found.optimizer_steps) == (60, 6, 360)
    assert (found.completions, found.training_tokens) == (7_680, 76_800)
    assert (found.prompts_drawn, found.epochs, found.never_seen) == (960, 0.96, 40)
    assert (found.demonstrations, found.sft_epochs) == (1_000, 2.0)
    assert found.evaluations == 9, "before training, and after steps 7, 14, … 56"
    assert found.select_tokens == 9 * 50 * 10, "the select split has fewer prompts than grpo.select_max_prompts"
    assert found.heldout_tokens == 2 * 30 * (1 + 4) * 10
    assert found.exact


def test_without_evaluation_or_fine_tuning_there_is_none_of_either() -> None:
    found = planned({"grpo": {"eval_every": 0}, "sft": {"steps": 0}})
    assert (found.evaluations, found.select_tokens, found.demonstrations) == (0, 0, 0)


def test_demonstrations_beside_a_rollout_are_counted() -> None:
    cloning = {"cloning_weight": 1.0, "cloning_steps": 40, "cloning_batch_size": 32, "demonstration_fraction": 0.25}
    found = planned({"grpo": {**cloning, "steps": 63, "prompts_per_step": 16}})
    assert (found.demonstrations_per_step, found.cloning_steps) == (32 + 4, 40)
    by_signal = planned({"grpo": {**cloning, "steps": 63, "cloning_schedule": "signal", "cloning_steps": 0}})
    assert by_signal.cloning_steps == 63, "nobody knows when signal ends it"
    assert (planned({}).demonstrations_per_step, planned({}).cloning_steps) == (0, 0)


def test_before_the_prompts_are_made_the_shares_are_what_is_known() -> None:
    found = planned({"prompts": {"num_generated": 1000, "sft_fraction": 0.5, "select_fraction": 0.1, "heldout_fraction": 0.2}}, None)
    assert (dict(found.splits), found.exact) == ({"sft": 500, "select": 100, "heldout": 200, "train": 200}, False)


def test_of_a_file_nothing_is_known_before_it_was_read() -> None:
    found = planned({"prompts": {"path": "my.jsonl"}}, None)
    assert (dict(found.splits), found.epochs, found.sft_epochs, found.never_seen) == ({}, None, None, 0)
    assert not [text for text in found.warnings if "prompts" in text]


def test_a_configuration_without_fault_has_no_warning() -> None:
    assert planned({"grpo": {"steps": 63}, "heldout_eval": {"max_prompts": 100}}).warnings == ()


CLONING = {"cloning_weight": 1.0, "cloning_steps": 63, "cloning_batch_size": 8}
FINE = {"grpo": {"steps": 63}, "heldout_eval": {"max_prompts": 100}}
WARNED: list[tuple[str, dict[str, dict[str, Any]], str]] = [
    ("train", {"grpo": {"steps": 62}}, "8 of 1,000 train prompts would never be seen: grpo.steps 63 (or more prompts a step) would see each once"),
    ("few", {"grpo": {"prompts_per_step": 1002}}, "the train split has 1,000 prompts, fewer than grpo.prompts_per_step (1002): training will refuse"),
    ("taught", {"sft": {"steps": 10}}, "20 of 500 demonstrations would never be seen: sft.steps 11 would see each once"),
    ("untaught", {"sft": {"steps": 0}}, "500 prompts of the sft split would never be seen: sft.steps is 0; prompts.sft_fraction 0 gives them to train"),
    ("heldout", {"heldout_eval": {"max_prompts": 101}}, "heldout_eval.max_prompts is 101, but only 100 prompts are held out"),
    ("pairs", {"blind_review_set": {"num_pairs": 101}, "heldout_eval": {"max_prompts": 101}}, "blind_review_set.num_pairs is 101, but only 100 prompts"),
    ("metric", {"grpo": {"select_metric": "number_answer"}}, "grpo.select_metric (number_answer) is not heldout_eval.metric (exact_answer)"),
    ("unwatched", {"grpo": {"select_metric": "number_answer"}}, "rewards.number_answer 0 counts them at every step and pays nothing"),
    ("warmup", {"grpo": {"warmup_steps": 64}}, "grpo.warmup_steps (64) is more than grpo.steps (63)"),
    ("sft warmup", {"sft": {"steps": 11, "warmup_steps": 12}}, "sft.warmup_steps (12) is more than sft.steps (11)"),
    ("eval", {"grpo": {"eval_every": 64}}, "grpo.eval_every (64) is more than grpo.steps (63)"),
    ("checkpoint", {"grpo": {"checkpoint_every": 64}}, "grpo.checkpoint_every (64) is more than grpo.steps (63): a training that is killed starts over"),
    ("schedule", {"grpo": {"advantage_clip_steps": 64}}, "grpo.advantage_clip_steps (64) is more than grpo.steps (63)"),
    ("cloning", {"grpo": {**CLONING, "cloning_steps": 64}}, "grpo.cloning_steps (64) is more than grpo.steps (63): the weight of demonstrations never"),
    ("clip", {"grpo": {"group_size": 4}}, "grpo.advantage_clip (2) never cuts: with grpo.group_size 4 no advantage exceeds 1.5"),
    ("pair", {"grpo": {"group_size": 2}}, "makes each ±0.71"),
    ("length", {"grpo": {"length_penalty": 0.1, "length_target": 45}}, "grpo.length_target (45) is more than rollout.max_new_tokens (44)"),
    ("k1", {"grpo": {"kl_estimator": "k1"}}, "grpo.kl_estimator k1 has no gradient in expectation"),
    ("armed", {"grpo": {"steps": 2, "kl_control": "threshold"}}, "grpo.kl_control threshold moves beta from step 3 on"),
    ("pid", {"grpo": {"steps": 1, "kl_control": "pid"}}, "grpo.kl_control pid moves beta from step 2 on"),
    ("patience", {"grpo": {"kl_control": "threshold", "kl_patience": 61}}, "grpo.kl_patience (61) leaves no step of 63 in which beta could fall"),
]


@pytest.mark.parametrize(("sections", "message"), [row[1:] for row in WARNED], ids=[row[0] for row in WARNED])
def test_what_will_not_do_what_it_says_is_warned_of(sections: dict[str, dict[str, Any]], message: str) -> None:
    together = {name: {**FINE.get(name, {}), **sections.get(name, {})} for name in {*FINE, *sections}}
    assert [text for text in planned(together).warnings if message in text], planned(together).warnings


ALMOST: list[dict[str, dict[str, Any]]] = [
    {"grpo": {"warmup_steps": 63, "eval_every": 63, "checkpoint_every": 63, "advantage_clip_steps": 63}},
    {"grpo": {"kl_control": "threshold", "kl_patience": 60}},
    {"grpo": {"kl_control": "pid"}},
    {"grpo": {"length_penalty": 0.1, "length_target": 44}},
    {"grpo": {"beta": 0, "loss": "dr_grpo", "group_size": 2}},
    {"grpo": {"group_size": 4, "advantage_clip": 1.4}},
    {"grpo": {"group_size": 4, "length_penalty": 0.1}},
    {"grpo": {"eval_every": 0}, "heldout_eval": {"metric": "number_answer"}},
    {"sft": {"steps": 11, "warmup_steps": 11}},
    {"sft": {"steps": 0}, "grpo": CLONING},
]


@pytest.mark.parametrize("sections", ALMOST, ids=str)
def test_what_does_what_it_says_is_not(sections: dict[str, dict[str, Any]]) -> None:
    together = {name: {**FINE.get(name, {}), **sections.get(name, {})} for name in {*FINE, *sections}}
    assert planned(together).warnings == ()


def test_cloning_from_a_split_without_prompts_is_warned_of() -> None:
    sections = {"grpo": CLONING, "prompts": {"path": "mine.jsonl"}, "sft": {"steps": 0}}
    (text,) = [text for text in planned(sections, {**SPLITS, "sft": 0}).warnings if "sft" in text]
    assert text == "the sft split is empty, and grpo.cloning_batch_size is 8: training will refuse"


@pytest.mark.parametrize("loss", PRESETS)
@pytest.mark.parametrize("scale", ["preset", "std", "none"])
def test_the_scale_of_advantages_is_resolved_as_the_loss_does(loss: Any, scale: Any) -> None:
    config = replace(GrpoConfig(), loss=loss, advantage_scale=scale)
    assert config.scales_by_std == loss_config(config, 44).scale_by_std


def test_nothing_heavy_is_imported_to_plan() -> None:
    code = "import sys, grpo_core.plan, grpo_core.cost; print([name for name in ('torch', 'transformers', 'polars', 'numpy') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
