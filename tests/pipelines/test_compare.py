"""`grpo compare`: what changed between two runs and what it did, with intervals."""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from assets.paths import Paths
from bench.trace import make_run
from grpo_core.config import SECTIONS, BlindReviewConfig
from grpo_core.params import section_values
from grpo_core.randomness import generator
from grpo_core.statistics import paired_bootstrap
from pipelines.lineage import logged_values
from pipelines.lineage.compare import Change, Comparison, as_json, code_diff, compare, rows_changed
from pipelines.lineage.compare_chart import comparison_chart, write_chart
from pipelines.lineage.effects import Effect, difference, effects, last_groups
from pipelines.lineage.trace import metrics, trace
from pipelines.records.runs import Run
from pipelines.tracking import flatten, open_run
from tests.pipelines.checkouts import copy_checkout
from tests.pipelines.toy_project import git
from tests.pipelines.traced_runs import CONFIG, cells, grpo, make_two_runs, prompts, rewritten, run_of, without

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with two runs that no test changes."""
    root = copy_checkout(tmp_path_factory.mktemp("made"))
    make_two_runs(root)
    return root


@pytest.fixture
def spoilt(made: Path, tmp_path: Path) -> Path:
    """A copy in which a test may break things."""
    return Path(shutil.copytree(made, tmp_path / "checkout"))


def compared(root: Path, a: str = "default", b: str = "other", window: int = 3) -> Comparison:
    return compare(run_of(root, a), run_of(root, b), window)


def by_measure(found: Comparison) -> Mapping[str, Effect]:
    return {effect.measure: effect for effect in found.effects}


def training(root: Path, experiment: str, last: int) -> pl.DataFrame:
    """The last steps' rollouts with their rewards."""
    paths = Paths(root, experiment)
    rows = pl.read_parquet(paths.rollout_batches).join(pl.read_parquet(paths.rewards), on=["step", "group", "prompt_id", "completion_index"])
    return rows.filter(pl.col("step") > 6 - last)


# ------------------------------------------------------------------------------------------------------- what changed


def test_a_run_and_itself_differ_in_nothing(made: Path) -> None:
    found = compared(made, "default", "default")
    assert found.changes == []
    assert found.code_diff == ""
    assert found.same_weights
    assert [(effect.difference, effect.low, effect.high) for effect in found.effects if effect.low is not None] == [(0.0, 0.0, 0.0)] * 10
    assert "Nothing changed, and both policies hold the same weights" in grpo(made, "compare", "default", "default").stdout


def test_every_setting_and_library_that_differs_is_named_with_both_values_and_nothing_else(made: Path) -> None:
    found = compared(made)
    assert found.changes == [Change("configuration", "grpo.learning_rate", 1e-4, 1e-5), Change("library", "torch", "2.13.0", "2.12.0")]
    assert not found.same_weights


def test_machine_and_code_are_compared_key_by_key_but_not_the_host(tmp_path: Path) -> None:
    make_run(tmp_path, "default", CONFIG, prompts())
    make_run(tmp_path, "other", CONFIG, prompts(), host="elsewhere", cpu="Another", threads={"OMP_NUM_THREADS": "2", "torch": 1}, snapshot="d" * 40)
    assert compared(tmp_path).changes == [
        Change("code", "snapshot", "c" * 40, "d" * 40),
        Change("machine", "cpu", "A processor", "Another"),
        Change("machine", "threads.torch", 2, 1),
    ]


def test_rows_of_the_prompts_that_came_went_moved_or_changed_are_counted() -> None:
    def table(rows: list[tuple[str, str, str]]) -> pl.DataFrame:
        return pl.DataFrame(rows, schema=["prompt_id", "split", "answer"], orient="row").with_columns(prompt=pl.col("prompt_id"))

    before = table([("a", "train", "1"), ("b", "train", "2"), ("c", "select", "3"), ("d", "heldout", "4")])
    after = table([("a", "train", "1"), ("b", "heldout", "2"), ("c", "select", "33"), ("e", "train", "5"), ("f", "train", "6")])
    assert rows_changed(before, after) == [
        Change("data", "rows in train", 2, 3),
        Change("data", "rows added", 0, 2),
        Change("data", "rows removed", 0, 1),
        Change("data", "rows with other text or answer", 0, 1),
        Change("data", "rows moved from train to heldout", 0, 1),
    ]
    assert rows_changed(before, before) == []


