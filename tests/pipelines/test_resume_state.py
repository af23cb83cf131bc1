"""What becomes of a training's work folder: interrupted, killed while DVC hashed, extended, forced to start over, and when it goes."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assets import grpo_checkpoint, sft_checkpoint
from assets.page import Progress
from assets.paths import Paths
from grpo_core.config import RunConfig
from grpo_core.errors import Interrupted
from grpo_core.params import section_values
from grpo_core.work_folder import WorkFolder, checkpoints, step_of
from pipelines.lock import folder_md5, read_lock
from pipelines.params import ROOT, json_bytes
from pipelines.records.dvc_cache import object_path
from pipelines.records.provenance import begin
from pipelines.records.runs import find_run
from pipelines.resume_state import FINISHED, Finished, read_marker, resumable, settle
from tests.assets.lifecycle import lifecycle_config, make_lifecycle
from tests.pipelines.toy_project import THIRD_PARTY_WARNINGS, dvc, edit, git, make_project
from tests.troubled_logs import DEAF

OUTS = {"sft_checkpoint": "data/sft_checkpoint", "grpo_checkpoint": "data/grpo_checkpoint/default"}
MODULES = {"sft_checkpoint": sft_checkpoint, "grpo_checkpoint": grpo_checkpoint}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """A lifecycle whose trainings were killed when all steps were done, before they could say so."""
    paths = make_lifecycle(tmp_path_factory.mktemp("lifecycle"))
    shutil.copy(ROOT / "dvc.yaml", paths.root)
    return paths


@pytest.fixture
def paths(made: Paths, tmp_path: Path) -> Paths:
    shutil.copytree(made.root, tmp_path, dirs_exist_ok=True)
    return Paths(tmp_path)


def steps(number: int) -> RunConfig:
    """The lifecycle's configuration with another number of GRPO's steps."""
    config = lifecycle_config()
    return replace(config, grpo=replace(config.grpo, steps=number))


def train(paths: Paths, config: RunConfig | None = None, noun: str = "grpo_checkpoint", *, stop_after: int | None = None) -> list[int]:
    """Make the noun as its stage does; returns the steps that were done. DVC has removed the outputs before."""
    config, done = config or lifecycle_config(), []

    def on_progress(progress: Progress) -> None:
        if progress.step > 0 and not progress.notices:
            done.append(progress.step)

    for out in (
        paths.root / OUTS[noun],
        *([paths.rollout_batches, paths.rewards, paths.exploits, paths.select_completions] if noun == "grpo_checkpoint" else []),
    ):
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
    making = begin(paths, noun, config)
    with resumable(making, config) as work:
        MODULES[noun].produce(paths, config, on_progress, lambda: stop_after is not None and len(done) + 1 >= stop_after, work)
        for metric in making.files.metrics:
            if (paths.root / metric).is_file():
                continue
            (paths.root / metric).parent.mkdir(parents=True, exist_ok=True)
            (paths.root / metric).write_text("{}", encoding="utf-8")
    return done


def lock(paths: Paths, noun: str = "grpo_checkpoint", md5: str | None = None) -> str:
    """dvc.lock as DVC writes it once it has the outputs: those that lie there, or others; returns the checkpoint's hash."""
    target, out = noun if noun == "sft_checkpoint" else f"{noun}@default", OUTS[noun]
    md5 = md5 or folder_md5(paths.root / out)
    text = f"schema: '2.0'\nstages:\n  {target}:\n    cmd: x\n    outs:\n    - {{path: {out}, md5: {md5}, size: 1}}\n"
    (paths.root / "dvc.lock").write_text(text, encoding="utf-8")
    return md5


def cache(paths: Paths, md5: str) -> None:
    """DVC's cache has what this is the hash of."""
    path = object_path(paths.root, md5)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[]", encoding="utf-8")


def date_back(path: Path) -> None:
    """Make the file a minute older."""
    time = path.stat().st_mtime_ns - 60 * 10**9
    os.utime(path, ns=(time, time))


def work_of(paths: Paths, noun: str = "grpo_checkpoint", config: RunConfig | None = None) -> Path:
    return MODULES[noun].work_folder(paths, config or lifecycle_config())


