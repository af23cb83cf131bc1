import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from grpo_core import models
from grpo_core.config import ModelConfig
from grpo_core.models import freeze, load_model, policy_digest, resolve_device, save_model, source_of, start_model
from grpo_core.tokenization import fingerprint
from tests.tiny_models import TINY, language_model, save, tiny_gpt2, tiny_llama

Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
IDS = torch.tensor([[1, 8, 9, 10, 11]])


@pytest.fixture(scope="module")
def dropping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 folder with dropout 0.1 in its configuration, written by transformers alone."""
    folder = tmp_path_factory.mktemp("dropping")
    tiny_gpt2().save_pretrained(folder)
    language_model(tiny_gpt2()).tokenizer.save_pretrained(folder)
    return folder


def test_dropout_is_off_also_in_train_mode(dropping: Path) -> None:
    plain = AutoModelForCausalLM.from_pretrained(dropping).train()
    assert not torch.equal(plain(input_ids=IDS).logits, plain(input_ids=IDS).logits), "the folder must hold a model that drops"
    loaded = load_model(dropping, TINY).model.train()
    assert loaded.training
    assert torch.equal(loaded(input_ids=IDS).logits, loaded(input_ids=IDS).logits)
    assert torch.equal(loaded(input_ids=IDS).logits, plain.eval()(input_ids=IDS).logits)


def test_a_saved_configuration_keeps_the_dropout_it_came_with(dropping: Path, tmp_path: Path) -> None:
    loaded = load_model(dropping, TINY)
    save_model(loaded, tmp_path / "saved")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (dropping, tmp_path / "saved"))
    names = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout")
    assert [after[name] for name in names] == [before[name] for name in names] == [0.1] * 4
    assert torch.equal(loaded.model.train()(input_ids=IDS).logits, loaded.model(input_ids=IDS).logits), "saving must not switch dropout on"
    assert [getattr(loaded.model.config, name) for name in names] == [0.0] * 4


def test_a_saved_folder_loads_with_plain_transformers(tmp_path: Path) -> None:
    ours = start_model(TINY)
    save_model(ours, tmp_path / "saved")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(theirs(input_ids=IDS).logits, ours.model.eval()(input_ids=IDS).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert fingerprint(tokenizer) == fingerprint(ours.tokenizer)
    assert tokenizer("12+34=")["input_ids"] == ours.tokenizer("12+34=")["input_ids"]


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_digest_is_the_same_after_save_and_load(make: type, dtype: Precision, tmp_path: Path) -> None:
    model: PreTrainedModel = make()
    again = load_model(save(model, tmp_path / "saved"), ModelConfig(device="cpu", dtype=dtype))
    assert {weight.dtype for weight in again.model.parameters()} == {torch.float32}, "whatever the precision of the forward pass"
    assert policy_digest(again.model) == policy_digest(model)
    save_model(again, tmp_path / "once more")
    assert (tmp_path / "once more" / "model.safetensors").read_bytes() == (tmp_path / "saved" / "model.safetensors").read_bytes()


def test_weights_kept_in_bfloat16_are_held_in_float32(tmp_path: Path) -> None:
    model = tiny_llama().to(torch.bfloat16)
    again = load_model(save(model, tmp_path / "saved"), TINY).model
    assert {weight.dtype for weight in again.parameters()} == {torch.float32}
    assert policy_digest(again) == policy_digest(model.float())


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_precision_is_that_of_the_forward_pass(dtype: Precision, dropping: Path) -> None:
    plain = AutoModelForCausalLM.from_pretrained(dropping, dtype=torch.float32).eval()(input_ids=IDS).logits
    for model in (load_model(dropping, replace(TINY, dtype=dtype)).model, start_model(ModelConfig(path=str(dropping), device="cpu", dtype=dtype)).model):
        logits = model.eval()(input_ids=IDS).logits
        assert logits.dtype == getattr(torch, dtype)
        assert torch.equal(logits, plain) == (dtype == "float32")
        assert torch.allclose(logits.float(), plain, atol=0.1)
    embedded = start_model(replace(TINY, dtype=dtype)).model
    assert embedded(input_ids=IDS).logits.dtype == getattr(torch, dtype)
    assert policy_digest(embedded) == policy_digest(start_model(TINY).model)


def test_an_update_too_small_for_a_bfloat16_weight_is_not_lost(dropping: Path) -> None:
    model = load_model(dropping, replace(TINY, dtype="bfloat16")).model
    before = [weight.detach().clone() for weight in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
    model(input_ids=IDS, labels=IDS).loss.backward()
    assert {weight.grad.dtype for weight in model.parameters() if weight.grad is not None} == {torch.float32}
    optimizer.step()
    moved = sum(int((new != old).sum()) for old, new in zip(before, model.parameters(), strict=True))
    lost = sum(int((new.to(torch.bfloat16) != old.to(torch.bfloat16)).sum()) for old, new in zip(before, model.parameters(), strict=True))
    assert moved > 10 * lost


def test_the_digest_does_not_depend_on_the_pieces_it_is_worked_out_in(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(num_tokens=models.PIECE // 16 + 1)
    flat = model.model.embed_tokens.weight.data.view(-1)
    assert models.PIECE == 2**20 < len(flat) == 2**20 + 16

    def digest(piece: int) -> str:
        monkeypatch.setattr(models, "PIECE", piece)
        return policy_digest(model)

    whole = digest(2**24)
    assert digest(2**20) == digest(1000) == digest(2**20 + 16) == digest(2**20 + 15) == whole
    for first, second in ((0, -1), (5, 2**20 + 5), (2**20 - 1, 2**20)):
        flat[first], flat[second] = flat[second].clone(), flat[first].clone()
        assert digest(2**20) == digest(2**24) != whole, "weights of two pieces trade places"
        flat[first], flat[second] = flat[second].clone(), flat[first].clone()
    assert digest(2**20) == whole


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, torch.int32), (torch.bfloat16, torch.int16), (torch.float64, torch.int64)])
def test_the_digest_changes_with_the_last_bit_of_any_single_weight(dtype: torch.dtype, bits: torch.dtype) -> None:
    model = tiny_llama().to(dtype)
    before = policy_digest(model)
    for weight in model.parameters():
        flat = weight.data.view(-1).view(bits)
        for place in (0, len(flat) // 2, len(flat) - 1):
            flat[place] ^= 1
            assert policy_digest(model) != before
            flat[place] ^= 1
    assert policy_digest(model) == before


def test_the_digest_changes_when_two_weights_swap_places() -> None:
    model = tiny_llama()
    before = policy_digest(model)
    for weight in model.parameters():
        flat = weight.data.view(-1)
        if flat[0] != flat[-1]:
            flat[0], flat[-1] = flat[-1].clone(), flat[0].clone()
            assert policy_digest(model) != before
            flat[0], flat[-1] = flat[-1].clone(), flat[0].clone()
    first, second = (layer.self_attn.q_proj.weight.data for layer in model.model.layers)
    first[:], second[:] = second.clone(), first.clone()
    assert policy_digest(model) != before, "whole tensors of one shape trade places"


def test_the_embedded_model_is_a_function_of_its_seed() -> None:
    torch.manual_seed(123)
    first = policy_digest(start_model(TINY).model)
    torch.manual_seed(456)
    assert policy_digest(start_model(TINY).model) == first
    assert policy_digest(start_model(replace(TINY, seed=1)).model) != first


def test_the_embedded_model_has_the_sizes_asked_for() -> None:
    settings = start_model(TINY).model.config
    assert (settings.hidden_size, settings.num_hidden_layers, settings.num_attention_heads, settings.intermediate_size) == (16, 1, 2, 32)
    assert settings.max_position_embeddings == 48


def test_a_model_at_a_path_is_where_fine_tuning_starts(dropping: Path) -> None:
    started = start_model(ModelConfig(path=str(dropping), device="cpu"))
    assert policy_digest(started.model) == policy_digest(AutoModelForCausalLM.from_pretrained(dropping))


def test_every_end_that_the_model_names_ends_a_completion(tmp_path: Path) -> None:
    model = tiny_llama()
    assert model.generation_config is not None
    model.generation_config.eos_token_id = [2, 7]
    assert load_model(save(model, tmp_path / "saved"), TINY).eos_ids == {2, 7}


def test_a_frozen_model_takes_no_gradient(dropping: Path) -> None:
    frozen = freeze(load_model(dropping, TINY)).model
    assert not any(weight.requires_grad for weight in frozen.parameters())
    assert not frozen(input_ids=IDS).logits.requires_grad


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there_is_one_clear_error(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"model.device is '{device}' but torch sees no GPU: use 'auto' or 'cpu'"):
        resolve_device(device)


def test_auto_takes_what_there_is() -> None:
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert resolve_device("cpu") == torch.device("cpu")


def test_the_source_of_a_folder_is_its_content_wherever_it_lies(tmp_path: Path) -> None:
    first, second = (source_of(ModelConfig(path=str(save(tiny_llama(), tmp_path / name)))) for name in ("a", "b"))
    assert first == second
    assert len(first) == 64
    (tmp_path / "b" / ".cache").mkdir()
    (tmp_path / "b" / ".cache" / "when it was downloaded").write_text("today")
    assert source_of(ModelConfig(path=str(tmp_path / "b"))) == first, "a hub's own notes are no part of the model"
    (tmp_path / "b" / "tokenizer.json").rename(tmp_path / "b" / "tokens.json")
    renamed = source_of(ModelConfig(path=str(tmp_path / "b")))
    (tmp_path / "b" / "tokens.json").write_text("{}")
    assert len({first, renamed, source_of(ModelConfig(path=str(tmp_path / "b"))), source_of(ModelConfig())}) == 4


HUB = """
import sys
from grpo_core.config import ModelConfig
from grpo_core.models import load_model, source_of
config = ModelConfig(path="someone/tiny", device="cpu", num_threads=1)
load_model(config.path, config)
print(source_of(config), source_of(config, loaded=True))
"""


def test_the_source_of_a_hub_model_is_its_name_and_commit(tmp_path: Path) -> None:
    """With a cache laid out as huggingface_hub lays it out, and no network."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "models--someone--tiny"
    save(tiny_llama(), cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    offline = {**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    said = subprocess.run([sys.executable, "-c", HUB], env=offline, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert said.stdout.split() == [f"someone/tiny@{commit}"] * 2, said.stderr
