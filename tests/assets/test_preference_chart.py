"""Win rates as a picture: a dot a difficulty, however many there are."""

import io
from dataclasses import asdict
from typing import Any

import numpy as np
from PIL import Image

from assets.preference_chart import win_rate_chart
from grpo_core.preference import share

BLUE = (0x25, 0x63, 0xEB)


def verdict(levels: int) -> dict[str, Any]:
    found = asdict(share([1.0] * 7 + [0.0] * 3))
    return {"win_rate": found, "decided": found, "by_difficulty": {f"{level} carries": {**found, "count": 10 + level} for level in range(levels)}}


def pixels(png: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(png))
    image.load()
    assert image.width == 1120
    return np.asarray(image.convert("RGB"))


def test_every_difficulty_has_a_row_up_to_twelve() -> None:
    heights = {levels: pixels(win_rate_chart(verdict(levels))).shape[0] for levels in (0, 1, 3, 12, 40)}
    assert heights[0] == heights[1] < heights[3] < heights[12] == heights[40], "one difficulty is all pairs once more"


def test_the_dot_of_all_pairs_lies_where_its_win_rate_is() -> None:
    def centre(wins: int) -> float:
        found = asdict(share([1.0] * wins + [0.0] * (10 - wins)))
        picture = pixels(win_rate_chart({**verdict(2), "win_rate": found}))
        return float(np.nonzero((picture == BLUE).all(axis=2))[1].mean())

    assert centre(2) < centre(5) < centre(8)


def test_without_decided_pairs_their_row_is_left_out() -> None:
    undecided = {**verdict(0), "decided": asdict(share([]))}
    assert pixels(win_rate_chart(undecided)).shape[0] < pixels(win_rate_chart(verdict(0))).shape[0]
