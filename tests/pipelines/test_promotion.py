"""Only what is whole and holds becomes the champion; whoever overrides is remembered; a promotion stopped anywhere is ended by the same command."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from assets.chained import read
from assets.paths import Paths
from grpo_core.checkpoint import MANIFEST, file_sha256, read_manifest
from pipelines import champion
from pipelines.champion import PromotionError, history, weights_of
from pipelines.commands import promote as command
from pipelines.evidence import check_evidence
from pipelines.lock import folder_md5, read_lock, read_yaml
from pipelines.promotion import RefusedError, promote
from pipelines.records.files import record_path, seal
from pipelines.records.runs import find_run
from pipelines.registry import ALIAS, MODEL
from pipelines.tracking import mlflow_client
from tests.pipelines.promotable import copied, in_checkout, judge, lock, make_promotable, other_policy, promotable_config
from tests.pipelines.toy_project import THIRD_PARTY_WARNINGS

pytestmark = [pytest.mark.filterwarnings(warning) for warning in THIRD_PARTY_WARNINGS]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_promotable(tmp_path_factory.mktemp("promotable") / "project").root


@pytest.fixture(scope="module")
def promoted_once(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a champion, and a next candidate that is better."""
    paths = copied(whole, tmp_path_factory.mktemp("promoted") / "project")
    promote(paths.root, "default", by="Anna", on_note=quiet)
    other_policy(paths)
    return paths.root


@pytest.fixture
def paths(whole: Path, tmp_path: Path) -> Paths:
    return copied(whole, tmp_path / "project")


@pytest.fixture
def again(promoted_once: Path, tmp_path: Path) -> Paths:
    return copied(promoted_once, tmp_path / "project")


def quiet(note: str) -> None:
    """Nobody reads it."""


def failing(paths: Paths) -> None:
    """The evidence as it honestly is when the policy answers nothing right."""
    table = pl.read_parquet(paths.heldout_completions).with_columns(correct=pl.col("model") != "policy")
    table.write_parquet(paths.heldout_completions)
    judge(paths, promotable_config())


def test_a_passed_candidate_becomes_the_champion_everywhere(paths: Paths) -> None:
    done = promote(paths.root, "default", by="  Anna   Blum ", on_note=quiet)
    weights = file_sha256(paths.grpo_checkpoint / "model.safetensors")
    assert (done["version"], done["weights_sha256"], done["by"], done["override"], done["already"]) == (1, weights, "Anna Blum", None, False)
    record = json.loads(paths.champion_record.read_text())
    assert record == {name: done[name] for name in champion.FACTS}
    (line,) = read(paths.champion_history)
    assert {name: line[name] for name in champion.FACTS} == record
    # The model is the checkpoint's files, with a card, whole, and given to DVC.
    manifest, source = read_manifest(paths.champion_model), read_manifest(paths.grpo_checkpoint)
    assert source["files"].items() <= manifest["files"].items()
    assert {"README.md", "reward.png", "heldout.png", "metrics.jsonl"} <= manifest["files"].keys()
    assert read_yaml(champion.dvc_file(paths))["outs"][0]["md5"] == folder_md5(paths.champion_model)
    # MLflow's alias stands for a version that was made from the training's run.
    client = mlflow_client(paths.root)
    version = client.get_model_version_by_alias(MODEL, ALIAS)
    assert version.tags["grpo.weights_sha256"] == weights and version.tags["grpo.by"] == "Anna Blum"
    assert "Promotion" in version.description and "---\nlibrary_name" not in version.description
    assert {file.path for file in client.list_artifacts(version.run_id, "champion")} >= {"champion/model.safetensors", "champion/README.md"}
    # A second time nothing is done.
    assert promote(paths.root, "default", by="Ben", on_note=quiet)["already"]
    assert len(history(paths)) == 1
    assert [one.version for one in client.search_model_versions(f"name = '{MODEL}'")] == [version.version]


