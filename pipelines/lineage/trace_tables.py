"""A trace as tables for people."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from assets.lineage import changed_settings, table_rows
from pipelines.console import visible
from pipelines.lineage.prompt_trace import PromptTrace, ends, limited
from pipelines.lineage.trace import Trace

SHOWN_STEPS = 6
"""Steps shown unless all are asked for: half of them the first, half the last."""
SHOWN_COMPLETIONS = 20
LONGEST_TEXT = 240
"""Characters of a completion that are shown; `--json` gives all."""
TAKEN = ("experiment", "run", "model", "step", "#", "right", "reward", "status", "why", "advantage", "policy", "text")
"""Headings of a completion's own columns."""
LEFT = ("policy", "experiment", "run", "model", "#", "right", "status", "why", "text")


def shown(found: Trace, root: Path, *, every_step: bool, every_setting: bool) -> Group:
    """The whole trace of a run."""
    parts: list[RenderableType] = [_titled(f"What {found.run['label']} was made from", table_rows(found.made_from))]
    if every_setting:
        parts.append(_settings(found))
    parts += [_steps(found.steps, every_step), _select(found.select, every_step), _heldout(found.heldout), _files(found, root)]
    return Group(*spaced(parts))


def shown_prompt(found: PromptTrace, limit: int) -> Group:
    """A prompt and its completions, the first and the last of each kind."""
    prompt = found.prompt
    heading = [("prompt_id", prompt["prompt_id"])]
    heading += [(name, visible(str(prompt[name]))) for name in ("prompt", "answer", "split", "task", "difficulty") if prompt.get(name) is not None]
    if "prompt" not in prompt:
        heading.append(("", "the table of prompts does not hold it any more"))
    few = limited(found, limit)
    parts: list[RenderableType] = [_titled("Prompt", heading)]
    for title, kind in (("Training", "training"), ("Selection (never trained on)", "select"), ("Held-out evaluation", "heldout")):
        rows, all_rows = getattr(few, kind), getattr(found, kind)
        parts.append(_completions(f"{title}: {_counted(len(rows), len(all_rows), 'completion')}", rows))
    if found.withheld:
        parts.append(Text(f"Withheld: people judge held-out answers to this prompt blind ({', '.join(found.withheld)}); shown once the verdict is counted"))
    if found.unsearched:
        runs = _counted(len(found.unsearched), len(found.unsearched), "recorded run")
        parts.append(Text(f"Not all of it: {runs} could not be searched, as tables of theirs are not on this machine: {', '.join(found.unsearched)}"))
    return Group(*spaced(parts))


def numbers_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A row a row and a column a key, those of the first row first: numbers to the right, a value that a row lacks left empty."""
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        # A heading of several words stands on several lines, so that text has room.
        widest = max(map(len, name.split())) if " " in name else None
        table.add_column(name, justify="left" if name in LEFT else "right", overflow="fold", max_width=widest)
    for row in rows:
        table.add_row(*[cell(row[name]) if name in row else Text() for name in names])
    return table


def part_headings(parts: Mapping[str, Any]) -> dict[str, Any]:
    """What each reward function gave, under the function's own name where that is not taken by another of them or by another column."""
    short = [name.rpartition(":")[2] for name in parts]
    clear = [name if name not in TAKEN and short.count(name) == 1 else whole for name, whole in zip(short, parts, strict=True)]
    return {name.replace("_", " "): value for name, value in zip(clear, parts.values(), strict=True)}


