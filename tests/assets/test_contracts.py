import json
from pathlib import Path

import polars as pl
import pytest

from assets.contracts import ContractError, Expectation, fact, validate

TABLE = pl.DataFrame(
    {
        "step": [1, 1, 2, 2],
        "prompt_id": ["a", "b", "c", "c"],
        "reward": [0.5, 1.0, None, 7.0],
        "count": [1, 2, None, 4],
        "text": ["x", "", "y", None],
    }
)
KEYS = ["step", "prompt_id"]


def between(column: str, low: float, high: float) -> Expectation:
    return Expectation("ExpectColumnValuesToBeBetween", {"column": column, "min_value": low, "max_value": high}, f"{column} lies between {low} and {high}")


def test_a_contract_that_holds_says_so() -> None:
    validation = validate("rewards", TABLE, [between("reward", 0, 7), between("step", 1, 2)], KEYS)
    assert validation.success
    assert validation.summary() == "contract of rewards holds: 3 expectations on 4 rows"  # the third: rewards are finite
    validation.require()


def test_a_violation_names_its_rows_by_their_keys_with_the_table_s_own_values() -> None:
    expectations = [
        between("reward", 0, 1),
        Expectation("ExpectColumnValuesToNotBeNull", {"column": "text"}, "every row has a text"),
        Expectation("ExpectColumnValueLengthsToBeBetween", {"column": "text", "min_value": 1}, "no text is empty"),
        Expectation("ExpectColumnValuesToBeUnique", {"column": "prompt_id"}, "ids differ"),
        Expectation("ExpectCompoundColumnsToBeUnique", {"column_list": ["step", "prompt_id"]}, "keys differ"),
        between("count", 0, 3),
    ]
    outcomes = validate("rewards", TABLE, expectations, KEYS).outcomes[:6]
    assert [outcome.success for outcome in outcomes] == [False] * 6
    last = {"step": 2, "prompt_id": "c"}
    assert [list(outcome.rows) for outcome in outcomes] == [
        [last | {"reward": 7.0}], [last | {"text": None}], [{"step": 1, "prompt_id": "b", "text": ""}], [last, last], [last, last], [last | {"count": 4}],
    ]  # fmt: skip
    assert [outcome.unexpected_count for outcome in outcomes] == [1, 1, 1, 2, 2, 1]


def test_the_summary_is_readable() -> None:
    violated = validate("rewards", TABLE, [between("reward", 0, 1), between("step", 1, 2)], KEYS)
    assert violated.summary() == "contract of rewards violated: reward lies between 0 and 1: 1 row, e.g. step 2, prompt_id 'c', reward 7.0"
    with pytest.raises(ContractError, match="reward lies between 0 and 1: 1 row"):
        violated.require()


def test_the_first_twenty_of_many_rows_are_kept_in_the_table_s_order() -> None:
    table = pl.DataFrame({"step": list(range(50)), "reward": [float(i) for i in range(50)]})
    outcome = validate("rewards", table, [between("reward", 0, 9)], ["step"]).outcomes[0]
    assert outcome.unexpected_count == 40
    assert [row["step"] for row in outcome.rows] == list(range(10, 30))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_a_violation_where_great_expectations_sees_a_missing_value(value: float) -> None:
    table = pl.DataFrame({"step": [1, 2, 3], "reward": [0.0, value, None]})
    minimum = Expectation("ExpectColumnValuesToNotBeNull", {"column": "reward", "mostly": 0.1}, "most rows have a reward")
    validation = validate("rewards", table, [minimum], ["step"])
    assert not validation.success
    assert "reward is a finite number or empty: 1 row, e.g. step 2, reward " in validation.summary()


def test_a_column_that_the_table_lacks_is_a_violation_that_names_the_nearest() -> None:
    validation = validate("rewards", TABLE, [between("reword", 0, 1)], KEYS)
    assert "found no column 'reword' (nearest: reward)" in validation.summary()


def test_a_check_that_crashes_is_a_violation_that_says_why() -> None:
    validation = validate("rewards", TABLE, [between("text", 0, 1)], KEYS)
    assert not validation.success
    assert "must either be None or of the same type" in validation.summary()


def test_an_unknown_expectation_is_our_mistake_and_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'ExpectColumnValuesToBeBetwen'.*did you mean 'ExpectColumnValuesToBeBetween'"):
        validate("rewards", TABLE, [Expectation("ExpectColumnValuesToBeBetwen", {"column": "step"}, "")], KEYS)


def test_what_concerns_the_whole_table_says_what_was_found() -> None:
    expectations = [
        Expectation("ExpectTableRowCountToBeBetween", {"min_value": 9}, "there are nine rows"),
        Expectation("ExpectColumnDistinctValuesToContainSet", {"column": "text", "value_set": ["x", "zz"]}, "x and zz occur"),
    ]
    summary = validate("rewards", TABLE, expectations, KEYS).summary()
    assert "there are nine rows: found 4" in summary
    assert "x and zz occur: found nothing equal to ['zz']" in summary


def test_facts_of_the_caller_count() -> None:
    groups = TABLE.group_by("step").len().filter(pl.col("len") != 3).sort("step")
    validation = validate("rewards", TABLE, [], KEYS, [fact("a group has 3 rows", groups, ["step", "len"])])
    assert validation.summary() == "contract of rewards violated: a group has 3 rows: 2 rows, e.g. step 1, len 2; e.g. step 2, len 2"
    assert validate("rewards", TABLE, [], KEYS, [fact("a group has 2 rows", groups.clear(), ["step", "len"])]).success


def test_the_file_is_a_function_of_the_table(tmp_path: Path) -> None:
    table = TABLE.with_columns(reward=pl.Series([0.5, float("nan"), None, 7.0]))
    for name in ("a", "b"):
        validate("rewards", table, [between("reward", 0, 1)], KEYS).write(tmp_path / name / "rewards.json")
    first, second = (tmp_path / name / "rewards.json" for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    written = json.loads(first.read_text())
    assert (written["noun"], written["success"], written["num_rows"]) == ("rewards", False, 4)
    assert written["expectations"][0] == {
        "kind": "ExpectColumnValuesToBeBetween",
        "arguments": {"column": "reward", "min_value": 0, "max_value": 1},
        "why": "reward lies between 0 and 1",
        "success": False,
        "unexpected_count": 1,
        "rows": [{"step": 2, "prompt_id": "c", "reward": 7.0}],
        "observed": None,
    }
    assert written["expectations"][1]["rows"] == [{"step": 1, "prompt_id": "b", "reward": "nan"}]
