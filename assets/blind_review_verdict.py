"""What people say in blind review: how often the policy's completion is preferred to the reference's, whether the reviewers can be relied on, and
whether the rewards see it as they do.

Until somebody has voted the verdict is `pending`. It alone opens the key.
"""

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from assets.page import Chart, Metadata, Progress, ProgressCallback, Table, Value
from assets.paths import Paths
from assets.review_votes import CHOICES, pairs_digest, read_votes, standing
from grpo_core.checkpoint import write_file, write_text
from grpo_core.config import RunConfig
from grpo_core.preference import (
    Share,
    agreement,
    decided_rate,
    half_width,
    is_enough,
    judge,
    pairs_needed,
    preferred_model,
    repeats_alike,
    reward_agreement,
    reward_change,
    reward_hacking,
    right_guesses,
    share,
    tags_by_model,
    votes_needed,
    win_rate,
    win_rates_by,
)
from grpo_core.statistics import Interval

DIGITS = 6
"""Figures are written with so many digits: the last ones of a sum may differ between processors."""
CLEAR_PREFERENCE = 0.6
"""A pending verdict says how many pairs show this one."""
DIFFERENCE = "reward_difference"
JUDGED = ("pair_id", "kind", "repeat_of", "prompt_id", "task", "difficulty", "votes", "score", "preferred", "both_bad", "left")
"""Columns of the table of judged pairs; one of reward differences (policy less reference) for the total and for each function follow."""


