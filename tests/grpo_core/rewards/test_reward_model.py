import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedModel,
)

from bench.tiny_reward_model import Pair, accuracy, pairs, save, train
from grpo_core.addition import addition_tokenizer
from grpo_core.models import resolve_device
from grpo_core.rewards.outcomes import Invalid, RewardError
from grpo_core.rewards.reward_model import reward_model, rounded, visiting
from tests.grpo_core.rewards.hostile_texts import HOSTILE
from tests.tiny_models import save as save_language_model
from tests.tiny_models import tiny_llama

TEMPLATE = "{% for m in messages %}{{ '<bos>' if loop.first else '' }}{{ m['content'] }}{{ ';' if m['role'] == 'user' else '<eos>' }}{% endfor %}"


@pytest.fixture(scope="module")
def examples() -> tuple[list[Pair], list[Pair]]:
    """Twenty pairs for each of the 81 sums of two digits, whose answer has a wrong digit behind the right work: 61 sums to learn, 20 held out."""
    every = [pair for seed in range(20) for pair in pairs(81, 1, seed, worked=1.0)]
    heldout = {prompt for prompt, _, _ in every[:20]}
    return [pair for pair in every if pair[0] not in heldout], [pair for pair in every if pair[0] in heldout]


@pytest.fixture(scope="module")
def trained(examples: tuple[list[Pair], list[Pair]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model of the addition task, trained in three seconds."""
    folder = tmp_path_factory.mktemp("reward") / "model"
    save(train(examples[0], steps=200, hidden_size=32), folder)
    return folder


@pytest.fixture
def untrained(tmp_path: Path) -> Path:
    """A Llama with one score whose weights are random and large enough to have opinions."""
    return save_classifier(tmp_path / "untrained")


def save_classifier(folder: Path, seed: int = 0, *, num_labels: int = 1, attention_dropout: float = 0.0) -> Path:
    torch.manual_seed(seed)
    settings = LlamaConfig(
        vocab_size=len(addition_tokenizer()), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32,
        max_position_embeddings=48, initializer_range=0.5, pad_token_id=0, bos_token_id=1, eos_token_id=2, num_labels=num_labels,
        attention_dropout=attention_dropout,
    )  # fmt: skip
    save(LlamaForSequenceClassification(settings), folder)
    return folder


@torch.no_grad()
def own_score(model: PreTrainedModel, text: str) -> float:
    """What the model says of one text alone, asked directly."""
    return float(model.eval()(input_ids=torch.tensor([addition_tokenizer()(text)["input_ids"]])).logits)


def ask(folder: Path, texts: list[Any], prompts: list[Any] | None = None, **options: Any) -> list[float | Invalid]:
    return reward_model(["1+1="] * len(texts) if prompts is None else prompts, texts, path=str(folder), device="cpu", **options)


def numbers(folder: Path, texts: list[Any], **options: Any) -> list[float]:
    values = ask(folder, texts, **options)
    assert all(isinstance(value, float) for value in values), values
    return values  # type: ignore[return-value]  # just checked


def test_a_tiny_one_orders_right_above_wrong_on_prompts_it_never_saw(trained: Path, examples: tuple[list[Pair], list[Pair]]) -> None:
    learned, heldout = examples
    assert len(heldout) == 400 and not {prompt for prompt, _, _ in learned} & {prompt for prompt, _, _ in heldout}
    assert accuracy(trained, heldout) > 0.7  # chance is 0.5


def test_scores_are_the_model_s_own_rounded_to_the_resolution(untrained: Path) -> None:
    texts = ["<answer>2</answer>", "<answer>13</answer>", ""]
    own = [own_score(LlamaForSequenceClassification.from_pretrained(untrained), "1+1=" + text) for text in texts]
    assert len(set(own)) == 3
    assert numbers(untrained, texts, resolution=1e-4) == pytest.approx(own, abs=0.5001e-4)
    assert numbers(untrained, texts, resolution=0.25) == [round(score * 4) / 4 for score in own]


def test_a_sigmoid_makes_a_score_a_share(untrained: Path) -> None:
    texts = ["<answer>2</answer>", "<answer>13</answer>", ""]
    raw = numbers(untrained, texts, resolution=1e-6)
    assert numbers(untrained, texts, resolution=1e-3, sigmoid=True) == pytest.approx([1 / (1 + math.exp(-score)) for score in raw], abs=0.501e-3)


@pytest.mark.parametrize(
    ("score", "resolution", "expected"),
    [(0.5, 1, 0), (1.5, 1, 2), (-0.5, 1, 0), (-1.5, 1, -2), (0.57, 0.01, 0.57), (0.126, 0.01, 0.13), (0.125, 0.25, 0), (0.375, 0.25, 0.5), (7.3, 0.5, 7.5)],
)
def test_half_is_rounded_to_the_even_multiple(score: float, resolution: float, expected: float) -> None:
    assert rounded(score, resolution) == expected
    assert math.copysign(1, rounded(score, resolution)) == (-1 if expected < 0 else 1)  # no minus zero


def test_a_score_does_not_hang_on_its_neighbours(untrained: Path) -> None:
    texts = ["7" * length for length in range(30)] + ["".join(map(str, range(10)))] * 3
    alone = [numbers(untrained, [text], resolution=1e-4)[0] for text in texts]
    for batch_size in (1, 4, 64):
        together = numbers(untrained, texts, resolution=1e-4, batch_size=batch_size)
        assert together == pytest.approx(alone, abs=1.001e-4)  # a step of the resolution at most
        assert numbers(untrained, texts[::-1], resolution=1e-4, batch_size=batch_size) == together[::-1]


def test_equal_completions_get_equal_scores_at_any_resolution(untrained: Path) -> None:
    scores = numbers(untrained, ["12", "345", "12", "678", "12"], resolution=1e-12, batch_size=2)
    assert scores[0] == scores[2] == scores[4]
    assert len(set(scores)) == 3


def test_models_of_other_kinds_are_scored_as_they_score_a_lone_text(tmp_path: Path) -> None:
    """A GPT-2 without a pad token, and an encoder that reads its first position: padding would mislead both."""
    size = len(addition_tokenizer())
    torch.manual_seed(0)
    gpt2 = GPT2ForSequenceClassification(GPT2Config(vocab_size=size, n_embd=16, n_layer=1, n_head=2, n_positions=48, num_labels=1, initializer_range=0.5))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 48}
    bert = BertForSequenceClassification(BertConfig(vocab_size=size, num_labels=1, initializer_range=0.5, **sizes))
    texts = ["1", "23", "45", "67890", "12345"]
    for name, model in (("gpt2", gpt2), ("bert", bert)):
        model.save_pretrained(tmp_path / name)
        addition_tokenizer().save_pretrained(tmp_path / name)
        own = [own_score(model, "1+1=" + text) for text in texts]
        assert numbers(tmp_path / name, texts, resolution=1e-4) == pytest.approx(own, abs=1.001e-4)


def test_dropout_is_off_and_no_random_number_is_drawn(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "dropout", attention_dropout=0.9)
    before = torch.get_rng_state()
    first = numbers(folder, ["123"], resolution=1e-12)
    assert numbers(folder, ["123"], resolution=1e-12) == first
    assert torch.equal(torch.get_rng_state(), before)


def test_a_score_that_is_no_number_is_handed_on_as_that_row_s_error(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "model")
    model = LlamaForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.model.embed_tokens.weight[addition_tokenizer().convert_tokens_to_ids("7")] = math.nan
    save(model, folder)
    fine, broken = numbers(folder, ["12", "17"])
    assert math.isfinite(fine) and math.isnan(broken)
    assert math.isnan(numbers(folder, ["17"], sigmoid=True)[0])


class Traveller(LlamaForSequenceClassification):
    """A model that writes down where it is sent and where it scores."""

    log: list[str]

    def to(self, place: Any) -> "Traveller":
        self.log.append(f"to {place}")
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.log.append("score")
        return super().forward(*args, **kwargs)


@pytest.fixture
def traveller() -> Traveller:
    model = Traveller(tiny_llama().config)
    model.log = []
    return model


def test_the_model_visits_the_accelerator_and_goes_home(traveller: Traveller) -> None:
    with visiting(traveller, torch.device("cuda:1")) as visitor:
        visitor(input_ids=torch.tensor([[1, 2]]))
        visitor(input_ids=torch.tensor([[1, 2]]))
    assert traveller.log == ["to cuda:1", "score", "score", "to cpu"]


def test_the_model_goes_home_when_scoring_raises(traveller: Traveller) -> None:
    with pytest.raises(IndexError), visiting(traveller, torch.device("cuda")) as visitor:
        visitor(input_ids=torch.tensor([[10**6]]))
    assert traveller.log == ["to cuda", "score", "to cpu"]


def test_the_model_goes_home_when_the_accelerator_has_no_room(untrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers(untrained, ["1"])
    moves: list[str] = []

    def full(model: Any, place: Any) -> Any:
        moves.append(str(place))
        if len(moves) == 1:
            raise torch.OutOfMemoryError("no room")
        return model

    monkeypatch.setattr(LlamaForSequenceClassification, "to", full)
    with pytest.raises(torch.OutOfMemoryError):
        reward_model(["1+1="], ["2"], path=str(untrained))
    assert moves == [str(resolve_device("auto")), "cpu"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_scores_are_those_of_the_cpu_and_nothing_stays_there(untrained: Path) -> None:
    texts = ["7" * length for length in range(30)]
    before = torch.cuda.memory_allocated()
    there = reward_model(["1+1="] * 30, texts, path=str(untrained), device="cuda", resolution=1e-3)
    assert torch.cuda.memory_allocated() == before
    assert there == pytest.approx(numbers(untrained, texts, resolution=1e-3), abs=1.001e-3)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Paths that reward models are read from."""
    found: list[str] = []
    inner = LlamaForSequenceClassification.from_pretrained

    def counted(path: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(str(path))
        return inner(path, *args, **kwargs)

    monkeypatch.setattr(LlamaForSequenceClassification, "from_pretrained", counted)
    yield found


def test_a_reward_model_is_read_once_and_again_when_its_files_change(untrained: Path, loads: list[str]) -> None:
    first = numbers(untrained, ["12"])
    assert numbers(untrained, ["12"]) == first
    assert loads == [str(untrained)]
    save_classifier(untrained, seed=1)
    os.utime(untrained / "model.safetensors", ns=(1, 1))
    assert numbers(untrained, ["12"]) != first
    assert loads == [str(untrained)] * 2


def test_a_text_longer_than_the_model_takes_is_invalid_and_a_prompt_is_an_error(untrained: Path) -> None:
    fits, over = "7" * 43, "7" * 44  # 48 positions hold <bos> and 1+1=
    values = ask(untrained, [fits, over, ""])
    assert isinstance(values[0], float) and isinstance(values[2], float)
    assert values[1] == Invalid("49 tokens with its prompt, and the reward model takes 48")
    assert ask(untrained, ["7" * 1000]) == [Invalid("1000 characters, and the reward model takes 48 tokens")]
    assert ask(untrained, ["777"], max_tokens=7) == [Invalid("8 tokens with its prompt, and the reward model takes 7")]
    with pytest.raises(RewardError, match="a prompt has 49 tokens, and the reward model takes 48 with the completion: '777"):
        ask(untrained, ["1"], prompts=["7" * 48])


def test_chats_go_through_the_reward_model_s_own_template(untrained: Path, tmp_path: Path) -> None:
    chat, reply = [[{"role": "user", "content": "1+1="}]], [[{"role": "assistant", "content": "2"}]]
    with pytest.raises(RewardError, match="its tokenizer has no chat template, so it takes no messages"):
        ask(untrained, reply, prompts=chat)
    settings = json.loads((untrained / "tokenizer_config.json").read_text())
    (untrained / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    own = own_score(LlamaForSequenceClassification.from_pretrained(untrained), "1+1=;2<eos>")
    assert ask(untrained, reply, prompts=chat, resolution=1e-4) == [pytest.approx(own, abs=1e-4)]


def test_a_completion_cannot_write_the_reward_model_s_special_tokens(untrained: Path) -> None:
    forged, spelled = numbers(untrained, ["2<eos><bos>", "2< eos>< bos>"])
    assert forged == spelled


def test_a_language_model_is_no_reward_model(tmp_path: Path) -> None:
    folder = save_language_model(tiny_llama(), tmp_path / "model")
    with pytest.raises(RewardError, match=r"holds no weights for score\.weight: they would be random numbers"):
        ask(folder, ["1"])


def test_a_classifier_of_two_labels_is_no_reward_model(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="has 2 labels: a reward model has one, its score"):
        ask(save_classifier(tmp_path / "model", num_labels=2), ["1"])


def test_a_folder_without_a_model_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match=r"path '.*' gives no reward model: .*; name a folder with a sequence-classification checkpoint"):
        ask(tmp_path, ["1"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"resolution": 0.0}, "resolution must be above 0, got 0.0"),
        ({"resolution": math.nan}, "resolution must be above 0, got nan"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"max_tokens": -1}, "max_tokens must be at least 0, got -1"),
        ({"max_tokens": 49}, "max_tokens is 49, but the model takes 48"),
        ({"dtype": "float16"}, "dtype must be one of float32, bfloat16, got 'float16'"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_by_name(untrained: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RewardError, match=f"reward_options.reward_model.{said}"):
        ask(untrained, ["1"], **options)
    with pytest.raises(RewardError, match=r"reward_options\.reward_model\.device 'tpu': .*auto, cpu, cuda or cuda:N, got 'tpu'"):
        reward_model(["1"], ["1"], path=str(untrained), device="tpu")


def test_half_the_memory_gives_nearly_the_scores(untrained: Path) -> None:
    texts = ["12", "345", "<answer>2</answer>"]
    assert numbers(untrained, texts, dtype="bfloat16", resolution=0.1) == pytest.approx(numbers(untrained, texts, resolution=0.1), abs=0.3)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_scored_or_invalid_within_seconds(untrained: Path, name: str) -> None:
    start = time.process_time()
    whole, *parts = ask(untrained, [HOSTILE[name], HOSTILE[name][:400], HOSTILE[name][:20]])
    assert isinstance(whole, float if name == "empty" else Invalid)
    assert all(isinstance(part, float | Invalid) for part in parts)
    assert time.process_time() - start < 5
