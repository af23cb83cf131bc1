"""A checkout with the real dvc.yaml, params.yaml and Git and DVC settings, whose stages write a line of text instead of training."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from pipelines.code_deps import declared_files, rewritten
from pipelines.environment import environment
from pipelines.params import ROOT

SETTINGS = (
    "params.yaml",
    ".gitignore",
    "data/champion/champion.json",
    ".dvcignore",
    ".dvc/config",
    ".dvc/.gitignore",
    ".dagster/dagster.yaml",
    "data/raw/.gitkeep",
    "data/blind_review_votes/README.md",
)

THIRD_PARTY_WARNINGS = ("ignore:_NoneStep.value will soon raise:DeprecationWarning",)
"""pygtrie deprecated what DVC 3.67 still calls when it builds its graph."""

NUMBERS: dict[str, Any] = {
    "num_prompts": 500, "samples_per_prompt": 4, "pass_k": 2, "metric": "exact_answer", "temperature": 1.0,
    "reference_accuracy": 0.43, "reference_accuracy_low": 0.39, "reference_accuracy_high": 0.474,
    "policy_accuracy": 0.99, "policy_accuracy_low": 0.977, "policy_accuracy_high": 0.996,
    "difference": 0.56, "difference_low": 0.515, "difference_high": 0.604,
    "mean_at_k_difference": 0.51, "mean_at_k_difference_low": 0.48, "mean_at_k_difference_high": 0.54,
    "reference_mean_at_k": 0.45, "policy_mean_at_k": 0.96, "reference_pass_at_k": 0.8, "policy_pass_at_k": 1.0,
    "reference_mean_length": 19.25, "policy_mean_length": 34.5, "kl_token_mean": 0.0512, "kl_sequence_sum": 1.766,
}  # fmt: skip
"""A held-out summary."""

STAGE = """
import json, os, sys
from pathlib import Path

noun, experiment = sys.argv[1], sys.argv[3] if len(sys.argv) > 3 else "default"
behaviour = os.environ.get("TOY_" + noun.upper(), "")
root = Path.cwd()

def read(*paths):
    return "".join((root / "data" / path).read_text() for path in paths)

def write(path, text):
    path = root / "data" / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

def validation(noun, *, folder=experiment + "/"):
    bad = behaviour == "violate " + noun
    outcome = {"why": "reward is finite", "success": not bad, "unexpected_count": int(bad), "rows": [{"step": 4, "value": "nan"}] * bad, "observed": None}
    summary = f"contract of {noun} violated: reward is finite: 1 row" if bad else f"contract of {noun} holds"
    write(f"validation/{folder}{noun}.json", json.dumps(dict(noun=noun, success=not bad, num_rows=9, summary=summary, expectations=[outcome])))
    return [summary] * bad

if behaviour == "fail":
    sys.exit("error: the toy was told to fail\\n  in two lines")
if behaviour == "sleep":
    import time
    from pipelines.signals import die_with_parent
    die_with_parent()
    (root / "asleep").touch()
    time.sleep(120)
from assets.paths import Paths
from pipelines.records.provenance import begin
making = begin(Paths(root, experiment), noun)
print("making", noun, "for", experiment)
if "DAGSTER_PIPES_CONTEXT" in os.environ and noun != "run_config":
    from dagster_pipes import open_dagster_pipes
    with open_dagster_pipes() as pipes:
        pipes.report_custom_message({"kind": "progress", "step": 3, "total": 9, "checkpointed": False, "numbers": {"reward/mean": 0.25}})
violated = []
if noun == "run_config":
    import shutil
    from pipelines.params import section_files
    shutil.rmtree(root / "data/run_config", ignore_errors=True)
    for name, content in section_files(root).items():
        write(f"run_config/{name}", content.decode())
elif noun == "prompts":
    raw = str(sorted(path.name for path in (root / "data/raw").iterdir()))
    write("prompts/prompts.parquet", read("run_config/model.json", "run_config/prompts.json") + raw)
    violated += validation("prompts", folder="")
elif noun == "sft_checkpoint":
    write("sft_checkpoint/weights", read("run_config/model.json", "run_config/sft.json", "prompts/prompts.parquet"))
elif noun == "reference_checkpoint":
    write("reference_checkpoint/weights", read("sft_checkpoint/weights"))
elif noun == "grpo_checkpoint":
    config = [f"run_config/{experiment}/{name}.json" for name in ("rollout", "rewards", "grpo", "heldout_eval")]
    made = read(*config, "prompts/prompts.parquet", "sft_checkpoint/weights", "reference_checkpoint/weights")
    write(f"rollout_batches/{experiment}/rollouts.parquet", "rollouts" + made)
    write(f"rewards/{experiment}/rewards.parquet", "rewards" + made)
    write(f"rewards/{experiment}/exploits.parquet", "exploits" + made)
    write(f"grpo_checkpoint/{experiment}/weights", "weights" + made)
    write(f"rollout_batches/{experiment}/select_completions.parquet", "select" + made)
    said = {"condition": "early_explosion", "severity": "alarm", "first_step": 3, "last_step": 9, "open": True, "message": "it exploded", "remedy": "do less"}
    alarms = [said] if behaviour == "alarm" else []
    write(f"health/{experiment}/alarms.json", json.dumps({"num_steps": 9, "num_open": len(alarms), "alarms": alarms}))
    import hashlib
    from grpo_core.rewards.registry import code_hashes
    hashes = code_hashes(list(json.loads(read(f"run_config/{experiment}/rewards.json"))))
    manifest = {"noun": noun, "run_key": hashlib.sha256(made.encode()).hexdigest()[:16], "step": 9, "files": {}, "reward_code_hashes": hashes}
    write(f"grpo_checkpoint/{experiment}/manifest.json", json.dumps(manifest))
    violated += validation("rollout_batches") + validation("rewards")
