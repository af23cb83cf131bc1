"""Fine-tuning against a loop that scores one demonstration at a time, token by token."""

import math
from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
import torch

from grpo_core.config import SftConfig
from grpo_core.errors import DivergedError, Interrupted
from grpo_core.models import LanguageModel, policy_digest
from grpo_core.sft import SftStep, demonstrations, fine_tune, learning_rate_at
from grpo_core.tokenization import encode_completion, encode_prompt
from tests.tiny_models import language_model, tiny_gpt2, tiny_llama
from tests.tiny_run import prompts_table

Pairs = list[tuple[list[int], list[int]]]
PAIRS: Pairs = [([1, 8, 9], [4, 5, 6, 10, 2]), ([1, 10, 11, 12, 13], [7, 2]), ([1, 9], [4, 4, 4, 2])]


def settings(**changes: Any) -> SftConfig:
    sizes = {"steps": 1, "batch_size": 3, "micro_batch_size": 3, "warmup_steps": 0}
    return SftConfig(**{**sizes, "learning_rate": 1e-2, "weight_decay": 0.0, "max_grad_norm": 1e9, **changes})


def tune(model: LanguageModel, pairs: Pairs = PAIRS, **changes: Any) -> list[SftStep]:
    return fine_tune(model, pairs, settings(**changes), lambda done: None, lambda: False)


def by_hand(model: LanguageModel, pairs: Pairs) -> tuple[float, float]:
    """Mean loss a completion token and the norm of its gradient: unpadded rows, one prediction at a time."""
    model.model.zero_grad()
    losses: list[torch.Tensor] = []
    for prompt, completion in pairs:
        for place, token in enumerate(completion):
            logits = model.model(input_ids=torch.tensor([[*prompt, *completion[:place]]])).logits[0, -1]
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(token)))
    loss = torch.stack(losses).mean()
    loss.backward()
    norm = math.sqrt(sum(float(weight.grad.square().sum()) for weight in model.model.parameters() if weight.grad is not None))
    model.model.zero_grad()
    return float(loss.detach()), norm


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_loss_is_that_of_completion_tokens_alone(architecture: str) -> None:
    model = language_model(tiny_llama() if architecture == "llama" else tiny_gpt2(dropout=0.0))
    expected = by_hand(model, PAIRS)
    (step,) = tune(model)
    assert (step.loss, step.grad_norm) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("size", [1, 2])
def test_splitting_a_batch_leaves_the_weights_unchanged(size: int) -> None:
    whole, split = (language_model(tiny_llama().double()) for _ in range(2))
    first, second = tune(whole, steps=3), tune(split, steps=3, micro_batch_size=size)
    for a, b in zip(first, second, strict=True):
        assert (a.loss, a.grad_norm) == pytest.approx((b.loss, b.grad_norm), abs=1e-9)
    for a, b in zip(whole.model.parameters(), split.model.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-9)


def test_it_learns_three_demonstrations_by_heart() -> None:
    history = tune(language_model(tiny_llama(spread=0.1)), steps=60, learning_rate=3e-2)
    assert history[0].loss > 2
    assert history[-1].loss < 0.3
    assert [step.step for step in history] == list(range(1, 61))


def test_every_demonstration_comes_once_an_epoch() -> None:
    model, seen = language_model(tiny_llama()), []
    many: Pairs = [([1, 8 + i], [8 + i, 2]) for i in range(6)]
    model.model.register_forward_pre_hook(lambda module, args, given: seen.extend(given["input_ids"][:, 1].tolist()), with_kwargs=True)
    tune(model, many, steps=6, batch_size=2, micro_batch_size=1)
    assert sorted(seen[:6]) == sorted(seen[6:]) == list(range(8, 14))
    assert seen[:6] != seen[6:]


def test_a_gradient_is_clipped_to_the_norm_asked_for() -> None:
    model, plain = language_model(tiny_llama()), language_model(tiny_llama())
    before = [weight.detach().clone() for weight in model.model.parameters()]
    clipped, free = tune(model, max_grad_norm=1e-9), tune(plain)
    assert clipped[0].grad_norm == free[0].grad_norm > 1e-3, "the norm is that before clipping"
    moved = [float((a.detach() - b).abs().max()) for a, b in zip(model.model.parameters(), before, strict=True)]
    assert max(moved) < 1e-2, "Adam's epsilon swallows a gradient this small"


