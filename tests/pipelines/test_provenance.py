"""The record of a made noun: the hashes that DVC gives the same files, the code, the machine and the versions."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from assets.paths import SHARED, Paths
from pipelines.graph import load_graph
from pipelines.lock import LockError, file_md5, folder_md5, read_lock
from pipelines.pages import page
from pipelines.params import ROOT
from pipelines.records.files import KEY_LENGTH, UNKNOWN, outs_key, read_record, read_records, record_path, recorded_experiments, write_record
from pipelines.records.provenance import begin, cpu_model, declared_libraries, md5s, process_facts
from pipelines.records.stage_files import stage_files
from pipelines.stage import NOUNS
from tests.pipelines.toy_project import NUMBERS, THIRD_PARTY_WARNINGS, dvc, edit, git, make_project
from tests.tiny_run import tiny_config


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy project with two experiments and a file of prompts, made by DVC from a checkout with an uncommitted change."""
    root = make_project(tmp_path_factory.mktemp("toy"))
    edit(root, "params.yaml", "  # small_groups:\n  #   grpo: {group_size: 4}", "  small_groups:\n    grpo: {group_size: 4}")
    (root / "data" / "raw" / "deep").mkdir()
    (root / "data" / "raw" / "deep" / "ä b.jsonl").write_text("{}\n", encoding="utf-8")
    dvc(root, "repro", "--quiet")
    return root


@pytest.mark.filterwarnings(THIRD_PARTY_WARNINGS[0])
def test_what_dvc_yaml_says_of_a_stage_is_what_dvc_resolves(made: Path) -> None:
    graph = load_graph(made)
    assert len(graph.targets) == len(SHARED) + 6 * 2
    for target in graph.targets:
        files = stage_files(made, target.stage, target.experiment or "default")
        assert (files.deps, set(files.outs), set(files.metrics)) == (target.data, set(target.outs), set(target.metrics)), target.name


def test_a_stage_that_is_not_there_or_written_in_another_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text("stages:\n  a: {outs: ['data/${item.x}']}\n", encoding="utf-8")
    with pytest.raises(LockError, match=r"stage a: of templates only \$\{key\} is known in `outs`, got 'data/\$\{item.x\}'"):
        stage_files(tmp_path, "a", "default")
    with pytest.raises(LockError, match=r"dvc.yaml has no stage 'b'"):
        stage_files(tmp_path, "b", "default")
    (tmp_path / "dvc.yaml").write_text("stages: [\n", encoding="utf-8")
    with pytest.raises(LockError, match=r"dvc.yaml cannot be read: .* line 2"):
        stage_files(tmp_path, "a", "default")


def test_every_stage_leaves_a_record_with_the_hashes_that_dvc_has(made: Path) -> None:
    lock = read_lock(made)
    assert {target.partition("@")[0] for target in lock} == set(NOUNS)
    for target, entry in lock.items():
        noun, _, experiment = target.partition("@")
        record = read_record(Paths(made, experiment or "default"), noun, entry.outs)
        assert record is not None, target
        assert (record["noun"], record["experiment"]) == (noun, experiment or None)
        assert record["outs"] == entry.outs
        assert record["deps"] == {path: md5 for path, md5 in entry.deps.items() if path.startswith("data/")}
    assert recorded_experiments(made) == ["default", "small_groups"]


def test_a_record_names_every_file_of_a_folder_and_holds_the_metrics_that_git_keeps(made: Path) -> None:
    (config,) = read_records(Paths(made), "run_config")
    assert config["files"]["data/run_config/small_groups/grpo.json"] == file_md5(made / "data/run_config/small_groups/grpo.json")
    (policy,) = read_records(Paths(made), "grpo_checkpoint")
    assert set(policy["files"]) == {"data/grpo_checkpoint/default/weights", "data/grpo_checkpoint/default/manifest.json"}
    manifest = json.loads((made / "data/grpo_checkpoint/default/manifest.json").read_bytes())
    assert policy["run_key"] == manifest["run_key"] and len(policy["manifest_sha256"]) == 64
    (evaluation,) = read_records(Paths(made), "heldout_eval")
    assert evaluation["metrics"] == {"data/heldout_eval/default/summary.json": NUMBERS}
    assert "run_key" not in evaluation and "manifest_sha256" not in evaluation


def test_a_record_names_the_commit_and_the_snapshot_of_what_was_changed(made: Path) -> None:
    (record,) = read_records(Paths(made), "prompts")
    assert (record["commit"], record["dirty"]) == (git(made, "rev-parse", "HEAD").strip(), True)
    assert "small_groups:\n    grpo" in git(made, "show", f"{record['snapshot']}:params.yaml")
    assert record["code"] == str(ROOT)
    assert record["command"][-1] == "prompts"


