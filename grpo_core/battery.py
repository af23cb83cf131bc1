"""The exploit battery: every probe on a run's own prompts, scored as the run scores, a row a text."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import polars as pl
from transformers import PreTrainedTokenizerBase

from grpo_core.config import RunConfig
from grpo_core.evaluation import evaluation_prompts
from grpo_core.probes import CODE_PROBES, PROBES, Asked, Probe, Texts, wrong_answers
from grpo_core.program_probes import called_in
from grpo_core.rewards.scoring import score
from grpo_core.rewards.worker import worker
from grpo_core.rollout import RolloutBatch, reward_columns
from grpo_core.sampling import Completion
from grpo_core.tokenization import encode_completion

MAX_TEXT = 500
"""Characters of a completion that the table keeps."""
NUM_OTHERS = 64
"""Train prompts whose answers are wrong ones for the others."""
TESTS, ENTRY_POINT = ("tests", "test"), "entry_point"
"""Columns that hold the tests of a program, and the name of the function that they call."""


def try_exploits(
    prompts: pl.DataFrame, config: RunConfig, tokenizer: PreTrainedTokenizerBase, on_probe: Callable[[int, int], None] = lambda tried, of: None
) -> pl.DataFrame:
    """Rows of (probe, prompt_id, variant, text, reward/<function>, status/<function>, status, reason, reward), `reward` the weighted sum.

    `prompts` is the whole table; the train prompts that are asked stand in it. What a reward function does with such a text is reported,
    also that it raises; RewardError is raised only when it cannot be used. `on_probe` hears how many probes of how many are done.
    """
    chosen = evaluation_prompts(prompts, "train", config.scoring.exploit_prompts)
    tests = tests_column(prompts, config)
    asked = made_for(chosen, evaluation_prompts(prompts, "train", NUM_OTHERS)["answer"].fill_null("").to_list(), tests)
    probes = PROBES if tests is None else {**PROBES, **CODE_PROBES}
    tables = []
    for tried, (name, probe) in enumerate(probes.items()):
        on_probe(tried, len(probes))
        rows = [(place, variant, text) for place, texts in variants(probe, asked) for variant, text in texts.items()]
        if rows:
            tables.append(_scored(name, chosen, rows, config, tokenizer))
    if tests is not None:
        worker().freshen()  # such a program may have left something behind in the process that ran it
    on_probe(len(probes), len(probes))
    return pl.concat(tables)


def tests_column(prompts: pl.DataFrame, config: RunConfig) -> str | None:
    """The column with the tests of programs; None where the prompts are about something else."""
    named = str(config.reward_options.get("code_tests", {}).get("tests_column", TESTS[0]))
    return next((name for name in (named, *TESTS) if name in prompts.columns), None)


def made_for(chosen: pl.DataFrame, others: Sequence[str], tests: str | None) -> list[Asked]:
    """What the probes need to know of every chosen prompt; `tests` names the column with the tests of programs."""
    calls: list[list[str]] = [[]] * len(chosen) if tests is None else [called_in(str(test)) for test in chosen[tests].to_list()]
    if ENTRY_POINT in chosen.columns:
        calls = [[str(name), *called] for name, called in zip(chosen[ENTRY_POINT], calls, strict=True)]
    rows = zip(chosen["prompt"], chosen["answer"].fill_null(""), chosen["completion"], calls, strict=True)
    return [Asked(prompt, answer, wrong_answers(answer, others), demonstration, called) for prompt, answer, demonstration, called in rows]


def variants(probe: Probe, asked: Sequence[Asked]) -> Iterator[tuple[int, Texts]]:
    """Place of a prompt, and the texts to try on it. A text made to break graders is left out where it happens to hold the answer."""
    if not probe.once:
        yield from ((place, probe.texts(one)) for place, one in enumerate(asked))
        return
    for place, one in enumerate(asked):
        wrong = {variant: text for variant, text in probe.texts(one).items() if not says(text, one.answer)}
        if wrong:
            yield place, wrong
            return


def says(text: str, answer: str) -> bool:
    """Whether the answer stands in the text, as a word of its own."""
    return answer.strip() != "" and re.search(rf"(?<!\w){re.escape(answer.strip())}(?!\w)", text) is not None


def _scored(name: str, chosen: pl.DataFrame, rows: Sequence[tuple[int, str, str]], config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> pl.DataFrame:
    """One probe's rows of the table."""
    batch = _batch(chosen[[place for place, _, _ in rows]], [text for _, _, text in rows], tokenizer)
    labels, ids = [label for _, label, _ in rows], batch.prompts["prompt_id"].to_list()
    where = [f"exploit {name}{label and f' ({label})'}, prompt {prompt_id}" for label, prompt_id in zip(labels, ids, strict=True)]
    settings = replace(config.scoring, max_error_rate=1.0)
    scores = score(config.rewards, reward_columns(batch), where, options=config.reward_options, settings=settings)
    return pl.DataFrame(
        {
            "probe": [name] * len(rows),
            "prompt_id": ids,
            "variant": labels,
            "text": [text[:MAX_TEXT] for text in batch.texts],
            **{f"reward/{function}": pl.Series(values, dtype=pl.Float64) for function, values in scores.by_function.items()},
            **{f"status/{function}": statuses for function, statuses in scores.statuses.items()},
            "status": scores.row_statuses,
            "reason": pl.Series(scores.reasons, dtype=pl.String),
            "reward": pl.Series(scores.totals, dtype=pl.Float64),
        }
    )


def _batch(prompts: pl.DataFrame, texts: list[str], tokenizer: PreTrainedTokenizerBase) -> RolloutBatch:
    """One text for every row of `prompts`, as if it had been drawn."""
    return RolloutBatch(
        step=0,
        prompts=prompts,
        prompt_token_ids=[[]] * len(texts),
        completions=[Completion(encode_completion(tokenizer, text), finish_reason="eos") for text in texts],
        texts=texts,
        raw_texts=[f"{text}{tokenizer.eos_token}" for text in texts],
        group_size=1,
        policy_digest="",
    )
