"""Which code each stage of dvc.yaml depends on: the files that its nouns' modules import, however deep.

`python -m pipelines.code_deps` shows what is missing or too much in dvc.yaml; with `--write` it corrects the file, comments kept.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo_core.rewards.registry import BUILT_IN, BuiltIn
from pipelines.graph import LOOP, LOOP_STAGE, RUN_CONFIG
from pipelines.params import ROOT

PACKAGES = ("assets", "grpo_core", "pipelines")
DRAWN_WITH = ("page", "charts", "canvas", "comparison_chart", "preference_chart", "proposal_chart", "histograms", "lineage", "under_review")
PAGE_ONLY = frozenset(f"assets.{name}" for name in DRAWN_WITH)
"""Modules that only draw a noun's page: a nicer chart must not train a model again."""
REGISTRY, SANDBOX = "grpo_core.rewards.registry", "grpo_core.sandbox"
"""Who imports the first calls built-in reward functions, which it imports by name; those that need the second run modules of it as text."""

_STAGE = re.compile(r"^  (\w+):$")
_CODE = re.compile(rf"^\s+- ({'|'.join(PACKAGES)})/\S+\.py$")
_DEPS = re.compile(r"^(\s+)deps:$")


def imported_files(stages: Sequence[str]) -> dict[str, list[str]]:
    """Stage → its code, sorted. Imports inside functions count, those for type checkers alone do not."""
    import grimp

    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    for module in PAGE_ONLY & graph.modules:
        graph.remove_module(module)
    files = {}
    for stage in stages:
        found = _with_imported(graph, _roots(stage))
        if REGISTRY in found:
            found |= _with_imported(graph, _of_rewards(graph, BUILT_IN.values()))
        files[stage] = sorted(f"{module.replace('.', '/')}.py" for module in found - set(PACKAGES))
    return files


def _with_imported(graph: Any, modules: Iterable[str]) -> set[str]:
    """Those of `modules` that there are, and all that they import."""
    there = set(modules) & graph.modules
    return there | {module for root in there for module in graph.find_upstream_modules(root)}


def _of_rewards(graph: Any, functions: Iterable[BuiltIn]) -> set[str]:
    """The modules of built-in reward functions, and the whole sandbox when one needs it."""
    named = {function.path.partition(":")[0]: function.isolated for function in functions}
    return set(named) | (set(graph.find_descendants(SANDBOX)) if any(named.values()) else set())


def _roots(stage: str) -> set[str]:
    """The modules that make a stage's outputs."""
    if stage == RUN_CONFIG:
        return {"assets.run_config", "pipelines.params"}  # the latter fills in what params.yaml leaves out
    return {f"assets.{noun}" for noun in (LOOP if stage == LOOP_STAGE else (stage,))}


def declared_files(text: str) -> dict[str, list[str]]:
    """Stage → the code that dvc.yaml lists for it."""
    declared: dict[str, list[str]] = {}
    stage = ""
    for line in text.splitlines():
        if match := _STAGE.match(line):
            stage = match[1]
            declared[stage] = []
        elif _CODE.match(line):
            declared[stage].append(line.strip().removeprefix("- "))
    return declared


def rewritten(text: str, wanted: Mapping[str, Sequence[str]]) -> str:
    """dvc.yaml with each stage's code replaced by `wanted`, at the end of its `deps`; everything else stays as it is."""
    result: list[str] = []
    stage, indent = "", None
    for line in [*text.splitlines(), ""]:
        if _CODE.match(line):
            continue
        if indent is not None and not line.startswith(f"{indent}  "):  # the end of `deps`
            result += [f"{indent}  - {path}" for path in wanted[stage]]
            indent = None
        if match := _STAGE.match(line):
            stage = match[1]
        if match := _DEPS.match(line):
            indent = match[1]
        result.append(line)
    return "\n".join(result).rstrip("\n") + "\n"


def problems(text: str) -> list[str]:
    """Lines to add to or remove from dvc.yaml."""
    declared = declared_files(text)
    wanted = imported_files(list(declared))
    missing = [f"{stage}: add    - {path}" for stage, paths in wanted.items() for path in paths if path not in declared[stage]]
    return missing + [f"{stage}: remove - {path}" for stage, paths in declared.items() for path in paths if path not in wanted[stage]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="correct dvc.yaml")
    options = parser.parse_args()
    path = ROOT / "dvc.yaml"
    text = path.read_text(encoding="utf-8")
    found = problems(text)
    print("\n".join(found) if found else "dvc.yaml names exactly the code that its stages import")
    if options.write and found:
        path.write_text(rewritten(text, imported_files(list(declared_files(text)))), encoding="utf-8")
        return 0
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
