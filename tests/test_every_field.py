"""Every field of the configuration does what it says: each is changed where it is active, and what it promises to change changes.

The tests are made from the fields themselves, so a new one cannot be forgotten: it fails here until it has a case.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import polars as pl
import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook
from transformers import PreTrainedModel

from assets import blind_review_set, blind_review_verdict, champion_eval, heldout_eval, promotion_report, sft_checkpoint
from assets.page import Notice
from assets.paths import Paths
from grpo_core.config import BY_THE_CLOCK, SECTIONS, HealthConfig, ModelConfig, RunConfig, SftConfig
from grpo_core.determinism import prepare
from grpo_core.health.monitor import Monitor, diagnose
from grpo_core.loop import Files, train
from grpo_core.models import load_model, policy_digest, start_model
from grpo_core.params import section_values
from grpo_core.probes import PROBES
from grpo_core.prompts import PromptsError, make_prompts
from grpo_core.requirements import ConfigError
from grpo_core.tokenization import check_lengths
from pipelines.notify import notifier
from tests.assets.lifecycle import ignore, make_lifecycle, never
from tests.tiny_run import REWARD, inputs, outputs, prompts_table, tiny_config
from tests.troubled_logs import DEAF, SETTINGS, TROUBLES
from tests.troubled_logs import lines as troubled

ROOT = Path(__file__).resolve().parents[1]
ODD, EVEN = "tests.every_field_rewards:of_odd_length", "tests.every_field_rewards:of_even_length"
TARGET, SLEEPY, FAILS_ON_ODD = "tests.tiny_rewards:with_target", "tests.every_field_rewards:sleepy", "tests.every_field_rewards:fails_on_odd_length"
BASE = tiny_config(steps=2, eval_every=0, warmup_steps=0)
"""What every case starts from: a run of a fraction of a second."""
MODEL_FOLDER = "(a folder with another model)"
"""Stands for its path, which is known only when the tests run."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One other value of a field, and what must come of it."""

    value: Any
    moves: str = ""
    """`runner/output` that must change; empty when the value is only another name of what the base has (then nothing may change)."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What makes the field active: `section.field` (or a whole section) → value, in both runs."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """What must change with it."""
    keeps: tuple[str, ...] = ()
    """Outputs of the same runner that must stay the same to the bit."""
    near: tuple[str, ...] = ()
    """Outputs that must stay the same but for rounding."""


TRAINED = ("weights", "rollouts", "rewards", "metrics")
"""Everything that training leaves."""
FROM_FILE = {
    "prompts.path": "mine.jsonl", "prompts.num_generated": 10_000, "prompts.prompt_column": "question", "prompts.answer_column": "solution",
    "prompts.completion_column": "demonstration", "prompts.difficulty_column": "hardness", "prompts.split_column": "part", "prompts.id_column": "name",
}  # fmt: skip
"""A file whose every column has a sibling under another name."""
HASHED = {**FROM_FILE, "prompts.split_column": ""}
OTHER_MODEL = {"model": ModelConfig(path=MODEL_FOLDER, device="cpu", num_threads=1)}
GIVEN_MODEL = {**OTHER_MODEL, "sft": SftConfig(steps=0)}
"""What no generated demonstration can teach."""
SLOW = {"grpo.steps": 9, "grpo.learning_rate": 1e-5}
"""So little is learned that the estimate of KL goes up and down about 0."""
THRESHOLD = {**SLOW, "grpo.kl_control": "threshold", "grpo.kl_upper": 1e-3, "grpo.kl_lower": 0.0, "grpo.kl_patience": 1}
PID = {"grpo.kl_control": "pid", "grpo.steps": 3}
EVALUATED = {"grpo.eval_every": 1, "grpo.select_metric": ODD}
GRADED = {"heldout_eval.metric": ODD}
ACKNOWLEDGED = {f"{REWARD}/{probe}": "a toy" for probe in PROBES}
CLONING = {"grpo.cloning_weight": 0.5, "grpo.cloning_steps": 4, "grpo.cloning_batch_size": 2}
SIGNALLED = {**CLONING, "grpo.cloning_schedule": "signal", "grpo.cloning_steps": 0}
DRIFTING = {"grpo.learning_rate": 3e-2, "grpo.updates_per_rollout": 2}
WATCHED = {f"health.{f.name}": getattr(SETTINGS, f.name) for f in fields(HealthConfig)}
"""What tells the troubles of the made-up logs from what is just well."""
CUT: dict[str, Any] = {**{f"health.{f.name}": getattr(DEAF, f.name) for f in fields(HealthConfig)}, "health.max_truncated_fraction": 0.0, "health.patience": 1}
"""A monitor that hears of nothing but completions that are cut off, as those of a random model are."""

CASES: dict[str, list[Case]] = {
    "model.path": [Case(value=MODEL_FOLDER, moves="start/logits", also=OTHER_MODEL)],
    "model.hidden_size": [Case(value=32, moves="start/weights")],
    "model.num_layers": [Case(value=2, moves="start/weights")],
    "model.num_heads": [Case(value=1, moves="start/logits", keeps=("weights",))],
    "model.intermediate_size": [Case(value=64, moves="start/weights")],
    "model.context_length": [Case(value=64, moves="start/positions", keeps=("logits",))],
    "model.dtype": [Case(value="bfloat16", moves="start/logits", keeps=("weights",))],
    "model.device": [Case(value="cuda", moves="start/device")],
    "model.num_threads": [Case(value=3, moves="process/threads")],
    "model.seed": [Case(value=1, moves="start/weights")],
    "prompts.path": [Case(value="mine.jsonl", moves="prompts/table", also=FROM_FILE)],
    "prompts.heldout_path": [Case(value="test.jsonl", moves="prompts/splits", given=HASHED)],
    "prompts.task": [Case(value="riddles", moves="prompts/table", given=FROM_FILE)],
    "prompts.prompt_column": [Case(value="riddle", moves="prompts/table", given=FROM_FILE)],
    "prompts.answer_column": [Case(value="result", moves="prompts/table", given=FROM_FILE)],
    "prompts.answer_pattern": [Case(value="=([0-9]+)", moves="prompts/table", given=FROM_FILE)],
    "prompts.id_column": [Case(value="family", moves="prompts/refusal", given=FROM_FILE)],
    "prompts.split_column": [Case(value="fold", moves="prompts/splits", given=FROM_FILE)],
    "prompts.difficulty_column": [Case(value="level", moves="prompts/table", given=FROM_FILE)],
    "prompts.completion_column": [Case(value="shown", moves="prompts/table", given=FROM_FILE)],
    "prompts.template": [Case(value="{prompt}?", moves="prompts/table")],
    "prompts.chat": [Case(value=True, moves="prompts/table", given={**FROM_FILE, **OTHER_MODEL})],
    "prompts.system_prompt": [Case(value="Be brief.", moves="prompts/table", given={**FROM_FILE, **OTHER_MODEL, "prompts.chat": True})],
    "prompts.max_tokens": [Case(value=7, moves="prompts/refusal", given={"prompts.max_tokens": 9})],
    "prompts.sft_fraction": [Case(value=0.3, moves="prompts/splits")],
    "prompts.select_fraction": [Case(value=0.1, moves="prompts/splits")],
    "prompts.heldout_fraction": [Case(value=0.2, moves="prompts/splits")],
    "prompts.reasoning_gym": [Case(value="chain_sum", moves="prompts/table", given=GIVEN_MODEL)],
    "prompts.reasoning_gym_config": [Case(value={"max_terms": 3}, moves="prompts/table", given={**GIVEN_MODEL, "prompts.reasoning_gym": "chain_sum"})],
    "prompts.num_generated": [Case(value=250, moves="prompts/table")],
    "prompts.num_digits": [Case(value=2, moves="prompts/table")],
    "prompts.seed": [Case(value=1, moves="prompts/splits"), Case(value=1, moves="prompts/splits", given=HASHED)],
    "sft.steps": [Case(value=4, moves="fine_tuning/weights")],
    "sft.batch_size": [Case(value=2, moves="fine_tuning/weights")],
    "sft.micro_batch_size": [Case(value=3, moves="fine_tuning/passes", given={"sft.steps": 1}, near=("losses", "norms"))],
    "sft.learning_rate": [Case(value=1e-2, moves="fine_tuning/weights")],
    "sft.final_learning_rate_fraction": [Case(value=0.5, moves="fine_tuning/weights")],
    "sft.warmup_steps": [Case(value=3, moves="fine_tuning/weights")],
    "sft.adam_beta1": [Case(value=0.5, moves="fine_tuning/weights")],
    "sft.adam_beta2": [Case(value=0.5, moves="fine_tuning/weights")],
    "sft.weight_decay": [Case(value=0.5, moves="fine_tuning/weights")],
    "sft.max_grad_norm": [Case(value=1e-3, moves="fine_tuning/weights")],
    "sft.checkpoint_every": [Case(value=2, moves="fine_tuning/checkpoints", given={"sft.keep_checkpoints": 9}, keeps=("weights", "losses"))],
    "sft.keep_checkpoints": [Case(value=2, moves="fine_tuning/checkpoints", given={"sft.checkpoint_every": 1}, keeps=("weights", "losses"))],
    "sft.seed": [Case(value=1, moves="fine_tuning/weights")],
    "rollout.temperature": [Case(value=0.5, moves="training/rollouts")],
    "rollout.max_new_tokens": [Case(value=4, moves="training/rollouts")],
    "rollout.batch_size": [Case(value=4, moves="training/rows_sampled", given={"grpo.steps": 1}, keeps=("texts",), near=("loss", "grad_norm"))],
    "rewards": [
        Case(value={REWARD: 2.0}, moves="training/rewards"),
        Case(value={ODD: 1.0}, moves="training/rewards"),
        Case(value={REWARD: 1.0, ODD: 0.5}, moves="training/rewards"),
    ],
    "reward_options": [Case(value={TARGET: {"target": 5}}, moves="training/rewards", given={"rewards": {TARGET: 1.0}})],
    "scoring.combine": [Case(value="gdpo", moves="training/weights", given={"rewards": {REWARD: 1.0, ODD: 0.5}})],
    "scoring.timeout_seconds": [
        Case(value=0.1, moves="training/rewards", given={"rewards": {SLEEPY: 1.0}, "grpo.prompts_per_step": 2, "grpo.group_size": 2, "grpo.steps": 1})
    ],
    "scoring.floors": [
        Case(
            value={SLEEPY: -1.0},
            moves="training/rewards",
            given={"rewards": {SLEEPY: 1.0}, "grpo.prompts_per_step": 2, "grpo.group_size": 2, "grpo.steps": 1, "scoring.timeout_seconds": 0.1},
        )
    ],
    "scoring.max_error_rate": [Case(value=1.0, moves="attempt/refusal", given={"rewards": {FAILS_ON_ODD: 1.0}})],
    "scoring.exploit_prompts": [Case(value=2, moves="training/exploits", keeps=TRAINED)],
    "scoring.exploit_threshold": [Case(value=0.2, moves="attempt/refusal")],
    "scoring.acknowledged_exploits": [Case(value=ACKNOWLEDGED, moves="attempt/refusal", given={"scoring.exploit_threshold": 0.2})],
    "grpo.steps": [Case(value=3, moves="training/rollouts")],
    "grpo.prompts_per_step": [Case(value=2, moves="training/rollouts")],
    "grpo.group_size": [Case(value=8, moves="training/rollouts")],
    "grpo.minibatches_per_rollout": [Case(value=4, moves="training/weights")],
    "grpo.updates_per_rollout": [Case(value=2, moves="training/weights")],
    "grpo.micro_batch_size": [Case(value=3, moves="training/passes", given={"grpo.steps": 1}, keeps=("rollouts",), near=("loss", "grad_norm"))],
    "grpo.learning_rate": [Case(value=1e-2, moves="training/weights")],
    "grpo.warmup_steps": [Case(value=2, moves="training/weights")],
    "grpo.adam_beta1": [Case(value=0.5, moves="training/weights")],
    "grpo.adam_beta2": [Case(value=0.5, moves="training/weights")],
    "grpo.weight_decay": [Case(value=0.5, moves="training/weights")],
    "grpo.max_grad_norm": [Case(value=1e-3, moves="training/weights")],
    "grpo.loss": [Case(value="dapo", moves="training/weights"), Case(value="dr_grpo", moves="training/weights")],
    "grpo.objective": [Case(value="clip")],
    "grpo.aggregation": [
        Case(value="sequence_mean"),
        Case(value="token_mean", moves="training/weights"),
        Case(value="constant", moves="training/weights"),
    ],
    "grpo.aggregation_length": [Case(value=20, moves="training/grad_norm", given={"grpo.aggregation": "constant"})],
    "grpo.kl_estimator": [Case(value="k3"), *(Case(value=name, moves="training/weights") for name in ("k1", "k2", "k3_ratio"))],
    "grpo.advantage_scale": [Case(value="std"), Case(value="none", moves="training/rewards")],
    "grpo.clip_low": [Case(value=0.01, moves="training/weights", given=DRIFTING)],
    "grpo.clip_high": [Case(value=0.01, moves="training/weights", given=DRIFTING)],
    "grpo.beta": [Case(value=0.5, moves="training/weights"), Case(value=0.0, moves="training/weights")],
    "grpo.kl_control": [
        Case(value="threshold", moves="training/beta", given=SLOW, also=THRESHOLD),
        Case(value="pid", moves="training/beta"),
    ],
    "grpo.kl_statistic": [Case(value="sequence_sum", moves="training/beta", given={**PID, "grpo.kl_target": 10.0, "grpo.learning_rate": 3e-2})],
    "grpo.kl_upper": [Case(value=10.0, moves="training/beta", given=THRESHOLD)],
    "grpo.kl_lower": [Case(value=9e-4, moves="training/beta", given=THRESHOLD)],
    "grpo.kl_patience": [Case(value=2, moves="training/beta", given=THRESHOLD)],
    "grpo.kl_target": [Case(value=1e-3, moves="training/beta", given=PID)],
    "grpo.kl_proportional": [Case(value=0.5, moves="training/beta", given=PID)],
    "grpo.kl_integral": [Case(value=0.5, moves="training/beta", given=PID)],
    "grpo.kl_derivative": [Case(value=0.5, moves="training/beta", given=PID)],
    "grpo.advantage_clip": [Case(value=0.5, moves="training/rewards")],
    "grpo.advantage_clip_start": [Case(value=0.5, moves="training/rewards", given={"grpo.advantage_clip_steps": 2})],
    "grpo.advantage_clip_steps": [Case(value=4, moves="training/rewards", given={"grpo.advantage_clip_steps": 2, "grpo.advantage_clip_start": 0.5})],
    "grpo.mask_truncated": [Case(value=True, moves="training/weights")],
    "grpo.length_penalty": [Case(value=0.1, moves="training/rewards")],
    "grpo.length_target": [Case(value=5, moves="training/rewards", given={"grpo.length_penalty": 0.1})],
    "grpo.cloning_weight": [Case(value=0.5, moves="training/weights", also=CLONING), Case(value=0.1, moves="training/weights", given=CLONING)],
    "grpo.cloning_schedule": [
        Case(value="cosine", moves="training/weights", given=CLONING),
        Case(value="signal", moves="training/weights", given=CLONING, also=SIGNALLED),
    ],
    "grpo.cloning_steps": [Case(value=1, moves="training/weights", given=CLONING)],
    "grpo.cloning_batch_size": [Case(value=3, moves="training/weights", given=CLONING)],
    "grpo.demonstration_fraction": [Case(value=1.0, moves="training/weights", given=CLONING)],
    "grpo.eval_every": [Case(value=1, moves="training/evaluations", keeps=("weights", "rollouts", "rewards"))],
    "grpo.select_metric": [Case(value=EVEN, moves="training/evaluations", given=EVALUATED, keeps=("weights", "rollouts", "rewards"))],
    "grpo.select_max_prompts": [Case(value=1, moves="training/evaluations", given=EVALUATED, keeps=("weights", "rollouts", "rewards"))],
    "grpo.checkpoint_every": [Case(value=1, moves="training/checkpoints", given={"grpo.keep_checkpoints": 9, "grpo.steps": 3}, keeps=TRAINED)],
    "grpo.keep_checkpoints": [Case(value=1, moves="training/checkpoints", given={"grpo.checkpoint_every": 1, "grpo.steps": 3}, keeps=TRAINED)],
    "grpo.seed": [Case(value=1, moves="training/rollouts")],
    "health.actions": [
        Case(value={"truncation": "halt"}, moves="attempt/refusal", given=CUT),
        Case(value={"early_explosion": "adjust"}, moves="training/weights", given={**CUT, "health.max_policy_kl": 1e-12, "grpo.max_grad_norm": 9.0}),
    ],
    "health.notify": [Case(value="cat > told.json", moves="notice/told")],
    "health.acknowledged": [
        Case(value={"truncation": "a test"}, moves="training/alarms", given=CUT, keeps=TRAINED),
        Case(value={"truncation": "a test"}, moves="attempt/refusal", given={**CUT, "health.actions": {"truncation": "halt"}}),
    ],
    "health.patience": [
        Case(value=2, moves="training/alarms", given=CUT, keeps=TRAINED),
        Case(value=4, moves="diagnosis/alarms", given=WATCHED),
    ],
    "health.window": [Case(value=6, moves="diagnosis/alarms", given=WATCHED)],
    **{
        f"health.{threshold}": [
            Case(value=trouble.lenient, moves=f"diagnosis/{trouble.name}", given=WATCHED) for trouble in TROUBLES if trouble.threshold == threshold
        ]
        for threshold in dict.fromkeys(trouble.threshold for trouble in TROUBLES)
    },
    "heldout_eval.metric": [Case(value=EVEN, moves="evaluation/summary", given=GRADED)],
    "heldout_eval.max_prompts": [Case(value=3, moves="evaluation/answers", given=GRADED)],
    "heldout_eval.samples_per_prompt": [Case(value=3, moves="evaluation/answers", given=GRADED)],
    "heldout_eval.pass_k": [Case(value=2, moves="evaluation/summary", given={**GRADED, "heldout_eval.pass_k": 1}, keeps=("answers",))],
    "heldout_eval.temperature": [Case(value=0.5, moves="evaluation/answers", given=GRADED)],
    "heldout_eval.bootstrap_resamples": [Case(value=1000, moves="evaluation/summary", given=GRADED, keeps=("answers",))],
    "heldout_eval.seed": [Case(value=1, moves="evaluation/answers", given=GRADED)],
    "blind_review_set.num_pairs": [Case(value=2, moves="review/pairs")],
    "blind_review_set.num_control_pairs": [Case(value=1, moves="review/pairs")],
    "blind_review_set.num_repeat_pairs": [Case(value=1, moves="review/pairs")],
    "blind_review_set.precision": [Case(value=0.1, moves="verdict/verdict")],
    "blind_review_set.seed": [Case(value=1, moves="review/pairs")],
    "promotion.margin": [Case(value=-0.9, moves="gate/passed")],
    "promotion.guards": [Case(value={"no such task": 0.1}, moves="gate/passed")],
    "promotion.require_verdict": [Case(value=False, moves="gate/passed")],
    "promotion.champion": [Case(value="a" * 64, moves="gate/said")],
}


MAPPINGS = ("rewards", "reward_options")


def sections() -> dict[str, Any]:
    """Section → its class, but for those that are a mapping of the user's own names."""
    return {f.name: f.default_factory for f in fields(RunConfig) if f.name not in MAPPINGS}


