"""The table of prompts: a user's file or the embedded task, wrapped, split by content and checked, so that nothing held out is trained on."""

import hashlib
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from grpo_core import addition, prompt_columns, reasoning_tasks
from grpo_core.config import PromptsConfig
from grpo_core.prompt_columns import SPLITS, Message, Prompt
from grpo_core.prompt_files import PromptFile, PromptsError, place, prompts_error, read_file, shown

__all__ = ["COLUMNS", "SPLITS", "PromptsError", "assign_split", "content", "make_prompts", "normalise", "read_prompts", "wrapped"]

GENERATED = "generated"
"""`source_file` of rows that the embedded task, or one of reasoning-gym, made."""

COMES_WITH = ("answer", "completion", "task", "difficulty")
"""What a generated prompt may have beside its text; other columns follow the table's own."""

SCHEMA = {
    "prompt_id": pl.String(),
    "prompt": pl.String(),
    "messages": pl.List(pl.Struct({"role": pl.String(), "content": pl.String()})),
    "answer": pl.String(),
    "completion": pl.String(),
    "split": pl.String(),
    "task": pl.String(),
    "difficulty": pl.String(),
    "source_file": pl.String(),
    "source_row": pl.Int64(),
}
COLUMNS = tuple(SCHEMA)
"""Columns of every table of prompts; a file's other columns follow them."""

RESERVED = (*COLUMNS, "prompts", "completions")
"""Names that a file's other columns cannot have: the last two are what reward functions are called with."""


def normalise(text: str) -> str:
    """`text` without the differences that do not make it another prompt: case, white space and Unicode form (NFKC)."""
    for _ in range(2):  # The form can bring capitals back (a superscript H becomes H), so case is folded again.
        text = unicodedata.normalize("NFKC", text.casefold())
    return " ".join(text.split())


def content(prompt: Prompt) -> str:
    """What makes a prompt itself, normalised: its text, or its messages without the system's, so that a question is one prompt however it is asked."""
    if isinstance(prompt, str):
        return normalise(prompt)
    turns = [message for message in prompt if message["role"] != "system"]
    if len(turns) == 1:
        return normalise(turns[0]["content"])
    return "\n".join(f"{message['role']}: {normalise(message['content'])}" for message in turns)


