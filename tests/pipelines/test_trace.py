"""`grpo trace`: what a run was made from, and every completion of a prompt; and the same on the policy's page."""

import hashlib
import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from assets.lineage import changed_settings, lineage, table_rows
from assets.paths import Paths
from bench.trace import make_run
from grpo_core.config import SECTIONS
from pipelines.lineage.prompt_trace import PromptTraceError, ends, trace_prompt
from pipelines.lineage.trace import as_json, outputs, trace
from pipelines.lineage.trace_tables import part_headings
from pipelines.lock import file_md5
from pipelines.pages import made_from, metadata_value
from pipelines.records.dvc_cache import object_path
from pipelines.records.files import read_records, write_record
from tests.assets.lifecycle import make_lifecycle
from tests.pipelines.checkouts import copy_checkout
from tests.pipelines.traced_runs import CONFIG, cells, grpo, make_two_runs, prompts, rewritten, run_of, without


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


def missing_of(root: Path) -> str:
    return "\n".join(trace(run_of(root, "default")).missing)


# ------------------------------------------------------------------------------------------------------- made from


def test_a_run_is_traced_to_its_data_settings_code_and_machine(made: Path) -> None:
    found = trace(run_of(made, "other")).made_from
    paths = Paths(made, "other")
    table = pl.read_parquet(paths.prompts)
    assert found.prompts["sha256"] == hashlib.sha256(paths.prompts.read_bytes()).hexdigest()
    assert found.prompts["splits"] == {split: len(rows) for (split,), rows in table.group_by("split")}
    assert found.prompts["num_rows"] == len(table) == 300
    assert found.prompts["sources"] == {"generated": 300}
    assert found.step == 6
    assert set(found.config) == set(SECTIONS)
    assert changed_settings(found.config)["grpo.learning_rate"] == (1e-5, 1e-4)
    manifest = json.loads((paths.grpo_checkpoint / "manifest.json").read_text())
    assert found.run_key == manifest["run_key"]
    assert found.weights["policy"]["policy_digest"] == manifest["policy_digest"]
    assert found.weights["reference"]["manifest_sha256"] == hashlib.sha256((paths.reference_checkpoint / "manifest.json").read_bytes()).hexdigest()
    assert found.weights["reference"]["parent"] == found.weights["start"]["manifest_sha256"]
    assert found.code == {"commit": "c" * 40, "dirty": False, "snapshot": "c" * 40}
    assert found.libraries["torch"] == "2.12.0"
    assert found.machine["threads"] == {"OMP_NUM_THREADS": "2", "torch": 2}
    assert set(found.stages) == {"run_config", "prompts", "sft_checkpoint", "reference_checkpoint", "grpo_checkpoint", "heldout_eval"}
    assert found.missing == ()


def test_each_step_is_what_a_loop_over_the_ledger_counts(made: Path) -> None:
    paths = Paths(made)
    rollouts, rewards = pl.read_parquet(paths.rollout_batches), pl.read_parquet(paths.rewards)
    steps = trace(run_of(made, "default")).steps
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    for row in steps:
        drawn, earned = rollouts.filter(pl.col("step") == row["step"]), rewards.filter(pl.col("step") == row["step"])
        assert row["completions"] == len(drawn) == 16
        assert row["prompts"] == len(set(drawn["prompt_id"]))
        assert row["tokens"] == sum(map(len, drawn["token_ids"]))
        assert row["reward"] == pytest.approx(sum(earned["reward"]) / 16)
        assert row["length"] == pytest.approx(row["tokens"] / 16)
        assert [row["policy_digest"]] == drawn["policy_digest"].unique().to_list()


def test_evaluations_carry_intervals_and_the_summary_is_the_written_one(made: Path) -> None:
    found = trace(run_of(made, "default"))
    answers = pl.read_parquet(Paths(made).select_completions)
    assert [row["step"] for row in found.select] == [0, 3, 6]
    last = answers.filter(pl.col("step") == 6)
    assert found.select[-1]["accuracy"] == pytest.approx(sum(last["correct"]) / len(last))
    assert found.select[-1]["accuracy_low"] < found.select[-1]["accuracy"] < found.select[-1]["accuracy_high"]
    assert found.heldout == json.loads(Paths(made).heldout_summary.read_text())


