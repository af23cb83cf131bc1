"""dvc.yaml and Dagster hold the same graph, and dvc.yaml tells the truth about files, code and configuration."""

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from assets.paths import SHARED, Paths
from grpo_core.config import SECTIONS, SHARED_SECTIONS
from grpo_core.requirements import ConfigError
from grpo_core.rewards.registry import BUILT_IN
from pipelines.code_deps import PAGE_ONLY, declared_files, imported_files, problems, rewritten
from pipelines.definitions import build_definitions, defs
from pipelines.graph import LOOP, LOOP_STAGE, RUN_CONFIG, Graph, code_version, load_graph
from pipelines.params import ROOT, section_files
from tests.pipelines.toy_project import THIRD_PARTY_WARNINGS, dvc, edit, git, make_project, toy_environment

pytestmark = [pytest.mark.filterwarnings(warning) for warning in THIRD_PARTY_WARNINGS]

FOR_REFUSALS_ONLY = {LOOP_STAGE: {"prompts"}}
"""Sections that a stage reads to refuse a configuration, without a trace in what it writes: no dependency."""


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_graph(ROOT)


def dagster_parents(asset: str) -> set[str]:
    return {key.to_user_string() for key in defs.resolve_asset_graph().get(dg.AssetKey(asset)).parent_keys}


def test_dagsters_edges_are_dvcs(graph: Graph) -> None:
    assert {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()} == set(graph.assets)
    written = {
        path: {"health": LOOP_STAGE}.get(Path(path).parts[1], Path(path).parts[1]) if other.stage == LOOP_STAGE else other.stage
        for other in graph.targets
        if other.stage != RUN_CONFIG
        for path in (*other.outs, *other.metrics)
    }
    for stage in set(graph.stages) - {LOOP_STAGE}:
        read = {asset for path, asset in written.items() for data in graph.targets_of(stage)[0].data if Path(path).is_relative_to(data)}
        assert dagster_parents(stage) == read


def test_the_three_asset_stage_reads_what_its_assets_read(graph: Graph) -> None:
    inner = set(LOOP)
    assert {name: dagster_parents(name) for name in LOOP} == {name: set(parents) for name, parents in LOOP.items()}
    outer = set().union(*(dagster_parents(name) for name in LOOP)) - inner
    assert outer == {"prompts", "sft_checkpoint", "reference_checkpoint"}
    assert outer == {path.split("/")[1] for path in graph.targets_of(LOOP_STAGE)[0].data} - {RUN_CONFIG}
    (definition,) = (found for found in defs.assets or () if isinstance(found, dg.AssetsDefinition) and dg.AssetKey(LOOP_STAGE) in found.keys)
    assert {key.to_user_string() for key in definition.keys} == inner
    assert not definition.can_subset


def test_partitions_are_the_experiments(graph: Graph) -> None:
    nodes = defs.resolve_asset_graph()
    for asset in graph.assets:
        partitions = nodes.get(dg.AssetKey(asset)).partitions_def
        shared = asset in SHARED
        assert (list(partitions.get_partition_keys()) if partitions else []) == ([] if shared else list(graph.experiments))


def test_dvc_yaml_names_the_files_of_assets_paths(graph: Graph) -> None:
    expected = {
        "run_config": lambda p: [p.run_config],
        "prompts": lambda p: [p.prompts, p.validation("prompts")],
        "sft_checkpoint": lambda p: [p.sft_checkpoint],
        "reference_checkpoint": lambda p: [p.reference_checkpoint],
        "grpo_checkpoint": lambda p: [
            p.rollout_batches,
            p.select_completions,
            p.rewards,
            p.exploits,
            p.grpo_checkpoint,
            p.alarms,
            p.validation("rollout_batches"),
            p.validation("rewards"),
        ],
        "heldout_eval": lambda p: [p.heldout_completions, p.heldout_summary, p.validation("heldout_eval")],
        "blind_review_set": lambda p: [p.blind_review_pairs, p.blind_review_key],
        "blind_review_verdict": lambda p: [p.blind_review_judged, p.blind_review_verdict],
        "champion_eval": lambda p: [p.champion_completions],
        "promotion_report": lambda p: [p.promotion_report],
        "comparison_report": lambda p: [p.comparison_report],
    }
    assert {target.stage for target in graph.targets} == set(expected)
    for target in graph.targets:
        paths = expected[target.stage](Paths(ROOT, target.experiment or "default"))
        assert [*target.outs, *target.metrics] == [str(path.relative_to(ROOT)) for path in paths]


def test_stages_depend_on_the_files_their_nouns_open(graph: Graph) -> None:
    for target in graph.targets:
        paths = Paths(ROOT, target.experiment or "default")
        opened = {str(getattr(paths, name).relative_to(ROOT)) for asset in target.assets for name in attributes_read(ROOT / "assets" / f"{asset}.py", "paths")}
        # The champion's folder is not there before there is one: champion.json, which is, names the weights in it. Looks go on growing.
        opened = {path for path in opened if path.startswith("data/")} - {"data/champion/model", "data/champion/looks.jsonl"}
        listed = {*target.data, *target.outs, *target.metrics}
        assert all(any(Path(path).is_relative_to(other) for other in listed) for path in opened), target.name
        needless = {path for path in target.data if not any(Path(other).is_relative_to(path) for other in opened)}
        assert all(path.startswith(("data/run_config/", "data/raw")) for path in needless), target.name