def produce(paths: Paths, config: RunConfig, on_progress: ProgressCallback) -> None:
    """Write the verdict on the votes that there are, and every pair with what was voted of it."""
    pairs, key, prompts = (pl.read_parquet(path) for path in (paths.blind_review_pairs, paths.blind_review_key, paths.prompts))
    completions, every, digest = pl.read_parquet(paths.heldout_completions), read_votes(paths.blind_review_votes), pairs_digest(pairs)
    votes = standing(every, digest)
    check_votes(votes, pairs, paths.blind_review_votes)
    told = key.join(prompts.select("prompt_id", "task", "difficulty"), on="prompt_id", how="left").join(differences(key, completions), on="pair_id")
    preferences, guesses = (votes.filter(pl.col("question") == question) for question in ("preference", "guess"))
    judged = judge(told, preferences).select(*JUDGED, *[name for name in told.columns if name.startswith(DIFFERENCE)]).sort("pair_id")
    stale = sum(len(standing(every, other)) for other in every["pairs_digest"].unique() if other != digest)
    about = {"pairs_digest": digest, "num_pairs": len(comparisons(judged)), "stale_votes": stale}
    if comparisons(judged)["votes"].sum() == 0:
        verdict = pending(about, config.blind_review_set.precision)
    else:
        verdict = counted(about, key, judged, preferences, guesses, reward_change(completions), config.blind_review_set.precision)
    write_file(paths.blind_review_judged, judged.write_parquet)
    write_text(paths.blind_review_verdict, json.dumps(_rounded(verdict), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    on_progress(Progress(1, 1, {"votes": float(len(preferences)), "pairs": float((judged["votes"] > 0).sum())}))


def check_votes(votes: pl.DataFrame, pairs: pl.DataFrame, file: Path) -> None:
    """Raise ValueError for votes that the review page cannot have taken."""
    strange = votes.join(pairs, on="pair_id", how="anti")
    if len(strange):
        raise ValueError(f"{file}: vote {strange['vote'][0]} names pair {strange['pair_id'][0]!r}, which is none of those shown: {BY_HAND}")
    for vote, question, choice in votes.select("vote", "question", "choice").iter_rows():
        if choice not in CHOICES.get(question, ()):
            raise ValueError(f"{file}: vote {vote} answers {question!r} by {choice!r}, which is no choice: {BY_HAND}")


BY_HAND = "the table was edited by hand; bring it back from Git, or take the votes in anew by starting `grpo review`"


def differences(key: pl.DataFrame, completions: pl.DataFrame) -> pl.DataFrame:
    """`pair_id` → reward of the policy's completion less that of the reference's, in total and by function; empty for control pairs."""
    rewards = {name: name.replace("reward", DIFFERENCE, 1) for name in completions.columns if name == "reward" or name.startswith("reward/")}
    drawn = completions.filter(pl.col("decoding") == "sample").select("model", "prompt_id", "sample_index", *rewards)
    found = key
    for side in ("left", "right"):
        of_side = drawn.rename({name: f"{side}_{name}" for name in ("model", "sample_index", *rewards)})
        found = found.join(of_side, on=["prompt_id", f"{side}_model", f"{side}_sample_index"], how="left")
    sign = pl.when(pl.col("kind") != "control").then(pl.when(pl.col("left_model") == "policy").then(1.0).otherwise(-1.0))
    return found.select("pair_id", *[((pl.col(f"left_{name}") - pl.col(f"right_{name}")) * sign).alias(difference) for name, difference in rewards.items()])


def comparisons(judged: pl.DataFrame) -> pl.DataFrame:
    return judged.filter(pl.col("kind") == "comparison")


def pending(about: dict[str, Any], precision: float) -> dict[str, Any]:
    """The verdict before anybody has voted: what it would take."""
    needed, clear = pairs_needed(precision), votes_needed(CLEAR_PREFERENCE)
    if about["num_pairs"] == 0:
        summary = "there is nothing to judge: the models gave the same completion to every prompt"
    else:
        summary = (
            f"nobody has judged any of the {about['num_pairs']} comparisons yet (`grpo review`): all of them would tell the win rate to within "
            f"{100 * half_width(about['num_pairs']):.0f} points, {needed} to within {100 * precision:g}; "
            f"about {clear} tell a preference of {CLEAR_PREFERENCE:.0%} from none"
        )
    return {"status": "pending", "summary": summary, **about, "num_votes": 0, "pairs_needed": needed, "pairs_for_clear_preference": clear}


def counted(
    about: dict[str, Any],
    key: pl.DataFrame,
    judged: pl.DataFrame,
    preferences: pl.DataFrame,
    guesses: pl.DataFrame,
    change: Interval | None,
    precision: float,
) -> dict[str, Any]:
    """The verdict on at least one judged comparison; `change` is how much the policy's reward is above the reference's."""
    pairs, controls, repeats = (judged.filter(pl.col("kind") == kind) for kind in ("comparison", "control", "repeat"))
    wins, decided = win_rate(pairs), decided_rate(pairs)
    left, guessed = share(controls["left"].drop_nulls()), right_guesses(key, guesses)
    return {
        "status": "counted",
        "summary": summary_of(wins),
        **about,
        "num_judged": wins.count,
        "num_votes": len(preferences),
        "num_reviewers": preferences["reviewer"].n_unique(),
        "win_rate": asdict(wins),
        "preferred": preferred_model(wins),
        "enough": is_enough(wins, precision),
        "pairs_needed": pairs_needed(precision),
        "decided": asdict(decided),
        "both_bad": asdict(share(pairs["both_bad"].drop_nulls())),
        "by_task": _by(pairs, "task"),
        "by_difficulty": _by(pairs, "difficulty"),
        "left_in_controls": {**asdict(left), "even": left.even()},
        "left_in_all": asdict(share(judged["left"].drop_nulls())),
        "repeats_alike": {name: asdict(alike) for name, alike in repeats_alike(key, preferences).items()},
        "agreement": asdict(agreement(preferences.join(repeats, on="pair_id", how="anti"))),
        "guesses": {**asdict(guessed), "blind": guessed.even()},
        "tags": tags_by_model(key, preferences),
        "rewards": {_reward_name(name): asdict(reward_agreement(pairs, name)) for name in pairs.columns if name.startswith(DIFFERENCE)},
        "reward_change": None if change is None else asdict(change),
        "reward_hacking": reward_hacking(change, wins, decided.count),
    }


def summary_of(wins: Share) -> str:
    """The win rate and what it means."""
    meaning = {"policy": "people prefer the policy", "reference": "people prefer the reference", None: "no preference is shown"}[preferred_model(wins)]
    number = f"{wins.estimate:.0%} of {wins.count} pairs go to the policy [{wins.low:.0%}, {wins.high:.0%}]"
    return f"{meaning}: {number}"


def _by(pairs: pl.DataFrame, column: str) -> dict[str, dict[str, Any]]:
    """Win rates by the values of a column, numbers in their order."""
    return {value: asdict(found) for value, found in sorted(win_rates_by(pairs, column).items(), key=lambda item: _in_order(item[0]))}


def _in_order(value: str) -> list[tuple[float, str]]:
    """`9 carries` comes before `10 carries`."""
    return [(float(part), "") if part.isdecimal() else (-1.0, part) for part in re.split(r"(\d+)", value)]


def _reward_name(difference: str) -> str:
    return "total" if difference == DIFFERENCE else difference.removeprefix(f"{DIFFERENCE}/")


def _rounded(value: Any) -> Any:
    """The verdict for JSON: fewer digits, and None for an end of an interval that is open."""
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


# -------------------------------------------------------------------------------------------------------------- its page


def describe(paths: Paths) -> Metadata:
    """The verdict in numbers and by difficulty, and the judged pairs. While it is pending no text is shown: who read it here would not judge blind."""
    verdict = json.loads(paths.blind_review_verdict.read_text(encoding="utf-8"))
    page: dict[str, Value] = {"status": verdict["status"], "summary": verdict["summary"], "votes": verdict["num_votes"], "stale_votes": verdict["stale_votes"]}
    if verdict["status"] == "pending":
        return {**page, "comparisons": verdict["num_pairs"], "file": paths.blind_review_verdict}
    from assets.preference_chart import win_rate_chart

    rows = _rows(verdict)
    texts = judged_texts(pl.read_parquet(paths.blind_review_judged), *map(pl.read_parquet, (paths.blind_review_pairs, paths.blind_review_key)))
    return {
        **page,
        "reviewers": verdict["num_reviewers"],
        "enough": "yes" if verdict["enough"] else f"no: {verdict['pairs_needed']} judged pairs are",
        "reward_hacking": verdict["reward_hacking"] or "not seen",
        "chart": Chart(win_rate_chart(verdict)),
        "shares": Table(rows, max_rows=len(rows)),
        "judged": Table(texts),
        "file": paths.blind_review_judged,
    }


def judged_texts(judged: pl.DataFrame, pairs: pl.DataFrame, key: pl.DataFrame) -> pl.DataFrame:
    """Comparisons that were voted on, with the models' texts: those that the policy lost come first."""
    left = pl.col("left_model") == "policy"
    texts = pairs.join(key.select("pair_id", "left_model"), on="pair_id").select(
        "pair_id",
        "prompt",
        pl.when(left).then("left_text").otherwise("right_text").alias("policy"),
        pl.when(left).then("right_text").otherwise("left_text").alias("reference"),
    )
    voted = comparisons(judged).filter(pl.col("votes") > 0).join(texts, on="pair_id")
    return voted.sort("score", "pair_id").select("prompt", "reference", "policy", "score", "votes", DIFFERENCE)


def _rows(verdict: dict[str, Any]) -> pl.DataFrame:
    """Every share of the verdict as a line of text."""
    rewards = {f"reward {name} agrees": found["agrees"] for name, found in verdict["rewards"].items()}
    repeats = {f"answered alike again, {name}": found for name, found in verdict["repeats_alike"].items()}
    plain = {
        "win rate of the policy": "win_rate",
        "of decided pairs": "decided",
        "both bad": "both_bad",
        "left, in controls": "left_in_controls",
        "left, in all pairs": "left_in_all",
        "trained model guessed": "guesses",
    }
    shares = {**{words: verdict[name] for words, name in plain.items()}, **repeats, **rewards}
    rows = [{"": words, "pairs": found["count"], "share (95 %)": _spelled(found)} for words, found in shares.items()]
    alike = verdict["agreement"]
    alpha = "–" if alike["alpha"] is None else f"{alike['alpha']:.2f}"
    return pl.DataFrame([*rows, {"": "agreement of reviewers (Krippendorff's alpha)", "pairs": alike["count"], "share (95 %)": alpha}])


def _spelled(found: dict[str, Any]) -> str:
    return "–" if found["estimate"] is None else f"{found['estimate']:.0%} [{found['low']:.0%}, {found['high']:.0%}]"