def test_the_json_has_stable_keys_and_every_step(made: Path) -> None:
    values = json.loads(as_json(trace(run_of(made, "default"))))
    assert list(values) == ["run", "made_from", "steps", "select", "heldout", "files", "missing"]
    assert list(values["made_from"]) == [
        "experiment", "run_key", "step", "weights", "prompts", "config", "reward_code_hash", "code", "libraries", "machine", "stages", "missing",
    ]  # fmt: skip
    assert list(values["steps"][0]) == ["step", "prompts", "completions", "tokens", "reward", "length", "policy_digest"]
    assert len(values["steps"]) == 6
    assert list(values["files"]) == outputs("default")
    assert values["files"]["data/rewards/default/rewards.parquet"] == str(Paths(made).rewards)
    assert values["files"]["data/blind_review_set/default/pairs.parquet"] is None, "it was not made"


def test_a_ledger_that_is_gone_is_named_and_the_curves_tell_of_the_steps(spoilt: Path) -> None:
    whole = trace(run_of(spoilt, "default"))
    without(Paths(spoilt).rollout_batches)
    without(Paths(spoilt).select_completions)
    found = trace(run_of(spoilt, "default"))
    assert [row["policy_digest"] for row in found.steps] == [None] * 6
    for row, before in zip(found.steps, whole.steps, strict=True):
        assert (row["tokens"], row["reward"], row["length"]) == (before["tokens"], pytest.approx(before["reward"]), pytest.approx(before["length"]))
    assert found.select == []
    assert found.files["data/rollout_batches/default/rollouts.parquet"] is None
    assert "data/rollout_batches/default/rollouts.parquet: " in "\n".join(found.missing)
    assert "neither in the workspace nor in DVC's cache" in "\n".join(found.missing)


def test_another_table_of_prompts_is_not_passed_off_as_the_one_it_learned_from(spoilt: Path) -> None:
    paths = Paths(spoilt)
    records = run_of(spoilt, "default").records
    rewritten(paths.prompts, answer=pl.lit("7"))
    found = lineage("default", records, lambda path: spoilt / path)
    assert "splits" not in found.prompts
    assert found.prompts["sha256"] != hashlib.sha256(paths.prompts.read_bytes()).hexdigest()
    assert any("is another table than this policy learned from" in reason for reason in found.missing)


def test_settings_that_were_changed_after_the_run_are_not_passed_off_as_its_own(spoilt: Path) -> None:
    paths = Paths(spoilt)
    path = paths.run_config / "prompts.json"
    path.write_text(path.read_text().replace("300", "301"))
    found = lineage("default", run_of(spoilt, "default").records, lambda name: spoilt / name)
    assert "prompts" not in found.config
    assert "data/run_config/prompts.json was changed after the run" in found.missing


def test_without_a_summary_the_accuracies_are_counted_from_the_answers(spoilt: Path) -> None:
    paths = Paths(spoilt)
    for record in read_records(paths, "heldout_eval"):
        write_record(paths, {**record, "metrics": {}})
    without(paths.heldout_summary)
    found = trace(run_of(spoilt, "default")).heldout
    greedy = pl.read_parquet(paths.heldout_completions).filter(pl.col("decoding") == "greedy", pl.col("model") == "policy")
    assert found["policy_accuracy"] == pytest.approx(sum(greedy["correct"]) / len(greedy))
    assert found["policy_accuracy_low"] < found["policy_accuracy"] < found["policy_accuracy_high"]


# --------------------------------------------------------------------------------------------------------- a prompt


@pytest.fixture(scope="module")
def trained_on(made: Path) -> str:
    """A prompt that both runs sampled."""
    tables = [pl.read_parquet(Paths(made, name).rollout_batches)["prompt_id"] for name in ("default", "other")]
    return sorted(set(tables[0]) & set(tables[1]))[0]


