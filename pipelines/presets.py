"""Lay a preset (a YAML file of overrides) over params.yaml in place, comments kept."""

from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from grpo_core.config import RunConfig
from grpo_core.params import resolve_experiments, section_values
from grpo_core.requirements import ConfigError
from pipelines.params import load_params
from pipelines.params_file import editor, write


def apply_preset(root: Path, preset: Path) -> list[str]:
    """Write the preset's values into params.yaml; says what changed, `section.key: old -> new`.

    Keys of a section in the preset that it does not name go back to their defaults, so that nothing of an earlier preset stays
    (`experiments` only gains or changes names). Raises ConfigError, with the file untouched, when the result could not be run.
    """
    try:
        overrides = YAML(typ="safe", pure=True).load(preset.read_text(encoding="utf-8"))
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{preset} is not a YAML file: {' '.join(str(error).split())}") from error
    if not isinstance(overrides, dict) or not all(isinstance(values, dict) for values in overrides.values()):
        raise ConfigError(f"{preset} must map sections to keys and values, as params.yaml does")
    params = load_params(root)
    kept = {"experiments": params.get("experiments") or {}}
    merged = {**params, **{name: {**kept.get(name, {}), **values} for name, values in overrides.items()}}
    try:
        resolve_experiments(merged)
    except ConfigError as error:
        raise ConfigError(f"{preset}: {error}; params.yaml was left as it is") from error
    return _write(root / "params.yaml", overrides)


def _write(path: Path, overrides: dict[str, dict[str, Any]]) -> list[str]:
    yaml = editor()
    document = yaml.load(path.read_text(encoding="utf-8"))
    changes = []
    for section, values in overrides.items():
        if not isinstance(document.get(section), dict):
            document[section] = {}
        changes += _lay(section, document[section], values)
    text = StringIO()
    yaml.dump(document, text)
    write(path, text.getvalue())
    return changes


def _lay(section: str, target: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Put a preset's values of one section into `target`, what it does not name back to defaults; says what changed."""
    changes = []
    wanted = {**_defaults(section, target), **values}
    for key in [key for key in target if key not in wanted] if section == "rewards" else []:
        changes.append(f"{section}.{key}: {target[key]!r} -> (removed)")
        del target[key]
    for key, value in wanted.items():
        if key not in target or target[key] != value:
            changes.append(f"{section}.{key}: {target[key]!r} -> {value!r}" if key in target else f"{section}.{key}: {value!r} (new)")
            target[key] = value
    return changes


def _defaults(section: str, target: dict[str, Any]) -> dict[str, Any]:
    """Default values of the keys that stand in the section; reward functions and experiments have none."""
    if section in ("rewards", "experiments"):
        return {}
    return {key: value for key, value in section_values(RunConfig(), section).items() if key in target}
