"""Resume state lives until DVC keeps the outputs, and no longer."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from assets import grpo_checkpoint
from assets.paths import Paths
from pipelines.lock import folder_md5, read_lock
from pipelines.resume_state import FINISHED, resumable, settle
from pipelines.stage import _record
from tests.assets.lifecycle import ignore, lifecycle_config, make_lifecycle, never
from tests.pipelines.toy_project import THIRD_PARTY_WARNINGS, dvc, make_project

OUT = "data/grpo_checkpoint/default"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    return make_lifecycle(tmp_path_factory.mktemp("lifecycle"))


@pytest.fixture
def paths(made: Paths, tmp_path: Path) -> Paths:
    """A trained lifecycle that DVC knows nothing of, with the work folder of its training."""
    shutil.copytree(made.root, tmp_path, dirs_exist_ok=True)
    return Paths(tmp_path)


def commit(paths: Paths, outs: Mapping[str, str] | None = None) -> None:
    """What DVC leaves once it has the outputs."""
    lines = [f"    - {{path: {path}, md5: {md5}, size: 1}}\n" for path, md5 in (outs or {OUT: folder_md5(paths.grpo_checkpoint)}).items()]
    (paths.root / "dvc.lock").write_text("schema: '2.0'\nstages:\n  grpo_checkpoint@default:\n    cmd: x\n    outs:\n" + "".join(lines), encoding="utf-8")


def finish(paths: Paths) -> Path:
    """The training inside the block has ended well."""
    with resumable(paths, lifecycle_config()) as work:
        assert work.is_dir(), "resumed"
    return work


@pytest.mark.filterwarnings(THIRD_PARTY_WARNINGS[0])
def test_a_folder_has_the_hash_that_dvc_gives_it(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    with (root / "toy_stage.py").open("a", encoding="utf-8") as stage:
        stage.write("if noun == 'grpo_checkpoint': write(f'grpo_checkpoint/{experiment}/a b/ä.txt', 'nested')\n")
    dvc(root, "repro", "--quiet")
    assert read_lock(root)["grpo_checkpoint@default"].outs[OUT] == folder_md5(root / OUT)


def test_a_finished_training_that_dvc_has_not_committed_is_resumed(paths: Paths) -> None:
    work = finish(paths)
    commit(paths, {OUT: "0123.dir"})
    settle(paths)
    assert (work / FINISHED).is_file()
    finish(paths)
    assert (work / "checkpoints").is_dir()


def test_a_finished_and_committed_training_starts_over(paths: Paths) -> None:
    work = finish(paths)
    commit(paths)
    with resumable(paths, lifecycle_config()) as again:
        assert again == work
        assert not work.exists()
        grpo_checkpoint.produce(paths, lifecycle_config(), ignore, never)
    assert (work / FINISHED).is_file()


def test_a_training_that_stopped_again_is_not_finished(paths: Paths) -> None:
    work = finish(paths)
    with pytest.raises(KeyboardInterrupt), resumable(paths, lifecycle_config()):
        raise KeyboardInterrupt
    commit(paths)
    settle(paths)
    assert (work / "checkpoints").is_dir()


def test_evaluation_comes_after_dvc_has_committed_and_settles(paths: Paths) -> None:
    work = finish(paths)
    commit(paths)
    with pytest.raises(KeyboardInterrupt), _record("heldout_eval", paths, lifecycle_config()):
        assert not work.exists()
        raise KeyboardInterrupt


def test_settling_twice_or_before_any_training_is_fine(tmp_path: Path, paths: Paths) -> None:
    settle(Paths(tmp_path / "empty"))
    finish(paths)
    commit(paths)
    settle(paths)
    settle(paths)
