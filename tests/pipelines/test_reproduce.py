"""A run made again: what is identical, what differs and why, and what cannot be made again."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import ModelConfig
from grpo_core.models import source_of
from pipelines.environment import environment
from pipelines.params import ROOT
from pipelines.processes import processes_with
from pipelines.records.dvc_cache import object_path
from pipelines.records.runs import Run, find_run
from pipelines.reproduction.inputs import InputError, dependency_md5
from pipelines.reproduction.reproduce import (
    NOUNS,
    ReproduceError,
    ask_worktree,
    bring_inputs,
    check_model,
    has_hash,
    link_outside,
    make_again,
    other_snapshots,
    recorded_stages,
    reproduce,
    stage_environment,
    strays,
)
from pipelines.reproduction.result import Reproduction, Row
from pipelines.reproduction.worktree import LENT, Worktree, WorktreeError, worktree
from tests.pipelines.toy_project import THIRD_PARTY_WARNINGS, dvc, edit, git, make_project

pytestmark = [pytest.mark.filterwarnings(warning) for warning in THIRD_PARTY_WARNINGS]

STAGES = (
    "run_config", "prompts", "sft_checkpoint", "reference_checkpoint", "grpo_checkpoint@default", "heldout_eval@default", "blind_review_set@default",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy project after its lifecycle, with the code that it imports, a prompt file that DVC tracks and a note that nobody does.

    Its params.yaml was changed and not committed when it ran.
    """
    root = make_toy(tmp_path_factory.mktemp("trained") / "toy")
    for package in ("grpo_core", "assets", "pipelines"):
        shutil.copytree(ROOT / package, root / package, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "data/raw/own.jsonl").write_text('{"prompt": "1+1="}\n' * 20, encoding="utf-8")
    (root / "data/raw/notes.txt").write_text("in neither Git nor DVC\n", encoding="utf-8")
    (root / "data/raw/.gitignore").write_text("/notes.txt\n", encoding="utf-8")
    dvc(root, "add", "--quiet", "data/raw/own.jsonl")
    commit(root)
    edit(root, "params.yaml", "  steps: 80 ", "  steps: 81 ")
    dvc(root, "repro", "--quiet")
    return root


@pytest.fixture
def toy(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `trained` in which a test may change anything."""
    root = tmp_path / "toy"
    shutil.copytree(trained, root)
    enter(root, monkeypatch)
    return root


def make_toy(root: Path) -> Path:
    """A toy project whose fine-tuning can be made to depend on the weather, and whose stages to import code from elsewhere."""
    make_project(root)
    made = '"run_config/sft.json", "prompts/prompts.parquet")'
    edit(root, "toy_stage.py", made, f'{made} + os.environ.get("TOY_WEATHER", "")')
    edit(root, "toy_stage.py", "import json, os, sys\n", "import json, os, sys\nsys.path[:0] = filter(None, [os.environ.get('TOY_CODE')])\n")
    (root / ".gitignore").write_text((root / ".gitignore").read_text() + "/models\n/asleep\n", encoding="utf-8")
    commit(root)
    return root


def enter(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command of the project would find in its environment."""
    for name, value in environment(root, os.environ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONPATH", raising=False)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "something new")


def lent(run: Run, into: Path | None = None) -> AbstractContextManager[Worktree]:
    return worktree(run.root, run.records["grpo_checkpoint"]["snapshot"], run.run_key, into)


def with_record(run: Run, noun: str, **changes: Any) -> Run:
    """The run, had the record of one stage said something else."""
    return replace(run, records={**run.records, noun: {**run.records[noun], **changes}})


def brought(run: Run) -> list[str]:
    """What is said while the inputs are brought into a worktree, where they are the recorded ones afterwards."""
    said: list[str] = []
    with lent(run) as place:
        bring_inputs(run, recorded_stages(run), place, said.append)
        assert dependency_md5(place.project, "data/raw") == run.records["prompts"]["deps"]["data/raw"]
    return said


def reproduced(run: Run, **options: Any) -> tuple[Reproduction, str]:
    """What came out, and all that was told."""
    said: list[str] = []
    found = reproduce(run, tell=said.append, **options)
    return found, "\n".join(said)


def state(root: Path) -> dict[str, bytes]:
    """Every file of the checkout but worktrees, Git's own and DVC's scratch."""
    apart = (LENT, Path(".git"), Path(".dvc/tmp"))
    files = [path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path): path.read_bytes() for path in files if not any(path.is_relative_to(root / place) for place in apart)}


def cached(root: Path, path: str) -> Path:
    """DVC's cache object of a tracked file."""
    (line,) = [line for line in (root / f"{path}.dvc").read_text().splitlines() if "md5:" in line and "hash" not in line]
    return object_path(root, line.rpartition(" ")[2])


def damage(path: Path) -> None:
    """Flip one bit, as a disk would: the time of the last change stays."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(content))
    path.chmod(status.st_mode)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


PROGRAM = "from pipelines.commands.reproduce import reproduce; reproduce()"


def grpo_reproduce(root: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`grpo reproduce` in a process of its own."""
    env = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], cwd=root, env=env, capture_output=True, text=True, check=False)


