"""A reward model of the embedded addition task, small enough to train on two cores, as a Hugging Face folder.

    python bench/tiny_reward_model.py models/addition_reward_model [--digits 3] [--steps 4000]

It learns from pairs, a right completion and a wrong one of the same prompt (Bradley-Terry), and to predict the tokens of the right one,
without which so small a model does not find out what the digits have to do with each other. Prints its accuracy on pairs of prompts that
it was not trained on. Takes two minutes on an idle core.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, logsigmoid
from transformers import LlamaConfig, LlamaForSequenceClassification

from grpo_core.addition import addition_tokenizer, generate, worked_steps
from grpo_core.rewards.reward_model import reward_model

LEARNING_RATE = 6e-3
PAIRS_A_STEP = 16
PAD = 0

Pair = tuple[str, str, str]
"""Prompt, right completion, wrong completion."""


def pairs(num: int, num_digits: int, seed: int, *, worked: float = 0.75) -> list[Pair]:
    """Pairs for `num` prompts. The right completion shows its work; the wrong one has a wrong digit in its answer, and a share `worked` of them work."""
    draw = random.Random(seed)
    return [_pair(row["prompt"], row["answer"], num_digits, draw.random() < worked, draw) for row in generate(num, num_digits, seed).iter_rows(named=True)]


def _pair(prompt: str, answer: str, num_digits: int, is_worked: bool, draw: random.Random) -> Pair:
    first, second = map(int, prompt.strip("=").split("+"))
    work, _ = worked_steps(first, second, num_digits)
    at = draw.randrange(len(answer))
    wrong = answer[:at] + draw.choice([digit for digit in "0123456789" if digit != answer[at]]) + answer[at + 1 :]
    return prompt, f"<think>{work}</think><answer>{answer}</answer>", f"<think>{work if is_worked else ''}</think><answer>{wrong}</answer>"


def train(
    examples: Sequence[Pair], *, steps: int, seed: int = 0, hidden_size: int = 48, on_step: Callable[[int, float], None] = lambda step, loss: None
) -> LlamaForSequenceClassification:
    """A reward model trained on `examples`; `on_step` hears of every step and its Bradley-Terry loss."""
    tokenizer = addition_tokenizer()
    torch.manual_seed(seed)
    settings = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden_size, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=2 * hidden_size, max_position_embeddings=128, num_labels=1,
        pad_token_id=PAD, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    judge = LlamaForSequenceClassification(settings)
    next_token = torch.nn.Linear(hidden_size, len(tokenizer), bias=False)
    weights = [*judge.parameters(), *next_token.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    draw = random.Random(seed)
    for step in range(1, steps + 1):
        batch = draw.sample(examples, PAIRS_A_STEP)
        rights, wrongs = ([tokenizer(example[0] + example[side])["input_ids"] for example in batch] for side in (1, 2))
        preference, prediction = _losses(judge, next_token, [*rights, *wrongs])
        (preference + prediction).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        on_step(step, preference.item())
    return judge


def _losses(judge: LlamaForSequenceClassification, next_token: torch.nn.Linear, texts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Bradley-Terry loss of right texts (the first half) against wrong ones, and cross entropy of the right ones' tokens."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True, padding_value=PAD)
    hidden = judge.model(input_ids=ids, attention_mask=(ids != PAD).long()).last_hidden_state
    last = torch.tensor([len(text) - 1 for text in texts])
    right, wrong = judge.score(hidden[torch.arange(len(texts)), last])[:, 0].chunk(2)
    logits, tokens = next_token(hidden.chunk(2)[0][:, :-1]), ids.chunk(2)[0][:, 1:]
    return -logsigmoid(right - wrong).mean(), cross_entropy(logits.flatten(0, 1), tokens.flatten(), ignore_index=PAD)


def save(judge: LlamaForSequenceClassification, folder: Path) -> None:
    """The reward model and its tokenizer, as `reward_model` reads them."""
    judge.save_pretrained(folder)
    addition_tokenizer().save_pretrained(folder)


def accuracy(folder: Path, examples: Sequence[Pair]) -> float:
    """Share of pairs whose right completion the reward model in `folder` scores higher; rounded alike counts as half."""
    prompts = [prompt for prompt, _, _ in examples]
    rights, wrongs = (reward_model(prompts, [example[side] for example in examples], path=str(folder), batch_size=64) for side in (1, 2))
    gaps = [right - wrong for right, wrong in zip(rights, wrongs, strict=True) if isinstance(right, float) and isinstance(wrong, float)]
    return sum(1.0 if gap > 0 else 0.5 * (gap == 0) for gap in gaps) / len(examples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--digits", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4000)
    options = parser.parse_args()

    def tell(step: int, loss: float) -> None:
        if step % 200 == 0:
            print(f"step {step} of {options.steps}: loss {loss:.3f}", flush=True)

    examples = pairs(5000, options.digits, seed=1)
    save(train(examples[:4000], steps=options.steps, on_step=tell), options.folder)
    trained_on = {prompt for prompt, _, _ in examples[:4000]}
    heldout = [example for example in pairs(1200, options.digits, seed=2, worked=1.0) if example[0] not in trained_on][:1000]
    print(f"wrong digit behind the right work: {accuracy(options.folder, heldout):.3f} of {len(heldout)} held-out pairs ordered right")
    direct = [example for example in pairs(1200, options.digits, seed=3, worked=0.0) if example[0] not in trained_on][:1000]
    print(f"wrong digit and no work: {accuracy(options.folder, direct):.3f} of {len(direct)}")


if __name__ == "__main__":
    main()