FIELDS = [*MAPPINGS, *(f"{section}.{f.name}" for section, kind in sections().items() for f in fields(kind))]


def hint(key: str) -> Any:
    section, _, name = key.partition(".")
    return get_type_hints(sections()[section])[name] if name else Mapping


# ------------------------------------------------------------------------------------------------ what a configuration brings forth


@dataclass
class Lab:
    """Runs configurations, each once, and says what came out."""

    root: Path
    done: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def outcome(self, runner: str, config: RunConfig) -> dict[str, Any]:
        key = (runner, json.dumps({name: section_values(config, name) for name in SECTIONS}, sort_keys=True))
        if key not in self.done:
            folder = self.root / f"{runner}-{len(self.done)}"
            folder.mkdir()
            self.done[key] = RUNNERS[runner](self, config, folder)
        return self.done[key]

    @property
    def given(self) -> Path:
        """Prompts, a start and its frozen copy."""
        folder = self.root / "given"
        if not folder.exists():
            inputs(folder)
        return folder

    @property
    def lifecycle(self) -> Paths:
        folder = self.root / "lifecycle"
        return Paths(folder) if folder.exists() else make_lifecycle(folder)


@contextmanager
def counted_passes() -> Iterator[Counter[str]]:
    """Forward passes of whole models while this lasts: how many with a gradient, and the most rows decoded at once."""
    found: Counter[str] = Counter()

    def hook(module: torch.nn.Module, arguments: object, output: Any) -> None:
        if isinstance(module, PreTrainedModel) and hasattr(output, "logits"):
            if torch.is_inference_mode_enabled():
                found["rows"] = max(found["rows"], len(output.logits))
            elif torch.is_grad_enabled():
                found["passes"] += 1

    handle = register_module_forward_hook(hook)
    try:
        yield found
    finally:
        handle.remove()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def checkpoints(work: Path) -> list[str]:
    return sorted(folder.name for folder in (work / "checkpoints").glob("step-*"))


