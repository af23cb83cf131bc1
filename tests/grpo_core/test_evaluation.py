import itertools
import math
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor

from grpo_core import cost, evaluation, logit_budget
from grpo_core.config import HeldoutEvalConfig
from grpo_core.evaluation import evaluate, evaluation_prompts, kl_to_reference, scoring_functions, summarise
from grpo_core.logit_budget import scored_rows
from grpo_core.logprobs import completion_logprobs
from grpo_core.models import LanguageModel, policy_digest
from grpo_core.rewards.outcomes import RewardError
from grpo_core.tables import EVALUATION_KEYS, no_answers
from grpo_core.token_batch import TokenBatch, token_batch
from tests.tiny_models import language_model, tiny_llama
from tests.tiny_run import prompts_table, tiny_config, with_rollout

K = 4
CONFIG = HeldoutEvalConfig(samples_per_prompt=K, pass_k=K, bootstrap_resamples=2000, metric="tests.tiny_rewards:share_of_small_digits")
PROMPTS = prompts_table().head(5)


def answer(model: LanguageModel, prompts: pl.DataFrame = PROMPTS, *, samples: int = K, config: HeldoutEvalConfig = CONFIG, **changes: Any) -> pl.DataFrame:
    asked = with_rollout(tiny_config(rewards={"tests.tiny_rewards:length_in_tokens": 0.5}), **changes)
    return evaluate(model, prompts, name="policy", step=7, samples=samples, settings=config, config=asked)


def test_every_prompt_is_answered_greedily_once_and_at_temperature_k_times() -> None:
    rows = answer(language_model(tiny_llama()))
    ids = PROMPTS["prompt_id"].to_list()
    assert rows.select("prompt_id", "decoding", "sample_index").rows() == [
        *((prompt, "greedy", 0) for prompt in ids), *((prompt, "sample", k) for prompt in ids for k in range(K))
    ]  # fmt: skip
    assert set(rows["model"]) == {"policy"}
    assert rows["reward"].to_list() == pytest.approx((rows["length"] * 0.5).to_list()), "the reward is that of training"
    for ids, logprobs, length in rows.select("token_ids", "sampling_logprobs", "length").iter_rows():
        assert len(ids) == len(logprobs) == length
    assert answer(language_model(tiny_llama()), samples=0).equals(rows.head(5))


def test_a_row_says_which_weights_answered_and_what_each_function_gave() -> None:
    model = language_model(tiny_llama())
    rows = answer(model)
    assert set(rows["step"]) == {7}
    assert set(rows["policy_digest"]) == {policy_digest(model.model)}
    assert rows["reward/tests.tiny_rewards:length_in_tokens"].to_list() == rows["length"].cast(pl.Float64).to_list()
    shares = [sum(character in "01234" for character in text) / (1 + len(text)) for text in rows["text"]]
    assert rows[f"reward/{CONFIG.metric}"].to_list() == pytest.approx(shares), "the metric is kept though it has no weight"
    assert rows.schema == no_answers(scoring_functions({"tests.tiny_rewards:length_in_tokens": 0.5}, CONFIG.metric)).schema
    assert rows.select(EVALUATION_KEYS).is_unique().all()


def test_correct_is_what_the_metric_gives_one_for() -> None:
    config = HeldoutEvalConfig(samples_per_prompt=K, metric="tests.tiny_rewards:length_in_tokens")
    rows = answer(language_model(tiny_llama()), config=config)
    assert rows["correct"].all()
    assert not answer(language_model(tiny_llama()))["correct"].any(), "a share is below 1"
    silent = HeldoutEvalConfig(samples_per_prompt=K, metric="tests.tiny_rewards:never_an_opinion")
    assert not answer(language_model(tiny_llama()), config=silent)["correct"].any()


def test_answers_do_not_depend_on_the_batch_or_on_other_prompts_or_on_the_training_temperature() -> None:
    model = language_model(tiny_llama())
    rows = answer(model)
    texts = ["prompt_id", "decoding", "sample_index", "text"]
    assert answer(model, batch_size=4).select(texts).equals(rows.select(texts))
    assert answer(model, temperature=0.3).equals(rows)
    assert answer(model, PROMPTS[2:4]).select(texts).equals(rows.filter(pl.col("prompt_id").is_in(PROMPTS["prompt_id"][2:4].implode())).select(texts))


