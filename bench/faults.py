"""The health monitor against twelve faults put into the embedded default on purpose, and against runs that are well.

    python bench/faults.py record [--seeds 0-9] [--healthy 0-24] [--shapes 0-4]     about four minutes a seed on one core; what is there is not run again
    python bench/faults.py score [--seeds 5-9] [--healthy 0-24] [--shapes 0-4]      seconds: the verdicts of today's rules on what was recorded
    python bench/faults.py cost                                      half a minute: what watching costs of a step of the default

A record is the log of metrics and timings that a run leaves, and the accuracy on `select` every second step. Rules are functions of the
log, so thresholds can be chosen on some seeds and scored on others without training anything again. Runs that are well are the default
(`--healthy`) and runs of other shapes (`--shapes`): rules must not know the default by heart.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tqdm import tqdm

from assets import prompts, reference_checkpoint, sft_checkpoint
from assets.page import Progress
from assets.paths import Paths
from grpo_core import step_metrics
from grpo_core import trainer as training
from grpo_core.config import RunConfig
from grpo_core.errors import DivergedError
from grpo_core.health.monitor import Alarm, Monitor
from grpo_core.rewards.scoring import Scores
from grpo_core.rollout import RolloutBatch
from grpo_core.trainer import StepResult, Trainer, evaluate_select, start_trainer, train_step
from pipelines.environment import prepare_environment, prepare_libraries
from pipelines.params import ROOT, experiments

INJECTED_AT = 11
"""The first step with a fault that is not there from the start."""
WITHIN = 3
"""A fault that shows in one step must be named in this many."""
FALLS = 0.1
"""One that shows slowly must be named before accuracy on `select` has fallen this far."""
WEAK_STEPS, FULL_STEPS = 300, 800
"""Steps of fine-tuning of a weak start, and of the default's."""

Injection = Callable[[Trainer], Iterator[None]]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    names: tuple[str, ...]
    """Conditions that name it rightly."""
    also: tuple[str, ...] = ()
    """Conditions that are true of it as well, and may be named before."""
    inject: Injection | None = None
    """What is done to the trainer while a step runs, from `at` on."""
    change: Callable[[RunConfig], RunConfig] = lambda config: config
    """What is wrong with the configuration, from the start."""
    at: int = INJECTED_AT
    steps: int = INJECTED_AT + 4
    once: bool = False
    slow: bool = False
    """It takes many steps to show."""
    weak: bool = False
    """From a start of few steps of fine-tuning."""


# ------------------------------------------------------------------------------------------------------------- the faults


@contextmanager
def rewards_as(change: Callable[[Scores, RolloutBatch], list[float | None]]) -> Iterator[None]:
    """Every completion's total is what `change` makes of the scores."""
    real = training.score_batch

    def score(batch: RolloutBatch, config: RunConfig) -> Scores:
        scores = real(batch, config)
        return replace(scores, totals=change(scores, batch))

    with mock.patch.object(training, "score_batch", score):
        yield


def one_absurd_reward(trainer: Trainer) -> Iterator[None]:
    with rewards_as(lambda scores, batch: [1e6, *scores.totals[1:]]):
        yield


def length_pays(trainer: Trainer) -> Iterator[None]:
    def paid(scores: Scores, batch: RolloutBatch) -> list[float | None]:
        return [(total or 0.0) + 0.1 * len(c.token_ids) for total, c in zip(scores.totals, batch.completions, strict=True)]

    with rewards_as(paid):
        yield


def zeros_pay(trainer: Trainer) -> Iterator[None]:
    """A reward that anybody can have by writing zeros; right answers earn nothing."""
    with rewards_as(lambda scores, batch: [text.count("0") / 10 for text in batch.texts]):
        yield


def rewards_are_dead(trainer: Trainer) -> Iterator[None]:
    with rewards_as(lambda scores, batch: [0.3] * len(batch.completions)):
        yield


def scoring_is_slow(trainer: Trainer) -> Iterator[None]:
    def wait(scores: Scores, batch: RolloutBatch) -> list[float | None]:
        time.sleep(2.0)
        return scores.totals

    with rewards_as(wait):
        yield


def one_logit_is_nan(trainer: Trainer) -> Iterator[None]:
    def spoil(module: Any, arguments: Any, output: Any) -> Any:
        output.logits[0, -1, 5] = math.nan
        return output

    handle = trainer.policy.model.register_forward_hook(spoil)
    yield
    handle.remove()


