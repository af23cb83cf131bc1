"""Kills one training again and again, and compares what it leaves with a run that was never touched.

    python bench/resume.py [--kills 20] [--seed 0] [--steps 80]

In a copy of the checkout (with a DVC cache and an MLflow database of its own) the default lifecycle is made up to the reference checkpoint.
Then `dvc repro -s grpo_checkpoint@default` runs once to its end, and once more in a second copy where the training process gets SIGKILL after
steps drawn uniformly, at a random moment of the step that follows, and is started again by the same command until it ends. Exit status 1
when a byte of any output, or a point of MLflow's curves, differs. Takes about six minutes on two cores.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assets.paths import Paths
from pipelines.environment import environment
from pipelines.params import ROOT
from pipelines.processes import Process, living_processes

STAGE = "grpo_checkpoint@default"
PATIENCE_SECONDS = 600.0
"""A training that shows no step for this long is given up."""
CHECKPOINT_BAR = 0.05
"""Share of the run that checkpoints may cost."""


def dvc(*arguments: str) -> list[str]:
    """A command of this environment's dvc."""
    return [str(Path(sys.executable).parent / "dvc"), *arguments]


STAGE_COMMAND = dvc("repro", "--single-item", STAGE)


# --------------------------------------------------------------------------------------------------------------- copies


def copy_working_tree(root: Path, target: Path) -> Path:
    """The checkout's files as they are now, committed or not, as a Git repository of one commit at `target`; no outputs, no caches."""
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=root, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (root / name).is_file() and name != "dvc.lock":
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)
    commit(target)
    return target


def commit(root: Path) -> None:
    """Make `root` a Git repository, if it is none, and commit all that is in it."""
    identity = ["-c", "user.name=copy", "-c", "user.email=copy@example.com"]
    for arguments in (["init", "--quiet"], ["add", "--all"], [*identity, "commit", "--quiet", "--message", "copy"]):
        subprocess.run(["git", *arguments], cwd=root, check=True)


