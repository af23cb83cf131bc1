"""One prompt through one checkpoint, for a person to read."""

from pathlib import Path

from grpo_core.config import RunConfig


def completions(checkpoint: Path, prompt: str, config: RunConfig, *, num: int, temperature: float, max_new_tokens: int, seed: int) -> list[str]:
    """`num` texts, without special tokens."""
    from grpo_core.models import load_model
    from grpo_core.prompts import wrapped
    from grpo_core.randomness import uniforms
    from grpo_core.sampling import sample
    from grpo_core.tokenization import clean_text, encode_prompt

    loaded = load_model(checkpoint, config.model)
    text, messages = wrapped(prompt, config.prompts)
    groups = sample(
        loaded.model,
        [encode_prompt(loaded.tokenizer, text, messages)],
        group_size=num,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        eos_ids=loaded.eos_ids,
        uniforms=lambda row, index: uniforms(max_new_tokens, seed, "sample", index),
        batch_size=num,
    )
    return [clean_text(loaded.tokenizer, completion.token_ids) for completion in groups[0]]
