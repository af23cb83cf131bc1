"""What each column of a user's file means: prompts as text or chat messages, answers, demonstrations and the rest, checked row by row."""

import json
import re
from typing import Any

from grpo_core.prompt_files import PromptFile, PromptsError, place, shown
from grpo_core.requirements import nearest

SPLITS = ("sft", "train", "select", "heldout")
OTHER_NAMES = {"test": "heldout", "eval": "heldout", "validation": "select", "valid": "select", "val": "select", "dev": "select", "training": "train"}
"""What data sets call their splits → what they are called here."""
ROLES = ("system", "user", "assistant", "tool")

Message = dict[str, str]
Prompt = str | list[Message]


def _missing_column(file: PromptFile, setting: str, name: str) -> PromptsError:
    names = list(file.columns)
    return PromptsError(
        f"{file.name}: prompts.{setting} is {name!r}, which is no column of the file: {nearest(name, names)}\n"
        f"  its columns: {', '.join(names)}\nremedy: name one of them in params.yaml, or rename the column"
    )


def required_column(file: PromptFile, setting: str, name: str) -> str:
    """`name` when the file has it, else an error naming the nearest column."""
    if name not in file.columns:
        raise _missing_column(file, setting, name)
    return name


def optional_column(file: PromptFile, setting: str, name: str, default: str, *, strict: bool) -> str | None:
    """`name` when the file has it, else None; under `strict` a name that someone chose (not the default) must be there."""
    if name in file.columns:
        return name
    if strict and name not in ("", default):
        raise _missing_column(file, setting, name)
    return None


def _scalar_text(value: Any) -> str | None:
    """Text as it is, numbers and truth values as JSON writes them; None for anything else."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, bool | int | float) else None


def texts(file: PromptFile, column: str) -> list[str | None]:
    """The column as text, None where a row has nothing; lists and objects are an error."""
    values = file.values(column)
    faults = [(i, shown(value)) for i, value in enumerate(values) if value is not None and _scalar_text(value) is None]
    file.refuse(
        f"column {column!r} holds what is neither text nor a number", faults, "write it as text; lists may stand in columns of their own, which are kept"
    )
    return [None if value is None else _scalar_text(value) for value in values]


def non_empty_texts(file: PromptFile, column: str) -> list[str | None]:
    """The column as text, with blank cells counted as nothing."""
    return [value if value is not None and value.strip() else None for value in texts(file, column)]


def _message_fault(message: Any) -> str | None:
    """What is wrong with one chat message, or None."""
    if not isinstance(message, dict) or {name for name, value in message.items() if value is not None} != {"role", "content"}:
        return f"a message is an object with exactly role and content, not {shown(message)}"
    if message["role"] not in ROLES:
        return f"role {message['role']!r} is none of {', '.join(ROLES)}"
    if not isinstance(message["content"], str) or not message["content"].strip():
        return f"the {message['role']} message is empty or not text: {shown(message['content'])}"
    return None


def _prompt_fault(value: Any) -> str | None:
    """What is wrong with one prompt, or None."""
    if value is None or (isinstance(value, str) and not value.strip()) or value == []:
        return f"empty prompt {value!r}"
    if isinstance(value, str):
        return None
    if not isinstance(value, list):
        return f"a prompt is text or a list of messages, not {shown(value)}"
    fault = next((fault for message in value if (fault := _message_fault(message))), None)
    if fault is None and value[-1]["role"] != "user":
        return f"the last message must be the user's, not the {value[-1]['role']}'s"
    return fault


def prompts(file: PromptFile, column: str) -> list[Prompt]:
    """The column's prompts, each text or a list of {role, content} messages that ends with the user's."""
    values = file.values(column)
    faults = [(i, fault) for i, value in enumerate(values) if (fault := _prompt_fault(value))]
    file.refuse(f"unusable prompts in column {column!r}", faults, "correct or remove these rows")
    return [value if isinstance(value, str) else [{"role": m["role"], "content": m["content"]} for m in value] for value in values]


def answers(file: PromptFile, column: str, pattern: str) -> list[str]:
    """The column's answers, stripped of outer white space; with a pattern, what its first group matches first."""
    values = texts(file, column)
    if pattern:
        compiled = re.compile(pattern)
        found = [compiled.search(value or "") for value in values]
        faults = [(i, shown(values[i])) for i, match in enumerate(found) if match is None]
        file.refuse(f"prompts.answer_pattern {pattern!r} matches nothing in column {column!r}", faults, "correct the pattern in params.yaml, or these rows")
        values = [match and match.group(1) for match in found]
    stripped = [(value or "").strip() for value in values]
    faults = [(i, f"empty answer {values[i]!r}") for i, value in enumerate(stripped) if not value]
    file.refuse(f"empty answers in column {column!r}", faults, "give these rows an answer or remove them")
    return stripped


def check_ids(file: PromptFile, column: str) -> None:
    """Raise unless all ids that the file gives differ."""
    first: dict[str, int] = {}
    faults = []
    for i, value in enumerate(non_empty_texts(file, column)):
        if value is None:
            continue
        if value in first:
            faults.append((i, f"id {value!r} is also that of {place(file.name, file.rows[first[value]])}"))
        first.setdefault(value, i)
    file.refuse(f"ids in column {column!r} appear twice", faults, "give every row an id of its own, or set prompts.id_column to '' if it is no id")


def _meant_split(name: str) -> str:
    """A hint; never that somebody's test set be trained on because the names look alike."""
    ours = OTHER_NAMES.get(name.casefold())
    return f"here it is called {ours!r}" if ours else nearest(name, list(SPLITS))


def splits(file: PromptFile, column: str) -> list[str]:
    """The column's splits, every one a known name."""
    values = texts(file, column)
    faults = [(i, f"split {value!r}: {_meant_split(value or '')}") for i, value in enumerate(values) if value not in SPLITS]
    remedy = f"use {', '.join(SPLITS)} (a test set is heldout, a validation set is select), or set prompts.split_column to '' to split by hash"
    file.refuse(f"unknown splits in column {column!r}", faults, remedy)
    return [str(value) for value in values]
