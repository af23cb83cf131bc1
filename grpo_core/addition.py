"""The embedded task: addition with carries, whose demonstrations mix worked answers with direct ones that are nearly always wrong to imitate.

A model fine-tuned on the mixture answers directly too often; GRPO discovers that showing work pays. The direct answer is the
commoner one when the prompt starts with 1 to 5 and the rarer one otherwise, so both habits are learned.
"""

import hashlib
import random

import polars as pl
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
CHARACTERS = "0123456789+-*=,;: ?"
DIRECT_SHARE_LOW_DIGIT = 0.75
"""Share of direct answers among prompts that start with 1 to 5; the others have the rest."""


def worked_steps(first: int, second: int, num_digits: int) -> tuple[str, int]:
    """Schoolbook addition from the last digit on, `digit+digit+carry=sum` each, and how many steps carried."""
    steps, carry, num_carries = [], 0, 0
    for place in range(num_digits):
        a, b = first // 10**place % 10, second // 10**place % 10
        total = a + b + carry
        steps.append(f"{a}+{b}+{carry}={total:02d}")
        carry = total // 10
        num_carries += carry
    return ";".join(steps), num_carries


def answers_directly(prompt: str, seed: int) -> bool:
    """Whether the demonstration of `prompt` skips the work: a function of seed and prompt, never of other rows."""
    share = DIRECT_SHARE_LOW_DIGIT if prompt[0] in "12345" else 1 - DIRECT_SHARE_LOW_DIGIT
    digest = hashlib.sha256(f"demonstration\n{seed}\n{prompt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _row(first: int, second: int, num_digits: int, seed: int) -> dict[str, str]:
    prompt = f"{first}+{second}="
    steps, num_carries = worked_steps(first, second, num_digits)
    work = "" if answers_directly(prompt, seed) else steps
    return {
        "prompt": prompt,
        "answer": str(first + second),
        "completion": f"<think>{work}</think><answer>{first + second}</answer>",
        "difficulty": "1 carry" if num_carries == 1 else f"{num_carries} carries",
        "task": "addition",
    }


def generate(num: int, num_digits: int, seed: int) -> pl.DataFrame:
    """`num` different prompts `335+194=` with answer, completion, difficulty (its carries) and task; a longer table starts with the shorter one."""
    low, high = 10 ** (num_digits - 1), 10**num_digits
    if num > (high - low) ** 2:
        raise ValueError(
            f"prompts.num_generated must be at most {(high - low) ** 2} (pairs of {num_digits}-digit numbers), got {num}; lower it or raise prompts.num_digits"
        )
    draw = random.Random(seed)
    pairs: dict[tuple[int, int], None] = {}
    while len(pairs) < num:
        pairs[draw.randrange(low, high), draw.randrange(low, high)] = None
    return pl.DataFrame([_row(first, second, num_digits, seed) for first, second in pairs])


def addition_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character and a tag, `<bos>` put first by the tokenizer itself; what the task never uses is `<unk>`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *TAGS, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"</?(?:think|answer)>|[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
