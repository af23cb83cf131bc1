"""The completions that a report shows: the best and the worst of training, and held-out answers that training changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from grpo_core.tables import KEYS

MANY = 10
"""Examples of a kind."""
LOSSES = MANY // 2
"""Most of the changed answers that show what got worse, while others got better."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One training completion and what it earned."""

    step: int
    prompt: str
    answer: str | None
    text: str
    reward: float
    parts: Mapping[str, float | None]
    """Reward function → what it gave."""
    advantage: float
    length: int
    finish_reason: str
    status: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class ChangedAnswer:
    """Greedy answers of reference and policy to one held-out prompt."""

    prompt_id: str
    prompt: str
    answer: str | None
    reference: str
    policy: str
    reference_right: bool | None
    """None where the metric gave nothing."""
    policy_right: bool | None

    @property
    def kind(self) -> str:
        """What the change did: `newly right`, `newly wrong`, `still right`, `still wrong`, or `not graded`."""
        if self.reference_right is None or self.policy_right is None:
            return "not graded"
        now = "right" if self.policy_right else "wrong"
        return f"{'still' if self.reference_right == self.policy_right else 'newly'} {now}"


def extreme_completions(rewards: pl.DataFrame, rollouts: pl.LazyFrame, prompts: pl.DataFrame | None, *, best: bool) -> list[Completion]:
    """Ten completions with the best (or worst) rewards, no text twice, in the order of their rewards.

    Of many that earned alike, as right answers do, those are taken that lie evenly over the steps.
    """
    texts = rollouts.select(*KEYS, pl.col("text").hash().alias("text_hash")).collect()
    known = rewards.filter(pl.col("reward").is_finite()).select(*KEYS, "reward").join(texts, on=KEYS, how="inner", maintain_order="left")
    distinct = known.sort("reward", "step", "group", "completion_index", descending=[best, False, False, False]).unique(
        "text_hash", keep="first", maintain_order=True
    )
    if distinct.is_empty():
        return []
    edge = distinct["reward"][min(MANY, len(distinct)) - 1]
    ahead = distinct.filter(pl.col("reward") > edge if best else pl.col("reward") < edge)
    alike = distinct.filter(pl.col("reward") == edge).sort("step", maintain_order=True)
    chosen = pl.concat([ahead, alike[spread(len(alike), MANY - len(ahead))]])
    whole = rollouts.join(chosen.lazy().select(KEYS), on=KEYS, how="semi").select(*KEYS, "text", "length", "finish_reason").collect()
    rows = chosen.select(KEYS).join(rewards, on=KEYS, maintain_order="left").join(whole, on=KEYS, maintain_order="left")
    asked = _prompt_texts(prompts, rows["prompt_id"])
    return [_completion(row, asked) for row in rows.iter_rows(named=True)]


def spread(count: int, wanted: int) -> list[int]:
    """`wanted` places among `count`, the first and the last among them and the others evenly between; all of them when there are no more."""
    if count <= wanted:
        return list(range(count))
    return [round(place * (count - 1) / max(wanted - 1, 1)) for place in range(wanted)]


def changed_answers(heldout: pl.DataFrame, prompts: pl.DataFrame | None) -> list[ChangedAnswer]:
    """Every held-out prompt whose greedy answer is not the reference's word for word: the newly wrong and newly right first, then the others."""
    greedy = heldout.filter(pl.col("decoding") == "greedy")
    sides = {name: greedy.filter(pl.col("model") == name).select("prompt_id", "text", "correct") for name in ("reference", "policy")}
    pairs = sides["reference"].join(sides["policy"], on="prompt_id", suffix="_policy").filter(pl.col("text") != pl.col("text_policy")).sort("prompt_id")
    asked = _prompt_texts(prompts, pairs["prompt_id"])
    answers = []
    for prompt_id, reference, reference_right, policy, policy_right in pairs.iter_rows():
        prompt, answer = asked.get(prompt_id, (prompt_id, None))
        answers.append(ChangedAnswer(prompt_id, prompt, answer, reference, policy, reference_right, policy_right))
    order = ("newly wrong", "newly right", "not graded", "still wrong", "still right")
    return sorted(answers, key=lambda answer: order.index(answer.kind))


def shown_answers(answers: list[ChangedAnswer]) -> list[ChangedAnswer]:
    """Ten of them: what got worse (half of the ten at most, while something else can be shown), then what got better, then the rest."""
    worse = [answer for answer in answers if answer.kind == "newly wrong"]
    others = [answer for answer in answers if answer.kind != "newly wrong"]
    num_worse = min(len(worse), max(LOSSES, MANY - len(others)))
    return worse[:num_worse] + others[: MANY - num_worse]


# ------------------------------------------------------------------------------------------------------------- pieces


def _prompt_texts(prompts: pl.DataFrame | None, ids: pl.Series) -> dict[str, tuple[str, str | None]]:
    """Prompt id → text and answer; of a chat all its messages."""
    if prompts is None:
        return {}
    found, wanted = {}, prompts.filter(pl.col("prompt_id").is_in(ids.implode()))
    for prompt_id, prompt, messages, answer in wanted.select("prompt_id", "prompt", "messages", "answer").iter_rows():
        chat = messages if messages is not None and len(messages) > 1 else []
        found[prompt_id] = ("\n".join(f"{message['role']}: {message['content']}" for message in chat) or prompt, answer)
    return found


def _completion(row: Mapping[str, Any], asked: Mapping[str, tuple[str, str | None]]) -> Completion:
    prompt, answer = asked.get(row["prompt_id"], (row["prompt_id"], None))
    return Completion(
        step=row["step"],
        prompt=prompt,
        answer=answer,
        text=row["text"],
        reward=row["reward"],
        parts={name.removeprefix("reward/"): value for name, value in row.items() if name.startswith("reward/")},
        advantage=row["advantage"],
        length=row["length"],
        finish_reason=row["finish_reason"],
        status=row["status"],
        reason=row["reason"],
    )
