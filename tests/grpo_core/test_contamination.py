"""Held-out prompts that are not new: the same text, or thirteen words of it."""

import polars as pl
import pytest

from grpo_core.contamination import COMMON, FEW, NGRAM, Overlap, find_overlap

STORY = "A farmer has seventeen red apples and gives four of them to each of his three grown sons today"


def table(*rows: tuple[str, str, str], **columns: list[str | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["prompt_id", "prompt", "split"], orient="row").with_columns(
        **{name: pl.Series(values, dtype=pl.String) for name, values in columns.items()}
    )


def passages(found: Overlap) -> list[tuple[str, str, str, str]]:
    return found.ngrams.select("heldout_id", "other_id", "split", "ngram").rows()


@pytest.mark.parametrize("split", ["sft", "train", "select"])
def test_the_same_text_is_found_whatever_its_case_and_spaces(split: str) -> None:
    found = find_overlap(table(("h", "What is  2 + 2?", "heldout"), ("t", "what IS 2 + 2?", split), ("other", "What is 2 + 3?", split)))
    assert found.exact.rows() == [("h", "t", split)]
    assert found.ngrams.is_empty(), "too short for a passage"


def test_held_out_prompts_may_be_alike_among_themselves() -> None:
    found = find_overlap(table(("h", STORY, "heldout"), ("i", STORY, "heldout"), ("t", "something else", "train")))
    assert found.exact.is_empty() and found.ngrams.is_empty()


def test_thirteen_words_in_a_row_are_a_passage_whatever_the_punctuation() -> None:
    words = STORY.split()
    shared = " ".join(words[:NGRAM])
    found = find_overlap(table(("h", f"Once: {shared} or so.", "heldout"), ("t", f"“{', '.join(words[:NGRAM]).upper()}” — how many?", "train")))
    assert passages(found) == [("h", "t", "train", shared.lower())]
    assert found.exact.is_empty()
    fewer = find_overlap(table(("h", f"Once: {shared} or so.", "heldout"), ("t", " ".join(words[1:NGRAM]), "train")))
    assert fewer.ngrams.is_empty(), "twelve are none"


def test_a_passage_does_not_go_on_in_the_next_prompt() -> None:
    words = STORY.split()
    apart = table(("h", STORY, "heldout"), ("s", " ".join(words[:7]), "train"), ("t", " ".join(words[7:]), "train"))
    assert find_overlap(apart).ngrams.is_empty()


def test_answers_and_demonstrations_were_read_in_training_as_well() -> None:
    given = (("h", STORY, "heldout"), ("t", "Tell me a story.", "sft"))
    assert passages(find_overlap(table(*given, completion=[None, f"Well. {STORY}."])))[0][:3] == ("h", "t", "sft")
    assert passages(find_overlap(table(*given, answer=["5", STORY])))[0][:3] == ("h", "t", "sft")
    assert find_overlap(table(*given, completion=[STORY, None])).ngrams.is_empty(), "a held-out prompt's own answer is no prompt"


def test_of_several_shared_passages_the_first_is_told_with_one_prompt_that_has_it() -> None:
    rows = [("h", f"zero {STORY}", "heldout"), ("b", STORY, "train"), ("a", f"{STORY} again", "train"), ("i", "nothing in common", "heldout")]
    assert passages(find_overlap(table(*rows))) == [("h", "a", "train", " ".join(STORY.lower().split()[:NGRAM]))]


def test_a_way_of_asking_that_many_prompts_share_is_no_passage() -> None:
    def asked(count: int, others: int = 0) -> Overlap:
        rows = [(f"t{place}", f"{STORY} number {place}", "train") for place in range(count - 1)]
        return find_overlap(table(("h", STORY, "heldout"), *rows, *((f"o{place}", f"other {place}", "train") for place in range(others))))

    assert asked(FEW).ngrams["heldout_id"].to_list() == ["h"]
    assert asked(FEW).common == 0
    assert asked(FEW + 1).ngrams.is_empty(), "in more prompts than a few, and in more than 1 % of them"
    assert asked(FEW + 1).common == len(STORY.split()) - NGRAM + 1
    enough = int((FEW + 1) / COMMON)
    assert asked(FEW + 1, others=enough).ngrams["heldout_id"].to_list() == ["h"], "one in a hundred is not common"


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("h", STORY, "heldout"), *((f"t{place}", f"{place} {STORY if place == 7 else 'nothing'}", "train") for place in range(20))]
    whole = find_overlap(table(*rows))
    monkeypatch.setattr("grpo_core.contamination.CHUNK", 3)
    assert passages(find_overlap(table(*rows))) == passages(whole) != []


def test_without_held_out_prompts_there_is_nothing_to_find() -> None:
    found = find_overlap(table(("t", STORY, "train")))
    assert found.exact.is_empty() and found.ngrams.is_empty()
