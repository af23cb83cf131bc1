from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from grpo_core.config import ScoringConfig
from grpo_core.rewards.outcomes import Invalid, RewardError
from grpo_core.rewards.registry import code_hash, load_reward
from grpo_core.rewards.scoring import Scores, score
from grpo_core.rewards.worker import worker

MINE = "tests.tiny_rewards"


STRICT, LENIENT = ScoringConfig(max_error_rate=0.0), ScoringConfig(max_error_rate=0.9, timeout_seconds=0.5)


def call(
    *names: str,
    rows: int = 4,
    weights: tuple[float, ...] = (),
    options: dict[str, dict[str, Any]] | None = None,
    settings: ScoringConfig = STRICT,
    **columns: list[Any],
) -> Scores:
    texts = [f"text {row}" for row in range(rows)]
    given: dict[str, list[Any]] = {
        "answer": ["1"] * rows,
        "prompt_id": [f"id{row}" for row in range(rows)],
        "completion_ids": [[1] * (row + 1) for row in range(rows)],
    }
    where = [f"step 3, prompt ab, completion {row}" for row in range(rows)]
    asked = dict(zip(names, weights or [1.0] * len(names), strict=True))
    return score(asked, {"prompts": texts, "completions": texts, **given, **columns}, where, options=options or {}, settings=settings)


def test_rewards_are_weighted_and_summed() -> None:
    scores = call(f"{MINE}:constant", f"{MINE}:length_in_tokens", weights=(2.0, -0.5))
    assert scores.totals == pytest.approx([1.4 - 0.5, 1.4 - 1.0, 1.4 - 1.5, 1.4 - 2.0])
    assert scores.by_function == {f"{MINE}:constant": [0.7] * 4, f"{MINE}:length_in_tokens": [1.0, 2.0, 3.0, 4.0]}


def test_no_opinion_is_not_a_zero() -> None:
    name = f"{MINE}:half_have_an_opinion"
    assert call(name).totals == [0.0, None, 0.2, None]
    assert call(name, f"{MINE}:constant").totals == pytest.approx([0.7, 0.7, 0.9, 0.7])


def test_a_function_of_the_user_gets_texts_chats_and_every_column() -> None:
    name = f"{MINE}:says_what_it_was_given"
    chat, reply = [{"role": "user", "content": "?"}], [{"role": "assistant", "content": "!"}]
    columns: dict[str, list[Any]] = {
        "answer": ["1", "2"],
        "prompt_id": ["a", "b"],
        "difficulty": ["1", "2"],
        "completion_ids": [[1], [2]],
        "raw_completions": ["!", "!"],
    }
    columns |= {"prompts": ["?", chat], "completions": ["!", reply], "completion_lengths": [1, 1]}
    assert score({name: 1.0}, columns, ["first", "second"], options={}, settings=STRICT).totals == [1.0, 1.0]


@pytest.mark.parametrize(("function", "row", "value"), [("infinite_in_row_three", 3, "inf"), ("nan_first", 0, "nan")])
def test_a_value_that_is_no_finite_number_names_function_row_and_text(function: str, row: int, value: str) -> None:
    with pytest.raises(
        RewardError,
        match=rf"reward '{MINE}:{function}' returned {value}, neither a finite number nor None for step 3, prompt ab, completion {row}: .*'text {row}'",
    ):
        call(f"{MINE}:constant", f"{MINE}:{function}")


def test_a_list_of_the_wrong_length_or_type_names_the_function() -> None:
    with pytest.raises(RewardError, match=f"'{MINE}:one_too_few' must return a list of 4 numbers, one a completion; it returned 3 values"):
        call(f"{MINE}:one_too_few")
    with pytest.raises(RewardError, match=f"'{MINE}:a_lone_number' must return a list of 4 numbers, one a completion; it returned a float"):
        call(f"{MINE}:a_lone_number")
    with pytest.raises(RewardError, match=f"'{MINE}:words' returned 'good', neither .* for step 3, prompt ab, completion 0"):
        call(f"{MINE}:words")


