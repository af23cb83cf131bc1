"""Demonstrations beside a rollout: their gradient by hand, weights that anneal to values worked out on paper, and no trace of them anywhere else."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor

from grpo_core.checkpoint import unchecked_manifest
from grpo_core.cloning import Cloning, CloningSource, CloningState, cloning_source, demonstrations_of, divided, is_demonstrated, next_state, weight_at
from grpo_core.config import GrpoConfig
from grpo_core.demonstrations import Demonstration
from grpo_core.errors import DivergedError, Interrupted
from grpo_core.loop import Files, StepReport, train
from grpo_core.loss import LossConfig
from grpo_core.models import policy_digest
from grpo_core.params import parse_sections
from grpo_core.replay import Recorded, replay
from grpo_core.requirements import ConfigError
from grpo_core.step import accumulate_gradient, optimizer_step
from grpo_core.step_metrics import cloning_metrics
from grpo_core.tokenization import encode_completion, encode_prompt
from grpo_core.trainer import Trainer, draw_batch, learn, start_trainer, train_step
from tests.grpo_core.stopped_training import keyed
from tests.grpo_core.tiny_minibatch import policy, tiny_minibatch
from tests.tiny_models import language_model, tiny_gpt2
from tests.tiny_run import content, inputs, outputs, prompts_table, tiny_config

PAIRS: list[Demonstration] = [([1, 8, 9], [4, 5, 6, 10, 2]), ([1, 10, 11, 12, 13], [7, 2]), ([1, 9], [4, 4, 4, 2])]
ALIVE = [1.2, -0.7, 0.4, -1.1, 0.2]
LINEAR: dict[str, Any] = {"cloning_weight": 0.5, "cloning_steps": 4, "cloning_batch_size": 3}
SIGNAL: dict[str, Any] = {"cloning_weight": 0.5, "cloning_schedule": "signal", "cloning_batch_size": 3, "demonstration_fraction": 0.5}


def settings(**grpo: Any) -> GrpoConfig:
    return GrpoConfig(**{"cloning_weight": 2.0, "cloning_batch_size": 2, **grpo})


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inputs(tmp_path_factory.mktemp("given")).prompts.parent


def start(given: Path, **grpo: Any) -> Trainer:
    files = outputs(given, given)
    return start_trainer(files.prompts, files.start, files.reference, tiny_config(**grpo))


def digest(trainer: Trainer) -> str:
    return policy_digest(trainer.policy.model)


# ------------------------------------------------------------------------------------------------------------------- the weight


def test_the_linear_weight_is_whole_at_step_one_and_nothing_after_the_last_step() -> None:
    config = settings(cloning_steps=4)
    assert [weight_at(step, CloningState(), config) for step in (1, 2, 3, 4, 5, 99)] == [2.0, 1.5, 1.0, 0.5, 0.0, 0.0]
    assert [weight_at(step, CloningState(), settings(cloning_steps=1)) for step in (1, 2)] == [2.0, 0.0]


def test_the_cosine_weight_is_half_at_half_time() -> None:
    config = settings(cloning_steps=4, cloning_schedule="cosine")
    slope = 0.5**0.5
    expected = [2.0, 1 + slope, 1.0, 1 - slope, 0.0, 0.0]
    assert [weight_at(step, CloningState(), config) for step in (1, 2, 3, 4, 5, 99)] == pytest.approx(expected)
    assert weight_at(5, CloningState(), config) == 0.0


def test_the_weight_of_a_step_does_not_depend_on_how_long_the_run_is() -> None:
    short, long = (settings(cloning_steps=10, steps=steps) for steps in (5, 500))
    assert [weight_at(s, CloningState(), short) for s in range(1, 6)] == [weight_at(s, CloningState(), long) for s in range(1, 6)]


def after(shares: list[float], config: GrpoConfig) -> list[float]:
    """The weight before the first batch and after each, whose shares of groups with signal are given."""
    state, weights = CloningState(), []
    for share in [*shares, 0.0]:
        weights.append(weight_at(7, state, config))
        state = next_state(state, share, config)
    return weights


def test_the_weight_falls_with_the_mean_share_of_groups_that_have_signal() -> None:
    config = settings(cloning_schedule="signal")
    assert after([0.0, 0.5, 1.0], config) == pytest.approx([2.0, 2.0, 2 * 0.95, 2 * (1 - (0.9 * 0.05 + 0.1))])


def test_the_weight_never_rises_again_when_signal_goes_away() -> None:
    weights = after([1.0] * 5 + [0.0] * 20 + [1.0] * 5, settings(cloning_schedule="signal"))
    assert weights[5:26] == [weights[5]] * 21
    assert weights == sorted(weights, reverse=True)


def test_below_a_twentieth_the_weight_is_nothing_for_good() -> None:
    """0.9^28 = 0.0523 and 0.9^29 = 0.0471."""
    weights = after([1.0] * 29 + [0.0] * 30, settings(cloning_schedule="signal"))
    assert weights[28] == pytest.approx(2 * 0.9**28)
    assert weights[29:] == [0.0] * 31


def test_other_schedules_remember_nothing() -> None:
    assert next_state(CloningState(), 1.0, settings(cloning_steps=4)) == CloningState()
    assert next_state(CloningState(), 1.0, GrpoConfig()) == CloningState()


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ({"tests.tiny_rewards:constant": 1.0}, 0.0),  # 0.7 everywhere: nothing to learn from
        ({"tests.tiny_rewards:messages_are_one": 1.0}, 0.0),  # 0 everywhere
        ({"tests.tiny_rewards:constant": 1.0, "tests.tiny_rewards:messages_are_one": -1.0}, 0.0),
        ({"tests.tiny_rewards:share_of_small_digits": 1.0}, 0.1),
        ({"tests.tiny_rewards:says_what_it_was_given": 1.0}, 0.1),  # 1 everywhere: solved, whose silence brings the term not back
    ],
)
def test_groups_that_differ_and_groups_that_are_solved_count_as_signal(rewards: dict[str, float], expected: float, given: Path) -> None:
    trainer = start(given, rewards=rewards, **SIGNAL)
    train_step(trainer, 1)
    assert asdict(trainer.cloning) == pytest.approx({"signal": expected, "share": 1 - expected})


# ------------------------------------------------------------------------------------------------------- which demonstrations


def source(given: Path, **grpo: Any) -> CloningSource:
    return start(given, **{**LINEAR, **grpo}).demonstrations


def test_off_reads_no_demonstration(given: Path) -> None:
    trainer = start(given)
    assert trainer.demonstrations == CloningSource([], {})
    assert not [name for name in train_step(trainer, 1).metrics if name.startswith("cloning")]


def test_demonstrations_come_from_the_sft_split_alone(given: Path) -> None:
    table, found = prompts_table().filter(pl.col("split") == "sft").sort("prompt_id"), source(given)
    tokenizer = start(given).policy.tokenizer
    expected = [(encode_prompt(tokenizer, p, None), encode_completion(tokenizer, c)) for p, c in zip(table["prompt"], table["completion"], strict=True)]
    assert list(found.from_sft) == expected
    assert not found.of_prompt


def test_every_demonstration_comes_once_an_epoch_in_an_order_of_seed_and_step() -> None:
    pairs: list[Demonstration] = [([1, i], [i, 2]) for i in range(6)]
    found = CloningSource(pairs)
    first = [demonstrations_of(found, [], step, settings(cloning_steps=9)) for step in range(1, 7)]
    assert sorted(chain(*first[:3])) == sorted(chain(*first[3:])) == pairs
    assert first[:3] != first[3:]
    assert first == [demonstrations_of(found, [], step, settings(cloning_steps=9)) for step in range(1, 7)]
    assert first != [demonstrations_of(found, [], step, settings(cloning_steps=9, seed=1)) for step in range(1, 7)]


def test_a_chosen_prompt_brings_its_own_demonstration_whenever_it_is_drawn(given: Path) -> None:
    found = source(given, cloning_batch_size=0, demonstration_fraction=0.5)
    table = prompts_table().filter(pl.col("split") == "train")
    assert 0 < len(found.of_prompt) < len(table)
    assert set(found.of_prompt) < set(table["prompt_id"])
    chosen, other = next(iter(found.of_prompt)), next(name for name in table["prompt_id"] if name not in found.of_prompt)
    config = settings(cloning_steps=9, cloning_batch_size=0, demonstration_fraction=0.5)
    assert demonstrations_of(found, [chosen, other, chosen], 3, config) == [found.of_prompt[chosen]] * 2


def test_which_prompts_are_chosen_follows_from_seed_and_prompt() -> None:
    names = [f"{i:04x}" for i in range(400)]

    def chosen(fraction: float, seed: int = 0) -> set[str]:
        config = settings(cloning_steps=1, demonstration_fraction=fraction, seed=seed)
        return {name for name in names if is_demonstrated(name, config)}

    assert 60 < len(chosen(0.25)) < 140
    assert chosen(0.25) < chosen(0.5) < chosen(1.0) == set(names)
    assert chosen(0.25) != chosen(0.25, seed=1)
    assert chosen(0.0) == set()


def test_demonstrations_are_divided_among_the_optimizer_steps_each_once_a_pass() -> None:
    pairs: list[Demonstration] = [([1, i], [i, 2]) for i in range(7)]
    config = settings(cloning_steps=1, minibatches_per_rollout=4)
    parts = divided(pairs, 3, 0, config)
    assert [len(part) for part in parts] == [2, 2, 2, 1]
    assert sorted(chain(*parts)) == pairs
    assert parts != divided(pairs, 3, 1, config), "another order every pass"
    assert divided([], 3, 0, config) == [[], [], [], []]


@pytest.mark.parametrize(
    ("table", "grpo", "message"),
    [
        (prompts_table(sft=0), LINEAR, r"grpo\.cloning_batch_size is 3, but no prompt of the sft split has a completion: give demonstrations"),
        (
            prompts_table().with_columns(completion=pl.when(pl.col("split") == "sft").then("completion")),
            {**LINEAR, "cloning_batch_size": 0, "demonstration_fraction": 0.5},
            r"grpo\.demonstration_fraction is 0\.5, which chooses none of the 0 prompts of the train split that have a completion: give train prompts",
        ),
        (prompts_table(), {**LINEAR, "demonstration_fraction": 1e-9}, r"is 1e-09, which chooses none of the 10 prompts of the train split that have"),
    ],
    ids=["no sft", "no train", "none chosen"],
)
def test_a_term_without_demonstrations_is_refused_at_the_start(table: pl.DataFrame, grpo: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cloning_source(language_model(tiny_gpt2()), table, tiny_config(**grpo).grpo)


@pytest.mark.parametrize("split", ["sft", "train"])
def test_a_demonstration_longer_than_the_context_is_named(split: str) -> None:
    table = prompts_table()
    long = table.filter(pl.col("split") == split)["prompt_id"][1]
    longer = table.with_columns(completion=pl.when(pl.col("prompt_id") == long).then(pl.lit("1" * 60)).otherwise("completion"))
    grpo = tiny_config(**{**LINEAR, "demonstration_fraction": 1.0}).grpo
    with pytest.raises(ValueError, match=rf"prompt {long} and its completion have 67 tokens, the model takes 48: shorten it or leave it out"):
        cloning_source(language_model(tiny_gpt2()), longer, grpo)


@pytest.mark.parametrize(
    ("grpo", "message"),
    [
        ({"cloning_steps": 4}, r"grpo\.cloning_steps must stay at its default 0: grpo\.cloning_weight is 0"),
        ({"cloning_schedule": "cosine"}, r"grpo\.cloning_schedule must stay at its default 'linear'"),
        ({"cloning_batch_size": 4}, r"grpo\.cloning_batch_size must stay at its default 0"),
        ({"demonstration_fraction": 0.5}, r"grpo\.demonstration_fraction must stay at its default 0\.0"),
        ({"cloning_weight": 1.0, "cloning_steps": 4}, r"grpo\.cloning_batch_size must be above 0 \(or grpo\.demonstration_fraction\)"),
        ({"cloning_weight": 1.0, "cloning_batch_size": 4}, r"grpo\.cloning_steps must be at least 1 when grpo\.cloning_schedule is linear"),
        ({**SIGNAL, "cloning_steps": 4}, r"grpo\.cloning_steps must stay at its default 0: grpo\.cloning_schedule is signal"),
        ({**LINEAR, "cloning_weight": -1.0}, r"grpo\.cloning_weight must be at least 0"),
        ({**LINEAR, "demonstration_fraction": 1.5}, r"grpo\.demonstration_fraction must lie between 0 and 1"),
        ({**LINEAR, "cloning_schedule": "cosinus"}, r"grpo\.cloning_schedule must be one of 'linear', 'cosine', 'signal'.*did you mean 'cosine'"),
    ],
)
def test_keys_that_would_do_nothing_or_harm_are_refused(grpo: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_sections({"grpo": grpo})


def test_cloning_from_a_split_that_gets_no_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"prompts\.sft_fraction must be above 0 when grpo\.cloning_batch_size is 3"):
        parse_sections({"grpo": LINEAR, "sft": {"steps": 0}, "prompts": {"sft_fraction": 0.0}})


# --------------------------------------------------------------------------------------------------------------- the gradient


def gradient(advantages: list[float], cloning: Cloning, *, beta: float = 0.0, size: int = 99) -> tuple[Tensor, dict[str, float]]:
    """The whole model's gradient as one vector, and the sums that came with it."""
    model = policy()
    minibatch = tiny_minibatch(advantages, beta=beta)
    sums = accumulate_gradient(model, minibatch, LossConfig(), beta=beta, temperature=0.7, micro_batch_size=size, cloning=cloning)
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]), sums


