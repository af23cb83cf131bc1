"""The experiments compared with each other: arms of one factor side by side, and which value to take.

It reads what trainings wrote, never a held-out answer: those are evidence, not for choosing.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from assets.alarms import NOT_RECORDED, open_conditions, read_alarms
from assets.page import Chart, Markdown, Metadata, Progress, ProgressCallback, Table, Value
from assets.paths import Paths
from grpo_core.checkpoint import write_text
from grpo_core.comparison import Comparison, Measured, Run, accuracy, arms_of, compare, comparisons_of, text
from grpo_core.config import SECTIONS, SHARED_SECTIONS, RunConfig
from grpo_core.health.adjustment import changes_steps
from grpo_core.params import READ_APART, parse_sections, section_values
from grpo_core.recommendation import recommend
from grpo_core.statistics import Interval, t_interval

ADJUSTS = "health"
"""One setting to compare: what of the section changes steps, all of it or (without an `adjust`) nothing."""
DIGITS = 6
"""Figures are written with so many digits: the last ones of a sum may differ between processors."""


def produce(paths: Paths, config: RunConfig, on_progress: ProgressCallback) -> None:
    """Compare every experiment that params.yaml declares and that has been trained with its settings of now; the others are named as missing."""
    names = sorted(folder.name for folder in paths.run_config.glob("*/") if folder.is_dir())
    report = make_report(paths, {name: _written_config(replace(paths, experiment=name)) for name in names})
    write_text(paths.comparison_report, json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    on_progress(Progress(1, 1, {"experiments": float(len(report["experiments"])), "comparisons": float(len(report["comparisons"]))}))


def make_report(paths: Paths, declared: Mapping[str, RunConfig]) -> dict[str, Any]:
    """The report on the experiments of `declared`, which maps their names to the configuration they have now."""
    found = {name: read_run(replace(paths, experiment=name), wanted) for name, wanted in declared.items()}
    runs = [run for run in found.values() if isinstance(run, Run)]
    arms = arms_of(runs)
    pairs = comparisons_of(arms)
    compared = [compare(factor, group) for factor, group in pairs]
    told = {run.experiment for _, group in pairs for arm in group for run in arm.runs}
    repeated = [{"experiment": twin, "repeats": run} for arm in arms for twin, run in arm.twins.items()]
    in_force = _flat(declared["default"]) if "default" in declared else {}
    return {
        "summary": _summary(len(declared), runs, compared),
        "experiments": [{"experiment": run.experiment, "seed": run.seed, "steps": run.num_steps, "run_key": run.run_key} for run in runs],
        "missing": [{"experiment": name, "reason": reason} for name, reason in found.items() if isinstance(reason, str)],
        "repeated": repeated,
        "alone": [arm.runs[0].experiment for arm in arms if arm.runs[0].experiment not in told] if len(arms) > 1 else [],
        "comparisons": [_comparison(one, in_force.get(one.factor.keys[0])) for one in compared],
    }


def _summary(num_declared: int, runs: Sequence[Run], compared: Sequence[Comparison]) -> str:
    if num_declared == 1:
        return "one experiment: nothing to compare yet (`grpo ablate` adds more)"
    if len(runs) < 2:
        return f"{len(runs)} of {num_declared} experiments {'is' if len(runs) == 1 else 'are'} trained: nothing to compare yet"
    if compared:
        return f"{len(runs)} of {num_declared} experiments are trained; they differ in {', '.join(dict.fromkeys(one.factor.name for one in compared))}"
    return f"{len(runs)} of {num_declared} experiments are trained; no two of them differ in just one factor"


def _comparison(compared: Comparison, in_force: Any) -> dict[str, Any]:
    """One factor as plain values."""
    advised = recommend(compared, in_force)
    return {
        "factor": compared.factor.name,
        "keys": list(compared.arms[0].settings),
        "num_steps": compared.num_steps,
        "rising_steps": compared.rising_steps,
        "in_force": in_force,
        "arms": [_measured(arm) for arm in compared.arms],
        "recommended": advised.label,
        "reason": advised.reason,
    }


def _measured(arm: Measured) -> dict[str, Any]:
    """One arm as plain values: over its seeds the mean with its interval, and each seed's."""
    return {
        "arm": arm.label,
        "settings": dict(arm.settings),
        "experiments": list(arm.experiments),
        "seeds": list(arm.seeds),
        "slope": _interval(t_interval(arm.slopes)),
        "slopes": list(map(_rounded, arm.slopes)),
        "jitter": _interval(_not_below_0(t_interval(arm.jitters))),
        "jitters": list(map(_rounded, arm.jitters)),
        "drawn": _rounded(math.sqrt(math.fsum(drawn**2 for drawn in arm.drawn) / len(arm.drawn))),
        "final_accuracy": _interval(accuracy(arm.final)),
        "best_accuracy": _interval(accuracy(arm.best)),
        "tokens": _rounded(math.fsum(arm.tokens) / len(arm.tokens)),
    }


