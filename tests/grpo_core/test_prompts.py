import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.config import PromptsConfig
from grpo_core.prompts import COLUMNS, PromptsError, assign_split, content, make_prompts, normalise, read_prompts
from grpo_core.requirements import ConfigError

Rows = Sequence[Mapping[str, Any]]
SHARES = PromptsConfig(sft_fraction=0.5, select_fraction=0.1, heldout_fraction=0.2)


def jsonl(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def one_error(path: Path, config: PromptsConfig | None = None, split: str | None = None) -> str:
    """The message that reading `path` fails with; it always names the file and a remedy."""
    with pytest.raises(PromptsError) as error:
        read_prompts(path, config or PromptsConfig(), split)
    assert str(path) in str(error.value)
    assert "\nremedy: " in str(error.value)
    return str(error.value)


def row_error(tmp_path: Path, *rows: Mapping[str, Any], config: PromptsConfig | None = None) -> str:
    return one_error(jsonl(tmp_path / "my.jsonl", [{"prompt": "fine", "answer": "1"}, *rows]), config)


# --- what a good file becomes -------------------------------------------------------------------------------------------------


def test_gsm8k_reads_as_it_is(tmp_path: Path) -> None:
    worked = "Half of 48 is <<48/2=24>>24.\n48+24 = <<48+24=72>>72.\n#### 1,072 "
    path = jsonl(tmp_path / "train.jsonl", [{"question": "How many clips?", "answer": worked}])
    config = PromptsConfig(prompt_column="question", completion_column="answer", answer_pattern="#### (.+)", task="gsm8k", template="Q: {prompt}\nA:")
    (row,) = read_prompts(path, config).to_dicts()
    assert (row["prompt"], row["answer"], row["completion"], row["task"]) == ("Q: How many clips?\nA:", "1,072", worked, "gsm8k")
    assert (row["messages"], row["difficulty"], row["source_file"], row["source_row"]) == (None, None, str(path), 1)


def test_the_three_formats_give_the_same_table(tmp_path: Path) -> None:
    rows = [{"prompt": "a,b", "answer": "007", "hint": "x"}, {"prompt": 'c "q"\nd', "answer": "1.50", "hint": "y"}]
    (tmp_path / "my.csv").write_bytes('\ufeffprompt,answer,hint\r\n"a,b",007,x\r\n\r\n"c ""q""\nd",1.50,y\r\n'.encode())
    pl.DataFrame(rows).write_parquet(tmp_path / "my.PARQUET")
    tables = [read_prompts(path, PromptsConfig()) for path in (jsonl(tmp_path / "my.jsonl", rows), tmp_path / "my.csv", tmp_path / "my.PARQUET")]
    for table in tables:
        assert table.select("prompt", "answer", "hint").to_dicts() == rows
        assert table["prompt_id"].equals(tables[0]["prompt_id"])
    assert [table["source_row"].to_list() for table in tables] == [[1, 2], [2, 4], [1, 2]]  # lines, lines below a header, rows


def test_a_chat_is_one_message_with_the_system_prompt_before_it(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "my.jsonl", [{"prompt": "2+2", "answer": 4}])
    (row,) = read_prompts(path, PromptsConfig(chat=True, system_prompt="Be brief.", template="{prompt}?")).to_dicts()
    assert row["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    assert (row["prompt"], row["answer"]) == ("2+2?", "4")


def test_messages_are_kept_and_their_own_system_message_stays(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "2+2"}]
    ruled = [{"role": "system", "content": "Count."}, {"role": "user", "content": "3+3"}]
    path = jsonl(tmp_path / "my.jsonl", [{"prompt": talk, "answer": "4"}, {"prompt": ruled, "answer": "6"}])
    plain = read_prompts(path, PromptsConfig())
    assert plain["messages"].to_list() == [talk, ruled]
    assert plain["prompt"].to_list() == ["2+2", "3+3"]
    configured = read_prompts(path, PromptsConfig(chat=True, system_prompt="Be brief."))
    assert configured["messages"].to_list() == [[{"role": "system", "content": "Be brief."}, *talk], ruled]
    configured.write_parquet(tmp_path / "again.parquet")
    assert pl.read_parquet(tmp_path / "again.parquet")["messages"].to_list() == configured["messages"].to_list()


def test_messages_in_parquet_read_as_in_jsonl(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "2+2"}]
    pl.DataFrame({"prompt": [talk], "answer": ["4"]}).write_parquet(tmp_path / "my.parquet")
    assert read_prompts(tmp_path / "my.parquet", PromptsConfig())["messages"].to_list() == [talk]