def trained(lab: Lab, config: RunConfig, folder: Path) -> dict[str, Any]:
    files: Files = outputs(folder, lab.given)
    with counted_passes() as passes:
        train(files, config, on_step=ignore)  # type: ignore[arg-type]  # nobody watches
    metrics, rollouts = lines(files.checkpoint / "metrics.jsonl"), pl.read_parquet(files.rollouts)
    found = {name: [line[name] for line in metrics if name in line] for name in ("beta", "loss", "grad_norm")}
    return found | {
        "weights": json.loads((files.checkpoint / "manifest.json").read_text())["policy_digest"],
        "rollouts": files.rollouts.read_bytes(),
        "texts": rollouts["raw_text"].to_list(),
        "rewards": files.rewards.read_bytes(),
        "exploits": files.exploits.read_bytes(),
        "metrics": metrics,
        "alarms": files.alarms.read_text(),
        "evaluations": [{name: value for name, value in line.items() if name.startswith("eval/")} for line in metrics],
        "checkpoints": checkpoints(files.work),
        "passes": passes["passes"],
        "rows_sampled": passes["rows"],
    }


def attempted(lab: Lab, config: RunConfig, folder: Path) -> dict[str, Any]:
    try:
        trained(lab, config, folder)
    except ValueError as error:
        return {"refusal": str(error)}
    return {"refusal": ""}