def _not_below_0(found: Interval) -> Interval:
    return replace(found, low=max(0.0, found.low)) if math.isfinite(found.low) else found


def _interval(found: Interval | None) -> dict[str, float | None] | None:
    """None where nothing was measured; open ends, which one seed has, are None as well."""
    return None if found is None else {name: _rounded(getattr(found, name)) for name in ("estimate", "low", "high")}


def _rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


# ------------------------------------------------------------------------------------------------ what trainings wrote


def read_run(paths: Paths, declared: RunConfig) -> Run | str:
    """The experiment as it was trained, or why it cannot be compared: what is wrong with one keeps none of the others from it."""
    try:
        return _read_run(paths, declared)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pl.exceptions.PolarsError) as error:
        reason = str(error).strip().partition("\n")[0]
        return f"what it left cannot be read ({type(error).__name__}: {reason}): `grpo verify` says which file is damaged and how to get it back"


def _read_run(paths: Paths, declared: RunConfig) -> Run | str:
    made, logged = paths.grpo_checkpoint / "manifest.json", paths.grpo_checkpoint / "metrics.jsonl"
    if not made.is_file():
        return "not trained yet"
    if missing := [path for path in (logged, paths.select_completions, paths.rewards) if not path.is_file()]:
        return f"{missing[0]} is not there: `dvc checkout` brings it back"
    manifest = json.loads(made.read_text(encoding="utf-8"))
    sections = {name: values for name, values in manifest["config"].items() if name != ADJUSTS}
    trained = {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}
    trained[ADJUSTS] = manifest["config"].get(ADJUSTS, {})
    if changed := _changes(trained, _flat(declared)):
        return f"trained with other settings than it has now: {'; '.join(changed)}"
    lines = map(json.loads, logged.read_text(encoding="utf-8").splitlines())
    metrics = [line for line in lines if "reward/mean" in line]
    if [metric["step"] for metric in metrics] != list(range(1, len(metrics) + 1)) or not metrics:
        return f"{logged} does not have every step once"
    errors = standard_errors(pl.read_parquet(paths.rewards, columns=["step", "group", "reward"]))
    answers = pl.read_parquet(paths.select_completions, columns=["step", "correct"])
    graded = answers.drop_nulls("correct").group_by("step").agg(pl.col("correct").sum().alias("right"), pl.len()).sort("step")
    return Run(
        experiment=paths.experiment,
        run_key=manifest["run_key"],
        seed=trained["grpo.seed"],
        settings=trained,
        rewards={metric["step"]: metric["reward/mean"] for metric in metrics},
        drawn={metric["step"]: errors.get(metric["step"], 0.0) for metric in metrics},
        tokens={metric["step"]: metric["tokens"] for metric in metrics},
        selected={step: (right, count) for step, right, count in graded.iter_rows()},
    )


def standard_errors(rewards: pl.DataFrame) -> dict[int, float]:
    """Step → standard error of its mean reward, the batch's groups being independent draws; 0 for a step of one group, of which nobody knows."""
    groups = rewards.group_by("step", "group").agg(pl.col("reward").mean()).drop_nulls("reward")
    return dict(groups.group_by("step").agg((pl.col("reward").std() / pl.len().sqrt()).fill_null(0.0)).sort("step").iter_rows())


