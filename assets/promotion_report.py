"""The gate: whether the policy may become the champion, condition by condition, with the numbers. It proposes; `grpo promote` decides nothing else.

Everything is worked out from what other stages left, so that the same files give the same report, and a report that does not follow from them is seen.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from assets.alarms import read_alarms
from assets.champion import WEIGHTS, champion_of
from assets.looks import known_number, number_of
from assets.page import Chart, Metadata, Progress, ProgressCallback, Table, Value
from assets.paths import Paths
from grpo_core import gate
from grpo_core.checkpoint import MANIFEST, file_sha256, write_text
from grpo_core.config import RunConfig
from grpo_core.contamination import find_overlap
from grpo_core.exploits import findings
from grpo_core.gate import Condition

CHAMPION = "champion"
"""Status of a policy that is the champion already."""
MANY = 10
DIGITS = 6
"""Figures are written with so many digits: the last ones of a sum may differ between processors."""


def produce(paths: Paths, config: RunConfig, on_progress: ProgressCallback) -> None:
    """Write the report. The look at this policy is counted here as well: DVC may have restored its evaluation without running it."""
    number_of(paths, _weights(paths.grpo_checkpoint), experiment=paths.experiment)
    report = make_report(paths, config)
    write_text(paths.promotion_report, json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    on_progress(Progress(1, 1, {"conditions": float(len(report["conditions"]))}))


def make_report(paths: Paths, config: RunConfig) -> dict[str, Any]:
    """The report that the files of now give. Nothing is written; a policy that was never looked at gets the number that it would have."""
    champion, weights = champion_of(paths), _weights(paths.grpo_checkpoint)
    number, policies = known_number(paths, weights)
    has_champion = champion["version"] > 0
    against = CHAMPION if has_champion else "reference"
    conditions, dropped = judge(paths, config, champion, number)
    is_champion = has_champion and weights == champion["weights_sha256"]
    status = CHAMPION if is_champion else gate.status_of(conditions)
    return {
        "status": status,
        "summary": _summary(status, conditions, against),
        "experiment": paths.experiment,
        "run_key": _manifest(paths.grpo_checkpoint)["run_key"],
        "weights_sha256": weights,
        "against": {
            "model": against,
            "version": champion["version"],
            "weights_sha256": champion["weights_sha256"] if has_champion else _weights(paths.reference_checkpoint),
        },
        "number": number,
        "level": _rounded(gate.level(number)),
        "policies": policies,
        "conditions": [{"name": one.name, "passed": one.passed, "summary": one.summary, "numbers": _rounded(dict(one.numbers))} for one in conditions],
        "dropped": dropped,
        "inputs": {path.relative_to(paths.root).as_posix(): file_sha256(path) for path in inputs(paths) if path.is_file()},
    }


def inputs(paths: Paths) -> list[Path]:
    """The files that a report is made from; the ledger of looks apart, which goes on growing."""
    manifests = [folder / MANIFEST for folder in (paths.reference_checkpoint, paths.grpo_checkpoint)]
    answers = [paths.prompts, paths.heldout_completions, paths.champion_completions]
    return [*manifests, *answers, paths.alarms, paths.exploits, paths.blind_review_verdict, paths.champion_record]


def judge(paths: Paths, config: RunConfig, champion: Mapping[str, Any], number: int) -> tuple[list[Condition], list[dict[str, Any]]]:
    """Every condition, and the held-out prompts that were left out of the comparison as they share a passage with what was trained on."""
    prompts, heldout = pl.read_parquet(paths.prompts), pl.read_parquet(paths.heldout_completions)
    overlap = find_overlap(prompts)
    dropped = pl.concat([overlap.ngrams["heldout_id"], overlap.exact["heldout_id"]]).unique().implode()
    answers = pl.concat([heldout, pl.read_parquet(paths.champion_completions)], how="diagonal").filter(~pl.col("prompt_id").is_in(dropped))
    tasks = prompts.filter(pl.col("split") == "heldout").select("prompt_id", "task")
    against = CHAMPION if champion["version"] > 0 else "reference"
    policy, baseline = (gate.mean_scores(answers, name, tasks) for name in ("policy", against))
    promotion = config.promotion
    better = gate.better(policy, baseline, against=against, number=number, margin=promotion.margin)
    if promotion.champion and promotion.champion != champion.get("weights_sha256"):
        better = _of_another_champion(better, promotion.champion)
    exploits = findings(pl.read_parquet(paths.exploits), config.rewards, config.scoring) if paths.exploits.is_file() else None
    conditions = [
        gate.disjoint(overlap, len(tasks)),
        better,
        gate.guards(policy, baseline, promotion.guards),
        gate.health(read_alarms(paths.alarms)),
        gate.reward_audit(exploits),
        gate.blind_verdict(_json(paths.blind_review_verdict), promotion.require_verdict),
    ]
    return conditions, overlap.ngrams.sort("heldout_id").to_dicts()


def _of_another_champion(found: Condition, wanted: str) -> Condition:
    said = f"this experiment is to be measured against the champion {wanted[:12]}, which is not the champion now: set promotion.champion anew, then `dvc repro`"
    return Condition(found.name, False, said, dict(found.numbers))


def _summary(status: str, conditions: list[Condition], against: str) -> str:
    if status == CHAMPION:
        return "this policy is the champion"
    if status == "passed":
        return f"every condition holds: `grpo promote` would make this policy the champion in place of the {against}"
    missing = {"failed": [one.name for one in conditions if one.passed is False], "pending": [one.name for one in conditions if one.passed is None]}[status]
    return f"{'failed' if status == 'failed' else 'waits for'}: {', '.join(missing)}"


def _manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
    return found


def _weights(folder: Path) -> str:
    return str(_manifest(folder)["files"][WEIGHTS])


def _json(path: Path) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(path.read_bytes()) if path.is_file() else None
    return found


def _rounded(value: Any) -> Any:
    """Figures with fewer digits, whatever they are in; None where they are not finite."""
    if isinstance(value, Mapping):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if value - value == 0 else None
    return value


# -------------------------------------------------------------------------------------------------------------- its page


def describe(paths: Paths) -> Metadata:
    """The proposal: every condition, both runs' curves, how often held-out prompts were looked at, and answers to read."""
    from assets.proposal_chart import proposal_chart
    from assets.under_review import withheld_note

    report = json.loads(paths.promotion_report.read_bytes())
    state = {True: "holds", False: "fails", None: "waits"}
    rows = [{"condition": one["name"], "state": state[one["passed"]], "numbers": one["summary"]} for one in report["conditions"]]
    curves = paths.champion_model / "metrics.jsonl"
    champion = pl.read_ndjson(curves, infer_schema_length=None) if report["against"]["model"] == CHAMPION and curves.is_file() else None
    answers, withheld = to_read(paths, report["against"]["model"])
    page: dict[str, Value] = {
        "status": report["status"],
        "summary": report["summary"],
        "conditions": Table(pl.DataFrame(rows), max_rows=len(rows)),
        "curves": Chart(proposal_chart(pl.read_ndjson(paths.grpo_checkpoint / "metrics.jsonl", infer_schema_length=None), champion)),
        "held_out_looks": f"policy number {report['number']} of {report['policies']} that were looked at: held to a level of {report['level']:.3g}",
        "measured_against": f"{report['against']['model']} {report['against']['weights_sha256'][:12]}",
    }
    if withheld:
        page["withheld"] = withheld_note(withheld)
    return {**page, "answers": Table(answers, max_rows=MANY), "file": paths.promotion_report}