@pytest.mark.parametrize("value", [1, True, np.float32(1), np.int64(1), np.bool_(True), torch.tensor(1.0), torch.tensor(True)])
def test_numbers_of_other_libraries_are_numbers(value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"given_{type(value).__name__}"
    made = f"torch.tensor({value})" if isinstance(value, torch.Tensor) else f"{type(value).__module__}.{type(value).__name__}(1)"
    module = f"{module}_{len(made)}"
    (tmp_path / f"{module}.py").write_text(f"import builtins, numpy, torch\ndef mine(completions, **columns):\n    return [{made}] * len(completions)\n")
    monkeypatch.syspath_prepend(tmp_path)
    totals = call(f"{module}:mine").totals
    assert totals == [1.0] * 4
    assert all(type(total) is float for total in totals)


def test_an_exception_in_a_reward_function_names_function_error_line_and_first_row() -> None:
    import tests.tiny_rewards as mine

    assert mine.__file__ is not None
    lines = Path(mine.__file__).read_text().splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if "the line that raises" in text]
    with pytest.raises(RewardError) as caught:
        call(f"{MINE}:constant", f"{MINE}:fails_on_bad", completions=["good", "good", "bad", "good"])
    said = str(caught.value)
    assert said.startswith(f"reward '{MINE}:fails_on_bad' raised ZeroDivisionError: division by zero (tiny_rewards.py line {line}: ")
    assert "for step 3, prompt ab, completion 2: it failed on 1 of 4 completions" in said


def test_a_parameter_that_no_column_fills_names_the_function() -> None:
    with pytest.raises(RewardError, match=rf"reward '{MINE}:says_what_it_was_given' raised \w+Error: .*failed on 4 of 4 completions"):
        call(f"{MINE}:says_what_it_was_given")
    with pytest.raises(RewardError, match=rf"reward '{MINE}:wants_a_column' needs 'solution': there is no such column \(there are answer, .*\)"):
        call(f"{MINE}:wants_a_column")


def test_what_a_built_in_refuses_keeps_its_own_message() -> None:
    with pytest.raises(RewardError, match=r"^reward 'number_answer': the reference answer 'x' is not a number"):
        call("number_answer", answer=["x"] * 4)


def test_a_weighted_sum_that_overflows_names_the_row() -> None:
    with pytest.raises(RewardError, match=r"the weighted sum of rewards for row 0 is not a finite number"):
        score({"tests.tiny_rewards:huge": 10.0}, {"prompts": ["p"], "completions": ["c"]}, ["row 0"], options={}, settings=STRICT)


# ------------------------------------------------------------------------------------------------------------ whose fault it was

TEXTS = ["good", "bad", "good", "fine", "well"]


def graded(function: str, *others: str, weights: tuple[float, ...] = (), settings: ScoringConfig = LENIENT, texts: list[str] = TEXTS, **more: Any) -> Scores:
    return call(f"{MINE}:{function}", *others, rows=len(texts), weights=weights, settings=settings, completions=texts, **more)


def test_a_function_that_raises_on_one_row_says_nothing_against_the_others() -> None:
    scores = graded("fails_on_bad")
    assert scores.totals == [1.0, None, 1.0, 1.0, 1.0]
    assert scores.row_statuses == ["ok", "error", "ok", "ok", "ok"]
    assert scores.reasons[1] is not None and scores.reasons[1].startswith(
        f"{MINE}:fails_on_bad: raised ZeroDivisionError: division by zero (tiny_rewards.py line "
    )
    assert scores.reasons[0] is None


def test_a_value_that_is_no_number_is_an_error_too() -> None:
    scores = graded("nan_on_bad")
    assert (scores.totals[1], scores.row_statuses[1]) == (None, "error")
    assert scores.reasons[1] == f"{MINE}:nan_on_bad: returned nan, neither a finite number nor None"


