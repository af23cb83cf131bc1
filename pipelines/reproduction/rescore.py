"""A run's stored completions scored again by today's reward code, and what would have changed in words. Nothing in data/ changes."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from assets.paths import Paths
from grpo_core.checkpoint import MANIFEST
from grpo_core.config import ModelConfig, RunConfig
from grpo_core.params import parse_section
from pipelines.console import visible
from pipelines.environment import prepare_libraries
from pipelines.records.runs import Run
from pipelines.reward_code import CodeChange, changed_reward_code, check_reward_functions

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType
    from rich.table import Table

    from grpo_core.rescore import RankingChange, Rescored, ValueChange

SHOWN_ROWS = 5
"""Changed completions that are shown."""
LONGEST_TEXT = 60
"""Characters of a completion that are shown."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run's completions would have earned."""

    label: str
    """Of the run."""
    changes: "Rescored"
    code: Sequence[CodeChange]
    """Reward functions of the run whose code is not what it was."""
    unknown: Sequence[str]
    """Reward functions of the run of whose code nothing is recorded."""
    weights: Mapping[str, tuple[float | None, float | None]]
    """Function → its weight in the run, and the one it was given now; None where it was not asked."""
    same_settings: bool
    """Weights, options and the way that rewards are combined are the run's."""
    changed: "pl.DataFrame"
    """The rows that changed, with their texts, the most changed first."""


def rescore_run(run: Run, today: RunConfig | None, first: int | None, last: int | None, on_step: Callable[[int, int], None]) -> Outcome:
    """Steps `first` (None: 1) to `last` (None: the run's last) scored again, with the rewards of the configuration `today` (None: the run's own).

    `on_step` hears of each step, and of the number of all. Raises `RunError` when a table is nowhere, RewardError when a function cannot be used.
    """
    paths = Paths(run.root, run.experiment)

    def file(path: Path) -> Path:
        return run.file(str(path.relative_to(run.root)))

    manifest = json.loads(file(paths.grpo_checkpoint / MANIFEST).read_bytes())
    model = parse_section(ModelConfig, "model", manifest["config"]["model"])
    prepare_libraries(model)
    from grpo_core.determinism import after_torch_import
    from grpo_core.models import resolve_device
    from grpo_core.replay import trained_config
    from grpo_core.rescore import Stored, changed_rows, rescore, summarise

    own, hashes = trained_config(manifest), manifest.get("reward_code_hashes", {})
    config = own if today is None else rewarded_as(own, today)
    check_reward_functions(run.root, [config])
    after_torch_import(str(resolve_device(model.device)))
    stored = Stored(file(paths.prompts), file(paths.rollout_batches), file(paths.rewards))
    steps = chosen_steps(int(manifest["step"]), first, last)
    import polars as pl

    parts = []
    for part in rescore(stored, config, steps):
        parts.append(part)
        on_step(len(parts), len(steps))
    rows = pl.concat(parts)
    return Outcome(
        label=run.label(),
        changes=summarise(rows, config.scoring.max_error_rate),
        code=changed_reward_code(hashes, own.rewards),
        unknown=[name for name in own.rewards if name not in hashes],
        weights={name: (own.rewards.get(name), config.rewards.get(name)) for name in dict.fromkeys([*own.rewards, *config.rewards])},
        same_settings=_reward_settings(own) == _reward_settings(config),
        changed=changed_rows(rows, stored),
    )


def rewarded_as(own: RunConfig, today: RunConfig) -> RunConfig:
    """The run's configuration with the rewards of another one: functions, weights, options, and how they are run and combined."""
    asked = {*today.rewards, own.grpo.select_metric}
    options = {name: chosen for name, chosen in today.reward_options.items() if name in asked}
    return replace(own, rewards=today.rewards, reward_options=options, scoring=today.scoring)


def chosen_steps(num_steps: int, first: int | None, last: int | None) -> range:
    """The steps that are asked for; raises ValueError when the run has not got them."""
    begin, end = first or 1, last or num_steps
    if not 1 <= begin <= end <= num_steps:
        raise ValueError(f"steps {begin} to {end} cannot be scored again: the run has steps 1 to {num_steps}")
    return range(begin, end + 1)


def _reward_settings(config: RunConfig) -> tuple[object, ...]:
    """What decides the rewards of a completion, the code aside."""
    return dict(config.rewards), {name: dict(options) for name, options in config.reward_options.items()}, config.scoring.combine


def check_place(path: Path, root: Path) -> None:
    """Raise ValueError when changed rows cannot be written at `path`: it is to be a Parquet file in a folder that is there, and no output of the run."""
    if path.suffix.lower() != ".parquet":
        raise ValueError(f"--out writes a Parquet table: name the file {path.with_suffix('.parquet')}, not {path}")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"{path.parent} is no folder: make it first, or write the rows elsewhere")
    if folder.resolve().is_relative_to((root / "data").resolve()):
        raise ValueError(f"{path} lies in data/, where the outputs of runs are: write the rows elsewhere")


