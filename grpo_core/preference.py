"""What people's choices between policy and reference say: who wins, whether the reviewers can be relied on, and whether rewards see it as they do.

Every share counts pairs, not votes: reviewers of one pair see the same two texts, so their votes are no independent measurements.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import krippendorff
import numpy as np
import polars as pl
from scipy.special import bdtrc, bdtrik  # type: ignore[import-untyped]

from grpo_core.statistics import Interval, clopper_pearson, t_interval

SCORES = {"policy": 1.0, "tie": 0.5, "both_bad": 0.5, "reference": 0.0}
"""What a reviewer preferred → what the policy scores."""
NEAR_EVEN = 0.01
"""A preference nearer to one half is not looked for: it takes tens of thousands of votes."""
LEAST_DECIDED = 10
"""Of fewer decided pairs reward hacking is not suspected."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of `count` pairs with its 95 % interval; nothing is known of none."""

    count: int
    estimate: float | None = None
    low: float | None = None
    high: float | None = None

    def even(self) -> bool | None:
        """Whether it may be one half."""
        return None if self.low is None or self.high is None else self.low <= 0.5 <= self.high


def share(scores: Iterable[float]) -> Share:
    """The mean of scores between 0 and 1, one a pair, with Clopper and Pearson's interval over pairs."""
    values = list(scores)
    if not values:
        return Share(0)
    found = clopper_pearson(math.fsum(values), len(values))
    return Share(len(values), found.estimate, found.low, found.high)


# -------------------------------------------------------------------------------------------------------- how many votes


def votes_needed(preference: float, *, power: float = 0.8) -> int:
    """Pairs, each judged by one reviewer, from which on the interval of a policy that wins this share of them leaves one half out with this `power`.

    The exact binomial test, two-sided at 5 %: what `share` concludes of so many pairs.
    """
    if not 0 < preference < 1 or abs(preference - 0.5) < NEAR_EVEN:
        raise ValueError(f"a preference to look for lies between 0 and 1 and at least {NEAR_EVEN:g} from 0.5, got {preference}")
    normal, wins = NormalDist(), max(preference, 1 - preference)
    noise = normal.inv_cdf(0.975) * 0.5 + normal.inv_cdf(power) * math.sqrt(wins * (1 - wins))
    counts = np.arange(1, 2 * math.ceil((noise / (wins - 0.5)) ** 2) + 50)
    most_by_chance = np.ceil(bdtrik(0.975, counts, 0.5))
    found = bdtrc(most_by_chance, counts, wins) >= power
    return int(counts[~found][-1]) + 1


def half_width(num_pairs: int) -> float:
    """How far the 95 % interval of an even win rate reaches on either side: where it is widest."""
    even = clopper_pearson(num_pairs / 2, num_pairs)
    return (even.high - even.low) / 2


def pairs_needed(precision: float) -> int:
    """The fewest judged pairs whose `half_width` is at most `precision`."""
    return bisect_left(range(1, math.ceil((1 / precision) ** 2) + 10), -precision, key=lambda pairs: -half_width(pairs)) + 1


# ------------------------------------------------------------------------------------------------------------- who wins


def judge(key: pl.DataFrame, votes: pl.DataFrame) -> pl.DataFrame:
    """The key with what was voted: `votes` (how many), the policy's mean `score`, the model `preferred` by more than half of them, and the
    shares of `both_bad` and, among decided votes, of `left`. Score and preferred are empty for control pairs.

    `votes` are those on preference, one a reviewer and pair, with `pair_id` and `choice`.
    """
    told = _with_models(key, votes)
    decided, mixed = pl.col("choice").is_in(["left", "right"]), pl.col("kind").first() != "control"
    by_pair = told.group_by("pair_id").agg(
        pl.len().cast(pl.Int64).alias("votes"),
        pl.when(mixed).then(pl.col("chosen").replace_strict(SCORES, return_dtype=pl.Float64).mean()).alias("score"),
        *[pl.when(mixed).then((pl.col("chosen") == model).mean() > 0.5).alias(model) for model in ("policy", "reference")],
        (pl.col("choice") == "both_bad").mean().alias("both_bad"),
        (pl.col("choice") == "left").filter(decided).mean().alias("left"),
    )
    preferred = pl.when("policy").then(pl.lit("policy")).when("reference").then(pl.lit("reference")).alias("preferred")
    return key.join(by_pair, on="pair_id", how="left").with_columns(pl.col("votes").fill_null(0), preferred).drop("policy", "reference")


def _with_models(key: pl.DataFrame, votes: pl.DataFrame) -> pl.DataFrame:
    """The votes with the key, and in `chosen` the model instead of the side."""
    side = pl.col("choice")
    chosen = pl.when(side == "left").then("left_model").when(side == "right").then("right_model").otherwise("choice")
    return votes.join(key, on="pair_id").with_columns(chosen.alias("chosen"))


def win_rate(pairs: pl.DataFrame) -> Share:
    """The policy's mean score over judged pairs, a tie counting one half."""
    return share(pairs["score"].drop_nulls())


def decided_rate(pairs: pl.DataFrame) -> Share:
    """The share of pairs that go to the policy among those where more than half of the reviewers preferred the same model."""
    return share((pairs["preferred"].drop_nulls() == "policy").cast(pl.Float64))


def win_rates_by(pairs: pl.DataFrame, column: str) -> dict[str, Share]:
    """Value of `column` → win rate of the judged pairs that have it."""
    judged = pairs.drop_nulls(["score", column])
    return {value: win_rate(judged.filter(pl.col(column) == value)) for value in judged[column].unique(maintain_order=True)}


