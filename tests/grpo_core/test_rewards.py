import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_core.rewards import RewardError, Scores, answer_format, code_hash, exact_answer, load_reward, number_answer, score

MINE = "tests.tiny_rewards"


def grade(function: Any, completion: Any, answer: str = "42") -> float:
    (value,) = function(completions=[completion], answer=[answer], prompts=["?"], anything="ignored")
    return float(value)


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("<answer>42</answer>", "42", 1),
        ("I think <answer> 42\n</answer> it is", "42", 1),
        ("<think>41?</think><answer>42</answer>", "42", 1),
        ("<answer>New\u00a0 York</answer>", "new york", 1),
        ("<answer>\uff14\uff12</answer>", "42", 1),  # full-width digits
        ("<answer>caf\u0065\u0301</answer>", "Caf\u00e9", 1),  # combining accent
        ("<answer>STRASSE</answer>", "stra\u00dfe", 1),
        ("<answer>a\nb</answer>", "a b", 1),
        ("<answer>43</answer>", "42", 0),
        ("<answer>42</answer><answer>42</answer>", "42", 0),
        ("<answer>41</answer> or <answer>42</answer>", "42", 0),
        ("<answer>4 2</answer>", "42", 0),
        ("<answer>42", "42", 0),
        ("42", "42", 0),
        ("", "42", 0),
        ("<answer></answer>", "42", 0),
        ("<answer></answer>", "", 0),
        ("<answer> </answer>", " ", 0),
    ],
)
def test_the_one_answer_must_be_the_reference(completion: str, answer: str, expected: float) -> None:
    assert grade(exact_answer, completion, answer) == expected


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("so it is 1,234.0", "1234", 1),
        ("1234", "1,234.00", 1),
        ("first 7, then 8.", "8", 1),
        ("first 8, then 7.", "8", 0),
        ("-3", "-3", 1),
        ("3", "-3", 0),
        ("$0.10", ".10", 1),
        ("#### 42", " 42 ", 1),
        ("no number at all", "42", 0),
        ("", "42", 0),
        ("0.30000000000000004", "0.3", 0),
    ],
)
def test_the_last_number_must_be_the_reference(completion: str, answer: str, expected: float) -> None:
    assert grade(number_answer, completion, answer) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>5+7=12</think><answer>12</answer>", 1),
        ("<think></think>\n<answer>wrong</answer>\n", 1),
        ("<think>a\nb</think><answer>1</answer>", 1),
        ("<answer>12</answer>", 0),
        ("<think>5</think><answer></answer>", 0),
        ("<think>5</think><answer>12</answer> done", 0),
        ("well <think>5</think><answer>12</answer>", 0),
        ("<think>5</think><answer>1</answer><answer>2</answer>", 0),
        ("<think>5</think><answer><answer>2</answer>", 0),
        ("<think>5<answer>12</answer>", 0),
        ("", 0),
    ],
)
def test_the_whole_completion_must_read_think_then_answer(completion: str, expected: float) -> None:
    assert grade(answer_format, completion) == expected


@pytest.mark.parametrize("function", [exact_answer, number_answer, answer_format])
def test_a_chat_completion_is_graded_by_its_last_message(function: Any) -> None:
    text = "<think></think><answer>42</answer>"
    assert grade(function, [{"role": "assistant", "content": text}]) == grade(function, text) == 1


def call(*names: str, rows: int = 4, weights: tuple[float, ...] = (), **columns: list[Any]) -> Scores:
    texts = [f"text {row}" for row in range(rows)]
    given: dict[str, list[Any]] = {
        "answer": ["1"] * rows,
        "prompt_id": [f"id{row}" for row in range(rows)],
        "completion_ids": [[1] * (row + 1) for row in range(rows)],
    }
    where = [f"step 3, prompt ab, completion {row}" for row in range(rows)]
    return score(dict(zip(names, weights or [1.0] * len(names), strict=True)), texts, texts, {**given, **columns}, where)


def test_rewards_are_weighted_and_summed() -> None:
    scores = call(f"{MINE}:constant", f"{MINE}:length_in_tokens", weights=(2.0, -0.5))
    assert scores.totals == pytest.approx([1.4 - 0.5, 1.4 - 1.0, 1.4 - 1.5, 1.4 - 2.0])
    assert scores.by_function == {f"{MINE}:constant": [0.7] * 4, f"{MINE}:length_in_tokens": [1.0, 2.0, 3.0, 4.0]}


