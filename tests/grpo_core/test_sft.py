"""Fine-tuning against a loop that scores one demonstration at a time, token by token."""

import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
import torch

from grpo_core.config import SftConfig
from grpo_core.errors import DivergedError, Interrupted
from grpo_core.models import LanguageModel, policy_digest
from grpo_core.sft import SftStep, demonstrations, fine_tune, learning_rate_at
from grpo_core.tokenization import encode_completion, encode_prompt
from grpo_core.work_folder import WorkFolder, checkpoints, step_of
from tests.tiny_models import language_model, tiny_gpt2, tiny_llama
from tests.tiny_run import prompts_table

Pairs = list[tuple[list[int], list[int]]]
PAIRS: Pairs = [([1, 8, 9], [4, 5, 6, 10, 2]), ([1, 10, 11, 12, 13], [7, 2]), ([1, 9], [4, 4, 4, 2])]


def settings(**changes: Any) -> SftConfig:
    sizes = {"steps": 1, "batch_size": 3, "micro_batch_size": 3, "warmup_steps": 0}
    return SftConfig(**{**sizes, "learning_rate": 1e-2, "weight_decay": 0.0, "max_grad_norm": 1e9, **changes})


def tune(model: LanguageModel, pairs: Pairs = PAIRS, **changes: Any) -> list[SftStep]:
    with TemporaryDirectory() as folder, WorkFolder.open(Path(folder)) as work:
        return fine_tune(model, pairs, settings(**changes), lambda done: None, lambda: False, work)


def by_hand(model: LanguageModel, pairs: Pairs) -> tuple[float, float]:
    """Mean loss a completion token and the norm of its gradient: unpadded rows, one prediction at a time."""
    model.model.zero_grad()
    losses: list[torch.Tensor] = []
    for prompt, completion in pairs:
        for place, token in enumerate(completion):
            logits = model.model(input_ids=torch.tensor([[*prompt, *completion[:place]]])).logits[0, -1]
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(token)))
    loss = torch.stack(losses).mean()
    loss.backward()
    norm = math.sqrt(sum(float(weight.grad.square().sum()) for weight in model.model.parameters() if weight.grad is not None))
    model.model.zero_grad()
    return float(loss.detach()), norm


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_loss_is_that_of_completion_tokens_alone(architecture: str) -> None:
    model = language_model(tiny_llama() if architecture == "llama" else tiny_gpt2(dropout=0.0))
    expected = by_hand(model, PAIRS)
    (step,) = tune(model)
    assert (step.loss, step.grad_norm) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("size", [1, 2])
def test_splitting_a_batch_leaves_the_weights_unchanged(size: int) -> None:
    whole, split = (language_model(tiny_llama().double()) for _ in range(2))
    first, second = tune(whole, steps=3), tune(split, steps=3, micro_batch_size=size)
    for a, b in zip(first, second, strict=True):
        assert (a.loss, a.grad_norm) == pytest.approx((b.loss, b.grad_norm), abs=1e-9)
    for a, b in zip(whole.model.parameters(), split.model.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-9)


def test_it_learns_three_demonstrations_by_heart() -> None:
    history = tune(language_model(tiny_llama(spread=0.1)), steps=60, learning_rate=3e-2)
    assert history[0].loss > 2
    assert history[-1].loss < 0.3
    assert [step.step for step in history] == list(range(1, 61))


def test_every_demonstration_comes_once_an_epoch() -> None:
    model, seen = language_model(tiny_llama()), []
    many: Pairs = [([1, 8 + i], [8 + i, 2]) for i in range(6)]
    model.model.register_forward_pre_hook(lambda module, args, given: seen.extend(given["input_ids"][:, 1].tolist()), with_kwargs=True)
    tune(model, many, steps=6, batch_size=2, micro_batch_size=1)
    assert sorted(seen[:6]) == sorted(seen[6:]) == list(range(8, 14))
    assert seen[:6] != seen[6:]


def test_a_gradient_is_clipped_to_the_norm_asked_for() -> None:
    model, plain = language_model(tiny_llama()), language_model(tiny_llama())
    before = [weight.detach().clone() for weight in model.model.parameters()]
    clipped, free = tune(model, max_grad_norm=1e-9), tune(plain)
    assert clipped[0].grad_norm == free[0].grad_norm > 1e-3, "the norm is that before clipping"
    moved = [float((a.detach() - b).abs().max()) for a, b in zip(model.model.parameters(), before, strict=True)]
    assert max(moved) < 1e-2, "Adam's epsilon swallows a gradient this small"


def test_the_learning_rate_warms_up_and_falls_along_a_cosine() -> None:
    config = settings(steps=101, warmup_steps=4, learning_rate=1.0, final_learning_rate_fraction=0.1)
    assert [learning_rate_at(step, config) for step in (51, 101)] == pytest.approx([0.55, 0.1])
    rates = [learning_rate_at(step, config) for step in range(1, 102)]
    assert rates[:3] == pytest.approx([0.25, 0.5, 0.75], rel=1e-2)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert learning_rate_at(1, settings(steps=1, learning_rate=1.0)) == 1.0
    (step,) = tune(language_model(tiny_llama()), warmup_steps=10, learning_rate=1.0)
    assert step.learning_rate == pytest.approx(0.1)


def test_the_seed_gives_the_order_and_nothing_else_does() -> None:
    def digest(seed: int) -> str:
        model = language_model(tiny_llama())
        torch.manual_seed(len(digests))
        tune(model, [([1, 8 + i], [8 + i, 2]) for i in range(6)], steps=3, batch_size=1, seed=seed)
        return policy_digest(model.model)

    digests: list[str] = []
    for seed in (0, 0, 1):
        digests.append(digest(seed))
    assert digests[0] == digests[1] != digests[2]


