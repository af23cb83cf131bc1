"""Answers to reasoning-gym's tasks, scored by the task's own verifier."""

import json
from collections.abc import Sequence
from typing import Any

from grpo_core.rewards.answers import completion_text
from grpo_core.rewards.extraction import END_OF_THOUGHT, boxed, tagged
from grpo_core.rewards.outcomes import Invalid, RewardError
from grpo_core.sandbox.grading import Verdict, graders
from grpo_core.sandbox.guard import answer_refusal


def reasoning_gym(
    completions: Sequence[Any], task: Sequence[str], reasoning_entry: Sequence[str], *, cpu_seconds: float = 3.0, **columns: object
) -> list[float | Invalid]:
    """What the task's own verifier gives the answer, from 0 to 1.

    The answer is what stands between `<answer>` and `</answer>`, else in `\\boxed{…}`, else the whole text (each after `</think>`).
    Several different answers earn 0. An answer that a verifier would have to execute, that makes it fail, or takes more than `cpu_seconds` of processor time is
    invalid. Raises RewardError for rows that reasoning-gym did not make.
    """
    if not 0 < cpu_seconds <= 600:
        raise RewardError(f"reward_options.reasoning_gym.cpu_seconds must be above 0 and at most 600, got {cpu_seconds!r}")
    outcomes: list[float | Invalid | None] = []
    items: list[dict[str, Any]] = []
    for completion, name, record in zip(completions, task, reasoning_entry, strict=True):
        found = answer_of(completion_text(completion))
        refusal = (foreign_digits(found) or answer_refusal(name, found)) if isinstance(found, str) else None
        outcomes.append(found if not isinstance(found, str) else Invalid(refusal) if refusal else None)
        if outcomes[-1] is None:
            items.append({"task": name, "answer": found, **_recorded(name, record)})
    verdicts = iter(graders("reasoning").grade(items, cpu_seconds) if items else ())
    return [outcome if outcome is not None else _outcome(task[row], next(verdicts)) for row, outcome in enumerate(outcomes)]


def answer_of(text: str) -> str | float:
    """The answer that a completion gives; 0.0 where it gives several."""
    said = text.rpartition(END_OF_THOUGHT)[2]
    found = dict.fromkeys(tagged(said) or boxed(said) or [said.strip()])
    return next(iter(found)) if len(found) == 1 else 0.0


def foreign_digits(answer: str) -> str | None:
    """Why an answer is refused that writes numbers in other than Latin digits: Python reads them, so a verifier would too."""
    foreign = next((character for character in answer if character.isdecimal() and not character.isascii()), None)
    return None if foreign is None else f"the answer has a digit that is not 0 to 9 ({foreign})"


def _recorded(task: str, record: str) -> dict[str, Any]:
    try:
        recorded: dict[str, Any] = json.loads(record)
        return {"config": recorded["config"], "entry": recorded["entry"]}
    except (TypeError, ValueError, KeyError) as error:
        raise RewardError(
            f"reward 'reasoning_gym': a prompt of task {task!r} has no entry of reasoning-gym in its column reasoning_entry ({str(record)[:80]!r}); "
            "generate the prompts with prompts.reasoning_gym"
        ) from error


def _outcome(task: str, verdict: Verdict) -> float | Invalid:
    if verdict.is_our_data:
        raise RewardError(f"reward 'reasoning_gym': task {task!r} cannot score its own entry: {verdict.reason}; generate the prompts again")
    return Invalid(verdict.reason) if verdict.score is None else float(verdict.score)