# ------------------------------------------------------------------------------------------------------------- reviewers


def repeats_alike(key: pl.DataFrame, votes: pl.DataFrame) -> dict[str, Share]:
    """Reviewer → the share of pairs that were shown twice and answered alike, of those that he answered twice."""
    told = _with_models(key, votes)
    again = told.drop_nulls("repeat_of").select("reviewer", "repeat_of", again="chosen")
    both = again.join(told, left_on=["reviewer", "repeat_of"], right_on=["reviewer", "pair_id"]).sort("reviewer")
    alike = both.select("reviewer", (pl.col("again") == pl.col("chosen")).cast(pl.Float64).alias("alike"))
    return {name: share(alike.filter(pl.col("reviewer") == name)["alike"]) for name in alike["reviewer"].unique(maintain_order=True)}


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far reviewers agree about pairs that several of them judged: 1 fully, 0 as chance would have it."""

    count: int
    alpha: float | None
    """Krippendorff's alpha, nominal; None without such pairs, and where all the answers are the same one."""


def agreement(votes: pl.DataFrame) -> Agreement:
    """Of `votes` with `pair_id` and `choice`, one a reviewer and pair."""
    shared = votes.filter(pl.len().over("pair_id") > 1)
    count = shared["pair_id"].n_unique()
    if shared["choice"].n_unique() < 2:
        return Agreement(count, None)
    counts = shared.pivot(on="choice", index="pair_id", values="choice", aggregate_function="len").drop("pair_id").fill_null(0)
    return Agreement(count, float(krippendorff.alpha(value_counts=counts.to_numpy(), level_of_measurement="nominal")))


def right_guesses(key: pl.DataFrame, guesses: pl.DataFrame) -> Share:
    """How often the side that a reviewer took for the trained model's was the policy's, over comparison pairs; who was unsure does not count."""
    told = _with_models(key, guesses).filter((pl.col("kind") == "comparison") & pl.col("chosen").is_in(["policy", "reference"]))
    return share(told.group_by("pair_id").agg((pl.col("chosen") == "policy").mean().alias("right"))["right"])


def tags_by_model(key: pl.DataFrame, votes: pl.DataFrame) -> dict[str, dict[str, int]]:
    """What reviewers found amiss in comparison pairs: tag → model → in how many votes."""
    told = votes.join(key.filter(pl.col("kind") == "comparison"), on="pair_id")
    sides = [told.select(model=f"{side}_model", tag=f"{side}_tags").explode("tag").drop_nulls() for side in ("left", "right")]
    counted = pl.concat(sides).group_by("tag", "model").len()
    found: dict[str, dict[str, int]] = {tag: {"policy": 0, "reference": 0} for tag in sorted(counted["tag"].unique())}
    for tag, model, count in counted.iter_rows():
        found[tag][model] = count
    return found


# --------------------------------------------------------------------------------------------------------------- rewards


@dataclass(frozen=True, slots=True)
class RewardAgreement:
    """Whether a reward is higher for the completion that people prefer."""

    agrees: Share
    """Over pairs that are decided and that the reward tells apart."""
    equal: int
    """Decided pairs to whose completions it gives the same."""
    unscored: int
    """Decided pairs of which it says nothing."""


def reward_agreement(pairs: pl.DataFrame, difference: str) -> RewardAgreement:
    """Of pairs with the model `preferred` and a column of reward differences, policy less reference."""
    decided = pairs.drop_nulls("preferred")
    scored = decided.drop_nulls(difference)
    apart = scored.filter(pl.col(difference) != 0)
    agrees = apart.select(((pl.col(difference) > 0) == (pl.col("preferred") == "policy")).cast(pl.Float64)).to_series()
    return RewardAgreement(share(agrees), equal=len(scored) - len(apart), unscored=len(decided) - len(scored))


def reward_change(completions: pl.DataFrame) -> Interval | None:
    """Mean reward of the policy's sampled completions less the reference's, over prompts that both answered (Student's t); None without any."""
    means = completions.filter(pl.col("decoding") == "sample").group_by("prompt_id", "model").agg(pl.col("reward").mean())
    policy, reference = (means.filter(pl.col("model") == model).drop_nulls("reward") for model in ("policy", "reference"))
    both = policy.join(reference, on="prompt_id").sort("prompt_id")
    return t_interval((both["reward"] - both["reward_right"]).to_list()) if len(both) else None


def reward_hacking(change: Interval | None, wins: Share, num_decided: int) -> Literal["shown", "suspected"] | None:
    """Whether the reward rose while people do not prefer the policy: `shown` when they surely prefer the reference."""
    if change is None or change.low <= 0 or wins.estimate is None or wins.high is None:
        return None
    if wins.high < 0.5:
        return "shown"
    return "suspected" if wins.estimate <= 0.5 and num_decided >= LEAST_DECIDED else None


def preferred_model(wins: Share) -> Literal["policy", "reference"] | None:
    """The model that people prefer, where the interval leaves no doubt."""
    if wins.even() is not False or wins.low is None:
        return None
    return "policy" if wins.low > 0.5 else "reference"


def is_enough(wins: Share, precision: float) -> bool:
    """Whether the interval reaches at most `precision` on either side: a rule that does not look at who wins, so stopping by it favours nobody."""
    return wins.low is not None and wins.high is not None and (wins.high - wins.low) / 2 <= precision