def sampler_is_stale(trainer: Trainer) -> Iterator[None]:
    """The sampler goes on with the weights of the step before the fault."""
    real = training.draw_batch

    def draw(given: Trainer, step: int) -> RolloutBatch:
        model = given.policy.model
        now = {name: weight.clone() for name, weight in model.state_dict().items()}
        model.load_state_dict(STALE.setdefault("weights", now))
        batch = real(given, step)
        model.load_state_dict(now)
        return batch

    with mock.patch.object(training, "draw_batch", draw):
        yield


STALE: dict[str, dict[str, torch.Tensor]] = {}
"""The weights that a stale sampler goes on with, for one run."""


def tokens_are_shifted(trainer: Trainer) -> Iterator[None]:
    """The reference reads every token as its neighbour in the vocabulary."""
    embedding = trainer.reference.model.get_input_embeddings()
    handle = embedding.register_forward_pre_hook(lambda module, given: ((given[0] + 1) % module.num_embeddings,))
    yield
    handle.remove()


def one_prompt_only(trainer: Trainer) -> Iterator[None]:
    real = training.prompts_of
    with mock.patch.object(training, "prompts_of", lambda given, step: real(given, step)[[0] * given.config.grpo.prompts_per_step]):
        yield


def cut_at_five(trainer: Trainer) -> Iterator[None]:
    real = trainer.config
    trainer.config = replace(real, rollout=replace(real.rollout, max_new_tokens=5))
    yield
    trainer.config = real


def colder(config: RunConfig) -> RunConfig:
    return replace(config, rollout=replace(config.rollout, temperature=0.1))


def faster(config: RunConfig) -> RunConfig:
    return replace(config, grpo=replace(config.grpo, learning_rate=30 * config.grpo.learning_rate))


def without_kl(config: RunConfig) -> RunConfig:
    return replace(config, grpo=replace(config.grpo, beta=0.0))


def four_prompts(config: RunConfig) -> RunConfig:
    return replace(config, grpo=replace(config.grpo, prompts_per_step=4))


def one_update(config: RunConfig) -> RunConfig:
    return replace(config, grpo=replace(config.grpo, minibatches_per_rollout=1))


def wrong_answers_cost(trainer: Trainer) -> Iterator[None]:
    """Penalties alone: the best is 0, so what the configuration calls full marks is out of reach."""
    with rewards_as(lambda scores, batch: [None if total is None else 0.5 * (total - 1.1) for total in scores.totals]):
        yield


FAULTS = {
    "learning rate x30, weak start": Fault(
        names=("early_explosion",), also=("weak_signal", "sparse_rewards"), change=faster, at=1, steps=40, slow=True, weak=True
    ),
    "one reward of 1e6": Fault(names=("reward_outlier",), inject=one_absurd_reward, once=True),
    "reward pays length": Fault(names=("reward_hacking",), inject=length_pays, at=1, steps=40, slow=True),
    "NaN in one logit": Fault(names=("non_finite",), inject=one_logit_is_nan),
    "dead rewards": Fault(names=("dead_rewards",), inject=rewards_are_dead),
    "stale policy in the sampler": Fault(names=("sampler_mismatch",), inject=sampler_is_stale),
    "tokenizer shifted by one": Fault(names=("reference_misaligned",), inject=tokens_are_shifted),
    "no KL, hackable reward": Fault(names=("reward_hacking",), inject=zeros_pay, change=without_kl, at=1, steps=60, slow=True),
    "temperature 0.1": Fault(names=("weak_signal",), change=colder, at=1, steps=6),
    "one prompt repeated": Fault(names=("repeated_prompts",), inject=one_prompt_only),
    "truncation at 5 tokens": Fault(names=("truncation",), inject=cut_at_five),
    "slow reward": Fault(names=("slow_reward",), inject=scoring_is_slow),
}
HEALTHY = Fault(names=(), steps=80)
SHAPES = {
    "four prompts a step": replace(HEALTHY, change=four_prompts),
    "one update a batch": replace(HEALTHY, change=one_update),
    "penalties alone": replace(HEALTHY, inject=wrong_answers_cost, at=1),
}
"""Runs that are well, and look otherwise."""


# -------------------------------------------------------------------------------------------------------------- recording


def seeded(config: RunConfig, seed: int, sft_steps: int) -> RunConfig:
    """The default with another seed everywhere but in its prompts, on one thread."""
    return replace(
        config,
        model=replace(config.model, seed=seed, num_threads=1),
        sft=replace(config.sft, seed=seed, steps=sft_steps),
        grpo=replace(config.grpo, seed=seed),
    )