def test_a_prompt_has_every_completion_that_was_sampled_for_it(made: Path, trained_on: str) -> None:
    found = trace_prompt(made, trained_on)
    assert found.prompt["prompt"] == pl.read_parquet(Paths(made).prompts).filter(pl.col("prompt_id") == trained_on)["prompt"][0]
    expected = 0
    for name in ("default", "other"):
        drawn = pl.read_parquet(Paths(made, name).rollout_batches).filter(pl.col("prompt_id") == trained_on)
        earned = pl.read_parquet(Paths(made, name).rewards).filter(pl.col("prompt_id") == trained_on)
        rows = [row for row in found.training if row["experiment"] == name]
        assert [row["text"] for row in rows] == drawn["text"].to_list()
        assert [row["reward"] for row in rows] == earned["reward"].to_list()
        assert [row["advantage"] for row in rows] == earned["advantage"].to_list()
        assert [row["parts"]["exact_answer"] for row in rows] == earned["reward/exact_answer"].to_list()
        assert [row["policy_digest"] for row in rows] == drawn["policy_digest"].to_list()
        expected += len(drawn)
    assert len(found.training) == expected > 0
    assert found.select == found.heldout == []


@pytest.fixture
def nobody_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """No prompt is under blind review."""
    monkeypatch.setattr("pipelines.lineage.prompt_trace.under_review", lambda *given: frozenset())


def test_held_out_answers_that_people_judge_blind_are_withheld(made: Path) -> None:
    name = pl.read_parquet(Paths(made).prompts).filter(pl.col("split") == "heldout")["prompt_id"][0]
    found = trace_prompt(made, name, run_of(made, "default"))
    assert (found.heldout, found.withheld) == ([], ["default"])
    shown = grpo(made, "trace", "--prompt", name).stdout
    assert "Withheld: people judge held-out answers to this prompt blind (default" in " ".join(shown.split())


@pytest.mark.usefixtures("nobody_judges")
@pytest.mark.parametrize(("split", "kind", "rows"), [("select", "select", 3), ("heldout", "heldout", 6)])
def test_a_prompt_that_is_never_trained_on_has_the_answers_of_evaluations(made: Path, split: str, kind: str, rows: int) -> None:
    name = pl.read_parquet(Paths(made).prompts).filter(pl.col("split") == split)["prompt_id"][0]
    found = trace_prompt(made, name, run_of(made, "default"))
    assert found.training == []
    answers = getattr(found, kind)
    assert len(answers) == rows
    assert {answer["policy_digest"] is not None for answer in answers} == {True}
    assert {answer["model"] for answer in answers} == ({"policy"} if kind == "select" else {"policy", "reference"})
    assert all(answer["reward"] == pytest.approx(answer["parts"]["exact_answer"] + 0.1) for answer in answers)


def test_a_run_narrows_the_search_to_its_own_ledger(made: Path, trained_on: str) -> None:
    assert {row["experiment"] for row in trace_prompt(made, trained_on).training} == {"default", "other"}
    assert {row["experiment"] for row in trace_prompt(made, trained_on, run_of(made, "other")).training} == {"other"}


def test_a_prompt_is_named_by_the_beginning_of_its_id_or_by_its_text(made: Path, trained_on: str) -> None:
    text = trace_prompt(made, trained_on).prompt["prompt"]
    assert trace_prompt(made, trained_on[:10]).prompt["prompt_id"] == trained_on
    assert trace_prompt(made, text).prompt["prompt_id"] == trained_on


def test_a_name_that_fits_several_prompts_or_none_says_which_are_near(made: Path, trained_on: str) -> None:
    with pytest.raises(PromptTraceError, match=rf"^'{trained_on[0]}' is the beginning of \d+ prompts: write more of the id \([0-9a-f]{{16}} "):
        trace_prompt(made, trained_on[0])
    wrong = trained_on[:-1] + "x"
    with pytest.raises(PromptTraceError, match=rf"^no prompt '{wrong}': near ones are .*{trained_on}"):
        trace_prompt(made, wrong)
    text = trace_prompt(made, trained_on).prompt["prompt"]
    with pytest.raises(PromptTraceError, match=r"^no prompt 'zzzzzz': none is near"):
        trace_prompt(made, "zzzzzz")
    with pytest.raises(PromptTraceError, match=rf"^no prompt '.*': near ones are {trained_on} '"):
        trace_prompt(made, text[:-1])
    with pytest.raises(PromptTraceError, match="got nothing"):
        trace_prompt(made, " ")


