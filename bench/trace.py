"""How long `grpo trace` and `grpo compare` take at 100,000 rollouts, as whole processes.

    python bench/trace.py [--rollouts 100000] [--times 5]

Makes a copy of the code in a temporary folder, and in it two runs whose tables have the columns, sizes and texts of the embedded task:
prompts, checkpoints' manifests, curves, ledger, evaluations, records and dvc.lock. No model is trained.
"""

import argparse
import hashlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from assets.paths import SHARED, Paths
from grpo_core.config import SECTIONS, SHARED_SECTIONS, GrpoConfig, RunConfig
from grpo_core.params import section_values
from grpo_core.prompts import make_prompts
from grpo_core.tables import ROLLOUT_SCHEMA, no_answers, write_table
from pipelines.params import ROOT, json_bytes
from pipelines.records.files import UNKNOWN, write_record
from pipelines.records.provenance import md5s

LIMIT_SECONDS = 2.0
TOKENS = 40
"""Token ids that completions are made of."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000, help="Completions of each of the two runs.")
    parser.add_argument("--times", type=int, default=5, help="Runs of each command, of which the median counts.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = copied_code(Path(folder))
        config = RunConfig(grpo=GrpoConfig(steps=-(-options.rollouts // 128)))
        for experiment, settings in {"default": config, "slow": replace(config, grpo=replace(config.grpo, learning_rate=1e-5))}.items():
            paths = make_run(root, experiment, settings, make_prompts(config.prompts, root))
        drawn = pl.scan_parquet(paths.rollout_batches).select(pl.len(), pl.col("prompt_id").first(), pl.col("length").sum()).collect().row(0)
        size = sum(path.stat().st_size for path in (paths.rollout_batches, paths.rewards))
        print(f"two runs of {drawn[0]:,} rollouts, {drawn[2]:,} tokens and {size / 1e6:.0f} MB each; medians of {options.times} whole processes:")
        for command in (["trace"], ["trace", "slow", "--json"], ["trace", "--prompt", drawn[1]], ["compare", "default", "slow"]):
            seconds = statistics.median(timed(root, command) for _ in range(options.times))
            print(f"{seconds:6.2f} s  grpo {' '.join(command)}{'' if seconds < LIMIT_SECONDS else f'  (more than {LIMIT_SECONDS:g} s)'}")


def copied_code(folder: Path) -> Path:
    """The packages and settings in a checkout of their own: `grpo` works on the checkout that its code lies in."""
    root = folder / "checkout"
    for package in ("grpo_core", "assets", "pipelines", "reward_functions"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, root / name)
    return root


def timed(root: Path, command: list[str]) -> float:
    """Seconds of one `grpo` process."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "pipelines.cli", *command], cwd=root, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


# ------------------------------------------------------------------------------------------------------ a run on disk


def make_run(root: Path, experiment: str, config: RunConfig, prompts: pl.DataFrame, *, better: float = 0.0, seed: int = 0, **record: Any) -> Paths:
    """Everything that a run of `config` leaves below `root`, with numbers drawn by `seed`; answers are right more often by `better` (a share).

    The prompts, and the checkpoints that come before GRPO, are shared as those of real runs are. `record` replaces fields of all records.
    """
    paths, random = Paths(root, experiment), np.random.default_rng(seed)
    paths.prompts.parent.mkdir(parents=True, exist_ok=True)
    write_table(paths.prompts, prompts)
    _write_config(paths, config)
    prompts_sha256 = hashlib.sha256(paths.prompts.read_bytes()).hexdigest()
    start = _write_checkpoint(
        paths.sft_checkpoint, "sft_checkpoint", config, ("model", "sft"), "start", parents={"prompts": prompts_sha256, "model": "embedded"}
    )
    reference = _write_checkpoint(paths.reference_checkpoint, "reference_checkpoint", config, (), "start", parents={"sft_checkpoint": start})
    rollouts, rewards = _ledger(prompts.filter(pl.col("split") == "train"), config, random, better)
    for path, table in ((paths.rollout_batches, rollouts), (paths.rewards, rewards)):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_table(path, table)
    evaluated = [step for step in range(config.grpo.steps + 1) if config.grpo.eval_every and step % config.grpo.eval_every == 0]
    select = prompts.filter(pl.col("split") == "select").head(config.grpo.select_max_prompts)
    answers = [_answers(select, "policy", step, 0, config, random, 0.5 + better) for step in evaluated]
    write_table(paths.select_completions, pl.concat([no_answers(config.rewards), *answers]))
    parents = {"prompts": prompts_sha256, "start": start, "reference": reference}
    facts = {"run_key": hashlib.sha256(f"{experiment} {seed} {config}".encode()).hexdigest()[:16], "step": config.grpo.steps}
    scored_by = {"reward_code_hash": "0" * 16, "reward_code_hashes": dict.fromkeys(config.rewards, "0" * 16)}
    curves = "".join(json.dumps(row) + "\n" for row in _curves(rollouts, rewards, random))
    sections = ("model", "rollout", "rewards", "grpo")
    _write_checkpoint(
        paths.grpo_checkpoint, "grpo_checkpoint", config, sections, f"policy {experiment} {seed}", parents=parents, curves=curves, **facts, **scored_by
    )
    _write_heldout(paths, prompts.filter(pl.col("split") == "heldout").head(config.heldout_eval.max_prompts), config, random, better)
    _write_records(paths, config, {"run_key": facts["run_key"], **record})
    return paths