def test_an_error_takes_the_row_out_whatever_the_others_say_unless_it_counts_for_nothing() -> None:
    assert graded("fails_on_bad", f"{MINE}:constant", weights=(1.0, 1.0)).totals[1] is None
    scores = graded("fails_on_bad", f"{MINE}:constant", weights=(0.0, 1.0))
    assert (scores.totals[1], scores.row_statuses[1]) == (0.7, "ok")
    assert scores.statuses[f"{MINE}:fails_on_bad"][1] == "error"


def test_errors_past_the_rate_stop_the_run_and_name_function_row_and_traceback() -> None:
    with pytest.raises(RewardError) as caught:
        graded("fails_on_bad", settings=ScoringConfig(max_error_rate=0.19), texts=[*TEXTS, *TEXTS])
    said = str(caught.value)
    assert "fails_on_bad' raised ZeroDivisionError" in said and "for step 3, prompt ab, completion 1: it failed on 2 of 10 completions" in said
    assert "scoring.max_error_rate allows 0.19 of them; that completion was 'bad'" in said
    assert "Traceback (most recent call last)" in said
    assert graded("fails_on_bad", settings=ScoringConfig(max_error_rate=0.2), texts=[*TEXTS, *TEXTS]).row_statuses.count("error") == 2


def test_a_text_that_hangs_the_function_earns_the_floor_and_the_others_their_due() -> None:
    scores = graded("hangs_on_bad")
    assert scores.totals == [0.5, 0.0, 0.5, 0.5, 0.5]
    assert scores.row_statuses == ["ok", "invalid", "ok", "ok", "ok"]
    assert scores.reasons[1] == f"{MINE}:hangs_on_bad: it took longer than 0.5 s, twice"


def test_a_text_that_crashes_the_function_earns_no_more_than_the_worst() -> None:
    scores = graded("dies_on_bad")
    assert scores.totals == [-0.5] * 5, "0 would be the best of all"
    assert scores.row_statuses[1] == "invalid"
    assert scores.reasons[1] == f"{MINE}:dies_on_bad: its process died (killed by SIGSEGV), twice"


def test_the_floor_of_a_function_that_counts_against_is_its_ceiling() -> None:
    assert graded("hangs_on_bad", weights=(-1.0,)).totals == [-0.5, -1.0, -0.5, -0.5, -0.5]


def test_a_worker_killed_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "died"
    scores = graded("dies_once", marker=[str(marker)] * 5)
    assert marker.exists()
    assert scores.totals == [4.0, 3.0, 4.0, 4.0, 4.0]
    assert set(scores.row_statuses) == {"ok"}


def test_a_coroutine_function_is_awaited() -> None:
    assert graded("awaited").totals == [4.0, 3.0, 4.0, 4.0, 4.0]


def test_an_option_reaches_the_function() -> None:
    name = f"{MINE}:with_target"
    assert call(name, rows=1).totals == [3.0]
    assert call(name, rows=1, options={name: {"target": 4}}).totals == [2.0]
    with pytest.raises(RewardError, match=f"reward_options.{name}.target: a column of the prompts has this name"):
        call(name, rows=1, options={name: {"target": 4}}, target=[1])


def test_what_a_function_prints_is_not_taken_for_its_answer(capfd: pytest.CaptureFixture[str]) -> None:
    assert graded("prints").totals == [1.0] * 5
    assert capfd.readouterr().out == ""


def test_functions_run_on_the_main_thread_of_a_process_of_their_own_that_stays() -> None:
    import os

    first, second = graded("where_it_runs").totals, graded("where_it_runs").totals
    assert first == second
    assert first[0] != os.getpid() and first[1] == 1.0


def test_a_row_nobody_has_an_opinion_on_is_no_error() -> None:
    scores = call(f"{MINE}:half_have_an_opinion", f"{MINE}:never_an_opinion")
    assert scores.row_statuses == ["ok", "no_opinion", "ok", "no_opinion"]
    assert scores.statuses[f"{MINE}:never_an_opinion"] == ["no_opinion"] * 4


