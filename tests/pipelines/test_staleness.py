"""An edit makes exactly the stages that read it stale, and says which key."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from grpo_core.requirements import ConfigError
from grpo_core.rewards.registry import code_hash
from pipelines.checks import in_sync_results
from pipelines.graph import LOOP, load_graph
from pipelines.staleness import all_out_of_sync, differences, out_of_sync
from tests.pipelines.toy_project import THIRD_PARTY_WARNINGS, dvc, edit, make_project

pytestmark = [pytest.mark.filterwarnings(warning) for warning in THIRD_PARTY_WARNINGS]

SHARED = ["prompts", "sft_checkpoint", "reference_checkpoint"]
OF_EXPERIMENT = ["grpo_checkpoint@default", "heldout_eval@default", "blind_review_set@default", "blind_review_verdict@default", "promotion_report@default"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_project(tmp_path_factory.mktemp("toy"))
    dvc(root, "repro", "--quiet")
    return root


@pytest.fixture
def params(finished: Path) -> Iterator[Path]:
    """The finished project, whose params.yaml is put back after the test."""
    path = finished / "params.yaml"
    before = path.read_text(encoding="utf-8")
    yield finished
    path.write_text(before, encoding="utf-8")


def change(root: Path, section: str, key: str, new: str) -> None:
    """Set one number of params.yaml, whatever it was."""
    lines = (root / "params.yaml").read_text(encoding="utf-8").splitlines()
    start = lines.index(f"{section}:")
    at = next(i for i in range(start, len(lines)) if lines[i].startswith(f"  {key}: "))
    lines[at] = f"  {key}: {new}"
    (root / "params.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def stale(root: Path) -> set[str]:
    return {name for name, reasons in all_out_of_sync(root, [*SHARED, *OF_EXPERIMENT]).items() if reasons}


def test_everything_is_in_sync_after_dvc_repro(finished: Path) -> None:
    assert stale(finished) == set()
    assert "up to date" in dvc(finished, "status")


def test_a_learning_rate_makes_grpo_and_what_follows_stale_in_both_tools(params: Path) -> None:
    change(params, "grpo", "learning_rate", "0.5")
    assert stale(params) == set(OF_EXPERIMENT)
    assert out_of_sync(params, "grpo_checkpoint@default") == ["grpo.learning_rate changed from 0.0001 to 0.5"]
    assert out_of_sync(params, "blind_review_set@default") == ["grpo_checkpoint@default: grpo.learning_rate changed from 0.0001 to 0.5"]
    status = dvc(params, "status")
    assert "grpo_checkpoint@default:" in status
    assert "sft_checkpoint:" not in status


def test_an_override_in_the_experiment_is_seen_before_run_config_ran(params: Path) -> None:
    edit(params, "params.yaml", "\n  default: {}", "\n  default: {heldout_eval: {samples_per_prompt: 9}}")
    assert out_of_sync(params, "heldout_eval@default")[0] == "heldout_eval.samples_per_prompt changed from 4 to 9"
    assert stale(params) == set(OF_EXPERIMENT[1:])


def test_a_section_that_only_the_review_reads_leaves_training_alone(params: Path) -> None:
    change(params, "blind_review_set", "num_pairs", "7")
    assert stale(params) == set(OF_EXPERIMENT[2:])


def test_comments_and_other_spellings_of_a_number_change_nothing(params: Path) -> None:
    change(params, "grpo", "learning_rate", "1.0e-4  # the same")
    assert stale(params) == set()


def test_old_values_are_known_after_run_config_wrote_new_ones(params: Path) -> None:
    change(params, "grpo", "beta", "0.7")
    dvc(params, "repro", "--quiet", "--single-item", "run_config")
    assert out_of_sync(params, "grpo_checkpoint@default") == ["grpo.beta changed from 0.01 to 0.7"]
    change(params, "grpo", "beta", "0.01")
    dvc(params, "repro", "--quiet", "--single-item", "run_config")
    assert stale(params) == set()


def test_code_outputs_and_data_that_changed_are_named(finished: Path) -> None:
    code, output, raw = (finished / path for path in ("assets/heldout_eval.py", "data/blind_review_key/default/key.parquet", "data/raw/mine.jsonl"))
    before = code.read_bytes()
    code.write_bytes(before + b"# edited\n")
    assert out_of_sync(finished, "heldout_eval@default") == ["assets/heldout_eval.py is modified"]
    code.write_bytes(before)
    output.unlink()
    assert out_of_sync(finished, "blind_review_set@default") == ["its output data/blind_review_key/default/key.parquet is deleted"]
    dvc(finished, "checkout", "--quiet")
    raw.write_text("{}")
    assert out_of_sync(finished, "prompts") == ["data/raw is modified"]
    raw.unlink()
    assert stale(finished) == set()


def test_an_experiment_that_never_ran_is_out_of_sync_and_the_others_are_not(params: Path) -> None:
    edit(params, "params.yaml", "\n  default: {}", "\n  default: {}\n  small: {grpo: {group_size: 4}}")
    assert out_of_sync(params, "grpo_checkpoint@small") == ["never run"]
    assert stale(params) == set()


def test_experiments_that_come_and_go_make_the_comparison_stale(tmp_path: Path) -> None:
    """DVC trains a new experiment before it compares, and nothing else of it; what is no longer declared is compared no more."""
    root = make_project(tmp_path)

    def compared() -> list[str]:
        dvc(root, "repro", "--quiet", "comparison_report")
        return list(json.loads((root / "data/comparison_report/report.json").read_text())["compared"])

    assert compared() == ["default"]
    assert out_of_sync(root, "comparison_report") == []
    edit(root, "params.yaml", "\n  default: {}", "\n  default: {}\n  small: {grpo: {group_size: 4}}")
    assert out_of_sync(root, "comparison_report") == ["experiments were added: small", "grpo_checkpoint@small: never run"]
    assert compared() == ["default", "small"]
    assert out_of_sync(root, "comparison_report") == []
    assert not (root / "data/heldout_eval").exists()
    change(root, "heldout_eval", "max_prompts", "400")
    changed = "the configuration changed: default/heldout_eval.json, small/heldout_eval.json"
    assert out_of_sync(root, "comparison_report") == [changed]
    edit(root, "params.yaml", "\n  small: {grpo: {group_size: 4}}", "")
    assert out_of_sync(root, "comparison_report")[0] == "experiments are no longer there: small"
    assert compared() == ["default"]
    assert out_of_sync(root, "comparison_report") == []


def test_parameters_that_cannot_be_run_are_a_config_error(params: Path) -> None:
    edit(params, "params.yaml", "  clip_high: ", "  clip_hihg: ")
    with pytest.raises(ConfigError, match="clip_high"):
        out_of_sync(params, "prompts")


REWARD = "def short(completions, **columns):\n    return [0.5] * len(completions)\n"
OWN, INSTALLED = "reward_functions.mine:short", "toy_rewards:short"


@pytest.fixture
def rewarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A finished project whose rewards are a function in reward_functions/ and one elsewhere, where DVC does not look."""
    root = make_project(tmp_path)
    edit(root, "params.yaml", "\n  default: {}", f'\n  default: {{rewards: {{"{OWN}": 1.0, "{INSTALLED}": 0.5}}}}')
    for path in ("reward_functions/mine.py", "toy_rewards.py"):
        (root / path).write_text(REWARD, encoding="utf-8")
    dvc(root, "repro", "--quiet")
    monkeypatch.syspath_prepend(root)
    for name in imported_rewards():
        monkeypatch.delitem(sys.modules, name)
    yield root
    for name in imported_rewards():
        del sys.modules[name]


