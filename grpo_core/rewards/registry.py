"""Reward functions by name: the built-in ones, users' own at their import path, their options, and the hash of the code that makes them up.

A reward function takes keyword lists, one entry a completion, and returns one outcome each (None: no opinion):

    def my_reward(prompts, completions, answer, *, target=200, **columns) -> list[float | None]

`prompts` and `completions` are texts (for chat prompts lists of messages, as in TRL); every column of the prompts table comes by its
name; `completion_ids`, `completion_lengths` and `raw_completions` hold token ids, their number and the text with special tokens. What it
takes beyond these are its options, set under `reward_options` in params.yaml. It may be a coroutine function.
"""

import functools
import hashlib
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grpo_core.config import Option
from grpo_core.requirements import nearest
from grpo_core.rewards.outcomes import RewardError

RewardFunction = Callable[..., Any]

SIBLING = re.compile(r"^\s*from grpo_core\.rewards\.(\w+) import", re.MULTILINE)
"""An import of another file of this package."""

GIVEN = ("prompts", "completions", "completion_ids", "completion_lengths", "raw_completions")
"""Columns that every reward function is given beside those of the prompts table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """A reward function that comes with the project."""

    path: str
    """`package.module:function`."""
    lowest: float = 0.0
    highest: float = 1.0
    limits_itself: bool = False
    """It bounds the time of every completion on its own."""
    in_trainer: bool = False
    """It needs the trainer's device, so it runs in the trainer's process."""
    isolated: bool = False
    """It needs the sandbox."""
    libraries: tuple[str, ...] = ()
    """Distributions that decide with it."""


BUILT_IN: dict[str, BuiltIn] = {
    "exact_answer": BuiltIn(path="grpo_core.rewards.answers:exact_answer"),
    "number_answer": BuiltIn(path="grpo_core.rewards.answers:number_answer"),
    "answer_format": BuiltIn(path="grpo_core.rewards.answers:answer_format"),
    "math_answer": BuiltIn(
        path="grpo_core.rewards.mathematics:math_answer", limits_itself=True, isolated=True, libraries=("latex2sympy2-extended", "math-verify", "sympy")
    ),
    "reasoning_gym": BuiltIn(path="grpo_core.rewards.reasoning:reasoning_gym", limits_itself=True, isolated=True, libraries=("reasoning-gym", "sympy")),
    "code_tests": BuiltIn(path="grpo_core.rewards.programs:code_tests", limits_itself=True, isolated=True),
    "regex_format": BuiltIn(path="grpo_core.rewards.patterns:regex_format"),
    "key_steps": BuiltIn(path="grpo_core.rewards.patterns:key_steps"),
    "soft_overlong": BuiltIn(path="grpo_core.rewards.style:soft_overlong", lowest=-1.0, highest=0.0),
    "repetition_penalty": BuiltIn(path="grpo_core.rewards.style:repetition_penalty", lowest=-1.0, highest=0.0),
    "boilerplate_penalty": BuiltIn(path="grpo_core.rewards.style:boilerplate_penalty", lowest=-1.0, highest=0.0),
    "reward_model": BuiltIn(path="grpo_core.rewards.reward_model:reward_model", in_trainer=True),
}


def traits(name: str) -> BuiltIn:
    """How the function `name` is run and what it can give: a built-in's own; of a user's function between 0 and 1 is taken for granted."""
    return BUILT_IN.get(name) or BuiltIn(path=name)


def full_marks(weights: Mapping[str, float]) -> float:
    """The most that a completion can earn: every function at the end of its range that its weight rewards."""
    return sum(max(weight * traits(name).lowest, weight * traits(name).highest) for name, weight in weights.items())


def reward_range(weights: Mapping[str, float]) -> float:
    """From the least to the most that a completion can earn."""
    return sum(abs(weight) * (traits(name).highest - traits(name).lowest) for name, weight in weights.items())


def load_reward(name: str) -> RewardFunction:
    """The built-in function `name`, or the one at the import path `package.module:function`."""
    if name not in BUILT_IN and ":" not in name:
        raise RewardError(f"no built-in reward function {name!r} ({', '.join(BUILT_IN)}); give your own as package.module:function")
    module, _, function = traits(name).path.partition(":")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise RewardError(f"rewards.{name}: cannot import {module!r} ({error}); it must be importable from the repository root") from error
    if not callable(found):
        raise RewardError(f"rewards.{name}: module {module!r} has no function {function!r}")
    if inspect.isclass(found):
        raise RewardError(f"rewards.{name}: {function!r} is a class: make an instance in its module and name that, {function.lower()} = {function}(...)")
    return found


def source_file(function: RewardFunction) -> str:
    """The file that defines a function, or the class of a callable object; empty where there is none to read."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    try:
        return inspect.getfile(function if inspect.isroutine(function) else type(function))
    except TypeError:
        return ""


def options_of(name: str) -> frozenset[str]:
    """Names of a built-in function's options: a column of the prompts that has such a name is not meant."""
    if name not in BUILT_IN:
        return frozenset()
    return frozenset(p.name for p in _parameters(name) if p.kind is p.KEYWORD_ONLY)


