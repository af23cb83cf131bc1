"""The process that makes a noun: what it leaves when it succeeds, fails, or is asked to stop."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, DAGSTER_PIPES_MESSAGES_ENV_VAR, encode_param

from assets.contracts import ContractError
from assets.page import Progress
from assets.paths import Paths
from grpo_core.config import SECTIONS, SHARED_SECTIONS
from pipelines.environment import environment
from pipelines.lock import file_md5
from pipelines.outlook import TOLD
from pipelines.params import load_params
from pipelines.progress import bar, figures, lines
from pipelines.records.files import read_records
from pipelines.signals import StopRequest
from pipelines.stage import NOUNS, check_contracts
from tests.pipelines.checkouts import ROOT, copy_checkout


def stage(root: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipelines.stage", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, env={**os.environ, **variables}, check=False)


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file under `folder`: bytes and time of last change."""
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def edit(root: Path, start: str, new: str) -> None:
    """Replace the one line of params.yaml that starts with `start`."""
    path = root / "params.yaml"
    text, count = re.subn(rf"(?m)^{start}.*$", new, path.read_text(encoding="utf-8"))
    assert count == 1, start
    path.write_text(text, encoding="utf-8")


def test_run_config_writes_a_file_a_section(checkout: Path) -> None:
    result = stage(checkout, "run_config")
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(contents(checkout / "data")) == sorted(
        [f"run_config/{name}.json" for name in SHARED_SECTIONS] + [f"run_config/default/{name}.json" for name in SECTIONS if name not in SHARED_SECTIONS]
    )
    assert json.loads((checkout / "data/run_config/default/grpo.json").read_bytes())["group_size"] == load_params(checkout)["grpo"]["group_size"]


@pytest.mark.parametrize(
    ("start", "new", "message"),
    [
        ("  group_size:", "  goup_size: 8", "unknown key grpo.goup_size: did you mean 'group_size'?"),
        ("rollout:", "rolout:", "unknown section 'rolout': did you mean 'rollout'?"),
        ("  clip_low:", "  clip_low: -1", "grpo.clip_low must lie between 0 and 1 (both excluded), got -1.0"),
        ("  loss:", "  loss: gropo", "grpo.loss must be one of 'grpo', 'dapo', 'dr_grpo', got 'gropo': did you mean 'grpo'?"),
        ("  chat:", "  chat: no", "prompts.chat must be of type bool, got 'no' of type str"),
        (
            "  default:",
            "  default: {sft: {steps: 1}}",
            "experiments.default.sft: all experiments share model, prompts, sft; change the section itself instead",
        ),
    ],
)
def test_a_bad_key_is_one_clear_error_and_leaves_earlier_files_untouched(checkout: Path, start: str, new: str, message: str) -> None:
    assert stage(checkout, "run_config").returncode == 0
    before = contents(checkout / "data")
    edit(checkout, start, new)
    result = stage(checkout, "run_config")
    assert (result.returncode, result.stderr, result.stdout) == (1, f"error: {message}\n", "")
    assert contents(checkout / "data") == before


def test_grpo_traceback_shows_where_an_error_came_from(checkout: Path) -> None:
    edit(checkout, "  clip_low:", "  clip_low: -1")
    result = stage(checkout, "run_config", GRPO_TRACEBACK="1")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: grpo.clip_low")


def test_a_stage_before_run_config_says_what_to_do(checkout: Path) -> None:
    result = stage(checkout, "prompts")
    assert (result.returncode, result.stderr) == (1, f"error: {checkout}/data/run_config holds no experiment: write it with `dvc repro run_config`\n")


def test_an_unknown_experiment_says_what_is_missing(checkout: Path) -> None:
    stage(checkout, "run_config")
    result = stage(checkout, "blind_review_set", "--experiment", "other")
    assert (result.returncode, result.stderr.startswith(f"error: {checkout}/data/run_config/other/")) == (1, True)


def test_an_unknown_noun_is_a_usage_error_that_lists_the_nouns(checkout: Path) -> None:
    result = stage(checkout, "prompt")
    assert result.returncode == 2
    assert all(noun in result.stderr for noun in NOUNS)


