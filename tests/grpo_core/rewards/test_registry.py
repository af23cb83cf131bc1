import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_core.rewards import registry
from grpo_core.rewards.outcomes import RewardError
from grpo_core.rewards.registry import BUILT_IN, _code_files, check_options, code_hash, full_marks, load_reward

MINE = "tests.tiny_rewards"


def test_an_unknown_name_lists_the_built_in_ones() -> None:
    built_in = rf"\({', '.join(BUILT_IN)}\)"
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


def test_the_hash_of_a_built_in_function_is_that_of_all_it_imports_and_of_nothing_else() -> None:
    assert set(_code_files("exact_answer")) == {f"rewards/{name}.py" for name in ("answers", "calling", "extraction", "normal_text", "outcomes")}
    assert {"rewards/patterns.py", "rewards/normal_text.py"} <= set(_code_files("key_steps"))
    assert {"sandbox/inside.py", "sandbox/isolation.py", "rewards/programs.py"} <= set(_code_files("code_tests"))
    assert not any(place.startswith("sandbox/") for place in _code_files("regex_format"))


def test_the_hash_of_a_built_in_function_names_the_libraries_that_decide_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: code_hash([name]) for name in ("math_answer", "exact_answer")}
    monkeypatch.setattr(registry, "version", lambda library: "999")
    assert code_hash(["math_answer"]) != before["math_answer"]
    assert code_hash(["exact_answer"]) == before["exact_answer"]


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


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_function_is_there(name: str) -> None:
    assert load_reward(name).__name__ == name
    assert load_reward(name).__doc__


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("exact_answer", {"patern": "x"}, "reward_options.exact_answer.patern: exact_answer has no such option: it has none"),
        ("regex_format", {"patern": "x"}, r"reward_options.regex_format.patern: regex_format has no such option: did you mean 'pattern'\?"),
        ("regex_format", {}, "reward_options.regex_format: regex_format needs pattern: set it there"),
        (f"{MINE}:with_target", {"target": "far"}, f"reward_options.{MINE}:with_target.target must be of type int, as its default 3, got 'far'"),
        (f"{MINE}:with_target", {"target": True}, "must be of type int"),
        ("regex_format", {"pattern": "("}, r"must be a regular expression, got '\('"),
        ("key_steps", {}, "fixed_steps"),
        ("code_tests", {"memory_mib": 1}, "reward_options.code_tests.memory_mib must be at least 64"),
        ("regex_format", {"pattern": 3}, "reward_options.regex_format.pattern must be of type str, got 3"),
        (f"{MINE}:with_target", {"completions": 3}, "has no such option"),
        (f"{MINE}:constant", {"target": 3}, "has no such option"),
    ],
)
def test_an_option_that_a_function_does_not_take_is_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RewardError, match=said):
        check_options(name, options)


def test_options_of_the_right_kind_pass() -> None:
    check_options("code_tests", {})
    check_options("code_tests", {"tests_column": "test", "cpu_seconds": 2})
    check_options("key_steps", {"column": "steps"})
    check_options("math_answer", {})
    check_options("reasoning_gym", {"cpu_seconds": 1})
    check_options("regex_format", {"pattern": "x+"})
    check_options(f"{MINE}:with_target", {"target": 4})
    check_options(f"{MINE}:with_target", {})


def test_full_marks_are_what_the_best_completion_earns() -> None:
    assert full_marks({"exact_answer": 1.0, "answer_format": 0.1}) == 1.1
    assert full_marks({"exact_answer": 1.0, f"{MINE}:constant": -0.5}) == 1.0
    assert full_marks({"exact_answer": 1.0, "soft_overlong": 1.0}) == 1.0  # from -1 to 0
    assert full_marks({"exact_answer": 1.0, "soft_overlong": -1.0}) == 2.0