def check_columns(name: str, columns: Collection[str], options: Collection[str]) -> None:
    """Raise RewardError, naming them, unless every parameter that a function cannot do without is among these columns or options."""
    needed = [p for p in _parameters(name) if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.default is p.empty]
    missing = [p.name for p in needed if p.name not in columns and p.name not in options]
    if missing:
        raise RewardError(
            f"reward {name!r} needs {', '.join(map(repr, missing))}: there is no such column (there are {', '.join(sorted(columns))}); "
            f"add it to the prompts, or give it under reward_options.{name}"
        )
    positional = [p.name for p in _parameters(name) if p.kind is p.POSITIONAL_ONLY]
    if positional:
        raise RewardError(f"reward {name!r} takes {', '.join(map(repr, positional))} by position only: reward functions are called with keywords")


def _parameters(name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(load_reward(name)).parameters.values())
    except ValueError:  # a function written in C may not tell
        return []


def check_options(name: str, options: Mapping[str, Option]) -> None:
    """Raise RewardError unless `options` are parameters of the function `name`, of the type it gives them, with none missing.

    Keyword-only parameters are options; of a user's function any other named one may be given as an option too.
    """
    named = {p.name: p for p in _parameters(name) if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in GIVEN}
    own = {key: p for key, p in named.items() if p.kind is p.KEYWORD_ONLY} if name in BUILT_IN else named
    for key, value in options.items():
        if key not in own:
            raise RewardError(f"reward_options.{name}.{key}: {name} has no such option: {nearest(key, list(own)) if own else 'it has none'}")
        _check_type(f"reward_options.{name}.{key}", value, own[key])
    missing = [key for key, p in named.items() if p.kind is p.KEYWORD_ONLY and p.default is p.empty and key not in options]
    if missing:
        raise RewardError(f"reward_options.{name}: {name} needs {', '.join(missing)}: set it there")
    if name in BUILT_IN and not BUILT_IN[name].in_trainer:  # asked about nothing, it looks at its options all the same
        columns = [p.name for p in _parameters(name) if p.kind is p.POSITIONAL_OR_KEYWORD]
        columns += [str(options.get(key, p.default)) for key, p in own.items() if key.endswith("column") and options.get(key, p.default)]
        load_reward(name)(**{column: [] for column in columns}, **options)


def _check_type(where: str, value: Option, parameter: inspect.Parameter) -> None:
    """A value must be of its default's type, or without one of that which is written beside it; a whole number is a number, a list stands for a tuple."""
    default = parameter.default
    expected = parameter.annotation if default is parameter.empty else type(default)
    if expected not in (bool, int, float, str, list, tuple):
        return
    kinds: tuple[type, ...] = {float: (int, float), tuple: (tuple, list), list: (tuple, list)}.get(expected, (expected,))
    if not isinstance(value, kinds) or (isinstance(value, bool) and expected is not bool):
        as_default = "" if default is parameter.empty else f", as its default {default!r}"
        raise RewardError(f"{where} must be of type {kinds[-1].__name__}{as_default}, got {value!r}")


def code_hash(names: Sequence[str]) -> str:
    """First 16 hex digits over the code of these reward functions: changes when any of it may have changed.

    That of a built-in function is its file, what of grpo_core/rewards that imports, the sandbox where it needs that, and the versions of
    the libraries that decide with it. That of
    `package.module:function` is the file which defines the function and every .py file of its top-level package, for it may import any of
    them; of a module in no package it is the one file. Other packages are left out.
    """
    digest = hashlib.sha256()
    for name in sorted(names):
        for library in traits(name).libraries:
            digest.update(f"{name}\0{library}=={version(library)}\0".encode())
        for place, path in sorted(_code_files(name).items()):
            digest.update(f"{name}\0{place}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def code_hashes(names: Sequence[str]) -> dict[str, str]:
    """Function → the hash of its own code."""
    return {name: code_hash([name]) for name in names}


def _code_files(name: str) -> dict[str, Path]:
    """The files that hold a reward function's code, by a name that is the same in every checkout."""
    if name in BUILT_IN:
        return _built_in_files(BUILT_IN[name])
    module = name.partition(":")[0]
    path = Path(inspect.getfile(importlib.import_module(module)))
    own = Path(source_file(load_reward(name)) or path)
    depth = module.count(".") + (path.name == "__init__.py")
    if depth == 0:
        return {own.name: own, path.name: path}
    top = path.parents[depth - 1]
    shown = [file for file in top.rglob("*.py") if not any(part.startswith(".") for part in file.relative_to(top).parts)]
    return {own.name: own} | {f"{top.name}/{file.relative_to(top)}": file for file in shown}


def _built_in_files(function: BuiltIn) -> dict[str, Path]:
    """What a built-in function's verdict depends on; the sandbox as a whole, since its cells are sent files by name."""
    here = Path(__file__).parent
    found, waiting = {here / "calling.py"}, [here / f"{function.path.partition(':')[0].rpartition('.')[2]}.py"]
    while waiting:
        file = waiting.pop()
        found.add(file)
        waiting += [path for name in SIBLING.findall(file.read_text(encoding="utf-8")) if (path := here / f"{name}.py") not in found]
    if function.isolated:
        found |= set((here.parent / "sandbox").glob("*.py"))
    return {str(file.relative_to(here.parent)): file for file in found}
