"""Steps done again from the ledger: rewards, advantages, loss and update as its completions give them, beside what was recorded.

Nothing on disk changes. A replay begins at a checkpoint (or at the start) and learns from every recorded batch after it, without
sampling; on the machine that trained, and on any like it, every number comes out the same to the bit.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import torch

from grpo_core.checkpoint import BrokenFolder, file_sha256, folder_digest, read_manifest
from grpo_core.config import RunConfig
from grpo_core.health.health import adjust
from grpo_core.health.monitor import Monitor, diagnose
from grpo_core.ledger import batch_of
from grpo_core.logprobs import completion_logprobs
from grpo_core.models import policy_digest
from grpo_core.params import parse_sections
from grpo_core.resume import load
from grpo_core.rollout import RolloutBatch
from grpo_core.tables import KEYS, ROLLOUT_SCHEMA
from grpo_core.token_batch import token_batch
from grpo_core.tokenization import clean_text, encode_prompt, raw_text
from grpo_core.trainer import Trainer, learn, prompts_of, start_trainer
from grpo_core.work_folder import checkpoints, reading, step_of

UNREAD = {"prompts": {"max_tokens": 1}, "heldout_eval": {"samples_per_prompt": 1, "pass_k": 1}, "blind_review_set": {"num_control_pairs": 0}}
"""Sections that training does not read, with values that agree with any training."""

DRAW_TOLERANCE = {"float32": 1e-3, "bfloat16": 1.0}
"""How far a recorded logprob of one token may be from the policy's, in nats: decoding rounds otherwise than scoring does."""
ROW_TOLERANCE = 1e-9
"""How far a recorded reward or advantage may be from the one worked out again, relative to its size or 1."""
METRIC_TOLERANCE = 1e-3
"""The same of a metric: another processor rounds otherwise, and training carries that on from step to step."""


class ReplayError(ValueError):
    """A replay that cannot be done: says which file is missing or another one, and what to do."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a run was made from and what it recorded."""

    prompts: Path
    start: Path
    reference: Path
    rollouts: Path
    rewards: Path
    metrics: Path
    manifest: Mapping[str, Any]
    """Of the trained policy."""
    work: Path
    """The run's work folder; it need not be there any more."""

    @property
    def config(self) -> RunConfig:
        """The configuration that the run was trained with, as far as training reads it."""
        return trained_config(self.manifest)

    @property
    def last_step(self) -> int:
        return int(self.manifest["step"])


@dataclass(frozen=True, slots=True)
class Replayed:
    """One step done again."""

    step: int
    recorded: Mapping[str, float]
    """Metrics, by name."""
    replayed: Mapping[str, float]
    """Empty when the step could not be done."""
    columns: Mapping[str, float]
    """Largest difference in each column of rewards and advantages; infinite where only one of the two has a number."""
    metrics: Mapping[str, float]
    """Difference of each metric."""
    same_policy: bool | None
    """Whether the weights after the step are, to the bit, those that drew the next one (of the last: those of the trained policy)."""
    faults: tuple[str, ...]
    """What is not as it was recorded, beyond rounding: a sentence each, rows named."""

    @property
    def largest(self) -> float:
        """The largest difference of all."""
        return max([0.0, *self.columns.values(), *self.metrics.values()])

    @property
    def identical(self) -> bool:
        """Whether everything is as it was recorded, to the last bit."""
        return not self.faults and self.largest == 0 and bool(self.replayed) and self.same_policy is not False


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was recorded of the steps that are done again."""

    rollouts: pl.DataFrame
    rewards: pl.DataFrame
    metrics: Mapping[int, Mapping[str, float]]
    """By step."""
    digests: Mapping[int, str]
    """Step → digest of the weights after it: of most rows of the next step, or of the trained policy."""
    reward_code_hash: str
    """Of the trained policy's manifest."""


def trained_config(manifest: Mapping[str, Any]) -> RunConfig:
    """The configuration in a trained policy's manifest, as far as training reads it: options of a metric that only the evaluation asks are none of it."""
    sections = manifest["config"]
    asked = {*sections["rewards"], sections["grpo"]["select_metric"]}
    options = {name: chosen for name, chosen in sections.get("reward_options", {}).items() if name in asked}
    return parse_sections({**UNREAD, **sections, "reward_options": options})