def test_a_run_is_reproduced_and_the_checkout_stays_as_it_was(toy: Path) -> None:
    run = find_run(toy, "default")
    assert run.records["grpo_checkpoint"]["snapshot"] != run.records["grpo_checkpoint"]["commit"]
    edit(toy, "params.yaml", "default: {}", "default: {grpo: {group_size: 4}}")  # the run was not made from this
    git(toy, "add", "params.yaml")
    before, index, branch = state(toy), git(toy, "status", "--porcelain"), git(toy, "log", "-1", "--format=%H %D")
    done = grpo_reproduce(toy, "data/grpo_checkpoint/default")
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert said[-1] == "identical: every output of every stage"
    assert [line.partition(" (")[0] for line in said if ": identical" in line] == [f"{stage}: identical" for stage in STAGES]
    made = [record["outs"] for noun, record in run.records.items() if noun != "blind_review_verdict"]  # that rests on people's votes
    assert len([line for line in said if line.rstrip().endswith(" yes")]) == sum(map(len, made)) == 18
    assert any(line.startswith("input data/raw/own.jsonl: md5 ") for line in said)
    assert any(line.endswith("as recorded, 1 file copied from this checkout") for line in said)
    assert any(line.startswith("environment: as recorded (") for line in said)
    assert state(toy) == before and git(toy, "status", "--porcelain") == index and git(toy, "log", "-1", "--format=%H %D") == branch
    assert not (toy / LENT / run.run_key).exists()
    assert git(toy, "worktree", "list").count("\n") == 1


def test_the_first_stage_that_differs_is_named_and_its_worktree_kept(toy: Path) -> None:
    done = grpo_reproduce(toy, "default", TOY_WEATHER="rain")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "differs: sft_checkpoint (the stages after it were not run)"
    assert "prompts: identical (2 files" in done.stdout and "grpo_checkpoint@default: " not in done.stdout
    assert "data/sft_checkpoint/weights differs" in done.stdout
    assert "the computation itself is not deterministic" in done.stdout
    kept = toy / LENT / find_run(toy, "default").run_key
    assert f"the worktree is kept: {kept} " in done.stdout
    assert (kept / "data/sft_checkpoint/weights").read_text().endswith("rain")


