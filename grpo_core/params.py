"""From the text of params.yaml to checked objects, and back to plain values."""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from grpo_core.config import SECTIONS, SHARED_SECTIONS, Option, RunConfig
from grpo_core.requirements import ConfigError, nearest, require

T = TypeVar("T")


def _typed(where: str, value: object, expected: Any) -> object:
    """`value` as the field type `expected`; ints are accepted for floats, nothing else is converted."""
    if get_origin(expected) is Literal:
        options = list(get_args(expected))
        if value not in options:
            raise ConfigError(f"{where} must be one of {', '.join(map(repr, options))}, got {value!r}: {nearest(str(value), [str(o) for o in options])}")
        return value
    if get_origin(expected) is Mapping:
        return types.MappingProxyType({str(key): _typed(f"{where}.{key}", item, get_args(expected)[1]) for key, item in _mapping(where, value).items()})
    if expected == Option:
        require(_is_option(value), where, value, "be a number, a text, true or false, or a list of these")
        return value
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    matches = isinstance(value, expected) and not (expected in (int, float) and isinstance(value, bool))
    if not matches:
        hint = " (write numbers without quotes)" if expected in (int, float) and isinstance(value, str) else ""
        raise ConfigError(f"{where} must be of type {expected.__name__}, got {value!r} of type {type(value).__name__}{hint}")
    if expected is float and (value != value or value in (float("inf"), float("-inf"))):
        raise ConfigError(f"{where} must be a finite number, got {value!r}")
    return value


def _is_option(value: object) -> bool:
    return isinstance(value, bool | int | float | str) or (isinstance(value, list) and all(isinstance(item, bool | int | float | str) for item in value))


def _mapping(where: str, value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a mapping of keys to values, got {value!r}")
    return value


def parse_section(cls: type[T], section: str, values: object) -> T:
    """The section object of class `cls` from plain `values`; every key must be a field, every field may be left out."""
    values = _mapping(section, values)
    hints = get_type_hints(cls)
    for key in values:
        if key not in hints:
            raise ConfigError(f"unknown key {section}.{key}: {nearest(str(key), list(hints))}")
    return cls(**{key: _typed(f"{section}.{key}", value, hints[key]) for key, value in values.items()})


def _parse_rewards(values: object) -> Mapping[str, float]:
    if not isinstance(values, Mapping):
        raise ConfigError(f"rewards must map reward functions to weights, got {values!r}")
    for name, weight in values.items():
        apart = f"rewards.{name} must be a weight, a number, got {weight!r}: options go under reward_options.{name}"
        if isinstance(weight, Mapping):
            raise ConfigError(apart)
    return types.MappingProxyType({str(name): float(str(_typed(f"rewards.{name}", weight, float))) for name, weight in values.items()})


def _parse_options(values: object) -> Mapping[str, Mapping[str, Option]]:
    """Whether a function has these options is found out when it is loaded (grpo_core/rewards/registry.py)."""
    parsed: Any = _typed("reward_options", values, Mapping[str, Mapping[str, Option]])
    return parsed


READ_APART: Mapping[str, Callable[[object], Any]] = {"rewards": _parse_rewards, "reward_options": _parse_options}
"""Sections that are no fixed set of fields."""


def parse_sections(values: object) -> RunConfig:
    """The whole configuration from a mapping of sections, as read from params.yaml without `experiments`."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"the parameters must be a mapping of sections, got {values!r}")
    for key in values:
        if key not in SECTIONS:
            raise ConfigError(f"unknown section {key!r}: {nearest(str(key), list(SECTIONS))}")
    parsed: dict[str, Any] = {}
    for f in fields(RunConfig):
        if f.name not in values:
            continue
        if f.name in READ_APART:
            parsed[f.name] = READ_APART[f.name](values[f.name])
        else:
            assert f.default_factory is not MISSING
            parsed[f.name] = parse_section(f.default_factory, f.name, values[f.name])  # type: ignore[arg-type]
    return RunConfig(**parsed)


def resolve_experiments(params: object) -> dict[str, RunConfig]:
    """Experiment name → its configuration: the base sections with the experiment's overrides laid over them, key by key."""
    if not isinstance(params, Mapping):
        raise ConfigError(f"the parameters must be a mapping of sections, got {params!r}")
    base = {name: section for name, section in params.items() if name != "experiments"}
    parse_sections(base)
    experiments = params.get("experiments")
    if not isinstance(experiments, Mapping) or not experiments:
        raise ConfigError(f"experiments must map at least one name to its overrides ({{}} for none), got {experiments!r}")
    resolved = {}
    for name, overrides in experiments.items():
        if not str(name).replace("_", "").replace("-", "").isalnum():
            raise ConfigError(f"experiments.{name}: a name is made of letters, digits, '-' and '_'")
        if not isinstance(overrides, Mapping):
            raise ConfigError(f"experiments.{name} must map sections to overrides ({{}} for none), got {overrides!r}")
        sections = dict(base)
        for section, values in overrides.items():
            if section in SHARED_SECTIONS:
                raise ConfigError(f"experiments.{name}.{section}: all experiments share {', '.join(SHARED_SECTIONS)}; change the section itself instead")
            if not isinstance(values, Mapping):
                raise ConfigError(f"experiments.{name}.{section} must be a mapping of keys to values, got {values!r}")
            merged = values if section == "rewards" else {**base.get(section, {}), **values}
            sections[section] = merged
        try:
            resolved[str(name)] = parse_sections(sections)
        except ConfigError as error:
            raise ConfigError(f"experiments.{name}: {error}") from error
    return resolved


def section_values(config: RunConfig, section: str) -> dict[str, Any]:
    """One section as plain values, every field written out, ready for JSON."""
    value = getattr(config, section)
    return _plain(value) if isinstance(value, Mapping) else {f.name: _plain(getattr(value, f.name)) for f in fields(value)}


def _plain(value: Any) -> Any:
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
