"""A checkout with one tiny trained policy whose evidence is whole and in its favour, as `dvc repro` would leave it."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
from ruamel.yaml import YAML

from assets import blind_review_verdict, champion_eval, promotion_report
from assets.paths import Paths
from grpo_core.checkpoint import MANIFEST, write_folder
from grpo_core.config import SECTIONS, SHARED_SECTIONS, PromotionConfig, RunConfig
from grpo_core.models import load_model, policy_digest, save_model
from grpo_core.params import section_values
from pipelines.lock import read_yaml
from pipelines.params import ROOT, json_bytes
from pipelines.records.provenance import begin
from pipelines.records.stage_files import stage_files
from pipelines.reproduction.inputs import dependency_md5
from pipelines.tracking import mlflow_client
from tests.assets.lifecycle import ignore, lifecycle_config, make_lifecycle
from tests.pipelines.toy_project import git

COPIED = ("params.yaml", "dvc.yaml", ".gitignore", ".dvcignore", ".dvc/config", ".dvc/.gitignore", "data/raw/.gitkeep", "data/blind_review_votes/README.md")
CHAMPION = ("champion.json", "history.jsonl", "looks.jsonl")
STAGES = ("prompts", "sft_checkpoint", "reference_checkpoint", "grpo_checkpoint", "heldout_eval", "blind_review_set")
JUDGED = ("blind_review_verdict", "champion_eval", "promotion_report")


def promotable_config() -> RunConfig:
    """No verdict is asked for."""
    return replace(lifecycle_config(), promotion=PromotionConfig(require_verdict=False))


def make_promotable(root: Path) -> Paths:
    """A trained policy that answers every held-out prompt right, where the reference answers none."""
    for name in COPIED:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for name in CHAMPION:
        (root / "data" / "champion").mkdir(exist_ok=True)
        (root / "data" / "champion" / name).write_text('{"version": 0}\n' if name == "champion.json" else "")
    for package in ("grpo_core", "assets", "pipelines", "reward_functions"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    paths = make_lifecycle(root)
    config = promotable_config()
    for section in SECTIONS:
        place = paths.run_config if section in SHARED_SECTIONS else paths.run_config / paths.experiment
        (place / f"{section}.json").write_bytes(json_bytes(section_values(config, section)))
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "trained")
    mlflow_client(root).search_experiments()  # makes the database, which takes long
    graded_as_wished(paths)
    judge(paths, config)
    return paths


def graded_as_wished(paths: Paths) -> None:
    """Every answer of the policy is right and every other wrong, as far as the table tells, and every alarm is over."""
    digest = json.loads((paths.grpo_checkpoint / MANIFEST).read_text())["policy_digest"]
    of_policy = pl.col("model") == "policy"
    table = pl.read_parquet(paths.heldout_completions)
    table = table.with_columns(of_policy.alias("correct"), pl.when(of_policy).then(pl.lit(digest)).otherwise("policy_digest").alias("policy_digest"))
    paths.heldout_completions.unlink()
    table.write_parquet(paths.heldout_completions)
    alarms = json.loads(paths.alarms.read_text())
    paths.alarms.write_text(json.dumps({**alarms, "num_open": 0, "alarms": [{**alarm, "open": False} for alarm in alarms["alarms"]]}))


def judge(paths: Paths, config: RunConfig) -> None:
    """What follows the evaluation, then dvc.lock and every stage's record."""
    for noun in (blind_review_verdict, champion_eval, promotion_report):
        noun.produce(paths, config, ignore)
    lock(paths)


def lock(paths: Paths) -> None:
    """Write dvc.lock and the records that tell of the outputs as they are."""
    root, stages = paths.root, {}
    declared = read_yaml(root / "dvc.yaml")["stages"]
    for noun in ("run_config", *STAGES, *JUDGED):
        files = stage_files(root, noun, paths.experiment)
        for path in files.metrics:  # the outcomes of contracts, which are not made here
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            if not (root / path).exists():
                (root / path).write_text("{}\n")
        stage = declared[noun].get("do", declared[noun])
        code = [path for path in stage.get("deps", ()) if not path.startswith("data/")]
        begin(paths, noun).record()
        entries = {kind: [entry(root, path) for path in names] for kind, names in (("deps", [*files.deps, *code]), ("outs", [*files.outs, *files.metrics]))}
        stages[f"{noun}@{paths.experiment}" if "foreach" in declared[noun] else noun] = {"cmd": "", **entries}
    with (root / "dvc.lock").open("w") as stream:
        YAML().dump({"schema": "2.0", "stages": stages}, stream)


def entry(root: Path, path: str) -> dict[str, object]:
    return {"path": path, "hash": "md5", "md5": dependency_md5(root, path), "size": 1}


def other_policy(paths: Paths) -> None:
    """Another policy in the experiment's folder, with the evidence for it: a next candidate."""
    config = promotable_config()
    manifest = json.loads((paths.grpo_checkpoint / MANIFEST).read_text())
    model = load_model(paths.grpo_checkpoint, config.model)
    next(iter(model.model.parameters())).data += 0.01
    curves = (paths.grpo_checkpoint / "metrics.jsonl").read_bytes()

    def write(folder: Path) -> None:
        save_model(model, folder)
        (folder / "metrics.jsonl").write_bytes(curves)

    facts = {name: value for name, value in manifest.items() if name != "files"}
    write_folder(paths.grpo_checkpoint, write, {**facts, "run_key": manifest["run_key"][::-1], "policy_digest": policy_digest(model.model)})
    graded_as_wished(paths)
    judge(paths, config)


def copied(source: Path, target: Path) -> Paths:
    """The checkout at another place, its files apart from the first's."""
    shutil.copytree(source, target)
    return Paths(target)


def in_checkout(root: Path) -> dict[str, str]:
    """The environment of a process that works there with the code of this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}