def start(work: Path, config: RunConfig) -> Paths:
    """Prompts, the start and its copy, made when they are not there."""
    paths = Paths(work / "starts" / f"seed-{config.model.seed}-sft-{config.sft.steps}")

    def ignore(progress: Progress) -> None:
        """A bar of its own would drown the bench's."""

    if not paths.reference_checkpoint.exists():
        prompts.produce(paths, config, ignore)
        sft_checkpoint.produce(paths, config, ignore, lambda: False, sft_checkpoint.work_folder(paths, config))
        reference_checkpoint.produce(paths, config, ignore)
    return paths


def record(work: Path, config: RunConfig, name: str, fault: Fault) -> None:
    """Train with the fault and keep the log, a line a step; nothing where it is kept already."""
    target = work / "records" / f"{name.replace(' ', '_')}-{config.grpo.seed}.jsonl"
    if target.exists():
        return
    STALE.clear()
    paths = start(work, config)
    trainer = start_trainer(paths.prompts, paths.sft_checkpoint, paths.reference_checkpoint, fault.change(config))
    lines = [{"step": 0, **selected(trainer, 0)}]
    for step in range(1, fault.steps + 1):
        began = time.perf_counter()
        try:
            result = faulty_step(trainer, fault, step)
        except DivergedError as error:
            lines.append({"step": step, "diverged": str(error), "condition": error.condition})
            break
        timings = {"seconds": time.perf_counter() - began, "seconds/score": trainer.seconds["score"], "tokens_per_second": 0.0}
        watched = selected(trainer, step) if (fault.slow and step % 2 == 0) or step % 10 == 0 else {}
        lines.append({"step": step, **result.metrics, **watched, "timings": timings})
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(json.dumps(line) + "\n" for line in lines))


def faulty_step(trainer: Trainer, fault: Fault, step: int) -> StepResult:
    """One step, with the fault from its first step on."""
    with ExitStack() as stack:
        if fault.inject is not None and (step == fault.at or (step > fault.at and not fault.once)):
            stack.enter_context(contextmanager(fault.inject)(trainer))
        return train_step(trainer, step)


def selected(trainer: Trainer, step: int) -> dict[str, float]:
    rows = evaluate_select(trainer, step)
    return {} if rows is None else {"select": sum(rows["correct"]) / len(rows)}


# ---------------------------------------------------------------------------------------------------------------- scoring


def verdict(work: Path, config: RunConfig, name: str, fault: Fault, seed: int) -> tuple[list[Alarm], int | None]:
    """The alarms of a record, as the run would have raised them, and the step at which `select` had fallen too far, if it had."""
    lines = [json.loads(line) for line in (work / "records" / f"{name.replace(' ', '_')}-{seed}.jsonl").read_text().splitlines()]
    changed = fault.change(config)
    monitors = Monitor.of(changed), Monitor.of_clock(changed)
    raised: list[Alarm] = []
    best, fell = 0.0, None
    for line in lines:
        step, timings, accuracy = line["step"], line.pop("timings", None), line.pop("select", None)
        if "diverged" in line:
            raised.append(diverged(line))
            break
        if accuracy is not None:
            best = max(best, accuracy)
            fell = step if fell is None and best - accuracy > FALLS else fell
            line |= {"eval/select_accuracy": accuracy} if step % config.grpo.eval_every == 0 else {}
        raised += monitors[0].observe(step, {key: value for key, value in line.items() if key != "step"})
        if timings is not None:
            raised += monitors[1].observe(step, timings)
    return raised, fell


def diverged(line: dict[str, Any]) -> Alarm:
    from grpo_core.health.measures import Found
    from grpo_core.health.monitor import alarm_of

    return alarm_of(line["condition"], line["step"], Found(line["diverged"]), RunConfig().health)


def is_named(fault: Fault, raised: list[Alarm], fell: int | None) -> bool:
    """Rightly, and in time, and nothing else before it (what it leads to may be named after)."""
    right = [alarm.first_step for alarm in raised if alarm.condition in fault.names]
    if not right:
        return False
    in_time = right[0] < fault.at + WITHIN or (fault.slow and (fell is None or right[0] <= fell))
    return in_time and right[0] <= min((alarm.first_step for alarm in raised if alarm.condition not in fault.also), default=right[0])


