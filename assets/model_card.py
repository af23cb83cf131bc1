"""The model card: what a policy is, what it was made from, what it learned for, how well it does, and who let it pass. Written from the files, for people."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from assets.alarm_marks import state_of, steps_of
from assets.alarms import read_alarms
from assets.lineage import Lineage, table_rows
from assets.paths import Paths
from grpo_core.checkpoint import MANIFEST
from grpo_core.config import RunConfig
from grpo_core.statistics import Interval, t_interval, wilson

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
CAPTIONS = {
    "reward.png": "Reward over training",
    "kl.png": "KL to the reference",
    "length.png": "Completion length",
    "advantages.png": "Advantages",
    "select.png": "Accuracy on `select`, never trained on",
    "heldout.png": "Held-out accuracy",
}
"""Picture beside the card → what it shows."""
WORDS = {True: "holds", False: "fails", None: "pending"}
LONGEST_VALUE = 120
Promotion = Mapping[str, Any]
"""The line of the champions' history."""


def model_card(paths: Paths, config: RunConfig, made_from: Lineage, *, report: Mapping[str, Any] | None, promotion: Promotion | None = None) -> str:
    """Markdown with the hub's front matter; `report` is the promotion report where there is one, `promotion` how the policy became the champion."""
    sections: Sequence[tuple[str, list[str]]] = (
        ("Promotion", _promotion(report, promotion)),
        ("Evaluation", _evaluation(paths, report)),
        ("What people say", _verdict(paths)),
        ("Health of the training", _health(paths)),
        ("Data", _data(made_from)),
        ("Rewards", _rewards(config, made_from)),
        ("Curves", [f"![{caption}]({name})" for name, caption in CAPTIONS.items()]),
        ("Configuration", _configuration(made_from)),
        ("Lineage", _table(("what", "which"), table_rows(made_from))),
        ("How to reproduce", _reproduce(paths, made_from)),
    )
    title = f"# {paths.experiment}, trained with GRPO"
    parts = [part for name, lines in sections for part in (f"## {name}", *lines)]
    return "\n\n".join(["\n".join(_front_matter(config, made_from)), title, _base(config, made_from), *parts]) + "\n"


def card_pictures(paths: Paths) -> dict[str, bytes]:
    """File name → PNG, of every picture that the card shows."""
    from assets.charts import accuracy_bars, training_charts
    from assets.monitor_charts import monitor_charts

    metrics = pl.read_ndjson(paths.grpo_checkpoint / "metrics.jsonl", infer_schema_length=None)
    alarms, select = (read_alarms(paths.alarms) or []), pl.read_parquet(paths.select_completions)
    drawn = training_charts(metrics, pl.read_parquet(paths.rewards), alarms) | monitor_charts(metrics, select, alarms)
    drawn["heldout"] = accuracy_bars(json.loads(paths.heldout_summary.read_text(encoding="utf-8")))
    return {name: drawn[Path(name).stem] for name in CAPTIONS if Path(name).stem in drawn}


# ------------------------------------------------------------------------------------------------------------- sections


def _front_matter(config: RunConfig, made_from: Lineage) -> list[str]:
    """What the hub reads: JSON strings are YAML, so no name can break it."""
    named = [name for source in made_from.prompts.get("sources", ()) if (name := Path(str(source)).stem) != "generated"]
    lines = ["library_name: transformers", "pipeline_tag: text-generation", "tags:", "- grpo", "- reinforcement-learning"]
    if _is_on_hub(config.model.path):
        lines.insert(0, f"base_model: {json.dumps(config.model.path)}")
    if named:
        lines += ["datasets:", *(f"- {json.dumps(name)}" for name in dict.fromkeys(named))]
    return ["---", *lines, "---"]


def _is_on_hub(path: str) -> bool:
    return bool(HUB_NAME.fullmatch(path)) and not Path(path).is_dir()


def _base(config: RunConfig, made_from: Lineage) -> str:
    pinned = made_from.weights.get("start", {}).get("parent")
    if not config.model.path:
        return f"The small embedded model ({config.model.num_layers} layers of {config.model.hidden_size}), fine-tuned, then trained with GRPO."
    return f"`{config.model.path}`{f' ({pinned})' if pinned else ''}, fine-tuned, then trained with GRPO."


def _promotion(report: Mapping[str, Any] | None, promotion: Promotion | None) -> list[str]:
    if report is None:
        return ["No promotion report was made of this policy: nothing here says that it may be used."]
    said = [f"Report: **{report['status']}**. {report['summary']}"]
    if promotion is not None:
        said.append(f"Champion, version {promotion['version']}, promoted by {_cell(promotion['by'])} on {promotion['when']}.")
    rows = [(one["name"], WORDS[one["passed"]], one["summary"]) for one in report["conditions"]]
    said += _table(("condition", "", "numbers"), rows)
    if promotion is not None and promotion["override"] is not None:
        missed = ", ".join(one["name"] for one in promotion["override"]["conditions"])
        said.append(f"**Promoted by override**, though not all conditions hold ({missed}). The reason given: {_cell(promotion['override']['reason'])}")
    said.append(
        f"The held-out answers of {report['policies']} policies were looked at so far; this one is number {report['number']} (level {report['level']:.4g})."
    )
    return said