def outputs(paths: Paths) -> dict[str, bytes]:
    files = (paths.rollout_batches, paths.rewards, paths.exploits, paths.select_completions, *(path for path in paths.grpo_checkpoint.iterdir()))
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.parametrize(("noun", "last"), [("sft_checkpoint", 3), ("grpo_checkpoint", 4)])
def test_a_training_that_did_not_say_it_was_finished_is_resumed(paths: Paths, noun: str, last: int) -> None:
    assert train(paths, noun=noun) == []
    assert read_marker(work_of(paths, noun)) == Finished(folder_md5(paths.root / OUTS[noun]), last, {})


@pytest.mark.parametrize("noun", OUTS)
def test_killed_while_dvc_hashed_it_is_done_at_once(paths: Paths, noun: str) -> None:
    train(paths, noun=noun)
    lock(paths, noun, md5="0123.dir")
    assert train(paths, noun=noun) == []
    (paths.root / "dvc.lock").unlink()
    assert train(paths, noun=noun) == []


@pytest.mark.parametrize(("noun", "all_steps"), [("sft_checkpoint", [1, 2, 3]), ("grpo_checkpoint", [1, 2, 3, 4])])
def test_forced_again_a_finished_training_starts_over_every_time_and_comes_out_the_same(paths: Paths, noun: str, all_steps: list[int]) -> None:
    train(paths, noun=noun)
    first = lock(paths, noun)
    for _ in range(2):
        assert train(paths, noun=noun) == all_steps
        assert lock(paths, noun) == first


def test_settings_that_change_no_step_are_judged_by_and_not_trained_by(paths: Paths) -> None:
    """As after `health.acknowledged` or a threshold was edited: DVC runs the stage, as its configuration is another."""

    def watched(**health: Any) -> RunConfig:
        config = replace(lifecycle_config(), health=replace(DEAF, patience=1, max_truncated_fraction=0.0, **health))
        file = paths.run_config / "default" / "health.json"
        file.write_bytes(json_bytes(section_values(config, "health")))
        return config

    train(paths, watched())
    lock(paths)
    assert json.loads(paths.alarms.read_text())["num_open"] == 1
    accepted = watched(acknowledged={"truncation": "a test"})
    assert train(paths, accepted) == []
    lock(paths)
    assert json.loads(paths.alarms.read_text())["num_open"] == 0
    assert train(paths, accepted) == [1, 2, 3, 4], "nothing has changed since: it is forced"


def test_a_forced_training_that_was_interrupted_is_resumed(paths: Paths) -> None:
    train(paths)
    lock(paths)
    with pytest.raises(Interrupted):
        train(paths, stop_after=3)
    assert train(paths) == [4]


@pytest.mark.parametrize("committed", [True, False])
def test_more_steps_extend_a_finished_training_to_what_it_would_have_been_at_once(paths: Paths, committed: bool) -> None:
    train(paths)
    if committed:
        lock(paths)
    assert train(paths, steps(6)) == [5, 6]
    extended = outputs(paths)
    assert read_marker(work_of(paths)) == Finished(folder_md5(paths.grpo_checkpoint), 6, {})
    shutil.rmtree(work_of(paths))
    assert train(paths, steps(6)) == [1, 2, 3, 4, 5, 6]
    assert outputs(paths) == extended


def test_an_extension_that_was_interrupted_goes_on_from_there(paths: Paths) -> None:
    train(paths)
    lock(paths)
    with pytest.raises(Interrupted):
        train(paths, steps(7), stop_after=2)
    assert train(paths, steps(7)) == [7]


@pytest.mark.parametrize(("stop_after", "kept"), [(0, 4), (2, 6)])
def test_a_forced_training_starts_over_also_after_an_abandoned_extension(paths: Paths, stop_after: int, kept: int) -> None:
    train(paths)
    lock(paths)
    expected, whole = outputs(paths), read_marker(work_of(paths))
    abandon(paths, stop_after)
    assert step_of(checkpoints(work_of(paths))[0]) == kept
    assert read_marker(work_of(paths)) == (whole if kept == 4 else None), "an extension that got further is no finished training"
    assert train(paths) == [1, 2, 3, 4]
    assert outputs(paths) == expected
    assert read_marker(work_of(paths)) == whole


