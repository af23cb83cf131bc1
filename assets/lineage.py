"""What a trained policy was made from: gathered from its manifest, its stages' records and the files themselves, for the page and for `grpo trace`."""

import hashlib
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from grpo_core.config import SECTIONS, SHARED_SECTIONS, RunConfig
from grpo_core.params import section_values

Record = Mapping[str, Any]
"""How one stage's outputs were made."""
Locate = Callable[[str], Path]
"""Where the bytes of a repository-relative path are; may raise ValueError or OSError."""

SHORT = 12
"""Digits of a hash that people are shown."""
LONGEST_LINE = 180
HELD_IN_PART = ("health",)
"""Sections of which manifests hold only what changed a step."""
GLUE = "\u00a0"
MACHINE = ("python", "platform", "host", "cpu", "cpu_capability", "num_cpus", "threads", "determinism", "device")
STAGE = ("started", "wall_seconds", "commit", "snapshot")
PARENTS = {"prompts": "data/prompts/prompts.parquet", "sft_checkpoint": "data/sft_checkpoint", "reference_checkpoint": "data/reference_checkpoint"}
"""Noun that every experiment shares → the output by which the next stage knows it."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What one policy was made from. Whatever could not be found is empty, and named in `missing`."""

    experiment: str
    run_key: str | None = None
    step: int | None = None
    weights: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    """start, reference and policy → `folder`, `policy_digest`, `manifest_sha256`, and what it was made from (`parent`)."""
    prompts: Mapping[str, Any] = field(default_factory=dict)
    """`sha256` and DVC's `md5` of the table, `num_rows`, rows by `splits` and by `sources`."""
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Section → key → value, as the stages read it."""
    reward_code_hash: str | None = None
    """First 16 hex digits over the source files of the reward functions."""
    code: Mapping[str, Any] = field(default_factory=dict)
    """`commit`, whether it was `dirty`, and the `snapshot` commit that holds exactly what ran."""
    libraries: Mapping[str, str | None] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    """Python, processor, threads and switches that training ran under."""
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Noun → when its stage `started`, for how long (`wall_seconds`), from which `commit` and `snapshot`."""
    missing: tuple[str, ...] = ()
    """What could not be found or has changed since, and why."""


def lineage(experiment: str, records: Mapping[str, Record], locate: Locate) -> Lineage:
    """Gather what the policy of `experiment` was made from. Never raises: what is missing is said in the result."""
    missing: list[str] = []
    policy, policy_sha256 = _manifest(f"data/grpo_checkpoint/{experiment}", locate, missing)
    record = records.get("grpo_checkpoint", {})
    if record.get("started") is None:  # none at all, or one of which dvc.lock gave the hashes and nothing else
        missing.append("the record of the training: commit, library versions and machine are not known (it is written when the stage runs)")
    elif policy_sha256 and record.get("manifest_sha256") not in (None, policy_sha256):
        missing.append("the record found is that of another training than the checkpoint's")
        record = {}
    parents = policy.get("parents", {})
    start, start_sha256 = _manifest(PARENTS["sft_checkpoint"], locate, missing, expected=parents.get("start"))
    reference, reference_sha256 = _manifest(PARENTS["reference_checkpoint"], locate, missing, expected=parents.get("reference"))
    return Lineage(
        experiment=experiment,
        run_key=policy.get("run_key") or record.get("run_key"),
        step=policy.get("step"),
        weights={
            "start": _weights(PARENTS["sft_checkpoint"], start, parents.get("start") or start_sha256, start.get("parents", {}).get("model")),
            "reference": _weights(
                PARENTS["reference_checkpoint"], reference, parents.get("reference") or reference_sha256, reference.get("parents", {}).get("sft_checkpoint")
            ),
            "policy": _weights(f"data/grpo_checkpoint/{experiment}", policy, policy_sha256 or record.get("manifest_sha256"), parents.get("start")),
        },
        prompts=_prompts(parents.get("prompts"), record.get("deps", {}).get(PARENTS["prompts"]), locate, missing),
        config=_settings(experiment, records, locate, {**start.get("config", {}), **policy.get("config", {})}, missing),
        reward_code_hash=policy.get("reward_code_hash"),
        code={key: record.get(key) for key in ("commit", "dirty", "snapshot")} if record.get("started") else {},
        libraries=dict(record.get("libraries", {})),
        machine={key: record[key] for key in MACHINE if record.get(key) is not None},
        stages={noun: {key: made.get(key) for key in STAGE} for noun, made in records.items() if made.get("started")},
        missing=tuple(missing),
    )


