"""Texts that people judge blind are shown nowhere with a model's name before the verdict is counted."""

import polars as pl

from assets import blind_review_verdict, champion_eval, heldout_eval, promotion_report
from assets.page import Table
from assets.paths import Paths
from assets.under_review import under_review, withheld_note
from tests.assets.lifecycle import ignore, lifecycle_config
from tests.assets.test_blind_review_verdict import key_of, prefer


def hidden(paths: Paths) -> frozenset[str]:
    return under_review(paths, pl.read_parquet(paths.prompts), pl.read_parquet(paths.heldout_completions))


def test_prompts_are_under_review_before_pairs_are_drawn_and_until_the_verdict_is_counted(spoilt: Paths) -> None:
    judged = {row["prompt_id"] for row in key_of(spoilt).values()}
    assert hidden(spoilt) == judged != set()
    blind_review_verdict.produce(spoilt, lifecycle_config(), ignore)
    assert hidden(spoilt) == judged, "pending"
    prefer(spoilt, "ann", "policy")
    blind_review_verdict.produce(spoilt, lifecycle_config(), ignore)
    assert hidden(spoilt) == frozenset()
    assert withheld_note(0) == ""
    for path in (spoilt.blind_review_pairs, spoilt.blind_review_key):
        path.unlink()
    spoilt.blind_review_verdict.unlink()
    assert hidden(spoilt) == judged, "the pages before the review say no more than those during it"


def test_a_verdict_on_other_answers_shows_nothing(spoilt: Paths) -> None:
    prefer(spoilt, "ann", "policy")
    blind_review_verdict.produce(spoilt, lifecycle_config(), ignore)
    table = pl.read_parquet(spoilt.heldout_completions)
    spoilt.heldout_completions.unlink()
    table.with_columns(pl.col("text") + " indeed").write_parquet(spoilt.heldout_completions)
    assert hidden(spoilt)


def test_pages_leave_them_out_and_say_how_many(spoilt: Paths) -> None:
    config = lifecycle_config()
    judged = {row["prompt_id"] for row in key_of(spoilt).values()}
    texts = set(pl.read_parquet(spoilt.prompts).filter(pl.col("prompt_id").is_in(list(judged)))["prompt"])

    def asked(paths: Paths) -> tuple[set[str], set[str]]:
        """Prompts on the page of the evaluation, and on that of the proposal."""
        for noun in (blind_review_verdict, champion_eval, promotion_report):
            noun.produce(paths, config, ignore)
        pages = heldout_eval.describe(paths), promotion_report.describe(paths)
        tables = pages[0]["side_by_side"], pages[1]["answers"]
        assert all(("withheld" in page) == bool(hidden(paths)) for page in pages)
        first, second = (set(table.frame["prompt"]) for table in tables if isinstance(table, Table))
        return first, second

    before = asked(spoilt)
    assert not any(shown & texts for shown in before)
    prefer(spoilt, "ann", "policy")
    after = asked(spoilt)
    assert texts <= after[0]
    assert before[0] < after[0]