def _evaluation(paths: Paths, report: Mapping[str, Any] | None) -> list[str]:
    """Every model on the held-out prompts, 95 % intervals in brackets."""
    if not paths.heldout_completions.is_file():
        return ["The held-out evaluation has not run."]
    summary = json.loads(paths.heldout_summary.read_text(encoding="utf-8"))
    columns = ["model", "prompt_id", "decoding", "correct"]
    rows = pl.read_parquet(paths.heldout_completions, columns=columns)
    if paths.champion_completions.is_file():
        rows = pl.concat([rows, pl.read_parquet(paths.champion_completions, columns=columns)])
    graded = rows.drop_nulls("correct")
    models = [name for name in ("policy", "reference", "champion") if name in graded["model"].to_list()]
    table = _table(
        ("model", "greedy accuracy", f"mean@{int(summary['samples_per_prompt'])}, temperature {summary['temperature']:g}"),
        [(name, *map(_interval, accuracies(graded.filter(pl.col("model") == name)))) for name in models],
    )
    said = [f"{int(summary['num_prompts'])} held-out prompts, by `{summary['metric']}`; 95 % intervals.", *table]
    difference = Interval(summary["mean_at_k_difference"], summary["mean_at_k_difference_low"], summary["mean_at_k_difference_high"])
    said.append(f"Policy less reference, paired by prompt: {_interval(difference, '+')}.")
    better = next((one["summary"] for one in (report or {}).get("conditions", ()) if one["name"] == "better"), None)
    return [*said, better] if better else said


def accuracies(rows: pl.DataFrame) -> tuple[Interval | None, Interval | None]:
    """Greedy accuracy (Wilson) and the mean over prompts of the share of right samples (t), of one model's graded answers."""
    greedy = rows.filter(pl.col("decoding") == "greedy")["correct"]
    sampled = rows.filter(pl.col("decoding") == "sample").group_by("prompt_id").agg(pl.col("correct").mean()).sort("prompt_id")["correct"].to_list()
    return wilson(int(greedy.sum()), len(greedy)) if len(greedy) else None, t_interval(sampled) if sampled else None


def _verdict(paths: Paths) -> list[str]:
    if not paths.blind_review_verdict.is_file():
        return ["No blind verdict was made."]
    verdict = json.loads(paths.blind_review_verdict.read_text(encoding="utf-8"))
    said = [f"Blind review, {verdict['status']}: {verdict.get('summary', '')}"]
    if verdict["status"] == "counted":
        said.append(f"{verdict['num_votes']} votes of {verdict['num_reviewers']} reviewers on {verdict['num_judged']} pairs.")
        said.append(f"Reward hacking: {verdict['reward_hacking']}.")
    return said


def _health(paths: Paths) -> list[str]:
    if not paths.alarms.is_file():
        return ["Health was not recorded."]
    alarms = read_alarms(paths.alarms) or []
    if not alarms:
        return ["No alarm was raised."]
    rows = [(one["condition"], steps_of(one), _state(one), "halted training" if one.get("action") == "halt" else "", one["message"]) for one in alarms]
    return _table(("alarm", "steps", "state", "", "what was seen"), rows)


def _state(alarm: Mapping[str, Any]) -> str:
    return f"accepted: {alarm['acknowledged']}" if alarm.get("acknowledged") else state_of(alarm)


def _data(made_from: Lineage) -> list[str]:
    prompts = made_from.prompts
    if "splits" not in prompts:
        return ["The table of prompts is not here."]
    sources = _table(("source", "prompts"), [(name, f"{rows:,}") for name, rows in prompts["sources"].items()])
    return [*sources, *_table(("split", "prompts"), [(name, f"{rows:,}") for name, rows in prompts["splits"].items()]), f"sha256 `{prompts['sha256']}`"]


def _rewards(config: RunConfig, made_from: Lineage) -> list[str]:
    rows = [(name, f"{weight:g}", json.dumps(config.reward_options.get(name, {}), ensure_ascii=False)) for name, weight in config.rewards.items()]
    said = [*_table(("function", "weight", "options"), rows), f"Code of the reward functions: `{made_from.reward_code_hash}`."]
    accepted = [(name, reason) for name, reason in config.scoring.acknowledged_exploits.items()]
    return [*said, *(_table(("accepted exploit", "reason"), accepted) if accepted else [])]


def _configuration(made_from: Lineage) -> list[str]:
    rows = [(f"{section}.{key}", _value(value)) for section, values in made_from.config.items() for key, value in values.items()]
    return ["<details><summary>Every setting</summary>", *_table(("setting", "value"), rows), "</details>"]


def _reproduce(paths: Paths, made_from: Lineage) -> list[str]:
    code = made_from.code.get("snapshot") or made_from.code.get("commit")
    lines = [
        *([f"git checkout {code}"] if code else []),
        "make install",
        f"grpo reproduce {paths.experiment}    # the training again, bit for bit, beside this checkout",
    ]
    lines += [f"grpo replay --experiment {paths.experiment}    # its steps from the recorded rows", f"grpo trace {paths.experiment}    # what it was made from"]
    weights = f"Weights: `{made_from.weights.get('policy', {}).get('policy_digest')}`; run `{made_from.run_key}`."
    return ["```\n" + "\n".join(lines) + "\n```", f"{weights} Every file's sha256 stands in the checkpoint's {MANIFEST}."]


# ------------------------------------------------------------------------------------------------------------- pieces


def _table(heading: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """A Markdown table, as one block."""
    lines = [heading, ["---"] * len(heading), *rows]
    return ["\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)]


def _cell(text: Any) -> str:
    """Text that stays in its cell, and is text: no table, tag or link can begin in it."""
    return re.sub(r"([\\`|<>\[\]*])", r"\\\1", " ".join(str(text).split()))


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _interval(interval: Interval | None, sign: str = "") -> str:
    if interval is None:
        return "–"
    ends = f" [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]" if math.isfinite(interval.low) else ""
    return f"{interval.estimate:{sign}.3f}{ends}"
