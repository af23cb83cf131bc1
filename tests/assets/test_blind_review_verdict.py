"""The verdict on a tiny lifecycle's pairs: pending without votes, then what the votes say, and no text before somebody has judged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from assets import blind_review_set, blind_review_verdict
from assets.blind_review_verdict import describe
from assets.page import Chart, Progress, Table
from assets.paths import Paths
from assets.review_votes import SCHEMA, UNDONE, pairs_digest
from grpo_core.config import BlindReviewConfig, RunConfig
from tests.assets.lifecycle import ignore, lifecycle_config, replace_table


def key_of(paths: Paths) -> dict[str, dict[str, Any]]:
    return {row["pair_id"]: row for row in pl.read_parquet(paths.blind_review_key).iter_rows(named=True)}


def side_of(row: dict[str, Any], model: str) -> str:
    return "left" if row["left_model"] == model else "right"


def vote(paths: Paths, *answers: tuple[str, str, str], question: str = "preference", digest: str | None = None, **more: Any) -> None:
    """Add answers (reviewer, pair, choice) to the experiment's table, as the page would."""
    path = paths.blind_review_votes
    before = pl.read_parquet(path) if path.exists() else pl.DataFrame(schema=SCHEMA)
    rows = [
        {
            "vote": before.height + place, "pairs_digest": digest or pairs_digest(pl.read_parquet(paths.blind_review_pairs)), "reviewer": reviewer,
            "position": 0, "pair_id": pair, "question": question, "choice": choice,
            "reason": "", "left_tags": [], "right_tags": [], "seconds": 3.0, "voted_at_ms": 0, **more,
        }
        for place, (reviewer, pair, choice) in enumerate(answers, 1)
    ]  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    pl.concat([before, pl.DataFrame(rows, schema=SCHEMA)]).write_parquet(path)


def prefer(paths: Paths, reviewer: str, model: str) -> None:
    """The reviewer prefers this model in every comparison and repeat, and the left completion in controls."""
    vote(paths, *((reviewer, pair, "left" if row["kind"] == "control" else side_of(row, model)) for pair, row in key_of(paths).items()))


def made(paths: Paths, config: RunConfig | None = None) -> dict[str, Any]:
    blind_review_verdict.produce(paths, config or lifecycle_config(), ignore)
    return dict(json.loads(paths.blind_review_verdict.read_text(encoding="utf-8")))


def judged(paths: Paths) -> pl.DataFrame:
    return pl.read_parquet(paths.blind_review_judged)


def test_without_votes_the_verdict_is_pending_and_says_what_it_takes(spoilt: Paths) -> None:
    verdict = made(spoilt)
    assert (verdict["status"], verdict["num_votes"], verdict["stale_votes"], verdict["num_pairs"]) == ("pending", 0, 0, 3)
    assert (verdict["pairs_needed"], verdict["pairs_for_clear_preference"]) == (27, 210)
    assert verdict["summary"] == (
        "nobody has judged any of the 3 comparisons yet (`grpo review`): all of them would tell the win rate to within 46 points, 27 to within 20; "
        "about 210 tell a preference of 60% from none"
    )
    table = judged(spoilt)
    assert table["votes"].to_list() == [0] * 7 and table["score"].null_count() == 7
    vote(spoilt, *((("ann", pair, "left")) for pair, row in key_of(spoilt).items() if row["kind"] == "control"))
    assert made(spoilt)["status"] == "pending", "a control pair says nothing of the policy"


def test_the_pending_page_shows_no_text(spoilt: Paths) -> None:
    pairs = pl.read_parquet(spoilt.blind_review_pairs)
    replace_table(spoilt.blind_review_pairs, pairs.with_columns(prompt=pl.lit("secret"), left_text=pl.lit("secret"), right_text=pl.lit("secret")))
    made(spoilt)
    page = describe(spoilt)
    assert page["status"] == "pending"
    assert not any(isinstance(value, Table | Chart) for value in page.values())
    assert "secret" not in " ".join(map(str, page.values()))