def test_a_next_champion_takes_the_place_of_the_first(again: Paths) -> None:
    first = history(again)[0]
    done = promote(again.root, "default", by="Ben", on_note=quiet)
    assert done["version"] == 2 and done["weights_sha256"] != first["weights_sha256"]
    assert [line["by"] for line in history(again)] == ["Anna", "Ben"]
    assert weights_of(again.champion_model) == done["weights_sha256"]
    assert int(mlflow_client(again.root).get_model_version_by_alias(MODEL, ALIAS).version) == 2
    assert not [path for path in again.champion.iterdir() if path.name.startswith(".model")]


# ---------------------------------------------------------------------------------------------------------- edits by hand


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values, indent=2) + "\n")


def relocked(paths: Paths, path: Path) -> None:
    """Write the file's hash into dvc.lock, as somebody would who knows DVC."""
    from pipelines.reproduction.inputs import dependency_md5

    name = path.relative_to(paths.root).as_posix()
    text = (paths.root / "dvc.lock").read_text()
    old = next(entry.outs[name] for entry in read_lock(paths.root).values() if name in entry.outs)
    (paths.root / "dvc.lock").write_text(text.replace(old, str(dependency_md5(paths.root, name))))


def edit_report(paths: Paths) -> None:
    edit_json(paths.promotion_report, lambda report: report["conditions"][0].update(summary="excellent"))


def edit_report_and_lock(paths: Paths) -> None:
    edit_report(paths)
    relocked(paths, paths.promotion_report)


def edit_report_and_lock_and_record(paths: Paths) -> None:
    """All hashes agree, and yet it is not what its inputs give."""
    edit_report(paths)
    lock(paths)


def edit_verdict(paths: Paths) -> None:
    edit_json(paths.blind_review_verdict, lambda verdict: verdict.update(status="counted"))


def edit_completions(paths: Paths) -> None:
    table = pl.read_parquet(paths.heldout_completions).with_columns(correct=pl.lit(True))
    table.write_parquet(paths.heldout_completions)


def edit_completions_and_lock(paths: Paths) -> None:
    edit_completions(paths)
    relocked(paths, paths.heldout_completions)


def edit_alarms(paths: Paths) -> None:
    edit_json(paths.alarms, lambda alarms: alarms.update(num_open=0, edited=True))


def edit_prompts(paths: Paths) -> None:
    pl.read_parquet(paths.prompts).with_columns(task=pl.lit("other")).write_parquet(paths.prompts)


def edit_settings(paths: Paths) -> None:
    edit_json(paths.run_config / "default" / "heldout_eval.json", lambda settings: settings.update(max_prompts=3))


def edit_weights(paths: Paths) -> None:
    place = paths.grpo_checkpoint / "model.safetensors"
    place.write_bytes(place.read_bytes()[:-1] + b"\0")


def edit_lock(paths: Paths) -> None:
    file = paths.root / "dvc.lock"
    md5 = read_lock(paths.root)["heldout_eval@default"].outs["data/heldout_eval/default/completions.parquet"]
    file.write_text(file.read_text().replace(md5, "0" * 32))


def drop_from_lock(paths: Paths) -> None:
    file = paths.root / "dvc.lock"
    file.write_text(file.read_text().replace("heldout_eval@default", "heldout_eval@other"))


def edit_record(paths: Paths) -> None:
    outs = read_lock(paths.root)["grpo_checkpoint@default"].outs
    edit_json(record_path(paths, "grpo_checkpoint", outs), lambda record: record.update(commit="0" * 40))


def edit_record_and_seal(paths: Paths) -> None:
    """A record of other inputs, with a seal that fits it."""
    outs = read_lock(paths.root)["heldout_eval@default"].outs

    def change(record: dict[str, Any]) -> None:
        record["deps"]["data/prompts/prompts.parquet"] = "0" * 32
        record["sha256"] = seal(record)

    edit_json(record_path(paths, "heldout_eval", outs), change)


def drop_record(paths: Paths) -> None:
    record_path(paths, "heldout_eval", read_lock(paths.root)["heldout_eval@default"].outs).unlink()