def test_outside_of_a_checkout_it_says_so(tmp_path: Path, checkout: Path) -> None:
    result = stage(tmp_path, "run_config", PYTHONPATH=str(checkout))
    assert (result.returncode, result.stderr.startswith("error: no params.yaml and dvc.yaml in ")) == (1, True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose prompts were made."""
    root = copy_checkout(tmp_path_factory.mktemp("made"))
    edit(root, "  num_generated:", "  num_generated: 400")
    for noun in ("run_config", "prompts"):
        result = stage(root, noun)
        assert result.returncode == 0, result.stderr
    return root


def test_a_made_noun_has_its_contracts_outcome_and_its_record(made: Path) -> None:
    paths = Paths(made)
    assert json.loads(paths.validation("prompts").read_bytes())["success"]
    (record,) = read_records(paths, "prompts")
    assert record["wall_seconds"] > 0
    assert (record["commit"], record["threads"]["OMP_NUM_THREADS"]) == (None, str(load_params(made)["model"]["num_threads"]))
    assert record["outs"]["data/prompts/prompts.parquet"] == file_md5(paths.prompts)
    assert (record["code"], record["command"][1:]) == (str(made), ["-m", "pipelines.stage", "prompts"])
    (config,) = read_records(paths, "run_config")
    assert record["deps"]["data/run_config/model.json"] == config["files"]["data/run_config/model.json"]


@pytest.mark.parametrize(("noun", "told", "said"), [("sft_checkpoint", False, True), ("grpo_checkpoint", False, True), ("grpo_checkpoint", True, False)])
def test_a_training_says_what_it_will_be_before_it_begins_unless_that_was_said(checkout: Path, noun: str, told: bool, said: bool) -> None:
    assert stage(checkout, "run_config").returncode == 0
    # Nothing was made to train from: it fails after it has said so.
    result = stage(checkout, noun, **({TOLD: "1"} if told else {}))
    assert result.returncode == 1
    assert ("completions a step" in result.stdout, "train prompts would never be seen" in result.stdout) == (said, said)


def test_the_code_of_another_checkout_is_refused(checkout: Path, tmp_path: Path) -> None:
    other = copy_checkout(tmp_path / "other")
    result = stage(other, "run_config", PYTHONPATH=str(checkout), PYTHONSAFEPATH="1")
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: the code that was imported lies in {checkout}, the checkout that it would work on is {other}: ")
    assert not (other / "data").exists()


def test_one_package_of_another_checkout_is_refused(checkout: Path, tmp_path: Path) -> None:
    other = copy_checkout(tmp_path / "other")
    shutil.rmtree(other / "grpo_core")
    result = stage(other, "run_config", PYTHONPATH=str(checkout))
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: the code that was imported lies in {checkout}, the checkout that it would work on is {other}: ")


def test_a_violated_contract_is_written_and_raised(made: Path, tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    paths.prompts.parent.mkdir(parents=True)
    blank = pl.when(pl.col("source_row") == 3).then(pl.lit(" ")).otherwise("answer")
    pl.read_parquet(Paths(made).prompts).with_columns(answer=blank).write_parquet(paths.prompts)
    with pytest.raises(ContractError, match=r"contract of prompts violated: no answer is blank: 1 row"):
        check_contracts("prompts", paths)
    assert not json.loads(paths.validation("prompts").read_bytes())["success"]


def test_a_signal_is_a_request_to_stop_and_nothing_more(capfd: pytest.CaptureFixture[str]) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    request = StopRequest()
    try:
        request.listen()
        assert not request()
        os.kill(os.getpid(), signal.SIGTERM)
        assert request()
        os.kill(os.getpid(), signal.SIGINT)
        assert request()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capfd.readouterr().err == "\nSIGTERM: finishing this step, then a checkpoint\n"


CHILD = "from pipelines.signals import die_with_parent; import time; die_with_parent(); print('ready', flush=True); time.sleep(60)"
PARENT = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {CHILD!r}]); print(p.pid, flush=True); p.wait()"


def test_a_stage_dies_with_its_parent(checkout: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=checkout, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        words = {parent.stdout.readline().strip() for _ in range(2)}
        child = int((words - {"ready"}).pop())
        parent.kill()
        deadline = time.monotonic() + 10
        while is_running(child) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not is_running(child)


def is_running(pid: int) -> bool:
    """A zombie that nobody waits for does not run."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_figures_name_what_training_is_about_and_else_whatever_there_is() -> None:
    numbers = {"grad_norm": 3.0, "length/mean": 20.25, "reward/mean": 0.5, "kl/mean": 0.0123456}
    assert figures(Progress(1, 2, numbers)) == "reward=0.5, kl=0.01235, length=20.25"
    assert figures(Progress(1, 2, {"prompts/train": 12.0})) == "prompts/train=12"
    assert figures(Progress(1, 2)) == ""


def test_a_log_gets_a_line_every_five_seconds_and_the_last() -> None:
    clock = [0.0]
    stream = io.StringIO()
    with lines("noun", stream, now=lambda: clock[0]) as show:
        for step in range(1, 13):
            show(Progress(step, 12, {"loss": 1.0}))
            clock[0] += 1.0
    shown = [line.partition("|")[2].rpartition("|")[2].split()[0] for line in stream.getvalue().splitlines()]
    assert shown == ["1/12", "6/12", "11/12", "12/12"]
    assert "loss=1" in stream.getvalue()


def test_a_terminal_gets_one_bar_that_jumps_to_where_training_resumes() -> None:
    stream = io.StringIO()
    with bar("noun", stream) as show:
        show(Progress(30, 60))
        show(Progress(60, 60, {"reward/mean": 1.0}))
    assert stream.getvalue().count("\n") == 1
    assert "60/60" in stream.getvalue().rpartition("\r")[2]
    assert "reward=1" in stream.getvalue().rpartition("\r")[2]


@pytest.fixture
def as_dagster(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that Dagster started; its messages go to `tmp_path / "dagster" / "messages"`."""
    folder = tmp_path / "dagster"
    folder.mkdir()
    (tmp_path / "context").write_text(json.dumps({"asset_keys": ["noun"], "run_id": "r", "retry_number": 0, "extras": {}}), encoding="utf-8")
    pipes = {
        DAGSTER_PIPES_CONTEXT_ENV_VAR: encode_param({"path": str(tmp_path / "context")}),
        DAGSTER_PIPES_MESSAGES_ENV_VAR: encode_param({"path": str(folder / "messages")}),
    }
    return {**os.environ, **pipes}


REPORT = """
import shutil, sys
from assets.page import Progress
from pipelines.outlook import TOLD
from pipelines.params import load_params
from pipelines.progress import dagster_messages
with dagster_messages() as send:
    send(Progress(3, 60, {"reward/mean": 0.5}, checkpointed=True))
    if len(sys.argv) > 1:
        shutil.rmtree(sys.argv[1])
    send(Progress(4, 60))
    send(Progress(5, 60))
print("done")
"""


def test_dagster_hears_of_every_step(tmp_path: Path, as_dagster: dict[str, str]) -> None:
    result = subprocess.run([sys.executable, "-c", REPORT], cwd=ROOT, env=as_dagster, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("done\n", "")
    sent = [json.loads(line) for line in (tmp_path / "dagster" / "messages").read_text(encoding="utf-8").splitlines()]
    payloads = [message["params"]["payload"] for message in sent if message["method"] == "report_custom_message"]
    assert payloads[0] == {"kind": "progress", "step": 3, "total": 60, "checkpointed": True, "numbers": {"reward/mean": 0.5}}
    assert [payload["step"] for payload in payloads] == [3, 4, 5]


def test_work_goes_on_when_dagster_has_gone(tmp_path: Path, as_dagster: dict[str, str]) -> None:
    command = [sys.executable, "-c", REPORT, str(tmp_path / "dagster")]
    result = subprocess.run(command, cwd=ROOT, env=as_dagster, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
    assert result.stderr.count("warning: Dagster no longer takes messages") == len(result.stderr.splitlines()) == 1


def test_telemetry_is_off_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    made = environment(tmp_path, {"PATH": "/usr/bin", "DO_NOT_TRACK": "false", "DAGSTER_HOME": "/elsewhere"})
    assert made["DO_NOT_TRACK"] == "false"
    assert made["DVC_NO_ANALYTICS"] == made["MLFLOW_DISABLE_TELEMETRY"] == made["HF_HUB_DISABLE_TELEMETRY"] == "true"
    assert made["GX_ANALYTICS_ENABLED"] == "false"
    assert made["DAGSTER_HOME"] == str(tmp_path / ".dagster")


def test_the_interpreters_folder_comes_first_in_path_and_once(tmp_path: Path) -> None:
    folder = str(Path(sys.executable).parent)
    assert environment(tmp_path, {"PATH": f"/usr/bin:{folder}:/bin"})["PATH"] == f"{folder}:/usr/bin:/bin"