def changed_settings(config: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[Any, Any]]:
    """`section.key` → (value, default) of every setting that is not at its default; rewards as a whole, by function."""
    defaults = RunConfig()
    changed: dict[str, tuple[Any, Any]] = {}
    for section, values in config.items():
        usual = section_values(defaults, section) if section in SECTIONS else {}
        keys = dict.fromkeys([*values, *(usual if section == "rewards" else ())])
        changed |= {f"{section}.{key}": (values.get(key), usual.get(key)) for key in keys if values.get(key) != usual.get(key)}
    return changed


def seeds(config: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """`section.seed` → value, of every section that has one."""
    return {f"{section}.seed": values["seed"] for section, values in config.items() if "seed" in values}


def table_rows(found: Lineage) -> list[tuple[str, str]]:
    """The lineage for people: what, and which. Long lists go over several rows, of which the first is named."""
    prompts, code, machine = found.prompts, found.code, found.machine
    rewards = found.config.get("rewards", {})
    lines: list[tuple[str, Iterable[str]]] = [
        ("run", [f"{found.run_key or 'unknown'}, {found.step if found.step is not None else 'an unknown number of'} steps"]),
        *[(name, [_weights_words(weights)]) for name, weights in reversed([*found.weights.items()])],
        ("prompts", _prompts_words(prompts)),
        ("not at default", [f"{key} {_plain(value)} ({_plain(usual)})" for key, (value, usual) in changed_settings(found.config).items()]),
        ("seeds", _wrapped(f"{key} {value}" for key, value in seeds(found.config).items())),
        ("rewards", _wrapped(f"{name} × {weight:g}" for name, weight in rewards.items())),
        ("reward code", [found.reward_code_hash] if found.reward_code_hash else []),
        ("commit", [_code_words(code)] if code else []),
        ("python", [str(machine["python"])] if "python" in machine else []),
        ("libraries", _wrapped(f"{name} {version}" for name, version in found.libraries.items())),
        ("machine", _wrapped(f"{key} {_plain(machine[key])}" for key in ("cpu", "cpu_capability", "num_cpus", "device", "platform") if key in machine)),
        ("threads", _wrapped(f"{key} {_plain(value)}" for key, value in machine.get("threads", {}).items())),
        ("switches", _wrapped(f"{key} {_plain(value)}" for key, value in machine.get("determinism", {}).items())),
        ("not found", found.missing),
    ]
    rows = []
    for name, texts in lines:
        rows += [(name if place == 0 else "", text) for place, text in enumerate(texts)]
    return rows


# ------------------------------------------------------------------------------------------------------------- pieces


def _manifest(folder: str, locate: Locate, missing: list[str], *, expected: str | None = None) -> tuple[dict[str, Any], str | None]:
    """A checkpoint folder's manifest and its sha256; empty when it is not there or not the one that is `expected`."""
    try:
        content = locate(f"{folder}/manifest.json").read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if expected not in (None, digest):
            missing.append(f"{folder} is another one than this policy was made from (manifest {_short(digest)}, then {_short(expected)})")
            return {}, None
        return dict(json.loads(content)), digest
    except (OSError, ValueError) as error:
        missing.append(f"{folder}: {_why(error)}")
        return {}, None


def _weights(folder: str, manifest: Mapping[str, Any], digest: str | None, parent: str | None) -> dict[str, str | None]:
    return {"folder": folder, "policy_digest": manifest.get("policy_digest"), "manifest_sha256": digest, "parent": parent}


def _prompts(sha256: str | None, md5: str | None, locate: Locate, missing: list[str]) -> dict[str, Any]:
    known = {"sha256": sha256, "md5": md5}
    try:
        path = locate(PARENTS["prompts"])
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if sha256 not in (None, digest):
            missing.append(f"{PARENTS['prompts']} is another table than this policy learned from (sha256 {_short(digest)}, then {_short(sha256)})")
            return known
        table = pl.scan_parquet(path)
        splits, sources = (table.group_by(column).len().sort("len", column, descending=[True, False]).collect().rows() for column in ("split", "source_file"))
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        missing.append(f"{PARENTS['prompts']}: {_why(error)}")
        return known
    return {**known, "sha256": digest, "num_rows": sum(rows for _, rows in splits), "splits": dict(splits), "sources": dict(sources)}


def _settings(
    experiment: str, records: Mapping[str, Record], locate: Locate, of_manifests: Mapping[str, Mapping[str, Any]], missing: list[str]
) -> dict[str, dict[str, Any]]:
    """Every section: what the manifests hold is what ran; the others are read where the run_config stage wrote them."""
    found: dict[str, dict[str, Any]] = {}
    for section in SECTIONS:
        ran = dict(of_manifests.get(section, {}))
        if section in of_manifests and section not in HELD_IN_PART:
            found[section] = ran
            continue
        path = f"data/run_config/{section}.json" if section in SHARED_SECTIONS else f"data/run_config/{experiment}/{section}.json"
        try:
            content = locate(path).read_bytes()
            known = {record["deps"][path] for record in records.values() if path in record.get("deps", {})}
            if known and hashlib.md5(content, usedforsecurity=False).hexdigest() not in known:
                missing.append(f"{path} was changed after the run")
                continue
            found[section] = {**json.loads(content), **ran}
        except (OSError, ValueError) as error:
            missing.append(f"{path}: {_why(error)}")
    return found


def _why(error: Exception) -> str:
    """One line: what is wrong with a file."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split())


def _weights_words(weights: Mapping[str, str | None]) -> str:
    words = f"{weights['folder']}: weights {weights['policy_digest'] or 'not known'}"
    return words + (f", manifest sha256 {_short(weights['manifest_sha256'])}" if weights["manifest_sha256"] else "")


def _prompts_words(prompts: Mapping[str, Any]) -> list[str]:
    lines = []
    if "splits" in prompts:
        lines.append(f"{prompts['num_rows']:,} rows: " + ", ".join(f"{split} {rows:,}" for split, rows in prompts["splits"].items()))
        lines.append(f"from {', '.join(prompts['sources'])}")
    return [*lines, f"sha256 {_short(prompts['sha256'])}"] if prompts.get("sha256") else lines


def _code_words(code: Mapping[str, Any]) -> str:
    commit = code["commit"]
    if commit is None:
        return "none: the checkout was not in Git"
    state = " with changes that were not committed" if code["dirty"] else ""
    snapshot = code["snapshot"]
    return f"{_short(commit)}{state}" + (f"; what ran is snapshot {_short(snapshot)}" if snapshot and snapshot != commit else "")


def _short(digest: str | None) -> str:
    return digest[:SHORT] if digest else "unknown"


def _plain(value: Any) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)


def _wrapped(parts: Iterable[str]) -> list[str]:
    """The parts in lines that are not too long, none of them torn."""
    glued = ", ".join(part.replace(" ", GLUE) for part in parts)
    return [line.replace(GLUE, " ") for line in textwrap.wrap(glued, LONGEST_LINE, break_long_words=False, break_on_hyphens=False)]
