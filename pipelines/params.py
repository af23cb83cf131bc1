"""params.yaml as typed configuration, and the checked copy of it that stages read."""

import json
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from assets.paths import Paths
from grpo_core.config import SECTIONS, SHARED_SECTIONS, RunConfig
from grpo_core.params import parse_sections, resolve_experiments, section_values
from grpo_core.requirements import ConfigError, nearest

ROOT = Path(__file__).resolve().parents[1]
"""The checkout this code lies in."""


def find_root(start: Path) -> Path:
    """The nearest folder from `start` upwards that holds params.yaml and dvc.yaml; raises `ConfigError` when there is none."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / "params.yaml").is_file() and (folder / "dvc.yaml").is_file():
            return folder
    raise ConfigError(f"no params.yaml and dvc.yaml in {start} or any folder above it: change into the checkout first")


def load_params(root: Path) -> dict[str, Any]:
    """params.yaml as plain values, read as YAML 1.2 as DVC reads it (`1e-3` is a number, `yes` is text); not checked yet."""
    path = root / "params.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: `git checkout params.yaml` brings it back") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} must be UTF-8 text: byte {error.start} is not") from error
    try:
        # pure: the C loader would read YAML 1.1.
        values = YAML(typ="safe", pure=True).load(StringIO(text))
    except MarkedYAMLError as error:
        place = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = " ".join((error.problem or error.context or "not YAML").split())
        raise ConfigError(f"{path}{place}: {problem}") from error
    except YAMLError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must be a mapping of sections, got {values!r}")
    return values


def experiments(root: Path) -> dict[str, RunConfig]:
    """Experiment name → its whole configuration, checked."""
    return resolve_experiments(load_params(root))


def choose_experiment(root: Path, name: str) -> RunConfig:
    """The configuration of one experiment; raises `ConfigError` naming the nearest one when there is no such experiment."""
    configs = experiments(root)
    if name not in configs:
        raise ConfigError(f"unknown experiment {name!r}: {nearest(name, list(configs))} (experiments are declared in params.yaml)")
    return configs[name]


def json_bytes(values: Mapping[str, Any]) -> bytes:
    """The one spelling of a section on disk, so that equal values have equal hashes."""
    return (json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def section_files(root: Path) -> dict[str, bytes]:
    """Path under data/run_config → its exact bytes: a file for each shared section, and one for each other section of each experiment."""
    configs = experiments(root)
    first = next(iter(configs.values()))
    files = {f"{section}.json": json_bytes(section_values(first, section)) for section in SHARED_SECTIONS}
    for name, config in configs.items():
        files |= {f"{name}/{section}.json": json_bytes(section_values(config, section)) for section in SECTIONS if section not in SHARED_SECTIONS}
    return files


def read_run_config(paths: Paths) -> RunConfig:
    """The configuration that the run_config stage wrote for `paths.experiment`; raises `ConfigError` when it is not there."""
    return parse_sections({section: _read_section(paths, section) for section in SECTIONS})


def written_experiments(paths: Paths) -> list[str]:
    """Names of the experiments that the run_config stage wrote."""
    return sorted(folder.name for folder in paths.run_config.glob("*/") if folder.is_dir())


def _read_section(paths: Paths, section: str) -> Any:
    folder = paths.run_config if section in SHARED_SECTIONS else paths.run_config / paths.experiment
    path = folder / f"{section}.json"
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: write it with `dvc repro run_config`") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}): write it again with `dvc repro --force run_config`") from error
