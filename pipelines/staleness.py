"""Whether what lies on disk is what params.yaml, the code and the data would give now, without running anything."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from assets.paths import Paths
from pipelines.graph import LOOP_STAGE, RUN_CONFIG
from pipelines.lock import listing_md5, read_lock
from pipelines.params import section_files
from pipelines.records.dvc_cache import cached_listing
from pipelines.reward_code import reward_code_changes

Change = tuple[str, Any, Any]
"""Dotted key, old value, new value; `ABSENT` on the side that lacks it."""
ABSENT = "(absent)"
SHOWN_CHANGES = 6


def out_of_sync(root: Path, target: str) -> list[str]:
    """Why `target` (`stage` or `stage@experiment`) or a stage above it would run again; empty when all are in sync.

    Configuration is compared with what params.yaml resolves to at this moment, not with the files of the last `run_config`, so an
    edit is seen at once and only by the stages that read the edited section. Raises `ConfigError` when params.yaml cannot be run.
    """
    return all_out_of_sync(root, [target])[target]


def all_out_of_sync(root: Path, targets: Iterable[str]) -> dict[str, list[str]]:
    """`out_of_sync` of many targets in one pass over the repository."""
    import networkx
    from dvc.repo import Repo

    resolved, lock = section_files(root), read_lock(root)
    own: dict[str, list[str]] = {}
    result: dict[str, list[str]] = {}
    with Repo(str(root)) as repo:
        graph = repo.index.graph
        stages = {_name(stage): stage for stage in repo.index.stages}
        for target in targets:
            above = sorted({_name(stage) for stage in networkx.descendants(graph, stages[target])} - {RUN_CONFIG})
            for name in (target, *above):
                if name not in own:
                    own[name] = _all_reasons(root, stages[name], resolved) if name in lock or name.endswith(".dvc") else ["never run"]
            result[target] = own[target] + [f"{name}: {reason}" for name in above for reason in own[name]]
    return result


def changed_data(root: Path, target: str) -> list[str]:
    """The files and folders of other stages that are no longer what the target was made from."""
    from dvc.dependency.param import ParamsDependency
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        (stage,) = (stage for stage in repo.index.stages if _name(stage) == target)
        deps = [dep for dep in stage.deps if not isinstance(dep, ParamsDependency) and dep.def_path.startswith("data/")]
        return [dep.def_path for dep in deps if not dep.def_path.startswith(f"data/{RUN_CONFIG}") and dep.status()]


def _name(stage: Any) -> str:
    """DVC's own `addressing` would depend on the current folder. The stages that are no pipeline's are files given to DVC with `dvc add`."""
    from dvc.stage import PipelineStage

    return stage.name if isinstance(stage, PipelineStage) else stage.path_in_repo


def _all_reasons(root: Path, stage: Any, resolved: Mapping[str, bytes]) -> list[str]:
    """Why this stage would run again, and which reward functions have other code: also those of installed packages, which DVC does not watch."""
    reasons, name = _own_reasons(stage, resolved), _name(stage)
    kind, _, experiment = name.partition("@")
    if kind != LOOP_STAGE:
        return reasons
    functions = json.loads(resolved.get(f"{experiment}/rewards.json", b"{}"))
    changed = [change.sentence() for change in reward_code_changes(Paths(root, experiment), functions)]
    return reasons + (changed if reasons else [f"{sentence}; DVC cannot see it: `dvc repro -f -s {name}` trains with it" for sentence in changed])


def _own_reasons(stage: Any, resolved: Mapping[str, bytes]) -> list[str]:
    """Why DVC would run this stage again, the stages above it aside. `stage` is one of DVC's."""
    from dvc.dependency.param import ParamsDependency

    changes: dict[str, Change] = {}
    reasons = ["its command in dvc.yaml changed"] if stage.changed_stage() else []
    for dep in stage.deps:
        if isinstance(dep, ParamsDependency):
            changes |= {change[0]: change for change in differences(dep.hash_info.value or {}, dep.read_params())}
        elif dep.def_path.startswith(f"data/{RUN_CONFIG}/"):
            changes |= {change[0]: change for change in _section_changes(dep, resolved)}
        elif dep.def_path == f"data/{RUN_CONFIG}":
            reasons += _folder_changes(dep, resolved)
        else:
            reasons += [f"{dep.def_path} is {state}" for state in dep.status().values()]
    reasons += [f"its output {out.def_path} is {state}" for out in stage.outs for state in out.status().values()]
    return _spelled(list(changes.values())) + reasons


def _section_changes(dep: Any, resolved: Mapping[str, bytes]) -> list[Change]:
    """How a configuration file that the stage was made from differs from what params.yaml says now."""
    name = dep.def_path.removeprefix(f"data/{RUN_CONFIG}/")
    section = Path(name).stem
    now = resolved.get(name)
    if now is None:
        return [(section, "a section", ABSENT)]
    if dep.hash_info and hashlib.md5(now, usedforsecurity=False).hexdigest() == dep.hash_info.value:
        return []
    before = _recorded_bytes(dep)
    if before is None:
        return [(section, "(no longer kept)", "(changed)")]
    return list(differences({section: json.loads(before)}, {section: json.loads(now)})) or [(section, "(another spelling)", "(the same values)")]


def _folder_changes(dep: Any, resolved: Mapping[str, bytes]) -> list[str]:
    """How all of the configuration differs from the folder that the stage was made from: experiments that came or went, else the files."""
    now = {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in resolved.items()}
    digest = dep.hash_info.value
    if digest == listing_md5(now):
        return []
    before = cached_listing(Path(dep.repo.root_dir), digest) if digest else None
    if before is None:
        return ["the configuration changed"]
    known, wanted = ({name.partition("/")[0] for name in files if "/" in name} for files in (before, now))
    altered = {name for name in before.keys() & now.keys() if before[name] != now[name]}
    news = {"experiments were added": wanted - known, "experiments are no longer there": known - wanted, "the configuration changed": altered}
    return [f"{what}: {', '.join(sorted(names))}" for what, names in news.items() if names] or ["the configuration changed"]


def _recorded_bytes(dep: Any) -> bytes | None:
    """The file as it was when the stage ran: on disk while it has not changed, else from DVC's cache."""
    digest = dep.hash_info.value
    if not digest:
        return None
    for path in (Path(dep.fs_path), Path(dep.repo.cache.local.oid_to_path(digest))):
        if path.is_file() and hashlib.md5(content := path.read_bytes(), usedforsecurity=False).hexdigest() == digest:
            return content
    return None


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[Change]:
    """Every key, however deep, whose value differs."""
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key, ABSENT), new.get(key, ABSENT)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}", before, after


def _spelled(changes: list[Change]) -> list[str]:
    """One reason a changed key, the first few of many."""
    shown = [f"{key} changed from {old} to {new}" for key, old, new in changes[:SHOWN_CHANGES]]
    return shown + ([f"{len(changes) - SHOWN_CHANGES} more keys changed"] if len(changes) > SHOWN_CHANGES else [])