def oldest_step(recorded: Recorded, last: int) -> int:
    """The first step after the oldest kept checkpoint before step `last`; 1, from the start, where there is none."""
    kept = [step_of(checkpoint) for checkpoint in checkpoints(recorded.work) if step_of(checkpoint) < last and _is_whole(checkpoint)]
    return min(kept, default=0) + 1


def replay(recorded: Recorded, first: int, last: int) -> Iterator[Replayed]:
    """Steps `first` to `last` done again, and before them, where no checkpoint is kept just before `first`, all since the one that is.

    It ends early after a step that leaves other weights than recorded because of a fault: all later ones would differ for that alone.
    Raises ReplayError when what the run was made from is not there any more, ValueError while a process trains in the work folder.
    """
    _check(recorded, first, last)
    with reading(recorded.work):
        trainer = start_trainer(recorded.prompts, recorded.start, recorded.reference, recorded.config)
        whole = (checkpoint for checkpoint in checkpoints(recorded.work) if step_of(checkpoint) < first and _is_whole(checkpoint))
        base = next(whole, None)
        if base is not None:
            trainer.take_state(load(base, trainer.policy.model, trainer.optimizer).state)
        steps = range(1 if base is None else step_of(base) + 1, last + 1)
        ledger = _read_ledger(recorded, steps)
        monitor = diagnose((line for step, line in sorted(ledger.metrics.items()) if step < steps.start), Monitor.of(recorded.config))
        known_start = True
        for step in steps:
            done = _replay_step(trainer, ledger, step, known_start=known_start)
            yield done
            if done.faults and done.same_policy is not True:
                return
            # What was recorded decides, as another processor's rounding must not: training then went on with what the monitor adjusted.
            adjust(trainer, monitor.observe(step, ledger.metrics.get(step, {})))
            known_start = done.same_policy is True


def _check(recorded: Recorded, first: int, last: int) -> None:
    """Raise unless these steps were trained, from the very files that are given."""
    if not 1 <= first <= last <= recorded.last_step:
        raise ReplayError(f"steps {first} to {last} cannot be replayed: the run has steps 1 to {recorded.last_step}")
    parents = recorded.manifest["parents"]
    found = {"prompts": (recorded.prompts, file_sha256), "start": (recorded.start, folder_digest), "reference": (recorded.reference, folder_digest)}
    for name, (path, digest) in found.items():
        if digest(path) != parents[name]:
            raise ReplayError(f"{path} is not what the run was trained from (its sha256 is not {parents[name][:12]}…): bring back its version of that run")
    for folder in (recorded.start, recorded.reference):
        read_manifest(folder)


def _replay_step(trainer: Trainer, ledger: Ledger, step: int, *, known_start: bool) -> Replayed:
    """One step; `known_start`: the weights before it are, to the bit, those that the run had there, so its rows must name them."""
    rows, earned = (table.filter(pl.col("step") == step).sort("group", "completion_index") for table in (ledger.rollouts, ledger.rewards))
    known = {name: value for name, value in ledger.metrics.get(step, {}).items() if name != "step" and not name.startswith("eval/")}
    drawn, faults = _drawn_keys(trainer, step), _scorer_faults(trainer, ledger)
    faults += [*_key_faults("rollouts", rows, drawn), *_key_faults("rewards", earned, drawn)]
    try:
        recorded, before = batch_of(rows, trainer.train_prompts), policy_digest(trainer.policy.model)
        batch = _rebuilt(trainer, recorded, before if known_start else ledger.digests[step - 1])
        faults += [*_batch_faults(trainer, batch), *_draw_faults(trainer, batch)]
        result = learn(trainer, batch, step)
    except ValueError as error:  # rows that are no batch, a reward function that refuses, a loss that is not finite
        return Replayed(step, known, {}, {}, {}, None, (*faults, f"it cannot be done again: {error}"))
    after = ledger.digests.get(step)
    same_policy = None if after is None else policy_digest(trainer.policy.model) == after
    if same_policy and before != batch.policy_digest:
        faults.append(f"policy_digest: recorded {batch.policy_digest}, but the weights after the step follow from {before}")
    scored = result.rewards.with_columns(pl.lit(ledger.reward_code_hash).alias("reward_code_hash"))
    _, drawn_faults = _compare_rows(rows, result.rollouts)
    columns, row_faults = _compare_rows(earned, scored)
    metrics, metric_faults = _compare_metrics(known, result.metrics)
    return Replayed(step, known, result.metrics, columns, metrics, same_policy, (*faults, *drawn_faults, *row_faults, *metric_faults))