def test_a_prompt_that_only_the_ledger_knows_is_found_there(spoilt: Path, trained_on: str) -> None:
    prompts = Paths(spoilt).prompts
    kept = pl.read_parquet(prompts).filter(pl.col("prompt_id") != trained_on)
    prompts.unlink()
    kept.write_parquet(prompts)
    found = trace_prompt(spoilt, trained_on[:12])
    assert found.prompt == {"prompt_id": trained_on}
    assert len(found.training) > 0


def test_before_anything_was_made_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(PromptTraceError, match="there is neither a table of prompts nor a ledger yet"):
        trace_prompt(tmp_path, "abc")


def retrained(root: Path) -> tuple[str, str]:
    """Keep the tables of `default` in DVC's cache, then train it anew with another seed; the keys of the earlier and the later run."""
    paths, earlier = Paths(root), run_of(root, "default").run_key
    for table in (paths.rollout_batches, paths.rewards, paths.select_completions, paths.heldout_completions):
        kept = object_path(root, file_md5(table))
        kept.parent.mkdir(parents=True, exist_ok=True)
        table.rename(kept)
    make_run(root, "default", CONFIG, prompts(), seed=5, started="2026-01-02T00:00:00+00:00")
    return earlier, run_of(root, "default").run_key


@pytest.mark.usefixtures("nobody_judges")
def test_completions_of_runs_that_are_no_longer_in_the_workspace_are_found_by_their_record(spoilt: Path, trained_on: str) -> None:
    before = trace_prompt(spoilt, trained_on)
    earlier, later = retrained(spoilt)
    found = trace_prompt(spoilt, trained_on)
    old = [row for row in found.training if row["run"] == earlier]
    assert old == [row for row in before.training if row["experiment"] == "default"] != []
    drawn = pl.read_parquet(Paths(spoilt).rollout_batches).filter(pl.col("prompt_id") == trained_on)
    assert [row["text"] for row in found.training if row["run"] == later] == drawn["text"].to_list()
    assert len(found.training) == len(before.training) + len(drawn)
    assert found.unsearched == []
    asked = pl.read_parquet(Paths(spoilt).heldout_completions)["prompt_id"][0]
    answers = trace_prompt(spoilt, asked).heldout
    assert [sum(row["run"] == key for row in answers) for key in (earlier, later)] == [6, 6]
    shown = grpo(spoilt, "trace", "--prompt", trained_on).stdout
    assert earlier[:8] in shown and later[:8] in shown and "Not all of it" not in shown


def test_recorded_runs_whose_tables_are_gone_are_counted(spoilt: Path, trained_on: str) -> None:
    earlier, later = retrained(spoilt)
    shutil.rmtree(spoilt / ".dvc")
    found = trace_prompt(spoilt, trained_on)
    assert found.unsearched == [f"default ({earlier[:8]})"]
    assert {row["run"] for row in found.training if row["experiment"] == "default"} == {later}
    shown = " ".join(grpo(spoilt, "trace", "--prompt", trained_on).stdout.split())
    assert f"1 recorded run could not be searched, as tables of theirs are not on this machine: default ({earlier[:8]})" in shown


def test_a_run_that_was_extended_has_each_completion_once(spoilt: Path, trained_on: str) -> None:
    paths = Paths(spoilt)
    whole = trace_prompt(spoilt, trained_on, run_of(spoilt, "default")).training
    (record,) = read_records(paths, "grpo_checkpoint")
    outs = dict(record["outs"])
    for table in (paths.rollout_batches, paths.rewards):
        shorter = spoilt / "shorter.parquet"
        pl.read_parquet(table).filter(pl.col("step") <= 3).write_parquet(shorter)
        md5 = outs[table.relative_to(spoilt).as_posix()] = file_md5(shorter)
        object_path(spoilt, md5).parent.mkdir(parents=True, exist_ok=True)
        shorter.rename(object_path(spoilt, md5))
    outs["data/grpo_checkpoint/default"] = "0" * 32 + ".dir"
    write_record(paths, {**record, "outs": outs, "started": "2025-01-01T00:00:00+00:00"})
    found = trace_prompt(spoilt, trained_on)
    assert len(found.files) == len(trace_prompt(spoilt, trained_on, run_of(spoilt, "default")).files) * 2 + 3
    assert sorted(map(str, (row for row in found.training if row["experiment"] == "default"))) == sorted(map(str, whole))


