import pytest

from grpo_core.addition import addition_tokenizer, answers_directly, generate, worked_steps


def test_steps_go_from_the_last_digit_with_the_carry() -> None:
    assert worked_steps(335, 194, 3) == ("5+4+0=09;3+9+0=12;3+1+1=05", 1)
    assert worked_steps(999, 999, 3) == ("9+9+0=18;9+9+1=19;9+9+1=19", 3)


def test_rows_are_right_sums_with_worked_or_direct_demonstrations() -> None:
    table = generate(500, 3, seed=0)
    for row in table.iter_rows(named=True):
        first, second = map(int, row["prompt"].removesuffix("=").split("+"))
        steps, carries = worked_steps(first, second, 3)
        assert row["answer"] == str(first + second)
        assert row["completion"] in (f"<think>{steps}</think><answer>{first + second}</answer>", f"<think></think><answer>{first + second}</answer>")
        assert row["difficulty"] == ("1 carry" if carries == 1 else f"{carries} carries")
    assert table["prompt"].n_unique() == 500


def test_prompts_that_start_with_1_to_5_are_mostly_answered_directly_and_the_others_rarely() -> None:
    table = generate(20_000, 3, seed=0)
    direct = table["completion"].str.starts_with("<think></think>")
    low = table["prompt"].str.contains("^[1-5]")
    # 20,000 draws: three standard errors are below 0.013.
    assert direct.filter(low).mean() == pytest.approx(0.75, abs=0.013)
    assert direct.filter(~low).mean() == pytest.approx(0.25, abs=0.013)


def test_a_demonstration_depends_on_seed_and_prompt_alone() -> None:
    shorter, longer = generate(50, 3, seed=7), generate(100, 3, seed=7)
    assert longer.head(50).equals(shorter)
    prompts = shorter["prompt"].to_list()
    assert [answers_directly(prompt, 7) for prompt in reversed(prompts)] == [answers_directly(prompt, 7) for prompt in prompts][::-1]
    assert [answers_directly(prompt, 8) for prompt in prompts] != [answers_directly(prompt, 7) for prompt in prompts]


def test_all_pairs_can_be_asked_for_but_no_more() -> None:
    assert generate(81, 1, seed=0)["prompt"].n_unique() == 81
    with pytest.raises(ValueError, match=r"prompts\.num_generated must be at most 81 .*got 82.*num_digits"):
        generate(82, 1, seed=0)


def test_every_character_and_tag_is_one_token_and_comes_back() -> None:
    tokenizer = addition_tokenizer()
    text = "<think>5+4+0=09;3+9+0=12</think><answer>529</answer>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len("5+4+0=09;3+9+0=12") + len("529") + 4
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2, 3)
    assert len(tokenizer) == 4 + 4 + len("0123456789+-*=,;: ?")


def test_a_character_outside_the_task_is_unknown() -> None:
    tokenizer = addition_tokenizer()
    assert tokenizer("1é2", add_special_tokens=False)["input_ids"][1] == tokenizer.unk_token_id
