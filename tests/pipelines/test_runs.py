"""A run is found by each of its names, and its files wherever their bytes are."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import mlflow
import pytest
from mlflow.exceptions import MlflowException

from assets.paths import Paths
from pipelines.lock import file_md5, read_lock
from pipelines.params import ROOT
from pipelines.records.dvc_cache import cache_folder, cached_listing, object_path
from pipelines.records.files import UNKNOWN, Record, write_record
from pipelines.records.recorded_runs import complete_run_id
from pipelines.records.runs import GATE, Run, RunError, find_run, related
from pipelines.stage import NOUNS
from pipelines.tracking import open_run
from tests.pipelines.toy_project import NUMBERS, dvc, edit, make_project

POLICY = "data/grpo_checkpoint/default"
ROLLOUTS = "data/rollout_batches/default/rollouts.parquet"
SUMMARY = "data/heldout_eval/default/summary.json"
OF_A_RUN = tuple(noun for noun in NOUNS if noun not in ("comparison_report", *GATE))
"""What one run is made of: the comparison is of all experiments, the gate of the champion of the day."""


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy project that was run, its policy copied to `old`, and run again with other numbers."""
    root = make_project(tmp_path_factory.mktemp("twice") / "toy")
    dvc(root, "repro", "--quiet")
    shutil.copytree(root / POLICY, root / "old")
    edit(root, "params.yaml", "  group_size: 8 ", "  group_size: 4 ")
    (root / "summary.json").write_text(json.dumps({**NUMBERS, "num_prompts": 7}), encoding="utf-8")
    dvc(root, "repro", "--quiet")
    return root


@pytest.fixture
def root(twice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to change."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Path(shutil.copytree(twice, tmp_path / "toy", symlinks=True))


def test_an_experiment_is_what_its_folder_holds_now_with_all_that_it_came_from(root: Path) -> None:
    run = find_run(root, "default")
    lock = read_lock(root)
    assert tuple(run.records) == OF_A_RUN
    made = {target.partition("@")[0]: entry.outs for target, entry in lock.items() if target.partition("@")[0] in OF_A_RUN}
    assert {noun: record["outs"] for noun, record in run.records.items()} == made
    assert (run.experiment, run.mlflow_run_id) == ("default", None)
    assert run.run_key == json.loads((root / POLICY / "manifest.json").read_bytes())["run_key"]
    assert run.label() == f"default ({run.run_key[:8]})"


def test_a_copy_of_an_earlier_checkpoint_is_the_earlier_run_and_its_files_come_from_the_cache(root: Path, tmp_path: Path) -> None:
    copy = (root / "old").rename(tmp_path / "anywhere")
    now, old = find_run(root, "default"), find_run(root, str(copy))
    assert old.run_key != now.run_key
    assert tuple(old.records) == OF_A_RUN
    assert {noun for noun in OF_A_RUN if old.records[noun]["outs"] == now.records[noun]["outs"]} == {"prompts", "sft_checkpoint", "reference_checkpoint"}
    assert old.file(f"{POLICY}/weights").read_bytes() == (copy / "weights").read_bytes() != (root / POLICY / "weights").read_bytes()
    assert old.file(ROLLOUTS).is_relative_to(root / ".dvc" / "cache")
    assert '"group_size": 8' in old.file("data/run_config/default/grpo.json").read_text(encoding="utf-8")
    assert '"group_size": 4' in now.file("data/run_config/default/grpo.json").read_text(encoding="utf-8")
    assert (old.json(SUMMARY)["num_prompts"], now.json(SUMMARY)["num_prompts"]) == (500, 7)


def test_a_run_key_or_its_beginning_names_the_run_now_or_earlier(root: Path, tmp_path: Path) -> None:
    now = find_run(root, "default")
    old = find_run(root, str((root / "old").rename(tmp_path / "anywhere")))
    for run in (now, old):
        assert find_run(root, run.run_key) == find_run(root, run.run_key[:8]) == run


def test_the_folder_of_this_checkout_is_its_experiment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root / "data")
    assert find_run(root, "grpo_checkpoint/default") == find_run(root, POLICY) == find_run(root, str(root / POLICY)) == find_run(root, "default")


def test_files_are_taken_from_the_workspace_while_they_are_current_there(root: Path) -> None:
    run = find_run(root, "default")
    for path in (ROLLOUTS, f"{POLICY}/weights", "data/prompts/prompts.parquet", "data/run_config/model.json", SUMMARY):
        assert run.file(path) == root / path
        assert run.md5(path) == file_md5(root / path)
    assert run.file(POLICY) == root / POLICY