def test_no_opinion_is_not_a_zero() -> None:
    name = f"{MINE}:half_have_an_opinion"
    assert call(name).totals == [0.0, None, 0.2, None]
    assert call(name, f"{MINE}:constant").totals == pytest.approx([0.7, 0.7, 0.9, 0.7])


def test_a_function_of_the_user_gets_texts_chats_and_every_column() -> None:
    name = f"{MINE}:says_what_it_was_given"
    chat, reply = [{"role": "user", "content": "?"}], [{"role": "assistant", "content": "!"}]
    columns: dict[str, list[Any]] = {
        "answer": ["1", "2"],
        "prompt_id": ["a", "b"],
        "difficulty": ["1", "2"],
        "completion_ids": [[1], [2]],
        "raw_completions": ["!", "!"],
    }
    assert score({name: 1.0}, ["?", chat], ["!", reply], columns, ["first", "second"]).totals == [1.0, 1.0]


@pytest.mark.parametrize(("function", "row", "value"), [("infinite_in_row_three", 3, "inf"), ("nan_first", 0, "nan")])
def test_a_value_that_is_no_finite_number_names_function_row_and_text(function: str, row: int, value: str) -> None:
    with pytest.raises(RewardError, match=rf"reward '{MINE}:{function}' returned {value} for step 3, prompt ab, completion {row}: .*'text {row}'"):
        call(f"{MINE}:constant", f"{MINE}:{function}")


def test_a_list_of_the_wrong_length_or_type_names_the_function() -> None:
    with pytest.raises(RewardError, match=f"'{MINE}:one_too_few' must return a list of 4 numbers, one a completion; it returned 3 values"):
        call(f"{MINE}:one_too_few")
    with pytest.raises(RewardError, match=f"'{MINE}:a_lone_number' must return a list of 4 numbers, one a completion; it returned a float"):
        call(f"{MINE}:a_lone_number")
    with pytest.raises(RewardError, match=f"'{MINE}:words' returned 'good' for step 3, prompt ab, completion 0"):
        call(f"{MINE}:words")


@pytest.mark.parametrize("value", [1, True, np.float32(1), np.int64(1), np.bool_(True) * 1.0])
def test_numbers_of_other_libraries_are_numbers(value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"given_{type(value).__name__}"
    (tmp_path / f"{module}.py").write_text("VALUE = None\ndef mine(completions, **columns):\n    return [VALUE] * len(completions)\n")
    monkeypatch.syspath_prepend(tmp_path)
    load_reward(f"{module}:mine").__globals__["VALUE"] = value
    totals = call(f"{module}:mine").totals
    assert totals == [1.0] * 4
    assert all(type(total) is float for total in totals)


def test_an_exception_in_a_reward_function_names_function_error_line_and_first_row() -> None:
    import tests.tiny_rewards as mine

    assert mine.__file__ is not None
    lines = Path(mine.__file__).read_text().splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if "the line that raises" in text]
    with pytest.raises(RewardError) as caught:
        call(f"{MINE}:constant", f"{MINE}:raises_on_the_third")
    said = str(caught.value)
    assert said.startswith(f"reward '{MINE}:raises_on_the_third' raised ZeroDivisionError: division by zero ({mine.__file__} line {line}: ")
    assert said.endswith("), scoring 4 completions from step 3, prompt ab, completion 0 on")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_parameter_that_no_column_fills_names_the_function() -> None:
    with pytest.raises(RewardError, match=rf"reward '{MINE}:says_what_it_was_given' raised \w+Error: .*scoring 4 completions"):
        call(f"{MINE}:says_what_it_was_given")
    with pytest.raises(RewardError, match=rf"reward '{MINE}:wants_a_column' raised TypeError: wants_a_column\(\) missing 1 required .*'solution'"):
        call(f"{MINE}:wants_a_column")


def test_what_a_built_in_refuses_keeps_its_own_message() -> None:
    with pytest.raises(RewardError, match=r"^reward 'number_answer': the reference answer 'x' is not a number"):
        call("number_answer", answer=["x"] * 4)


