"""What a report says of where a run came from: its configuration, its files, and how each stage made them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assets.lineage import SHORT, changed_settings
from grpo_core.config import SECTIONS, RunConfig
from grpo_core.params import section_values
from pipelines.report.grids import Grid, setting_text
from pipelines.report.sources import Sources


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of the configuration."""

    name: str
    value: str
    default: str | None
    """What it would be; None where the value is the default."""


def settings(config: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Setting]]:
    """Section → its values as they were in force, those that are not at their defaults with what those are."""
    changed = changed_settings(config)
    found: dict[str, list[Setting]] = {}
    for section, values in config.items():
        usual = section_values(RunConfig(), section) if section in SECTIONS else {}
        found[section] = []
        for key in dict.fromkeys([*values, *(usual if section == "rewards" else ())]):
            name = f"{section}.{key}"
            default = setting_text(changed[name][1]) if name in changed else None
            found[section].append(Setting(key, setting_text(values[key]) if key in values else "left out", default))
    return found


def files(sources: Sources) -> Grid:
    """Every output with where its bytes are, and how many."""
    root = sources.paths.root

    def place(path: str, where: Path | None) -> tuple[str, str]:
        if where is None:
            return "not there", ""
        inside = where.relative_to(root).as_posix() if where.is_relative_to(root) else str(where)
        return "in the checkout" if inside == path.rstrip("/") else inside, f"{where.stat().st_size:,}" if where.is_file() else ""

    rows = [(path, *place(path, where)) for path, where in sources.files.items()]
    return Grid(("file", "where", "bytes"), rows, frozenset(("bytes",)))


def stages(sources: Sources) -> Grid | None:
    """When each stage ran, for how long, and from which commit."""
    rows = []
    for noun, made in sources.made_from.stages.items():
        commit, snapshot = made.get("commit"), made.get("snapshot")
        code = "not in Git" if commit is None else commit[:SHORT] + (f" + changes (snapshot {snapshot[:SHORT]})" if snapshot not in (None, commit) else "")
        rows.append((noun, _when(made.get("started")), "" if made.get("wall_seconds") is None else f"{made['wall_seconds']:,.1f}", code))
    return Grid(("stage", "started (UTC)", "seconds", "commit"), rows, frozenset(("seconds",))) if rows else None


def hashes(sources: Sources) -> Grid | None:
    """What every stage read and wrote, by the hashes under which DVC knows it."""
    rows = []
    for noun, record in sources.records.items():
        rows += [(noun, kind, path, md5) for kind, group in (("in", "deps"), ("out", "outs")) for path, md5 in record[group].items()]
    return Grid(("stage", "went", "file", "md5"), rows) if rows else None


def continued(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Rows with the name of the one that they continue joined to it, a line each."""
    joined: list[tuple[str, str]] = []
    for name, text in rows:
        if name:
            joined.append((name, text))
        else:
            joined[-1] = (joined[-1][0], f"{joined[-1][1]}\n{text}")
    return joined


def _when(started: str | None) -> str:
    return "" if started is None else started[:19].replace("T", " ")