def _write_config(paths: Paths, config: RunConfig) -> None:
    for section in SECTIONS:
        path = paths.run_config / ("" if section in SHARED_SECTIONS else paths.experiment) / f"{section}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(json_bytes(section_values(config, section)))


def _write_checkpoint(folder: Path, noun: str, config: RunConfig, sections: tuple[str, ...], weights: str, *, curves: str = "", **facts: Any) -> str:
    """A checkpoint folder without weights; returns the sha256 of its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    if curves:
        (folder / "metrics.jsonl").write_text(curves, encoding="utf-8")
    named = {"noun": noun, "config": {name: section_values(config, name) for name in sections}, "policy_digest": _digest(weights), "files": {}}
    content = json.dumps({**named, **facts}, indent=1, sort_keys=True) + "\n"
    (folder / "manifest.json").write_text(content, encoding="utf-8")
    return hashlib.sha256(content.encode()).hexdigest()


def _ledger(train: pl.DataFrame, config: RunConfig, random: np.random.Generator, better: float) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rollouts and rewards: the prompts in an order that only the configuration's seed decides, answers right more often as steps go by."""
    steps, groups, size = config.grpo.steps, config.grpo.prompts_per_step, config.grpo.group_size
    order = np.random.default_rng(config.grpo.seed).integers(0, len(train), steps * groups)
    rows, step = steps * groups * size, np.repeat(np.arange(1, steps + 1), groups * size)
    right = random.random(rows) < np.minimum(0.5 + better + 0.3 * step / steps, 1)
    place = np.repeat(order, size)
    drawn = _drawn(train[place.tolist()], right, random)
    keys = {
        "step": step,
        "group": np.tile(np.repeat(np.arange(groups, dtype=np.int32), size), steps),
        "prompt_id": train["prompt_id"][place.tolist()],
        "completion_index": np.tile(np.arange(size, dtype=np.int32), steps * groups),
    }
    digests = np.array([_digest(f"{random.integers(2**62)}") for _ in range(steps)])[step - 1]
    rollouts = pl.DataFrame({**keys, **drawn, "policy_digest": digests}).select([pl.col(name).cast(kind) for name, kind in ROLLOUT_SCHEMA.items()])
    parts = {f"reward/{name}": right.astype(float) if name == "exact_answer" else np.ones(rows) for name in config.rewards}
    reward = sum(weight * parts[f"reward/{name}"] for name, weight in config.rewards.items())
    by_group = np.asarray(reward).reshape(-1, size)
    spread = by_group.std(axis=1, ddof=1, keepdims=True)
    advantage = np.where(spread > 1e-9, (by_group - by_group.mean(axis=1, keepdims=True)) / np.maximum(spread, 1e-9), 0.0).reshape(-1)
    statuses: dict[str, Any] = {name: ["ok"] * rows for name in (*(f"status/{name}" for name in config.rewards), "status")}
    statuses |= {"reason": pl.Series([None] * rows, dtype=pl.String)}
    earned = {**keys, **parts, **statuses, "reward": reward, "shaped_reward": reward, "advantage": advantage}
    rewards = pl.DataFrame({**earned, "clipped_advantage": advantage.clip(-2, 2), "reward_code_hash": ["0" * 16] * rows})
    return rollouts, rewards.cast({"group": pl.Int32, "completion_index": pl.Int32})


