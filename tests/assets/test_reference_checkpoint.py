import pytest

from assets import reference_checkpoint
from assets.paths import Paths
from grpo_core.checkpoint import BrokenFolder, folder_digest, read_manifest
from tests.assets.lifecycle import ignore, lifecycle_config


def test_the_reference_is_a_copy_byte_for_byte(lifecycle: Paths) -> None:
    source = {path.name: path.read_bytes() for path in lifecycle.sft_checkpoint.iterdir() if path.name != "manifest.json"}
    copied = {path.name: path.read_bytes() for path in lifecycle.reference_checkpoint.iterdir() if path.name != "manifest.json"}
    assert copied == source
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(copied)


def test_it_names_what_it_is_a_copy_of(lifecycle: Paths) -> None:
    source, manifest = read_manifest(lifecycle.sft_checkpoint), read_manifest(lifecycle.reference_checkpoint)
    assert manifest["parents"] == {"sft_checkpoint": folder_digest(lifecycle.sft_checkpoint)}
    assert manifest["policy_digest"] == source["policy_digest"]
    assert manifest["tokenizer_fingerprint"] == source["tokenizer_fingerprint"]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_source_that_was_altered_is_refused_and_named(name: str, spoilt: Paths) -> None:
    data = bytearray((spoilt.sft_checkpoint / name).read_bytes())
    data[-2] ^= 1
    (spoilt.sft_checkpoint / name).write_bytes(data)
    before = folder_digest(spoilt.reference_checkpoint)
    with pytest.raises(BrokenFolder, match=f"sft_checkpoint/{name} was altered"):
        reference_checkpoint.produce(spoilt, lifecycle_config(), ignore)
    assert folder_digest(spoilt.reference_checkpoint) == before


def test_the_page_says_which_weights_and_whose_copy(lifecycle: Paths) -> None:
    page = reference_checkpoint.describe(lifecycle)
    assert page["weights"] == read_manifest(lifecycle.sft_checkpoint)["policy_digest"]
    assert page["copy_of"] == folder_digest(lifecycle.sft_checkpoint)[:16]
    assert page["folder"] == lifecycle.reference_checkpoint