def verdict(found: Outcome) -> str:
    """What to say in a line or two: of the code, and of what it changed."""
    changes = found.changes
    sentences = [*(change.sentence() for change in found.code), *(f"reward code of {name}: the run did not record its hash" for name in found.unknown)]
    code = "\n".join(sentences) or "the reward code is the one that the run recorded"
    if not found.same_settings:
        code += "\nfunctions, weights or options are not those of the run"
    scored = f"{_counted(changes.rows, 'completion')} of {_counted(changes.steps, 'step')} scored again"
    if changes.rows_changed == 0:
        return f"{code}\n{scored}: nothing changed"
    said = f"{code}\n{scored}: {changes.rows_changed:,} changed"
    if not sentences and found.same_settings:
        said += " (a reward that is not a function of the text, another library version, or a time limit)"
    if (stop := changes.stop) is not None:
        said += f"\nthe run would have stopped at step {stop.step}: {stop.function} failed on {stop.failed} of {stop.rows} completions"
    return said


def as_json(found: Outcome) -> str:
    """Everything but the rows for machines."""
    changes = asdict(found.changes)
    for function, values in zip([*found.changes.functions, found.changes.total], [*changes["functions"], changes["total"]], strict=True):
        values["statuses_changed"] = function.statuses_changed
    code = {"reward_code": [asdict(change) for change in found.code], "unknown_code": list(found.unknown)}
    told = {"run": found.label, **code, "weights": found.weights, "same_settings": found.same_settings, **changes}
    return json.dumps(told, indent=2, ensure_ascii=False)


def tables(found: Outcome) -> "list[RenderableType]":
    """What changed of values, statuses and rankings, and the completions that changed most; values alone where nothing did."""
    shown: list[RenderableType] = [_values(found)]
    if found.changes.rows_changed:
        shown += [*_statuses(found.changes), _ranking(found.changes.ranking), _rows(found.changed)]
    return shown


# ------------------------------------------------------------------------------------------------------------- pieces


def _table(title: str, columns: Sequence[str], left: Sequence[str] = ()) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    return table


def _values(found: Outcome) -> "Table":
    headings = ("", "weight", "mean then", "today", "values changed", "statuses changed", "largest change", "Pearson", "Spearman")
    table = _table(f"{found.label}: what completions earned then, and what they would earn today", headings, left=("",))
    for change in found.changes.functions:
        table.add_row(change.name, _weight(*found.weights[change.name]), *_numbers(change))
    table.add_section()
    table.add_row("weighted sum", "", *_numbers(found.changes.total))
    return table


def _weight(then: float | None, today: float | None) -> str:
    if then == today:
        return f"{then:g}"
    return " → ".join("–" if weight is None else f"{weight:g}" for weight in (then, today))


def _numbers(change: "ValueChange") -> list[str]:
    means = [_number(value, ".4f") for value in (change.mean_recorded, change.mean_today)]
    counts = [f"{change.values_changed:,}", f"{change.statuses_changed:,}"]
    return [*means, *counts, _number(change.largest, ".4g"), _number(change.pearson, ".3f"), _number(change.spearman, ".3f")]


def _statuses(changes: "Rescored") -> "list[Table]":
    moved = [(change.name, move, count) for change in changes.functions for move, count in change.statuses.items()]
    if not moved:
        return []
    table = _table("Statuses", ("", "then → today", "completions"), left=("", "then → today"))
    for name, move, count in moved:
        table.add_row(name, move, f"{count:,}")
    return [table]


def _ranking(ranking: "RankingChange") -> "Table":
    table = _table("Ranking within groups, by advantage", ("", "groups"), left=("",))
    table.add_row("differ both times", f"{ranking.compared:,} of {ranking.groups:,}")
    table.add_row("  of these in another order", f"{ranking.reordered:,}")
    table.add_row("  of these with another best completion", f"{ranking.best_changed:,}")
    table.add_row("  Kendall's tau-b, mean of these", _number(ranking.kendall, ".3f"))
    table.add_row("taught then, all alike today", f"{ranking.now_alike:,}")
    table.add_row("all alike then, would teach today", f"{ranking.now_differ:,}")
    table.add_row("completions whose advantage changed its sign", f"{ranking.signs_flipped:,}")
    return table


def _rows(changed: "pl.DataFrame") -> "Table":
    from rich.text import Text

    title = f"Changed most: {min(SHOWN_ROWS, len(changed))} of {_counted(len(changed), 'completion')}"
    table = _table(title, ("step", "prompt", "#", "then", "today", "answer", "text", "why today"), left=("prompt", "answer", "text", "why today"))
    for row in changed.head(SHOWN_ROWS).to_dicts():
        cells = [str(row["step"]), row["prompt_id"][:8], str(row["completion_index"]), _number(row["recorded/reward"]), _number(row["today/reward"])]
        table.add_row(*cells, *(Text(_cut(row[name] or "")) for name in ("answer", "text", "today/reason")))
    return table


def _cut(text: str) -> str:
    """The beginning of a text in one line that cannot steer the terminal."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 1] + "…"


def _number(value: float | None, form: str = ".4g") -> str:
    return "–" if value is None else f"{value:{form}}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
