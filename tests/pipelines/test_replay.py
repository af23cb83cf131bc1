"""`grpo replay` on a tiny run: from the workspace, from DVC's cache, and what it says."""

import hashlib
import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml  # type: ignore[import-untyped]
from rich.console import Console

from assets.paths import Paths
from grpo_core.replay import Replayed
from grpo_core.tables import write_table
from pipelines.lock import file_md5
from pipelines.records.files import UNKNOWN
from pipelines.records.runs import Run, RunError
from pipelines.reproduction.replay import replay_run, table, verdict
from tests.assets.lifecycle import make_lifecycle


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """A tiny lifecycle of four steps, checkpoints of 2 and 4 kept."""
    return make_lifecycle(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def paths(trained: Paths, tmp_path: Path) -> Paths:
    shutil.copytree(trained.root, tmp_path / "checkout")
    return Paths(tmp_path / "checkout")


def folder_entry(root: Path, folder: Path) -> str:
    """The hash of a folder whose listing is put into DVC's cache."""
    files = [{"md5": file_md5(path), "relpath": path.name} for path in sorted(folder.iterdir())]
    listing = json.dumps(files).encode()
    md5 = hashlib.md5(listing, usedforsecurity=False).hexdigest() + ".dir"
    cached = cache(root, md5)
    cached.parent.mkdir(parents=True, exist_ok=True)
    cached.write_bytes(listing)
    return md5


def cache(root: Path, md5: str) -> Path:
    return root / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]


def run_of(paths: Paths) -> Run:
    """The run as its record and DVC's cache know it."""
    tables = (paths.prompts, paths.rollout_batches, paths.rewards)
    outs = {str(path.relative_to(paths.root)): file_md5(path) for path in tables}
    for folder in (paths.sft_checkpoint, paths.reference_checkpoint, paths.grpo_checkpoint):
        outs[str(folder.relative_to(paths.root))] = folder_entry(paths.root, folder)
    key = json.loads((paths.grpo_checkpoint / "manifest.json").read_text())["run_key"]
    return Run(paths.root, "default", key, {"grpo_checkpoint": {**UNKNOWN, "experiment": "default", "outs": outs}}, None)


def replayed(run: Run, first: int | None = None, last: int | None = None) -> list[Replayed]:
    return replay_run(run, first, last, lambda step, end: None)


def printed(shown: Any) -> str:
    written = StringIO()
    Console(width=140, file=written).print(shown)
    return written.getvalue()


def test_without_options_all_steps_since_the_oldest_kept_checkpoint_are_identical(paths: Paths) -> None:
    heard: list[tuple[int, int]] = []
    done = replay_run(run_of(paths), None, None, lambda step, end: heard.append((step.step, end)))
    assert heard == [(3, 4), (4, 4)]
    assert verdict(done) == (True, "2 steps replayed: identical")
    text = printed(table(done))
    loss = json.loads((paths.grpo_checkpoint / "metrics.jsonl").read_text().splitlines()[3])["loss"]
    (row,) = [line for line in text.splitlines() if line.startswith("│    3 ")]
    assert row.count(f"{loss:.6g}") == 2
    assert row.split("│")[-2].strip() == "yes"


def test_one_step_is_done_from_the_checkpoint_below_it(paths: Paths) -> None:
    heard: list[int] = []
    done = replay_run(run_of(paths), 4, 4, lambda step, end: heard.append(step.step))
    assert heard == [3, 4]
    assert [step.step for step in done] == [4]
    assert verdict(done) == (True, "1 step replayed: identical")
    assert [step.step for step in replayed(run_of(paths), None, 2)] == [1, 2], "no checkpoint before step 2 is kept: from the start"


def test_a_run_that_left_the_workspace_is_replayed_from_the_cache(paths: Paths) -> None:
    run = run_of(paths)
    for path in sorted(paths.data.rglob("*")):
        if path.is_file():
            target = cache(paths.root, file_md5(path))
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    assert verdict(replayed(run)) == (True, "2 steps replayed: identical")
    shutil.rmtree(paths.work)
    assert verdict(replayed(run)) == (True, "4 steps replayed: identical")


def test_what_is_nowhere_is_named(paths: Paths) -> None:
    run = run_of(paths)
    (paths.reference_checkpoint / "config.json").unlink()
    with pytest.raises(RunError, match=r"data/reference_checkpoint/config\.json of default"):
        replayed(run)


def test_a_changed_reward_is_found_and_named(paths: Paths) -> None:
    one = (pl.col("step") == 3) & (pl.col("group") == 1) & (pl.col("completion_index") == 2)
    rewards = pl.read_parquet(paths.rewards)
    prompt = rewards.filter(one)["prompt_id"][0]
    write_table(paths.rewards, rewards.with_columns(pl.when(one).then(pl.col("advantage") + 1).otherwise("advantage").alias("advantage")))
    done = replayed(run_of(paths))
    same, said = verdict(done)
    assert not same
    assert said.startswith(f"step 3 differs: advantage of prompt {prompt}, completion 2: recorded ")
    assert "1.0e+00 (advantage)" in printed(table(done))
    assert verdict(replayed(run_of(paths), 4, 4))[1].startswith("step 3 differs: "), "what was done on the way counts, too"


def test_a_difference_by_rounding_is_called_one() -> None:
    def step(number: int, gap: float, *, same: bool | None = True) -> Replayed:
        return Replayed(number, {"loss": 0.5}, {"loss": 0.5 + gap}, {"reward": 0.0}, {"loss": gap}, same, ())

    same, said = verdict([step(3, 0.0), step(4, 2e-7, same=False), step(5, 1e-7, same=False)])
    assert same
    assert said == (
        "3 steps replayed: agree within 2.0e-07; from step 4 on the weights are other ones to the bit "
        "(another processor, library version or GPU rounds otherwise)"
    )
    assert verdict([step(3, 0.0, same=None)]) == (True, "1 step replayed: identical")
    assert "2.0e-07 (loss)" in printed(table([step(4, 2e-7)]))


def test_a_file_that_is_not_the_recorded_one_is_not_replayed(paths: Paths) -> None:
    run = run_of(paths)
    entry = {"cmd": "x", "outs": [{"path": path, "md5": md5, "size": 1} for path, md5 in run.records["grpo_checkpoint"]["outs"].items()]}
    (paths.root / "dvc.lock").write_text(yaml.safe_dump({"stages": {"grpo_checkpoint@default": entry}}), encoding="utf-8")
    assert verdict(replayed(run, 4, 4)) == (True, "1 step replayed: identical")
    for path in (paths.rewards, paths.sft_checkpoint / "config.json"):
        before = path.read_bytes()
        path.write_bytes(before + b" ")
        name = path.relative_to(paths.root)
        with pytest.raises(RunError, match=rf"^{name} of default \(\w+\) was altered \(its md5 is not \w+\): delete it, then `dvc pull` brings it"):
            replayed(run, 4, 4)
        path.write_bytes(before)


def test_a_damaged_object_of_the_cache_is_not_replayed(paths: Paths) -> None:
    run = run_of(paths)
    target = cache(paths.root, file_md5(paths.rewards))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(paths.rewards.read_bytes()[:-1])
    paths.rewards.unlink()
    with pytest.raises(RunError, match=rf"was altered in DVC's cache: delete {target}, then fetch it"):
        replayed(run, 4, 4)
