"""Every noun of a tiny lifecycle on disk, made by the assets themselves."""

import json
from pathlib import Path

import polars as pl

from assets import blind_review_set, grpo_checkpoint, heldout_eval, reference_checkpoint, sft_checkpoint
from assets.contracts import Outcome, Validation
from assets.page import Progress
from assets.paths import Paths
from grpo_core.config import RunConfig
from grpo_core.params import section_values
from tests.tiny_run import REWARD, prompts_table, tiny_config


def lifecycle_config() -> RunConfig:
    """Two checkpoints apart: few steps, but long enough that policy and reference answer differently."""
    return tiny_config(rewards={REWARD: 1.0, "answer_format": 0.1}, steps=4, learning_rate=1e-2)


def make_lifecycle(root: Path) -> Paths:
    """From prompts to the blind-review set below `root`, as the stages would make them."""
    paths, config = Paths(root), lifecycle_config()
    paths.prompts.parent.mkdir(parents=True)
    prompts_table().write_parquet(paths.prompts)
    settings = paths.run_config / paths.experiment / "blind_review_set.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps(section_values(config, "blind_review_set")))
    sft_checkpoint.produce(paths, config, ignore, never, sft_checkpoint.work_folder(paths, config))
    reference_checkpoint.produce(paths, config, ignore)
    grpo_checkpoint.produce(paths, config, ignore, never, grpo_checkpoint.work_folder(paths, config))
    heldout_eval.produce(paths, config, ignore)
    blind_review_set.produce(paths, config, ignore)
    return paths


def ignore(progress: Progress) -> None:
    """Nobody watches."""


def never() -> bool:
    """Nobody asks to stop."""
    return False


def replace_table(path: Path, table: pl.DataFrame) -> None:
    """Put `table` at `path`, whatever lies there (a link into a cache, a read-only file)."""
    path.unlink()
    table.write_parquet(path)


def replace_json(path: Path, **changes: object) -> None:
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, **changes}))


def violations(validation: Validation) -> dict[str, Outcome]:
    """Violated rules → what was found. The summary, which stops a run, names each of them."""
    violated = {outcome.why: outcome for outcome in validation.outcomes if not outcome.success}
    for why in violated:
        assert why in validation.summary()
    return violated


def names(outcome: Outcome, **values: object) -> bool:
    """Whether the first offending row that `outcome` shows holds these values."""
    return outcome.rows[0].items() >= values.items()
