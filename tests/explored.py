"""Rows of an exploration whose numbers are known."""

from collections.abc import Sequence
from typing import Any

import polars as pl


def explored_rows(groups: Sequence[Sequence[float]], *, forms: Sequence[Sequence[float]] | None = None, **changed: Sequence[Any]) -> pl.DataFrame:
    """A row a completion: `groups` holds what exact_answer gave by group, `forms` what answer_format did (1 throughout); rewards are 1 and 0.1 a mark.

    A completion's text and tokens are those of its group and place; `changed` replaces whole columns.
    """
    forms = [[1.0] * len(group) for group in groups] if forms is None else forms
    cells = [
        (g, i, right, form)
        for g, (group, formed) in enumerate(zip(groups, forms, strict=True))
        for i, (right, form) in enumerate(zip(group, formed, strict=True))
    ]
    rewards = [right + 0.1 * form for _, _, right, form in cells]
    alike = [len({(r, f) for r, f in zip(groups[g], forms[g], strict=True)}) == 1 for g, *_ in cells]
    columns: dict[str, Sequence[Any]] = {
        "step": [1 + g // 2 for g, *_ in cells],
        "group": [g % 2 for g, *_ in cells],
        "prompt_id": [f"p{g}" for g, *_ in cells],
        "completion_index": [i for _, i, *_ in cells],
        "token_ids": [[g, i] for g, i, *_ in cells],
        "text": [f"text {g} {i}" for g, i, *_ in cells],
        "length": [2] * len(cells),
        "finish_reason": ["eos"] * len(cells),
        "policy_digest": ["d"] * len(cells),
        "reward/exact_answer": [right for _, _, right, _ in cells],
        "reward/answer_format": [form for *_, form in cells],
        "status/exact_answer": ["ok"] * len(cells),
        "status/answer_format": ["ok"] * len(cells),
        "status": ["ok"] * len(cells),
        "reason": pl.Series([None] * len(cells), dtype=pl.String).to_list(),
        "reward": rewards,
        "correct": [right >= 1 for _, _, right, _ in cells],
        "alike": alike,
    }
    return pl.DataFrame({**columns, **changed}, schema_overrides={"reason": pl.String, "reward": pl.Float64})


def asked(num: int, difficulties: Sequence[str | None] | None = None) -> pl.DataFrame:
    """The table of prompts that `explored_rows` stands on."""
    return pl.DataFrame(
        {"prompt_id": [f"p{g}" for g in range(num)], "prompt": [f"question {g}" for g in range(num)], "difficulty": difficulties or [None] * num},
        schema={"prompt_id": pl.String, "prompt": pl.String, "difficulty": pl.String},
    )
