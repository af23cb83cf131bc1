"""Lay a preset (a YAML file of overrides) over params.yaml in place, comments kept."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from grpo_core.config import ConfigError, resolve_experiments
from pipelines.params import load_params


def apply_preset(root: Path, preset: Path) -> list[str]:
    """Write the preset's values into params.yaml; says what changed, `section.key: old -> new`.

    `rewards` is replaced whole. Raises ConfigError, with the file untouched, when the result could not be run.
    """
    try:
        overrides = YAML(typ="safe", pure=True).load(preset.read_text(encoding="utf-8"))
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{preset} is not a YAML file: {' '.join(str(error).split())}") from error
    if not isinstance(overrides, dict) or not all(isinstance(values, dict) for values in overrides.values()):
        raise ConfigError(f"{preset} must map sections to keys and values, as params.yaml does")
    params = load_params(root)
    merged = {**params, **{name: values if name == "rewards" else {**params.get(name, {}), **values} for name, values in overrides.items()}}
    try:
        resolve_experiments(merged)
    except ConfigError as error:
        raise ConfigError(f"{preset}: {error}; params.yaml was left as it is") from error
    return _write(root / "params.yaml", overrides)


def _write(path: Path, overrides: dict[str, dict[str, Any]]) -> list[str]:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    document = yaml.load(path.read_text(encoding="utf-8"))
    changes = []
    for section, values in overrides.items():
        target = document[section]
        dropped = [key for key in target if key not in values] if section == "rewards" else []
        for key in dropped:
            changes.append(f"{section}.{key}: {target[key]!r} -> (removed)")
            del target[key]
        for key, value in values.items():
            if key not in target or target[key] != value:
                changes.append(f"{section}.{key}: {target[key]!r} -> {value!r}" if key in target else f"{section}.{key}: {value!r} (new)")
                target[key] = value
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as stream:
        yaml.dump(document, stream)
    partial.replace(path)
    return changes