def to_read(paths: Paths, against: str) -> tuple[pl.DataFrame, int]:
    """Ten held-out prompts that the policy answers otherwise, what got worse first, and how many prompts are withheld as people judge them."""
    from assets.under_review import under_review

    prompts, heldout = pl.read_parquet(paths.prompts), pl.read_parquet(paths.heldout_completions)
    hidden = under_review(paths, prompts, heldout)
    greedy = pl.concat([heldout, pl.read_parquet(paths.champion_completions)], how="diagonal").filter(pl.col("decoding") == "greedy")
    sides = {
        name: greedy.filter(pl.col("model") == name).select("prompt_id", pl.col("text").alias(name), pl.col("correct").alias(f"{name}_correct"))
        for name in (against, "policy")
    }
    both = sides[against].join(sides["policy"], on="prompt_id").join(prompts.select("prompt_id", "prompt", "answer"), on="prompt_id")
    differing = both.filter((pl.col(against) != pl.col("policy")) & ~pl.col("prompt_id").is_in(list(hidden)))
    gain = pl.col("policy_correct").cast(pl.Int8) - pl.col(f"{against}_correct").cast(pl.Int8)
    columns = ("prompt", "answer", against, "policy", f"{against}_correct", "policy_correct")
    return differing.sort(gain, "prompt_id", nulls_last=True).select(columns).head(MANY), len(hidden)
