"""The conditions on which a policy may become the champion: pure functions of numbers that others measured. docs/gate.md says why each is asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl

from grpo_core.contamination import Overlap
from grpo_core.exploits import Finding
from grpo_core.statistics import Interval, t_interval

ALPHA = 0.05
"""Two-sided level of the first candidate; a false promotion, on one side, comes half as often."""
Status = Literal["passed", "failed", "pending"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that is asked of a policy."""

    name: str
    passed: bool | None
    """None where it cannot be told yet."""
    summary: str
    """One sentence with the numbers; of a condition that does not hold, with what to do."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """What it was told by, in JSON's types."""


def status_of(conditions: Sequence[Condition]) -> Status:
    """`failed` where one fails, else `pending` where one cannot be told yet."""
    states = [condition.passed for condition in conditions]
    return "failed" if False in states else "pending" if None in states else "passed"


def level(number: int) -> float:
    """The two-sided level that the candidate with this number (1 is the first) is held to: 0.05 / number².

    However many candidates without merit are tried, one of them passes with a chance of at most 0.025 · π²/6 = 4.1 %, whatever they have in common.
    """
    return ALPHA / number**2


def mean_scores(completions: pl.DataFrame, model: str, tasks: pl.DataFrame) -> pl.DataFrame:
    """`prompt_id`, `task`, `score`: the share of right answers among a model's sampled ones (mean@k); null where one of them could not be graded.

    `tasks` has `prompt_id` and `task`.
    """
    sampled = completions.filter((pl.col("model") == model) & (pl.col("decoding") == "sample"))
    scores = sampled.group_by("prompt_id").agg(pl.when(pl.col("correct").is_not_null().all()).then(pl.col("correct").mean()).alias("score"))
    return scores.join(tasks, on="prompt_id", how="left").select("prompt_id", "task", "score").sort("prompt_id")


# --------------------------------------------------------------------------------------------------------- the conditions


def disjoint(overlap: Overlap, num_heldout: int) -> Condition:
    """No held-out prompt has the text of one that training saw or chose by. Shared passages are listed, and their prompts left out of every comparison."""
    same, shared = overlap.exact["heldout_id"].n_unique(), len(overlap.ngrams)
    numbers = {"num_heldout": num_heldout, "exact": same, "sharing_passages": shared, "common_passages": overlap.common}
    left_out = f"{shared} that share 13 words in a row with one are left out" if shared else "none shares 13 words in a row with one"
    if num_heldout == 0:
        return Condition("disjoint", False, "there are no held-out prompts: set prompts.heldout_fraction, or prompts.heldout_path", numbers)
    if same:
        shown = ", ".join(overlap.exact["heldout_id"].unique(maintain_order=True).head(3))
        said = (
            f"{same} of {num_heldout} held-out prompts have the text of one that was trained on ({shown}{', …' if same > 3 else ''}): take them out of one side"
        )
        return Condition("disjoint", False, said, numbers)
    return Condition("disjoint", True, f"none of {num_heldout} held-out prompts has the text of one that was trained on; {left_out}", numbers)


def better(policy: pl.DataFrame, baseline: pl.DataFrame, *, against: str, number: int, margin: float) -> Condition:
    """The policy's mean@k lies above the baseline's by more than `margin`: the lower end of the interval of the paired difference over prompts.

    `policy` and `baseline` are `mean_scores`; the candidate with this `number` is held to `level(number)`.
    """
    numbers: dict[str, Any] = {"against": against, "number": number, "level": level(number), "margin": margin}
    fault, difference = _paired(policy, baseline, against, number**2)
    if difference is None:
        return Condition("better", False, fault, numbers)
    found, count, ungraded = difference
    numbers |= {"num_prompts": count, "num_ungraded": ungraded, "difference": found.estimate, "low": found.low, "high": found.high}
    passed = found.low > margin
    interval = f"[{_points(found.low)}, {_points(found.high)}] at level {level(number):.2g}"
    said = f"mean@k is {_points(found.estimate)} points above the {against}'s on {count} prompts, {interval}"
    asked = f" (the {_ordinal(number)} policy that was looked at)" if number > 1 else ""
    remedy = "" if passed else f": the lower end must lie above {_points(margin)}; more held-out prompts or samples tell smaller differences apart"
    return Condition("better", passed, f"{said}{asked}{remedy}", numbers)


def guards(policy: pl.DataFrame, baseline: pl.DataFrame, settings: Mapping[str, float]) -> Condition:
    """On every named task mean@k has not fallen by more than is allowed: the lower end of its 95 % interval."""
    if not settings:
        return Condition("guards", True, "no task is guarded (promotion.guards)")
    numbers: dict[str, Any] = {}
    said, fallen = [], []
    for task, most in settings.items():
        own, other = (scores.filter(pl.col("task") == task) for scores in (policy, baseline))
        fault, difference = _paired(own, other, "baseline", 1)
        if own.is_empty() and other.is_empty():
            fault = "there are no held-out prompts of it: name a task that there is, or take the guard out of promotion.guards"
        if difference is None:
            said.append(f"{task}: {fault}")
            fallen.append(task)
            numbers[task] = {"allowed": most}
            continue
        found, count, _ = difference
        numbers[task] = {"allowed": most, "num_prompts": count, "difference": found.estimate, "low": found.low, "high": found.high}
        said.append(f"{task} {_points(found.estimate)} points [{_points(found.low)}, {_points(found.high)}] on {count} prompts, may fall by {100 * most:g}")
        if not found.low > -most:
            fallen.append(task)
    return Condition("guards", not fallen, "; ".join(said) + (f" ({', '.join(fallen)} could have fallen further)" if fallen else ""), numbers)