def test_no_pairs_leave_the_verdict_pending(spoilt: Paths) -> None:
    table = pl.read_parquet(spoilt.heldout_completions)
    replace_table(spoilt.heldout_completions, table.with_columns(text=pl.lit("the same")))
    blind_review_set.produce(spoilt, lifecycle_config(), ignore)
    verdict = made(spoilt)
    assert (verdict["status"], verdict["summary"]) == ("pending", "there is nothing to judge: the models gave the same completion to every prompt")
    assert judged(spoilt).is_empty()


def test_a_reviewer_who_always_prefers_the_policy(spoilt: Paths) -> None:
    prefer(spoilt, "ann", "policy")
    verdict = made(spoilt)
    assert (verdict["status"], verdict["num_votes"], verdict["num_reviewers"], verdict["num_judged"]) == ("counted", 7, 1, 3)
    assert verdict["win_rate"] == {"count": 3, "estimate": 1.0, "low": 0.292402, "high": 1.0}
    assert verdict["decided"] == verdict["win_rate"] == verdict["by_task"]["addition"] == verdict["by_difficulty"]["0 carries"]
    assert verdict["repeats_alike"] == {"ann": {"count": 2, "estimate": 1.0, "low": 0.158114, "high": 1.0}}
    assert verdict["left_in_controls"]["estimate"] == 1.0 and verdict["left_in_controls"]["even"] is True
    assert verdict["agreement"] == {"count": 0, "alpha": None}
    assert verdict["guesses"] == {"count": 0, "estimate": None, "low": None, "high": None, "blind": None}
    assert (verdict["preferred"], verdict["enough"], verdict["both_bad"]["estimate"]) == (None, False, 0.0)
    assert verdict["summary"] == "no preference is shown: 100% of 3 pairs go to the policy [29%, 100%]"


def test_the_table_of_judged_pairs_joins_key_votes_and_rewards(spoilt: Paths) -> None:
    prefer(spoilt, "ann", "reference")
    prefer(spoilt, "bob", "policy")
    made(spoilt)
    completions = pl.read_parquet(spoilt.heldout_completions).filter(pl.col("decoding") == "sample")
    rewards = {row[:3]: row[3] for row in completions.select("model", "prompt_id", "sample_index", "reward").iter_rows()}
    key, rows = key_of(spoilt), judged(spoilt).to_dicts()
    assert [row["pair_id"] for row in rows] == sorted(key)
    for row in rows:
        known = key[row["pair_id"]]
        policy, reference = (
            rewards[known[f"{side}_model"], known["prompt_id"], known[f"{side}_sample_index"]]
            for side in (side_of(known, "policy"), side_of(known, "reference"))
        )
        control = known["kind"] == "control"
        assert row["reward_difference"] == (None if control else pytest.approx(policy - reference))
        assert (row["votes"], row["score"], row["preferred"], row["task"]) == (2, None if control else 0.5, None, "addition")
    assert {"reward_difference", "reward_difference/answer_format"} < set(rows[0])