def test_other_columns_are_kept_with_their_types(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "answer": "1", "id": "x1", "level": 3, "ratio": 1, "tests": ["p", "q"], "meta": {"b": 1}, "mixed": 1, "late": None, "task": "sums"},
        {"prompt": "b", "answer": "2", "id": "x2", "level": 4, "ratio": 0.5, "tests": [], "meta": {"c": [2]}, "mixed": "u", "big": 2**70, "difficulty": 7},
    ]
    table = read_prompts(jsonl(tmp_path / "my.jsonl", rows), PromptsConfig())
    assert table.columns == [*COLUMNS, "id", "level", "ratio", "tests", "meta", "mixed", "late", "big"]
    assert table.select("level", "ratio", "tests", "meta", "mixed", "late", "big", "task", "difficulty").to_dicts() == [
        {"level": 3, "ratio": 1.0, "tests": ["p", "q"], "meta": '{"b": 1}', "mixed": "1", "late": None, "big": None, "task": "sums", "difficulty": None},
        {"level": 4, "ratio": 0.5, "tests": [], "meta": '{"c": [2]}', "mixed": '"u"', "late": None, "big": str(2**70), "task": "addition", "difficulty": "7"},
    ]


# --- splits -------------------------------------------------------------------------------------------------------------------


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


def test_case_white_space_and_unicode_form_do_not_make_another_prompt() -> None:
    assert normalise("  Caf\u00e9 \n\tSTRASSE") == normalise("cafe\u0301 stra\u00dfe") == "caf\u00e9 strasse"
    assert normalise("\uff11\uff12\u00a0+ \ufb01") == "12 + fi"
    assert normalise("\u1d34") == "h"  # a superscript capital
    assert normalise("1+2") != normalise("1+3")


def test_a_question_is_one_prompt_as_text_and_as_chat() -> None:
    asked = {"role": "user", "content": "What is 2+2?"}
    assert content([{"role": "system", "content": "Be brief."}, asked]) == content([asked]) == content("what IS 2+2?")
    assert content([asked, {"role": "assistant", "content": "4"}, {"role": "user", "content": "Sure?"}]) != content("Sure?")


def test_the_split_of_a_prompt_is_fixed_forever() -> None:
    r"""From `printf 'split\n0\nprompt 0' | sha256sum`, read as a share of 2^256: .309, .292, .485, .101, .152, .847, .535, .206, .372, .870."""
    splits = [assign_split(f"Prompt  {i}", PromptsConfig(sft_fraction=0.4, select_fraction=0.1, heldout_fraction=0.2)) for i in range(10)]
    assert splits == ["sft", "select", "sft", "heldout", "heldout", "train", "sft", "select", "sft", "train"]


def test_splits_have_their_shares() -> None:
    splits = pl.Series([assign_split(str(i), SHARES) for i in range(10_000)])
    for split, share in {"sft": 0.5, "select": 0.1, "heldout": 0.2, "train": 0.2}.items():
        assert (splits == split).mean() == pytest.approx(share, abs=0.015)  # three standard errors of 10,000 draws


def test_other_rows_never_move_a_prompt(tmp_path: Path) -> None:
    rows = [{"prompt": f"question {i}", "answer": "1", "completion": "1"} for i in range(200)]
    config = PromptsConfig(heldout_fraction=0.3, select_fraction=0.1, sft_fraction=0.3)
    few = read_prompts(jsonl(tmp_path / "few.jsonl", rows[50:100]), config)
    many = read_prompts(jsonl(tmp_path / "many.jsonl", rows[::-1]), config)
    places = dict(many.select("prompt", "split").iter_rows())
    assert all(places[prompt] == split for prompt, split in few.select("prompt", "split").iter_rows())
    assert len(set(places.values())) == 4


def test_held_out_prompts_stay_when_other_settings_change() -> None:
    texts = [str(i) for i in range(500)]
    small = PromptsConfig(heldout_fraction=0.1, sft_fraction=0.5, select_fraction=0.1)
    large = PromptsConfig(heldout_fraction=0.1, sft_fraction=0.2, select_fraction=0.3, template="Q {prompt}")
    heldout = [text for text in texts if assign_split(text, small) == "heldout"]
    assert heldout == [text for text in texts if assign_split(text, large) == "heldout"]
    assert heldout != [text for text in texts if assign_split(text, PromptsConfig(heldout_fraction=0.1, seed=1)) == "heldout"]