def _drawn_keys(trainer: Trainer, step: int) -> pl.DataFrame:
    """The keys of the rows that the seed gives the step."""
    size, asked = trainer.config.grpo.group_size, prompts_of(trainer, step)["prompt_id"].to_list()
    keys = [(step, group, prompt_id, index) for group, prompt_id in enumerate(asked) for index in range(size)]
    return pl.DataFrame(keys, schema={name: ROLLOUT_SCHEMA[name] for name in KEYS}, orient="row")


def _key_faults(table: str, rows: pl.DataFrame, drawn: pl.DataFrame) -> Iterator[str]:
    """The first row that the table lacks, the first that the seed does not give, and the first that it has twice."""
    keys = rows.select(KEYS)
    for found, said in (
        (drawn.join(keys, on=KEYS, how="anti", maintain_order="left"), "has no row of"),
        (keys.join(drawn, on=KEYS, how="anti", maintain_order="left"), "has a row that the seed does not give:"),
        (keys.filter(keys.is_duplicated()), "has twice"),
    ):
        for step, group, prompt_id, index in found.head(1).iter_rows():
            yield f"{table} {said} step {step}, group {group}, prompt {prompt_id}, completion {index}"


def _scorer_faults(trainer: Trainer, ledger: Ledger) -> list[str]:
    """Whether the reward functions are still those of the run."""
    now = trainer.reward_code_hash
    return [] if now == ledger.reward_code_hash else [f"scored by other reward code: the run's has hash {ledger.reward_code_hash}, today's {now}"]


def _rebuilt(trainer: Trainer, batch: RolloutBatch, drawn_by: str) -> RolloutBatch:
    """The batch with finish reasons that follow from its tokens, and one digest, in place of those recorded."""
    reasons = ["length" if trainer.policy.eos_ids.isdisjoint(c.token_ids[-1:]) else "eos" for c in batch.completions]
    completions = [replace(c, finish_reason=reason) for c, reason in zip(batch.completions, reasons, strict=True)]
    return replace(batch, completions=completions, policy_digest=drawn_by)


def _batch_faults(trainer: Trainer, batch: RolloutBatch) -> Iterable[str]:
    """Where prompts, tokens and texts of the batch contradict each other."""
    names, tokenizer = batch.row_names(), trainer.policy.tokenizer
    for (prompt, prompt_id, messages), ids in zip(batch.prompts.select("prompt", "prompt_id", "messages").iter_rows(), batch.prompt_token_ids, strict=True):
        if encode_prompt(tokenizer, prompt, messages) != ids:
            yield f"prompt_token_ids of prompt {prompt_id} are not those of its text"
    for name, completion, text, raw in zip(names, batch.completions, batch.texts, batch.raw_texts, strict=True):
        if clean_text(tokenizer, completion.token_ids) != text:
            yield f"token_ids of {name} do not read as its text {text!r}"
        if raw_text(tokenizer, completion.token_ids) != raw:
            yield f"token_ids of {name} do not read as its raw_text {raw!r}"


