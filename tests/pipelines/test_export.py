"""What is exported loads with transformers alone, is the trained policy, and reaches a hub or says why not."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

from assets.paths import Paths
from grpo_core.checkpoint import MANIFEST
from grpo_core.models import policy_digest
from pipelines.commands import export as command
from pipelines.export import ExportError, export, push
from pipelines.promotion import promote
from tests.pipelines.promotable import copied, make_promotable
from tests.pipelines.toy_project import THIRD_PARTY_WARNINGS

pytestmark = [pytest.mark.filterwarnings(warning) for warning in THIRD_PARTY_WARNINGS]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    return make_promotable(tmp_path_factory.mktemp("exported") / "project")


def run_command(paths: Paths, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(command, "checkout", lambda: paths.root)
    done = CliRunner().invoke(command.export, arguments)
    return done.exit_code, done.stdout if done.exit_code == 0 else done.output


def test_an_exported_policy_loads_and_is_the_trained_one(whole: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    code, told = run_command(whole, monkeypatch, "default", str(folder))
    assert (code, told) == (0, f"{folder}: loads with transformers, weights as trained\n")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)
    assert policy_digest(model) == json.loads((whole.grpo_checkpoint / MANIFEST).read_text())["policy_digest"]
    ids = tokenizer("1+10=", return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == "1+10=" and model.generate(ids, max_new_tokens=2).shape[1] > ids.shape[1]
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md", "reward.png"} <= names
    assert not names & {MANIFEST, "metrics.jsonl"} and [path for path in tmp_path.iterdir()] == [folder]
    assert (folder / "README.md").read_text().startswith("---\nlibrary_name: transformers\n")


def test_the_champion_is_exported_with_its_card(whole: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = copied(whole.root, tmp_path / "project")
    code, told = run_command(paths, monkeypatch, "--champion", str(tmp_path / "model"))
    assert code == 1 and "there is no champion yet" in told
    promote(paths.root, "default", by="Anna", on_note=lambda note: None)
    code, told = run_command(paths, monkeypatch, "--champion", str(tmp_path / "model"))
    assert code == 0, told
    assert "promoted by Anna" in (tmp_path / "model" / "README.md").read_text()
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == (paths.grpo_checkpoint / "model.safetensors").read_bytes()


def test_nothing_is_overwritten_unasked(whole: Paths, tmp_path: Path) -> None:
    other = tmp_path / "mine"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(ExportError, match="is no exported model"):
        export(whole.grpo_checkpoint, other, force=True, extra={})
    model = tmp_path / "model"
    export(whole.grpo_checkpoint, model, force=False, extra={"README.md": b"one"})
    with pytest.raises(ExportError, match="--force"):
        export(whole.grpo_checkpoint, model, force=False, extra={"README.md": b"two"})
    assert (model / "README.md").read_bytes() == b"one"
    export(whole.grpo_checkpoint, model, force=True, extra={"README.md": b"two"})
    assert (model / "README.md").read_bytes() == b"two" and (other / "letter.txt").read_text() == "dear"


def test_weights_that_are_not_the_trained_ones_are_not_exported(whole: Paths, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(whole.grpo_checkpoint, source)
    manifest = json.loads((source / MANIFEST).read_text())
    (source / MANIFEST).write_text(json.dumps({**manifest, "policy_digest": "0" * 16}))
    with pytest.raises(ExportError, match="have the digest"):
        export(source, tmp_path / "model", force=False, extra={})
    (source / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ExportError, match="was altered"):
        export(source, tmp_path / "model", force=False, extra={})
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


class RecordingHub:
    """Takes what the hub's client is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, object]]] = []

    def create_repo(self, repo_id: str, **named: object) -> None:
        self.asked.append((repo_id, named))

    def upload_folder(self, *, repo_id: str, folder_path: Path, **named: object) -> str:
        self.asked.append((repo_id, {"files": sorted(path.name for path in folder_path.iterdir()), **named}))
        return f"https://hub.test/{repo_id}"


def test_pushing_makes_a_private_repository_and_uploads_the_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    hub = RecordingHub()
    assert push(tmp_path, "org/name", hub) == "https://hub.test/org/name"  # type: ignore[arg-type]
    assert hub.asked == [
        ("org/name", {"repo_type": "model", "private": True, "exist_ok": True}),
        ("org/name", {"files": ["config.json"], "repo_type": "model", "commit_message": "grpo export"}),
    ]


@pytest.mark.parametrize(("name", "token"), [("org/name", "hf_x"), ("org/name", None), ("no such name!", "hf_x")])
def test_pushing_without_network_token_or_a_good_name_says_so(tmp_path: Path, name: str, token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi

    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    hub = HfApi(endpoint="http://127.0.0.1:9", token=token or False)
    with pytest.raises(ExportError, match=r"was exported, and pushing it to .* failed: .*HF_TOKEN"):
        push(tmp_path, name, hub)
