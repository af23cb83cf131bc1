"""Sparse rewards: does imitating demonstrations lift a model of whose samples about 95 % score 0, and does GRPO without them stay there?

    python bench/sparse.py [--seeds 3]

Trains every experiment of params/sparse_addition.yaml from one fine-tuned model and asks it the held-out prompts. A seed changes all that is
random in GRPO. It took seven minutes a seed on two busy cores; what is in the work folder already, of this configuration and code, is not run again.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

from ruamel.yaml import YAML
from tqdm import tqdm

from assets import grpo_checkpoint, heldout_eval, prompts, reference_checkpoint, sft_checkpoint
from assets.page import Progress, ProgressCallback
from assets.paths import Paths
from bench.seeds import version
from grpo_core.config import RunConfig
from grpo_core.params import resolve_experiments
from pipelines.environment import prepare_environment, prepare_libraries
from pipelines.params import ROOT

PRESET = ROOT / "params" / "sparse_addition.yaml"
COLUMNS = {
    "reference_accuracy": "before, greedy",
    "policy_accuracy": "after, greedy",
    "reference_mean_at_k": "before, sampled",
    "policy_mean_at_k": "after, sampled",
}
"""Number of the held-out summary → its heading."""


def arms() -> dict[str, RunConfig]:
    """The preset itself, whose schedule is linear, and its experiments."""
    preset = YAML(typ="safe", pure=True).load(PRESET.read_text(encoding="utf-8"))
    return resolve_experiments({**preset, "experiments": {"linear": {}, **preset["experiments"]}})


def start(folder: Path, config: RunConfig, bar: "tqdm[None]") -> None:
    """Prompts, the fine-tuned model that every arm starts from, and its frozen copy, unless they are there."""
    paths = Paths(folder)
    if (paths.reference_checkpoint / "manifest.json").exists():
        return
    prompts.produce(paths, config, lambda progress: None)
    sft_checkpoint.produce(paths, config, counting(bar, config.sft.steps), lambda: False, sft_checkpoint.work_folder(paths, config))
    reference_checkpoint.produce(paths, config, lambda progress: None)


def run_arm(folder: Path, name: str, config: RunConfig, bar: "tqdm[None]") -> dict[str, float]:
    """Train one arm and ask the held-out prompts, unless that was done; the summary's numbers and the term's last weight."""
    paths = Paths(folder, name)
    if not paths.heldout_summary.exists():
        grpo_checkpoint.produce(paths, config, counting(bar, config.grpo.steps), lambda: False, grpo_checkpoint.work_folder(paths, config))
        heldout_eval.produce(paths, config, lambda progress: None)
    summary: dict[str, float] = json.loads(paths.heldout_summary.read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in (paths.grpo_checkpoint / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {column: summary[column] for column in COLUMNS} | {"weight": lines[-1].get("cloning/weight", 0.0)}


def counting(bar: "tqdm[None]", total: int) -> ProgressCallback:
    """Every step of a training as one of the bar's."""

    def on_progress(progress: Progress) -> None:
        if progress.total == total and progress.step > 0:
            bar.update(1)

    return on_progress


def table(rows: dict[str, list[dict[str, float]]]) -> str:
    """Every arm's seeds and their median in Markdown."""
    lines = [["arm", "seed", *COLUMNS.values(), "last weight"]]
    lines.append(["---"] * len(lines[0]))
    for arm, found in rows.items():
        names = [*COLUMNS, "weight"]
        lines += [[arm, str(seed), *(f"{row[name]:.3f}" for name in names)] for seed, row in enumerate(found)]
        lines.append([f"**{arm}**", "**median**", *(f"**{statistics.median(row[name] for row in found):.3f}**" for name in names)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=ROOT / ".work" / "sparse")
    options = parser.parse_args()
    prepare_environment(ROOT)
    configs = arms()
    prepare_libraries(configs["linear"].model)
    folder = options.work / version(configs["linear"], ROOT)
    rows: dict[str, list[dict[str, float]]] = {arm: [] for arm in configs}
    steps = configs["linear"].sft.steps + options.seeds * sum(config.grpo.steps for config in configs.values())
    with tqdm(total=steps, unit="step") as bar:
        start(folder, configs["linear"], bar)
        for seed in range(options.seeds):
            for arm, config in configs.items():
                bar.set_description(f"{arm}, seed {seed}")
                seeded = replace(config, grpo=replace(config.grpo, seed=seed))
                rows[arm].append(run_arm(folder, f"{arm}-{seed}-{version(seeded, ROOT)}", seeded, bar))
                tqdm.write(f"{arm}, seed {seed}: {rows[arm][-1]}")
    print(table(rows))
    zeros = 1 - rows["linear"][0]["reference_mean_at_k"]
    print(f"samples of the starting model that score 0: {zeros:.1%}")


if __name__ == "__main__":
    main()
