"""The report on experiments: what it reads, what it says of those that cannot be compared, and its page."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from assets import comparison_report, run_config
from assets.comparison_report import arm_rows, describe, make_report, open_alarms, read_run, remarks, to_take_it, wall_seconds
from assets.page import Chart, Markdown, Progress, Table
from assets.paths import Paths
from grpo_core.comparison import Run
from grpo_core.config import SECTIONS, SHARED_SECTIONS, HealthConfig, RunConfig
from grpo_core.params import section_values
from pipelines.params import json_bytes
from tests.assets.lifecycle import lifecycle_config
from tests.assets.trained_experiments import write_trained


def config(**grpo: Any) -> RunConfig:
    base = RunConfig()
    return replace(base, grpo=replace(base.grpo, **{"steps": 20, **grpo}))


def four(seed: int = 0) -> RunConfig:
    return config(group_size=4, prompts_per_step=32, seed=seed)


def make(root: Path, configs: dict[str, RunConfig]) -> dict[str, Any]:
    return make_report(Paths(root), configs)


def ablation(root: Path, seeds: int = 3) -> dict[str, RunConfig]:
    """`default` and two arms of group size, trained: 8 rises four times as fast as 4."""
    configs = {"default": config()} | {f"group_size-4-seed-{seed}": four(seed) for seed in range(seeds)}
    configs |= {f"group_size-8-seed-{seed}": config(seed=seed) for seed in range(seeds)}
    for name, one in configs.items():
        write_trained(Paths(root, name), one, rise=0.02 if one.grpo.group_size == 8 else 0.005)
    return configs


def test_arms_are_compared_and_the_faster_is_recommended(tmp_path: Path) -> None:
    report = make(tmp_path, ablation(tmp_path))
    (compared,) = report["comparisons"]
    assert report["summary"] == "7 of 7 experiments are trained; they differ in group_size"
    assert (compared["factor"], compared["num_steps"], compared["in_force"], compared["recommended"]) == ("group_size", 20, 8, "8")
    assert compared["reason"].startswith("4 rises more slowly than 8 (+0.00") and compared["reason"].endswith(" a step): take 8")
    few, many = compared["arms"]
    assert few["experiments"] == ["group_size-4-seed-0", "group_size-4-seed-1", "group_size-4-seed-2"]
    assert many["experiments"][0] == "default"
    assert few["slope"]["estimate"] == pytest.approx(0.005, abs=0.002)
    assert few["drawn"] == pytest.approx(0.01)
    assert (few["tokens"], few["final_accuracy"]) == (2000.0, {"estimate": 0.8, "low": 0.8, "high": 0.8})
    assert report["repeated"] == [{"experiment": "group_size-8-seed-0", "repeats": "default"}]
    assert to_take_it(compared) == "in params.yaml: grpo.group_size: 8, grpo.prompts_per_step: 16"


def test_one_seed_has_an_interval_of_its_answers_and_no_recommendation(tmp_path: Path) -> None:
    (compared,) = make(tmp_path, ablation(tmp_path, seeds=1))["comparisons"]
    assert compared["recommended"] is None
    assert compared["reason"].startswith("no recommendation yet: it takes 3 seeds")
    arm = compared["arms"][0]
    assert arm["slope"]["low"] is None and arm["final_accuracy"]["low"] == pytest.approx(0.7112, abs=1e-4)
    assert arm_rows(compared, {})[0]["rise a step"].startswith("+0.00") and "[" not in arm_rows(compared, {})[0]["rise a step"]


def test_one_experiment_is_no_failure(tmp_path: Path) -> None:
    write_trained(Paths(tmp_path), config(), rise=0.01)
    report = make(tmp_path, {"default": config()})
    assert report["summary"] == "one experiment: nothing to compare yet (`grpo ablate` adds more)"
    assert report["comparisons"] == report["missing"] == report["alone"] == []


def test_experiments_that_are_not_trained_or_were_trained_otherwise_are_named(tmp_path: Path) -> None:
    configs = {"default": config(), "other": four(), "later": config(seed=1)}
    write_trained(Paths(tmp_path), config(), rise=0.01)
    write_trained(Paths(tmp_path, "other"), four(seed=1), rise=0.01)
    report = make(tmp_path, configs)
    assert report["summary"] == "1 of 3 experiments is trained: nothing to compare yet"
    assert report["missing"] == [
        {"experiment": "other", "reason": "trained with other settings than it has now: grpo.seed 1, now 0"},
        {"experiment": "later", "reason": "not trained yet"},
    ]
    assert remarks(report)[1] == "later: not trained yet"


def test_a_table_that_is_gone_is_named(tmp_path: Path) -> None:
    write_trained(Paths(tmp_path), config(), rise=0.01)
    Paths(tmp_path).rewards.unlink()
    assert read_run(Paths(tmp_path), config()) == f"{Paths(tmp_path).rewards} is not there: `dvc checkout` brings it back"


@pytest.mark.parametrize("part", ["manifest.json", "metrics.jsonl", "rewards", "select_completions", "config"])
def test_an_experiment_that_cannot_be_read_is_named_and_keeps_the_others_from_nothing(part: str, tmp_path: Path) -> None:
    configs, broken = ablation(tmp_path), Paths(tmp_path, "group_size-4-seed-1")
    path = broken.grpo_checkpoint / part if "." in part else getattr(broken, part, broken.grpo_checkpoint / "manifest.json")
    path.write_text("{}" if part == "config" else "{half a li")
    report = make(tmp_path, configs)
    ((missing),) = report["missing"]
    assert missing["experiment"] == "group_size-4-seed-1"
    assert missing["reason"].startswith("what it left cannot be read (")
    assert report["comparisons"][0]["arms"][0]["seeds"] == [0, 2]


def test_what_adjusts_is_one_setting_and_thresholds_alone_are_none(tmp_path: Path) -> None:
    adjusting = HealthConfig(actions={"early_explosion": "adjust"})
    configs = {
        "default": config(), "stricter": replace(config(), health=HealthConfig(max_kl=0.1)),
        "adjusted": replace(config(), health=adjusting), "sooner": replace(config(), health=replace(adjusting, max_kl=0.1)),
    }  # fmt: skip
    for name, one in configs.items():
        write_trained(Paths(tmp_path, name), one, rise=0.01)
    report = make(tmp_path, configs)
    assert report["missing"] == []
    assert report["repeated"] == [{"experiment": "stricter", "repeats": "default"}]
    assert [(compared["factor"], len(compared["arms"])) for compared in report["comparisons"]] == [("health", 3)]
    assert "health {'actions': " in str(read_run(Paths(tmp_path, "adjusted"), config())), "it adjusts no more"
    assert "health {}, now {'actions': " in str(read_run(Paths(tmp_path), configs["adjusted"]))


def test_settings_that_change_no_step_do_not_matter(tmp_path: Path) -> None:
    write_trained(Paths(tmp_path), config(), rise=0.01)
    assert isinstance(read_run(Paths(tmp_path), config(checkpoint_every=3, keep_checkpoints=1)), Run)
    more = replace(config(), rewards={"exact_answer": 1.0, "answer_format": 0.1, "key_steps": 0.5})
    assert "rewards.key_steps (absent), now 0.5" in str(read_run(Paths(tmp_path), more))


def test_an_experiment_that_differs_in_two_factors_stands_alone(tmp_path: Path) -> None:
    configs = {"default": config(), "both": replace(four(), rollout=replace(RunConfig().rollout, temperature=0.7)), "warm": config(warmup_steps=0)}
    for name, one in configs.items():
        write_trained(Paths(tmp_path, name), one, rise=0.01)
    report = make(tmp_path, configs)
    assert [compared["factor"] for compared in report["comparisons"]] == ["grpo.warmup_steps"]
    assert report["alone"] == ["both"]
    assert remarks(report) == ["both differs from every other experiment in more than one factor"]


def test_metrics_that_lack_a_step_are_not_compared(tmp_path: Path) -> None:
    write_trained(Paths(tmp_path), config(), rise=0.01)
    metrics = Paths(tmp_path).grpo_checkpoint / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join(lines[:5] + lines[6:]) + "\n")
    assert read_run(Paths(tmp_path), config()) == f"{metrics} does not have every step once"


def test_a_real_training_is_read_as_it_went(lifecycle: Paths) -> None:
    run = read_run(lifecycle, lifecycle_config())
    assert isinstance(run, Run)
    metrics = pl.read_ndjson(lifecycle.grpo_checkpoint / "metrics.jsonl", infer_schema_length=None)
    trained = metrics.filter(pl.col("step") > 0)
    assert run.rewards == dict(trained.select("step", "reward/mean").iter_rows())
    assert sum(run.tokens.values()) == trained["tokens"].sum() == pl.read_parquet(lifecycle.rollout_batches)["length"].sum()
    for step, group in pl.read_parquet(lifecycle.rewards).group_by("step"):
        means = group.group_by("group").agg(pl.col("reward").mean())["reward"].to_numpy()
        assert run.drawn[int(str(step[0]))] == pytest.approx(means.std(ddof=1) / len(means) ** 0.5)
        assert run.rewards[int(str(step[0]))] == pytest.approx(means.mean())
    accuracies = dict(metrics.drop_nulls("eval/select_accuracy").select("step", "eval/select_accuracy").iter_rows())
    assert {step: right / graded for step, (right, graded) in run.selected.items()} == pytest.approx(accuracies)
    assert run.seed == 0


def test_it_is_made_from_what_run_config_wrote_and_never_from_held_out_answers(tmp_path: Path) -> None:
    """Nothing of the evaluation is there. Made twice, the bytes are the same; of another training they are not."""
    paths, configs = Paths(tmp_path), ablation(tmp_path)
    files = {f"{section}.json": json_bytes(section_values(config(), section)) for section in SHARED_SECTIONS}
    for name, one in configs.items():
        files |= {f"{name}/{section}.json": json_bytes(section_values(one, section)) for section in SECTIONS if section not in SHARED_SECTIONS}
    run_config.produce(paths, files)
    seen: list[Progress] = []
    comparison_report.produce(paths, config(), seen.append)
    assert seen[-1].numbers == {"experiments": 7.0, "comparisons": 1.0}
    first = paths.comparison_report.read_bytes()
    assert json.loads(first) == make(tmp_path, dict(sorted(configs.items())))
    comparison_report.produce(paths, config(), seen.append)
    assert paths.comparison_report.read_bytes() == first
    write_trained(Paths(tmp_path, "group_size-4-seed-0"), four(), rise=0.0051)
    comparison_report.produce(paths, config(), seen.append)
    assert paths.comparison_report.read_bytes() != first


def test_its_page_has_a_table_a_chart_and_the_recommendation_of_every_factor(tmp_path: Path) -> None:
    paths, configs = Paths(tmp_path), ablation(tmp_path)
    configs |= {"later": config(seed=7), **{f"clip-{seed}": config(clip_low=0.1, clip_high=0.1, seed=seed) for seed in range(3)}}
    for seed in range(3):
        write_trained(Paths(tmp_path, f"clip-{seed}"), configs[f"clip-{seed}"], rise=0.02)
    paths.comparison_report.parent.mkdir(parents=True)
    paths.comparison_report.write_text(json.dumps(make(tmp_path, configs)))
    alarms = Paths(tmp_path, "clip-1").alarms
    alarms.parent.mkdir(parents=True)
    told = {"first_step": 3, "last_step": 4, "severity": "alarm", "message": "", "evidence": {}, "action": "warn", "remedy": "", "page": ""}
    alarms.write_text(json.dumps({"num_steps": 20, "alarms": [{"condition": name, "open": name == "truncation", **told} for name in ("truncation", "stall")]}))
    page = describe(paths)
    assert [name for name, value in page.items() if isinstance(value, Chart)] == ["1 group_size/chart", "2 clip/chart"]
    table = page["1 group_size/arms"]
    assert isinstance(table, Table) and table.frame["group_size"].to_list() == ["4", "8"]
    assert str(page["1 group_size/recommendation"]).endswith("take 8")
    notes = page["left out"]
    assert isinstance(notes, Markdown)
    assert "- later: not trained yet" in notes.text
    assert "- clip-1 ended with open alarms: truncation" in notes.text
    unwatched = ["default", *(f"group_size-{size}-seed-{seed}" for size in (4, 8) for seed in range(3) if (size, seed) != (8, 0))]
    assert open_alarms(paths, make(tmp_path, configs)) == [
        "clip-1 ended with open alarms: truncation", f"health was not recorded of {', '.join(sorted([*unwatched, 'clip-0', 'clip-2']))}",
    ]  # fmt: skip


def test_seconds_are_those_of_the_compared_steps_where_all_runs_have_them(tmp_path: Path) -> None:
    (compared,) = make(tmp_path, ablation(tmp_path))["comparisons"]
    for seed in range(3):
        timings = Paths(tmp_path, f"group_size-4-seed-{seed}").provenance("grpo_checkpoint") / "timings.jsonl"
        timings.parent.mkdir(parents=True)
        timings.write_text('{"step": 0, "timestamp_ms": 1}\n' + "".join(json.dumps({"step": step, "seconds": 0.5 + seed}) + "\n" for step in range(1, 31)))
    known = wall_seconds(Paths(tmp_path))
    assert [len(seconds) for seconds in known.values()] == [30] * 3
    assert [row["seconds"] for row in arm_rows(compared, known)] == ["30", "–"]