def test_models_answer_with_the_same_random_numbers() -> None:
    asked = tiny_config(rewards={CONFIG.metric: 1.0})
    named = evaluate(language_model(tiny_llama(3)), PROMPTS, name="reference", step=7, samples=K, settings=CONFIG, config=asked)
    assert named.drop("model", "reward").equals(answer(language_model(tiny_llama(3))).drop("model", "reward", "reward/tests.tiny_rewards:length_in_tokens"))
    other = HeldoutEvalConfig(samples_per_prompt=K, metric=CONFIG.metric, seed=1)
    rows, changed = answer(language_model(tiny_llama(3))), answer(language_model(tiny_llama(3)), config=other)
    greedy = pl.col("decoding") == "greedy"
    assert rows.filter(greedy).equals(changed.filter(greedy))
    assert not rows.filter(~greedy).equals(changed.filter(~greedy))


def test_an_unknown_metric_fails_before_anything_is_sampled() -> None:
    model = language_model(tiny_llama())
    model.model.register_forward_pre_hook(lambda *given: pytest.fail("sampled"))
    with pytest.raises(RewardError, match=r"no built-in reward function 'exact_answr'"):
        answer(model, config=HeldoutEvalConfig(metric="exact_answr"))


def test_evaluation_prompts_stay_when_others_come() -> None:
    table = prompts_table(heldout=20)
    chosen = evaluation_prompts(table, "heldout", 8)
    assert len(chosen) == 8
    assert set(chosen["split"]) == {"heldout"}
    assert evaluation_prompts(table.sample(fraction=1.0, shuffle=True, seed=1), "heldout", 8)["prompt_id"].equals(chosen["prompt_id"])
    others = prompts_table(train=60, select=30, heldout=0, sft=40).with_columns(("f" + pl.col("prompt_id")).alias("prompt_id"))
    assert evaluation_prompts(pl.concat([others, table]), "heldout", 8)["prompt_id"].equals(chosen["prompt_id"])
    more = evaluation_prompts(table, "heldout", 12)
    assert more["prompt_id"].head(8).equals(chosen["prompt_id"]), "a larger set holds the smaller one"
    assert len(evaluation_prompts(table, "heldout", 512)) == 20


