"""What the fields of a configuration must be, and the error that says where, which value and which rule."""

import difflib
import re
from dataclasses import MISSING, fields
from typing import Any


class ConfigError(ValueError):
    """A configuration that cannot be run: says where, which value, which rule and what to do."""


def require(condition: bool, where: str, value: object, rule: str) -> None:
    """Raise `ConfigError` unless `condition`: the field `where` holds `value` but must `rule`."""
    if not condition:
        raise ConfigError(f"{where} must {rule}, got {value!r}")


def require_at_least(section: str, config: object, minimum: float, *names: str) -> None:
    """Raise `ConfigError` unless every named field of `config` is at least `minimum`."""
    for name in names:
        value = getattr(config, name)
        require(value >= minimum, f"{section}.{name}", value, f"be at least {minimum}")


def require_positive(section: str, config: object, *names: str) -> None:
    """Raise `ConfigError` unless every named field of `config` is above zero."""
    for name in names:
        value = getattr(config, name)
        require(value > 0, f"{section}.{name}", value, "be above 0")


def require_fraction(section: str, config: object, *names: str) -> None:
    """Raise `ConfigError` unless every named field of `config` lies in [0, 1]."""
    for name in names:
        value = getattr(config, name)
        require(0 <= value <= 1, f"{section}.{name}", value, "lie between 0 and 1")


def require_decay(section: str, config: object, *names: str) -> None:
    """Raise `ConfigError` unless every named field of `config` lies in [0, 1): a decay of 1 would never forget."""
    for name in names:
        value = getattr(config, name)
        require(0 <= value < 1, f"{section}.{name}", value, "be at least 0 and below 1")


def require_pattern(where: str, pattern: str) -> None:
    """Raise `ConfigError` unless `pattern` is empty or a regular expression with a group to cut out."""
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ConfigError(f"{where} must be a regular expression, got {pattern!r}: {error}") from error
    require(pattern == "" or groups >= 1, where, pattern, "hold a group in parentheses: what it matches is cut out")


def require_default(section: str, config: object, reason: str, *names: str) -> None:
    """Raise `ConfigError` when a named field of `config` was changed, though for this `reason` it would have no effect."""
    defaults = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(config)}  # type: ignore[arg-type]  # a dataclass
    for name in names:
        value = getattr(config, name)
        require(value == defaults[name], f"{section}.{name}", value, f"stay at its default {defaults[name]!r}: {reason}, so it would do nothing")


def require_sane_temperature(section: str, temperature: float) -> None:
    """Raise `ConfigError` when nothing could be sampled but the likeliest token, or nothing but noise."""
    sane = "lie between 0.01 and 10: below it every draw is the likeliest token and logits overflow, above it all tokens are alike"
    require(0.01 <= temperature <= 10, f"{section}.temperature", temperature, sane)


def require_sane_steps(section: str, config: Any) -> None:
    """Raise `ConfigError` when AdamW could only do harm: a step that moves every weight by more than 1, or a decay that turns signs around."""
    require(config.learning_rate <= 1, f"{section}.learning_rate", config.learning_rate, "be at most 1: AdamW moves every weight by about this much a step")
    shrinks = (
        f"be below {1 / config.learning_rate:g} with {section}.learning_rate {config.learning_rate:g}: a step that decays weights by more turns them around"
    )
    require(config.weight_decay * config.learning_rate < 1, f"{section}.weight_decay", config.weight_decay, shrinks)


def nearest(name: str, valid: list[str]) -> str:
    """A hint naming the valid key nearest to `name`, or all of them when none is near."""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"valid keys: {', '.join(sorted(valid))}"
