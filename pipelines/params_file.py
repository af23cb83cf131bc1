"""params.yaml changed in place: whatever is not changed stays as it is to the byte."""

import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from grpo_core.checkpoint import write_file
from grpo_core.requirements import ConfigError


def editor() -> YAML:
    """The parser and printer that keep comments, quotes and line ends."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def write(path: Path, text: str) -> None:
    """Replace the file in one move; a link stays one, and so do the permissions."""
    place = path.resolve()

    def fill(partial: Path) -> None:
        partial.write_bytes(text.encode("utf-8"))
        partial.chmod(place.stat().st_mode)

    write_file(place, fill)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """No other of our processes changes params.yaml in this folder in the meantime."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def change_experiments(path: Path, added: Mapping[str, Mapping[str, Any]], removed: Collection[str] = ()) -> None:
    """Add and take out experiments. Raises `ConfigError`, with the file as it was, where what came out would not say that and nothing else."""
    text = path.read_bytes().decode("utf-8")
    before = YAML(typ="safe", pure=True).load(text)
    kept = {name: values for name, values in before["experiments"].items() if name not in removed}
    after = with_experiments(text, added, removed)
    try:
        found = YAML(typ="safe", pure=True).load(after)
    except YAMLError:
        found = None
    if found != {**before, "experiments": {**kept, **added}}:
        names = ", ".join([*added, *removed])
        raise ConfigError(f"{path} is written in a way that a program cannot change without changing more: add or take out {names} by hand")
    write(path, after)


def with_experiments(text: str, added: Mapping[str, Mapping[str, Any]], removed: Collection[str] = ()) -> str:
    """The text of params.yaml with each of the `added` experiments on a line of its own behind the last one, and without the removed.

    Lines of other experiments, comments between them included, stay where they are. Raises `ConfigError` where experiments are not one below another.
    """
    document = editor().load(text)
    declared = document["experiments"]
    if declared.fa.flow_style():
        raise ConfigError("experiments in params.yaml stand in one pair of braces: write each on a line of its own (`experiments:`, below it `  default: {}`)")
    if declared.merge:
        raise ConfigError("experiments in params.yaml take others in by `<<`: write each on a line of its own first")
    lines, spans = text.removesuffix("\n").split("\n"), _spans(text, document)
    indent, ending = " " * min(declared.lc.key(name)[1] for name in declared), "\r" * text.endswith("\r\n")
    end = max(end for _, end in spans.values())
    lines[end:end] = [f"{indent}{_on_one_line(name, values)}{ending}" for name, values in added.items()]
    # From below, so that the places of those above stay right.
    for name in sorted(removed, key=lambda name: spans[name], reverse=True):
        start, end = spans[name]
        del lines[start:end]
    return "\n".join(lines) + "\n"


def _spans(text: str, document: CommentedMap) -> dict[str, tuple[int, int]]:
    """Experiment → its first line and the one after its last, comments and empty lines below it aside."""
    declared, lines = document["experiments"], text.removesuffix("\n").split("\n")
    starts = {name: declared.lc.key(name)[0] for name in declared}
    keys = sorted([*starts.values(), *(document.lc.key(section)[0] for section in document), len(lines)])
    spans = {}
    for name, start in starts.items():
        end = next(line for line in keys if line > start)
        while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
            end -= 1
        spans[name] = (start, end)
    return spans


def _on_one_line(name: str, values: Mapping[str, Any]) -> str:
    """`name: {section: {key: value}}`."""
    stream = StringIO()
    editor().dump({name: _in_braces(values)}, stream)
    return stream.getvalue().rstrip("\n")


def _in_braces(values: Mapping[str, Any]) -> CommentedMap:
    line = CommentedMap({key: _in_braces(value) if isinstance(value, Mapping) else value for key, value in values.items()})
    line.fa.set_flow_style()
    return line
