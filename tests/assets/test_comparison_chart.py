"""The learning curves of an ablation: a colour an arm, and only what is there."""

import io

import numpy as np
import polars as pl
from PIL import Image

from assets import canvas
from assets.comparison_chart import learning_curves_by_arm

BLUE, TEAL = (0x25, 0x63, 0xEB), (0x0D, 0x94, 0x88)


def metrics(rise: float, steps: int = 20) -> pl.DataFrame:
    """Rows of metrics.jsonl, with an evaluation before the first step and at the last."""
    trained = pl.DataFrame({"step": range(1, steps + 1), "reward/mean": [0.4 + rise * step for step in range(1, steps + 1)]})
    evaluated = pl.DataFrame({"step": [0, steps], "eval/select_accuracy": [0.4, 0.8]})
    return pl.concat([trained, evaluated], how="diagonal").sort("step")


def pixels(png: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(png))
    image.load()
    assert image.width == 1120
    return np.asarray(image.convert("RGB"))


def colored(picture: np.ndarray, color: tuple[int, int, int]) -> int:
    return int((picture == color).all(axis=2).sum())


def test_every_arm_is_a_line_of_its_own_colour() -> None:
    both = pixels(learning_curves_by_arm("clip", {"0.1": [metrics(0.01), metrics(0.012)], "0.2": [metrics(0.02)]}, 20, 12))
    one = pixels(learning_curves_by_arm("clip", {"0.1": [metrics(0.01), metrics(0.012)]}, 20, 12))
    assert colored(both, BLUE) > 500 and colored(both, TEAL) > 500
    assert colored(one, TEAL) == 0


def test_what_comes_after_the_common_steps_is_not_drawn() -> None:
    long = metrics(0.01, steps=40).with_columns(pl.when(pl.col("step") > 20).then(9.0).otherwise(pl.col("reward/mean")).alias("reward/mean"))
    cut = long.filter(pl.col("step") <= 20)
    assert learning_curves_by_arm("clip", {"0.1": [long]}, 20, 20) == learning_curves_by_arm("clip", {"0.1": [cut]}, 20, 20)


def test_names_are_drawn_as_they_are_written_and_not_over_everything_else() -> None:
    arms = {"$\\frac{$": [metrics(0.01)], "$a$": [metrics(0.02)], "x" * 300 + "1": [metrics(0.03)], "x" * 300 + "2": [metrics(0.04)]}
    drawn = pixels(learning_curves_by_arm("prompts.$path$", arms, 20, 12))
    assert colored(drawn, BLUE) > 500, "no label has pushed the curves out"
    assert canvas.shortened("x" * 300 + "1") != canvas.shortened("x" * 300 + "2")
    assert len(canvas.shortened("x" * 300)) == canvas.LONGEST_LABEL
    assert canvas.shortened("y" * canvas.LONGEST_LABEL) == "y" * canvas.LONGEST_LABEL


def test_the_band_is_there_where_seeds_differ() -> None:
    alike = learning_curves_by_arm("clip", {"0.1": [metrics(0.01), metrics(0.01)]}, 20, 20)
    apart = learning_curves_by_arm("clip", {"0.1": [metrics(0.005), metrics(0.015)]}, 20, 20)
    assert pixels(alike).shape == pixels(apart).shape
    assert alike != apart


def test_without_an_evaluation_there_is_one_panel_and_without_curves_a_reason() -> None:
    without = metrics(0.01).drop("eval/select_accuracy")
    whole = pixels(learning_curves_by_arm("clip", {"0.1": [metrics(0.01)]}, 20, 20))
    assert pixels(learning_curves_by_arm("clip", {"0.1": [without]}, 20, 20)).shape[0] < whole.shape[0]
    assert pixels(learning_curves_by_arm("clip", {"0.1": []}, 20, 20)).shape[0] < 300