def test_what_is_gone_from_the_workspace_is_taken_from_the_cache(root: Path) -> None:
    run = find_run(root, "default")
    shutil.rmtree(root / "data")
    again = find_run(root, "default")
    assert again.run_key == run.run_key
    for path in (ROLLOUTS, f"{POLICY}/weights"):
        assert again.file(path) == object_path(root, run.md5(path))
        assert file_md5(again.file(path)) == run.md5(path)
    with pytest.raises(RunError, match=rf"^{POLICY} of default \(\w+\) is a folder that is not in the workspace"):
        again.file(POLICY)


def test_a_file_of_a_folder_is_found_through_the_listing_in_the_cache_when_no_record_names_it(root: Path) -> None:
    shutil.rmtree(Paths(root).provenance("sft_checkpoint"))
    run = find_run(root, "default")
    assert "sft_checkpoint" not in run.records
    assert run.file("data/sft_checkpoint/weights") == root / "data/sft_checkpoint/weights"
    shutil.rmtree(root / "data/sft_checkpoint")
    assert run.file("data/sft_checkpoint/weights") == object_path(root, run.md5("data/sft_checkpoint/weights"))
    with pytest.raises(RunError, match=r"data/sft_checkpoint of default \(\w+\) has no file 'other'; it has weights"):
        run.file("data/sft_checkpoint/other")
    object_path(root, run.md5("data/sft_checkpoint")).unlink()
    with pytest.raises(RunError, match=r"what data/sft_checkpoint of default \(\w+\) held is not in DVC's cache: `dvc pull` brings it"):
        run.file("data/sft_checkpoint/weights")


def test_bytes_that_are_nowhere_are_said_so_with_what_to_do(root: Path) -> None:
    now, old = find_run(root, "default"), find_run(root, "old")
    shutil.rmtree(root / ".dvc" / "cache")
    with pytest.raises(RunError, match=rf"{ROLLOUTS} of default \(\w+\) \(md5 \w+\) is neither in the workspace nor in DVC's cache: fetch it from"):
        old.file(ROLLOUTS)
    assert now.file(ROLLOUTS) == root / ROLLOUTS
    (root / ROLLOUTS).unlink()
    with pytest.raises(RunError, match=r"neither in the workspace nor in DVC's cache: `dvc pull` brings it from a remote"):
        now.file(ROLLOUTS)
    with pytest.raises(RunError, match=r"has no output 'data/nothing' that is known here; known are .*data/prompts/prompts.parquet"):
        now.file("data/nothing")


def test_outputs_that_dvc_has_not_taken_yet_are_found_in_the_workspace(root: Path) -> None:
    """A stage that was killed while DVC hashed: dvc.lock still names what was there before."""
    earlier = find_run(root, "old")
    (root / POLICY).rename(root / "new")
    shutil.copytree(root / "old", root / POLICY)
    run = find_run(root, "default")
    assert run == earlier
    assert run.file(f"{POLICY}/weights") == root / POLICY / "weights"


@pytest.mark.parametrize("config", ["config", "config.local"])
def test_the_cache_is_where_dvcs_configuration_says(root: Path, config: str) -> None:
    path = root / ".dvc" / config
    path.write_text(f"[core]\n    analytics = false\n[cache]\n    type = copy\n    dir = ../elsewhere {config}\n", encoding="utf-8")
    (root / ".dvc" / "cache").rename(root / f"elsewhere {config}")
    assert cache_folder(root) == root / f"elsewhere {config}"
    assert dvc(root, "cache", "dir").strip() == str(cache_folder(root))
    assert find_run(root, "old").file(ROLLOUTS).is_relative_to(root / f"elsewhere {config}")