def fine_tuned(lab: Lab, config: RunConfig, folder: Path) -> dict[str, Any]:
    paths = Paths(folder)
    paths.prompts.parent.mkdir(parents=True)
    prompts_table().write_parquet(paths.prompts)
    work = sft_checkpoint.work_folder(paths, config)
    with counted_passes() as passes:
        sft_checkpoint.produce(paths, config, ignore, never, work)
    history = lines(paths.sft_checkpoint / "history.jsonl")
    return {
        "weights": json.loads((paths.sft_checkpoint / "manifest.json").read_text())["policy_digest"],
        "losses": [line["loss"] for line in history],
        "norms": [line["grad_norm"] for line in history],
        "checkpoints": checkpoints(work),
        "passes": passes["passes"],
    }


def started(lab: Lab, config: RunConfig, folder: Path) -> dict[str, Any]:
    try:
        language_model = start_model(config.model)
    except ConfigError as error:
        return {"device": str(error)}
    ids = torch.tensor([[1, 8, 9, 10, 11]], device=language_model.model.device)
    with torch.no_grad():
        logits = language_model.model(input_ids=ids).logits
    model = language_model.model
    return {"weights": policy_digest(model), "logits": logits.tolist(), "positions": model.config.max_position_embeddings, "device": model.device.type}