def test_template_and_chat_change_neither_id_nor_split(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "my.jsonl", [{"prompt": f"q{i}", "answer": "1"} for i in range(50)])
    plain, wrapped = read_prompts(path, PromptsConfig()), read_prompts(path, PromptsConfig(template="Solve: {prompt}", chat=True))
    assert plain.select("prompt_id", "split").equals(wrapped.select("prompt_id", "split"))


def test_rows_without_a_demonstration_are_never_in_sft_by_hash(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}", "answer": "1", "completion": "1" if i % 2 else " "} for i in range(400)]
    table = read_prompts(jsonl(tmp_path / "my.jsonl", rows), PromptsConfig(sft_fraction=0.7, select_fraction=0.1, heldout_fraction=0.1))
    assert set(table.filter(pl.col("completion").is_null())["split"]) == {"train", "select", "heldout"}
    assert table.filter((pl.col("split") == "sft") & pl.col("completion").is_not_null()).height > 100


def test_a_split_column_decides(tmp_path: Path) -> None:
    names = ["sft", "train", "select", "heldout"]
    path = jsonl(tmp_path / "my.jsonl", [{"prompt": f"q{i}", "answer": "1", "completion": "1", "split": name} for i, name in enumerate(names)])
    table = read_prompts(path, PromptsConfig())
    assert table["split"].to_list() == names
    assert table.columns.count("split") == 1


def test_a_held_out_file_holds_all_held_out_rows(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [{"prompt": f"q{i}", "answer": "1", "hint": "h"} for i in range(300)])
    jsonl(tmp_path / "test.jsonl", [{"prompt": f"t{i}", "answer": "1"} for i in range(20)])
    table = make_prompts(PromptsConfig(path="train.jsonl", heldout_path="test.jsonl", select_fraction=0.1, heldout_fraction=0.3, sft_fraction=0.2), tmp_path)
    heldout = table.filter(pl.col("split") == "heldout")
    assert heldout["source_file"].unique().to_list() == ["test.jsonl"]
    assert heldout.height == 20
    assert set(table.filter(pl.col("source_file") == "train.jsonl")["split"]) == {"train", "select"}
    assert set(heldout["hint"]) == {None}


def test_the_embedded_task_fills_all_splits_and_repeats_no_prompt() -> None:
    table = make_prompts(replace(SHARES, num_generated=2_000), Path("/nowhere"))
    assert table.columns == list(COLUMNS)
    assert table["prompt_id"].n_unique() == table["prompt"].n_unique() == table.height == 2_000
    assert set(table["split"]) == {"sft", "train", "select", "heldout"}
    assert (table["task"][0], table["source_file"][0], table["source_row"][0], table["messages"][0]) == ("addition", "generated", 1, None)
    assert table["prompt"].str.contains(r"^\d{3}\+\d{3}=$").all()


# --- bad files ----------------------------------------------------------------------------------------------------------------


def test_a_missing_file_names_its_siblings(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [])
    message = one_error(tmp_path / "trian.jsonl")
    assert "no such file" in message
    assert "train.jsonl" in message


@pytest.mark.parametrize("name", ["my.json", "my.txt", "my", "my.jsonl.gz"])
def test_an_unknown_ending_names_the_known_ones(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    assert ".jsonl, .csv, .parquet" in one_error(tmp_path / name)


@pytest.mark.parametrize("text", ["", "\n\n", "prompt,answer\n"])
def test_a_file_without_rows_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / ("my.csv" if "," in text else "my.jsonl")
    path.write_text(text)
    assert "holds no rows" in one_error(path)


def test_a_missing_column_names_the_nearest(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "my.jsonl", [{"question": "q", "answr": "1"}])
    assert "prompts.answer_column is 'answer', which is no column of the file: did you mean 'answr'?" in one_error(
        path, PromptsConfig(prompt_column="question")
    )
    assert "prompts.prompt_column is 'prompt'" in one_error(path)


def test_an_optional_column_that_someone_named_must_be_there(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "my.jsonl", [{"prompt": "q", "answer": "1", "solution": "s"}])
    assert "did you mean 'solution'?" in one_error(path, PromptsConfig(completion_column="soluton"))
    assert read_prompts(path, PromptsConfig(completion_column=""))["completion"].to_list() == [None]


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "empty prompt ''"),
        (" \n", r"empty prompt ' \n'"),
        (None, "empty prompt None"),
        ([], "empty prompt []"),
        (7, "a prompt is text or a list of messages, not 7"),
        ([{"role": "user"}], "exactly role and content"),
        ([{"role": "human", "content": "a"}], "role 'human' is none of"),
        ([{"role": "user", "content": " "}], "the user message is empty"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "the last message must be the user's"),
    ],
)
def test_an_unusable_prompt_is_named(tmp_path: Path, prompt: Any, said: str) -> None:
    message = row_error(tmp_path, {"prompt": prompt, "answer": "1"})
    assert "my.jsonl line 2: " in message
    assert said in message


