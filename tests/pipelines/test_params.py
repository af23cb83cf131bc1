"""params.yaml says what grpo_core/config.py says, is read as DVC reads it, and reaches the stages unchanged."""

import ast
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from assets import run_config
from assets.paths import Paths
from grpo_core import config as config_module
from grpo_core.config import RunConfig
from grpo_core.params import section_values
from grpo_core.requirements import ConfigError
from pipelines.params import ROOT, choose_experiment, experiments, find_root, load_params, read_run_config, section_files, written_experiments

DIFFERS: dict[str, object] = {}
"""Keys whose shipped value is not the default, and the value."""
SHIPPED = (ROOT / "params.yaml").read_text(encoding="utf-8")


def docstrings() -> dict[tuple[str, str], str]:
    """(class, field) → the string that stands under it in grpo_core/config.py."""
    found = {}
    for node in ast.parse(inspect.getsource(config_module)).body:
        if isinstance(node, ast.ClassDef):
            for field, below in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    assert isinstance(field.target, ast.Name)
                    found[node.name, field.target.id] = str(below.value.value)
    return found


def first_sentence(docstring: str) -> str:
    return re.split(r"(?<=\.)\s+(?=[A-Z`])", " ".join(docstring.split()))[0]


def expected_comments() -> dict[str, str]:
    docs = docstrings()
    sections: list[Any] = [section.default_factory for section in fields(RunConfig) if section.name not in ("rewards", "reward_options")]
    names = [section.name for section in fields(RunConfig) if section.name not in ("rewards", "reward_options")]
    keys = {f"{name}.{f.name}": (cls.__name__, f.name) for name, cls in zip(names, sections, strict=True) for f in fields(cls)}
    return {key: first_sentence(docs[where]) for key, where in keys.items()}


def shipped_comments(text: str) -> dict[str, str]:
    """`section.key` → the comment beside it."""
    found, section = {}, ""
    for line in text.splitlines():
        if match := re.match(r"(\w+):", line):
            section = match[1]
        elif match := re.match(r"  (\w+): .*?\s+# (.*)$", line):
            found[f"{section}.{match[1]}"] = match[2]
    return found


def test_every_key_stands_there_with_its_docstring_beside_it() -> None:
    wrong = {key: comment for key, comment in expected_comments().items() if shipped_comments(SHIPPED).get(key) != comment}
    assert not wrong, "params.yaml lacks these keys or comments:\n" + "\n".join(f"  {key}: ...  # {comment}" for key, comment in wrong.items())


def test_every_section_stands_under_its_docstring() -> None:
    for section in fields(RunConfig):
        assert f"\n# {first_sentence(docstrings()['RunConfig', section.name])}\n{section.name}:{' {}' if section.name == 'reward_options' else ''}\n" in SHIPPED


def test_shipped_values_are_the_defaults_in_the_order_of_the_code() -> None:
    shipped = {name: section for name, section in load_params(ROOT).items() if name != "experiments"}
    defaults: dict[str, Any] = {s.name: section_values(RunConfig(), s.name) for s in fields(RunConfig)}
    for key, value in DIFFERS.items():
        section, name = key.split(".")
        assert defaults[section][name] != value, f"{key} no longer differs"
        defaults[section][name] = value
    assert shipped == defaults
    assert [list(section) for section in shipped.values()] == [list(section) for section in defaults.values()]


def test_the_default_experiment_is_shipped_alone() -> None:
    assert load_params(ROOT)["experiments"] == {"default": {}}