def abandon(paths: Paths, stop_after: int) -> None:
    """Extend to seven steps and die after the first `stop_after` new ones (a checkpoint is written then), or without any."""
    if stop_after:
        with pytest.raises(Interrupted):
            train(paths, steps(7), stop_after=stop_after)
        return
    with pytest.raises(KeyboardInterrupt), resumable(begin(paths, "grpo_checkpoint", steps(7)), steps(7)):
        raise KeyboardInterrupt


@pytest.mark.parametrize("stop_after", [0, 2])
def test_an_abandoned_extension_of_what_dvc_has_not_taken_is_never_retrained(paths: Paths, stop_after: int) -> None:
    train(paths)
    lock(paths, md5="0123.dir")
    abandon(paths, stop_after)
    if stop_after:
        with pytest.raises(ValueError, match=r"holds an interrupted run up to step 6, steps is 4"):
            train(paths)
    else:
        assert train(paths) == []
    assert train(paths, steps(7)) == [5, 6, 7][stop_after:]


@pytest.mark.parametrize("marked", [True, False])
def test_an_extension_killed_at_its_very_end_is_done_at_once(paths: Paths, marked: bool) -> None:
    train(paths)
    lock(paths)
    shorter = (work_of(paths) / FINISHED).read_bytes()
    assert train(paths, steps(6)) == [5, 6]
    if not marked:  # killed after the last step and before the marker was written
        (work_of(paths) / FINISHED).write_bytes(shorter)
    assert train(paths, steps(6)) == []
    assert read_marker(work_of(paths)) == Finished(folder_md5(paths.grpo_checkpoint), 6, {})


def test_going_back_and_forth_between_two_numbers_of_steps(paths: Paths) -> None:
    train(paths)
    four = lock(paths)
    cache(paths, four)
    assert train(paths, steps(6)) == [5, 6]
    six = lock(paths)
    cache(paths, six)
    # Back to four: DVC answers from its run cache, which changes dvc.lock and runs nothing. Forced, each starts over.
    date_back(work_of(paths) / FINISHED)
    lock(paths, md5=four)
    assert train(paths, steps(6)) == [1, 2, 3, 4, 5, 6]
    date_back(work_of(paths) / FINISHED)
    lock(paths, md5=four)
    assert train(paths) == [1, 2, 3, 4]
    lock(paths)
    assert train(paths, steps(6)) == [5, 6]


def test_killed_after_dvc_filled_its_cache_and_before_it_wrote_dvc_lock_it_is_done_at_once(paths: Paths) -> None:
    train(paths)
    lock(paths, md5="0123.dir")
    date_back(paths.root / "dvc.lock")
    cache(paths, folder_md5(paths.grpo_checkpoint))
    assert train(paths) == []


def test_fewer_steps_than_dvc_has_not_taken_yet_are_refused_and_everything_is_kept(paths: Paths) -> None:
    train(paths)
    with pytest.raises(ValueError, match=r"holds an interrupted run up to step 4, steps is 2"):
        train(paths, steps(2))
    assert train(paths) == []


def test_what_another_experiment_made_is_not_what_dvc_has_taken_of_this_one(paths: Paths) -> None:
    train(paths)
    lock(paths)
    text = (paths.root / "dvc.lock").read_text(encoding="utf-8").replace("@default", "@other").replace("checkpoint/default", "checkpoint/other")
    (paths.root / "dvc.lock").write_text(text, encoding="utf-8")
    assert train(paths) == []


def test_a_torn_marker_is_none(paths: Paths) -> None:
    train(paths)
    lock(paths)
    for torn in (b"", b'{"md5": "0123', b'{"md5": "0123"}', b"\xff", b"[]"):
        (work_of(paths) / FINISHED).write_bytes(torn)
        assert read_marker(work_of(paths)) is None
    assert train(paths) == []