@pytest.mark.parametrize("answer", ["", "  ", None])
def test_an_empty_answer_is_named(tmp_path: Path, answer: str | None) -> None:
    assert f"my.jsonl line 2: empty answer {answer!r}" in row_error(tmp_path, {"prompt": "q", "answer": answer})


def test_a_row_that_lacks_the_answer_key_is_named(tmp_path: Path) -> None:
    assert "my.jsonl line 2: empty answer None" in row_error(tmp_path, {"prompt": "q", "anwser": "1"})


def test_an_answer_that_is_a_list_is_named(tmp_path: Path) -> None:
    assert "my.jsonl line 2: [1, 2]" in row_error(tmp_path, {"prompt": "q", "answer": [1, 2]})


def test_an_answer_that_the_pattern_does_not_match_is_named(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "my.jsonl", [{"prompt": "a", "answer": "#### 1"}, {"prompt": "b", "answer": "so 2"}, {"prompt": "c", "answer": "#### "}])
    message = one_error(path, PromptsConfig(answer_pattern="#### (.+)"))
    assert "'#### (.+)' matches nothing in column 'answer' (2 in all)" in message
    assert "my.jsonl line 2: 'so 2'" in message
    assert "line 1" not in message


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("#### .+", r"^prompts\.answer_pattern must hold a group in parentheses: what it matches is cut out, got '#### \.\+'$"),
        ("(?:a)", r"^prompts\.answer_pattern must hold a group"),
        ("(", r"^prompts\.answer_pattern must be a regular expression, got '\(': missing \)"),
    ],
)
def test_a_useless_pattern_is_refused_before_any_file_is_read(pattern: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PromptsConfig(answer_pattern=pattern)


def test_a_duplicate_id_names_both_rows(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "my.jsonl", [{"prompt": f"q{i}", "answer": "1", "id": name} for i, name in enumerate([7, "a", "7", None, None])])
    assert f"my.jsonl line 3: id '7' is also that of {path} line 1" in one_error(path)
    assert read_prompts(path, PromptsConfig(id_column="")).height == 5


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_a_byte_that_is_not_utf8_is_named_with_its_line(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"my.{ending}"
    path.write_bytes(b"\xef\xbb\xbfprompt,answer\ncaf\xe9,1\n")
    assert "line 2, byte 4 of the line: 0xe9" in one_error(path)


def test_utf16_is_named(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("prompt,answer\na,1\n", encoding="utf-16")
    assert "UTF-16" in one_error(tmp_path / "my.csv")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "a", "answer": ', "not JSON at character 27"),
        ('["a", "1"]', "not a JSON object"),
        ('{"prompt": "a", "prompt": "b", "answer": "1"}', "the key 'prompt' appears twice"),
        ('{"prompt": "a", "answer": NaN}', "NaN is not a JSON value"),
        (r'{"prompt": "a\ud800", "answer": "1"}', "holds half of a surrogate pair"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "my.jsonl"
    path.write_text(f'{{"prompt": "fine", "answer": "1"}}\n\n{line}\n')
    message = one_error(path)
    assert f"my.jsonl line 3: {said}" in message


def test_a_row_of_the_wrong_width_is_named(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_text('prompt,answer\n"two\nlines",1\na,b,2\nc\n')
    message = one_error(path)
    assert "line 4: 3 cells where the header has 2: ['a', 'b', '2']" in message
    assert "line 5: 1 cells" in message


def test_an_open_quote_and_a_repeated_header_are_named(tmp_path: Path) -> None:
    (tmp_path / "open.csv").write_text('prompt,answer\na,1\n"b,2\n')
    assert "open.csv line 3: " in one_error(tmp_path / "open.csv")
    (tmp_path / "twice.csv").write_text("prompt,answer,answer\na,1,2\n")
    assert "line 1: 'answer'" in one_error(tmp_path / "twice.csv")


def test_what_only_calls_itself_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.parquet").write_text("prompt,answer\n")
    assert "not a readable Parquet file" in one_error(tmp_path / "my.parquet")


def test_an_unknown_split_names_the_nearest(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "my.jsonl",
        [{"prompt": "a", "answer": "1", "split": "train"}, {"prompt": "b", "answer": "1", "split": "trian"}, {"prompt": "c", "answer": "1"}],
    )
    message = one_error(path)
    assert "my.jsonl line 2: split 'trian': did you mean 'train'?" in message
    assert "my.jsonl line 3: split None" in message


def test_a_test_split_is_called_heldout_and_never_taken_for_another(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "my.jsonl", [{"prompt": "a", "answer": "1", "split": "test"}])
    assert "split 'test': here it is called 'heldout'" in one_error(path)


def test_an_sft_row_needs_a_demonstration(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "my.jsonl", [{"prompt": "a", "answer": "1", "split": "sft"}])
    assert "sft rows without a demonstration" in one_error(path)


def test_a_held_out_file_that_says_otherwise_is_refused(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "my.jsonl", [{"prompt": "a", "answer": "1", "split": "heldout"}, {"prompt": "b", "answer": "1", "split": "train"}])
    assert "my.jsonl line 2: split 'train'" in one_error(path, split="heldout")


@pytest.mark.parametrize("name", ["prompt_id", "messages", "completions"])
def test_a_column_whose_name_is_taken_is_refused(tmp_path: Path, name: str) -> None:
    assert f"columns {name!r} cannot be passed on" in row_error(tmp_path, {"prompt": "q", "answer": "1", name: "x"})


def test_a_template_around_messages_is_refused(tmp_path: Path) -> None:
    message = row_error(tmp_path, {"prompt": [{"role": "user", "content": "q"}], "answer": "1"}, config=PromptsConfig(template="Q: {prompt}"))
    assert "prompts.template cannot wrap chat messages" in message


def test_a_repeated_prompt_names_both_rows(tmp_path: Path) -> None:
    message = row_error(tmp_path, {"prompt": " FINE\n", "answer": "1"})
    assert "prompts appear twice" in message
    assert "my.jsonl line 2 " in message
    assert "my.jsonl line 1 " in message


def test_an_overlap_of_train_and_held_out_names_files_and_rows(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [{"prompt": f"q{i}", "answer": "1"} for i in range(300)])
    jsonl(tmp_path / "test.jsonl", [{"prompt": "new", "answer": "1"}, {"prompt": [{"role": "user", "content": "Q17 "}], "answer": "1"}])
    with pytest.raises(PromptsError) as error:
        make_prompts(replace(SHARES, path="train.jsonl", heldout_path="test.jsonl"), tmp_path)
    message = str(error.value)
    assert "evaluation prompts are also in another split" in message
    assert "test.jsonl line 2 (heldout) repeats train.jsonl line 18 (train): 'Q17 '" in message
    assert "\nremedy: remove one row of each pair" in message


def test_an_overlap_by_the_split_column_is_refused(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "my.jsonl", [{"prompt": "Caf\u00e9", "answer": "1", "split": "train"}, {"prompt": "cafe\u0301", "answer": "1", "split": "select"}])
    assert "my.jsonl line 2 (select) repeats" in one_error(path)


def test_an_empty_split_says_the_counts(tmp_path: Path) -> None:
    jsonl(tmp_path / "my.jsonl", [{"prompt": f"q{i}", "answer": "1", "split": "train"} for i in range(3)])
    with pytest.raises(PromptsError, match=r"my\.jsonl: no prompt in select and heldout \(sft 0, train 3, select 0, heldout 0\)\nremedy: "):
        make_prompts(PromptsConfig(path="my.jsonl"), tmp_path)


def test_a_column_of_two_types_in_two_files_is_refused(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [{"prompt": "a", "answer": "1", "level": 1}])
    jsonl(tmp_path / "test.jsonl", [{"prompt": "b", "answer": "1", "level": "one"}])
    with pytest.raises(PromptsError, match=r"column 'level' is Int64 in train\.jsonl and String in test\.jsonl"):
        make_prompts(PromptsConfig(path="train.jsonl", heldout_path="test.jsonl"), tmp_path)


def test_five_rows_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    message = one_error(jsonl(tmp_path / "my.jsonl", [{"prompt": f"q{i}", "answer": ""} for i in range(8)]))
    assert "(8 in all)" in message
    assert "line 5:" in message
    assert "line 6:" not in message
    assert "... and 3 more" in message
