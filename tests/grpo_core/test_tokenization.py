from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import BloomConfig, GPT2Config, LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedTokenizerFast

from grpo_core.addition import addition_tokenizer
from grpo_core.prompt_files import PromptsError
from grpo_core.requirements import ConfigError
from grpo_core.tokenization import (
    TokenizerMismatch,
    check_lengths,
    check_same_tokenizer,
    clean_text,
    context_length,
    encode_completion,
    encode_prompt,
    eos_ids,
    fingerprint,
    load_tokenizer,
    raw_text,
)

VOCABULARY = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", *"abcdefgh "]
CHAT = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"


def letters(*, frame: str = "$A", vocabulary: list[str] = VOCABULARY, **settings: Any) -> PreTrainedTokenizerFast:
    """One token a letter; `frame` is what the tokenizer itself puts around a text, such as `<s> $A </s>`."""
    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(single=frame, special_tokens=[("<s>", ids["<s>"]), ("</s>", ids["</s>"])])
    given = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "extra_special_tokens": ["<|user|>", "<|assistant|>"]} | settings
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given)


def ids(*tokens: str) -> list[int]:
    return [VOCABULARY.index(token) for token in tokens]


def table(*prompts: str, completion: str | None = None) -> pl.DataFrame:
    rows = [{"source_file": "my.jsonl", "source_row": i, "prompt": p, "messages": None, "completion": completion} for i, p in enumerate(prompts, 1)]
    return pl.DataFrame(rows, schema_overrides={"completion": pl.String})


def test_the_embedded_tokenizer_puts_one_bos_before_a_prompt_and_one_eos_behind_a_completion() -> None:
    tokenizer = addition_tokenizer()
    prompt, completion = encode_prompt(tokenizer, "12+34=", None), encode_completion(tokenizer, "<think></think><answer>46</answer>")
    assert raw_text(tokenizer, prompt) == "<bos>12+34="
    assert raw_text(tokenizer, completion) == "<think></think><answer>46</answer><eos>"
    assert clean_text(tokenizer, completion) == "<think></think><answer>46</answer>"


@pytest.mark.parametrize(
    ("frame", "expected"), [("<s> $A", ["<s>", "a", "b"]), ("<s> $A </s>", ["<s>", "a", "b"]), ("$A </s>", ["a", "b"]), ("$A", ["a", "b"])]
)
def test_a_text_prompt_gets_the_bos_that_its_tokenizer_puts_and_no_eos(frame: str, expected: list[str]) -> None:
    assert encode_prompt(letters(frame=frame), "ab", None) == ids(*expected)


def test_a_bos_written_into_the_text_is_not_doubled_and_an_eos_written_into_it_stays() -> None:
    assert encode_prompt(letters(frame="<s> $A </s>"), "<s>ab</s>", None) == ids("<s>", "a", "b", "</s>")


def test_a_chat_goes_through_its_template_once_with_the_generation_prompt_and_one_bos() -> None:
    tokenizer = letters(frame="<s> $A", chat_template=CHAT)
    expected = ids("<s>", "<|user|>", "a", "b", "<|assistant|>")
    assert encode_prompt(tokenizer, "ignored", [{"role": "user", "content": "ab"}]) == expected
    doubled = letters(frame="<s> $A", chat_template="{{ bos_token }}" + CHAT)
    assert encode_prompt(doubled, "ignored", [{"role": "user", "content": "ab"}]) == expected


def test_a_chat_without_a_template_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"no chat template.*prompts\.chat"):
        encode_prompt(letters(), "ab", [{"role": "user", "content": "ab"}])


def test_what_a_chat_template_refuses_is_said() -> None:
    refusing = letters(chat_template="{{ raise_exception('no system role') }}")
    with pytest.raises(ConfigError, match=r"no system role.*prompts\.system_prompt"):
        encode_prompt(refusing, "ab", [{"role": "user", "content": "ab"}])


def test_a_completion_has_no_bos_and_exactly_one_eos() -> None:
    tokenizer = letters(frame="<s> $A </s>")
    assert encode_completion(tokenizer, "ab") == encode_completion(tokenizer, "ab</s>") == ids("a", "b", "</s>")


def test_completions_end_at_the_ids_of_tokenizer_and_model() -> None:
    tokenizer = letters()
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 14}
    model = LlamaForCausalLM(LlamaConfig(**sizes, bos_token_id=1, eos_token_id=[2, 5]))
    model.generation_config.eos_token_id = 7
    assert eos_ids(tokenizer) == {2}
    assert eos_ids(tokenizer, model) == {2, 5, 7}


