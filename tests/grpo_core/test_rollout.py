import polars as pl
import pytest

from grpo_core.rewards.outcomes import RewardError
from grpo_core.rollout import RolloutBatch, draw, score_batch
from tests.tiny_models import language_model, tiny_llama
from tests.tiny_run import MESSAGES, prompts_table, tiny_config

MODEL = language_model(tiny_llama(spread=0.3))
PROMPTS = prompts_table().head(4)


def batch(prompts: pl.DataFrame = PROMPTS, *, step: int = 1, group_size: int = 3, stream: tuple[object, ...] = (0, "test")) -> RolloutBatch:
    return draw(MODEL, prompts, step=step, group_size=group_size, temperature=1.0, max_new_tokens=8, batch_size=64, stream=stream, digest="feed")


def tokens(drawn: RolloutBatch) -> list[list[int]]:
    return [completion.token_ids for completion in drawn.completions]


def test_rows_lie_group_by_group_in_the_order_of_the_prompts() -> None:
    drawn = batch()
    assert len(drawn.completions) == len(drawn.texts) == len(drawn.raw_texts) == 12
    assert drawn.per_completion(["a", "b", "c", "d"]) == list("aaabbbcccddd")
    assert drawn.row_names()[4] == f"step 1, prompt {PROMPTS['prompt_id'][1]}, completion 1"
    for p in range(4):
        alone = batch(PROMPTS[p : p + 1])
        assert tokens(alone) == tokens(drawn)[3 * p : 3 * p + 3]
        assert alone.prompt_token_ids == drawn.prompt_token_ids[p : p + 1]


def test_the_digest_is_the_one_given() -> None:
    given = draw(MODEL, PROMPTS, step=1, group_size=1, temperature=1.0, max_new_tokens=1, batch_size=4, stream=(0,), digest="abc")
    assert given.policy_digest == "abc"


def test_the_order_of_prompts_changes_no_completion() -> None:
    order = [2, 0, 3, 1]
    shuffled = tokens(batch(PROMPTS[order]))
    assert [shuffled[3 * place : 3 * place + 3] for place in range(4)] == [tokens(batch())[3 * p : 3 * p + 3] for p in order]


def test_a_prompt_that_stands_in_the_batch_twice_is_not_answered_twice_alike() -> None:
    twice = tokens(batch(PROMPTS[[0, 1, 0, 0]]))
    groups = [twice[3 * place : 3 * place + 3] for place in range(4)]
    assert groups[0] == tokens(batch())[:3]
    assert len({tuple(ids) for place in (0, 2, 3) for ids in groups[place]}) == 9
    assert groups[0] + groups[2] + groups[3] == tokens(batch(PROMPTS[:1], group_size=9)), "the second group continues counting"


def test_step_and_stream_give_other_completions() -> None:
    first = tokens(batch())
    assert tokens(batch()) == first
    assert tokens(batch(step=2)) != first
    assert tokens(batch(stream=(1, "test"))) != first
    assert tokens(batch(stream=(0, "evaluation"))) != first


def test_texts_drop_special_tokens_and_raw_texts_keep_them() -> None:
    drawn = batch()
    ended = [row for row, completion in enumerate(drawn.completions) if completion.finish_reason == "eos"]
    assert ended
    for row in ended:
        assert drawn.raw_texts[row].endswith("<eos>")
    assert not any(special in text for text in drawn.texts for special in ("<eos>", "<bos>", "<pad>"))


def test_a_reward_function_gets_every_column_but_the_demonstration() -> None:
    assert score_batch(batch(), tiny_config(rewards={"tests.tiny_rewards:says_what_it_was_given": 1.0})).totals == [1.0] * 12


def test_chat_prompts_reach_a_reward_function_as_messages_and_text_prompts_as_text() -> None:
    drawn = batch()
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+10="}]
    mixed = drawn.prompts.with_columns(pl.Series("messages", [chat, None, None, chat], dtype=MESSAGES))
    given = RolloutBatch(1, mixed, drawn.prompt_token_ids, drawn.completions, drawn.texts, drawn.raw_texts, drawn.group_size, drawn.policy_digest)
    weights = {"tests.tiny_rewards:says_what_it_was_given": 1.0, "tests.tiny_rewards:messages_are_one": 1.0}
    assert score_batch(given, tiny_config(rewards=weights)).by_function["tests.tiny_rewards:messages_are_one"] == [1.0] * 3 + [0.0] * 6 + [1.0] * 3


def test_a_bad_reward_names_the_prompt_and_the_completion() -> None:
    with pytest.raises(RewardError, match=f"infinite_in_row_three' returned inf, .* for step 7, prompt {PROMPTS['prompt_id'][1]}, completion 0"):
        score_batch(batch(step=7), tiny_config(rewards={"tests.tiny_rewards:infinite_in_row_three": 1.0}))
