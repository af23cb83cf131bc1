"""A whole training run of a second: prompts, a start, its frozen copy, and what four files come out."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from grpo_core.checkpoint import write_folder
from grpo_core.config import BlindReviewConfig, GrpoConfig, HeldoutEvalConfig, PromptsConfig, RolloutConfig, RunConfig, ScoringConfig, SftConfig
from grpo_core.loop import Files
from grpo_core.models import policy_digest, save_model
from grpo_core.tokenization import fingerprint
from tests.tiny_models import TINY, language_model, tiny_llama

MESSAGES = pl.List(pl.Struct({"role": pl.String, "content": pl.String}))
REWARD = "tests.tiny_rewards:share_of_small_digits"


def prompts_table(*, train: int = 10, select: int = 4, heldout: int = 6, sft: int = 6) -> pl.DataFrame:
    """Rows of the prompts table: additions of a one-digit and a two-digit number, `1+10=` and so on."""
    splits = ["train"] * train + ["select"] * select + ["heldout"] * heldout + ["sft"] * sft
    rows = [(1 + i % 9, 10 + i // 9) for i in range(len(splits))]
    return pl.DataFrame(
        {
            "prompt_id": [f"{(i * 7919) % 65536:04x}" for i in range(1, len(splits) + 1)],
            "prompt": [f"{a}+{b}=" for a, b in rows],
            "messages": pl.Series([None] * len(rows), dtype=MESSAGES),
            "answer": [str(a + b) for a, b in rows],
            "completion": [f"<think></think><answer>{a + b}</answer>" for a, b in rows],
            "split": splits,
            "task": ["addition"] * len(rows),
            "difficulty": ["0 carries"] * len(rows),
            "source_row": list(range(1, len(rows) + 1)),
            "source_file": ["generated"] * len(rows),
        }
    )


def tiny_config(*, rewards: dict[str, float] | None = None, **grpo: Any) -> RunConfig:
    """Six steps of 4 prompts × 4 completions, a checkpoint every second one, no exploit too many; `grpo` changes fields of that section."""
    settings: dict[str, Any] = {
        "steps": 6, "prompts_per_step": 4, "group_size": 4, "minibatches_per_rollout": 2, "micro_batch_size": 8, "learning_rate": 3e-3, "warmup_steps": 2,
        "eval_every": 3, "checkpoint_every": 2,
    }  # fmt: skip
    return RunConfig(
        model=TINY,
        prompts=PromptsConfig(max_tokens=8),
        sft=SftConfig(steps=3, batch_size=4, micro_batch_size=4, warmup_steps=1),
        rollout=RolloutConfig(max_new_tokens=8, batch_size=16),
        rewards={REWARD: 1.0} if rewards is None else rewards,
        scoring=ScoringConfig(exploit_prompts=1, exploit_threshold=1.0, max_error_rate=0.0),
        grpo=GrpoConfig(**{**settings, **grpo}),
        heldout_eval=HeldoutEvalConfig(samples_per_prompt=2, bootstrap_resamples=100),
        blind_review_set=BlindReviewConfig(num_pairs=3, num_control_pairs=2, num_repeat_pairs=2),
    )


def write_start(folder: Path, *, seed: int = 0) -> None:
    """A checkpoint folder, as supervised fine-tuning leaves it, with a random model in it."""
    model = language_model(tiny_llama(seed, spread=0.3))
    facts = {"noun": "sft_checkpoint", "policy_digest": policy_digest(model.model), "tokenizer_fingerprint": fingerprint(model.tokenizer)}
    write_folder(folder, lambda partial: save_model(model, partial), facts)


def inputs(root: Path, prompts: pl.DataFrame | None = None) -> Files:
    """Prompts, start and reference below `root`; nothing trained yet."""
    files = outputs(root, root)
    root.mkdir(parents=True, exist_ok=True)
    (prompts_table() if prompts is None else prompts).write_parquet(files.prompts)
    write_start(files.start)
    shutil.copytree(files.start, files.reference)
    return files


def outputs(root: Path, given: Path) -> Files:
    """The inputs below `given`, with outputs and work folder below `root`; the folder has the name of one run's key."""
    return Files(
        prompts=given / "prompts.parquet", start=given / "start", reference=given / "reference", rollouts=root / "rollouts.parquet",
        select=root / "select.parquet", rewards=root / "rewards.parquet", exploits=root / "exploits.parquet", alarms=root / "alarms.json",
        checkpoint=root / "checkpoint", timings=root / "timings.jsonl", clock_alarms=root / "clock_alarms.json", work=root / "work" / "key",
    )  # fmt: skip


def content(files: Files) -> dict[str, bytes]:
    """Every hashed byte that a run leaves, by name."""
    found = {path.name: path.read_bytes() for path in (files.rollouts, files.select, files.rewards, files.exploits, files.alarms)}
    return found | {f"checkpoint/{path.name}": path.read_bytes() for path in sorted(files.checkpoint.iterdir())}


def with_rollout(config: RunConfig, **rollout: Any) -> RunConfig:
    return replace(config, rollout=replace(config.rollout, **rollout))