def test_the_learning_rate_warms_up_and_falls_along_a_cosine() -> None:
    config = settings(steps=101, warmup_steps=4, learning_rate=1.0, final_learning_rate_fraction=0.1)
    assert [learning_rate_at(step, config) for step in (51, 101)] == pytest.approx([0.55, 0.1])
    rates = [learning_rate_at(step, config) for step in range(1, 102)]
    assert rates[:3] == pytest.approx([0.25, 0.5, 0.75], rel=1e-2)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert learning_rate_at(1, settings(steps=1, learning_rate=1.0)) == 1.0
    (step,) = tune(language_model(tiny_llama()), warmup_steps=10, learning_rate=1.0)
    assert step.learning_rate == pytest.approx(0.1)


def test_the_seed_gives_the_order_and_nothing_else_does() -> None:
    def digest(seed: int) -> str:
        model = language_model(tiny_llama())
        torch.manual_seed(len(digests))
        tune(model, [([1, 8 + i], [8 + i, 2]) for i in range(6)], steps=3, batch_size=1, seed=seed)
        return policy_digest(model.model)

    digests: list[str] = []
    for seed in (0, 0, 1):
        digests.append(digest(seed))
    assert digests[0] == digests[1] != digests[2]


def test_asked_to_stop_it_stops_after_the_step() -> None:
    heard: list[int] = []
    with pytest.raises(Interrupted, match="interrupted before anything could be kept"):
        fine_tune(language_model(tiny_llama()), PAIRS, settings(steps=9), lambda done: heard.append(done.step), lambda: len(heard) == 2)
    assert heard == [1, 2]
    assert len(fine_tune(language_model(tiny_llama()), PAIRS, settings(steps=1), lambda done: None, lambda: True)) == 1, "a run that is done is not interrupted"


def test_a_loss_that_is_no_number_stops_before_the_weights() -> None:
    model = language_model(tiny_llama())
    with torch.no_grad():
        model.model.lm_head.weight[9] = torch.inf
    before = policy_digest(model.model)
    with pytest.raises(DivergedError, match=r"supervised fine-tuning diverged at step 1 .*lower sft.learning_rate"):
        tune(model)
    assert policy_digest(model.model) == before


def test_demonstrations_are_the_sft_rows_that_have_a_completion() -> None:
    table = prompts_table(sft=3)
    table = table.with_columns(completion=pl.when(pl.col("prompt") == table.filter(pl.col("split") == "sft")["prompt"][1]).then(None).otherwise("completion"))
    model = language_model(tiny_llama())
    rows = table.filter(pl.col("split") == "sft")[[0, 2]]
    expected = [(encode_prompt(model.tokenizer, p, None), encode_completion(model.tokenizer, c)) for p, c in rows.select("prompt", "completion").iter_rows()]
    pairs = demonstrations(model, table)
    assert pairs == expected
    assert ends(pairs) == {2}


def ends(pairs: Sequence[tuple[list[int], list[int]]]) -> set[int]:
    return {completion[-1] for _, completion in pairs}


@pytest.mark.parametrize("lost", ["split", "completion"])
def test_without_demonstrations_the_error_says_what_to_do(lost: str) -> None:
    gone = pl.lit("train") if lost == "split" else pl.lit(None, dtype=pl.String)
    table = prompts_table().with_columns(gone.alias(lost))
    with pytest.raises(
        ValueError, match=r"no prompt of the sft split has a completion: give demonstrations \(prompts.completion_column\) or set sft.steps to 0"
    ):
        demonstrations(language_model(tiny_llama()), table)


def test_a_demonstration_longer_than_the_model_is_named() -> None:
    table = prompts_table(sft=3)
    long = table.filter(pl.col("split") == "sft")[1]
    table = table.with_columns(completion=pl.when(pl.col("prompt_id") == long["prompt_id"][0]).then(pl.lit("1" * 60)).otherwise("completion"))
    with pytest.raises(ValueError, match=f"prompt {long['prompt_id'][0]} and its completion have 67 tokens, the model takes 48: shorten it or leave it out"):
        demonstrations(language_model(tiny_llama()), table)