def told(lab: Lab, config: RunConfig, folder: Path) -> dict[str, Any]:
    """The table of prompts as the stage makes it, or why it refuses."""
    write_prompt_files(folder)
    try:
        table = make_prompts(config.prompts, folder)
        if not config.model.path:
            check_lengths(table, start_model(config.model).tokenizer, config.prompts.max_tokens, context=config.model.context_length)
    except PromptsError as error:
        return {"refusal": str(error)}
    return {"table": table.write_json(), "splits": table.select("prompt_id", "split").rows(), "refusal": None}


def write_prompt_files(folder: Path) -> None:
    """Two files that have every column twice, under two names and with two contents."""
    for name, first, count in (("mine", 100, 60), ("test", 500, 5)):
        rows = [
            {
                "question": f"{first + i}+1=", "riddle": f"{first + i}+2=", "solution": f"={first + i + 1}", "result": f"={first + i + 2}",
                "demonstration": f"{i};", "shown": f"{i},", "hardness": i % 3, "level": i % 5, "name": i, "family": i // 2,
                "part": ("train", "sft", "select", "heldout")[i % 4], "fold": ("train", "heldout", "sft", "select")[i % 4],
            }
            for i in range(count)
        ]  # fmt: skip
        text = "".join(json.dumps({key: value for key, value in row.items() if name == "mine" or key not in ("part", "fold")}) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)