def edit_judging_code(paths: Paths) -> None:
    with (paths.root / "assets" / "heldout_eval.py").open("a") as stream:
        stream.write("\n# every answer is right\n")


def edit_looks(paths: Paths) -> None:
    """Two looks less: the number starts anew."""
    paths.looks.write_text('{"weights_sha256": "0", "previous": "0"}\n' + paths.looks.read_text())


EDITS: dict[Callable[[Paths], None], str] = {
    edit_report: "report.json", edit_report_and_lock: "no record", edit_report_and_lock_and_record: "not what its inputs give", edit_verdict: "verdict.json",
    edit_completions: "completions.parquet", edit_completions_and_lock: "no record", edit_alarms: "alarms.json", edit_prompts: "prompts.parquet",
    edit_settings: "data/run_config", edit_weights: "data/grpo_checkpoint/default", edit_lock: "completions.parquet",
    drop_from_lock: "dvc.lock has no heldout_eval@default", edit_record: "was altered", edit_record_and_seal: "dvc.lock was edited", drop_record: "no record",
    edit_judging_code: "assets/heldout_eval.py", edit_looks: "looks.jsonl",
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_what_was_edited_by_hand_is_refused_and_no_override_helps(paths: Paths, edit: Callable[[Paths], None]) -> None:
    edit(paths)
    for override in (None, "it is fine"):
        with pytest.raises(ValueError) as refused:
            promote(paths.root, "default", by="Anna", override=override, on_note=quiet)
        assert EDITS[edit] in str(refused.value)
        assert not isinstance(refused.value, RefusedError)
    assert json.loads(paths.champion_record.read_text()) == {"version": 0}
    assert not paths.champion_model.exists() and not history(paths)


def test_more_looks_at_others_leave_the_report_good(paths: Paths) -> None:
    from assets.looks import number_of

    number_of(paths, "ab" * 32, experiment="other")
    assert check_evidence(paths.root, "default")["status"] == "passed"


def forge_champion(paths: Paths) -> None:
    edit_json(paths.champion_record, lambda record: record.update(weights_sha256="0" * 64))


def forge_history(paths: Paths) -> None:
    paths.champion_history.write_text(paths.champion_history.read_text().replace("Anna", "Otto"))


def cut_history(paths: Paths) -> None:
    paths.champion_history.write_text("")


def forge_champions_model(paths: Paths) -> None:
    place = paths.champion_model / "model.safetensors"
    content = place.read_bytes()
    place.unlink()
    place.write_bytes(content[:-1] + b"\0")


@pytest.mark.parametrize("forge", [forge_champion, cut_history, forge_champions_model], ids=lambda forge: forge.__name__)
def test_a_forged_champion_is_refused(again: Paths, forge: Callable[[Paths], None]) -> None:
    forge(again)
    with pytest.raises(ValueError):
        promote(again.root, "default", by="Anna", override="whatever", on_note=quiet)


def test_a_history_that_was_altered_is_refused(again: Paths) -> None:
    promote(again.root, "default", by="Ben", on_note=quiet)
    forge_history(again)
    with pytest.raises(ValueError, match=r"history\.jsonl"):
        promote(again.root, "default", by="Anna", on_note=quiet)


# ------------------------------------------------------------------------------------------------------------- overriding


def test_a_failed_candidate_is_refused_with_the_conditions_and_what_to_do(paths: Paths) -> None:
    failing(paths)
    with pytest.raises(RefusedError) as refused:
        promote(paths.root, "default", by="Anna", on_note=quiet)
    text = str(refused.value)
    assert "its report is failed" in text and "  better " in text and "better: train a better candidate" in text and "--override REASON" in text
    assert not paths.champion_model.exists()


def test_an_override_is_recorded_for_ever(paths: Paths) -> None:
    failing(paths)
    done = promote(paths.root, "default", by="Anna", override="shown at the fair", on_note=quiet)
    (line,) = history(paths)
    assert line["by"] == "Anna" and line["override"]["reason"] == "shown at the fair"
    assert [(one["name"], one["passed"]) for one in line["override"]["conditions"]] == [("better", False)]
    assert json.loads(paths.champion_record.read_text())["override"] == line["override"] == done["override"]
    card = (paths.champion_model / "README.md").read_text()
    assert "**Promoted by override**" in card and "shown at the fair" in card


def test_an_override_that_was_not_needed_is_none(paths: Paths) -> None:
    assert promote(paths.root, "default", by="Anna", override="to be sure", on_note=quiet)["override"] is None


@pytest.mark.parametrize(("by", "override"), [("", None), ("  ", None), ("Anna", " "), ("A\x1b[31m", None), ("x" * 201, None)])
def test_who_and_why_must_be_said(paths: Paths, by: str, override: str | None) -> None:
    with pytest.raises(PromotionError, match="recorded for ever"):
        promote(paths.root, "default", by=by, override=override, on_note=quiet)


# ------------------------------------------------------------------------------------------------- stopped on the way

POINTS = (
    ("pipelines.promotion", "build_model", "before"), ("pipelines.promotion", "build_model", "after"), ("pipelines.champion", "place_model", "before"),
    ("pipelines.champion", "place_model", "after"), ("pipelines.champion", "exchange", "before"), ("pipelines.champion", "exchange", "after"),
    ("pipelines.champion", "dvc_add", "before"), ("pipelines.champion", "dvc_add", "after"), ("pipelines.champion", "register", "before"),
    ("pipelines.champion", "register", "after"),
)  # fmt: skip


@pytest.mark.parametrize(("module", "name", "when"), POINTS)
def test_a_promotion_stopped_anywhere_is_ended_by_the_same_command(again: Paths, module: str, name: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, wanted = history(again)[0], weights_of(again.grpo_checkpoint)
    work = getattr(sys.modules[module], name)

    def stopped(*arguments: object, **named: object) -> None:
        if when == "after":
            work(*arguments, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[module], name, stopped)
        with pytest.raises(KeyboardInterrupt):
            promote(again.root, "default", by="Ben", on_note=quiet)
    read_manifest(again.champion_model)  # whole
    assert weights_of(again.champion_model) in (first["weights_sha256"], wanted)
    assert json.loads(again.champion_record.read_text())["version"] in (1, 2)
    assert promote(again.root, "default", by="Ben", on_note=quiet)["version"] == 2
    assert [line["by"] for line in history(again)] == ["Anna", "Ben"]
    assert weights_of(again.champion_model) == wanted == json.loads(again.champion_record.read_text())["weights_sha256"]
    assert champion.is_settled(again, history(again)[-1])
    client = mlflow_client(again.root)
    assert client.get_model_version_by_alias(MODEL, ALIAS).tags["grpo.weights_sha256"] == wanted
    assert len(client.search_model_versions(f"name = '{MODEL}'")) == 2
    assert not [path for path in again.champion.iterdir() if path.name.startswith(".model")]


@pytest.mark.parametrize("point", ["exchange", "dvc_add"])
def test_kill_9_leaves_the_old_champion_or_the_new_one(again: Paths, point: str) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom pipelines import champion\nfrom pipelines.promotion import promote\n"
        f"work = champion.{point}\n"
        f"champion.{point} = lambda *given: (work(*given), os.kill(os.getpid(), signal.SIGKILL))\n"
        "promote(Path.cwd(), 'default', by='Ben')"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=again.root, env=in_checkout(again.root), capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    read_manifest(again.champion_model)
    assert promote(again.root, "default", by="Ben", on_note=quiet)["already"]
    assert weights_of(again.champion_model) == weights_of(again.grpo_checkpoint) == history(again)[-1]["weights_sha256"]


def test_a_failing_mlflow_leaves_a_promotion_that_the_same_command_ends(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        broken.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        with pytest.raises(PromotionError, match=r"is the champion on disk.*MLflow at http://127\.0\.0\.1:9 failed.*same command again ends it"):
            promote(paths.root, "default", by="Anna", on_note=quiet)
    assert json.loads(paths.champion_record.read_text())["version"] == 1
    assert promote(paths.root, "default", by="Anna", on_note=quiet)["already"]
    assert mlflow_client(paths.root).get_model_version_by_alias(MODEL, ALIAS).tags["grpo.champion_version"] == "1"


def test_two_promotions_do_not_work_at_once(paths: Paths) -> None:
    with champion.alone(paths.root), pytest.raises(PromotionError, match="another promotion is at work"):
        promote(paths.root, "default", by="Anna", on_note=quiet)


def test_exchanging_works_where_the_file_system_cannot_do_it_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("new", "place"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    champion.exchange(tmp_path / "new", tmp_path / "place")
    assert (tmp_path / "place" / "new").exists() and (tmp_path / "new" / "place").exists()
    monkeypatch.setattr(champion, "RENAME_EXCHANGE", 2**20)  # what no kernel knows
    champion.exchange(tmp_path / "new", tmp_path / "place")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["place", "place"]


# ------------------------------------------------------------------------------------------------------- the front doors


def run_command(paths: Paths, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(command, "checkout", lambda: paths.root)
    done = CliRunner().invoke(command.promote, arguments)
    return done.exit_code, done.output


def test_the_command_checks_asks_promotes_and_says_what_to_commit(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    code, told = run_command(paths, monkeypatch, "default", "--by", "Anna", "--dry-run")
    assert code == 0 and "would become the champion, version 1; nothing was done" in told and "better " in told
    assert not paths.champion_model.exists()
    code, told = run_command(paths, monkeypatch, "default", "--by", "Anna")
    assert code == 1 and "nobody is at a terminal to ask" in told and not history(paths)
    code, told = run_command(paths, monkeypatch, "default", "--by", "Anna", "--yes")
    assert code == 0
    assert "git add data/champion/champion.json data/champion/history.jsonl data/champion/looks.jsonl data/champion/model.dvc" in told
    code, told = run_command(paths, monkeypatch, "default", "--by", "Anna", "--yes")
    assert code == 0 and "is already the champion (version 1, by Anna" in told


def test_the_command_refuses_with_exit_status_1(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(paths)
    code, told = run_command(paths, monkeypatch, "default", "--by", "Anna", "--yes")
    assert code == 1 and "its report is failed" in told
    code, told = run_command(paths, monkeypatch, "nothing", "--by", "Anna", "--yes")
    assert code == 1 and "unknown experiment 'nothing'" in told


def test_the_job_fails_with_the_words_of_the_command_and_promotes_like_it(paths: Paths) -> None:
    import dagster as dg

    from pipelines.promote_job import promote_job

    failing(paths)
    job = promote_job(paths.root)

    def run(override: str) -> dg.ExecuteInProcessResult:
        config = {"ops": {"promote": {"config": {"experiment": "default", "by": "Anna", "override": override}}}}
        with dg.DagsterInstance.ephemeral() as instance:
            return job.execute_in_process(run_config=config, instance=instance, raise_on_error=False)

    failed = run("")
    assert not failed.success
    (failure,) = [event for event in failed.all_events if event.is_step_failure]
    with pytest.raises(RefusedError) as refused:
        promote(paths.root, "default", by="Anna", on_note=quiet)
    assert failure.step_failure_data.user_failure_data is not None
    assert failure.step_failure_data.user_failure_data.description == str(refused.value)
    assert run("the fair").success
    assert history(paths)[-1]["override"]["reason"] == "the fair"


def test_the_alias_names_the_run_to_every_command(paths: Paths) -> None:
    promote(paths.root, "default", by="Anna", on_note=quiet)
    version = mlflow_client(paths.root).get_model_version_by_alias(MODEL, ALIAS)
    run = mlflow_client(paths.root).get_run(version.run_id)
    assert run.data.tags["grpo.run_key"] == json.loads((paths.grpo_checkpoint / MANIFEST).read_text())["run_key"] == find_run(paths.root, "default").run_key
