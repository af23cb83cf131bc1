"""`grpo rescore`: a run's completions under today's reward code, in words, tables and JSON."""

import json
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from rich.console import Console

from assets.paths import Paths
from grpo_core.config import RunConfig, ScoringConfig
from grpo_core.rescore import Stop
from grpo_core.rewards.registry import code_hash
from pipelines.commands.rescore import rescore
from pipelines.records.runs import RunError
from pipelines.reproduction.rescore import Outcome, as_json, check_place, chosen_steps, rescore_run, rewarded_as, tables, verdict
from pipelines.reward_code import CodeChange
from tests.pipelines.checkouts import copy_checkout
from tests.pipelines.toy_project import edit
from tests.pipelines.traced_runs import CONFIG, grpo, make_two_runs, run_of, without


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with two runs that no test changes. Answers called wrong that read the same backwards are right."""
    root = copy_checkout(tmp_path_factory.mktemp("made"))
    make_two_runs(root)
    return root


def rescored(root: Path, today: RunConfig | None = None, first: int | None = None, last: int | None = None) -> Outcome:
    return rescore_run(run_of(root, "default"), today, first, last, lambda done, steps: None)


@pytest.fixture(scope="module")
def outcome(made: Path) -> Outcome:
    return rescored(made)


def ledger(root: Path) -> pl.DataFrame:
    """Recorded rewards beside what a plain comparison gives."""
    paths = Paths(root)
    rows = pl.read_parquet(paths.rewards).join(pl.read_parquet(paths.rollout_batches), on=["step", "group", "prompt_id", "completion_index"])
    rows = rows.join(pl.read_parquet(paths.prompts).select("prompt_id", "answer"), on="prompt_id", maintain_order="left")
    right = pl.col("text").str.extract("<answer>(.*)</answer>") == pl.col("answer")
    return rows.with_columns(right=right.cast(pl.Float64)).sort("step", "group", "completion_index")


def printed(found: Outcome) -> str:
    written = StringIO()
    for table in tables(found):
        Console(width=150, file=written).print(table)
    return written.getvalue()


def test_what_changed_is_what_a_loop_over_the_ledger_counts(made: Path, outcome: Outcome) -> None:
    rows = ledger(made)
    wrong = rows.filter(pl.col("right") != pl.col("reward/exact_answer"))
    assert 0 < len(wrong) < len(rows)
    exact, form = outcome.changes.functions
    assert (exact.name, exact.rows, exact.values_changed, exact.largest) == ("exact_answer", 96, len(wrong), 1.0)
    assert (exact.mean_recorded, exact.mean_today) == pytest.approx((rows["reward/exact_answer"].mean(), rows["right"].mean()))
    assert exact.pearson == pytest.approx(rows.select(pl.corr("right", "reward/exact_answer")).item())
    assert (form.name, form.values_changed, form.pearson) == ("answer_format", 0, None)
    assert outcome.changes.rows_changed == len(outcome.changed) == len(wrong)
    assert sorted(outcome.changed["text"]) == sorted(wrong["text"])
    assert outcome.weights == {"exact_answer": (1.0, 1.0), "answer_format": (0.1, 0.1)}
    alike = rows.group_by("step", "group").agg(pl.col("reward/exact_answer").n_unique().alias("then"), pl.col("right").n_unique().alias("today"))
    ranking = outcome.changes.ranking
    assert ranking.groups == len(alike) == 24
    assert ranking.compared == len(alike.filter((pl.col("then") > 1) & (pl.col("today") > 1)))
    assert ranking.now_alike == len(alike.filter((pl.col("then") > 1) & (pl.col("today") == 1)))


def test_the_tables_hold_the_numbers_and_the_texts(outcome: Outcome) -> None:
    text = printed(outcome)
    exact = next(line for line in text.splitlines() if line.startswith("exact_answer"))
    change = outcome.changes.functions[0]
    assert [cell.strip() for cell in exact.split("│")][1:5] == ["1", f"{change.mean_recorded:.4f}", f"{change.mean_today:.4f}", str(change.values_changed)]
    assert outcome.changed["text"][0] in text
    assert "Ranking within groups" in text
    assert "Statuses" not in text, "none changed"


def test_it_says_whose_code_changed_and_what_that_did(outcome: Outcome) -> None:
    changed = outcome.changes.rows_changed
    assert verdict(outcome) == (
        f"reward code of answer_format changed since (hash {'0' * 16}, today {code_hash(['answer_format'])})\n"
        f"reward code of exact_answer changed since (hash {'0' * 16}, today {code_hash(['exact_answer'])})\n"
        f"96 completions of 6 steps scored again: {changed} changed"
    )
    same = replace(outcome, code=[])
    assert verdict(same).startswith("the reward code is the one that the run recorded\n")
    assert verdict(same).endswith(f"{changed} changed (a reward that is not a function of the text, another library version, or a time limit)")
    still = replace(same, changes=replace(outcome.changes, rows_changed=0, steps=1))
    assert verdict(still) == "the reward code is the one that the run recorded\n96 completions of 1 step scored again: nothing changed"
    unknown = replace(still, unknown=["exact_answer"])
    assert verdict(unknown).startswith("reward code of exact_answer: the run did not record its hash\n")
    gone = replace(still, code=[CodeChange("mine:f", "0" * 16, None, "no module")])
    assert verdict(gone).startswith("reward mine:f cannot be loaded any more: no module\n")
    stopped = replace(outcome, changes=replace(outcome.changes, stop=Stop(3, "exact_answer", 2, 16)))
    assert verdict(stopped).endswith("\nthe run would have stopped at step 3: exact_answer failed on 2 of 16 completions")


def test_other_rewards_are_asked_what_they_would_have_given(made: Path) -> None:
    today = RunConfig(rewards={"number_answer": 2.0, "answer_format": 0.1})
    found = rescored(made, today, 2, 3)
    assert (found.changes.steps, found.changes.rows, found.same_settings) == (2, 32, False)
    assert found.weights == {"exact_answer": (1.0, None), "answer_format": (0.1, 0.1), "number_answer": (None, 2.0)}
    rows = ledger(made).filter(pl.col("step").is_between(2, 3))
    assert found.changes.total.mean_today == pytest.approx(2 * sum(rows["right"].to_list()) / 32 + 0.1)
    text = printed(found)
    assert "1 → –" in text
    assert "– → 2" in text
    assert "functions, weights or options are not those of the run" in verdict(found)


def test_rewards_of_another_configuration_leave_the_rest_of_the_run_alone() -> None:
    own = replace(CONFIG, reward_options={"exact_answer": {}}, grpo=replace(CONFIG.grpo, length_penalty=0.5))
    today = RunConfig(
        rewards={"number_answer": 1.0}, reward_options={"number_answer": {}, "math_answer": {}}, scoring=ScoringConfig(timeout_seconds=1.0),
        heldout_eval=replace(own.heldout_eval, metric="math_answer"),
    )  # fmt: skip
    mixed = rewarded_as(own, today)
    assert (mixed.rewards, mixed.scoring, mixed.grpo) == (today.rewards, today.scoring, own.grpo)
    assert dict(mixed.reward_options) == {"number_answer": {}}, "nobody asks math_answer in training"


def test_the_json_has_stable_keys(outcome: Outcome) -> None:
    values = json.loads(as_json(outcome))
    assert list(values) == [
        "run", "reward_code", "unknown_code", "weights", "same_settings", "steps", "rows", "rows_changed", "functions", "total", "ranking", "stop",
    ]  # fmt: skip
    assert list(values["total"]) == [
        "name", "rows", "values_changed", "statuses", "mean_recorded", "mean_today", "largest", "pearson", "spearman", "statuses_changed",
    ]  # fmt: skip
    assert values["reward_code"][0] == {"function": "answer_format", "recorded": "0" * 16, "today": code_hash(["answer_format"]), "why": ""}


def test_steps_that_the_run_has_not_got_are_refused() -> None:
    assert list(chosen_steps(6, None, None)) == [1, 2, 3, 4, 5, 6]
    assert list(chosen_steps(6, 5, None)) == [5, 6]
    with pytest.raises(ValueError, match="steps 5 to 7 cannot be scored again: the run has steps 1 to 6"):
        chosen_steps(6, 5, 7)


def test_rows_are_written_where_they_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    check_place(tmp_path / "changed.parquet", tmp_path)
    for place, said in {"changed.csv": r"name the file .*changed\.parquet", "nowhere/a.parquet": "is no folder", "data/a.parquet": "lies in data/"}.items():
        with pytest.raises(ValueError, match=said):
            check_place(tmp_path / place, tmp_path)


def test_a_table_that_is_nowhere_is_named(made: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(made, tmp_path / "checkout"))
    without(Paths(root).rollout_batches)
    with pytest.raises(RunError, match=r"rollouts\.parquet of default"):
        rescored(root)


def test_the_command_shows_it_writes_the_rows_and_changes_nothing(made: Path, outcome: Outcome, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in sorted((made / "data").rglob("*")) if path.is_file()}
    done = grpo(made, "rescore", "default", "--out", str(tmp_path / "changed.parquet"))
    assert done.returncode == 0, done.stderr
    assert f"96 completions of 6 steps scored again: {len(outcome.changed)} changed" in done.stdout
    assert done.stdout.splitlines()[-1] == f"{len(outcome.changed)} rows written to {tmp_path / 'changed.parquet'}"
    assert pl.read_parquet(tmp_path / "changed.parquet").equals(outcome.changed)
    assert {path: path.read_bytes() for path in sorted((made / "data").rglob("*")) if path.is_file()} == before


def test_the_command_takes_the_rewards_of_an_experiment(made: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(made, tmp_path / "checkout"))
    edit(root, "params.yaml", "\n  default: {}", '\n  default: {}\n  mine: {rewards: {"reward_functions.example:short_and_right": 1.0}}')
    done = grpo(root, "rescore", "default", "--params", "--experiment", "mine", "--step", "4", "--json")
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert (values["steps"], values["rows"]) == (1, 16)
    assert [function["name"] for function in values["functions"]] == ["exact_answer", "answer_format", "reward_functions.example:short_and_right"]
    # No completion is the bare answer: what is left is a thousandth off for every character.
    lengths = ledger(root).filter(pl.col("step") == 4)["text"].str.len_chars()
    assert values["total"]["mean_today"] == pytest.approx(-0.001 * lengths.mean())  # type: ignore[operator]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--step", "3", "--to", "4"], "--step is one step"),
        (["--from", "4", "--to", "3"], "--from 4 lies after --to 3"),
        (["--experiment", "mine"], "it goes with --params"),
    ],
)
def test_options_that_do_nothing_together_are_refused(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(rescore, arguments)
    assert done.exit_code == 2
    assert said in done.output