def answered(lab: Lab, config: RunConfig, folder: Path) -> dict[str, Any]:
    paths = Paths(folder)
    shutil.copytree(lab.lifecycle.data, paths.data)
    heldout_eval.produce(paths, config, ignore)
    return {"answers": pl.read_parquet(paths.heldout_completions).write_json(), "summary": json.loads(paths.heldout_summary.read_text())}


def reviewed(lab: Lab, config: RunConfig, folder: Path) -> dict[str, Any]:
    rows = blind_review_set.make_pairs(pl.read_parquet(lab.lifecycle.heldout_completions), pl.read_parquet(lab.lifecycle.prompts), config.blind_review_set)
    return {"pairs": rows.write_json()}


def judged(lab: Lab, config: RunConfig, folder: Path) -> dict[str, Any]:
    """The verdict before anybody has voted."""
    paths = Paths(folder)
    shutil.copytree(lab.lifecycle.data, paths.data)
    blind_review_verdict.produce(paths, config, ignore)
    return {"verdict": json.loads(paths.blind_review_verdict.read_text(encoding="utf-8"))}


def gated(lab: Lab, config: RunConfig, folder: Path) -> dict[str, Any]:
    """What the gate says before anybody has voted, and without a champion."""
    paths = Paths(folder)
    shutil.copytree(lab.lifecycle.data, paths.data)
    for noun in (blind_review_verdict, champion_eval, promotion_report):
        noun.produce(paths, config, ignore)
    conditions = json.loads(paths.promotion_report.read_text(encoding="utf-8"))["conditions"]
    return {"passed": {one["name"]: one["passed"] for one in conditions}, "said": [one["summary"] for one in conditions]}


