"""One exploration: draw and score, count, judge, and keep what was seen."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.paths import Paths
from grpo_core.checkpoint import write_folder
from grpo_core.config import RunConfig
from grpo_core.params import section_values
from pipelines.exploration.start import Start, load_start

if TYPE_CHECKING:
    import polars as pl

    from grpo_core.exploration import Pair
    from grpo_core.exploration_numbers import Numbers
    from grpo_core.readiness import Readiness

NUM_PAIRS = 10
EXPLORED_SECTIONS = ("model", "prompts", "rollout", "rewards", "reward_options", "scoring")
"""What an exploration depends on, beside the model and `grpo.group_size`, `prompts_per_step`, `length_penalty` and `select_metric`."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What the clock said while it sampled."""

    tokens: int
    sampling_seconds: float
    scoring_seconds: float

    @property
    def tokens_a_second(self) -> float:
        return self.tokens / self.sampling_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """What was asked and what came out."""

    experiment: str
    start: Start
    seed: int
    config: RunConfig
    """With the group size that was explored."""
    num_asked: int
    """Completions that were asked for; fewer were drawn when a person stopped it."""
    prompts: "pl.DataFrame"
    rows: "pl.DataFrame"
    numbers: "Numbers"
    readiness: "Readiness"
    pairs: "list[Pair]"
    rates: Rates

    @property
    def is_whole(self) -> bool:
        return len(self.rows) == self.num_asked

    @property
    def name(self) -> str:
        """What its folder is called: the same again for the same experiment, weights and seed. A part never takes the place of a whole one."""
        return f"{self.experiment}-{self.rows['policy_digest'][0]}-seed{self.seed}{'' if self.is_whole else '-part'}"


class StoppedTooSoon(Exception):
    """Stopped before anything was drawn and scored."""


def explore(
    paths: Paths, config: RunConfig, start: Start, *, most: int, seed: int, on_start: Callable[[int], None], on_batch: Callable[[int], None]
) -> Exploration:
    """Sample up to `most` train prompts, made as `grpo run` would make them. Ctrl-C (KeyboardInterrupt) ends it with the batches that are whole.

    `on_start` hears how many completions there will be, `on_batch` how many more were drawn. Raises StoppedTooSoon when no batch was.
    """
    import polars as pl

    from grpo_core.exploration import chosen_prompts, pairs_of, sampled
    from grpo_core.exploration_numbers import numbers_of
    from grpo_core.prompts import make_prompts
    from grpo_core.readiness import readiness

    samples = []
    try:
        prompts = chosen_prompts(make_prompts(config.prompts, paths.root), most, seed)
        language_model = load_start(start, config)
        on_start(len(prompts) * config.grpo.group_size)
        for sample in sampled(language_model, prompts, config, seed=seed, on_batch=on_batch):
            samples.append(sample)
    except KeyboardInterrupt as stop:
        if not samples:
            raise StoppedTooSoon from stop
    rows = pl.concat([sample.rows for sample in samples])
    numbers = numbers_of(rows, prompts, config)
    return Exploration(
        experiment=paths.experiment,
        start=start,
        seed=seed,
        config=config,
        num_asked=len(prompts) * config.grpo.group_size,
        prompts=prompts,
        rows=rows,
        numbers=numbers,
        readiness=readiness(numbers, config),
        pairs=pairs_of(rows, config, most=NUM_PAIRS, seed=seed),
        rates=Rates(int(rows["length"].sum()), sum(s.sampling_seconds for s in samples), sum(s.scoring_seconds for s in samples)),
    )


def with_group_size(config: RunConfig, group_size: int | None) -> RunConfig:
    """`config` with another number of completions a prompt; raises ConfigError when the rest of it does not go with that."""
    return config if group_size is None else replace(config, grpo=replace(config.grpo, group_size=group_size))


def folder_of(paths: Paths, found: Exploration) -> Path:
    """Where an exploration lies."""
    return paths.work / "explorations" / found.name


def write(paths: Paths, found: Exploration) -> Path:
    """Keep the completions, the numbers and the figure; an older exploration of the same name is replaced. Returns the folder.

    Everything but timings.json is the same again for the same experiment, weights, seed and options.
    """
    from grpo_core.tables import write_table
    from pipelines.exploration.chart import exploration_chart

    def fill(folder: Path) -> None:
        write_table(folder / "completions.parquet", found.rows)
        (folder / "summary.json").write_text(json.dumps(summary(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (folder / "timings.json").write_text(json.dumps({**asdict(found.rates), "tokens_a_second": found.rates.tokens_a_second}, indent=1) + "\n")
        (folder / "exploration.png").write_bytes(exploration_chart(found.numbers))

    write_folder(folder_of(paths, found), fill, {"noun": "exploration"})
    return folder_of(paths, found)


def summary(found: Exploration) -> dict[str, Any]:
    """Everything but completions and the clock, in JSON's types."""
    settings = {section: section_values(found.config, section) for section in EXPLORED_SECTIONS}
    grpo = section_values(found.config, "grpo")
    settings["grpo"] = {name: grpo[name] for name in ("group_size", "prompts_per_step", "length_penalty", "length_target", "select_metric")}
    return {
        "experiment": found.experiment,
        "model": found.start.label,
        "policy_digest": found.rows["policy_digest"][0],
        "seed": found.seed,
        "is_whole": found.is_whole,
        "verdict": found.readiness.verdict,
        "findings": [asdict(finding) for finding in found.readiness.findings],
        "numbers": asdict(found.numbers),
        "pairs": [asdict(pair) for pair in found.pairs],
        "config": settings,
    }