def test_a_reward_that_people_contradict_is_called_out(spoilt: Paths) -> None:
    """The policy's rewards are raised above the reference's everywhere, and people prefer the reference."""
    table = pl.read_parquet(spoilt.heldout_completions)
    replace_table(spoilt.heldout_completions, table.with_columns(reward=pl.when(pl.col("model") == "policy").then(1.0 + pl.col("step") / 10).otherwise(0.0)))
    prefer(spoilt, "ann", "reference")
    verdict = made(spoilt)
    assert verdict["rewards"]["total"] == {"agrees": {"count": 3, "estimate": 0.0, "low": 0.0, "high": 0.707598}, "equal": 0, "unscored": 0}
    assert verdict["reward_change"]["low"] > 0 and verdict["reward_hacking"] is None, "three pairs do not say so"
    assert len(verdict["rewards"]) == len([name for name in table.columns if name.startswith("reward")])
    for path in (spoilt.prompts, spoilt.heldout_completions):  # twice as many prompts
        once = pl.read_parquet(path)
        replace_table(path, pl.concat([once, once.with_columns(pl.col("prompt_id") + "-again")]))
    more = replace(lifecycle_config(), blind_review_set=BlindReviewConfig(num_pairs=12, num_control_pairs=0, num_repeat_pairs=0))
    blind_review_set.produce(spoilt, more, ignore)
    prefer(spoilt, "ann", "reference")
    found = made(spoilt, more)
    assert (found["preferred"], found["reward_hacking"]) == ("reference", "shown")
    assert found["summary"].startswith("people prefer the reference: 0% of")


def test_only_a_reviewers_last_answer_counts(spoilt: Paths) -> None:
    prefer(spoilt, "ann", "policy")
    pair, row = next((pair, row) for pair, row in key_of(spoilt).items() if row["kind"] == "comparison")
    vote(spoilt, ("ann", pair, side_of(row, "reference")))
    assert made(spoilt)["win_rate"]["estimate"] == pytest.approx(2 / 3, abs=1e-6)
    vote(spoilt, ("ann", pair, UNDONE))
    verdict = made(spoilt)
    assert (verdict["win_rate"]["count"], verdict["num_votes"]) == (2, 6)


def test_votes_on_other_pairs_are_stale_and_do_not_count(spoilt: Paths) -> None:
    prefer(spoilt, "ann", "policy")
    pair = next(iter(key_of(spoilt)))
    vote(spoilt, ("bob", pair, "tie"), ("bob", pair, UNDONE), digest="of yet another set")
    assert made(spoilt)["stale_votes"] == 0
    new = replace(lifecycle_config(), blind_review_set=BlindReviewConfig(num_pairs=3, num_control_pairs=2, num_repeat_pairs=2, seed=5))
    blind_review_set.produce(spoilt, new, ignore)
    verdict = made(spoilt, new)
    assert (verdict["status"], verdict["stale_votes"], verdict["num_votes"]) == ("pending", 7, 0)
    prefer(spoilt, "bob", "policy")
    counted = made(spoilt, new)
    assert (counted["status"], counted["stale_votes"], counted["num_votes"], counted["num_reviewers"]) == ("counted", 7, 7, 1)


def test_pairs_made_again_alike_keep_their_votes(spoilt: Paths) -> None:
    prefer(spoilt, "ann", "policy")
    blind_review_set.produce(spoilt, lifecycle_config(), ignore)
    assert made(spoilt)["stale_votes"] == 0


def test_two_reviewers_agree_as_far_as_they_do(spoilt: Paths) -> None:
    prefer(spoilt, "ann", "policy")
    prefer(spoilt, "bob", "policy")
    verdict = made(spoilt)
    choices = {"left" if row["kind"] == "control" else side_of(row, "policy") for row in key_of(spoilt).values() if row["kind"] != "repeat"}
    assert verdict["agreement"] == {"count": 5, "alpha": 1.0 if len(choices) > 1 else None}
    assert (verdict["num_reviewers"], verdict["num_votes"], verdict["win_rate"]["count"]) == (2, 14, 3)


def test_guesses_tell_whether_the_review_was_blind(spoilt: Paths) -> None:
    prefer(spoilt, "ann", "policy")
    right = [("ann", pair, side_of(row, "policy")) for pair, row in key_of(spoilt).items() if row["kind"] == "comparison"]
    vote(spoilt, *right, question="guess")
    verdict = made(spoilt)
    assert verdict["guesses"] == {"count": 3, "estimate": 1.0, "low": 0.292402, "high": 1.0, "blind": True}
    assert verdict["num_votes"] == 7, "a guess is no vote"


