"""Sampling against a plain loop that has no cache, no padding and no batch, and against a distribution known in closed form."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from grpo_core.logprobs import completion_logprobs
from grpo_core.models import load_model
from grpo_core.randomness import uniforms
from grpo_core.sampling import Completion, inverse_cdf, sample
from grpo_core.token_batch import token_batch
from tests.tiny_models import EOS, TINY, fixed_logits, save, tiny_gpt2, tiny_llama

PROMPTS = [[1, 8, 9], [1, 10, 11, 12, 13, 14, 15], [1, 16], [1, 9, 18, 10, 19, 3, 4], [1, 12, 12, 12, 12]]
ARCHITECTURES = pytest.mark.parametrize("make", [tiny_llama, lambda: tiny_gpt2(dropout=0.0)], ids=["llama", "gpt2"])
LIMIT = 12
ENDS = frozenset({EOS, 9, 14})


def numbers(prompt: int, completion: int, length: int = LIMIT) -> np.ndarray:
    return uniforms(length, "test", prompt, completion)


def draw(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    group_size: int = 4,
    temperature: float = 0.7,
    eos_ids: frozenset[int] = ENDS,
    batch_size: int = 64,
    uniforms: Callable[[int, int], np.ndarray] = numbers,
    limit: int = LIMIT,
) -> list[list[Completion]]:
    return sample(
        model, prompts, group_size=group_size, max_new_tokens=limit, temperature=temperature, eos_ids=eos_ids, uniforms=uniforms, batch_size=batch_size
    )


@torch.no_grad()
def plain_loop(model: PreTrainedModel, prompt: Sequence[int], temperature: float, draws: np.ndarray, eos_ids: frozenset[int] = ENDS) -> Completion:
    """One completion the slow way: the whole text through the model for every token."""
    ids, completion = list(prompt), Completion()
    for number in draws:
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1].double()
        probabilities = (logits / (temperature or 1.0)).softmax(-1).numpy()
        token = int(probabilities.argmax()) if temperature == 0 else int(np.argmax(np.cumsum(probabilities) > number))
        ids.append(token)
        completion.token_ids.append(token)
        completion.logprobs.append(math.log(probabilities[token]))
        if token in eos_ids:
            completion.finish_reason = "eos"
            break
    return completion


def tokens(groups: list[list[Completion]]) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in group] for group in groups]


@ARCHITECTURES
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_every_completion_is_that_of_a_plain_loop_without_cache(make: Callable[[], PreTrainedModel], temperature: float) -> None:
    model = make().eval()
    groups = draw(model, temperature=temperature)
    for p, group in enumerate(groups):
        for g, completion in enumerate(group):
            expected = plain_loop(model, PROMPTS[p], temperature, numbers(p, g))
            assert completion.token_ids == expected.token_ids
            assert completion.finish_reason == expected.finish_reason
            assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    if temperature:
        completions = [completion for group in groups for completion in group]
        assert {c.finish_reason for c in completions} == {"eos", "length"}
        assert len({len(c.token_ids) for c in completions}) >= 5, "rows must finish at different times for this test to mean something"


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2], ids=["llama", "gpt2 with dropout"])
def test_sampler_and_trainer_give_the_same_logprobs(make: Callable[[], PreTrainedModel], temperature: float, tmp_path: Path) -> None:
    policy = load_model(save(make(), tmp_path / "model"), TINY).model.train()
    groups = draw(policy, temperature=temperature)
    prompts = [prompt for prompt in PROMPTS for _ in range(4)]
    completions = [completion for group in groups for completion in group]
    batch = token_batch(prompts, [c.token_ids for c in completions])
    logprobs = completion_logprobs(policy, batch, temperature)
    for row, completion in enumerate(completions):
        assert logprobs[row][batch.mask[row]].tolist() == pytest.approx(completion.logprobs, abs=1e-4)


@ARCHITECTURES
def test_a_completion_does_not_depend_on_batch_size_or_neighbours(make: Callable[[], PreTrainedModel]) -> None:
    model = make().eval()
    together = tokens(draw(model))
    assert tokens(draw(model, batch_size=4)) == together
    assert tokens(draw(model, batch_size=1)) == together, "a group is never split"
    order = [3, 0, 4]
    assert tokens(draw(model, [PROMPTS[p] for p in order], uniforms=lambda p, g: numbers(order[p], g))) == [together[p] for p in order]
    assert [group[:2] for group in together] == tokens(draw(model, group_size=2))


def test_a_longer_limit_only_adds_tokens() -> None:
    model = tiny_llama().eval()
    short, long = tokens(draw(model, limit=5)), tokens(draw(model, limit=12, uniforms=lambda p, g: numbers(p, g, 12)))
    assert short == [[ids[:5] for ids in group] for group in long]


def test_the_first_eos_is_kept_and_nothing_follows_it() -> None:
    for completion in (c for group in draw(tiny_llama().eval()) for c in group):
        ended = completion.token_ids[-1] in ENDS
        assert not ENDS & set(completion.token_ids[:-1])
        assert completion.finish_reason == ("eos" if ended else "length")
        assert ended or len(completion.token_ids) == LIMIT
        assert len(completion.logprobs) == len(completion.token_ids)


def test_an_eos_at_the_very_last_position_ends_by_eos() -> None:
    model = fixed_logits([0.0, 0.0])
    (group,) = draw(model, [[0]], group_size=2, temperature=1.0, eos_ids=frozenset({1}), limit=3, uniforms=lambda p, g: np.array([0.1, 0.1, 0.9 if g else 0.1]))
    assert [(c.token_ids, c.finish_reason) for c in group] == [([0, 0, 0], "length"), ([0, 0, 1], "eos")]


def test_each_of_several_eos_ids_ends_a_completion() -> None:
    model = fixed_logits([0.0, 0.0, 0.0, 0.0])
    first = [0.1, 0.3, 0.6, 0.9]
    (group,) = draw(
        model, [[0]], temperature=1.0, eos_ids=frozenset({1, 3}), limit=2, uniforms=lambda p, g: np.array([first[g], 0.1])
    )  # fmt: skip
    assert [c.token_ids for c in group] == [[0, 0], [1], [2, 0], [3]]


def test_a_sampled_pad_id_is_a_token_like_any_other() -> None:
    model = fixed_logits([0.0, 0.0, 0.0])
    model.config.pad_token_id = 0
    (group,) = draw(model, [[1, 1]], group_size=2, temperature=1.0, eos_ids=frozenset({2}), limit=4, uniforms=lambda p, g: np.array([0.1, 0.5, 0.2, 0.9]))
    assert [c.token_ids for c in group] == [[0, 1, 0, 2]] * 2


def test_pad_may_be_the_eos() -> None:
    model = tiny_gpt2(dropout=0.0, pad_token_id=EOS).eval()
    for p, group in enumerate(draw(model, [[EOS, *prompt[1:]] for prompt in PROMPTS], eos_ids=frozenset({EOS, 9}))):
        for g, completion in enumerate(group):
            assert completion.token_ids == plain_loop(model, [EOS, *PROMPTS[p][1:]], 0.7, numbers(p, g), frozenset({EOS, 9})).token_ids


def test_temperature_one_half_samples_from_the_tempered_distribution() -> None:
    grid = (np.arange(1000) + 0.5) / 1000
    (group,) = draw(
        fixed_logits([2.0, 1.0, 0.0]), [[0]], group_size=1000, temperature=0.5, eos_ids=frozenset(), limit=1, uniforms=lambda p, g: grid[g : g + 1]
    )  # fmt: skip
    tempered = np.exp([4.0, 2.0, 0.0]) / np.exp([4.0, 2.0, 0.0]).sum()
    drawn = np.array([completion.token_ids[0] for completion in group])
    assert drawn.tolist() == np.searchsorted(np.cumsum(tempered), grid, side="right").tolist()
    assert np.bincount(drawn, minlength=3).tolist() == [867, 117, 16]


def test_the_logprobs_are_those_of_the_tempered_distribution() -> None:
    (group,) = draw(
        fixed_logits([2.0, 1.0, 0.0]), [[0]], group_size=3, temperature=0.5, eos_ids=frozenset(), limit=1, uniforms=lambda p, g: np.array([[0.5, 0.9, 0.99][g]])
    )  # fmt: skip
    assert [c.token_ids for c in group] == [[0], [1], [2]]
    assert [c.logprobs[0] for c in group] == pytest.approx([-0.142932, -2.142932, -4.142932], abs=1e-6)


def test_greedy_logprobs_are_untempered() -> None:
    (group,) = draw(fixed_logits([2.0, 1.0, 0.0]), [[0]], group_size=1, temperature=0.0, eos_ids=frozenset(), limit=1)
    assert group[0].logprobs == pytest.approx([-0.407606], abs=1e-6)


def test_greedy_asks_for_no_random_numbers() -> None:
    def refuse(prompt: int, completion: int) -> np.ndarray:
        raise AssertionError("greedy decoding draws nothing")

    assert tokens(draw(tiny_llama().eval(), temperature=0.0, uniforms=refuse))


def test_the_models_own_generation_config_is_ignored() -> None:
    model = tiny_llama().eval()
    before = draw(model)
    settings = model.generation_config
    assert settings is not None
    settings.update(do_sample=True, temperature=0.01, top_k=1, top_p=0.1, repetition_penalty=9.0, max_new_tokens=1, eos_token_id=8, min_length=3)
    assert draw(model) == before


def test_the_inverse_cdf_never_gives_a_token_of_probability_zero() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(4, -1)
    drawn = inverse_cdf(logits, 1.0, torch.tensor([0.0, 0.4999, 0.5, 1 - 2**-53], dtype=torch.float64))
    assert drawn.tolist() == [1, 1, 3, 3]


def test_the_inverse_cdf_is_exact_to_double_precision() -> None:
    boundary = 1 / (1 + math.exp(1.0001 / 0.7))
    numbers = torch.tensor([boundary - 1e-12, boundary + 1e-12], dtype=torch.float64)
    assert inverse_cdf(torch.tensor([[0.0, 1.0001]], dtype=torch.float64).expand(2, -1), 0.7, numbers).tolist() == [0, 1]


def test_the_inverse_cdf_tells_a_hundred_thousand_tokens_apart() -> None:
    size = 100_000
    numbers = (torch.arange(0, size, 9973, dtype=torch.float64) + 0.5) / size
    assert inverse_cdf(torch.zeros(len(numbers), size), 1.0, numbers).tolist() == list(range(0, size, 9973))


def test_progress_adds_up_to_all_completions() -> None:
    heard: list[int] = []
    sample(
        tiny_llama().eval(), PROMPTS, group_size=4, max_new_tokens=3, temperature=1.0, eos_ids=ENDS, uniforms=lambda p, g: numbers(p, g, 3), batch_size=8,
        on_batch=heard.append,
    )  # fmt: skip
    assert heard == [8, 8, 4]