def test_two_tables_of_prompts_are_compared_by_hash_and_by_row(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "default", CONFIG, prompts())
    make_run(tmp_path / "b", "default", CONFIG, prompts().filter(pl.col("split") != "sft"))
    found = compare(run_of(tmp_path / "a", "default"), run_of(tmp_path / "b", "default"))
    data = {change.what: (change.a, change.b) for change in found.changes if change.kind == "data"}
    left = prompts().filter(pl.col("split") == "sft").height
    assert set(data) == {"prompts sha256", "rows in sft", "rows removed"}
    assert data["rows in sft"] == (left, None)
    assert data["rows removed"] == (0, left)
    without(Paths(tmp_path / "b").prompts)
    gone = compare(run_of(tmp_path / "a", "default"), run_of(tmp_path / "b", "default"))
    assert [change.what for change in gone.changes if change.kind == "data"] == ["prompts sha256"]
    assert "data: rows could not be compared: a table of prompts is not on this machine" in gone.notes


def test_the_difference_of_the_code_leaves_out_what_is_no_code(tmp_path: Path) -> None:
    (tmp_path / "grpo_core").mkdir()
    git_commit(tmp_path, {"grpo_core/loss.py": "a = 1\n", "params.yaml": "a: 1\n"})
    first = git(tmp_path, "rev-parse", "HEAD").strip()
    git_commit(tmp_path, {"grpo_core/loss.py": "a = 2\n", "params.yaml": "a: 2\n"})
    second = git(tmp_path, "rev-parse", "HEAD").strip()
    make_run(tmp_path, "default", CONFIG, prompts(), commit=first, snapshot=first)
    make_run(tmp_path, "other", CONFIG, prompts(), commit=second, snapshot=second)
    shown = compared(tmp_path).code_diff
    assert "grpo_core/loss.py | 2 +-" in shown
    assert "params.yaml" not in shown
    make_run(tmp_path, "other", CONFIG, prompts(), commit=first, snapshot="d" * 40)
    notes: list[str] = []
    a, b = (trace(run_of(tmp_path, name)).made_from for name in ("default", "other"))
    assert code_diff(tmp_path, a, b, notes) == ""
    assert notes[0].startswith("code: snapshot dddddddddddd is not in this Git repository; fetch it")


def git_commit(root: Path, files: Mapping[str, str]) -> None:
    if not (root / ".git").exists():
        git(root, "init", "--quiet")
    for name, text in files.items():
        (root / name).write_text(text)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "code")


def test_what_is_unknown_of_a_run_is_said_and_not_called_a_change(spoilt: Path) -> None:
    for path in Paths(spoilt, "other").provenance("grpo_checkpoint").glob("*.json"):
        path.unlink()
    found = compared(spoilt)
    assert [change.kind for change in found.changes] == ["configuration"]
    assert "code: not known of both runs" in found.notes
    assert any(note.startswith("B: ") and "record" in note for note in found.notes)


# ------------------------------------------------------------------------------------------------------- what it did


def test_means_and_differences_are_those_of_the_last_steps(made: Path) -> None:
    effects = by_measure(compared(made, window=3))
    tables = [training(made, name, 3) for name in ("default", "other")]
    for measure, column in (("reward", "reward"), ("reward/exact_answer", "reward/exact_answer"), ("length", "length")):
        means = [float(np.mean(table[column].to_list())) for table in tables]
        assert [effects[measure].a, effects[measure].b] == pytest.approx(means)
        assert effects[measure].difference == pytest.approx(means[1] - means[0])
        assert effects[measure].over == "12 groups, paired", "both runs drew the same prompts in the same steps"
    curves = [metrics(run_of(made, name)).filter(pl.col("step") > 3) for name in ("default", "other")]
    for measure, column in (("KL", "kl/mean"), ("entropy", "entropy")):
        assert effects[measure].difference == pytest.approx(np.mean(curves[1][column].to_list()) - np.mean(curves[0][column].to_list()))
        assert effects[measure].over == "3 steps, paired"


