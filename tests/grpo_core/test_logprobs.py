import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from grpo_core.config import ModelConfig
from grpo_core.logprobs import completion_distributions, completion_logprobs, entropy, pick, tempered_logprobs
from grpo_core.models import LanguageModel, freeze, load_model
from grpo_core.sampling import sample
from grpo_core.token_batch import token_batch
from tests.golden import GOLDEN
from tests.grpo_core.tiny_minibatch import COMPLETIONS, PROMPTS, policy
from tests.tiny_models import save, tiny_gpt2

HAND = GOLDEN["temperature_logprobs"]
LOGITS = torch.tensor(HAND["logits"], dtype=torch.float64)


@pytest.mark.parametrize("temperature", HAND["logp"])
def test_logprobs_are_those_of_the_tempered_distribution(temperature: str) -> None:
    logits = LOGITS.clone().requires_grad_()
    logprobs = tempered_logprobs(logits, float(temperature))
    (gradient,) = torch.autograd.grad(logprobs[0], logits)
    assert logprobs.tolist() == pytest.approx(HAND["logp"][temperature], abs=1e-12)
    assert float(gradient[0]) == pytest.approx(HAND["d_logp0_d_logit0"][temperature], abs=1e-9)


def test_entropy_is_in_nats_and_a_token_of_probability_0_adds_nothing() -> None:
    assert float(entropy(tempered_logprobs(LOGITS, 1.0))) == pytest.approx(HAND["entropy_T1"], abs=1e-12)
    assert float(entropy(torch.tensor([0.0, -math.inf]))) == 0.0
    assert entropy(torch.full((2, 8), -math.log(8), dtype=torch.float64)).tolist() == pytest.approx([math.log(8)] * 2)


def test_half_precision_logits_are_normalised_in_float32() -> None:
    logits = torch.tensor([[10.0, 9.875, -5.0]], dtype=torch.bfloat16)
    logprobs = tempered_logprobs(logits, 0.7)
    assert logprobs.dtype == torch.float32
    assert logprobs[0].tolist() == pytest.approx(tempered_logprobs(logits.double(), 0.7)[0].tolist(), abs=1e-5)


def test_pick_takes_the_entry_that_each_token_names() -> None:
    values = torch.arange(12.0).view(2, 2, 3)
    assert pick(values, torch.tensor([[0, 2], [1, 1]])).tolist() == [[0.0, 5.0], [7.0, 10.0]]


def one_by_one(prompt: list[int], completion: list[int], temperature: float) -> list[float]:
    """The brute-force way: one unpadded row, one forward a token, nothing cut from the head."""
    model, found = policy(), []
    for place, token in enumerate(completion):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + completion[:place]])).logits[0, -1]
        found.append(float(torch.log_softmax(logits / temperature, dim=-1)[token]))
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_left_padded_prompts_score_as_unpadded_ones_where_positions_are_absolute(temperature: float) -> None:
    batch = token_batch(PROMPTS, COMPLETIONS)
    with torch.no_grad():
        together = completion_logprobs(policy(), batch, temperature)
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        assert together[row][batch.mask[row]].tolist() == pytest.approx(one_by_one(prompt, completion, temperature), abs=1e-12)


def test_completion_distributions_are_distributions_over_the_vocabulary_at_every_completion_position() -> None:
    batch = token_batch(PROMPTS, COMPLETIONS)
    with torch.no_grad():
        distributions = completion_distributions(policy(), batch, 1.0)
    assert distributions.shape == (5, 5, policy().config.vocab_size)
    assert distributions.exp().sum(dim=-1)[batch.mask].tolist() == pytest.approx([1.0] * int(batch.mask.sum()))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampler_and_trainer_agree_on_every_logprob(temperature: float) -> None:
    model = policy().float()
    uniforms = np.random.default_rng(0).random((len(PROMPTS), 4, 8))
    groups = sample(
        model, PROMPTS, group_size=4, max_new_tokens=8, temperature=temperature, eos_ids=frozenset({1}), batch_size=12, uniforms=lambda p, g: uniforms[p, g]
    )
    completions = [completion for group in groups for completion in group]
    batch = token_batch([prompt for prompt in PROMPTS for _ in range(4)], [c.token_ids for c in completions])
    with torch.no_grad():
        scored = completion_logprobs(model, batch, temperature)
    assert len({len(c.token_ids) for c in completions}) > 2
    assert scored[batch.mask].tolist() == pytest.approx([value for c in completions for value in c.logprobs], abs=1e-4)


def test_before_the_first_update_kl_is_0_and_the_ratio_1_though_the_model_asks_for_dropout(tmp_path: Path) -> None:
    asked = save(tiny_gpt2(dropout=0.1), tmp_path / "start")
    assert json.loads((asked / "config.json").read_text())["attn_pdrop"] == 0.1
    start, reference = load_model(asked, ModelConfig(device="cpu")), freeze(load_model(asked, ModelConfig(device="cpu")))
    start.model.train()
    tokens, sampling_logprobs = drawn(start)
    batch = token_batch(PROMPTS, tokens)
    logprobs, again, ref_logprobs = (completion_logprobs(model, batch, 1.0).detach()[batch.mask] for model in (start.model, start.model, reference.model))
    assert start.model.training
    assert logprobs.tolist() == again.tolist() == ref_logprobs.tolist()
    ratio = (logprobs - torch.tensor([value for row in sampling_logprobs for value in row])).exp()
    assert ratio.tolist() == pytest.approx([1.0] * len(logprobs), abs=1e-4)


def drawn(start: LanguageModel) -> tuple[list[list[int]], list[list[float]]]:
    """One completion of every prompt, and the logprobs that the sampler kept."""
    numbers = np.random.default_rng(0).random((len(PROMPTS), 8))
    groups = sample(
        start.model, PROMPTS, group_size=1, max_new_tokens=8, temperature=1.0, eos_ids=start.eos_ids, batch_size=8, uniforms=lambda p, g: numbers[p]
    )
    return [group[0].token_ids for group in groups], [group[0].logprobs for group in groups]