def imported_rewards() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in ("reward_functions", "toy_rewards")]


def test_other_reward_code_is_named_also_where_dvc_does_not_look(rewarded: Path) -> None:
    assert stale(rewarded) == set()
    before = code_hash([INSTALLED])
    edit(rewarded, "toy_rewards.py", "0.5", "0.25")
    (reason,) = out_of_sync(rewarded, "grpo_checkpoint@default")
    assert reason == (
        f"reward code of {INSTALLED} changed since (hash {before}, today {code_hash([INSTALLED])}); "
        "DVC cannot see it: `dvc repro -f -s grpo_checkpoint@default` trains with it"
    )
    assert stale(rewarded) == set(OF_EXPERIMENT)
    assert "up to date" in dvc(rewarded, "status")
    for asset, result in zip(LOOP, in_sync_results(rewarded, load_graph(rewarded), list(LOOP), ["default"]), strict=True):
        assert (result.asset_key, result.passed, result.description) == (dg.AssetKey(asset), False, reason)
    edit(rewarded, "reward_functions/mine.py", "0.5", "0.25")
    modified, own, installed = out_of_sync(rewarded, "grpo_checkpoint@default")
    assert modified == "reward_functions is modified"
    assert own.startswith(f"reward code of {OWN} changed since (hash ")
    assert installed == reason.partition(";")[0]
    dvc(rewarded, "repro", "--quiet")
    assert stale(rewarded) == set()


def test_a_reward_that_is_gone_is_named(rewarded: Path) -> None:
    (rewarded / "toy_rewards.py").write_text("def other():\n    pass\n", encoding="utf-8")
    (reason,) = out_of_sync(rewarded, "grpo_checkpoint@default")
    assert reason.startswith(f"reward {INSTALLED} cannot be loaded any more: RewardError: rewards.{INSTALLED}: module 'toy_rewards' has no function 'short'")
    del sys.modules["toy_rewards"]
    (rewarded / "toy_rewards.py").write_text("1 / 0\n", encoding="utf-8")
    (reason,) = out_of_sync(rewarded, "grpo_checkpoint@default")
    assert reason.startswith(f"reward {INSTALLED} cannot be loaded any more: ZeroDivisionError: division by zero")


def test_differences_name_every_changed_key_however_deep() -> None:
    old = {"grpo": {"beta": 1, "steps": 3, "same": 0}, "rewards": {"a": 1.0}}
    new = {"grpo": {"beta": 2, "same": 0, "seed": 4}, "rewards": {"a": 1}}
    assert list(differences(old, new)) == [("grpo.beta", 1, 2), ("grpo.steps", 3, "(absent)"), ("grpo.seed", "(absent)", 4)]