def test_kl_to_itself_is_zero() -> None:
    model = language_model(tiny_llama())
    drawn = answer(model).filter(pl.col("decoding") == "sample")
    assert kl_to_reference(model, drawn, temperature=1.0, batch_size=3) == pytest.approx((0.0, 0.0), abs=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_kl_to_another_model_is_the_mean_log_ratio_of_the_drawn_tokens(temperature: float) -> None:
    policy, reference = language_model(tiny_llama(0)), language_model(tiny_llama(1))
    config = HeldoutEvalConfig(samples_per_prompt=K, temperature=temperature, metric=CONFIG.metric)
    drawn = answer(policy, config=config).filter(pl.col("decoding") == "sample")
    total = 0.0
    for prompt, ids in drawn.select("prompt_token_ids", "token_ids").iter_rows():
        batch = token_batch([prompt], [ids])
        with torch.no_grad():
            ours, theirs = (completion_logprobs(model.model, batch, temperature).sum() for model in (policy, reference))
        total += float(ours - theirs)
    expected = (total / int(drawn["length"].sum()), total / len(drawn))
    assert kl_to_reference(reference, drawn, temperature=temperature, batch_size=7) == pytest.approx(expected, rel=1e-4)
    assert kl_to_reference(reference, drawn.reverse(), temperature=temperature, batch_size=20) == pytest.approx(expected, rel=1e-4)


def test_no_more_logits_are_scored_at_once_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = language_model(tiny_llama())
    drawn = answer(reference).filter(pl.col("decoding") == "sample")
    whole = kl_to_reference(reference, drawn, temperature=1.0, batch_size=len(drawn))
    sizes: list[int] = []
    original = evaluation.completion_logprobs

    def counted(model: object, batch: TokenBatch, temperature: float) -> Tensor:
        sizes.append(len(batch.mask))
        return original(model, batch, temperature)

    monkeypatch.setattr(evaluation, "completion_logprobs", counted)
    longest, vocabulary = int(drawn["length"].max()), reference.model.config.vocab_size  # type: ignore[arg-type]
    monkeypatch.setattr(logit_budget, "LOGITS_AT_ONCE", 3 * longest * vocabulary + 1)
    assert kl_to_reference(reference, drawn, temperature=1.0, batch_size=len(drawn)) == pytest.approx(whole, abs=1e-6)
    assert max(sizes) == 3 and sum(sizes) == len(drawn)
    monkeypatch.undo()
    assert scored_rows(128, 44, 27) == 128, "the embedded model is scored a batch at a time"
    assert scored_rows(128, 10**6, 10**6) == 1
    assert evaluation.scored_rows is cost.scored_rows


def by_hand() -> pl.DataFrame:
    """Ten prompts; greedy right: 4 of the reference, 9 of the policy; of four samples right: 1 everywhere against 3 (and 0 at p0)."""
    rows = []
    for model, right, samples in (("reference", 4, [1] * 10), ("policy", 9, [0, *[3] * 9])):
        for p in range(10):
            correct, length = (p < right, 3) if model == "reference" else (p >= 10 - right, 20 + p)
            rows.append((model, f"p{p}", "greedy", 0, correct, length, "length" if p == 0 else "eos"))
            rows += [(model, f"p{p}", "sample", k, k < samples[p], 99, "eos") for k in range(K)]
    return pl.DataFrame(rows, schema=["model", "prompt_id", "decoding", "sample_index", "correct", "length", "finish_reason"], orient="row")


def test_the_summary_of_a_table_made_by_hand() -> None:
    summary = summarise(by_hand(), ("reference", "policy"), CONFIG)
    assert (summary["num_prompts"], summary["samples_per_prompt"], summary["metric"], summary["temperature"]) == (10, 4, CONFIG.metric, 1.0)
    assert summary["reference_accuracy"] == 0.4
    assert summary["policy_accuracy"] == 0.9
    # Wilson's interval by hand: (p + z²/2n ± z·√(p(1-p)/n + z²/4n²)) / (1 + z²/n), z = 1.959964.
    assert (summary["reference_accuracy_low"], summary["reference_accuracy_high"]) == pytest.approx((0.168180, 0.687326), abs=1e-5)
    assert (summary["policy_accuracy_low"], summary["policy_accuracy_high"]) == pytest.approx((0.595850, 0.982124), abs=1e-5)
    assert summary["reference_mean_at_k"] == 0.25
    assert summary["policy_mean_at_k"] == pytest.approx(0.675)
    assert summary["pass_k"] == 4
    assert summary["reference_pass_at_k"] == 1.0
    assert summary["policy_pass_at_k"] == 0.9
    assert summary["reference_mean_length"] == 3
    assert summary["policy_mean_length"] == 24.5
    assert summary["policy_truncated_fraction"] == 0.1
    assert summary["difference"] == pytest.approx(0.5)
    assert summary["mean_at_k_difference"] == pytest.approx(0.425)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_with_a_right_one(k: int) -> None:
    rows = by_hand()
    summary = summarise(rows, ("reference", "policy"), replace(CONFIG, pass_k=k))
    assert summary["pass_k"] == k
    for model in ("reference", "policy"):
        shares = []
        for _, right in rows.filter((pl.col("model") == model) & (pl.col("decoding") == "sample")).group_by("prompt_id").agg("correct").iter_rows():
            chosen = [any(some) for some in itertools.combinations(right, k)]
            shares.append(sum(chosen) / len(chosen))
        assert summary[f"{model}_pass_at_k"] == pytest.approx(sum(shares) / 10)
        assert k > 1 or summary[f"{model}_pass_at_k"] == pytest.approx(summary[f"{model}_mean_at_k"])


def test_the_difference_is_paired_by_prompt() -> None:
    summary = summarise(by_hand(), ("reference", "policy"), CONFIG)
    # Differences: -1 once, 0 three times, 1 six times. Their deviation is 0.671, that of the mean 0.212.
    assert summary["difference_low"] == pytest.approx(0.5 - 1.96 * 0.212, abs=0.11)
    assert summary["difference_high"] == pytest.approx(0.5 + 1.96 * 0.212, abs=0.11)
    policy = by_hand().filter(pl.col("model") == "policy")
    same = pl.concat([policy, policy.with_columns(model=pl.lit("reference"))])
    equal = summarise(same, ("reference", "policy"), CONFIG)
    assert (equal["difference"], equal["difference_low"], equal["difference_high"]) == (0, 0, 0), "the same answers to hard and easy prompts differ by nothing"


def test_the_order_of_rows_does_not_change_the_summary() -> None:
    models = ("reference", "policy")
    assert summarise(by_hand().sample(fraction=1.0, shuffle=True, seed=2), models, CONFIG) == summarise(by_hand(), models, CONFIG)


def test_the_second_model_is_compared_with_the_first() -> None:
    turned = summarise(by_hand(), ("policy", "reference"), CONFIG)
    assert turned["difference"] == pytest.approx(-0.5)
    assert turned["difference_low"] <= turned["difference"] <= turned["difference_high"]
    assert math.isclose(turned["mean_at_k_difference"], -0.425)