def imitation_by_hand(weight: float) -> tuple[Tensor, float]:
    """The gradient of `weight` times the mean nats a token from unpadded rows at temperature 1, one prediction at a time; and the mean."""
    model = policy()
    losses = []
    for prompt, completion in PAIRS:
        for place, token in enumerate(completion):
            logits = model(input_ids=torch.tensor([[*prompt, *completion[:place]]])).logits[0, -1]
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(token)))
    loss = torch.stack(losses).mean()
    (weight * loss).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]), float(loss.detach())


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_the_gradient_is_the_policy_s_plus_the_weighted_mean_over_demonstrated_tokens(beta: float) -> None:
    alone, alone_sums = gradient(ALIVE, Cloning((), 1.7), beta=beta)
    both, sums = gradient(ALIVE, Cloning(PAIRS, 1.7), beta=beta)
    imitated, mean = imitation_by_hand(1.7)
    assert float(imitated.norm()) > 0.1
    assert float((both - alone - imitated).abs().max()) < 1e-12
    assert sums.pop("cloning_loss") == pytest.approx(mean, abs=1e-12)
    assert sums.pop("loss") == pytest.approx(alone_sums.pop("loss") + 1.7 * mean, abs=1e-12)
    assert sums == alone_sums, "no other figure knows of demonstrations"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_splitting_into_micro_batches_leaves_the_gradient_unchanged(size: int) -> None:
    whole, sums = gradient(ALIVE, Cloning(PAIRS, 1.7), beta=0.3)
    parts, part_sums = gradient(ALIVE, Cloning(PAIRS, 1.7), beta=0.3, size=size)
    assert float((parts - whole).abs().max()) < 1e-9
    assert part_sums == pytest.approx(sums, abs=1e-12)


