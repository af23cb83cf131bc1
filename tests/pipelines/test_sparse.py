"""The sparse preset: its arms, and (slowly) that demonstrations lift a model which GRPO alone does not."""

from pathlib import Path

import pytest
from tqdm import tqdm

from bench.sparse import arms, run_arm, start

ALONE = "no_demonstrations"


def test_every_schedule_and_both_kinds_of_demonstrations_have_an_arm() -> None:
    found = {name: config.grpo for name, config in arms().items()}
    assert {name: (grpo.cloning_schedule, grpo.cloning_batch_size, grpo.demonstration_fraction) for name, grpo in found.items() if grpo.cloning_weight} == {
        "linear": ("linear", 128, 0.0),
        "cosine": ("cosine", 128, 0.0),
        "signal": ("signal", 128, 0.0),
        "own_demonstrations": ("linear", 0, 1.0),
    }
    assert found[ALONE].cloning_weight == 0.0


def test_the_arms_differ_in_their_demonstrations_alone() -> None:
    cloning = {"cloning_weight", "cloning_schedule", "cloning_steps", "cloning_batch_size", "demonstration_fraction"}
    configs = list(arms().values())
    assert len({(c.model, c.prompts.num_generated, c.sft, c.rollout, tuple(c.rewards.items())) for c in configs}) == 1
    fixed = [name for name in type(configs[0].grpo).__slots__ if name not in cloning]
    assert len({tuple(getattr(c.grpo, name) for name in fixed) for c in configs}) == 1


@pytest.mark.slow
def test_demonstrations_lift_a_model_that_scores_nearly_nothing(tmp_path: Path) -> None:
    configs = arms()
    with tqdm(disable=True) as bar:
        start(tmp_path, configs["linear"], bar)
        found = {name: run_arm(tmp_path, name, config, bar) for name, config in configs.items()}
    before, alone = found[ALONE]["reference_accuracy"], found[ALONE]["policy_accuracy"]
    assert 0.92 < 1 - found[ALONE]["reference_mean_at_k"] < 0.98, "samples that score 0"
    assert alone < before, "GRPO alone stays there"
    for name in (name for name in found if name != ALONE):
        assert found[name]["policy_accuracy"] > max(alone, before) + 0.05, name
        assert found[name]["policy_mean_at_k"] > 1.5 * found[name]["reference_mean_at_k"], name
