"""What changed between two runs, and what it did: every difference of what they were made from, and of what came out, with intervals."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from assets.lineage import PARENTS, Lineage
from pipelines.git import git_says
from pipelines.lineage.effects import Effect, effects
from pipelines.lineage.trace import Trace, find, trace

if TYPE_CHECKING:
    from pipelines.records.runs import Run

WINDOW = 10
"""Steps at the end of each run that are compared."""
CODE = ("grpo_core", "assets", "pipelines", "reward_functions", "dvc.yaml", "pyproject.toml", "constraints.txt")
"""What of a snapshot is code: numbers are compared key by key instead."""
UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that the two runs do not share."""

    kind: str
    """configuration, data, code, library, machine or weights."""
    what: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs side by side. Plain values throughout: `asdict` is its JSON."""

    a: Mapping[str, str | None]
    b: Mapping[str, str | None]
    window: int
    changes: list[Change]
    code_diff: str
    """`git diff --stat` of the code that ran; empty when it is the same, or when a snapshot is not here."""
    effects: list[Effect]
    same_weights: bool
    """Both policies hold the same weights."""
    notes: list[str]
    """What could not be compared, and what a number must not be taken for."""


def compare(first: "Run", second: "Run", window: int = WINDOW) -> Comparison:
    """Compare the second run with the first; whatever is not on this machine is left out and named in `notes`."""
    a, b = trace(first), trace(second)
    notes: list[str] = []
    changes = [*_settings(a.made_from, b.made_from, notes), *_data(first, second, a, b, notes), *_code(a, b), *_surroundings(a, b), *_weights(a, b)]
    found, more = effects(first, second, a, b, window)
    digests = [_policy_digest(one.made_from) for one in (a, b)]
    return Comparison(
        a=a.run,
        b=b.run,
        window=window,
        changes=changes,
        code_diff=code_diff(first.root, a.made_from, b.made_from, notes),
        effects=found,
        same_weights=digests[0] is not None and digests[0] == digests[1],
        notes=list(dict.fromkeys([*notes, *more, *_absent("A", a), *_absent("B", b)])),
    )


def as_json(found: Comparison) -> str:
    """The whole comparison for machines."""
    return json.dumps(asdict(found), indent=2, ensure_ascii=False, default=str)


# ------------------------------------------------------------------------------------------------------- what changed


def differing(kind: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Change]:
    """A change for every key whose values are not the same; a key that one side lacks is None there."""
    return [Change(kind, key, a.get(key), b.get(key)) for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)]


def flat(config: Mapping[str, Mapping[str, Any]], sections: Iterable[str]) -> dict[str, Any]:
    """`section.key` → value."""
    return {f"{section}.{key}": value for section in sections for key, value in config[section].items()}


def _settings(a: Lineage, b: Lineage, notes: list[str]) -> list[Change]:
    both = [section for section in a.config if section in b.config]
    unknown = [section for section in dict.fromkeys([*a.config, *b.config]) if section not in both]
    if unknown or not both:
        notes.append(f"configuration: {', '.join(unknown) or 'every section'} could not be compared: not known of both runs")
    return [change for section in both for change in differing("configuration", flat(a.config, [section]), flat(b.config, [section]))]


def _data(first: "Run", second: "Run", a: Trace, b: Trace, notes: list[str]) -> list[Change]:
    """Another table of prompts: its hash, and where both tables are here the rows that came, went, moved or changed."""
    by_kind = {kind: [one.made_from.prompts.get(kind) for one in (a, b)] for kind in ("sha256", "md5")}
    kind = next((kind for kind, hashes in by_kind.items() if None not in hashes), None)
    if kind is None:
        notes.append("data: the hash of the prompts is not known of both runs")
        return []
    hashes = by_kind[kind]
    if hashes[0] == hashes[1]:
        return []
    changed = [Change("data", f"prompts {kind}", *hashes)]
    tables = [find(run, Path(PARENTS["prompts"])) if "splits" in one.made_from.prompts else None for run, one in ((first, a), (second, b))]
    if tables[0] is None or tables[1] is None:
        notes.append("data: rows could not be compared: a table of prompts is not on this machine")
        return changed
    return changed + rows_changed(pl.read_parquet(tables[0]), pl.read_parquet(tables[1]))


def rows_changed(a: pl.DataFrame, b: pl.DataFrame) -> list[Change]:
    """Rows of each split before and after, and how many were added, removed, moved to another split, or have other content under their id."""
    splits = [dict(table.group_by("split").len().sort("split").rows()) for table in (a, b)]
    changed = differing("data", *({f"rows in {split}": rows for split, rows in counts.items()} for counts in splits))
    content = [name for name in ("prompt", "messages", "answer", "completion") if name in a.columns and name in b.columns]
    both = a.select("prompt_id", "split", *content).join(b.select("prompt_id", "split", *content), on="prompt_id", suffix="_b")
    altered = pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_b")) for name in content)
    counts = {
        "rows added": len(b.join(a, on="prompt_id", how="anti")),
        "rows removed": len(a.join(b, on="prompt_id", how="anti")),
        "rows with other text or answer": len(both.filter(altered)),
    }
    moves = both.filter(pl.col("split") != pl.col("split_b")).group_by("split", "split_b").len().sort("split", "split_b").rows()
    counts |= {f"rows moved from {before} to {after}": rows for before, after, rows in moves}
    return changed + [Change("data", what, 0, rows) for what, rows in counts.items() if rows]


def _code(a: Trace, b: Trace) -> list[Change]:
    named = [{key: one.made_from.code.get(key) for key in ("commit", "snapshot")} for one in (a, b)]
    known = [{key: value for key, value in names.items() if value and all(other.get(key) for other in named)} for names in named]
    hashes = [{"reward code hash": one.made_from.reward_code_hash} for one in (a, b)]
    return [*differing("code", *known), *(differing("code", *hashes) if None not in (hashes[0]["reward code hash"], hashes[1]["reward code hash"]) else [])]


def _surroundings(a: Trace, b: Trace) -> list[Change]:
    """Libraries and machine, where both are known."""
    one, other = a.made_from, b.made_from
    libraries = differing("library", one.libraries, other.libraries) if one.libraries and other.libraries else []
    machines = [_flat_machine(found.machine) for found in (one, other)]
    return [*libraries, *(differing("machine", *machines) if all(machines) else [])]


def _weights(a: Trace, b: Trace) -> list[Change]:
    """Another starting point or reference."""
    known = [
        {name: weights["policy_digest"] for name, weights in one.made_from.weights.items() if name != "policy" and weights["policy_digest"]} for one in (a, b)
    ]
    both = known[0].keys() & known[1].keys()
    return [change for change in differing("weights", *known) if change.what in both]


def _flat_machine(machine: Mapping[str, Any]) -> dict[str, Any]:
    """The machine, a key a value; which host it was is no difference."""
    flattened: dict[str, Any] = {}
    for key, value in machine.items():
        if key != "host":
            flattened |= {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, Mapping) else {key: value}
    return flattened


def _absent(name: str, found: Trace) -> list[str]:
    return [f"{name}: {reason}" for reason in found.made_from.missing]


def _policy_digest(found: Lineage) -> str | None:
    return found.weights.get("policy", {}).get("policy_digest")


def code_diff(root: Path, a: Lineage, b: Lineage, notes: list[str]) -> str:
    """`git diff --stat` between the code that made the two; a snapshot that is not here is named in `notes`."""
    trees = [str(found.code.get("snapshot") or found.code.get("commit") or "") for found in (a, b)]
    if not all(trees):
        notes.append("code: not known of both runs")
        return ""
    if trees[0] == trees[1]:
        return ""
    for tree in trees:
        if git_says(root, "cat-file", "-e", f"{tree}^{{commit}}") is None:
            fetched = "git fetch REMOTE 'refs/grpo/*:refs/grpo/*'"
            notes.append(f"code: snapshot {tree[:12]} is not in this Git repository; fetch it from where the run was made ({fetched})")
            return ""
    return git_says(root, "-c", "core.quotePath=false", "diff", "--stat=110", *trees, "--", *CODE) or ""
