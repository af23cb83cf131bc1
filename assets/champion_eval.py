"""The champion's answers to the held-out prompts, in the way in which the candidate and its reference gave theirs: what a candidate is measured against."""

import polars as pl

from assets.champion import WEIGHTS, champion_of
from assets.page import Metadata, Progress, ProgressCallback, Table
from assets.paths import Paths
from grpo_core.config import RunConfig

MODEL = "champion"


def produce(paths: Paths, config: RunConfig, on_progress: ProgressCallback) -> None:
    """Let the champion answer; a table without rows while there is none."""
    from grpo_core.checkpoint import read_manifest
    from grpo_core.evaluation import evaluate, evaluation_prompts, scoring_functions
    from grpo_core.models import freeze, load_model
    from grpo_core.tables import no_answers, write_table

    settings = config.heldout_eval
    champion = champion_of(paths)
    if champion["version"] == 0:
        write_table(paths.champion_completions, no_answers(scoring_functions(config.rewards, settings.metric)))
        on_progress(Progress(1, 1, {"prompts": 0.0}))
        return
    manifest = read_manifest(paths.champion_model)
    if manifest["files"].get(WEIGHTS) != champion["weights_sha256"]:
        raise ValueError(
            f"{paths.champion_model} does not hold the champion of {paths.champion_record.name} (version {champion['version']}): "
            f"`dvc checkout {paths.champion_model.relative_to(paths.root)}.dvc` or `dvc pull` brings it back"
        )
    prompts = evaluation_prompts(pl.read_parquet(paths.prompts), "heldout", settings.max_prompts)
    total, done = len(prompts) * (1 + settings.samples_per_prompt), 0

    def on_batch(completions: int) -> None:
        nonlocal done
        done += completions
        on_progress(Progress(done, total))

    model = freeze(load_model(paths.champion_model, config.model))
    samples, step = settings.samples_per_prompt, manifest.get("step", 0)
    rows = evaluate(model, prompts, name=MODEL, step=step, samples=samples, settings=settings, config=config, on_batch=on_batch)
    write_table(paths.champion_completions, rows)


def describe(paths: Paths) -> Metadata:
    """Who the champion is and how it did."""
    champion, rows = champion_of(paths), pl.read_parquet(paths.champion_completions)
    if rows.is_empty():
        return {"champion": "none yet: candidates are measured against their reference", "file": paths.champion_completions}
    accuracies = rows.group_by("decoding").agg(pl.col("correct").mean().alias("accuracy"), pl.col("length").mean(), pl.len().alias("answers"))
    return {
        "version": champion["version"],
        "weights_sha256": champion["weights_sha256"],
        "experiment": champion["experiment"],
        "answers": Table(accuracies.sort("decoding")),
        "file": paths.champion_completions,
    }
