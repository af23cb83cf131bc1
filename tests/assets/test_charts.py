"""Facts about the pictures: they decode, follow the data, and survive the tables that a young or a broken run has."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from assets.charts import accuracy_bars, learning_curves, length_histogram, loss_curve, reward_histograms, training_charts
from assets.histograms import reward_by_length

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = {
    "num_prompts": 512.0, "reference_accuracy": 0.418, "reference_accuracy_low": 0.376, "reference_accuracy_high": 0.461, "policy_accuracy": 0.994,
    "policy_accuracy_low": 0.983, "policy_accuracy_high": 0.998, "difference": 0.576, "difference_low": 0.533, "difference_high": 0.619,
}  # fmt: skip


def pixels(png: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(png))
    image.load()
    assert image.width == 1120, "every chart is 7 inches at 160 dots an inch"
    return np.asarray(image.convert("RGB"))


def colored(picture: np.ndarray, color: tuple[int, int, int]) -> int:
    """How many pixels have exactly this colour."""
    return int((picture == color).all(axis=2).sum())


BLUE, GREY = (0x25, 0x63, 0xEB), (0x94, 0xA3, 0xB8)


def make_metrics(steps: int) -> pl.DataFrame:
    """Rows of metrics.jsonl: an evaluation before the first step, then one row a step."""
    s = np.arange(1, steps + 1)
    trained = pl.DataFrame({
        "step": s, "reward/mean": 0.5 + 0.5 * s / steps, "reward/std": 0.2, "reward/exact_answer": 0.4 + 0.5 * s / steps, "kl/mean": 0.001 * s, "beta": 0.01,
        "length/mean": 19.0 + s, "length/max": 40.0, "truncated_fraction": 0.0, "zero_variance_fraction": 0.25, "solved_group_fraction": 0.125,
    })  # fmt: skip
    return pl.concat([pl.DataFrame({"step": [0], "eval/select_accuracy": [0.43]}), trained], how="diagonal")


def make_rewards(steps: int) -> pl.DataFrame:
    """Two groups of four a step: one alive, one whose rewards are all equal."""
    rewards, advantages = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0], [-0.866, 0.866, 0.866, -0.866, 0.0, 0.0, 0.0, 0.0]
    step = np.repeat(np.arange(1, steps + 1), 8)
    return pl.DataFrame({"step": step, "reward/exact_answer": rewards * steps, "reward": rewards * steps, "advantage": advantages * steps})


def test_the_four_charts_of_a_run_decode() -> None:
    charts = training_charts(make_metrics(20), make_rewards(20))
    assert list(charts) == ["reward", "kl", "length", "advantages"]
    assert {name: pixels(png).shape[:2] for name, png in charts.items()} == {
        "reward": (688, 1120), "kl": (480, 1120), "length": (496, 1120), "advantages": (704, 1120),
    }  # fmt: skip


def test_the_same_table_gives_the_same_bytes_and_another_one_another_picture() -> None:
    metrics, rewards = make_metrics(10), make_rewards(10)
    first = training_charts(metrics, rewards)
    assert training_charts(metrics, rewards) == first
    changed = metrics.with_columns(pl.col("reward/mean", "kl/mean", "length/mean") * pl.when(pl.col("step") == 5).then(2).otherwise(1))
    flipped = rewards.with_columns(advantage=pl.when(pl.col("step") == 5).then(pl.col("advantage") * 2).otherwise(pl.col("advantage")))
    again = training_charts(changed, flipped)
    assert all(again[name] != first[name] for name in first)


def test_beta_and_truncation_get_a_panel_only_when_there_is_something_to_see() -> None:
    metrics, rewards = make_metrics(10), make_rewards(10)
    moved = metrics.with_columns(beta=pl.col("step") * 0.01, truncated_fraction=pl.lit(0.5))
    quiet, busy = training_charts(metrics, rewards), training_charts(moved, rewards)
    assert pixels(busy["kl"]).shape[0] > pixels(quiet["kl"]).shape[0]
    assert pixels(busy["length"]).shape[0] > pixels(quiet["length"]).shape[0]


def test_invalid_completions_and_failed_rewards_get_a_panel_only_when_there_are_any() -> None:
    clean = make_metrics(10).with_columns(pl.lit(0.0).alias(f"status/{kind}_fraction") for kind in ("invalid", "error"))
    failed = clean.with_columns(pl.when(pl.col("step") == 4).then(0.01).otherwise(0.0).alias("status/error_fraction"))
    charts = {name: training_charts(metrics, make_rewards(10))["reward"] for name, metrics in {"clean": clean, "failed": failed}.items()}
    assert charts["clean"] == training_charts(make_metrics(10), make_rewards(10))["reward"]
    assert pixels(charts["failed"]).shape[0] > pixels(charts["clean"]).shape[0]
    # One step of ten is filled to the panel's top, in red at 60 %; the clean chart has none of it.
    filled = [int((np.abs(pixels(png).astype(int) - (0xEA, 0x7D, 0x7D)).max(axis=2) <= 2).sum()) for png in charts.values()]
    assert filled[0] == 0
    assert filled[1] > 5_000


@pytest.mark.parametrize("steps", [1, 2_000])
def test_failures_of_a_young_and_of_a_long_run_are_drawn(steps: int) -> None:
    metrics = make_metrics(steps).with_columns(pl.when(pl.col("step") > 0).then(0.01).alias("status/error_fraction"))
    pixels(training_charts(metrics, make_rewards(1))["reward"])


def test_the_heatmap_fills_the_cells_that_advantages_fall_into() -> None:
    metrics = make_metrics(30)
    spread, dead = make_rewards(30), make_rewards(30).with_columns(advantage=pl.lit(0.0))
    blue = [colored(pixels(training_charts(metrics, rewards)["advantages"]), (0x0B, 0x1F, 0x5C)) for rewards in (dead, spread.filter(pl.col("advantage") > 0))]
    assert blue[0] == 0, "a run without live groups has an empty heatmap"
    assert blue[1] > 5_000, "all live advantages in one row of cells: that row is the darkest colour"


EMPTY = pl.DataFrame()
ONLY_EVALUATED = pl.DataFrame({"step": [0], "eval/select_accuracy": [0.4]})
NOTHING_KNOWN = make_metrics(3).with_columns(pl.lit(None).alias(name) for name in ("reward/std", "kl/mean", "beta", "eval/select_accuracy"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "metrics", [EMPTY, make_metrics(3).clear(), ONLY_EVALUATED, make_metrics(1), NOTHING_KNOWN], ids=["none", "no_row", "step_0", "one", "nulls"]
)
@pytest.mark.parametrize(
    "rewards", [EMPTY, make_rewards(3).clear(), make_rewards(1), make_rewards(1).with_columns(advantage=None)], ids=["none", "no_row", "one", "nulls"]
)
def test_young_runs_have_pictures_too(metrics: pl.DataFrame, rewards: pl.DataFrame) -> None:
    for png in training_charts(metrics, rewards).values():
        pixels(png)


def test_long_runs_stay_within_the_heatmaps_width() -> None:
    for png in training_charts(make_metrics(1_000), make_rewards(1_000)).values():
        pixels(png)


def test_the_bars_of_accuracy_are_as_long_as_the_accuracy() -> None:
    full, half = (
        colored(pixels(accuracy_bars(SUMMARY | {"policy_accuracy": value, "policy_accuracy_low": value, "policy_accuracy_high": value})), BLUE)
        for value in (1.0, 0.5)
    )
    assert half / full == pytest.approx(0.5, abs=0.02)


def test_reward_histograms_compare_the_first_tenth_with_the_last() -> None:
    rewards = pl.DataFrame({"step": np.repeat(np.arange(1, 21), 10), "reward/a": [0.0] * 100 + [1.0] * 100, "reward/b": [None] * 200})
    picture = pixels(reward_histograms(rewards))
    left, right = picture[:, :560], picture[:, 560:]
    plot = slice(80, None)  # below the legend
    assert colored(left[plot], GREY) > 10_000 > colored(left[plot], BLUE)
    assert colored(right[plot], BLUE) > 10_000 > colored(right[plot], GREY)


def by_length(rows: dict[str, list[float]], steps: int = 10) -> pl.DataFrame:
    """Completions of the first and of the last step with these lengths and rewards."""
    return pl.concat([pl.DataFrame({"step": [step] * len(rows["length"]), **rows}) for step in (1, steps)])


def test_reward_against_length_follows_the_means() -> None:
    rising: dict[str, list[float]] = {"length": [3, 3, 9, 9], "reward": [0.0, 0.2, 0.9, 1.0]}
    falling = {**rising, "reward": [1.0, 0.9, 0.2, 0.0]}
    assert reward_by_length(by_length(rising)) != reward_by_length(by_length(falling))
    picture = pixels(reward_by_length(by_length(rising)))
    assert colored(picture, BLUE) > 1_000
    assert colored(picture, GREY) > 1_000


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "frame",
    [
        by_length({"length": [5], "reward": [1.0]}, steps=1),
        by_length({"length": [5, 5, 5], "reward": [1.0, 0.0, 1.0]}),
        by_length({"length": [1, 5_000], "reward": [0.5, 0.5]}),
        by_length({"length": [], "reward": []}),
    ],
    ids=["one_row", "one_length", "one_reward", "none"],
)
def test_reward_against_length_of_any_table_decodes(frame: pl.DataFrame) -> None:
    pixels(reward_by_length(frame))


def test_a_histogram_says_which_completions_were_not_scored() -> None:
    rewards = pl.DataFrame({"step": [1] * 10, "reward/a": [0.0] * 5 + [1.0] * 5, "status/a": ["ok"] * 10})
    troubled = rewards.with_columns(pl.Series("status/a", ["ok"] * 9 + ["invalid"]))
    assert reward_histograms(rewards) == reward_histograms(rewards.drop("status/a"))
    assert reward_histograms(rewards) != reward_histograms(troubled)


LENGTHS: dict[str, pl.DataFrame] = {
    "by_model": pl.DataFrame({"model": ["reference", "policy"] * 5, "length": list(range(10))}),
    "by_step": pl.DataFrame({"step": list(range(1, 11)), "length": [7] * 10}),
    "one_row": pl.DataFrame({"step": [1], "length": [44]}),
    "one_model": pl.DataFrame({"model": ["policy"], "length": [3]}),
    "empty": EMPTY,
}


@pytest.mark.parametrize("frame", LENGTHS.values(), ids=LENGTHS.keys())
def test_length_histograms_of_any_table_decode(frame: pl.DataFrame) -> None:
    pixels(length_histogram(frame))


OTHERS: dict[str, Callable[[], bytes]] = {
    "loss": lambda: loss_curve(pl.DataFrame({"step": range(1, 801), "loss": 1 / np.arange(1, 801)})),
    "loss_of_one_step": lambda: loss_curve(pl.DataFrame({"step": [1], "loss": [2.0]})),
    "no_loss": lambda: loss_curve(EMPTY),
    "no_rewards": lambda: reward_histograms(EMPTY),
    "many_functions": lambda: reward_histograms(make_rewards(5).with_columns(pl.lit(0.1 * k).alias(f"reward/f{k}") for k in range(4))),
    "continuous": lambda: reward_histograms(pl.DataFrame({"step": range(100), "reward/a": np.linspace(-1, 1, 100)})),
    "worse": lambda: accuracy_bars(SUMMARY | {"difference": -0.1, "difference_low": -0.2, "difference_high": -0.05}),
    "seeds": lambda: learning_curves(
        pl.DataFrame({"seed": [0, 0, 1, 1], "step": [0, 10] * 2, "select_accuracy": [0.4, 1.0, 0.5, None], "length": [19.0, 34.0] * 2})
    ),
}


@pytest.mark.parametrize("draw", OTHERS.values(), ids=OTHERS.keys())
def test_the_other_pictures_decode(draw: Callable[[], bytes]) -> None:
    pixels(draw())


def test_charts_share_no_global_state_and_load_matplotlib_only_when_drawing() -> None:
    program = (
        "import sys, assets.charts as charts, polars as pl; assert 'matplotlib' not in sys.modules\n"
        "charts.loss_curve(pl.DataFrame({'step': [1, 2], 'loss': [2.0, 1.0]})); assert 'matplotlib.pyplot' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