def test_intervals_hold_their_estimate_and_say_the_same_every_time(made: Path) -> None:
    first, second = compared(made), compared(made)
    assert first.effects == second.effects
    for effect in first.effects:
        if effect.low is not None:
            assert effect.low <= effect.difference <= effect.high  # type: ignore[operator]  # none of them is None


def test_groups_are_not_paired_when_the_runs_drew_other_prompts(tmp_path: Path) -> None:
    make_run(tmp_path, "default", CONFIG, prompts())
    make_run(tmp_path, "other", replace(CONFIG, grpo=replace(CONFIG.grpo, seed=8)), prompts())
    assert by_measure(compared(tmp_path, window=2))["reward"].over == "8 groups"


def test_pairing_takes_the_difficulty_of_prompts_out_of_the_interval() -> None:
    random = np.random.default_rng(0)
    difficulty = random.normal(0, 1, 160)
    first, second = (difficulty + random.normal(shift, 0.1, 160) for shift in (0.0, 0.05))
    paired = paired_bootstrap(first.tolist(), second.tolist(), resamples=2000, generator=generator("t"))
    apart = difference(first.tolist(), second.tolist(), resamples=2000, generator=generator("t"))
    assert apart.estimate == pytest.approx(paired.estimate)
    assert paired.low > 0 > apart.low
    assert (apart.high - apart.low) > 5 * (paired.high - paired.low)


def test_an_interval_without_pairs_is_as_wide_as_the_normal_one() -> None:
    random = np.random.default_rng(1)
    first, second = random.normal(0, 1, 400), random.normal(0.5, 2, 300)
    found = difference(first.tolist(), second.tolist(), resamples=4000, generator=generator("t"))
    half = 1.96 * math.sqrt(first.var(ddof=1) / 400 + second.var(ddof=1) / 300)
    assert found.estimate == pytest.approx(second.mean() - first.mean())
    assert found.high - found.estimate == pytest.approx(half, rel=0.08)
    assert found.estimate - found.low == pytest.approx(half, rel=0.08)
    with pytest.raises(ValueError, match="got 0 and 2"):
        difference([], [1.0, 2.0], resamples=10, generator=generator("t"))


def test_a_completion_without_an_opinion_is_left_out_of_its_group(spoilt: Path) -> None:
    first = pl.col("completion_index") == 0
    rewritten(Paths(spoilt).rewards, reward=pl.when(first).then(None).otherwise(pl.col("reward")))
    run = run_of_changed_ledger(spoilt)
    groups = last_groups(run, 6)
    expected = pl.read_parquet(Paths(spoilt).rewards).filter(~first).group_by("step", "group").agg(pl.col("reward").mean())
    assert sorted(groups["reward"]) == pytest.approx(sorted(expected["reward"]))


def test_completions_that_were_not_simply_scored_are_compared_where_there_are_any(spoilt: Path) -> None:
    assert not {"invalid", "reward errors"} & set(by_measure(compared(spoilt)))
    kind = pl.when(pl.col("completion_index") == 0).then(pl.lit("invalid")).when(pl.col("completion_index") < 3).then(pl.lit("error"))
    rewritten(Paths(spoilt).rewards, status=kind.otherwise(pl.lit("ok")))
    found, _ = effects(run_of(spoilt, "other"), run_of_changed_ledger(spoilt), trace(run_of(spoilt, "other")), trace(run_of(spoilt, "default")), 3)
    by_name = {effect.measure: effect for effect in found}
    assert (by_name["invalid"].a, by_name["invalid"].b, by_name["invalid"].difference) == (0.0, 0.25, 0.25)
    assert (by_name["reward errors"].b, by_name["reward errors"].over) == (0.5, "12 groups, paired")


def run_of_changed_ledger(root: Path) -> Run:
    """The default run whose records name the rewards as they are now."""
    from pipelines.lock import file_md5

    run, path = run_of(root, "default"), "data/rewards/default/rewards.parquet"
    record = run.records["grpo_checkpoint"]
    return replace(run, records={**run.records, "grpo_checkpoint": {**record, "outs": {**record["outs"], path: file_md5(root / path)}}})