@torch.no_grad()
def _draw_faults(trainer: Trainer, batch: RolloutBatch) -> Iterable[str]:
    """Tokens whose recorded logprob is not the one that the policy gives them: the first of each completion."""
    settings, tolerance = trainer.config, DRAW_TOLERANCE[trainer.config.model.dtype]
    prompts, size = batch.per_completion(batch.prompt_token_ids), settings.grpo.micro_batch_size
    for start in range(0, len(prompts), size):
        drawn = batch.completions[start : start + size]
        tokens = token_batch(prompts[start : start + size], [c.token_ids for c in drawn], trainer.policy.model.device)
        given = completion_logprobs(trainer.policy.model, tokens, settings.rollout.temperature).tolist()
        for name, completion, logprobs in zip(batch.row_names()[start : start + size], drawn, given, strict=True):
            pairs = zip(completion.logprobs, logprobs, strict=False)  # the rectangle is padded
            apart = [(place, ours, theirs) for place, (ours, theirs) in enumerate(pairs) if not abs(ours - theirs) <= tolerance]
            if apart:
                place, ours, theirs = apart[0]
                yield f"sampling_logprobs of {name}, token {place}: recorded {ours:.6g}, the policy gives {theirs:.6g}"


def _compare_rows(recorded: pl.DataFrame, replayed: pl.DataFrame) -> tuple[dict[str, float], list[str]]:
    """Largest difference by column of numbers, and the first row of each column that differs (of numbers: beyond rounding).

    Rows with other keys, which are a fault of their own, are not compared.
    """
    if not recorded.select(KEYS).equals(replayed.select(KEYS)):
        return {"rows": float("inf")}, []
    columns, faults = {}, []
    for name in dict.fromkeys([*replayed.columns, *recorded.columns]):
        ours, theirs = (table.get_column(name).to_list() if name in table.columns else [None] * len(table) for table in (recorded, replayed))
        if name in replayed.columns and replayed.schema[name].is_float():
            gaps = [_gap(a, b) for a, b in zip(ours, theirs, strict=True)]
            columns[name] = max(gaps, default=0.0)
            wrong = (row for row, gap in enumerate(gaps) if gap > ROW_TOLERANCE * (1 + abs(theirs[row] or 0.0)))
        else:
            wrong = (row for row, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
        for row in islice(wrong, 1):
            place = f"prompt {recorded['prompt_id'][row]}, completion {recorded['completion_index'][row]}"
            faults.append(f"{name} of {place}: recorded {ours[row]}, worked out again {theirs[row]}")
    return columns, faults


def _compare_metrics(recorded: Mapping[str, float], replayed: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
    """Difference by metric, and those that differ beyond rounding."""
    gaps = {name: _gap(recorded.get(name), replayed.get(name)) for name in dict.fromkeys([*recorded, *replayed])}
    beyond = [name for name, gap in gaps.items() if gap > METRIC_TOLERANCE * (1 + abs(replayed.get(name) or 0.0))]
    return gaps, [f"metric {name}: recorded {recorded.get(name)}, worked out again {replayed.get(name)}" for name in beyond]


def _gap(a: float | None, b: float | None) -> float:
    """The distance of two numbers; infinite when only one is there, or one is not finite."""
    if a is None or b is None:
        return 0.0 if a is b else float("inf")
    return abs(a - b) if abs(a - b) < float("inf") else float("inf")


def _read_ledger(recorded: Recorded, steps: range) -> Ledger:
    """What the run recorded of these steps, and of the one after them whose rows name the weights that come out."""
    wanted = pl.col("step").is_between(steps.start, steps.stop)
    rollouts, rewards = (pl.scan_parquet(path).filter(wanted).collect() for path in (recorded.rollouts, recorded.rewards))
    metrics = {line["step"]: line for line in map(json.loads, recorded.metrics.read_text().splitlines())}
    digests = rollouts.group_by("step").agg(pl.col("policy_digest").mode().sort().first()).rows()
    after = {step - 1: digest for step, digest in digests} | {recorded.last_step: recorded.manifest["policy_digest"]}
    return Ledger(rollouts, rewards, metrics, after, recorded.manifest["reward_code_hash"])


def _is_whole(checkpoint: Path) -> bool:
    """Whether weights and optimizer are as they were saved: rows that the checkpoint vouches for are what the replay itself looks at."""
    try:
        read_manifest(checkpoint)
    except BrokenFolder:
        return False
    return True
