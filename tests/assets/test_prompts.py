import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

from assets.contracts import ContractError, Expectation
from assets.page import Progress, Table
from assets.paths import Paths
from assets.prompts import check, describe, produce
from grpo_core.config import ModelConfig, PromptsConfig, RunConfig
from grpo_core.prompts import PromptsError

SMALL = PromptsConfig(num_generated=1_000, sft_fraction=0.5, select_fraction=0.1, heldout_fraction=0.2)


def make(root: Path, prompts: PromptsConfig = SMALL, model: ModelConfig | None = None) -> list[Progress]:
    reports: list[Progress] = []
    produce(Paths(root), RunConfig(prompts=prompts, model=model or ModelConfig()), reports.append)
    return reports


def test_the_embedded_prompts_fulfil_their_contract_and_fill_their_page(tmp_path: Path) -> None:
    (report,) = make(tmp_path)
    assert (report.step, report.total) == (1, 1)
    assert sum(report.numbers.values()) == 1_000
    assert check(Paths(tmp_path)).success
    page = describe(Paths(tmp_path))
    assert page["prompts"] == 1_000
    splits, difficulty, samples = page["splits"], page["difficulty"], page["samples"]
    assert isinstance(splits, Table)
    assert isinstance(difficulty, Table)
    assert isinstance(samples, Table)
    assert dict(splits.frame.select("split", "prompts").iter_rows()) == {name.removeprefix("prompts/"): count for name, count in report.numbers.items()}
    assert difficulty.frame["difficulty"].to_list() == ["0 carries", "1 carry", "2 carries", "3 carries"]
    assert difficulty.frame["all"].sum() == difficulty.frame.select("sft", "train", "select", "heldout").to_numpy().sum() == 1_000
    assert samples.frame["split"].to_list() == ["sft"] * 3 + ["train"] * 3 + ["select"] * 3 + ["heldout"] * 3
    assert samples.max_rows == 12


def test_the_file_s_bytes_depend_on_the_prompts_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        root = tmp_path / name
        root.mkdir()
        rows = [{"prompt": f"{i}+{i}=", "answer": str(2 * i), "level": i, "tags": ["t"] * (i % 3)} for i in range(10, 99)]
        (root / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        make(root, PromptsConfig(path="my.jsonl", select_fraction=0.2, heldout_fraction=0.2, sft_fraction=0.1))
    assert Paths(tmp_path / "a").prompts.read_bytes() == Paths(tmp_path / "b").prompts.read_bytes()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"prompt": "1+1=", "answer": ""}], "empty answer"),
        ([{"prompt": "1+1=", "answer": "2", "split": split} for split in ("train", "heldout")], "evaluation prompts are also in another split"),
        ([{"prompt": "1+1=" * 20, "answer": "2", "split": "train"}], "longer than prompts.max_tokens"),
        ([{"prompt": "one", "answer": "2", "split": "train"}], "cannot represent"),
    ],
    ids=["empty answer", "overlap", "too long", "unknown characters"],
)
def test_a_bad_file_leaves_the_earlier_prompts_as_they_were(tmp_path: Path, rows: list[dict[str, str]], said: str) -> None:
    make(tmp_path)
    before = Paths(tmp_path).prompts.read_bytes()
    fine = [{"prompt": f"{i}=", "answer": "1", "split": split} for i, split in enumerate(["train", "select", "heldout"])]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (*fine, *rows)))
    with pytest.raises(PromptsError, match=said):
        make(tmp_path, PromptsConfig(path="my.jsonl"))
    assert Paths(tmp_path).prompts.read_bytes() == before
    assert [path.name for path in Paths(tmp_path).prompts.parent.iterdir()] == ["prompts.parquet"]


def test_a_violated_contract_leaves_the_earlier_prompts_and_the_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    before = Paths(tmp_path).prompts.read_bytes()
    never = Expectation("ExpectTableRowCountToBeBetween", {"min_value": 10_000}, "there are ten thousand prompts")
    monkeypatch.setattr("assets.prompts.contract", lambda paths: [never])
    with pytest.raises(ContractError, match="there are ten thousand prompts: found 500"):
        make(tmp_path, replace(SMALL, num_generated=500))
    assert Paths(tmp_path).prompts.read_bytes() == before
    assert [path.name for path in Paths(tmp_path).prompts.parent.iterdir()] == ["prompts.parquet"]
    assert json.loads(Paths(tmp_path).validation("prompts").read_text())["success"] is False


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"prompt_id": pl.lit("0123456789abcdef")}, "every prompt stands in the table once"),
        ({"prompt": pl.lit(" \n")}, "no prompt is blank"),
        ({"prompt": pl.lit(None, pl.String)}, "no prompt is missing"),
        ({"answer": pl.lit(None, pl.String)}, "no answer is missing"),
        ({"answer": pl.lit("")}, "no answer is blank"),
        ({"split": pl.lit("test")}, "a split is one of sft, train, select, heldout"),
        ({"split": pl.lit(None, pl.String)}, "every row has a split"),
        ({"split": pl.lit("train")}, "train, select and heldout have prompts"),
        ({"completion": pl.lit(None, pl.String)}, "every sft prompt has a demonstration"),
        ({"source_row": pl.lit(0)}, "every row says where it comes from"),
    ],
)
def test_the_contract_sees_a_broken_table(tmp_path: Path, broken: dict[str, pl.Expr], said: str) -> None:
    make(tmp_path, replace(SMALL, num_generated=500))
    paths = Paths(tmp_path)
    pl.read_parquet(paths.prompts).with_columns(**broken).write_parquet(paths.prompts)
    assert f"contract of prompts violated: {said}" in check(paths).summary()


def test_a_given_model_s_tokenizer_measures_the_prompts(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1, "one": 2, "two": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>").save_pretrained(tmp_path / "model")
    LlamaConfig(max_position_embeddings=4).save_pretrained(tmp_path / "model")
    rows = [{"prompt": "one" + " two" * i, "answer": "1", "split": split} for i, split in enumerate(["train", "select", "heldout"])]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = ModelConfig(path=str(tmp_path / "model"))
    make(tmp_path, PromptsConfig(path="my.jsonl", max_tokens=3), model)
    assert pl.read_parquet(Paths(tmp_path).prompts).height == 3
    with pytest.raises(PromptsError, match=r"my\.jsonl line 3: 3 tokens"):
        make(tmp_path, PromptsConfig(path="my.jsonl", max_tokens=2), model)
    before = Paths(tmp_path).prompts.read_bytes()
    LlamaConfig(max_position_embeddings=3).save_pretrained(tmp_path / "model")
    with pytest.raises(PromptsError, match=r"longer than what the model takes \(2\).*\n.*my\.jsonl line 3: 3 tokens"):
        make(tmp_path, PromptsConfig(path="my.jsonl", max_tokens=3), model)
    assert Paths(tmp_path).prompts.read_bytes() == before