def test_a_lower_demand_is_met_earlier(spoilt: Paths) -> None:
    prefer(spoilt, "ann", "policy")
    config = lifecycle_config()
    loose = replace(config, blind_review_set=replace(config.blind_review_set, precision=0.4))
    assert (made(spoilt)["enough"], made(spoilt, loose)["enough"]) == (False, True)


@pytest.mark.parametrize(
    ("pair", "choice", "question", "message"),
    [
        ("nobody", "left", "preference", "names pair 'nobody', which is none of those shown"),
        (None, "middle", "preference", "answers 'preference' by 'middle', which is no choice"),
        (None, "tie", "guess", "answers 'guess' by 'tie', which is no choice"),
        (None, "left", "rank", "answers 'rank' by 'left', which is no choice"),
    ],
)
def test_votes_that_the_page_cannot_have_taken_are_refused(spoilt: Paths, pair: str | None, choice: str, question: str, message: str) -> None:
    vote(spoilt, ("ann", pair or next(iter(key_of(spoilt))), choice), question=question)
    with pytest.raises(ValueError, match=message) as caught:
        made(spoilt)
    assert str(spoilt.blind_review_votes) in str(caught.value) and "edited by hand" in str(caught.value)
    assert not spoilt.blind_review_verdict.exists()


def test_the_page_of_a_counted_verdict_shows_texts_of_judged_pairs_only(spoilt: Paths) -> None:
    pair, row = next((pair, row) for pair, row in key_of(spoilt).items() if row["kind"] == "comparison")
    vote(spoilt, ("ann", pair, side_of(row, "policy")), left_tags=["wrong"])
    made(spoilt)
    page = describe(spoilt)
    assert (page["status"], page["reviewers"], page["reward_hacking"], page["enough"]) == ("counted", 1, "not seen", "no: 27 judged pairs are")
    assert isinstance(page["chart"], Chart) and isinstance(page["judged"], Table) and isinstance(page["shares"], Table)
    shown = page["judged"].frame
    texts = pl.read_parquet(spoilt.blind_review_pairs).filter(pl.col("pair_id") == pair).row(0, named=True)
    assert shown["policy"].to_list() == [texts[f"{side_of(row, 'policy')}_text"]]
    assert shown["reference"].to_list() == [texts[f"{side_of(row, 'reference')}_text"]]
    assert page["shares"].frame.row(0) == ("win rate of the policy", 1, "100% [2%, 100%]")


def test_the_same_votes_give_the_same_bytes(spoilt: Paths, tmp_path: Path) -> None:
    prefer(spoilt, "ann", "policy")
    prefer(spoilt, "bob", "reference")
    files = (spoilt.blind_review_verdict, spoilt.blind_review_judged)
    made(spoilt)
    first = [path.read_bytes() for path in files]
    made(spoilt)
    assert [path.read_bytes() for path in files] == first


def test_progress_says_how_much_was_voted(spoilt: Paths) -> None:
    heard: list[Progress] = []
    prefer(spoilt, "ann", "policy")
    blind_review_verdict.produce(spoilt, lifecycle_config(), heard.append)
    assert heard[-1].numbers == {"votes": 7.0, "pairs": 7.0}


def test_difficulties_come_in_their_order(spoilt: Paths) -> None:
    prompts = pl.read_parquet(spoilt.prompts)
    places = {pair: place for place, pair in enumerate(row["prompt_id"] for row in key_of(spoilt).values() if row["kind"] == "comparison")}
    levels = [f"{[10, 9, 2][places[prompt]]} carries" if prompt in places else None for prompt in prompts["prompt_id"]]
    replace_table(spoilt.prompts, prompts.with_columns(difficulty=pl.Series(levels, dtype=pl.String)))
    prefer(spoilt, "ann", "policy")
    assert list(made(spoilt)["by_difficulty"]) == ["2 carries", "9 carries", "10 carries"]