def health(alarms: Sequence[Mapping[str, Any]] | None) -> Condition:
    """No alarm of the health monitor is open. A training that nobody watched is not known to be well."""
    if alarms is None:
        return Condition("health", False, "health was not recorded: train again, so that the monitor sees it")
    still = list(dict.fromkeys(str(alarm["condition"]) for alarm in alarms if alarm["open"]))
    accepted = {str(alarm["condition"]): str(alarm["acknowledged"]) for alarm in alarms if alarm.get("acknowledged")}
    numbers = {"alarms": len(alarms), "open": still, "accepted": accepted}
    if still:
        said = f"open alarms: {', '.join(still)}; look at them (`grpo report`), train again, or accept them with a reason (health.acknowledged)"
        return Condition("health", False, said, numbers)
    told = f", accepted: {', '.join(f'{name} ({why})' for name, why in accepted.items())}" if accepted else ""
    return Condition("health", True, f"no alarm is open{told}", numbers)


def reward_audit(found: Sequence[Finding] | None) -> Condition:
    """No known exploit earns more than params.yaml allows without a reason."""
    if found is None:
        return Condition("reward_audit", False, "rewards were not tried for exploits: set scoring.probe_prompts above 0 and train again")
    blocked = list(dict.fromkeys(finding.name for finding in found if finding.verdict == "blocked"))
    failed = list(dict.fromkeys(finding.function for finding in found if finding.troubles.get("error", 0) == finding.rows > 0))
    accepted = {finding.name: finding.reason for finding in found if finding.verdict == "acknowledged"}
    numbers = {"findings": len(found), "blocked": blocked, "failed": failed, "accepted": accepted}
    if blocked or failed:
        said = [f"exploits that pay: {', '.join(blocked)}"] * bool(blocked) + [f"functions that failed on every text: {', '.join(failed)}"] * bool(failed)
        return Condition("reward_audit", False, f"{'; '.join(said)} (`grpo audit-rewards` shows the texts)", numbers)
    told = f", accepted: {', '.join(f'{name} ({why})' for name, why in accepted.items())}" if accepted else ""
    return Condition("reward_audit", True, f"no exploit of {len(found)} findings pays more than is allowed{told}", numbers)


def blind_verdict(verdict: Mapping[str, Any] | None, required: bool) -> Condition:
    """People preferred the policy in blind review: the lower end of its win rate's interval is above one half."""
    if verdict is None or verdict["status"] == "pending":
        if not required:
            return Condition("blind_verdict", True, "no verdict is asked for (promotion.require_verdict)", {"required": False})
        return Condition("blind_verdict", None, "nobody has judged yet: `grpo review`, then `dvc repro` counts the votes", {"required": True})
    wins = verdict["win_rate"]
    numbers = {"required": required, "win_rate": wins["estimate"], "low": wins["low"], "high": wins["high"], "judged": wins["count"]}
    numbers |= {"enough": verdict["enough"], "reward_hacking": verdict["reward_hacking"]}
    if verdict["reward_hacking"] == "shown":
        said = "the reward rose and people prefer the reference: the policy games its reward; look at the pairs it lost"
        return Condition("blind_verdict", False, said, numbers)
    rate = f"{wins['estimate']:.0%} of {wins['count']} pairs go to the policy [{wins['low']:.0%}, {wins['high']:.0%}]"
    if not required:
        return Condition("blind_verdict", True, f"{rate}; no preference is asked for (promotion.require_verdict)", numbers)
    if not verdict["enough"]:  # who stops as soon as it looks good finds what is not there
        return Condition("blind_verdict", None, f"{rate}: too few are judged (blind_review_set.precision); go on, then `dvc repro` counts the votes", numbers)
    if wins["low"] > 0.5:
        return Condition("blind_verdict", True, rate, numbers)
    return Condition("blind_verdict", False, f"{rate}: the lower end must lie above one half", numbers)


# ------------------------------------------------------------------------------------------------------------------ pieces


def _paired(policy: pl.DataFrame, baseline: pl.DataFrame, against: str, comparisons: int) -> tuple[str, tuple[Interval, int, int] | None]:
    """The difference over prompts with its interval, how many prompts it is of and how many could not be graded; or why there is none."""
    alone = [len(one.join(other, on="prompt_id", how="anti")) for one, other in ((policy, baseline), (baseline, policy))]
    if any(alone):
        said = f"{alone[0]} prompts were answered by the policy alone, {alone[1]} by the {against} alone: evaluate both on the same ones (`dvc repro`)"
        return said, None
    both = policy.join(baseline.select("prompt_id", other="score"), on="prompt_id")
    graded = both.drop_nulls(["score", "other"])
    if len(graded) < 2:
        return f"{len(graded)} prompts could be compared: at least 2 are needed to say how sure a difference is", None
    found = t_interval((graded["score"] - graded["other"]).to_list(), comparisons)
    return "", (found, len(graded), len(both) - len(graded))


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