def test_the_folder_of_a_finished_grpo_training_stays_and_that_of_sft_goes_once_dvc_has_it(paths: Paths) -> None:
    for noun in OUTS:
        train(paths, noun=noun)
    settle(paths)
    assert (work_of(paths, "sft_checkpoint") / "checkpoints").is_dir()
    lock(paths, "grpo_checkpoint")
    settle(paths)
    assert (work_of(paths, "sft_checkpoint") / "checkpoints").is_dir()
    lock(paths, "sft_checkpoint")
    settle(paths)
    settle(paths)
    assert not work_of(paths, "sft_checkpoint").exists()
    assert (work_of(paths) / "checkpoints").is_dir()


def test_settling_before_any_training_is_fine(tmp_path: Path) -> None:
    settle(Paths(tmp_path))
    assert list(tmp_path.iterdir()) == []


@contextmanager
def at_work(paths: Paths) -> Iterator[None]:
    """Another process trains in the work folder."""
    with WorkFolder.open(work_of(paths)):
        yield


def test_a_folder_that_a_process_works_in_is_never_emptied(paths: Paths) -> None:
    train(paths)
    lock(paths)
    before = sorted(work_of(paths).rglob("*"))
    with at_work(paths), pytest.raises(ValueError, match="another process"):
        train(paths)
    assert sorted(work_of(paths).rglob("*")) == before


# ------------------------------------------------------------------------------------------------------------ through DVC


@pytest.mark.filterwarnings(THIRD_PARTY_WARNINGS[0])
def test_a_folder_has_the_hash_that_dvc_gives_it(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    with (root / "toy_stage.py").open("a", encoding="utf-8") as stage:
        stage.write("if noun == 'grpo_checkpoint': write(f'grpo_checkpoint/{experiment}/a b/ä.txt', 'nested')\n")
    dvc(root, "repro", "--quiet")
    assert read_lock(root)["grpo_checkpoint@default"].outs[OUTS["grpo_checkpoint"]] == folder_md5(root / OUTS["grpo_checkpoint"])


def test_outputs_that_dvc_restores_without_running_the_stage_have_their_record_and_leave_the_work_folder_alone(tmp_path: Path) -> None:
    root = make_project(tmp_path / "toy")
    work = root / ".work/grpo_checkpoint/default/toy"
    dvc(root, "repro", "--quiet")
    first = find_run(root, "default")
    edit(root, "params.yaml", "  steps: 80 ", "  steps: 100 ")
    dvc(root, "repro", "--quiet")
    second, marker = find_run(root, "default"), read_marker(work)
    edit(root, "params.yaml", "  steps: 100 ", "  steps: 80 ")
    assert "Stage 'grpo_checkpoint@default' is cached - skipping run" in dvc(root, "repro")
    assert second.run_key != first.run_key
    # DVC keeps no runs of the two stages whose outputs stay in place while they are made again: run_config, prompts.
    restored = find_run(root, "default")
    assert {noun: record for noun, record in restored.records.items() if first.records[noun] != record}.keys() <= {"run_config", "prompts"}
    assert restored.records.keys() == first.records.keys()
    assert read_marker(work) == marker


def test_an_experiment_of_dvcs_in_a_folder_of_its_own_leaves_this_checkouts_work_alone_and_its_records_to_it(tmp_path: Path) -> None:
    root = make_project(tmp_path / "toy")
    dvc(root, "repro", "--quiet")
    before = {path: path.read_bytes() for path in (root / ".work").rglob("*") if path.is_file()}
    run = find_run(root, "default")
    dvc(root, "exp", "run", "--quiet", "--temp", "--name", "longer", "--set-param", "grpo.steps=100")
    assert {path: path.read_bytes() for path in before} == before
    assert find_run(root, "default") == run
    dvc(root, "exp", "apply", "longer")
    shutil.rmtree(root / ".dvc" / "tmp" / "exps")
    applied = find_run(root, "default")
    assert applied.run_key != run.run_key
    assert applied.records.keys() == run.records.keys()
    assert "steps: 100" in git(root, "show", f"{applied.records['grpo_checkpoint']['snapshot']}:params.yaml")