@pytest.mark.filterwarnings(THIRD_PARTY_WARNINGS[0])
def test_an_assets_page_names_the_commit_and_the_snapshot(made: Path) -> None:
    target = load_graph(made).target("prompts", None)
    shown = page(made, target, "prompts", read_lock(made)["prompts"])
    (record,) = read_records(Paths(made), "prompts")
    assert (shown["git/commit"].value, shown["git/snapshot"].value) == (record["commit"], record["snapshot"])
    unknown = page(made, target, "prompts", replace(read_lock(made)["prompts"], outs={"data/prompts/prompts.parquet": "0"}))
    assert not [name for name in unknown if name.startswith("git/")]


def test_a_forced_rerun_that_comes_out_the_same_replaces_the_record_and_another_outcome_adds_one(made: Path) -> None:
    paths = Paths(made)
    before = read_records(paths, "blind_review_set")
    dvc(made, "repro", "--quiet", "--force", "--single-item", "blind_review_set@default")
    (again,) = read_records(paths, "blind_review_set")
    assert again["started"] > before[0]["started"]
    edit(made, "params.yaml", "  num_pairs: 30 ", "  num_pairs: 20 ")
    dvc(made, "repro", "--quiet", "blind_review_set@default")
    newest, oldest = read_records(paths, "blind_review_set")
    assert oldest == again
    assert newest["outs"] == read_lock(made)["blind_review_set@default"].outs


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout outside Git with one dependency of `prompts`, and all that it writes."""
    (tmp_path / "dvc.yaml").write_bytes((ROOT / "dvc.yaml").read_bytes())
    for name in ("data/run_config/model.json", "data/raw/own.jsonl", "data/prompts/prompts.parquet", "data/validation/prompts.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}", encoding="utf-8")
    return tmp_path


def test_outside_git_and_with_a_dependency_missing_what_is_known_is_recorded(checkout: Path) -> None:
    making = begin(Paths(checkout), "prompts", tiny_config())
    record = making.record()
    assert (record["commit"], record["dirty"], record["snapshot"]) == (None, None, None)
    assert set(record["deps"]) == {"data/run_config/model.json", "data/raw"}
    assert record["wall_seconds"] > 0


def test_inputs_are_hashed_before_the_work_and_outputs_after_it_once(checkout: Path) -> None:
    making = begin(Paths(checkout), "prompts")
    (checkout / "data/raw/own.jsonl").write_text("changed while it worked", encoding="utf-8")
    (checkout / "data/prompts/prompts.parquet").write_text("made", encoding="utf-8")
    record = making.record()
    assert record["deps"]["data/raw"] != folder_md5(checkout / "data/raw")
    assert record["outs"]["data/prompts/prompts.parquet"] == file_md5(checkout / "data/prompts/prompts.parquet")
    (checkout / "data/prompts/prompts.parquet").write_text("changed after", encoding="utf-8")
    assert making.record() is record
    assert read_record(Paths(checkout), "prompts", record["outs"]) == {**UNKNOWN, **json.loads(json.dumps(record))}


def test_an_output_that_was_not_written_is_an_error(checkout: Path) -> None:
    making = begin(Paths(checkout), "prompts")
    (checkout / "data/prompts/prompts.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"prompts.parquet is not there, though dvc.yaml lists it"):
        making.record()


def test_git_that_cannot_keep_the_code_is_a_warning_and_no_snapshot(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(checkout, "init", "--quiet")
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "first")
    (checkout / ".git" / "refs" / "grpo").write_text("in the way")
    making = begin(Paths(checkout), "prompts")
    warning = capsys.readouterr().err
    assert warning.startswith("warning: `git update-ref ") and warning.endswith("; the record of prompts will not say which code made it\n")
    assert making.record()["snapshot"] is None


def test_a_folder_and_its_files_have_their_hashes(tmp_path: Path) -> None:
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep" / "file").write_text("x")
    assert md5s(tmp_path, "folder") == {"folder": folder_md5(tmp_path / "folder"), "folder/deep/file": file_md5(tmp_path / "folder/deep/file")}
    assert md5s(tmp_path, "folder/deep/file") == {"folder/deep/file": file_md5(tmp_path / "folder/deep/file")}


def test_a_key_depends_on_paths_and_hashes_and_not_on_their_order() -> None:
    key = outs_key({"a": "1", "b": "2"})
    assert len(key) == KEY_LENGTH
    assert key == outs_key({"b": "2", "a": "1"})
    assert len({key, outs_key({"a": "2", "b": "1"}), outs_key({"a": "1"}), outs_key({"a": "1", "c": "2"})}) == 4


def test_records_come_newest_first_and_other_files_are_none_of_them(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    for number in (2, 3, 1):
        write_record(paths, {**UNKNOWN, "noun": "prompts", "started": f"2020-01-0{number}", "outs": {"a": str(number)}})
    (paths.provenance("prompts") / "provenance.json").write_text("{}", encoding="utf-8")
    assert [record["started"] for record in read_records(paths, "prompts")] == ["2020-01-03", "2020-01-02", "2020-01-01"]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    path = record_path(Paths(tmp_path), "prompts", {})
    path.parent.mkdir(parents=True)
    path.write_text('{"noun": ', encoding="utf-8")
    with pytest.raises(ValueError, match=rf"{path} is not JSON .*: delete it"):
        read_records(Paths(tmp_path), "prompts")


def test_an_altered_record_is_refused_with_what_mends_it(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    write_record(paths, {**UNKNOWN, "noun": "prompts", "libraries": {"torch": "2.13.0"}, "outs": {"a": "1"}})
    assert read_record(paths, "prompts", {"a": "1"}) is not None
    path = record_path(paths, "prompts", {"a": "1"})
    whole = path.read_text(encoding="utf-8")
    for altered in (whole.replace("2.13.0", "2.12.0"), "{}", "[]"):
        path.write_text(altered, encoding="utf-8")
        with pytest.raises(ValueError, match=rf"^{path} was altered, its sha256 is not that of its fields: delete it; the next forced run"):
            read_record(paths, "prompts", {"a": "1"})
        with pytest.raises(ValueError, match=f"^{path} was altered"):
            read_records(paths, "prompts")


@pytest.mark.filterwarnings(THIRD_PARTY_WARNINGS[0])
def test_an_altered_record_does_not_cost_a_page(made: Path) -> None:
    entry = read_lock(made)["prompts"]
    path = record_path(Paths(made), "prompts", entry.outs)
    whole = path.read_bytes()
    path.write_text("{}", encoding="utf-8")
    shown = page(made, load_graph(made).target("prompts", None), "prompts", entry)
    path.write_bytes(whole)
    assert str(shown["git/commit"].value).startswith(f"not known: {path} was altered")


FACTS = """
import json
from pathlib import Path
from pipelines.environment import prepare_libraries
from pipelines.records.provenance import process_facts
from tests.tiny_run import tiny_config
config = tiny_config()
prepare_libraries(config.model)
import torch
print(json.dumps(process_facts(Path.cwd(), config)))
"""


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """What the process of a stage that computes says of itself."""
    result = subprocess.run([sys.executable, "-c", FACTS], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    return dict(json.loads(result.stdout))


def test_the_threads_that_torch_computes_with_are_recorded(facts: dict[str, Any]) -> None:
    number = tiny_config().model.num_threads
    variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(number))
    assert facts["threads"] == {**variables, "OMP_WAIT_POLICY": "passive", "torch": number}


def test_device_instructions_and_switches_are_recorded(facts: dict[str, Any]) -> None:
    import torch

    assert facts["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert facts["device"].startswith("cuda" if torch.cuda.is_available() else "cpu")
    assert facts["determinism"]["torch_deterministic_algorithms"] is False
    assert not facts["determinism"].keys() & {*facts["threads"], "torch_num_threads", "torch_cpu_capability"}


def test_the_versions_of_all_declared_libraries_are_those_installed(tmp_path: Path) -> None:
    assert {"torch", "ruamel.yaml", "great-expectations"} <= set(declared_libraries(ROOT))
    libraries = process_facts(ROOT)["libraries"]
    assert libraries["polars"] == version("polars")
    assert None not in libraries.values()
    assert set(declared_libraries(tmp_path)) >= {"torch", "dvc"}
    assert "pytest" not in declared_libraries(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["torch==1", "no-such-thing[extra] >= 2"]\n', encoding="utf-8")
    assert process_facts(tmp_path)["libraries"] == {"torch": version("torch"), "no-such-thing": None}


def test_the_machine_is_named() -> None:
    values = process_facts(ROOT)
    assert values["python"] == sys.version.split()[0]
    assert values["cpu"] == cpu_model() != ""
    assert values["num_cpus"] == os.cpu_count()