def test_tables_that_no_record_names_are_searched_as_well(spoilt: Path, trained_on: str) -> None:
    shutil.rmtree(spoilt / ".work")
    found = trace_prompt(spoilt, trained_on)
    assert {(row["experiment"], row["run"]) for row in found.training} == {("default", None), ("other", None)}
    assert all(row["reward"] is not None for row in found.training)


def test_both_ends_of_a_long_list_are_kept() -> None:
    rows = [{"step": step} for step in range(10)]
    assert [row["step"] for row in ends(rows, 3)] == [0, 1, 9]
    assert ends(rows, 10) == rows


# ------------------------------------------------------------------------------------------------------ the command


def test_the_command_shows_a_run_and_imports_nothing_heavy(made: Path) -> None:
    result = grpo(made, "trace", "other")
    assert (result.returncode, result.stderr) == (0, "heavy:\n")
    assert "What other (" in result.stdout
    assert "grpo.learning_rate 1e-05 (0.0001)" in result.stdout
    assert [row[0] for row in cells(result.stdout) if row[0].isdigit()] == ["1", "2", "3", "4", "5", "6", "0", "3", "6"]
    assert "model.hidden_size" not in result.stdout
    settings = grpo(made, "trace", "other", "--all").stdout
    assert "model.hidden_size" in settings
    assert "1e-05  (default 0.0001)" in settings


def test_the_command_without_a_name_is_about_the_default_experiment(made: Path) -> None:
    assert json.loads(grpo(made, "trace", "--json").stdout)["run"]["experiment"] == "default"


def test_the_command_shows_a_prompt_and_imports_nothing_heavy(made: Path, trained_on: str) -> None:
    result = grpo(made, "trace", "--prompt", trained_on)
    assert (result.returncode, result.stderr) == (0, "heavy:\n")
    sampled = trace_prompt(made, trained_on).training
    assert f"Training: {len(sampled)} completions" in result.stdout
    rows = [row for row in cells(result.stdout) if row[0] in ("default", "other")]
    assert len(rows) == len(sampled)
    assert rows[0][-1].startswith("<think>")
    limited = grpo(made, "trace", "--prompt", trained_on, "--limit", "2").stdout
    assert f"Training: {len(sampled)} completions, of which 2 (the first and the last)" in limited
    assert len([row for row in cells(limited) if row[0] in ("default", "other")]) == 2
    assert len(json.loads(grpo(made, "trace", "--prompt", trained_on, "--json").stdout)["training"]) == len(sampled)


def test_a_completion_cannot_steer_the_terminal(spoilt: Path, trained_on: str) -> None:
    rewritten(Paths(spoilt).rollout_batches, text=pl.lit("[red]a\x1b]0;title\x07\x1b[2Jb"))
    shown = grpo(spoilt, "trace", "--prompt", trained_on).stdout
    assert "\x1b" not in shown
    assert "[red]a\\x1b]0;title\\x07\\x1b[2Jb" in shown, "markup is text, too"


def test_a_completion_that_was_not_simply_scored_says_what_became_of_it_and_why(spoilt: Path, trained_on: str) -> None:
    first = pl.col("completion_index") == 0
    invalid = {name: pl.when(first).then(pl.lit("invalid")).otherwise(pl.lit("ok")) for name in ("status", "status/exact_answer")}
    before = grpo(spoilt, "trace", "--prompt", trained_on).stdout
    rewritten(Paths(spoilt).rewards, reason=pl.when(first).then(pl.lit("exact_answer: its program hung")), **invalid)
    found = trace_prompt(spoilt, trained_on).training
    rows = [row for row in found if row["experiment"] == "default"]
    assert [row["status"] for row in rows] == ["invalid" if row["completion_index"] == 0 else "ok" for row in rows]
    assert [row["statuses"] for row in rows] == [{"exact_answer": "invalid"} if row["completion_index"] == 0 else {} for row in rows]
    shown = grpo(spoilt, "trace", "--prompt", trained_on).stdout
    assert "why" in shown
    assert "hung" in shown
    assert shown.count("invalid") == len([row for row in rows if row["status"] == "invalid"]) > 0
    assert "status" not in before, "a column that says ok throughout is left out"


