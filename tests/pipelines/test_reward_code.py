from pathlib import Path

import pytest

from grpo_core.config import BUILT_IN_REWARDS, GrpoConfig, HeldoutEvalConfig, RunConfig
from grpo_core.requirements import ConfigError
from grpo_core.rewards.outcomes import RewardError
from grpo_core.rewards.registry import BUILT_IN
from pipelines.params import ROOT
from pipelines.reward_code import check_reward_functions


def test_the_configuration_knows_the_built_in_rewards() -> None:
    assert tuple(BUILT_IN) == BUILT_IN_REWARDS


def test_functions_of_the_watched_folder_are_accepted_and_found() -> None:
    name = "reward_functions.example:short_and_right"
    check_reward_functions(ROOT, [RunConfig(rewards={name: 1.0}, grpo=GrpoConfig(select_metric=name), heldout_eval=HeldoutEvalConfig(metric=name))])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:reward", "cannot import 'no_such_module'"),
        ("reward_functions.example:no_such", "has no function 'no_such'"),
        ("tests.tiny_rewards:share_of_small_digits", "move it into reward_functions/"),
    ],
)
def test_a_function_that_is_not_there_or_not_watched_is_refused(name: str, message: str) -> None:
    for config in (RunConfig(rewards={name: 1.0}), RunConfig(heldout_eval=HeldoutEvalConfig(metric=name))):
        with pytest.raises((ConfigError, RewardError), match=message):
            check_reward_functions(ROOT, [config])


def test_a_function_of_an_installed_package_is_accepted(tmp_path: Path) -> None:
    check_reward_functions(tmp_path, [RunConfig(rewards={"reward_functions.example:short_and_right": 1.0})])
