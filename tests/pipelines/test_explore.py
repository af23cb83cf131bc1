"""`grpo explore`: a person sees what a run would learn from, before anything is trained, and what to change."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from assets.paths import Paths
from grpo_core.checkpoint import MANIFEST, write_folder
from grpo_core.config import PromptsConfig, RunConfig, ScoringConfig
from grpo_core.exploration_numbers import Histogram, numbers_of
from grpo_core.models import save_model
from grpo_core.work_folder import lasting_values
from pipelines.exploration.chart import exploration_chart
from pipelines.exploration.explore import Exploration, StoppedTooSoon, explore, summary, with_group_size, write
from pipelines.exploration.start import Start, find_start, load_start
from pipelines.exploration.tables import percent, shortened, shown, text_histogram, written_text
from pipelines.outlook import outlook
from tests.explored import explored_rows
from tests.pipelines.checkouts import copy_checkout
from tests.pipelines.toy_project import edit
from tests.tiny_models import language_model, tiny_llama
from tests.tiny_run import tiny_config, with_rollout, write_start

CODE = "from pipelines.commands.explore import explore; explore()"
CONFIG = replace(
    with_rollout(tiny_config(rewards={"tests.tiny_rewards:share_of_small_digits": 1.0, "answer_format": 0.1}), max_new_tokens=6),
    prompts=PromptsConfig(num_generated=120, max_tokens=16),
    scoring=ScoringConfig(),
)
"""Some forty train prompts and a random model whose completions differ in how many small digits they have."""


def ignored(count: int) -> None:
    """Nobody listens."""


def start(root: Path) -> Start:
    write_start(root / "model")
    return find_start(Paths(root), CONFIG, root / "model")


def looked(root: Path, *, most: int = 1000, seed: int = 0, config: RunConfig = CONFIG) -> Exploration:
    return explore(Paths(root), config, start(root), most=most, seed=seed, on_start=ignored, on_batch=ignored)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Exploration:
    """An exploration that no test changes."""
    return looked(tmp_path_factory.mktemp("found"))


def printed(found: Exploration, width: int = 150) -> str:
    written = StringIO()
    Console(width=width, file=written).print(shown(found, outlook(Path(__file__).parent, "default", found.config)))
    return written.getvalue()


def settings(root: Path, **values: str) -> None:
    """Put these lines into params.yaml in place of the defaults."""
    for old, new in {"num_generated: 10000": "num_generated: 120", "max_new_tokens: 44": "max_new_tokens: 8", **values}.items():
        edit(root, "params.yaml", old, new)


def run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE, *options]
    return subprocess.run(command, cwd=root, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True, check=False)


def write_sft(paths: Paths, config: RunConfig) -> None:
    """What the stage sft_checkpoint leaves, with a random model in it."""
    facts = {"noun": "sft_checkpoint", "config": {name: lasting_values(config, name) for name in ("model", "sft")}}
    write_folder(paths.sft_checkpoint, lambda folder: save_model(language_model(tiny_llama(spread=0.3)), folder), facts)


# ------------------------------------------------------------------------------------------------------------- the start


def test_grpo_starts_from_the_fine_tuned_model_when_it_is_there(tmp_path: Path) -> None:
    paths, config = Paths(tmp_path), RunConfig()
    with pytest.raises(ValueError, match=r"`dvc repro sft_checkpoint` makes it, and so does `grpo run`"):
        find_start(paths, config, None)
    write_sft(paths, config)
    assert find_start(paths, config, None) == Start(paths.sft_checkpoint, "data/sft_checkpoint, after supervised fine-tuning")
    other_threads = replace(config, model=replace(config.model, num_threads=1))
    assert find_start(paths, other_threads, None).source == paths.sft_checkpoint


def test_a_checkpoint_of_other_settings_is_no_start(tmp_path: Path) -> None:
    paths, config = Paths(tmp_path), RunConfig()
    write_sft(paths, config)
    with pytest.raises(ValueError, match=r"sft\.steps was 800, is 200; `dvc repro sft_checkpoint` makes it again"):
        find_start(paths, replace(config, sft=replace(config.sft, steps=200)), None)
    assert find_start(paths, replace(config, sft=replace(config.sft, steps=200)), paths.sft_checkpoint).source == paths.sft_checkpoint
    (paths.sft_checkpoint / MANIFEST).write_text("{}")
    with pytest.raises(ValueError, match="the folder is incomplete"):
        find_start(paths, config, None)


def test_without_fine_tuning_the_configured_model_is_the_start(tmp_path: Path) -> None:
    paths, config = Paths(tmp_path), replace(RunConfig(), sft=replace(RunConfig().sft, steps=0))
    write_sft(paths, config)
    untrained = find_start(paths, config, None)
    assert untrained == Start(None, "the embedded model as it is (sft.steps is 0)")
    assert load_start(untrained, config).model.config.hidden_size == 128


def test_a_model_of_ones_own_before_its_fine_tuning_is_told(tmp_path: Path) -> None:
    model = replace(RunConfig().model, path="models/mine")
    config = replace(RunConfig(), model=model)
    write_start(tmp_path / "models" / "mine")
    found = find_start(Paths(tmp_path), config, None)
    assert found.source == tmp_path / "models" / "mine"
    assert "a run would fine-tune it first (sft.steps is 800)" in found.note
    assert find_start(Paths(tmp_path), replace(config, model=replace(model, path="hub/name")), None).source == "hub/name"


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no model: it holds no config\.json"):
        find_start(Paths(tmp_path), CONFIG, tmp_path)


# ------------------------------------------------------------------------------------------------------ an exploration


def test_it_samples_train_prompts_alone_and_counts_what_a_loop_counts(found: Exploration) -> None:
    assert found.is_whole
    assert set(found.prompts["split"]) == {"train"}
    rows, numbers = found.rows, found.numbers
    assert len(rows) == found.num_asked == 4 * len(found.prompts) == numbers.num_completions
    assert numbers.functions[0].spread.mean == pytest.approx(rows["reward/tests.tiny_rewards:share_of_small_digits"].mean())
    differing = [group["reward"].n_unique() > 1 for _, group in rows.group_by("step", "group")]
    assert numbers.groups.signal + numbers.groups.side_signal == pytest.approx(sum(differing) / len(differing))
    assert found.rates.tokens == rows["length"].sum()
    assert found.rates.tokens_a_second > 0
    assert 0 < len(found.pairs) <= 10
    assert all(pair.better_reward > pair.worse_reward for pair in found.pairs)


def test_the_files_hold_it_and_are_the_same_again(found: Exploration, tmp_path: Path) -> None:
    folders = []
    for name in ("first", "second"):
        again = looked(tmp_path / name)
        folders.append(write(Paths(tmp_path / name), replace(again, start=found.start)))
    first, second = folders
    assert first == tmp_path / "first" / ".work" / "explorations" / f"default-{found.rows['policy_digest'][0]}-seed0"
    names = {path.name for path in first.iterdir()}
    assert names == {"completions.parquet", "summary.json", "exploration.png", "timings.json", MANIFEST}
    for name in names - {"timings.json", MANIFEST}:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert pl.read_parquet(first / "completions.parquet").equals(found.rows)
    values = json.loads((first / "summary.json").read_text())
    assert values == json.loads(json.dumps(summary(found)))
    assert (values["seed"], values["verdict"], values["numbers"]["num_prompts"]) == (0, found.readiness.verdict, len(found.prompts))
    assert values["config"]["grpo"]["group_size"] == 4
    assert json.loads((first / "timings.json").read_text())["tokens"] == found.rates.tokens
    assert written_text(first, tmp_path / "first").startswith("Written to .work/explorations/default-")


def test_other_groups_are_explored_without_touching_the_rest(tmp_path: Path) -> None:
    six = with_group_size(CONFIG, 6)
    assert replace(six, grpo=replace(six.grpo, group_size=4)) == CONFIG
    assert with_group_size(CONFIG, None) is CONFIG
    assert looked(tmp_path, most=3, config=six).rows["completion_index"].max() == 5
    with pytest.raises(ValueError, match=r"rollout\.batch_size must be at least grpo\.group_size"):
        with_group_size(CONFIG, 100)


def interrupted(after: int) -> Iterator[None]:
    """Ctrl-C at the batch after so many."""
    yield from [None] * after
    raise KeyboardInterrupt


def test_ctrl_c_keeps_the_batches_that_are_whole(tmp_path: Path) -> None:
    press = interrupted(after=2)
    part = explore(Paths(tmp_path), CONFIG, start(tmp_path), most=1000, seed=0, on_start=ignored, on_batch=lambda count: next(press))
    assert not part.is_whole
    assert len(part.rows) == 32, "two batches of 4 prompts x 4 completions"
    assert part.numbers.num_prompts == 8
    assert f"stopped early: 32 of {part.num_asked} completions were sampled" in printed(part)
    assert summary(part)["is_whole"] is False
    assert write(Paths(tmp_path), part).name.endswith("-seed0-part"), "a whole one of the same name stays"
    with pytest.raises(StoppedTooSoon):
        at_once = interrupted(after=0)
        explore(Paths(tmp_path), CONFIG, start(tmp_path), most=1000, seed=0, on_start=ignored, on_batch=lambda count: next(at_once))


# ------------------------------------------------------------------------------------------------------ what is shown


def test_the_tables_hold_the_numbers_and_the_verdict_comes_last(found: Exploration) -> None:
    text = printed(found)
    titles = ("Explored 'default'", "Rewards by function", "Groups of 4", "Completion length in tokens", "Difficulty:", "By the difficulty", "A better and a")
    places = [text.index(title) for title in (*titles, "Experiment 'default'", "Measured here:", "Verdict:")]
    assert places == sorted(places)
    digits = next(line for line in text.splitlines() if line.startswith("│ share_of_"))
    function = found.numbers.functions[0]
    assert [cell.strip() for cell in digits.strip("│").split("│")][1:4] == ["1", f"{function.spread.mean:.3g}", f"{function.spread.std:.3g}"]
    assert f"{found.rates.tokens_a_second:,.0f} tokens a second while sampling" in text
    assert f"Verdict: {found.readiness.verdict}." in text
    for finding in found.readiness.findings:
        assert finding.page in text
    assert max(map(len, text.splitlines())) <= 150


def test_what_a_model_writes_cannot_steer_the_terminal(found: Exploration) -> None:
    pair = replace(found.pairs[0], better="\x1b[2Jgone", worse="[red]kept[/red]" + "x" * 500)
    text = printed(replace(found, pairs=[pair]))
    assert "\x1b" not in text
    assert "[red]kept[/red]" in text
    assert shortened(pair.worse).endswith("…")
    assert printed(replace(found, pairs=[])).count("Pairs: no group has completions of different reward") == 1


def test_a_share_does_not_look_like_none_or_all() -> None:
    assert [percent(share) for share in (0.0, 0.0001, 0.25, 0.9999, 1.0)] == ["0.0%", "<0.1%", "25.0%", ">99.9%", "100.0%"]


def test_histograms_in_text(found: Exploration) -> None:
    lines = text_histogram(found.numbers.functions[1].spread.histogram).splitlines()
    assert [line.split()[0] for line in lines] == [f"{value:g}" for value in found.numbers.functions[1].spread.histogram.values]
    assert text_histogram(Histogram((), (0.0, 1.0, 2.0, 3.0), (0.0, 0.5, 0.01))) == "0  █▁ 3"
    assert text_histogram(Histogram((), (), ())) == ""


def test_the_figure_is_a_picture_also_where_nothing_was_graded(found: Exploration) -> None:
    assert exploration_chart(found.numbers).startswith(b"\x89PNG")
    none = numbers_of(explored_rows([[0, 0]], correct=[None, None]), found.prompts, RunConfig())
    assert exploration_chart(none).startswith(b"\x89PNG")
    assert "the metric failed on every completion" in printed(replace(found, numbers=none, pairs=[]))


# ------------------------------------------------------------------------------------------------------ the command


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    missing = run(copy_checkout(tmp_path))
    assert missing.returncode == 1
    assert missing.stderr.startswith("Error: the embedded model has learned nothing yet and data/sft_checkpoint is not there")
    assert len(missing.stderr.splitlines()) == 1


def test_the_command_judges_a_model_that_knows_nothing(tmp_path: Path) -> None:
    root = copy_checkout(tmp_path)
    settings(root)
    write_start(root / "random")
    done = run(root, "--model", "random", "--check", "--seed", "3")
    assert done.returncode == 1, done.stderr
    assert "by the model in random" in done.stdout
    assert "Verdict: not yet. GRPO would learn little or nothing from here:" in done.stdout
    assert "100.0% of completions have the lowest exact_answer" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Written to .work/explorations/default-")
    (folder,) = (root / ".work" / "explorations").iterdir()
    assert folder.name.endswith("-seed3")


SLOW = """
import time
from pathlib import Path

calls = 0

def slow(completions, **columns):
    global calls
    calls += 1
    if calls == 3:
        Path({marker!r}).touch()
        time.sleep(60)
    return [0.0] * len(completions)
"""


def test_ctrl_c_shows_what_was_sampled_and_ends_with_status_130(tmp_path: Path) -> None:
    root, marker = copy_checkout(tmp_path), tmp_path / "third batch"
    (root / "reward_functions" / "slow.py").write_text(SLOW.format(marker=str(marker)))
    settings(root, **{"  exact_answer: 1.0": "  reward_functions.slow:slow: 1.0", "prompts_per_step: 16 ": "prompts_per_step: 4 "})
    write_start(root / "random")
    command = [sys.executable, "-c", CODE, "--model", "random"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not marker.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "stopped early: 64 of" in out
    assert "Verdict: not yet." in out