def test_held_out_accuracy_is_paired_by_prompt_and_each_has_wilsons_interval(made: Path) -> None:
    effect = by_measure(compared(made))["held-out accuracy"]
    right = []
    for name in ("default", "other"):
        rows = pl.read_parquet(Paths(made, name).heldout_completions).filter(pl.col("model") == "policy", pl.col("decoding") == "greedy")
        right.append(rows.sort("prompt_id")["correct"].cast(pl.Float64).to_list())
    assert (effect.a, effect.b) == (np.mean(right[0]), np.mean(right[1]))
    assert effect.difference == pytest.approx(np.mean(right[1]) - np.mean(right[0]))
    assert effect.over == f"{len(right[0])} prompts, paired"
    assert effect.a_low is not None and effect.a_high is not None
    assert effect.a_low < np.mean(right[0]) < effect.a_high
    assert by_measure(compared(made))["held-out KL"].difference == pytest.approx(0.2)


def test_only_prompts_that_both_answered_are_paired(tmp_path: Path) -> None:
    table = prompts()
    make_run(tmp_path / "a", "default", CONFIG, table)
    few = replace(CONFIG, heldout_eval=replace(CONFIG.heldout_eval, max_prompts=5), blind_review_set=BlindReviewConfig(num_pairs=5))
    make_run(tmp_path / "b", "default", few, table)
    found = compare(run_of(tmp_path / "a", "default"), run_of(tmp_path / "b", "default"))
    assert by_measure(found)["held-out accuracy"].over == "5 prompts, paired"
    there = table.filter(pl.col("split") == "heldout").height
    assert f"held-out: of {there} and 5 prompts 5 are common: differences are over these" in found.notes


def test_the_last_evaluation_on_select_is_compared(made: Path) -> None:
    effect = by_measure(compared(made))["select accuracy"]
    last = [pl.read_parquet(Paths(made, name).select_completions).filter(pl.col("step") == 6) for name in ("default", "other")]
    assert [effect.a, effect.b] == pytest.approx([sum(table["correct"]) / len(table) for table in last])
    assert effect.over == f"{len(last[0])} prompts, paired"


def test_without_the_ledger_curves_stand_in_and_it_is_said(spoilt: Path) -> None:
    whole = by_measure(compared(spoilt))
    without(Paths(spoilt).rollout_batches)
    without(Paths(spoilt, "other").select_completions)
    without(Paths(spoilt, "other").heldout_completions)
    found = compared(spoilt)
    effects = by_measure(found)
    for measure in ("reward", "length"):
        assert effects[measure].difference == pytest.approx(whole[measure].difference)
        assert effects[measure].over == "3 steps, paired"
    assert effects["select accuracy"].over == "one number of each"
    assert effects["held-out accuracy"].low is None
    assert effects["held-out accuracy"].difference == pytest.approx(whole["held-out accuracy"].difference)
    for beginning in ("training: the ledger of both runs is not", "selection: answers of both runs are not", "held-out: answers of both policies are not"):
        assert any(note.startswith(beginning) for note in found.notes)


def test_parameters_that_mlflow_keeps_flat_become_the_sections_they_were() -> None:
    own = "reward_functions.example:short_and_right"
    config = replace(
        CONFIG, rewards={own: 0.5, "regex_format": 1.0}, reward_options={own: {"target": 3}, "regex_format": {"pattern": "a.b"}},
        scoring=replace(CONFIG.scoring, acknowledged_exploits={"regex_format/echo": "it is harmless"}),
    )  # fmt: skip
    for given in (config, CONFIG):
        sections = {section: section_values(given, section) for section in SECTIONS}
        assert logged_values.nested(flatten(sections)) == sections
    assert logged_values.nested({}) == {}