def test_an_unknown_name_lists_the_built_in_ones() -> None:
    built_in = r"\(exact_answer, number_answer, answer_format\)"
    with pytest.raises(RewardError, match=rf"^no built-in reward function 'exact_answr' {built_in}; give your own as package.module:function"):
        load_reward("exact_answr")


def test_an_import_path_that_leads_nowhere_says_what_is_missing() -> None:
    with pytest.raises(RewardError, match=r"rewards.no_such_module:f: cannot import 'no_such_module' \(.*\); it must be importable"):
        load_reward("no_such_module:f")
    for name in ("no_such_function", "NOT_A_FUNCTION"):
        with pytest.raises(RewardError, match=f"module '{MINE}' has no function '{name}'"):
            load_reward(f"{MINE}:{name}")


def test_the_code_hash_changes_with_the_code_and_with_the_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "my_own_rewards.py"
    path.write_text("def mine(completions, **columns):\n    return [0.0] * len(completions)\n\nother = mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = code_hash(["my_own_rewards:mine"])
    assert code_hash(["my_own_rewards:mine"]) == before
    assert code_hash(["my_own_rewards:other"]) != before
    assert code_hash(["my_own_rewards:mine", "exact_answer"]) == code_hash(["exact_answer", "my_own_rewards:mine"]) != before
    path.write_text(path.read_text().replace("0.0", "1.0"))
    assert code_hash(["my_own_rewards:mine"]) != before


@pytest.mark.parametrize("marked", [True, False])
def test_the_code_hash_sees_every_module_of_the_functions_package(marked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"graders_{'with' if marked else 'without'}_init"
    package = tmp_path / name
    (package / "sub").mkdir(parents=True)
    if marked:
        (package / "__init__.py").touch()
        (package / "sub" / "__init__.py").touch()
    (package / "sub" / "grader.py").write_text(f"from {name}.scale import SCALE\n\ndef mine(completions, **columns):\n    return [SCALE] * len(completions)\n")
    (package / "scale.py").write_text("SCALE = 1.0\n")
    (tmp_path / "beside.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    names = [f"{name}.sub.grader:mine"]
    hashes = [code_hash(names)]
    (tmp_path / "beside.py").write_text("x = 1")
    (package / "notes.md").write_text("words")
    (package / ".ipynb_checkpoints").mkdir()
    (package / ".ipynb_checkpoints" / "scale-checkpoint.py").write_text("SCALE = 0.0\n")
    assert code_hash(names) == hashes[0]
    (package / "scale.py").write_text("SCALE = 2.0\n")
    hashes.append(code_hash(names))
    (package / "scale.py").rename(package / "sub" / "scale.py")
    hashes.append(code_hash(names))
    assert len(set(hashes)) == 3


def test_the_code_hash_is_that_of_the_code_not_of_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "one" / "moving_graders"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def mine(completions, **columns):\n    return [0.0] * len(completions)\n")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    hashes = []
    for place in ("one", "two"):
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / place)
            patch.delitem(sys.modules, "moving_graders", raising=False)
            hashes.append(code_hash(["moving_graders:mine"]))
            assert str(tmp_path / place) in str(sys.modules.pop("moving_graders").__file__)
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("10-3", "3"),
        ("1,2,3", "3"),
        ("it is 1,234.50.", "1234.5"),
        ("so -7", "-7"),
        ("(-7)", "-7"),
        ("5 and 12", "12"),
        ("$1,000,000", "1000000"),
        ("x-4", "4"),
    ],
)
def test_the_last_number_of_a_text_is_read_as_a_person_reads_it(text: str, right: str) -> None:
    assert number_answer(completions=[text, "none"], answer=[right, right]) == [1.0, 0.0]


def test_a_reference_answer_that_is_no_number_is_our_mistake_not_the_models() -> None:
    with pytest.raises(RewardError, match=r"the reference answer 'x=3' is not a number"):
        number_answer(completions=["3"], answer=["x=3"])


def test_a_weighted_sum_that_overflows_names_the_row() -> None:
    with pytest.raises(RewardError, match=r"the weighted sum of rewards for row 0 is not a finite number"):
        score({"tests.tiny_rewards:huge": 10.0}, ["p"], ["c"], {}, ["row 0"])