def _drawn(prompts: pl.DataFrame, right: np.ndarray, random: np.random.Generator) -> dict[str, Any]:
    """Completions of the prompts' length and texts, with tokens and logprobs."""
    answers = prompts.select(pl.when(pl.Series(right)).then(pl.col("answer")).otherwise(pl.col("answer").str.reverse()).alias("answer"))["answer"]
    works = [f"{a}+{b}={c}" for a, b, c in random.integers(0, 10, (len(prompts), 3)).tolist()]
    texts = [f"<think>{work};</think><answer>{answer}</answer>" for work, answer in zip(works, answers, strict=True)]
    lengths = random.integers(18, 36, len(prompts))
    ends = np.cumsum(lengths)
    ids, logprobs = random.integers(3, TOKENS, int(ends[-1]), dtype=np.int32), -random.exponential(0.2, int(ends[-1])).astype(np.float32)
    asked = random.integers(3, TOKENS, (len(prompts), 9), dtype=np.int32)
    return {
        "prompt_token_ids": list(asked),
        "token_ids": np.split(ids, ends[:-1]),
        "sampling_logprobs": np.split(logprobs, ends[:-1]),
        "text": texts,
        "raw_text": [f"{text}<eos>" for text in texts],
        "length": lengths,
        "finish_reason": ["eos"] * len(prompts),
    }


def _answers(prompts: pl.DataFrame, model: str, step: int, samples: int, config: RunConfig, random: np.random.Generator, accuracy: float) -> pl.DataFrame:
    """Rows of an evaluation: a greedy answer a prompt, and `samples` at temperature."""
    parts = []
    for decoding, size in (("greedy", 1), ("sample", samples)):
        if size == 0:
            continue
        asked = prompts[np.repeat(np.arange(len(prompts)), size).tolist()]
        right = random.random(len(asked)) < accuracy
        scores = {f"reward/{name}": right.astype(float) if name == "exact_answer" else np.ones(len(asked)) for name in config.rewards}
        reward = sum(weight * scores[f"reward/{name}"] for name, weight in config.rewards.items())
        named = {"model": [model] * len(asked), "step": [step] * len(asked), "prompt_id": asked["prompt_id"], "decoding": [decoding] * len(asked)}
        named |= {"sample_index": list(range(size)) * len(prompts), **_drawn(asked, right, random), "correct": right, **scores}
        table = pl.DataFrame({**named, "reward": reward, "policy_digest": [_digest(f"{model} {step}")] * len(asked)})
        parts.append(table.select([pl.col(name).cast(kind) for name, kind in no_answers(config.rewards).schema.items()]))
    return pl.concat(parts)


def _write_heldout(paths: Paths, prompts: pl.DataFrame, config: RunConfig, random: np.random.Generator, better: float) -> None:
    """Both models' answers, and the summary as far as it can be told without a model."""
    samples = config.heldout_eval.samples_per_prompt
    models = {"reference": (0, 0.5), "policy": (config.grpo.steps, 0.8 + better)}
    rows = pl.concat([_answers(prompts, name, step, samples, config, random, accuracy) for name, (step, accuracy) in models.items()])
    write_table(paths.heldout_completions, rows)
    summary: dict[str, Any] = {"num_prompts": len(prompts), "kl_token_mean": 0.02 + better, "kl_sequence_sum": 0.6}
    for name in models:
        greedy = rows.filter((pl.col("model") == name) & (pl.col("decoding") == "greedy"))
        share = float(greedy["correct"].mean())  # type: ignore[arg-type]  # a column of booleans that is not empty
        summary |= {f"{name}_accuracy": share, f"{name}_accuracy_low": share - 0.04, f"{name}_accuracy_high": share + 0.04}
    paths.heldout_summary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def _curves(rollouts: pl.DataFrame, rewards: pl.DataFrame, random: np.random.Generator) -> list[dict[str, float]]:
    """Rows of metrics.jsonl whose reward and length are those of the ledger."""
    lengths = rollouts.group_by("step").agg(pl.col("length").mean().alias("length/mean"), pl.col("length").cast(pl.Float64).sum().alias("tokens"))
    earned = rewards.group_by("step").agg(pl.col("reward").mean().alias("reward/mean"), pl.col("reward").std(ddof=0).alias("reward/std"))
    rows = lengths.join(earned, on="step").sort("step").to_dicts()
    names = ("kl/mean", "entropy", "loss", "grad_norm", "policy_loss", "kl_loss", "clip_fraction", "ratio/max", "truncated_fraction", "zero_variance_fraction")
    return [{"step": 0, "eval/select_accuracy": 0.5}, *({**row, **{name: float(random.random()) for name in names}, "beta": 0.01} for row in rows)]