def assign_split(text: str, config: PromptsConfig) -> str:
    """The split of a prompt: a function of seed and normalised text alone, so other rows, and new ones, never move it.

    Held-out comes first on the line from 0 to 1, so that changing the other shares never moves a prompt out of it. With a held-out
    file of its own, the held-out share goes to `train`.
    """
    digest = hashlib.sha256(f"split\n{config.seed}\n{normalise(text)}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    heldout_end = config.heldout_fraction
    select_end = heldout_end + config.select_fraction
    if position < heldout_end:
        return "train" if config.heldout_path else "heldout"
    if position < select_end:
        return "select"
    return "sft" if position < select_end + config.sft_fraction else "train"


def wrapped(prompt: Prompt, config: PromptsConfig) -> tuple[str, list[Message] | None]:
    """Prompt text (of a chat its last message) and chat messages as the model gets them."""
    if isinstance(prompt, str):
        text = config.template.replace("{prompt}", prompt)
        messages = [{"role": "user", "content": text}] if config.chat else None
    else:
        text, messages = prompt[-1]["content"], prompt
    if messages is not None and config.system_prompt and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": config.system_prompt}, *messages]
    return text, messages


def _table(prompts: Sequence[Prompt], splits: Sequence[str], config: PromptsConfig, columns: dict[str, object]) -> pl.DataFrame:
    texts = [wrapped(prompt, config) for prompt in prompts]
    ids = [hashlib.sha256(content(prompt).encode()).hexdigest()[:16] for prompt in prompts]
    made = {"prompt_id": ids, "prompt": [text for text, _ in texts], "messages": [messages for _, messages in texts], "split": splits}
    data = made | columns
    return pl.DataFrame({name: data[name] for name in SCHEMA}, schema=SCHEMA)


def _check_repeats(frame: pl.DataFrame) -> None:
    """Raise when two rows hold the same normalised prompt: across splits that is a leak, within one GRPO would count it twice."""
    repeated = frame.filter(pl.col("prompt_id").is_duplicated())
    if repeated.is_empty():
        return
    pairs = []
    for _, rows in repeated.group_by("prompt_id", maintain_order=True):
        first, *others = rows.select("source_file", "source_row", "split", "prompt").iter_rows()
        pairs += [(first, other) for other in others]
    leaks = [pair for pair in pairs if len({pair[0][2], pair[1][2]} & {"select", "heldout"}) and pair[0][2] != pair[1][2]]
    offenders = [f"{place(*b[:2])} ({b[2]}) repeats {place(*a[:2])} ({a[2]}): {shown(b[3])}" for a, b in leaks or pairs]
    what = "evaluation prompts are also in another split" if leaks else "prompts appear twice"
    raise prompts_error(
        f"{what} (compared without case, white space, Unicode form and system messages)",
        offenders,
        "remove one row of each pair, so that every prompt has one place",
    )


def _splits(file: PromptFile, prompts: Sequence[Prompt], completions: Sequence[str | None], config: PromptsConfig, given: str | None) -> list[str]:
    """Every row's split: as `given` for the file, as its column says, or by hash. Hashed rows without a demonstration leave `sft` to `train`."""
    column = prompt_columns.optional_column(file, "split_column", config.split_column, PromptsConfig().split_column, strict=given is None)
    named = prompt_columns.splits(file, column) if column else None
    if given is not None:
        faults = [(i, f"split {name!r}") for i, name in enumerate(named or []) if name != given]
        file.refuse(f"every row of this file is {given}, some say otherwise", faults, f"write {given}, or remove the column {column!r}")
        return [given] * len(prompts)
    if named is None:
        hashed = [assign_split(content(prompt), config) for prompt in prompts]
        return ["train" if split == "sft" and completion is None else split for split, completion in zip(hashed, completions, strict=True)]
    faults = [(i, shown(prompts[i])) for i, split in enumerate(named) if split == "sft" and completions[i] is None]
    file.refuse(f"sft rows without a demonstration in column {config.completion_column!r}", faults, "give them a completion, or move them to train")
    return named


def _extra_columns(file: PromptFile, used: set[str | None]) -> list[pl.Series]:
    """The file's other columns, for reward functions."""
    names = [name for name in file.columns if name not in used]
    taken = [name for name in names if name in RESERVED]
    if taken:
        raise PromptsError(
            f"{file.name}: columns {', '.join(map(repr, taken))} cannot be passed on: these names belong to the table of prompts and to reward functions\n"
            "remedy: rename or remove them, or map them in the prompts section of params.yaml"
        )
    return [file.series(name) for name in names]


def read_prompts(path: Path, config: PromptsConfig, split: str | None = None) -> pl.DataFrame:
    """The prompts of one file as a table; with `split` every row belongs to it. Raises `PromptsError` at the first kind of bad row."""
    file, defaults = read_file(path), PromptsConfig()
    prompt_column = prompt_columns.required_column(file, "prompt_column", config.prompt_column)
    answer_column = prompt_columns.required_column(file, "answer_column", config.answer_column)

    def optional(setting: str, name: str, default: str) -> str | None:
        return prompt_columns.optional_column(file, setting, name, default, strict=split is None)

    completion_column = optional("completion_column", config.completion_column, defaults.completion_column)
    difficulty_column = optional("difficulty_column", config.difficulty_column, defaults.difficulty_column)
    id_column = optional("id_column", config.id_column, defaults.id_column)
    if id_column:
        prompt_columns.check_ids(file, id_column)

    def text_column(name: str | None) -> list[str | None]:
        return prompt_columns.non_empty_texts(file, name) if name else [None] * len(file.rows)

    prompts = prompt_columns.prompts(file, prompt_column)
    if config.template != defaults.template:
        faults = [(i, shown(prompt)) for i, prompt in enumerate(prompts) if not isinstance(prompt, str)]
        file.refuse("prompts.template cannot wrap chat messages", faults, "leave the template '{prompt}', or give these prompts as text")
    completions = text_column(completion_column)
    tasks = text_column("task" if "task" in file.columns else None)
    columns: dict[str, object] = {
        "answer": prompt_columns.answers(file, answer_column, config.answer_pattern),
        "completion": completions,
        "task": [task or config.task for task in tasks],
        "difficulty": text_column(difficulty_column),
        "source_file": [file.name] * len(file.rows),
        "source_row": file.rows,
    }
    frame = _table(prompts, _splits(file, prompts, completions, config, split), config, columns)
    _check_repeats(frame)
    split_column = config.split_column if config.split_column in file.columns else None
    used = {prompt_column, answer_column, completion_column, difficulty_column, split_column, "task"}
    return frame.with_columns(_extra_columns(file, used))


def _generated(config: PromptsConfig) -> pl.DataFrame:
    if config.reasoning_gym:
        try:
            made = reasoning_tasks.generate(config.reasoning_gym, config.reasoning_gym_config, config.num_generated, config.seed)
        except ValueError as error:
            raise PromptsError(str(error)) from error
    else:
        made = addition.generate(config.num_generated, config.num_digits, config.seed)
    prompts = made["prompt"].to_list()
    columns: dict[str, object] = {name: made[name].to_list() if name in made.columns else [None] * len(made) for name in COMES_WITH}
    columns |= {"source_file": [GENERATED] * len(prompts), "source_row": list(range(1, len(prompts) + 1))}
    splits = [assign_split(prompt, config) for prompt in prompts]
    if "completion" not in made.columns:
        splits = ["train" if split == "sft" else split for split in splits]
    return _table(prompts, splits, config, columns).with_columns(made.drop("prompt", *COMES_WITH, strict=False))


def _configured(root: Path, path: str, config: PromptsConfig, split: str | None = None) -> pl.DataFrame:
    """A file's prompts, with its name as params.yaml has it: the table must not depend on where the repository lies."""
    return read_prompts(root / path, config, split).with_columns(source_file=pl.lit(path))


def _together(frame: pl.DataFrame, heldout: pl.DataFrame, config: PromptsConfig) -> pl.DataFrame:
    """Both files' rows; a column that only one of them has is empty in the other's rows."""
    for name in frame.columns:
        if name in heldout.columns and frame.schema[name] != heldout.schema[name]:
            raise PromptsError(
                f"column {name!r} is {frame.schema[name]} in {config.path} and {heldout.schema[name]} in {config.heldout_path}\n"
                "remedy: write the same kind of value in both files"
            )
    return pl.concat([frame, heldout], how="diagonal")


def _check_splits(frame: pl.DataFrame, config: PromptsConfig) -> None:
    """Raise when a split that every run needs is empty (`sft` may be: GRPO can start from a given model)."""
    counts = {split: frame.filter(pl.col("split") == split).height for split in SPLITS}
    empty = [split for split in ("train", "select", "heldout") if counts[split] == 0]
    if empty:
        raise PromptsError(
            f"{config.path or 'the generated prompts'}: no prompt in {' and '.join(empty)} ({', '.join(f'{split} {n}' for split, n in counts.items())})\n"
            "remedy: add prompts, change prompts.sft_fraction, select_fraction or heldout_fraction (train is the rest), "
            f"or name every row's split in a column {config.split_column or 'split'!r}"
        )


def make_prompts(config: PromptsConfig, root: Path) -> pl.DataFrame:
    """The whole table: the file at `root / config.path` (and the held-out file), or the embedded task; every row split, every prompt once."""
    if config.path == "":
        frame = _generated(config)
    elif config.heldout_path == "":
        frame = _configured(root, config.path, config)
    else:
        frame = _together(_configured(root, config.path, config), _configured(root, config.heldout_path, config, split="heldout"), config)
    _check_repeats(frame)
    _check_splits(frame, config)
    return frame
