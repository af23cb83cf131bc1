"""An exploration as tables and sentences for people."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grpo_core.exploration_numbers import DIFFICULTY_NAMES, QUANTILES, FunctionNumbers, Histogram, Numbers, Spread
from pipelines.console import visible
from pipelines.exploration.explore import Exploration
from pipelines.lineage.trace_tables import spaced
from pipelines.outlook import Outlook, duration
from pipelines.outlook import shown as shown_outlook

LONGEST_TEXT = 400
"""Characters of a prompt or completion that are shown; completions.parquet has all."""
QUANTILE_NAMES = {"min": 0.0, "10%": 0.1, "median": 0.5, "90%": 0.9, "max": 1.0}
BLOCKS = " ▁▂▃▄▅▆▇█"
BAR, SHORT_BAR = 24, 12
"""Characters of the longest bar, of tables and within a cell."""
STATUS_WORDS = {"invalid": "invalid", "error": "errors", "no_opinion": "no opinion"}
COLORS = {"ready": "green", "ready with warnings": "yellow", "not yet": "red"}


def shown(found: Exploration, ahead: Outlook) -> Group:
    """All of it; the verdict last, where a terminal shows it. `ahead` is the run that was configured."""
    parts = [
        heading(found),
        rewards_table(found.numbers.functions),
        values_table(found.numbers.functions),
        groups_table(found.numbers),
        lengths_table(found),
        *difficulty_tables(found.numbers),
        *live_tables(found.numbers),
        pairs_table(found),
        shown_outlook(ahead),
        rates_text(found, ahead),
        verdict_text(found),
    ]
    return Group(*spaced(parts))


def heading(found: Exploration) -> Text:
    """What was drawn, by which model."""
    numbers, config = found.numbers, found.config
    digest = found.rows["policy_digest"][0]
    text = Text(
        f"Explored {found.experiment!r}: {numbers.num_prompts:,} train prompts × {numbers.group_size} completions, "
        f"temperature {config.rollout.temperature:g}, seed {found.seed}\nby {found.start.label} (weights {digest})"
    )
    if not found.is_whole:
        text.append(f"\nstopped early: {numbers.num_completions:,} of {found.num_asked:,} completions were sampled", style="yellow")
    if found.start.note:
        text.append(f"\nnote: {found.start.note}", style="yellow")
    return text


def rewards_table(functions: Sequence[FunctionNumbers]) -> RenderableType:
    """What each function gave and what became of it, the total last."""
    has_trouble = any(map(trouble, functions))
    table = _table("function", "weight", "mean", "std", "at lowest", "full marks", "tells groups apart", *["trouble"] * has_trouble, left=("trouble",))
    for f in functions:
        cells = [short_name(f), "" if f.weight is None else f"{f.weight:g}", f"{f.spread.mean:.3g}", f"{f.spread.std:.3g}"]
        cells += [percent(f.at_lowest), percent(f.at_full_marks), percent(f.differs), *[trouble(f)] * has_trouble]
        table.add_row(*map(Text, cells), end_section=f is functions[-2])
    return titled("Rewards by function", table)


def values_table(functions: Sequence[FunctionNumbers]) -> RenderableType:
    """How the values of each function lie."""
    table = _table("function", *QUANTILE_NAMES, "values", left=("values",))
    for f in functions:
        table.add_row(*map(Text, [short_name(f), *quantile_cells(f.spread), text_histogram(f.spread.histogram)]), end_section=f is functions[-2])
    return titled("How their values lie", table)


def groups_table(numbers: Numbers) -> RenderableType:
    """What there is to compare."""
    groups, size = numbers.groups, numbers.group_size
    main = " and ".join(short_name(f) for f in numbers.functions[:-1] if f.is_main)
    side = " and ".join(short_name(f) for f in numbers.functions[:-1] if not f.is_main and f.weight) or "nothing else"
    rows = [
        (groups.signal, "signal", f"{main} tells completions apart: GRPO learns from these"),
        (groups.side_signal, "side signal", f"only {side} does: form, not answers"),
        (groups.too_easy, "too easy", f"alike, all with full marks of {main}"),
        (groups.too_hard, "too hard", f"alike, all with the lowest {main}"),
        (groups.alike, "alike", "in between, or not scored"),
    ]
    table = _table("", "share", "", "what it means", left=("", "what it means"))
    for share, name, meaning in rows:
        table.add_row(name, percent(share), Text(bar(share)), Text(meaning))
    if numbers.distinct is not None:
        table.add_section()
        meaning = "how different completions of a group are: 0 all the same, 1 none twice (solved groups aside)"
        table.add_row("distinct", f"{numbers.distinct:.2f}", Text(bar(numbers.distinct)), meaning)
    return titled(f"Groups of {size}", table)


def lengths_table(found: Exploration) -> RenderableType:
    """Lengths in tokens."""
    numbers = found.numbers
    table = _table("mean", *QUANTILE_NAMES, f"cut at {found.config.rollout.max_new_tokens}", "lengths", left=("lengths",))
    cells = [f"{numbers.lengths.mean:.1f}", *quantile_cells(numbers.lengths), percent(numbers.truncated), text_histogram(numbers.lengths.histogram)]
    table.add_row(*map(Text, cells))
    return titled("Completion length in tokens", table)


def difficulty_tables(numbers: Numbers) -> list[RenderableType]:
    """Prompts by their share of right completions, and by the difficulty that they came with."""
    if numbers.accuracy is None:
        return [Text("Difficulty: the metric failed on every completion")]
    interval = f"[{numbers.accuracy.low:.3f}, {numbers.accuracy.high:.3f}]"
    about = f"{numbers.accuracy.estimate:.3f} {interval} of completions are right (mean@{numbers.group_size}, 95 % interval over prompts in brackets)"
    table = _table("right of a prompt", "prompts", "", left=("",))
    for name, share in zip(DIFFICULTY_NAMES, numbers.difficulty, strict=True):
        table.add_row(name, percent(share), Text(bar(share)))
    first = titled(f"Difficulty: {about}", table)
    if not numbers.levels:
        return [first]
    levels = _table("difficulty", "prompts", "right", "groups with signal")
    for level in numbers.levels:
        accuracy = "–" if level.accuracy is None else f"{level.accuracy:.3f}"
        levels.add_row(Text(visible(level.name)), f"{level.num_prompts:,}", accuracy, percent(level.signal))
    return [first, titled("By the difficulty that prompts came with", levels)]


def live_tables(numbers: Numbers) -> list[RenderableType]:
    """What other group sizes would give; nothing where no completion is right, or all are."""
    if not any(live.share for live in numbers.live):
        return []
    table = _table("G", "share", "sampling costs", "how it is known", left=("how it is known",))
    for live in numbers.live:
        basis = "about: a beta distribution stands for the prompts" if live.is_extrapolated else "estimated without bias from these samples"
        size = f"{live.group_size}{' (explored)' if live.group_size == numbers.group_size else ''}"
        table.add_row(size, percent(live.share), f"{live.group_size / numbers.group_size:g}×", basis)
    return [titled("Groups with right and wrong completions, by completions a prompt (G)", table)]


def pairs_table(found: Exploration) -> RenderableType:
    """A better and a worse completion of some groups."""
    if not found.pairs:
        return Text("Pairs: no group has completions of different reward")
    asked = dict(found.prompts.select("prompt_id", "prompt").iter_rows())
    table = Table(show_lines=True)
    for name in ("prompt", "right", "reward", "better", "reward", "worse"):
        is_number = name in ("right", "reward")
        table.add_column(name, overflow="fold", justify="right" if is_number else "left", no_wrap=is_number)
    for pair in found.pairs:
        cells = [shortened(asked[pair.prompt_id]), f"{pair.right} of {pair.graded}"]
        cells += [f"{pair.better_reward:.4g}", shortened(pair.better), f"{pair.worse_reward:.4g}", shortened(pair.worse)]
        table.add_row(*map(Text, cells))
    return titled("A better and a worse completion of one prompt, from rarely to mostly right", table)


def rates_text(found: Exploration, ahead: Outlook) -> Text:
    """What this very sampling took, and what the run's own sampling and scoring would take at that rate."""
    rates, drawn = found.rates, len(found.rows)
    each = (rates.sampling_seconds + rates.scoring_seconds) / drawn
    return Text(
        f"Measured here: {rates.tokens_a_second:,.0f} tokens a second while sampling, {1000 * rates.scoring_seconds / drawn:.2g} ms a completion in scoring.\n"
        f"At that rate and these lengths the run's {ahead.plan.completions:,} completions take {duration(each * ahead.plan.completions)} to sample and score; "
        "updates and evaluations come on top."
    )