def held(lab: Lab, config: RunConfig, folder: Path) -> dict[str, Any]:
    """What `prepare` leaves in a process that has torch already; everything is put back."""
    with pytest.MonkeyPatch.context() as patch:
        before = torch.get_num_threads()
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_DYNAMIC", "MKL_DYNAMIC", "CUBLAS_WORKSPACE_CONFIG", "OMP_WAIT_POLICY"):
            patch.setenv(name, "")
        try:
            prepare(config.model)
            return {"threads": torch.get_num_threads()}
        finally:
            torch.set_num_threads(before)


def diagnosed(lab: Lab, config: RunConfig, folder: Path) -> dict[str, Any]:
    """What the monitor says of logs in which one thing goes wrong each: under its name the conditions raised, and all of it."""
    raised = {}
    for trouble in TROUBLES:
        monitor = Monitor.of_clock(config) if trouble.condition in BY_THE_CLOCK else Monitor.of(config)
        log = [{"step": step, **line} for step, line in enumerate(troubled(trouble.columns(trouble.ill)))]
        raised[trouble.name] = [(alarm.condition, alarm.first_step) for alarm in diagnose(log, monitor).alarms]
    return {**raised, "alarms": raised}


def notified(lab: Lab, config: RunConfig, folder: Path) -> dict[str, Any]:
    """What somebody was told of an alarm, by whatever was to be run for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        notifier(config)(Notice("it was cut", {"condition": "truncation"}))
    return {"told": {path.name: path.read_text() for path in folder.iterdir()}}


RUNNERS: dict[str, Callable[[Lab, RunConfig, Path], dict[str, Any]]] = {
    "training": trained, "attempt": attempted, "fine_tuning": fine_tuned, "start": started, "prompts": told, "evaluation": answered,
    "review": reviewed, "verdict": judged, "gate": gated, "process": held, "diagnosis": diagnosed, "notice": notified,
}  # fmt: skip


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("every_field"))


def configured(changes: Mapping[str, Any], folder: Path) -> RunConfig:
    """`BASE` with these sections and fields; a section's fields change together, as they are checked."""
    config = replace(BASE, prompts=replace(BASE.prompts, max_tokens=10, num_generated=300))
    whole = {key: value for key, value in changes.items() if "." not in key}
    parts: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if name:
            parts.setdefault(section, {})[name] = value
    made = whole | {section: replace(whole.get(section, getattr(config, section)), **values) for section, values in parts.items()}
    if "model" in made and made["model"].path == MODEL_FOLDER:
        made["model"] = replace(made["model"], path=str(folder))
    return replace(config, **made)