def cell(value: Any) -> Text:
    """A value as people read it; text cannot steer the terminal."""
    match value:
        case None:
            return Text("–")
        case bool():
            return Text("yes" if value else "no")
        case int():
            return Text(f"{value:,}")
        case float():
            return Text(f"{value:.4g}")
    text = visible(str(value))
    return Text(text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…")


# ------------------------------------------------------------------------------------------------------------- pieces


def _titled(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(name), Text(visible(text)))
    return table


def _settings(found: Trace) -> Table:
    config = found.made_from.config
    changed = changed_settings(config)
    rows = []
    for section, values in config.items():
        for key, value in values.items():
            name = f"{section}.{key}"
            rows.append((name, f"{value!r}" + (f"  (default {changed[name][1]!r})" if name in changed else "")))
    return _titled("Configuration", rows)


def _steps(rows: Sequence[dict[str, Any]], every: bool) -> RenderableType:
    if not rows:
        return Text("Rollouts: no table of them on this machine")
    some = list(rows) if every else ends(rows, SHOWN_STEPS)
    return numbers_table(f"Rollouts: {_counted(len(some), len(rows), 'step')}", some)


def _select(rows: Sequence[dict[str, Any]], every: bool) -> RenderableType:
    if not rows:
        return Text("Selection: no table of evaluations on this machine, or none during training")
    some = list(rows) if every else ends(rows, SHOWN_STEPS)
    cells = [{"step": row["step"], "prompts": row["num_prompts"], "accuracy": _interval(row, "accuracy"), "length": row["length"]} for row in some]
    return numbers_table(f"Selection: {_counted(len(some), len(rows), 'evaluation')}, greedy, 95 % intervals (Wilson)", cells)


def _heldout(summary: Mapping[str, Any]) -> RenderableType:
    names = [name.removesuffix("_accuracy") for name in summary if name.endswith("_accuracy")]
    if not names:
        return Text("Held-out evaluation: none on this machine")
    rows = []
    for name in names:
        more = {key: summary.get(f"{name}_{key}") for key in ("mean_at_k", "mean_length")}
        rows.append({"model": name, "accuracy": _interval(summary, f"{name}_accuracy"), **{key: value for key, value in more.items() if value is not None}})
    if "difference_low" in summary:
        rows.append({"model": "difference (paired)", "accuracy": _interval(summary, "difference", sign="+")})
    if "kl_token_mean" in summary:
        rows.append({"model": "KL to the reference, nats a token", "accuracy": f"{summary['kl_token_mean']:.4f}"})
    ungraded = summary.get("num_ungraded_prompts", 0)
    aside = f" ({ungraded:,.0f} more could not be graded)" if ungraded else ""
    return numbers_table(f"Held-out evaluation, greedy: {summary['num_prompts']:,} prompts never trained on{aside}, 95 % intervals in brackets", rows)


def _files(found: Trace, root: Path) -> Table:
    def place(path: str, where: str | None) -> str:
        if where is None:
            return "not on this machine"
        if Path(where) == root / path:
            return ""
        return Path(where).relative_to(root).as_posix() if Path(where).is_relative_to(root) else where

    return _titled("Files (path in the checkout, and where the bytes are if elsewhere)", [(path, place(path, where)) for path, where in found.files.items()])


def _completions(title: str, rows: Sequence[dict[str, Any]]) -> RenderableType:
    """What every completion was and earned; columns that are empty throughout are left out."""
    if not rows:
        return Text(title)
    lines = []
    for row in rows:
        line = {"experiment": row["experiment"], "run": (row["run"] or "")[:8], "model": row.get("model"), "step": row.get("step"), "#": _place(row)}
        line |= {"right": row.get("correct"), "reward": row.get("reward"), **part_headings(row["parts"]), **_status(row), "advantage": row.get("advantage")}
        lines.append({**line, "policy": (row.get("policy_digest") or "")[:8], "text": row["text"]})
    same = [name for name in ("experiment", "run") if len({line[name] for line in lines}) == 1]
    lines = [{name: value for name, value in line.items() if name not in same} for line in lines]
    kept = [name for name in dict.fromkeys(name for line in lines for name in line) if any(line.get(name) not in (None, "") for line in lines)]
    return numbers_table(title, [{name: line.get(name) for name in kept} for line in lines])


def _status(row: Mapping[str, Any]) -> dict[str, str | None]:
    """What became of a completion that was not simply scored, and why."""
    return {"status": None if row.get("status") == "ok" else row.get("status"), "why": row.get("reason")}


def _place(row: Mapping[str, Any]) -> str:
    """Which of its prompt's completions it is."""
    if row.get("decoding") == "greedy":
        return "greedy"
    return f"{row['decoding']} {row['sample_index']}" if "decoding" in row else str(row["completion_index"])


def _interval(numbers: Mapping[str, float], name: str, sign: str = "") -> str:
    return f"{numbers[name]:{sign}.3f} [{numbers[f'{name}_low']:{sign}.3f}, {numbers[f'{name}_high']:{sign}.3f}]"


def _counted(shown: int, there: int, noun: str) -> str:
    plural = f"{there:,} {noun}{'' if there == 1 else 's'}"
    return plural if shown == there else f"{plural}, of which {shown} (the first and the last)"


def spaced(parts: Sequence[RenderableType]) -> list[RenderableType]:
    return [piece for part in parts for piece in (part, Text())][:-1]