def attributes_read(module: Path, variable: str) -> set[str]:
    """Properties of `variable` that the module uses, but for its page, which is drawn after the fact."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    bodies = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == "describe")]
    found = (node for body in bodies for node in ast.walk(body) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    names = {node.attr for node in found if node.value.id == variable}  # type: ignore[attr-defined]
    return {name for name in names if isinstance(getattr(Paths, name, None), property)} if variable == "paths" else names


def test_stages_depend_on_the_sections_their_code_reads(graph: Graph) -> None:
    code = imported_files(list(graph.stages))
    for stage in graph.stages:
        read = set().union(*(attributes_read(ROOT / path, "config") for path in code[stage])) & set(SECTIONS)
        data = graph.targets_of(stage)[0].data
        if "data/run_config" in data:
            continue  # all of them
        declared = {Path(path).stem for path in data if path.startswith("data/run_config/")}
        assert read - FOR_REFUSALS_ONLY.get(stage, set()) == declared, stage


def test_every_section_file_is_listed_beside_its_parameters(graph: Graph) -> None:
    """`params` of a stage repeat its sections, so that `dvc status` shows an edit at once; an experiment's sections lie in its own folder."""
    from dvc.repo import Repo

    files = section_files(ROOT)
    with Repo(str(ROOT)) as repo:
        listed = {stage.name: next((set(dep.params) for dep in stage.deps if hasattr(dep, "params")), set()) for stage in repo.index.stages}
    for target in graph.targets:
        if target.stage == RUN_CONFIG:
            assert listed[target.name] == set()  # the whole file, whatever is in it
            continue
        sections = [path.removeprefix("data/run_config/") for path in target.data if path.startswith("data/run_config/")]
        assert set(sections) <= set(files)
        assert sections == [f"{s}.json" if s in SHARED_SECTIONS else f"{target.experiment}/{s}.json" for s in map(section_of, sections)]
        assert listed[target.name] == set(map(section_of, sections))


def section_of(name: str) -> str:
    return Path(name).stem


