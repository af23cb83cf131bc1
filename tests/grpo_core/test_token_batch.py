import re

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

from grpo_core.sampling import Completion, sample
from grpo_core.token_batch import padded, token_batch
from tests.golden import GOLDEN
from tests.tiny_models import tiny_gpt2


def test_prompts_are_padded_on_the_left_and_completions_on_the_right() -> None:
    batch = token_batch([[5, 6, 7], [8]], [[1], [2, 3]])
    assert batch.input_ids.tolist() == [[5, 6, 7, 1, 0], [0, 0, 8, 2, 3]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert batch.tokens.tolist() == [[1, 0], [2, 3]]
    assert batch.mask.tolist() == [[True, False], [True, True]]


def test_positions_count_real_tokens_only() -> None:
    batch = token_batch([[5, 6, 7], [8]], [[1, 9], [2, 3]])
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]]


def test_a_token_that_looks_like_padding_or_eos_is_masked_by_length_alone() -> None:
    batch = token_batch([[0, 0], [1]], [[0, 1, 0], [1]])
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [0, 1, 1, 0, 0]]
    assert batch.mask.tolist() == [[True, True, True], [True, False, False]]


def test_an_empty_completion_is_a_row_without_trained_tokens() -> None:
    assert token_batch([[5], [6]], [[], [7, 8]]).mask.tolist() == [[False, False], [True, True]]
    alone = token_batch([[5]], [[]])
    assert (alone.input_ids.tolist(), alone.attention_mask.tolist(), alone.mask.tolist()) == ([[5, 0]], [[1, 0]], [[False]])


def test_every_prompt_has_its_completion() -> None:
    with pytest.raises(ValueError, match="argument"):
        token_batch([[5], [6]], [[1]])


def test_padded_rows_are_filled_with_zeros_on_the_right() -> None:
    found = padded([[-0.5, -0.25], [], [-1.0]], 3, torch.float32)
    assert found.tolist() == [[-0.5, -0.25, 0.0], [0.0] * 3, [-1.0, 0.0, 0.0]]
    assert found.dtype == torch.float32


def scripted(tokens: list[int]) -> GPT2LMHeadModel:
    """A model that says `tokens` after a prompt of one token: its layers are off, and its position alone chooses the next token."""
    model = tiny_gpt2(dropout=0.0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".ln_" not in name:
                weight.zero_()
        for position, token in enumerate(tokens):
            model.transformer.wpe.weight[position, position] = 1e3
            model.transformer.wte.weight[token, position] = 1.0
    return model


def greedy(tokens: list[int], eos: frozenset[int]) -> Completion:
    """What the sampler keeps of a model that says `tokens`; greedy decoding asks for no random numbers."""
    groups = sample(
        scripted(tokens), [[2]], group_size=1, max_new_tokens=len(tokens), temperature=0.0, eos_ids=eos, batch_size=1, uniforms=lambda p, g: np.zeros(0)
    )
    return groups[0][0]


def numbers(pattern: str, text: str) -> list[int]:
    found = re.search(pattern, text)
    assert found is not None
    return [int(number) for number in found[1].split(",")]


@pytest.mark.parametrize("case", [case for case in GOLDEN["eos_mask"] if not case.startswith("[]")])
def test_a_completion_ends_at_its_first_eos_which_is_trained_and_a_sampled_pad_is_no_end(case: str) -> None:
    said, eos = numbers(r"\[(.*)\]", case), numbers(r"eos=(?:pad=)?\{?([\d,]+)", case)
    completion, expected = greedy(said, frozenset(eos)), GOLDEN["eos_mask"][case]
    batch = token_batch([[2], [2]], [completion.token_ids, [9] * len(said)])
    assert completion.token_ids == said[: expected["length"]]
    assert batch.mask[0].int().tolist() == expected["mask"]
    assert (completion.finish_reason == "eos") == expected["terminated"]