def verdict_text(found: Exploration) -> Group:
    """The verdict, and a sentence and a remedy for each reason."""
    verdict = found.readiness.verdict
    said = {
        "ready": "GRPO has something to learn from here.",
        "ready with warnings": "GRPO has something to learn from here, but:",
        "not yet": "GRPO would learn little or nothing from here:",
    }
    first = Text("Verdict: ").append(verdict, style=f"bold {COLORS[verdict]}").append(f". {said[verdict]}")
    reasons = Table.grid(padding=(0, 1))
    for finding in found.readiness.findings:
        mark = Text("  ✗", style="red") if finding.blocks else Text("  !", style="yellow")
        reasons.add_row(mark, Text(f"{visible(finding.sentence)}\nwhat to do: {finding.remedy} ({finding.page})"))
    return Group(first, reasons) if found.readiness.findings else Group(first)


def written_text(folder: Path, root: Path) -> str:
    """Where it all lies."""
    return f"Written to {folder.relative_to(root)}: completions.parquet, summary.json, exploration.png"


# ------------------------------------------------------------------------------------------------------------- pieces


def percent(share: float) -> str:
    """A share as a person reads it; what is not 0 or 1 does not look like it."""
    rounded = f"{100 * share:.1f}%"
    return "<0.1%" if rounded == "0.0%" and share > 0 else ">99.9%" if rounded == "100.0%" and share < 1 else rounded