def test_dvc_yaml_lists_exactly_the_code_that_stages_import() -> None:
    found = problems((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
    assert not found, "dvc.yaml must be corrected (`python -m pipelines.code_deps --write` does it):\n" + "\n".join(found)


def test_who_calls_reward_functions_depends_on_their_modules_and_the_sandbox() -> None:
    files = imported_files(["prompts", "sft_checkpoint", "grpo_checkpoint", "heldout_eval"])
    modules = {f"{function.path.partition(':')[0].replace('.', '/')}.py" for function in BUILT_IN.values()}
    sandbox = {str(path.relative_to(ROOT)) for path in (ROOT / "grpo_core/sandbox").glob("*.py")} - {"grpo_core/sandbox/__init__.py"}
    assert all((ROOT / module).is_file() for module in modules)
    for stage in ("grpo_checkpoint", "heldout_eval"):
        assert modules | sandbox <= set(files[stage]), stage
    for stage in ("prompts", "sft_checkpoint"):
        assert not (modules | sandbox) & set(files[stage]), stage


def test_a_nicer_chart_makes_nothing_stale() -> None:
    files = imported_files(["prompts", "sft_checkpoint"])
    assert "grpo_core/statistics.py" not in files["sft_checkpoint"], "only its page draws with it"
    assert not any(path.startswith("assets/") and path.removesuffix(".py").replace("/", ".") in PAGE_ONLY for paths in files.values() for path in paths)


def test_code_dependencies_are_rewritten_in_place() -> None:
    text = (
        "stages:\n  a:\n    deps:\n      - data/x\n      - assets/old.py\n      # kept\n    outs:\n      - data/y\n"
        "  b:\n    foreach: ${e}\n    do:\n      deps:\n        - data/y"
    )
    new = rewritten(text, {"a": ["assets/a.py", "grpo_core/a.py"], "b": ["assets/b.py"]})
    assert declared_files(new) == {"a": ["assets/a.py", "grpo_core/a.py"], "b": ["assets/b.py"]}
    assert new == (
        "stages:\n  a:\n    deps:\n      - data/x\n      # kept\n      - assets/a.py\n      - grpo_core/a.py\n    outs:\n      - data/y\n"
        "  b:\n    foreach: ${e}\n    do:\n      deps:\n        - data/y\n        - assets/b.py\n"
    )


def test_the_code_location_imports_nothing_heavy() -> None:
    program = "import sys, json; import pipelines.definitions; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(json.loads(result.stdout.splitlines()[-1]))
    assert not loaded & {"torch", "transformers", "mlflow", "great_expectations", "matplotlib", "pandas"}


def test_jobs_hold_the_lifecycle_and_its_part_from_grpo_on(graph: Graph) -> None:
    def stages(job: str) -> set[str]:
        return {node.name for node in defs.resolve_job_def(job).nodes} - {"in_sync"}

    assert stages("lifecycle") == set(graph.stages)
    assert stages("from_grpo") == {
        "grpo_checkpoint",
        "heldout_eval",
        "blind_review_set",
        "blind_review_verdict",
        "champion_eval",
        "promotion_report",
        "comparison_report",
    }
    repository = defs.get_repository_def()
    assert {schedule.default_status for schedule in repository.schedule_defs} == {dg.DefaultScheduleStatus.STOPPED}
    assert {sensor.default_status for sensor in repository.sensor_defs} == {dg.DefaultSensorStatus.STOPPED}


def test_the_weekly_schedule_asks_for_every_experiment(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    edit(root, "params.yaml", "\n  default: {}", "\n  default: {}\n  small: {grpo: {group_size: 4}}")
    location = build_definitions(root)
    with dg.build_schedule_context(scheduled_execution_time=datetime(2026, 3, 1, 2, tzinfo=UTC), repository_def=location.get_repository_def()) as context:
        requests = location.resolve_schedule_def("weekly_retraining").evaluate_tick(context).run_requests or []
    assert [request.partition_key for request in requests] == ["default", "small"]
    assert [request.run_key for request in requests] == ["2026-03-01-default", "2026-03-01-small"]


def test_all_experiments_share_a_code_version_that_follows_the_code(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    edit(root, "params.yaml", "\n  default: {}", "\n  default: {}\n  small: {grpo: {group_size: 4}}")
    before = {target.name: code_version(root, target) for target in load_graph(root).targets}
    assert before["heldout_eval@default"] == before["heldout_eval@small"]
    edit(root, "assets/heldout_eval.py", "toy", "tiny")
    after = {target.name: code_version(root, target) for target in load_graph(root).targets}
    assert {name for name in before if before[name] != after[name]} == {"heldout_eval@default", "heldout_eval@small"}


def test_the_comparison_is_made_once_after_all_experiments(tmp_path: Path) -> None:
    """It depends on the folders that they all write into; nothing that only one of them has is made from it."""
    root = make_project(tmp_path)
    edit(root, "params.yaml", "\n  default: {}", "\n  default: {}\n  small: {grpo: {group_size: 4}}")
    graph = load_graph(root)
    names = [target.name for target in graph.targets]
    assert names.count("comparison_report") == 1
    assert names.index("comparison_report") > max(names.index("grpo_checkpoint@default"), names.index("grpo_checkpoint@small"))
    assert graph.parents("comparison_report") == {"grpo_checkpoint", "rollout_batches", "rewards"}
    assert not any("comparison_report" in graph.parents(asset) for asset in graph.assets)
    asset = build_definitions(root).resolve_asset_graph().get(dg.AssetKey("comparison_report"))
    assert asset.partitions_def is None
    assert all(isinstance(asset.partition_mappings.get(key, dg.AllPartitionMapping()), dg.AllPartitionMapping) for key in asset.parent_keys)


def test_a_configuration_that_cannot_be_run_says_so_when_dagster_loads(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    edit(root, "params.yaml", "\n  clip_high: ", "\n  clip_hihg: ")
    with pytest.raises(ConfigError, match=r"clip_hihg.*did you mean 'clip_high'"):
        build_definitions(root)


def test_dvc_exp_run_varies_a_parameter(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    dvc(root, "repro", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "first run")
    dvc(root, "exp", "run", "--quiet", "-S", "grpo.group_size=4")
    assert json.loads((root / "data/run_config/default/grpo.json").read_text())["group_size"] == 4
    assert "up to date" in dvc(root, "status")
    assert set(git(root, "diff", "--name-only").split()) <= {
        "params.yaml", "dvc.lock", "data/validation/prompts.json", "data/promotion_report/default/report.json",
    }  # fmt: skip


def test_git_keeps_the_lock_and_the_metrics_and_nothing_that_dvc_keeps(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    dvc(root, "repro", "--quiet")
    kept = set(git(root, "ls-files", "--others", "--exclude-standard").split())
    metrics = {path for target in load_graph(root).targets for path in target.metrics}
    assert kept == {"dvc.lock"} | metrics


@pytest.fixture
def settings_home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(ROOT / ".dagster/dagster.yaml", home)
    yield home


def test_dagsters_settings_are_accepted_and_quiet(settings_home: Path) -> None:
    with dg.DagsterInstance.from_config(str(settings_home)) as instance:
        assert not instance.telemetry_enabled
        assert not instance.nux_enabled
        assert instance.run_monitoring_enabled
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 1


def test_the_toy_runs_the_real_graph(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    assert [target.outs for target in load_graph(root).targets] == [target.outs for target in load_graph(ROOT).targets]
    assert toy_environment(root)["DAGSTER_HOME"] == str(root / ".dagster")