def test_the_commented_experiment_is_a_valid_one(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(SHIPPED.replace("  # small_groups:\n  #   grpo:", "  small_groups:\n    grpo:"), encoding="utf-8")
    assert experiments(tmp_path)["small_groups"].grpo.group_size == 4


def write(root: Path, text: str | bytes) -> Path:
    (root / "params.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def test_yaml_is_read_as_version_1_2(tmp_path: Path) -> None:
    values = load_params(write(tmp_path, "a: 1e-3\nb: yes\nc: 017\nd: 1_000\ne: 0o17\n"))
    assert values == {"a": 0.001, "b": "yes", "c": 17, "d": 1000, "e": 15}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grpo:\n  steps: 1\n  steps: 2\n", r'params\.yaml, line 3: found duplicate key "steps"'),
        ("grpo:\n  steps: [1\nsft: 2\n", r"params\.yaml, line \d: "),
        ("grpo:\n\tsteps: 1\n", r"params\.yaml, line 2: "),
        ("", r"params\.yaml must be a mapping of sections, got None"),
        ("- grpo\n", r"params\.yaml must be a mapping of sections"),
        (b"grpo: {loss: \xff}\n", r"params\.yaml must be UTF-8 text: byte 13 is not"),
    ],
    ids=["duplicate", "unclosed", "tab", "empty", "list", "encoding"],
)
def test_a_broken_file_is_refused_on_one_line_naming_the_place(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_params(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"params\.yaml is missing"):
        load_params(tmp_path)


def test_the_root_is_found_from_any_folder_below(tmp_path: Path) -> None:
    for name in ("params.yaml", "dvc.yaml"):
        (tmp_path / name).touch()
    below = tmp_path / "data" / "prompts"
    below.mkdir(parents=True)
    (below / "params.yaml").touch()  # alone it is no root
    assert find_root(below) == tmp_path


def test_outside_of_a_checkout_there_is_no_root(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no params\.yaml and dvc\.yaml in .* or any folder above it"):
        find_root(tmp_path)


TWO = "grpo: {steps: 7}\nexperiments:\n  default: {}\n  other:\n    rollout: {temperature: 0.5}\n"


def test_each_experiment_has_its_sections_and_all_share_three(tmp_path: Path) -> None:
    own = ["rollout", "rewards", "reward_options", "scoring", "grpo", "health", "heldout_eval", "blind_review_set", "promotion"]
    expected = ["model.json", "prompts.json", "sft.json", *(f"{name}/{section}.json" for name in ("default", "other") for section in own)]
    assert list(section_files(write(tmp_path, TWO))) == expected


def test_an_edit_changes_exactly_the_file_of_its_section(tmp_path: Path) -> None:
    before = section_files(write(tmp_path, TWO))
    after = section_files(write(tmp_path, TWO.replace("temperature: 0.5", "temperature: 0.7")))
    assert [name for name in before if before[name] != after[name]] == ["other/rollout.json"]


def test_writing_a_default_out_changes_no_byte(tmp_path: Path) -> None:
    before = section_files(write(tmp_path, TWO))
    assert section_files(write(tmp_path, "sft: {weight_decay: 1e-2, max_grad_norm: 1}\n" + TWO)) == before


def test_stages_read_what_was_written(tmp_path: Path) -> None:
    write(tmp_path, TWO)
    run_config.produce(Paths(tmp_path), section_files(tmp_path))
    assert written_experiments(Paths(tmp_path)) == ["default", "other"]
    for name, config in experiments(tmp_path).items():
        assert read_run_config(Paths(tmp_path, name)) == config


def test_what_was_not_written_says_how_to_write_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.json is missing: write it with `dvc repro run_config`"):
        read_run_config(Paths(tmp_path))


def test_a_misspelt_experiment_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^unknown experiment 'defualt': did you mean 'default'\?"):
        choose_experiment(write(tmp_path, TWO), "defualt")


def test_experiments_no_longer_declared_disappear(tmp_path: Path) -> None:
    run_config.produce(Paths(tmp_path), section_files(write(tmp_path, TWO)))
    run_config.produce(Paths(tmp_path), section_files(write(tmp_path, "experiments: {default: {}}")))
    assert written_experiments(Paths(tmp_path)) == ["default"]


def test_a_failure_halfway_leaves_everything_as_it_was(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    run_config.produce(paths, {"model.json": b"old"})
    with pytest.raises(OSError, match=r"model\.json"):
        run_config.produce(paths, {"model.json": b"new", "model.json/impossible.json": b""})
    assert (paths.run_config / "model.json").read_bytes() == b"old"
    run_config.produce(paths, {"model.json": b"newest"})
    assert [(path.name, path.read_bytes()) for path in paths.run_config.iterdir()] == [("model.json", b"newest")]
    assert [path.name for path in paths.data.iterdir()] == ["run_config"]