STEPS: dict[str, Any] = {"steps": 9, "batch_size": 2, "micro_batch_size": 1, "checkpoint_every": 3, "warmup_steps": 2}


def go_on(folder: Path, *, stop_at: int | None = None, **changes: Any) -> tuple[list[int], list[SftStep], str]:
    """Tune in `folder` from where it is, to the end or until asked to stop: steps heard of, figures, and the digest of the weights."""
    model, heard = language_model(tiny_llama()), list[int]()
    history: list[SftStep] = []
    with WorkFolder.open(folder) as work:
        try:
            history = fine_tune(
                model, PAIRS, settings(**{**STEPS, **changes}), lambda done: heard.append(done.step), lambda: bool(heard) and heard[-1] + 1 == stop_at, work
            )
        except Interrupted as interrupted:
            assert interrupted.step == stop_at == heard[-1]
    return heard, history, policy_digest(model.model)


def test_a_run_that_was_stopped_goes_on_to_the_same_weights_and_figures(tmp_path: Path) -> None:
    _, history, weights = go_on(tmp_path / "whole")
    assert [done.step for done in history] == list(range(1, 10))
    for stop in (2, 3, 7):
        assert go_on(tmp_path / f"stopped at {stop}", stop_at=stop)[0] == list(range(1, stop + 1))
        heard, again, final = go_on(tmp_path / f"stopped at {stop}")
        assert heard == list(range(stop + 1, 10))
        assert (again, final) == (history, weights)
    assert go_on(tmp_path / "whole") == ([], history, weights), "a run that is done is not done again"


def test_a_run_that_was_killed_goes_on_from_its_newest_whole_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, history, weights = go_on(tmp_path / "whole")

    class Killed(BaseException):
        pass

    def die(done: SftStep) -> None:
        if done.step == 8:
            raise Killed

    with pytest.raises(Killed), WorkFolder.open(tmp_path / "killed") as work:
        fine_tune(language_model(tiny_llama()), PAIRS, settings(**STEPS, keep_checkpoints=2), die, lambda: False, work)
    assert [step_of(path) for path in checkpoints(tmp_path / "killed")] == [6, 3]
    optimizer = tmp_path / "killed" / "checkpoints" / "step-000006" / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-1])
    heard, again, final = go_on(tmp_path / "killed")
    assert heard == list(range(4, 10))
    assert "optimizer.pt was altered" in caplog.text
    assert (again, final) == (history, weights)


def test_how_often_it_is_saved_changes_nothing_and_says_what_is_kept(tmp_path: Path) -> None:
    expected = go_on(tmp_path / "default")
    assert go_on(tmp_path / "often", checkpoint_every=1, keep_checkpoints=4) == expected
    assert [step_of(path) for path in checkpoints(tmp_path / "often")] == [9, 8, 7, 6]
    assert [step_of(path) for path in checkpoints(tmp_path / "default")] == [9]


def test_asking_to_stop_in_the_last_step_lets_it_finish(tmp_path: Path) -> None:
    heard, history, _ = go_on(tmp_path, stop_at=9)
    assert len(heard) == len(history) == 9


def test_a_loss_that_is_no_number_stops_before_the_weights() -> None:
    model = language_model(tiny_llama())
    with torch.no_grad():
        model.model.lm_head.weight[9] = torch.inf
    before = policy_digest(model.model)
    with pytest.raises(DivergedError, match=r"supervised fine-tuning diverged at step 1 .*lower sft.learning_rate"):
        tune(model)
    assert policy_digest(model.model) == before


def test_demonstrations_are_the_sft_rows_that_have_a_completion() -> None:
    table = prompts_table(sft=3)
    table = table.with_columns(completion=pl.when(pl.col("prompt") == table.filter(pl.col("split") == "sft")["prompt"][1]).then(None).otherwise("completion"))
    model = language_model(tiny_llama())
    rows = table.filter(pl.col("split") == "sft")[[0, 2]]
    expected = [(encode_prompt(model.tokenizer, p, None), encode_completion(model.tokenizer, c)) for p, c in rows.select("prompt", "completion").iter_rows()]
    pairs = demonstrations(model, table)
    assert pairs == expected
    assert ends(pairs) == {2}


def ends(pairs: Sequence[tuple[list[int], list[int]]]) -> set[int]:
    return {completion[-1] for _, completion in pairs}


@pytest.mark.parametrize("lost", ["split", "completion"])
def test_without_demonstrations_the_error_says_what_to_do(lost: str) -> None:
    gone = pl.lit("train") if lost == "split" else pl.lit(None, dtype=pl.String)
    table = prompts_table().with_columns(gone.alias(lost))
    with pytest.raises(
        ValueError, match=r"no prompt of the sft split has a completion: give demonstrations \(prompts.completion_column\) or set sft.steps to 0"
    ):
        demonstrations(language_model(tiny_llama()), table)


def test_a_demonstration_longer_than_the_model_is_named() -> None:
    table = prompts_table(sft=3)
    long = table.filter(pl.col("split") == "sft")[1]
    table = table.with_columns(completion=pl.when(pl.col("prompt_id") == long["prompt_id"][0]).then(pl.lit("1" * 60)).otherwise("completion"))
    with pytest.raises(ValueError, match=f"prompt {long['prompt_id'][0]} and its completion have 67 tokens, the model takes 48: shorten it or leave it out"):
        demonstrations(language_model(tiny_llama()), table)
