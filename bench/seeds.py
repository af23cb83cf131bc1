"""The embedded default over several seeds: does it teach? Writes docs/learning_curves.png and docs/learning_curves.md.

    python bench/seeds.py [--seeds 10]

Every seed changes the model's first weights, the order of demonstrations and everything random in GRPO; the prompts stay. Takes
about two minutes a seed on two cores. Seeds that are in the work folder already, of this configuration and code, are not run again.
"""

import argparse
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import polars as pl
from tqdm import tqdm

from assets import grpo_checkpoint, heldout_eval, prompts, reference_checkpoint, sft_checkpoint
from assets.charts import learning_curves
from assets.page import Progress
from assets.paths import Paths
from grpo_core.config import SECTIONS, RunConfig
from grpo_core.params import section_values
from pipelines.environment import prepare_environment, prepare_libraries
from pipelines.params import ROOT, experiments

DOCS = ROOT / "docs"
COLUMNS = {
    "seed": "seed",
    "reference_accuracy": "SFT, greedy",
    "policy_accuracy": "GRPO, greedy",
    "difference": "difference",
    "difference_low": "95 % from",
    "difference_high": "to",
    "reference_mean_length": "SFT length",
    "policy_mean_length": "GRPO length",
    "kl_token_mean": "KL a token",
}


def run_seed(folder: Path, config: RunConfig, seed: int) -> None:
    """The lifecycle up to the held-out evaluation in `folder`, as the stages would run it."""
    seeded = replace(config, model=replace(config.model, seed=seed), sft=replace(config.sft, seed=seed), grpo=replace(config.grpo, seed=seed))
    paths = Paths(folder)
    steps = seeded.sft.steps + seeded.grpo.steps
    with tqdm(total=steps, desc=f"seed {seed}") as bar:

        def on_progress(progress: Progress) -> None:
            if progress.total in (seeded.sft.steps, seeded.grpo.steps) and progress.step > 0:
                bar.update(1)

        for module in (prompts, sft_checkpoint, reference_checkpoint, grpo_checkpoint, heldout_eval):
            more = (lambda: False, module.work_folder(paths, seeded)) if module in (sft_checkpoint, grpo_checkpoint) else ()
            module.produce(paths, seeded, on_progress, *more)


def version(config: RunConfig, root: Path) -> str:
    """Short hash of what a seed's numbers depend on: the configuration and the code below `root`."""
    digest = hashlib.sha256(json.dumps({name: section_values(config, name) for name in SECTIONS}, sort_keys=True).encode())
    for path in sorted(path for package in ("grpo_core", "assets") for path in (root / package).glob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:8]


def curve(folder: Path, seed: int) -> pl.DataFrame:
    """Accuracy and length on `select` by step."""
    metrics = pl.read_ndjson(Paths(folder).grpo_checkpoint / "metrics.jsonl", infer_schema_length=None).drop_nulls("eval/select_accuracy")
    return metrics.select(
        pl.lit(seed).alias("seed"), "step", pl.col("eval/select_accuracy").alias("select_accuracy"), pl.col("eval/select_length").alias("length")
    )


def table(rows: list[dict[str, float]]) -> str:
    """The rows in Markdown, and their medians."""
    lines = [" | ".join(COLUMNS.values()), " | ".join("---" for _ in COLUMNS)]
    lines += [" | ".join(str(row[c]) if c == "seed" else f"{row[c]:.3f}" for c in COLUMNS) for row in rows]
    medians = pl.DataFrame(rows).median().to_dicts()[0]
    lines.append(" | ".join("median" if c == "seed" else f"{medians[c]:.3f}" for c in COLUMNS))
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--work", type=Path, default=ROOT / ".work" / "seeds")
    options = parser.parse_args()
    prepare_environment(ROOT)
    config = experiments(ROOT)["default"]
    prepare_libraries(config.model)
    made_from = version(config, ROOT)
    rows, curves = [], []
    for seed in range(options.seeds):
        folder = options.work / f"seed-{seed}-{made_from}"
        if not Paths(folder).heldout_summary.exists():
            run_seed(folder, config, seed)
        rows.append({"seed": seed, **json.loads(Paths(folder).heldout_summary.read_text())})
        curves.append(curve(folder, seed))
    (DOCS / "learning_curves.png").write_bytes(learning_curves(pl.concat(curves)))
    text = (
        "# The embedded default over seeds\n\nMade by `python bench/seeds.py`. Accuracy is on held-out prompts, the interval is the paired bootstrap's; "
        f"lengths are in tokens.\n\n![learning curves](learning_curves.png)\n\n{table(rows)}\n"
    )
    (DOCS / "learning_curves.md").write_text(text)
    print(table(rows))


if __name__ == "__main__":
    main()