def test_reward_functions_are_headed_by_their_own_names_unless_these_are_taken() -> None:
    parts = {"exact_answer": 1.0, "mine:brevity": 2.0, "mine:reward": 3.0, "a:same": 4.0, "b:same": 5.0}
    assert part_headings(parts) == {"exact answer": 1.0, "brevity": 2.0, "mine:reward": 3.0, "a:same": 4.0, "b:same": 5.0}


def test_a_damaged_table_is_one_clear_line(spoilt: Path) -> None:
    path = Paths(spoilt).rollout_batches
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    result = grpo(spoilt, "trace", "--prompt", "0" * 16)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.splitlines()[0].startswith("Error: a table of the ledger cannot be read (")
    assert "`grpo verify` says which file is damaged" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trace", "--limit", "3"], "--limit goes with --prompt"),
        (["trace", "--prompt", "abc", "--steps"], "--steps and --all show a run"),
    ],
)
def test_options_that_do_nothing_together_are_refused(made: Path, arguments: list[str], message: str) -> None:
    result = grpo(made, *arguments)
    assert (result.returncode, message in result.stderr) == (2, True)


def test_an_unknown_run_is_one_clear_line(made: Path) -> None:
    result = grpo(made, "trace", "defualt")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: 'defualt' is no run: trained experiments here are default, other")


# ---------------------------------------------------------------------------------------------------------- the page


def test_the_page_says_what_the_policy_was_made_from(made: Path) -> None:
    rows = dict(made_from(Paths(made, "other")).frame.rows())
    changed = [text for _, text in made_from(Paths(made, "other")).frame.rows()]
    assert {"prompts.num_generated 300 (10000)", "grpo.learning_rate 1e-05 (0.0001)", "heldout_eval.samples_per_prompt 2 (4)"} <= set(changed)
    assert rows["libraries"] == "torch 2.12.0, transformers 5.24.0, polars 2.1.0"
    assert rows["commit"] == "c" * 12
    assert rows["reward code"] == "0" * 16
    assert "not found" not in rows
    page = metadata_value(made_from(Paths(made, "other"))).value
    assert isinstance(page, str)
    assert page.count("\n") == len(changed) + 1, "every row is on the page, under a heading of two lines"


def test_the_page_and_the_command_name_the_same_records(spoilt: Path) -> None:
    """Of two records of one policy the newer is not the one that dvc.lock names."""
    paths = Paths(spoilt)
    (record,) = read_records(paths, "grpo_checkpoint")
    write_record(paths, {**record, "outs": {**record["outs"], "data/rewards/default/rewards.parquet": "0" * 32}, "started": "2027", "commit": "d" * 40})
    rows = made_from(paths).frame.rows()
    assert rows == table_rows(trace(run_of(spoilt, "default")).made_from)
    assert dict(rows)["commit"] == "c" * 12


def test_an_altered_record_is_not_believed(spoilt: Path) -> None:
    (path,) = Paths(spoilt).provenance("grpo_checkpoint").glob("*.json")
    path.write_text(path.read_text().replace('"snapshot": "' + "c" * 40, '"snapshot": "' + "d" * 40))
    result = grpo(spoilt, "trace")
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{path} was altered, its sha256 is not that of its fields: delete it" in result.stderr


def test_the_page_of_a_run_without_a_record_says_so(tmp_path: Path) -> None:
    paths = make_lifecycle(tmp_path)
    rows = dict(made_from(paths).frame.rows())
    assert rows["prompts"] == "26 rows: train 10, heldout 6, sft 6, select 4"
    assert rows["run"].endswith(", 4 steps")
    assert "the record of the training" in "".join(text for name, text in made_from(paths).frame.rows())
    assert "commit" not in rows


def test_the_page_of_nothing_says_what_is_missing_and_does_not_fail(tmp_path: Path) -> None:
    text = "\n".join(text for _, text in made_from(Paths(tmp_path)).frame.rows())
    assert "data/grpo_checkpoint/default: No such file or directory" in text
    assert "data/prompts/prompts.parquet: No such file or directory" in text


def test_a_damaged_record_does_not_cost_the_page(spoilt: Path) -> None:
    paths = Paths(spoilt)
    for path in paths.provenance("grpo_checkpoint").glob("*.json"):
        path.write_text("{")
    rows = dict(made_from(paths).frame.rows())
    assert "commit" not in rows
    assert rows["run"].endswith(", 6 steps")
    assert "is not JSON" in rows["not found"]