elif noun == "heldout_eval":
    made = read(f"run_config/{experiment}/heldout_eval.json", f"grpo_checkpoint/{experiment}/weights")
    write(f"heldout_eval/{experiment}/completions.parquet", made)
    write(f"heldout_eval/{experiment}/summary.json", (root / "summary.json").read_text())
    violated += validation("heldout_eval")
elif noun == "blind_review_set":
    made = read(f"run_config/{experiment}/blind_review_set.json", f"heldout_eval/{experiment}/completions.parquet")
    write(f"blind_review_set/{experiment}/pairs.parquet", "pairs" + made)
    write(f"blind_review_key/{experiment}/key.parquet", "key" + made)
elif noun == "blind_review_verdict":
    made = read(f"blind_review_set/{experiment}/pairs.parquet", f"blind_review_key/{experiment}/key.parquet")
    voted = (root / f"data/blind_review_votes/{experiment}.parquet").is_file()
    write(f"blind_review_verdict/{experiment}/judged.parquet", made)
    write(f"blind_review_verdict/{experiment}/verdict.json", json.dumps({"status": "counted" if voted else "pending"}))
elif noun == "champion_eval":
    made = read(f"run_config/{experiment}/heldout_eval.json", "prompts/prompts.parquet", "champion/champion.json")
    write(f"champion_eval/{experiment}/completions.parquet", "champion" + made)
elif noun == "promotion_report":
    made = read(f"grpo_checkpoint/{experiment}/weights", f"champion_eval/{experiment}/completions.parquet", f"run_config/{experiment}/promotion.json")
    states = {"disjoint": True, "better": True, "guards": True, "health": True, "reward_audit": True, "blind_verdict": None}
    judged = [{"name": name, "passed": passed, "summary": f"{name} is {passed}", "numbers": {}} for name, passed in states.items()]
    report = {"status": "pending", "summary": "waits for: blind_verdict", "experiment": experiment, "conditions": judged, "made": made}
    write(f"promotion_report/{experiment}/report.json", json.dumps(report))
elif noun == "comparison_report":
    names = sorted(path.name for path in (root / "data/run_config").iterdir() if path.is_dir())
    made = {name: read(f"grpo_checkpoint/{name}/weights") for name in names if (root / f"data/grpo_checkpoint/{name}").is_dir()}
    write("comparison_report/report.json", json.dumps({"compared": made, "missing": sorted(set(names) - set(made))}))
if violated:
    sys.exit("error: " + "\\n".join(violated))
record = making.record()
if noun in ("sft_checkpoint", "grpo_checkpoint"):
    part, step = ("", 0) if noun == "sft_checkpoint" else (experiment, 9)
    work = root / ".work" / noun / part / "toy"
    work.mkdir(parents=True, exist_ok=True)
    (work / "finished").write_text(json.dumps({"md5": record["outs"][f"data/{noun}/{part}".rstrip("/")], "step": step}))
"""


def make_project(root: Path) -> Path:
    """Write the project, as a Git repository with one commit; nothing has been run in it."""
    for name in SETTINGS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    graph = (ROOT / "dvc.yaml").read_text(encoding="utf-8")
    own_code = {stage: [f"assets/{stage}.py"] for stage in declared_files(graph)}
    (root / "dvc.yaml").write_text(rewritten(graph, own_code).replace("python -m pipelines.stage", "python toy_stage.py"), encoding="utf-8")
    (root / "assets").mkdir()
    for stage in own_code:
        (root / "assets" / f"{stage}.py").write_text(f'"""The toy noun {stage}."""\n', encoding="utf-8")
    (root / "reward_functions").mkdir()
    (root / "reward_functions" / "mine.py").write_text('"""Nothing yet."""\n', encoding="utf-8")
    (root / "toy_stage.py").write_text(STAGE, encoding="utf-8")
    (root / "summary.json").write_text(json.dumps(NUMBERS), encoding="utf-8")
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "toy")
    return root


def run(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of this environment in the project; its output is in the error when it fails."""
    result = subprocess.run(command, cwd=root, env=toy_environment(root), capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}\n{result.stderr}"
    return result


def toy_environment(root: Path) -> dict[str, str]:
    """The lifecycle's environment, with this checkout's packages importable from the project."""
    return {**environment(root, os.environ), "PYTHONPATH": str(ROOT)}


def dvc(root: Path, *arguments: str) -> str:
    """What dvc prints on stdout."""
    return run(root, str(Path(sys.executable).parent / "dvc"), *arguments).stdout


def git(root: Path, *arguments: str) -> str:
    return run(root, "git", "-c", "user.name=toy", "-c", "user.email=toy@example.com", *arguments).stdout


def edit(root: Path, path: str, old: str, new: str) -> None:
    """Replace a text that stands in the file exactly once."""
    text = (root / path).read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path} holds {old!r} {text.count(old)} times"
    (root / path).write_text(text.replace(old, new), encoding="utf-8")