def test_the_users_own_dvc_configuration_counts_and_the_checkouts_wins(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_GLOBAL_CONFIG_DIR", str(tmp_path))
    (tmp_path / "config").write_text("[cache]\n    dir = /shared\n", encoding="utf-8")
    assert cache_folder(root) == Path("/shared")
    (root / ".dvc" / "config.local").write_text("[cache]\n    dir = /mine\n", encoding="utf-8")
    assert cache_folder(root) == Path("/mine")


def test_a_damaged_listing_is_named(root: Path) -> None:
    md5 = find_run(root, "default").md5(POLICY)
    listing = object_path(root, md5)
    assert cached_listing(root, md5) is not None
    listing.chmod(0o644)
    listing.write_bytes(b'[{"md5"')
    with pytest.raises(ValueError, match=rf"{listing} in DVC's cache is damaged"):
        cached_listing(root, md5)


LOOK = """
import sys
from pathlib import Path
from pipelines.records.runs import find_run
for name in sys.argv[2:]:
    run = find_run(Path(sys.argv[1]), name)
    run.file("data/rollout_batches/default/rollouts.parquet")
print(sorted({"mlflow", "dvc", "dagster", "torch", "polars", "pandas"} & set(sys.modules)))
"""


def test_looking_up_a_run_of_this_machine_imports_nothing_heavy(root: Path) -> None:
    command = [sys.executable, "-c", LOOK, str(root), "default", str(root / "old")]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_an_unknown_name_says_what_there_is(root: Path) -> None:
    with pytest.raises(RunError, match=r"^'nonsense' is no run: trained experiments here are default; a checkpoint folder, a run key, an MLflow run id"):
        find_run(root, "nonsense")
    edit(root, "params.yaml", "  # small_groups:\n  #   grpo: {group_size: 4}", "  small_groups: {}")
    with pytest.raises(RunError, match=r"^experiment 'small_groups' has not been trained here: `grpo run --experiment small_groups` does it"):
        find_run(root, "small_groups")
    (root / "params.yaml").write_text("no: [yaml", encoding="utf-8")
    with pytest.raises(RunError, match="'nonsense' is no run"):
        find_run(root, "nonsense")


def test_before_any_training_an_unknown_name_says_how_to_train(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"'default' is no run: no experiment has been trained here \(`grpo run` does it\)"):
        find_run(tmp_path, "default")


def test_folders_that_grpo_did_not_train_are_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"data/raw has no manifest.json: it is no checkpoint folder"):
        find_run(root, str(root / "data/raw"))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"noun": "sft_checkpoint", "files": {}}), encoding="utf-8")
    with pytest.raises(RunError, match=rf"{folder} is a sft_checkpoint, not a checkpoint that GRPO trained"):
        find_run(root, str(folder))
    (folder / "manifest.json").write_text('{"noun": ', encoding="utf-8")
    with pytest.raises(RunError, match=rf"{folder}/manifest.json is not JSON .* damaged"):
        find_run(root, str(folder))
    (folder / "manifest.json").write_text(json.dumps({"noun": "grpo_checkpoint", "run_key": "0123", "files": {}}), encoding="utf-8")
    with pytest.raises(RunError, match=rf"no run recorded here or in MLflow made {folder} \(run key 0123\)"):
        find_run(root, str(folder))


def test_without_records_an_experiment_is_known_as_far_as_dvc_lock_knows_it(root: Path) -> None:
    before = find_run(root, "default")
    shutil.rmtree(root / ".work")
    run = find_run(root, "default")
    assert set(run.records) == {"grpo_checkpoint"}
    record, known, hashes = run.records["grpo_checkpoint"], before.records["grpo_checkpoint"], ("deps", "outs", "run_key", "manifest_sha256")
    assert {key: record[key] for key in hashes} == {key: known[key] for key in hashes}
    assert record.keys() == known.keys()
    assert (record["commit"], record["libraries"], run.run_key) == (None, {}, before.run_key)
    assert run.file(f"{POLICY}/weights") == root / POLICY / "weights"
    shutil.rmtree(root / POLICY)
    with pytest.raises(RunError, match=r"the checkpoint of experiment 'default' is not in .*: `dvc checkout` or `dvc pull` brings it back"):
        find_run(root, "default")


def chain(paths: Paths, noun: str, *, read: dict[str, str], wrote: dict[str, str], started: str) -> Record:
    record = {**UNKNOWN, "noun": noun, "experiment": "default", "deps": read, "outs": wrote, "started": started}
    write_record(paths, record)
    return record


