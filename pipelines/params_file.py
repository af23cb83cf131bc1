"""params.yaml changed in place: whatever is not changed stays as it is to the byte."""

from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from grpo_core.requirements import ConfigError


def editor() -> YAML:
    """The parser and printer that keep comments, quotes and line ends."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def write(path: Path, text: str) -> None:
    """Replace the file in one move."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def with_experiments(text: str, changed: Mapping[str, Mapping[str, Any]], removed: Iterable[str] = ()) -> str:
    """The text of params.yaml with each of the `changed` experiments on a line of its own, behind the last one where it is new, and without the removed.

    Lines of other experiments, comments between them included, stay where they are. Raises `ConfigError` where experiments are not one below another.
    """
    document = editor().load(text)
    declared = document["experiments"]
    if declared.fa.flow_style():
        raise ConfigError("experiments in params.yaml stand in one pair of braces: write each on a line of its own (`experiments:`, below it `  default: {}`)")
    lines, spans, gone = text.splitlines(), _spans(text, document), set(removed)
    indent = " " * min(declared.lc.key(name)[1] for name in declared)
    end = max(end for _, end in spans.values())
    lines[end:end] = [f"{indent}{_on_one_line(name, values)}" for name, values in changed.items() if name not in spans]
    # From below, so that the places of those above stay right.
    for name, (start, end) in sorted(spans.items(), key=lambda item: item[1], reverse=True):
        if name in changed:
            lines[start:end] = [f"{indent}{_on_one_line(name, changed[name])}"]
        elif name in gone:
            del lines[start:end]
    return "\n".join(lines) + "\n"


def _spans(text: str, document: CommentedMap) -> dict[str, tuple[int, int]]:
    """Experiment → its first line and the one after its last, comments and empty lines below it aside."""
    declared, lines = document["experiments"], text.splitlines()
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