def _write_records(paths: Paths, config: RunConfig, facts: Mapping[str, Any]) -> None:
    """A record of every stage, and dvc.lock, with the hashes of the files as they are."""
    data, experiment = paths.data, paths.experiment
    settings = [paths.run_config / experiment / f"{name}.json" for name in ("rollout", "rewards", "grpo")]
    made: dict[str, tuple[list[Path], list[Path]]] = {
        "run_config": ([], [paths.run_config]),
        "prompts": ([paths.run_config / "model.json", paths.run_config / "prompts.json"], [paths.prompts]),
        "sft_checkpoint": ([paths.run_config / "sft.json", paths.prompts], [paths.sft_checkpoint]),
        "reference_checkpoint": ([paths.sft_checkpoint], [paths.reference_checkpoint]),
        "grpo_checkpoint": (
            [*settings, paths.prompts, paths.sft_checkpoint, paths.reference_checkpoint],
            [paths.rollout_batches, paths.select_completions, paths.rewards, paths.grpo_checkpoint],
        ),
        "heldout_eval": (
            [paths.run_config / experiment / "heldout_eval.json", paths.prompts, paths.reference_checkpoint, paths.grpo_checkpoint],
            [paths.heldout_completions, paths.heldout_summary],
        ),
    }
    lock_file = data.parent / "dvc.lock"
    lock: dict[str, Any] = json.loads(lock_file.read_text(encoding="utf-8")) if lock_file.exists() else {"schema": "2.0", "stages": {}}
    known = {
        "commit": "c" * 40, "dirty": False, "snapshot": "c" * 40, "started": "2026-01-01T00:00:00+00:00", "wall_seconds": 60.0, "python": "3.11.7",
        "libraries": {"torch": "2.13.0", "transformers": "5.24.0", "polars": "2.1.0"}, "host": "here", "platform": "Linux", "cpu": "A processor",
        "cpu_capability": "AVX2", "num_cpus": 2, "threads": {"OMP_NUM_THREADS": "2", "torch": 2}, "determinism": {"deterministic_algorithms": True},
        "device": "cpu",
    }  # fmt: skip
    for noun, (read, written) in made.items():
        root = data.parent
        names = [[path.relative_to(root).as_posix() for path in group] for group in (read, written)]
        hashes = [{name: md5s(root, name) for name in group} for group in names]
        deps, outs = ({name: found[name] for name, found in group.items()} for group in hashes)
        files = {path: md5 for found in hashes[1].values() for path, md5 in found.items() if path not in outs}
        named = {"noun": noun, "experiment": None if noun in SHARED else experiment, "deps": deps, "outs": outs, "files": files}
        record = {**UNKNOWN, **known, **facts, **named}
        if noun.endswith("_checkpoint"):
            record["manifest_sha256"] = hashlib.sha256((written[-1] / "manifest.json").read_bytes()).hexdigest()
        if noun != "grpo_checkpoint":
            record.pop("run_key", None)
        if noun == "heldout_eval":
            record["metrics"] = {paths.heldout_summary.relative_to(data.parent).as_posix(): json.loads(paths.heldout_summary.read_bytes())}
        write_record(paths, record)
        entry = {"cmd": f"python -m pipelines.stage {noun}"}
        lists = {
            kind: [{"path": path, "hash": "md5", "md5": md5, "size": 1} for path, md5 in listed.items()] for kind, listed in (("deps", deps), ("outs", outs))
        }
        lock["stages"][noun if noun in SHARED else f"{noun}@{experiment}"] = {**entry, **lists}
    lock_file.write_text(json.dumps(lock, indent=1), encoding="utf-8")  # JSON is YAML


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


if __name__ == "__main__":
    main()