def test_records_chain_by_what_was_read_and_the_newest_of_equals_is_taken(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    policy = chain(paths, "grpo_checkpoint", read={"p": "1", "config": "1"}, wrote={"policy": "7"}, started="3")
    chain(paths, "prompts", read={}, wrote={"p": "1", "validation": "old"}, started="1")
    newer = chain(paths, "prompts", read={}, wrote={"p": "1", "validation": "new"}, started="2")
    chain(paths, "prompts", read={}, wrote={"p": "2"}, started="9")
    chain(paths, "sft_checkpoint", read={}, wrote={"unrelated": "1"}, started="9")
    judged = chain(paths, "heldout_eval", read={"policy": "7", "p": "1"}, wrote={"answers": "5"}, started="4")
    chain(paths, "heldout_eval", read={"policy": "8", "p": "1"}, wrote={"answers": "6"}, started="5")
    pairs = chain(paths, "blind_review_set", read={"answers": "5"}, wrote={"pairs": "1"}, started="6")
    expected = {"prompts": newer, "grpo_checkpoint": policy, "heldout_eval": judged, "blind_review_set": pairs}
    assert related(tmp_path, policy) == related(tmp_path, judged) == related(tmp_path, pairs) == expected


# ----------------------------------------------------------------------------------------------------------------- MLflow


@pytest.fixture(scope="module")
def tracked(twice: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A copy of the project whose two runs MLflow holds with their records, and the ids of the earlier and the later one."""
    root = Path(shutil.copytree(twice, tmp_path_factory.mktemp("tracked") / "toy", symlinks=True))
    ids = []
    for name in ("old", "default"):
        run = find_run(root, name)
        sink = open_run(root, run.experiment, run.run_key, {}, {})
        sink.log_records(run.records)
        sink.finish("FINISHED")
        ids.append(sink.run_id)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{root}/mlflow.db")
    client.create_registered_model("adder")
    for run_id in (ids[0], None):
        client.create_model_version("adder", str(root / "old"), run_id=run_id)
    client.set_registered_model_alias("adder", "champion", "1")
    client.set_registered_model_alias("adder", "homeless", "2")
    return root, ids[0], ids[1]


@pytest.fixture
def elsewhere(tracked: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkout on another machine that shares the MLflow: no records, no outputs."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tracked[0]}/mlflow.db")
    return tmp_path


def test_an_mlflow_run_id_is_enough_on_another_machine(tracked: tuple[Path, str, str], elsewhere: Path) -> None:
    here = find_run(tracked[0], "old")
    for name in (tracked[1], tracked[1][:12], "adder@champion"):
        run = find_run(elsewhere, name)
        assert run == Run(elsewhere, here.experiment, here.run_key, here.records, tracked[1])
    with pytest.raises(RunError, match=rf"make the run again \(`grpo reproduce {tracked[1]}`\)"):
        run.file(ROLLOUTS)
    assert run.json(SUMMARY)["num_prompts"] == 500


def test_a_folder_brought_from_another_machine_is_found_through_mlflow(tracked: tuple[Path, str, str], elsewhere: Path) -> None:
    assert find_run(elsewhere, str(tracked[0] / "old")).mlflow_run_id == tracked[1]
    assert find_run(elsewhere, str(tracked[0] / POLICY)).mlflow_run_id == tracked[2]
    (elsewhere / "data/grpo_checkpoint").mkdir(parents=True)
    shutil.copytree(tracked[0] / "old", elsewhere / POLICY)
    assert find_run(elsewhere, "default").mlflow_run_id == tracked[1]


def test_names_that_mlflow_does_not_know_are_said_so(tracked: tuple[Path, str, str], elsewhere: Path) -> None:
    with pytest.raises(RunError, match=r"'000000' is no run of MLflow at sqlite:.*: its page lists them \(`grpo ui`\)"):
        find_run(elsewhere, "000000")
    with pytest.raises(RunError, match=r"MLflow at sqlite:.* does not know it: Run with id=0{32} not found"):
        find_run(elsewhere, "0" * 32)
    with pytest.raises(RunError, match=r"MLflow at .* does not know it: .*alias retired not found"):
        find_run(elsewhere, "adder@retired")
    with pytest.raises(RunError, match="version 2 of 'adder', which 'homeless' stands for, names no run"):
        find_run(elsewhere, "adder@homeless")
    with pytest.raises(RunError, match="'@champion' is no MODEL@ALIAS"):
        find_run(elsewhere, "@champion")


def test_a_beginning_that_several_runs_share_is_not_enough(tracked: tuple[Path, str, str]) -> None:
    with pytest.raises(RunError, match=rf"2 runs begin so \({tracked[2]}, {tracked[1]}\): give more of its digits"):
        complete_run_id(tracked[0], "")


def test_a_run_of_mlflows_without_records_is_said_so(tracked: tuple[Path, str, str], elsewhere: Path) -> None:
    bare = open_run(elsewhere, "default", "bare", {}, {}).run_id
    with pytest.raises(RunError, match=rf"MLflow's run {bare} holds no record of a training: it has not finished, or"):
        find_run(elsewhere, bare)


def test_without_an_mlflow_none_is_made_by_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(RunError, match=r"there is no MLflow to ask: .*mlflow.db does not exist"):
        find_run(tmp_path, "0123456789")
    assert list(tmp_path.iterdir()) == []


def test_an_mlflow_that_fails_does_not_hide_what_dvc_lock_knows(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise MlflowException("database is locked")

    shutil.rmtree(root / ".work")
    (root / "mlflow.db").touch()
    monkeypatch.setattr("mlflow.MlflowClient.search_experiments", refuse)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root}/other.db")
    assert find_run(root, "default").mlflow_run_id is None
    with pytest.raises(RunError, match=r"MLflow at sqlite:.*other.db does not know it: .*database is locked"):
        find_run(root, "old")