def bar(share: float, length: int = BAR) -> str:
    """As long as the share is large."""
    return "█" * round(length * share) or ("▏" if share > 0 else "")


def text_histogram(found: Histogram) -> str:
    """A line a value where these are few, else a block a bin between the smallest and the largest."""
    highest = max(found.shares, default=1.0)
    if found.values:
        return "\n".join(
            f"{value:<7.4g}{bar(share, SHORT_BAR):<{SHORT_BAR}} {percent(share):>6}" for value, share in zip(found.values, found.shares, strict=True)
        )
    blocks = "".join(BLOCKS[max(1, round(share / highest * (len(BLOCKS) - 1)))] if share else " " for share in found.shares)
    return f"{found.edges[0]:.4g} {blocks} {found.edges[-1]:.4g}" if found.edges else ""


def quantile_cells(spread: Spread) -> list[str]:
    """The quantiles that are shown, without a value dashes."""
    chosen = dict(zip(QUANTILES, spread.quantiles, strict=False))
    return [f"{chosen[q]:.3g}" if q in chosen else "–" for q in QUANTILE_NAMES.values()]


def short_name(function: FunctionNumbers) -> str:
    """Without the module that a function of the user's lies in."""
    return function.name.rpartition(":")[2]


def trouble(function: FunctionNumbers) -> str:
    """Shares of completions that were not simply scored."""
    return ", ".join(f"{percent(function.statuses[status])} {words}" for status, words in STATUS_WORDS.items() if function.statuses[status] > 0)


def shortened(text: str) -> str:
    """What is shown of a text; it cannot steer the terminal."""
    text = visible(text)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def titled(title: str, table: Table) -> Group:
    """A table under its title, which is not folded to the table's width."""
    return Group(Text(title, style="italic"), table)


def _table(*names: str, left: Sequence[str] = ()) -> Table:
    """A table with these columns: the first to the left, as those in `left`, the others to the right."""
    table = Table()
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place == 0 or name in left else "right", overflow="fold")
    return table