def clean_environment(root: Path) -> dict[str, str]:
    """The environment of the lifecycle in `root`, without what would make it import other code, or record elsewhere."""
    ours = ("PYTHONPATH", "MLFLOW_TRACKING_URI", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {name: value for name, value in environment(root, os.environ).items() if name not in ours}


def set_params(root: Path, values: Mapping[str, object]) -> None:
    """Write `section.key` → value into params.yaml, comments kept."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    params = yaml.load(root / "params.yaml")
    for name, value in values.items():
        section, key = name.split(".")
        params[section][key] = value
    yaml.dump(params, root / "params.yaml")


# -------------------------------------------------------------------------------------------------------------- killing


def start(root: Path, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """The command in `root`, in a session of its own; what it writes is added to `log`."""
    with log.open("ab") as stream:
        return subprocess.Popen(command, cwd=root, env=clean_environment(root), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True)


def run(root: Path, command: Sequence[str], log: Path) -> None:
    """Run the command to its end; raises RuntimeError with its last words when it fails."""
    status = start(root, command, log).wait()
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} in {root} ended with status {status}:\n{tail(log)}")


def tail(log: Path, num_lines: int = 20) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-num_lines:])


def family(pid: int) -> set[Process]:
    """The living descendants of a process, and the process."""
    living = living_processes()
    found = {process for process in living if process.pid == pid}
    while more := {process for process in living - found if process.parent in {known.pid for known in found}}:
        found |= more
    return found


def stage_process(pid: int) -> Process | None:
    """The process among the descendants of `pid` that trains."""
    for process in family(pid):
        with suppress(OSError):  # it ended meanwhile
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
            if b"python" in words[0] and b"pipelines.stage" in words:
                return process
    return None


def fresh_steps(work: Path, since: float) -> list[int]:
    """The steps that trainings in folders below `work` finished after the time `since`, in order."""
    steps = []
    for timings in work.glob("*/timings.jsonl"):
        for line in timings.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # the last line may be half written
                values = json.loads(line)
                if values["timestamp_ms"] >= since * 1000 and values["step"] > 0:
                    steps.append(int(values["step"]))
    return sorted(steps)


def wait_for_step(running: subprocess.Popen[bytes], work: Path, step: int, since: float) -> bool:
    """Wait until a training in a folder below `work` has finished `step` or a later one; False when the command ended before."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if running.poll() is not None:
            return False
        if fresh_steps(work, since)[-1:] >= [step]:
            return True
        time.sleep(0.005)
    raise RuntimeError(f"no step {step} in {work} after {PATIENCE_SECONDS:.0f} s")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the training."""

    done: list[int]
    """The steps that it finished."""
    killed: bool
    """SIGKILL met it alive, and it did not get to its end."""


def attempt(root: Path, log: Path, step: int, offset_seconds: float) -> Attempt:
    """Run the stage and SIGKILL its training process `offset_seconds` after it finished `step` (or the first later one that it does)."""
    since, work = time.time(), training_work(root)
    running = start(root, STAGE_COMMAND, log)
    trainer = stage_process(running.pid) if wait_for_step(running, work, step, since) else None
    time.sleep(offset_seconds)
    if trainer in living_processes():
        assert trainer is not None
        os.kill(trainer.pid, signal.SIGKILL)
    ended_well = running.wait() == 0
    return Attempt(fresh_steps(work, since), killed=trainer is not None and not ended_well)


def training_work(root: Path) -> Path:
    """Where GRPO's work folders lie."""
    return Paths(root).work / "grpo_checkpoint" / "default"


# ------------------------------------------------------------------------------------------------------------ comparing


def digests(root: Path, paths: Sequence[Path]) -> dict[str, str]:
    """The sha256 of every file at or below `paths`, by its path in the checkout."""
    files = sorted(file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
    return {str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def outputs(root: Path) -> dict[str, str]:
    """The digests of all that the training stage makes: weights, rollouts, rewards, selection, metrics, manifest, contracts."""
    return digests(root, [root / out["path"] for out in read_stages(root)[STAGE]["outs"]])


def read_stages(root: Path) -> dict[str, Any]:
    """Target → what dvc.lock says of it."""
    from ruamel.yaml import YAML

    stages: dict[str, Any] = YAML(typ="safe", pure=True).load(root / "dvc.lock")["stages"]
    return stages


def curve_faults(root: Path) -> list[str]:
    """How MLflow's curves differ from metrics.jsonl: a run too many or too few, a step that is missing, there twice, or has another value."""
    from mlflow import MlflowClient

    from pipelines.tracking import EXPERIMENT, as_number, valid_name

    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(EXPERIMENT)
    runs = client.search_runs([experiment.experiment_id]) if experiment else []
    if len(runs) != 1:
        return [f"{len(runs)} MLflow runs instead of one"]
    expected: dict[str, list[tuple[int, float]]] = {}
    for line in (Paths(root).grpo_checkpoint / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        for key, value in values.items():
            number = as_number(value)
            if key != "step" and number is not None:
                expected.setdefault(valid_name(key), []).append((int(values["step"]), number))
    steps = [step for step, _ in max(expected.values(), key=len)]
    faults = []
    for key, points in expected.items():
        held = sorted((metric.step, metric.value) for metric in client.get_metric_history(runs[0].info.run_id, key))
        if held != sorted(points):
            wrong = sorted(set(held) ^ set(points)) or sorted(point for point in held if held.count(point) > 1)
            faults.append(f"{key}: {len(held)} points instead of {len(points)}, the first that is wrong: step {wrong[0][0]}")
    seconds = sorted(metric.step for metric in client.get_metric_history(runs[0].info.run_id, "seconds"))
    if seconds != [step for step in steps if step > 0]:
        faults.append(f"seconds: steps {seconds} instead of {steps}")
    return faults


def timings(root: Path) -> list[dict[str, float]]:
    """The clock's figures of every step of the finished training."""
    text = (Paths(root).provenance("grpo_checkpoint") / "timings.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def checkpoint_share(lines: Sequence[Mapping[str, float]]) -> float:
    """Share of a training's seconds that went into checkpoints; the last one, which no step came after to tell of, is taken for an average one."""
    told = [line["seconds/checkpoint"] for line in lines if "seconds/checkpoint" in line]
    written = sum(told) + statistics.fmean(told)
    return written / (sum(line.get("seconds", 0.0) + line.get("seconds/rows", 0.0) for line in lines) + written)


# ------------------------------------------------------------------------------------------------------------ the whole


def killed_run(root: Path, log: Path, draws: Sequence[tuple[int, float]]) -> list[Attempt]:
    """Train with a SIGKILL at every draw (step, seconds into the next), and then to the end."""
    attempts = []
    for number, (step, offset) in enumerate(draws, start=1):
        attempts.append(attempt(root, log, step, offset))
        done, killed = attempts[-1].done, attempts[-1].killed
        steps = f"steps {done[0]} to {done[-1]} were done" if done else "no step was done"
        say(f"  kill {number:2}/{len(draws)}: {offset:.2f} s after step {step:2}: {steps if killed else 'the training had ended'}")
    since = time.time()
    run(root, STAGE_COMMAND, log)
    return [*attempts, Attempt(fresh_steps(training_work(root), since), killed=False)]


def compare(untouched: Path, killed: Path) -> list[str]:
    """Print the sha256 of every output both ways (once where they are the same); the outputs that differ."""
    ours, theirs = outputs(untouched), outputs(killed)
    names = sorted({*ours, *theirs})
    for name in names:
        here, there = ours.get(name, "missing"), theirs.get(name, "missing")
        say(f"  same      {here} {name}" if here == there else f"  DIFFERENT {here} {name}\n     killed {there}")
    return [name for name in names if ours.get(name) != theirs.get(name)]


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def measure(folder: Path, num_kills: int, seed: int, steps: int | None) -> int:
    """The whole comparison in `folder`; the exit status."""
    began, log = time.monotonic(), folder / "log"
    untouched = copy_working_tree(ROOT, folder / "untouched")
    if steps is not None:
        set_params(untouched, {"grpo.steps": steps})
    say("making the default lifecycle up to the reference checkpoint")
    run(untouched, dvc("repro", "reference_checkpoint"), log)
    killed = folder / "killed"
    shutil.copytree(untouched, killed, symlinks=True)
    say(f"training uninterrupted: {' '.join(STAGE_COMMAND[1:])}")
    run(untouched, STAGE_COMMAND, log)
    lines = timings(untouched)
    num_steps, seconds = max(int(line["step"]) for line in lines), statistics.median(line["seconds"] for line in lines if "seconds" in line)

    draw = random.Random(seed)
    chosen = sorted(draw.sample(range(1, num_steps), num_kills))
    draws = [(step, draw.uniform(0, seconds)) for step in chosen]
    say(f"training with {num_kills} SIGKILLs of its process, after steps {', '.join(map(str, chosen))} (seed {seed}; a step takes {seconds:.2f} s)")
    attempts = killed_run(killed, log, draws)

    hits, done = sum(one.killed for one in attempts), sum(len(one.done) for one in attempts)
    differing = compare(untouched, killed)
    faults = [f"{root.name}: {fault}" for root in (untouched, killed) for fault in curve_faults(root)]
    share = checkpoint_share(lines)
    say(f"kills that met a living training  {hits} of {num_kills}")
    say(f"steps redone                      {done - num_steps} (of {num_steps}; {done} were done)")
    say(f"every output identical            {'no: ' + ', '.join(differing) if differing else 'yes'}")
    say(f"MLflow holds each step once       {'no: ' + '; '.join(faults) if faults else 'yes'}")
    say(f"share of checkpoints in the run   {share:.2%} (bar: below {CHECKPOINT_BAR:.0%})")
    say(f"took {time.monotonic() - began:.0f} s")
    return 1 if differing or faults or hits < num_kills or not 0 < share < CHECKPOINT_BAR else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="SIGKILLs, each after another step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the steps and moments they come at (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="grpo.steps, for a short try (default: that of params.yaml)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="grpo-resume-") as folder:
        return measure(Path(folder), options.kills, options.seed, options.steps)


if __name__ == "__main__":
    sys.exit(main())