# ----------------------------------------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize("key", FIELDS)
def test_every_field_has_a_case(key: str) -> None:
    cases = CASES.get(key, [])
    assert cases, (
        f"{key} has no case in {Path(__file__).name}: add Case(value=another value, moves='runner/output that must change with it', "
        "given={what makes it active}) to CASES; if nothing changes, the field does nothing: mend or remove it"
    )
    if get_origin(hint(key)) is Literal:
        section, _, name = key.partition(".")
        missing = set(get_args(hint(key))) - {getattr(sections()[section](), name)} - {case.value for case in cases}
        assert not missing, f"{key} also takes {sorted(missing)}: add a case for each"
    else:
        assert all(case.moves for case in cases), f"{key}: every case must say what it moves"


def test_every_case_is_of_a_field_that_there_is() -> None:
    assert sorted(CASES) == sorted(FIELDS)


EACH = [pytest.param(key, case, id=f"{key}={case.value}-{place}") for key, cases in CASES.items() for place, case in enumerate(cases)]


@pytest.mark.parametrize(("key", "case"), EACH)
def test_a_field_does_what_it_says(key: str, case: Case, lab: Lab) -> None:
    base = configured(case.given, lab.given / "start")
    changed = (
        configured({**case.given, **case.also, key: case.value}, lab.given / "start") if key != "model.path" else configured(case.also, lab.given / "start")
    )
    assert base != changed
    if not case.moves:
        before, after = lab.outcome("training", base), lab.outcome("training", changed)
        assert {name: before[name] for name in TRAINED} == {name: after[name] for name in TRAINED}, f"{key} {case.value!r} is what the preset means"
        return
    runner, _, output = case.moves.partition("/")
    before, after = lab.outcome(runner, base), lab.outcome(runner, changed)
    assert {output} <= before.keys() & after.keys(), f"{key}: one of the two runs left no {output}, but {before if output in after else after}"
    assert before[output] != after[output], f"{key} was changed and {output} was not: it does nothing"
    for name in case.keeps:
        assert before[name] == after[name], f"{key} must leave {name} alone"
    for name in case.near:
        assert before[name] == pytest.approx(after[name], rel=1e-4, abs=1e-6), f"{key} may change {name} by rounding only"


def test_the_model_folder_is_another_model(lab: Lab) -> None:
    assert load_model(lab.given / "start", BASE.model).model.config.num_hidden_layers != BASE.model.num_layers