def test_a_function_that_always_hangs_or_ends_its_process_is_to_blame_itself() -> None:
    with pytest.raises(RewardError, match=r"always_hangs' cannot be used: it took longer than 0.5 s, for an empty completion as well as"):
        graded("always_hangs", texts=["good"])
    with pytest.raises(RewardError, match=r"ends_its_process' cannot be used: its process died \(exit status 3\)"):
        graded("ends_its_process")


@pytest.mark.parametrize("function", ["exits", "raises_what_is_no_exception", "returns_what_cannot_be_shown", "says_invalid_without_words"])
def test_whatever_a_function_raises_or_returns_is_told(function: str) -> None:
    settings = ScoringConfig(max_error_rate=1.0)
    scores = graded(function, settings=settings)
    expected = "invalid" if function == "says_invalid_without_words" else "error"
    assert set(scores.row_statuses) == {expected}
    assert all(scores.reasons)


def test_a_reason_is_text_that_every_table_can_hold_and_the_same_each_time() -> None:
    first, second = (graded("raises_with_strange_words", settings=ScoringConfig(max_error_rate=1.0)).reasons for _ in range(2))
    assert first == second
    assert first[0] is not None and "unknown \ud800x" not in first[0] and "unknown ?x" in first[0] and " at 0x…" in first[0]
    assert len(str(Invalid("x" * 10_000).reason)) == 300
    assert pl.Series([first[0], Invalid("\udfff").reason]).to_list()[1] == "?"


def test_a_floor_can_be_named_for_a_function_whose_rewards_go_below_0() -> None:
    name = f"{MINE}:hangs_on_bad"
    settings = ScoringConfig(max_error_rate=0.9, timeout_seconds=0.5, floors={name: -2.0})
    assert graded("hangs_on_bad", settings=settings).totals == [0.5, -2.0, 0.5, 0.5, 0.5]


def test_one_error_in_a_small_batch_is_no_rate_yet_unless_none_is_allowed() -> None:
    assert graded("fails_on_bad", settings=ScoringConfig(max_error_rate=0.01)).row_statuses.count("error") == 1
    with pytest.raises(RewardError, match="failed on 2 of 5"):
        graded("fails_on_bad", settings=ScoringConfig(max_error_rate=0.01), texts=["bad", "bad", "a", "b", "c"])


def test_coroutine_functions_keep_their_loop_from_call_to_call() -> None:
    assert graded("uses_a_lock_of_its_module").totals == graded("uses_a_lock_of_its_module").totals == [1.0] * 5


def test_a_function_that_changes_what_it_is_given_changes_it_for_no_other() -> None:
    chat: list[Any] = [[{"role": "assistant", "content": "<think>x</think>y"}]]
    names = [f"{MINE}:strips_thoughts_in_place", f"{MINE}:length_of_chat"]
    for order in (names, names[::-1]):
        assert call(*order, rows=1, completions=chat).by_function[f"{MINE}:length_of_chat"] == [17.0]


@pytest.mark.parametrize("function", ["an_instance", "a_partial"])
def test_a_callable_object_is_a_function(function: str) -> None:
    assert graded(function).totals == [2.0] * 5
    assert code_hash([f"{MINE}:{function}"]) == code_hash([f"{MINE}:{function}"])


def test_a_class_is_refused() -> None:
    with pytest.raises(RewardError, match=r"'Grader' is a class: make an instance in its module and name that, grader = Grader\(\.\.\.\)"):
        load_reward(f"{MINE}:Grader")


def test_a_column_named_as_a_built_in_functions_option_is_not_taken_for_it() -> None:
    assert call("repetition_penalty", rows=1, completions=["a b c"], unit=["apples"]).totals == [0.0]


def test_what_a_function_starts_does_not_read_the_requests() -> None:
    assert graded("reads_its_standard_input").totals == [0.0] * 5


def test_sets_come_in_one_order_in_every_worker() -> None:
    first = graded("first_of_a_set").totals
    worker().kill()
    assert graded("first_of_a_set").totals == first