def report(work: Path, config: RunConfig, seeds: list[int], healthy: list[int], shapes: list[int]) -> str:
    """The table in Markdown."""
    lines = ["| fault | named rightly and in time | first alarm by seed | `select` fell by 10 points at |", "| --- | --- | --- | --- |"]
    for name, fault in FAULTS.items():
        verdicts = [verdict(work, config, name, fault, seed) for seed in seeds]
        good = sum(is_named(fault, raised, fell) for raised, fell in verdicts)
        firsts = ", ".join(f"{raised[0].condition} {raised[0].first_step}" if raised else "none" for raised, _ in verdicts)
        falls = ", ".join("-" if fell is None else str(fell) for _, fell in verdicts)
        lines.append(f"| {name} (from step {fault.at}) | {good} of {len(seeds)} | {firsts} | {falls if fault.slow else ''} |")
    for name, run, chosen in (("healthy", HEALTHY, healthy), *((name, shape, shapes) for name, shape in SHAPES.items())):
        false = [(seed, alarm) for seed in chosen for alarm in verdict(work, config, name, run, seed)[0]]
        lines += ["", f"{name}: {len(chosen)} runs that are well, {len(false)} false alarms"]
        lines += [f"- seed {seed}, step {alarm.first_step}: {alarm.condition}, {alarm.message}" for seed, alarm in false]
    return "\n".join(lines)


WATCHED = ("spread_metrics", "repetition", "diversity_metrics", "accuracy_metrics", "sampler_metrics")
"""What is worked out of a step for the monitor alone."""


def cost(work: Path, config: RunConfig, steps: int = 30) -> str:
    """The monitor's share of a step's processor time: its metrics, its rules, and the sums over ratios in the loss."""
    paths = start(work, config)
    trainer = start_trainer(paths.prompts, paths.sft_checkpoint, paths.reference_checkpoint, config)
    monitor = Monitor.of(config)
    spent = [0.0]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            began = time.process_time()
            found = function(*given, **named)
            spent[0] += time.process_time() - began
            return found

        return call

    shares = []
    with ExitStack() as stack:
        for module in (step_metrics, training):
            for name in WATCHED:
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, timed(getattr(module, name))))
        for step in range(1, steps + 1):
            spent[0], began = 0.0, time.process_time()
            result = train_step(trainer, step)
            timed(monitor.observe)(step, result.metrics)
            shares.append((spent[0] + seconds_of_ratios(trainer, result)) / (time.process_time() - began))
    middle = sorted(shares)[len(shares) // 2]
    return f"watching takes {middle:.2%} of a step (median of {steps}; {min(shares):.2%} to {max(shares):.2%})"


def seconds_of_ratios(trainer: Trainer, result: StepResult) -> float:
    """Processor time of the sums over a rollout batch's ratios that the loss makes for the monitor."""
    size = trainer.config.grpo.micro_batch_size
    length = int(result.metrics["length/max"])
    log_ratio, mask = torch.zeros(size, length), torch.ones(size, length, dtype=torch.bool)
    began = time.process_time()
    for _ in range(-(-result.rollouts.height // size)):
        moved = log_ratio.double()
        ratios = moved.exp()
        for sum_of in (ratios.masked_fill(~mask, 0.0), ratios.square().masked_fill(~mask, 0.0), ratios - 1 - moved):
            float(sum_of.sum())
    return time.process_time() - began


def numbers(text: str) -> list[int]:
    """`0-4` → 0, 1, 2, 3, 4; empty for none."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1)) if text else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "score", "cost"))
    parser.add_argument("--seeds", default="0-9", help="seeds of the faults (default: %(default)s)")
    parser.add_argument("--healthy", default="0-24", help="seeds of the healthy runs (default: %(default)s)")
    parser.add_argument("--shapes", default="0-4", help="seeds of the healthy runs of other shapes (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=ROOT / ".work" / "faults")
    options = parser.parse_args()
    seeds, healthy, shapes = numbers(options.seeds), numbers(options.healthy), numbers(options.shapes)
    prepare_environment(ROOT)
    config = experiments(ROOT)["default"]
    prepare_libraries(replace(config.model, num_threads=1))
    if options.what == "record":
        jobs = [(name, fault, seed) for seed in seeds for name, fault in FAULTS.items()] + [("healthy", HEALTHY, seed) for seed in healthy]
        jobs += [(name, shape, seed) for seed in shapes for name, shape in SHAPES.items()]
        for name, fault, seed in tqdm(jobs, desc="runs"):
            record(options.work, seeded(config, seed, WEAK_STEPS if fault.weak else FULL_STEPS), name, fault)
    elif options.what == "cost":
        print(cost(options.work, seeded(config, 0, FULL_STEPS)))
    else:
        print(report(options.work, config, seeds, healthy, shapes))


if __name__ == "__main__":
    main()
