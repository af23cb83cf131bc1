"""In a process of its own with a fixed hash seed: questions of a reasoning-gym task, as JSON. Run as a script; it imports nothing of the project.

Some tasks go through Python sets, whose order follows the hash seed; in another process the same seed would make other questions.
"""

import contextlib
import difflib
import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

MIXTURE = "composite"
"""reasoning-gym's mixture of tasks: its parts are tasks by themselves."""
MAX_REPEATS = 20
"""Questions drawn for each one asked for, before a task counts as exhausted."""
EXAMPLES = ("example_answer", "example_correct_answer", "possible_answer")
"""Where the metadata of tasks with many right answers hold one."""
UNSOLVED = "Integral("
"""In an answer of an integration task: its generator found no antiderivative, so the question repeats itself as the answer."""


def generated(task: str, config: Mapping[str, Any], size: int, seed: int) -> dict[str, Any]:
    """`rows`, or an `error` to be shown: what is wrong with the task's name, its configuration or the number of questions."""
    from reasoning_gym.factory import DATASETS, create_dataset

    if task not in DATASETS or task == MIXTURE:
        return {"error": f"prompts.reasoning_gym: no task {task!r} in reasoning-gym: {nearest(task, [name for name in DATASETS if name != MIXTURE])}"}
    known = [field.name for field in fields(DATASETS[task][1]) if field.name not in ("seed", "size")]
    for key in config:
        if key not in known:
            return {"error": f"prompts.reasoning_gym_config.{key}: {task} has no such key: {nearest(key, known)}"}
    try:
        dataset = create_dataset(task, seed=seed, size=size * MAX_REPEATS, **config)
    except (AssertionError, TypeError, ValueError) as error:
        return {"error": f"prompts.reasoning_gym_config: {task} does not take {dict(config)}: {error}"}
    rows: dict[str, dict[str, Any]] = {}
    for index in range(size * MAX_REPEATS):
        entry = dataset[index]
        if UNSOLVED not in str(entry["answer"]):
            rows.setdefault(" ".join(entry["question"].split()), row(task, config, entry))
        if len(rows) == size:
            return {"rows": list(rows.values())}
    many = f"{len(rows)} different questions among {size * MAX_REPEATS}"
    return {"error": f"prompts.num_generated must be at most {len(rows)}: {task} made {many}; lower it, or widen prompts.reasoning_gym_config"}


def row(task: str, config: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table of prompts. `reasoning_entry` holds what the task's verifier needs: its configuration and the entry."""
    metadata = entry["metadata"]
    answer = entry["answer"] if entry["answer"] is not None else next((shown(metadata[name]) for name in EXAMPLES if name in metadata), "")
    kept = {name: held for name, held in metadata.items() if name != "difficulty"}
    marked_entry = {"question": entry["question"], "answer": entry["answer"], "metadata": marked(kept)}
    record = json.dumps({"config": {name: marked(value) for name, value in config.items()}, "entry": marked_entry}, allow_nan=False)
    return {"prompt": entry["question"], "answer": str(answer), "task": task, "difficulty": level(metadata.get("difficulty")), "reasoning_entry": record}


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def level(difficulty: Any) -> str | None:
    """`num_terms 2-6, num_digits 1-4`: lists of weights and other long things are left out."""
    if not isinstance(difficulty, dict):
        return None if difficulty is None else str(difficulty)
    ranges = {name: "-".join(map(str, value)) if isinstance(value, list | tuple) else value for name, value in difficulty.items()}
    return ", ".join(f"{name} {value}" for name, value in ranges.items() if len(str(value)) <= 20) or None


def marked(value: Any) -> Any:
    """`value` as JSON that loses nothing: every list says what it was, for a verifier can tell a tuple from a list.

    `exact` in sandbox/grading_side.py is the way back.
    """
    if isinstance(value, dict):
        if all(type(key) is str for key in value):
            return {key: marked(held) for key, held in value.items()}
        return ["dict", *([*("tuple", marked(key), marked(held))] for key, held in value.items())]
    for kind in (list, tuple):
        if isinstance(value, kind):
            return [kind.__name__, *map(marked, value)]
    if isinstance(value, set | frozenset):
        return ["set", *sorted(map(marked, value))]
    if value is None or isinstance(value, bool):
        return value
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    if hasattr(value, "item"):  # a number of numpy
        return marked(value.item())
    raise TypeError(f"reasoning-gym put a {type(value).__name__} into an entry, which cannot be written down")


def nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(names))}"


def main() -> None:
    """Read what to generate as JSON, write it as JSON; what the library prints does not get in between."""
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        made = generated(**asked)
    json.dump(made, sys.stdout)


if __name__ == "__main__":
    main()
