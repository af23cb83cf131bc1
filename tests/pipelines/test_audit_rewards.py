"""`grpo audit-rewards`: a person sees what exploits earn before anything is trained, and what to write if that may be."""

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from ruamel.yaml import YAML

from grpo_core.addition import addition_tokenizer
from grpo_core.battery import try_exploits
from grpo_core.config import RunConfig
from grpo_core.exploits import findings
from pipelines.commands.audit_rewards import shown
from tests.tiny_run import prompts_table

CODE = "from pipelines.commands.audit_rewards import audit_rewards; audit_rewards()"
MINE = '''
def generous(completions, answer, **columns):
    """1 for the answer anywhere in the text."""
    return [float(right in text) for text, right in zip(completions, answer)]
'''
CAUGHT = ("every_option_listed", "gold_buried_in_noise", "several_answers")


def audit(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE, *options]
    return subprocess.run(command, cwd=root, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True, check=False)


def settings(root: Path, **sections: object) -> None:
    """Put these sections into params.yaml."""
    yaml, path = YAML(), root / "params.yaml"
    values = yaml.load(path)
    for section, change in sections.items():
        values[section] = change if section == "rewards" else {**values[section], **change}  # type: ignore[dict-item]  # sections are mappings
    yaml.dump(values, path)


@pytest.fixture
def generous(checkout: Path) -> Path:
    """A checkout whose reward looks for the answer anywhere."""
    (checkout / "reward_functions" / "mine.py").write_text(MINE)
    settings(checkout, rewards={"reward_functions.mine:generous": 1.0})
    return checkout


def test_the_default_rewards_pass_and_nothing_is_written(checkout: Path) -> None:
    before = sorted(path for path in checkout.rglob("*") if "__pycache__" not in path.parts)
    result = audit(checkout)
    assert (result.returncode, result.stderr) == (0, "")
    lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in result.stdout.splitlines() if line.startswith("│")]
    assert lines == [
        ["total", "right_answer", "1.1", "100%", "", "no exploit, for comparison"],
        ["exact_answer", "right_answer", "1", "91%", "", "no exploit, for comparison"],
        ["answer_format", "right_answer", "1", "9%", "", "no exploit, for comparison"],
        ["answer_format", "format_without_answer", "1", "9%", "", "below the threshold"],
    ]
    assert "27 earn nothing (--all shows them)" in result.stdout
    assert result.stdout.endswith("nothing blocks training: no exploit earns more than 25% of full marks unacknowledged\n")
    assert sorted(path for path in checkout.rglob("*") if "__pycache__" not in path.parts) == before


def test_all_shows_what_earns_nothing() -> None:
    config = RunConfig()
    found = findings(try_exploits(prompts_table(), config, addition_tokenizer()), config.rewards, config.scoring)
    printed = StringIO()
    Console(width=200, file=printed).print(shown(found, everything=True))
    for words in ("earns nothing", "earns no more than its format", "nested_latex"):
        assert words in printed.getvalue()
    assert "(--all shows them)" not in printed.getvalue()


def test_what_blocks_training_is_shown_with_what_to_write(generous: Path) -> None:
    result = audit(generous)
    assert result.returncode == 1
    for exploit in CAUGHT:
        assert f'      reward_functions.mine:generous/{exploit}: "why it may earn this"' in result.stdout
    assert result.stdout.count("blocks training") == len(CAUGHT)
    assert "training is blocked: 3 exploits earn more than 25% of full marks" in result.stdout


def test_acknowledged_with_a_reason_it_passes(generous: Path) -> None:
    reasons = {f"reward_functions.mine:generous/{exploit}": "only a warm-up" for exploit in CAUGHT}
    settings(generous, scoring={"acknowledged_exploits": {**reasons, "reward_functions.mine:generous/empty": "a slip"}})
    result = audit(generous)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("acknowledged: only a warm-up") == len(CAUGHT)
    assert "note: scoring.acknowledged_exploits.reward_functions.mine:generous/empty earns nothing: remove it" in result.stdout


def test_an_experiment_has_rewards_of_its_own(generous: Path) -> None:
    settings(generous, experiments={"careful": {"rewards": {"number_answer": 1.0}}})
    assert audit(generous, "--experiment", "careful").returncode == 0
    unknown = audit(generous, "--experiment", "carefull")
    assert unknown.returncode == 1
    assert "did you mean 'careful'?" in unknown.stderr


def test_a_reward_that_is_not_there_is_an_error_in_a_line(checkout: Path) -> None:
    settings(checkout, rewards={"reward_functions.mine:generous": 1.0})
    result = audit(checkout)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: rewards.reward_functions.mine:generous: cannot import 'reward_functions.mine'")
    assert len(result.stderr.splitlines()) == 1