def test_a_run_that_only_mlflow_knows_is_compared_by_what_it_holds(spoilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    whole, run = by_measure(compared(spoilt)), run_of(spoilt, "other")
    config = replace(CONFIG, grpo=replace(CONFIG.grpo, learning_rate=1e-5))
    sink = open_run(spoilt, "other", run.run_key, {section: section_values(config, section) for section in SECTIONS}, {})
    sink.replay(Paths(spoilt, "other").grpo_checkpoint / "metrics.jsonl", spoilt / "none.jsonl", 6)
    sink.log_summary(trace(run).heldout)
    logged_values._read.cache_clear()
    shutil.rmtree(Paths(spoilt, "other").grpo_checkpoint)
    for path in (Paths(spoilt, "other").rollout_batches, Paths(spoilt, "other").heldout_completions, Paths(spoilt, "other").heldout_summary):
        path.unlink()
    for record in (*Paths(spoilt, "other").provenance("heldout_eval").glob("*.json"), *Paths(spoilt).provenance("run_config").glob("*.json")):
        record.unlink()
    shutil.rmtree(Paths(spoilt).run_config / "other")
    found = compare(run_of(spoilt, "default"), replace(run, records={"grpo_checkpoint": run.records["grpo_checkpoint"]}, mlflow_run_id=sink.run_id), 3)
    assert Change("configuration", "grpo.learning_rate", 1e-4, 1e-5) in found.changes
    assert [change.what for change in found.changes if change.kind == "configuration"] == ["grpo.learning_rate"]
    effects = by_measure(found)
    for measure in ("reward", "length", "entropy", "held-out accuracy"):
        assert effects[measure].difference == pytest.approx(whole[measure].difference)


def test_measures_of_the_same_name_that_are_not_the_same_are_pointed_out(tmp_path: Path) -> None:
    make_run(tmp_path, "default", CONFIG, prompts())
    other = replace(CONFIG, rewards={"exact_answer": 2.0}, heldout_eval=replace(CONFIG.heldout_eval, metric="number_answer"))
    make_run(tmp_path, "other", other, prompts())
    notes = compared(tmp_path).notes
    assert any(note.startswith("reward: the two runs were not rewarded by the same") for note in notes)
    assert "held-out: accuracy is by exact_answer in A and by number_answer in B" in notes
    assert not any(note.startswith("KL: ") for note in notes)


# ------------------------------------------------------------------------------------------------------ the command


def test_the_command_shows_changes_and_effects_and_imports_nothing_heavy(made: Path) -> None:
    result = grpo(made, "compare", "default", "other", "--last", "3")
    assert (result.returncode, result.stderr) == (0, "heavy:\n")
    rows = cells(result.stdout)
    assert ["configuration", "grpo.learning_rate", "0.0001", "1e-05"] in rows
    assert ["library", "torch", "2.13.0", "2.12.0"] in rows
    assert "of training the last 3 steps" in result.stdout
    assert {"reward", "length", "entropy", "held-out accuracy"} <= {row[0] for row in rows}


def test_the_json_has_stable_keys(made: Path) -> None:
    result = grpo(made, "compare", "default", "other", "--json")
    values = json.loads(result.stdout)
    assert list(values) == ["a", "b", "window", "changes", "code_diff", "effects", "same_weights", "notes"]
    assert list(values["changes"][0]) == ["kind", "what", "a", "b"]
    assert list(values["effects"][0]) == ["measure", "a", "b", "difference", "low", "high", "a_low", "a_high", "b_low", "b_high", "over"]
    assert values == json.loads(as_json(compared(made, window=10)))


def test_the_chart_shows_the_curves_of_both(made: Path, tmp_path: Path) -> None:
    assert grpo(made, "compare", "default", "other", "--chart", str(tmp_path / "both.png")).returncode == 0
    drawn = (tmp_path / "both.png").read_bytes()
    assert drawn.startswith(PNG)
    a, b = (metrics(run_of(made, name)) for name in ("default", "other"))
    names = (run_of(made, "default").label(), run_of(made, "other").label())
    assert drawn == comparison_chart(a, b, names)
    assert drawn != comparison_chart(a, a, names), "the second run's curves are in it"
    assert comparison_chart(pl.DataFrame(), pl.DataFrame(), names).startswith(PNG), "nothing to draw is a picture, too"


@pytest.mark.parametrize(("name", "message"), [("both.jpg", "name the file both.png"), ("none/both.png", "none is no folder")])
def test_a_chart_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        write_chart(Path(name), PNG)