def test_another_library_version_is_told_first_and_is_a_cause_of_what_differs(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_WEATHER", "rain")
    run = find_run(toy, "default")
    found, said = reproduced(with_record(run, "sft_checkpoint", libraries={**run.records["sft_checkpoint"]["libraries"], "polars": "0.1"}, cpu="abacus"))
    assert [row.path for row in found.rows if not row.identical] == ["data/sft_checkpoint"]
    before, _, after = said.partition("sft_checkpoint: differs")
    assert before.index("warning: libraries.polars was 0.1, is ") < before.index("run_config: identical")
    assert "warning: cpu was abacus, is " in before and "environment: as recorded" not in before
    assert "libraries.polars was 0.1, is " in after and "deterministic" not in after


def test_another_experiments_configuration_does_not_matter(toy: Path) -> None:
    edit(toy, "params.yaml", "  default: {}", "  default: {}\n  small: {grpo: {group_size: 4}}")
    dvc(toy, "repro", "--single-item", "--quiet", "run_config")
    run, said = find_run(toy, "default"), list[str]()
    assert "run_config" in other_snapshots(run, NOUNS)[0]
    with lent(run) as place:
        rows = make_again(run, "run_config", place, set(), said.append)
    assert "run_config: identical" in said[-1]
    assert "data/run_config/default/grpo.json" in [row.path for row in rows]
    assert not [row for row in rows if "small" in row.path or not row.identical]


def test_a_stage_that_older_code_made_is_told(toy: Path) -> None:
    run = with_record(find_run(toy, "default"), "prompts", snapshot="1" * 40)
    assert other_snapshots(run, NOUNS) == ["prompts was made by snapshot 111111111111; here it is made by the policy's"]


def test_what_was_not_made_yet_is_left_out_and_said(toy: Path) -> None:
    run = find_run(toy, "default")
    made = replace(run, records={noun: record for noun, record in run.records.items() if noun not in ("heldout_eval", "blind_review_set")})
    assert recorded_stages(made) == NOUNS[:5]
    row = Row("grpo_checkpoint@default", "data/grpo_checkpoint/default", "1", "1")
    found = Reproduction((row,), ("grpo_checkpoint@default",), ("heldout_eval", "blind_review_set"), None)
    assert found.verdict() == "identical: every output of every stage that is recorded (heldout_eval, blind_review_set is not)"
    assert not Reproduction((row,), ("grpo_checkpoint@default", "heldout_eval@default"), (), None).identical


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"snapshot": "0" * 40}, "git fetch origin 'refs/grpo/*:refs/grpo/*'"),
        ({"snapshot": None, "commit": None}, "outside a Git repository"),
        ({"started": None}, "nothing says how grpo_checkpoint of default ("),
    ],
)
def test_a_run_without_its_code_or_records_is_refused(toy: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(ReproduceError) as error:
        reproduced(with_record(find_run(toy, "default"), "grpo_checkpoint", **change))
    assert told in str(error.value)
    assert not (toy / LENT).exists()


def test_a_missing_record_of_a_stage_is_refused_by_name(toy: Path) -> None:
    shutil.rmtree(toy / ".work/provenance/prompts")
    with pytest.raises(ReproduceError, match="nothing says how prompts of default"):
        reproduced(find_run(toy, "default"))


# ---------------------------------------------------------------------------------------------------------------- inputs


def test_a_damaged_cache_object_is_found_and_named(toy: Path) -> None:
    place = cached(toy, "data/raw/own.jsonl")
    damage(place)
    done = grpo_reproduce(toy, "default")
    assert done.returncode == 1
    assert f"Error: {place} in DVC's cache is damaged (data/raw/own.jsonl)" in done.stderr
    assert not list((toy / LENT).glob("*/"))


def test_what_the_cache_lost_comes_from_the_workspace(toy: Path) -> None:
    cached(toy, "data/raw/own.jsonl").unlink()
    assert "1 file that DVC keeps" in brought(find_run(toy, "default"))[0]
    assert not cached(toy, "data/raw/own.jsonl").exists()


def test_what_cache_and_workspace_lost_comes_from_the_remote(toy: Path) -> None:
    dvc(toy, "remote", "add", "--quiet", "--default", "--local", "store", "../store")
    dvc(toy, "push", "--quiet")
    run = find_run(toy, "default")
    cached(toy, "data/raw/own.jsonl").unlink()
    (toy / "data/raw/own.jsonl").unlink()
    with pytest.raises(InputError, match="this checkout has"):  # the note is in neither, and the folder is not whole any more
        brought(run)
    assert cached(toy, "data/raw/own.jsonl").is_file()
    dvc(toy, "checkout", "--quiet", "data/raw/own.jsonl")
    brought(run)


def test_what_neither_cache_nor_remote_has_is_named(toy: Path) -> None:
    cached(toy, "data/raw/own.jsonl").unlink()
    (toy / "data/raw/own.jsonl").unlink()
    with pytest.raises(InputError, match=r"data/raw/own\.jsonl cannot be restored: DVC's cache lacks [0-9a-f]{32}"):
        brought(find_run(toy, "default"))


def test_a_folder_that_dvc_tracks_is_restored_file_by_file(toy: Path) -> None:
    (toy / "data/raw/many").mkdir()
    for number in range(3):
        (toy / f"data/raw/many/{number}.txt").write_text(f"number {number}\n", encoding="utf-8")
    dvc(toy, "add", "--quiet", "data/raw/many")
    dvc(toy, "repro", "--quiet", "grpo_checkpoint@default")
    run = find_run(toy, "default")
    assert [line for line in brought(run) if line.startswith("input data/raw/many: md5 ") and line.endswith(" 3 files that DVC keeps")]
    damage(cached(toy, "data/raw/many"))
    with pytest.raises(InputError, match=r"\.dir in DVC's cache is damaged \(data/raw/many\)"):
        brought(run)


def test_an_input_that_nobody_keeps_must_be_what_it_was(toy: Path) -> None:
    (toy / "data/raw/notes.txt").write_text("another text\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"data/raw is not what the run was made from: recorded is md5 [0-9a-f]{32}") as error:
        brought(find_run(toy, "default"))
    assert "  data/raw/notes.txt: md5 " in str(error.value)


def test_a_model_folder_outside_of_data_is_lent(toy: Path) -> None:
    (toy / "models/tiny").mkdir(parents=True)
    (toy / "models/tiny/weights").write_text("small", encoding="utf-8")
    with lent(find_run(toy, "default")) as place:
        link_outside(["models/tiny", "", "somebody/on-the-hub", "params.yaml"], place)
        assert (place.project / "models/tiny/weights").read_text() == "small"
        assert not (place.project / "somebody").exists()
    assert (toy / "models/tiny/weights").is_file()


def test_another_model_than_fine_tuning_started_from_is_refused_by_its_hash(toy: Path) -> None:
    model = toy / "models/tiny"
    model.mkdir(parents=True)
    (model / "weights").write_text("small", encoding="utf-8")
    edit(toy, "params.yaml", 'model:\n  path: ""', "model:\n  path: models/tiny")
    manifest = f'"sft_checkpoint/manifest.json", json.dumps({{"parents": {{"model": "{source(model)}"}}}})'
    edit(toy, "toy_stage.py", 'write("sft_checkpoint/weights"', f'write({manifest})\n    write("sft_checkpoint/weights"')
    dvc(toy, "repro", "--quiet", "grpo_checkpoint@default")
    run = find_run(toy, "default")
    said: list[str] = []
    with lent(run) as place:
        here = ask_worktree(run, place)
    assert check_model(run, here["model"], here["source"], said.append)
    assert said == [f"input models/tiny: {source(model)} as recorded"]
    damage(model / "weights")
    with pytest.raises(InputError, match=f"model models/tiny is not what the run was made from: recorded is {run_source(run)}, now it is {source(model)}"):
        reproduced(run)


def source(model: Path) -> str:
    return source_of(ModelConfig(path=str(model)))


def run_source(run: Run) -> str:
    return str(run.json("data/sft_checkpoint/manifest.json")["parents"]["model"])


def test_a_model_of_which_nothing_is_recorded_is_not_called_the_same(toy: Path) -> None:
    said: list[str] = []
    assert not check_model(find_run(toy, "default"), "models/tiny", "0" * 64, said.append)
    assert said == []


def test_a_prompt_file_outside_of_data_could_explain_what_differs(toy: Path) -> None:
    (toy / "models").mkdir()
    (toy / "models/mine.jsonl").write_text('{"prompt": "1+1="}\n', encoding="utf-8")
    edit(toy, "params.yaml", 'prompts:\n  path: ""', "prompts:\n  path: models/mine.jsonl")
    edit(toy, "toy_stage.py", '"run_config/prompts.json") + raw', '"run_config/prompts.json") + raw + (root / "models/mine.jsonl").read_text()')
    dvc(toy, "repro", "--quiet", "grpo_checkpoint@default")
    run = find_run(toy, "default")
    (toy / "models/mine.jsonl").write_text('{"prompt": "2+2="}\n', encoding="utf-8")
    found, said = reproduced(run)
    assert found.verdict().startswith("differs: prompts ")
    assert "note: nothing recorded the bytes of models/mine.jsonl: it is read as it is now" in said
    assert "models/mine.jsonl could have changed since (nothing recorded its bytes), or the computation itself is not deterministic" in said
    assert "nothing differs in its inputs (data, code" not in said
    with lent(run) as place:
        known = [path for path in ("data/raw/own.jsonl", "models/mine.jsonl", "data/../models/mine.jsonl") if has_hash(path, run, NOUNS[:5], place)]
    assert known == ["data/raw/own.jsonl"]


# ------------------------------------------------------------------------------------------------------------------ code


def test_code_that_is_imported_from_elsewhere_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_toy(tmp_path / "toy")  # without packages of its own
    enter(root, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    dvc(root, "repro", "--quiet", "grpo_checkpoint@default")
    with pytest.raises(ReproduceError, match="code would be imported from outside the worktree") as error:
        reproduced(find_run(root, "default"))
    assert f"pipelines from {ROOT / 'pipelines'}" in str(error.value)
    assert not list((root / LENT).glob("*/"))


def test_a_stage_that_imports_code_from_elsewhere_is_refused(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_CODE", str(ROOT))
    with pytest.raises(ReproduceError, match=f"run_config imported its code from {ROOT}, not from the worktree"):
        reproduced(find_run(toy, "default"))


def test_a_module_of_the_checkout_is_a_stray_and_one_of_its_environment_is_not(tmp_path: Path) -> None:
    project = tmp_path / "checkout/.work/reproduce/key"
    lent = Worktree(tmp_path / "checkout", project, project)
    files = {
        "pipelines.stage": f"{project}/pipelines/stage.py",
        "reward_functions.mine": f"{tmp_path}/checkout/reward_functions/mine.py",
        "assets": f"{tmp_path}/another/assets/__init__.py",
        "torch": f"{sys.prefix}/lib/python3/site-packages/torch/__init__.py",
        "somebody": f"{tmp_path}/libraries/somebody.py",
    }
    assert strays(files, lent) == [f"reward_functions.mine from {files['reward_functions.mine']}", f"assets from {files['assets']}"]


def test_a_stages_environment_leads_nowhere_else(tmp_path: Path) -> None:
    project = tmp_path / "checkout/.work/reproduce/key"
    lent = Worktree(tmp_path / "checkout", project, project)
    base = {
        "PATH": "/bin", "PYTHONPATH": f"{tmp_path / 'checkout'}:/libraries", "MLFLOW_TRACKING_URI": "http://shared", "MLFLOW_RUN_ID": "1",
        "GIT_DIR": "/other/.git",
        "DVC_ROOT": "/other", "DAGSTER_PIPES_CONTEXT": "x", "GRPO_RUN_ID": "x", "HF_HOME": "/models", "DAGSTER_HOME": "/other",
    }  # fmt: skip
    found = lent.environment(base)
    assert found["PYTHONPATH"] == f"{project}:/libraries"
    assert found["MLFLOW_TRACKING_URI"] == f"sqlite:///{project}/mlflow.db"
    assert found["DAGSTER_HOME"] == f"{project}/.dagster"
    assert found["HF_HOME"] == "/models"
    assert not {"MLFLOW_RUN_ID", "GIT_DIR", "DVC_ROOT", "DAGSTER_PIPES_CONTEXT", "GRPO_RUN_ID"} & found.keys()


def test_a_stage_is_run_with_the_switches_that_were_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {
        "threads": {"OMP_WAIT_POLICY": "active", "torch": 2},
        "determinism": {"MKL_CBWR": "AVX2", "ATEN_CPU_CAPABILITY": None, "torch_interop_threads": 2},
    }
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("HF_HOME", "/models")
    found = stage_environment(Run(tmp_path, "default", "key", {"prompts": record}, None), "prompts", Worktree(tmp_path, tmp_path, tmp_path))
    assert (found["OMP_WAIT_POLICY"], found["MKL_CBWR"], found["HF_HOME"]) == ("active", "AVX2", "/models")
    assert not {"ATEN_CPU_CAPABILITY", "torch", "torch_interop_threads"} & found.keys()


# -------------------------------------------------------------------------------------------------------------- worktrees


def test_neither_a_shared_cache_nor_a_hook_answers(toy: Path) -> None:
    dvc(toy, "config", "cache.dir", "../../shared_cache")
    hook = toy / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hooked\n", encoding="utf-8")
    hook.chmod(0o755)
    dvc(toy, "repro", "--quiet", "--force", "grpo_checkpoint@default")
    run = find_run(toy, "default")
    with lent(run) as place:
        assert "shared_cache" in (place.project / ".dvc/config").read_text()
        assert not (place.project / "dvc.lock").exists() and not (place.folder / "hooked").exists()
        make_again(run, "run_config", place, set(), print)
        assert len([path for path in (place.project / ".dvc/cache/files").rglob("*") if path.is_file()]) > 5


def test_a_worktree_is_lent_where_a_person_wants_it_if_nothing_is_there(toy: Path, tmp_path: Path) -> None:
    run, place = find_run(toy, "default"), tmp_path / "elsewhere"
    place.mkdir()
    (place / "mine").touch()
    with pytest.raises(WorktreeError, match="is not empty"), lent(run, place):
        pass
    (place / "mine").unlink()
    with lent(run, place) as made:
        made.keep = True
    assert (place / "toy_stage.py").is_file() and git(toy, "worktree", "list").count("\n") == 2


def test_two_reproductions_of_a_run_do_not_meet(toy: Path) -> None:
    run = find_run(toy, "default")
    with lent(run) as place:
        with pytest.raises(WorktreeError, match="another process works in"), lent(run):
            pass
        assert (place.project / "toy_stage.py").is_file()


def test_what_a_killed_reproduction_left_is_cleared_away_and_other_worktrees_are_not(toy: Path, tmp_path: Path) -> None:
    run = find_run(toy, "default")
    git(toy, "worktree", "add", "--quiet", "--detach", str(tmp_path / "mine"))
    git(toy, "worktree", "add", "--quiet", "--detach", str(toy / LENT / "gone"))
    for folder in (tmp_path / "mine", toy / LENT / "gone"):
        shutil.rmtree(folder)
    (toy / LENT / run.run_key).mkdir()
    (toy / LENT / run.run_key / "half").touch()
    with lent(run) as place:
        assert (place.project / "toy_stage.py").is_file() and not (place.folder / "half").exists()
    kept = git(toy, "worktree", "list")
    assert str(tmp_path / "mine") in kept and "gone" not in kept and run.run_key not in kept


def test_a_project_in_a_folder_of_its_repository_is_found_there(tmp_path: Path) -> None:
    (tmp_path / "all/project").mkdir(parents=True)
    (tmp_path / "all/project/params.yaml").touch()
    git(tmp_path / "all", "init", "--quiet")
    commit(tmp_path / "all")
    with worktree(tmp_path / "all/project", git(tmp_path / "all", "rev-parse", "HEAD").strip(), "key") as place:
        assert place.project == place.folder / "project"
        assert (place.project / "params.yaml").is_file()


def test_ctrl_c_ends_the_stage_and_removes_the_worktree(toy: Path) -> None:
    before, asleep = state(toy), toy / LENT / find_run(toy, "default").run_key / "asleep"
    env = {**os.environ, "TOY_PROMPTS": "sleep", "TOY_OWNER": str(toy)}
    started = subprocess.Popen([sys.executable, "-c", PROGRAM, "default"], cwd=toy, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not asleep.exists():
        assert time.monotonic() < deadline and started.poll() is None, started.communicate()
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    time.sleep(0.2)
    started.send_signal(signal.SIGINT)
    said, errors = started.communicate(timeout=60)
    assert started.returncode == 130, errors
    assert "run_config: identical" in said and "prompts: identical" not in said
    assert errors.splitlines()[-1] == "interrupted: the worktree is removed, and this checkout is as it was"
    assert not processes_with("TOY_OWNER", str(toy))
    assert not asleep.parent.exists() and git(toy, "worktree", "list").count("\n") == 1
    assert state(toy) == before


def test_a_stage_that_fails_says_why_and_leaves_its_worktree(toy: Path) -> None:
    failed = grpo_reproduce(toy, "default", TOY_PROMPTS="fail")
    assert failed.returncode == 1
    assert "Error: prompts failed in the worktree" in failed.stderr and "the toy was told to fail" in failed.stderr
    assert (toy / LENT / find_run(toy, "default").run_key / "toy_stage.py").is_file()


@pytest.mark.slow
def test_the_shipped_default_is_reproduced_bit_for_bit(tmp_path: Path) -> None:
    root = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(root)], check=True)
    env = {name: value for name, value in environment(root, os.environ).items() if name not in ("OMP_NUM_THREADS", "PYTHONPATH", "MLFLOW_TRACKING_URI")}
    grpo = [sys.executable, "-m", "pipelines.cli"]
    subprocess.run([*grpo, "run"], cwd=root, env=env, check=True, capture_output=True)
    curves = (root / "mlflow.db").read_bytes()
    found = subprocess.run([*grpo, "reproduce", "default"], cwd=root, env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert [line.partition(" (")[0] for line in found.stdout.splitlines() if ": identical" in line] == [f"{stage}: identical" for stage in STAGES]
    assert found.stdout.splitlines()[-1] == "identical: every output of every stage"
    assert (root / "mlflow.db").read_bytes() == curves