def _changes(trained: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Every setting that was another one. What a training does not name changes no step of it, but for reward functions that came since."""
    known = [*trained, *(key for key in wanted if key.partition(".")[0] in READ_APART and key not in trained)]
    changed = [key for key in known if trained.get(key) != wanted.get(key)]
    return [f"{key} {trained.get(key, '(absent)')}, now {wanted.get(key, '(absent)')}" for key in changed]


def _flat(wanted: RunConfig) -> dict[str, Any]:
    """`section.key` → value of every setting, as a trained policy's manifest names them."""
    found = {f"{section}.{key}": value for section in SECTIONS if section != ADJUSTS for key, value in section_values(wanted, section).items()}
    return found | {ADJUSTS: changes_steps(wanted)}


def _written_config(paths: Paths) -> RunConfig:
    """The experiment's configuration as the run_config stage wrote it."""
    files = [paths.run_config / f"{section}.json" for section in SHARED_SECTIONS]
    files += [paths.run_config / paths.experiment / f"{section}.json" for section in SECTIONS if section not in SHARED_SECTIONS]
    return parse_sections({path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files})


# -------------------------------------------------------------------------------------------------------------- its page


def describe(paths: Paths) -> Metadata:
    """For every factor its recommendation, its arms in numbers and its learning curves; what could not be compared."""
    report = json.loads(paths.comparison_report.read_text(encoding="utf-8"))
    page: dict[str, Value] = {"summary": report["summary"]}
    seconds = wall_seconds(paths)
    for place, compared in enumerate(report["comparisons"], 1):
        name = compared["factor"] if len(report["comparisons"]) == 1 else f"{place} {compared['factor']}"
        rows = arm_rows(compared, seconds)
        page |= {f"{name}/recommendation": compared["reason"], f"{name}/arms": Table(pl.DataFrame(rows), max_rows=len(rows))}
        if compared["recommended"] is not None:
            page[f"{name}/to take it"] = to_take_it(compared)
        page[f"{name}/chart"] = Chart(_chart(paths, compared))
    if notes := [*remarks(report), *open_alarms(paths, report)]:
        page["left out"] = Markdown("\n".join(f"- {note}" for note in notes))
    return {**page, "file": paths.comparison_report}


def arm_rows(compared: Mapping[str, Any], seconds: Mapping[str, Sequence[float]]) -> list[dict[str, str]]:
    """One comparison as a table of text; `seconds` are an experiment's steps in wall-clock time, where they are known."""
    return [
        {
            compared["factor"]: arm["arm"],
            "seeds": str(len(arm["seeds"])),
            "rise a step": _spelled(arm["slope"], "+.4f"),
            "jitter": _spelled(arm["jitter"], ".3f"),
            "drawn": f"{arm['drawn']:.3f}",
            "select, final": _spelled(arm["final_accuracy"], ".3f"),
            "select, best": _spelled(arm["best_accuracy"], ".3f"),
            "tokens": f"{arm['tokens']:,.0f}",
            "seconds": _seconds(arm, seconds, compared["num_steps"]),
        }
        for arm in compared["arms"]
    ]


def _spelled(interval: Mapping[str, float | None] | None, form: str) -> str:
    """An estimate with its interval, where it has one."""
    if interval is None or interval["estimate"] is None:
        return "–"
    ends = [format(interval[end], form) for end in ("low", "high") if interval[end] is not None]
    return f"{interval['estimate']:{form}}" + (f" [{', '.join(ends)}]" if ends else "")


def _seconds(arm: Mapping[str, Any], seconds: Mapping[str, Sequence[float]], num_steps: int) -> str:
    """Mean over the arm's runs of the time that the compared steps took."""
    known = [sum(seconds[name][:num_steps]) for name in arm["experiments"] if len(seconds.get(name, ())) >= num_steps]
    return f"{sum(known) / len(known):.0f}" if len(known) == len(arm["experiments"]) else "–"


def wall_seconds(paths: Paths) -> dict[str, list[float]]:
    """Experiment → seconds of each step, as the machine that trained it here took them: no part of the report, which has the same hash anywhere."""
    found = {}
    for file in sorted((paths.work / "provenance").glob("*/grpo_checkpoint/timings.jsonl")):
        steps = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        found[file.parent.parent.name] = [step["seconds"] for step in steps if "seconds" in step]
    return found


def remarks(report: Mapping[str, Any]) -> list[str]:
    """What is in no comparison, and why."""
    missing = [f"{one['experiment']}: {one['reason']}" for one in report["missing"]]
    repeated = [f"{one['experiment']} is {one['repeats']} once more, seed included, and does not count" for one in report["repeated"]]
    alone = [f"{name} differs from every other experiment in more than one factor" for name in report["alone"]]
    return [*missing, *repeated, *alone]


def open_alarms(paths: Paths, report: Mapping[str, Any]) -> list[str]:
    """The compared experiments whose training ended with open alarms, which no rise makes up for, and those that nobody watched."""
    names = sorted({name for compared in report["comparisons"] for arm in compared["arms"] for name in arm["experiments"]})
    alarms = {name: read_alarms(replace(paths, experiment=name).alarms) for name in names}
    found = [f"{name} ended with open alarms: {', '.join(conditions)}" for name, seen in alarms.items() if (conditions := open_conditions(seen or ()))]
    unwatched = [name for name, seen in alarms.items() if seen is None]
    return [*found, *[f"health was {NOT_RECORDED} of {', '.join(unwatched)}"] * bool(unwatched)]


def to_take_it(compared: Mapping[str, Any]) -> str:
    """What to write into params.yaml."""
    (arm,) = (arm for arm in compared["arms"] if arm["arm"] == compared["recommended"])
    return "in params.yaml: " + ", ".join(f"{key}: {text(value)}" for key, value in arm["settings"].items())


def _chart(paths: Paths, compared: Mapping[str, Any]) -> bytes:
    """The arms' learning curves; experiments whose tables have gone since are left out."""
    from assets.comparison_chart import learning_curves_by_arm

    curves = {arm["arm"]: [curve for name in arm["experiments"] if (curve := _curve(replace(paths, experiment=name))) is not None] for arm in compared["arms"]}
    return learning_curves_by_arm(compared["factor"], curves, compared["num_steps"], compared["rising_steps"])


def _curve(paths: Paths) -> pl.DataFrame | None:
    file: Path = paths.grpo_checkpoint / "metrics.jsonl"
    return pl.read_ndjson(file, infer_schema_length=None) if file.is_file() else None