def test_spaces_are_kept_as_drawn() -> None:
    assert clean_text(letters(), ids("a", " ", " ", "b", "</s>")) == "a  b"


def test_a_saved_tokenizer_loads_with_the_same_meaning(tmp_path: Path) -> None:
    for tokenizer in (addition_tokenizer(), letters(frame="<s> $A", chat_template=CHAT)):
        tokenizer.save_pretrained(tmp_path)
        loaded = load_tokenizer(tmp_path)
        assert fingerprint(loaded) == fingerprint(tokenizer)
        assert encode_prompt(loaded, "ab", None) == encode_prompt(tokenizer, "ab", None)
        assert loaded.padding_side == "left"


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"model\.path '{tmp_path}' gives no tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("other", "part"),
    [
        (letters(vocabulary=[*VOCABULARY[:-2], " ", "h"]), "vocabulary.*' ' is 13 against 12"),
        (letters(eos_token="<|user|>"), "special tokens"),
        (letters(chat_template=CHAT), "chat template"),
    ],
    ids=["vocabulary", "special tokens", "chat template"],
)
def test_tokenizers_of_another_meaning_are_refused(other: PreTrainedTokenizerFast, part: str) -> None:
    check_same_tokenizer(letters(), letters())
    assert fingerprint(other) != fingerprint(letters())
    with pytest.raises(TokenizerMismatch, match=part):
        check_same_tokenizer(letters(), other)


def test_a_prompt_may_have_max_tokens_and_no_more() -> None:
    tokenizer = letters(frame="<s> $A")
    check_lengths(table("abc"), tokenizer, 4)
    with pytest.raises(PromptsError, match=r"longer than prompts\.max_tokens \(4\).*\n  my\.jsonl line 2: 5 tokens: 'abcd'\nremedy: .*prompts\.max_tokens"):
        check_lengths(table("abc", "abcd"), tokenizer, 4)
    with pytest.raises(PromptsError, match=r"longer than what the model takes \(3\)"):
        check_lengths(table("abc"), letters(frame="<s> $A", model_max_length=3), 4)


def test_a_prompt_leaves_room_for_one_token_in_the_model_s_context() -> None:
    tokenizer = letters(frame="<s> $A")
    check_lengths(table("abc"), tokenizer, 9, context=5)
    with pytest.raises(PromptsError, match=r"longer than what the model takes \(4\).*\n  my\.jsonl line 2: 5 tokens: 'abcd'\nremedy: .*model's context"):
        check_lengths(table("abc", "abcd"), tokenizer, 9, context=5)
    with pytest.raises(PromptsError, match=r"longer than prompts\.max_tokens \(3\)"):
        check_lengths(table("abc"), tokenizer, 3, context=5)
    check_lengths(table("abcdabcd"), tokenizer, 9, context=None)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [(LlamaConfig(max_position_embeddings=48), 48), (GPT2Config(n_positions=32), 32), (BloomConfig(), None)],
    ids=["llama", "gpt2", "bloom"],
)
def test_the_context_is_read_from_the_model_s_configuration(settings: PretrainedConfig, expected: int | None, tmp_path: Path) -> None:
    settings.save_pretrained(tmp_path)
    assert context_length(str(tmp_path)) == expected


def test_a_chat_is_measured_after_its_template() -> None:
    chat = table("ab").with_columns(messages=pl.Series([[{"role": "user", "content": "ab"}]]))
    check_lengths(chat, letters(chat_template=CHAT), 5)
    with pytest.raises(PromptsError, match="line 1: 5 tokens"):
        check_lengths(chat, letters(chat_template=CHAT), 4)


def test_text_that_the_tokenizer_cannot_represent_is_named() -> None:
    with pytest.raises(PromptsError, match=r"cannot represent.*\n  my\.jsonl line 2: 'x', 'z' in 'axzx'\nremedy"):
        check_lengths(table("ab", "axzx"), letters(), 9)
    with pytest.raises(PromptsError, match=r"line 1: '!' in 'a!'"):
        check_lengths(table("ab", completion="a!"), letters(), 9)


def test_the_written_name_of_the_unknown_token_is_no_unknown_text() -> None:
    """GPT-2 has one token for unknown, beginning and end."""
    check_lengths(table("ab</s>"), letters(unk_token="</s>"), 9)


def test_more_than_five_bad_rows_are_counted() -> None:
    with pytest.raises(PromptsError, match=r"\(7 in all\)(.|\n)*line 5(.|\n)*and 2 more") as error:
        check_lengths(table(*["abcd"] * 7), letters(), 3)
    assert "line 6" not in str(error.value)