def test_dead_groups_add_exactly_nothing_to_the_imitation() -> None:
    dead, _ = gradient([0.0] * 5, Cloning(PAIRS, 1.7))
    imitated, _ = imitation_by_hand(1.7)
    model = policy()
    masked = tiny_minibatch([0.0] * 5, beta=0.0)
    untrained = replace(masked, batch=replace(masked.batch, mask=torch.zeros_like(masked.batch.mask)))
    accumulate_gradient(model, untrained, LossConfig(), beta=0.0, temperature=0.7, micro_batch_size=99, cloning=Cloning(PAIRS, 1.7))
    nothing = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    assert torch.equal(dead, nothing), "to the bit what a rollout without a trained token leaves"
    assert float((dead - imitated).abs().max()) < 1e-12


def stepped(cloning: Cloning) -> tuple[bool, Any]:
    """Whether a minibatch of dead groups without KL moves the weights beside `cloning`, and the step's figures."""
    model = policy()
    before = policy_digest(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    figures = optimizer_step(
        model, optimizer, tiny_minibatch([0.0] * 5, beta=0.0), LossConfig(), beta=0.0, temperature=1.0, micro_batch_size=2, max_grad_norm=1.0, cloning=cloning
    )  # fmt: skip
    return policy_digest(model) != before, figures


def test_dead_groups_move_nothing_unless_something_is_imitated() -> None:
    moved, figures = stepped(Cloning(PAIRS, 1.7))
    assert moved
    assert figures.loss == pytest.approx(1.7 * figures.cloning_loss)
    for nothing in (Cloning((), 1.7), Cloning(PAIRS, 0.0)):
        assert stepped(nothing)[0] is False
        assert stepped(nothing)[1].cloning_loss is None


def test_a_demonstrated_token_that_has_become_impossible_stops_before_the_weights() -> None:
    model = policy()
    with torch.no_grad():
        model.transformer.wte.weight[4] = math.inf  # of the first demonstration only
    before = policy_digest(model)
    with pytest.raises(DivergedError, match=r"\(of demonstrations nan, times 1\.7\) and gradient norm nan: stopped before the weights; .*grpo\.cloning_weight"):
        optimizer_step(
            model, torch.optim.SGD(model.parameters(), lr=1.0), tiny_minibatch(ALIVE, beta=0.0), LossConfig(),
            beta=0.0, temperature=1.0, micro_batch_size=2, max_grad_norm=1.0, cloning=Cloning(PAIRS, 1.7),
        )  # fmt: skip
    assert policy_digest(model) == before


# -------------------------------------------------------------------------------------------------------------------- a step


@contextmanager
def rows_scored(trainer: Trainer) -> Iterator[list[tuple[int, ...]]]:
    """The rows (their real tokens) that the policy computes a gradient of."""
    seen: list[tuple[int, ...]] = []

    def note(module: torch.nn.Module, arguments: Any, named: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            for ids, mask in zip(named["input_ids"], named["attention_mask"], strict=True):
                seen.append(tuple(ids[mask.bool()].tolist()))

    handle = trainer.policy.model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


def test_a_step_imitates_each_of_its_demonstrations_once_a_pass(given: Path) -> None:
    trainer = start(given, updates_per_rollout=2, cloning_weight=0.5, cloning_steps=4, cloning_batch_size=3, demonstration_fraction=0.7)
    batch = draw_batch(trainer, 1)
    own = [name for name in batch.prompts["prompt_id"] if name in trainer.demonstrations.of_prompt]
    assert own
    pairs = demonstrations_of(trainer.demonstrations, batch.prompts["prompt_id"].to_list(), 1, trainer.config.grpo)
    expected = sorted(tuple(prompt + completion) for prompt, completion in pairs)
    drawn = [tuple(p + c.token_ids) for p, c in zip(batch.per_completion(batch.prompt_token_ids), batch.completions, strict=True)]
    with rows_scored(trainer) as seen:
        metrics = learn(trainer, batch, 1).metrics
    assert sorted(seen) == sorted([*drawn, *expected] * 2)
    assert metrics["cloning/demonstrations"] == 3 + len(own)
    assert metrics["cloning/weight"] == 0.5


def test_demonstrations_are_in_no_rollout_no_reward_no_advantage_and_no_kl(given: Path) -> None:
    with_them, without = start(given, **LINEAR, demonstration_fraction=1.0), start(given)
    shown, plain = train_step(with_them, 1), train_step(without, 1)
    assert shown.rollouts.equals(plain.rollouts)
    assert shown.rewards.equals(plain.rewards)
    unmoved = [name for name in plain.metrics if name.startswith(("reward/", "advantage/", "kl/", "length/", "status/"))] + ["zero_variance_fraction"]
    assert {name: shown.metrics[name] for name in unmoved} == {name: plain.metrics[name] for name in unmoved}
    assert digest(with_them) != digest(without)


def test_a_weight_that_has_ended_imitates_nothing_and_moves_what_it_moved_without(given: Path) -> None:
    ended, never = start(given, **LINEAR), start(given)
    with rows_scored(ended) as seen:
        metrics = train_step(ended, 5).metrics
    assert len(seen) == 16, "sixteen completions, no demonstration"
    train_step(never, 5)
    assert digest(ended) == digest(never)
    assert {name: value for name, value in metrics.items() if name.startswith("cloning")} == {"cloning/weight": 0.0, "cloning/demonstrations": 0.0}


def test_a_batch_without_signal_teaches_its_demonstrations_alone(given: Path) -> None:
    rewards = {"tests.tiny_rewards:constant": 1.0}
    trainer, idle = start(given, rewards=rewards, beta=0.0, **LINEAR), start(given, rewards=rewards, beta=0.0)
    before = digest(trainer)
    losses = [train_step(trainer, step).metrics["cloning/loss"] for step in range(1, 5)]
    train_step(idle, 1)
    assert digest(idle) == before != digest(trainer)
    assert losses[-1] < losses[0]
    moved = digest(trainer)
    train_step(trainer, 5)
    assert digest(trainer) == moved, "after its last step nothing moves"


def test_the_reported_loss_is_the_mean_over_the_optimizer_steps_that_had_demonstrations(given: Path) -> None:
    trainer = start(given, **{**LINEAR, "cloning_batch_size": 1})
    metrics = train_step(trainer, 1).metrics
    assert metrics["cloning/demonstrations"] == 1.0
    figures = [stepped(Cloning(PAIRS, 1.7))[1], stepped(Cloning((), 1.7))[1]]
    assert cloning_metrics(Cloning(PAIRS, 1.7), figures)["cloning/loss"] == figures[0].cloning_loss
    assert metrics["cloning/loss"] > 0.1


# ----------------------------------------------------------------------------------------------------------- resume and replay


def go(files: Files, *, stop_at: int | None = None, **grpo: Any) -> None:
    config = tiny_config(**grpo)
    reports: list[StepReport] = []
    if stop_at is None:
        train(keyed(files, config), config, on_step=reports.append)
        return
    with pytest.raises(Interrupted):
        train(keyed(files, config), config, on_step=reports.append, should_stop=lambda: len(reports) == stop_at)


def curve(files: Files, name: str) -> list[float]:
    return [line[name] for line in map(json.loads, (files.checkpoint / "metrics.jsonl").read_text().splitlines()) if name in line]


@pytest.fixture(scope="module", params=[LINEAR, SIGNAL], ids=["linear", "signal"])
def grpo(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture(scope="module")
def whole(grpo: dict[str, Any], given: Path, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A run that nobody interrupts."""
    files = outputs(tmp_path_factory.mktemp("whole"), given)
    go(files, **grpo)
    assert len(set(curve(files, "cloning/weight"))) > 3, "the weight must move for this to mean something"
    return files


@pytest.mark.parametrize("stop", [1, 5])
def test_a_run_interrupted_anywhere_ends_in_the_same_bytes(stop: int, grpo: dict[str, Any], whole: Files, given: Path, tmp_path: Path) -> None:
    parts = outputs(tmp_path, given)
    go(parts, stop_at=stop, **grpo)
    go(parts, **grpo)
    assert content(parts) == content(whole)


def test_a_longer_run_continues_a_shorter_one(grpo: dict[str, Any], whole: Files, given: Path, tmp_path: Path) -> None:
    longer = outputs(tmp_path, given)
    go(longer, **grpo, steps=3)
    go(longer, **grpo)
    assert content(longer) == content(whole)


def test_the_state_of_the_signal_schedule_goes_through_a_checkpoint(given: Path) -> None:
    trainer, other = start(given, **SIGNAL), start(given, **SIGNAL)
    train_step(trainer, 1)
    state = json.loads(json.dumps(trainer.state))
    assert state["cloning"] == {"signal": trainer.cloning.signal, "share": trainer.cloning.share}
    other.take_state(state)
    assert (other.cloning, other.controller) == (trainer.cloning, trainer.controller)
    other.take_state({})
    assert other.cloning == trainer.cloning
    without = {name: value for name, value in state.items() if name != "cloning"}
    fresh = start(given, **SIGNAL)
    fresh.take_state(without)
    assert fresh.cloning == CloningState(), "a checkpoint of before the term existed"


@pytest.mark.parametrize("first", [1, 5])
def test_a_replay_works_out_the_same_numbers(first: int, grpo: dict[str, Any], whole: Files, tmp_path: Path) -> None:
    """From the checkpoint of step 4, and from the start where none is kept."""
    recorded = Recorded(
        prompts=whole.prompts, start=whole.start, reference=whole.reference, rollouts=whole.rollouts, rewards=whole.rewards,
        metrics=whole.checkpoint / "metrics.jsonl", manifest=unchecked_manifest(whole.checkpoint),
        work=keyed(whole, tiny_config(**grpo)).work if first == 5 else tmp_path,
    )  # fmt: skip
    steps = list(replay(recorded, first, 6))
    assert [step.step for step in steps] == list(range(first, 7))
    assert all(step.identical for step in steps), [step.faults for step in steps]
    assert "cloning/weight" in steps[-1].metrics
