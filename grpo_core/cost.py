"""What a configuration costs before anything is spent: size of the model, memory at its peak, time. Closed formulas, no torch.

Lengths are upper bounds (a prompt of prompts.max_tokens, completions of rollout.max_new_tokens); the constants were measured.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_core.config import ModelConfig, RunConfig
from grpo_core.logit_budget import scored_rows

EMBEDDED_VOCABULARY = 27
"""Tokens of the embedded tokenizer, repeated here because addition.py imports transformers (a test compares)."""
STAGES = ("sft_checkpoint", "grpo_checkpoint", "heldout_eval")
"""What takes memory and time; the other stages take seconds and less memory than these."""
PROCESS_BYTES = {"sft_checkpoint": 480 * 2**20, "grpo_checkpoint": 750 * 2**20, "heldout_eval": 720 * 2**20}
"""Python and the libraries of a stage's process (MLflow and charts in the last two), measured."""
GPU_CONTEXT_BYTES = 500 * 2**20
"""What CUDA takes of a GPU before anything is on it."""
LOGIT_COPIES = 4
"""Rectangles [rows, tokens, vocabulary] alive at once in an update: logprobs, their gradient and what entropy or softmax's backward need."""
START_SECONDS = {"sft_checkpoint": 5.0, "grpo_checkpoint": 10.0, "heldout_eval": 8.0}
"""Starting a stage's process and writing what it leaves."""
PASS_SECONDS, LAYER_SECONDS = 0.8e-3, 0.8e-3
"""A forward pass of a token a row costs this much, and this much a layer, however small the model is (CPU)."""
EFFICIENCY, HALF_WIDTH = 0.6, 128
"""Share of the probed rate that a wide model reaches; one as narrow as this reaches half of it."""
TOKEN_BYTES = 8
"""A token's id, logprob and text in a table on disk: more than was ever measured."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The numbers of a transformer that its cost follows from."""

    parameters: int
    vocabulary: int
    width: int
    layers: int
    intermediate: int
    cache_width: int
    """Width of the keys (and of the values) that a token leaves in the cache, a layer."""

    @property
    def weight_bytes(self) -> int:
        """The weights in float32."""
        return 4 * self.parameters

    def activations(self, tokens: int) -> int:
        """Numbers that a backward pass needs of `tokens` tokens: norms, projections, rotations and the gated feed-forward, a layer."""
        return tokens * self.layers * (14 * self.width + 4 * self.intermediate)


def embedded_size(model: ModelConfig) -> ModelSize:
    """The embedded Llama: tied embeddings; four square projections, three of the feed-forward and two norms a layer; a last norm."""
    width, inner = model.hidden_size, model.intermediate_size
    layer = 4 * width**2 + 3 * width * inner + 2 * width
    total = EMBEDDED_VOCABULARY * width + model.num_layers * layer + width
    return ModelSize(total, EMBEDDED_VOCABULARY, width, model.num_layers, inner, width)


def folder_size(folder: Path) -> ModelSize | None:
    """The model in a Hugging Face folder, from config.json and the headers of its safetensors files; None where they do not say."""
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        settings = settings.get("text_config") or settings
        parameters = sum(_count_weights(path) for path in sorted(folder.glob("*.safetensors")))
        width = settings["hidden_size"] if "hidden_size" in settings else settings["n_embd"]
        layers = settings["num_hidden_layers"] if "num_hidden_layers" in settings else settings["n_layer"]
        heads = settings["num_attention_heads"] if "num_attention_heads" in settings else settings["n_head"]
        inner = settings.get("intermediate_size") or settings.get("n_inner") or 4 * width
        head_width = settings.get("head_dim") or width // heads
        cache_width = head_width * (settings.get("num_key_value_heads") or heads)
        size = ModelSize(parameters, settings["vocab_size"], width, layers, inner, cache_width)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return size if parameters > 0 else None


def _count_weights(path: Path) -> int:
    """Numbers in a safetensors file, by its header."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"{path} is no safetensors file: its header would be {length} bytes long")
        header = json.loads(stream.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def model_size(model: ModelConfig, root: Path) -> ModelSize | None:
    """The starting model's size; None for a hub name, a GGUF file and whatever else does not say."""
    return folder_size(root / model.path) if model.path else embedded_size(model)


def longest_prompt(config: RunConfig) -> int:
    """Most tokens of a prompt: of the embedded task a token a character, `335+194=` behind a BOS."""
    if config.prompts.path or config.model.path:
        return config.prompts.max_tokens
    return min(config.prompts.max_tokens, 1 + len(config.prompts.template) - len("{prompt}") + 2 * config.prompts.num_digits + 2)


def peak_bytes(config: RunConfig, size: ModelSize, *, gpu: bool = False) -> dict[str, int]:
    """Stage → bytes at its peak, of the process on a CPU or on the GPU (then without the process)."""
    prompt, completion = longest_prompt(config), config.rollout.max_new_tokens
    bits = 2 if config.model.dtype == "bfloat16" else 4
    # Beside float32 weights autocast keeps those it computes with.
    model = size.weight_bytes + (size.weight_bytes // 2 if bits == 2 else 0)
    # Weights and gradient, AdamW's two moments.
    trained, frozen = model + 3 * size.weight_bytes, model

    def update(rows: int) -> int:
        return bits * size.activations(rows * (prompt + completion)) + 4 * LOGIT_COPIES * rows * completion * size.vocabulary

    def scored(rows: int) -> int:
        """One layer's numbers at a time, and the logits twice and as log-probabilities."""
        return bits * size.activations(rows * (prompt + completion)) // size.layers + 4 * 3 * rows * completion * size.vocabulary

    def sampled(rows: int) -> int:
        """Keys and values of every layer; the cumulative distribution of one token a row is float64, three times."""
        return 2 * bits * rows * (prompt + completion) * size.layers * size.cache_width + 3 * 8 * rows * size.vocabulary

    grpo, decoded = config.grpo, config.rollout.batch_size
    minibatch = grpo.prompts_per_step * grpo.group_size // grpo.minibatches_per_rollout
    micro = min(grpo.micro_batch_size, minibatch)
    imitated = min(grpo.micro_batch_size, math.ceil(grpo.demonstrations_per_step / grpo.minibatches_per_rollout))
    start = dict.fromkeys(STAGES, GPU_CONTEXT_BYTES) if gpu else PROCESS_BYTES
    answered = max(sampled(decoded), scored(scored_rows(decoded, completion, size.vocabulary)))
    return {
        "sft_checkpoint": start["sft_checkpoint"] + (trained + update(min(config.sft.micro_batch_size, config.sft.batch_size)) if config.sft.steps else model),
        "grpo_checkpoint": start["grpo_checkpoint"] + trained + frozen + max(update(max(micro, imitated)), sampled(decoded), scored(micro)),
        "heldout_eval": start["heldout_eval"] + 2 * frozen + answered,
    }


def probe_core() -> float:
    """Floating-point operations a second of dense float32 products on one core, best of some hundredths of a second.

    The matrices are small enough for one thread, so that the load of the other cores does not tell.
    """
    import numpy as np

    left, right, out = (np.ones((16, 64, 64), dtype=np.float32) for _ in range(3))
    best, end = math.inf, time.perf_counter() + 0.03
    while time.perf_counter() < end:
        started = time.perf_counter()
        np.matmul(left, right, out=out)
        best = min(best, time.perf_counter() - started)
    return 2 * left.size * left.shape[-1] / best


@dataclass(frozen=True, slots=True)
class Work:
    """What the formula of time multiplies out: operations of dense products, and forward passes (a backward one counts as two)."""

    operations: float
    passes: float

    def seconds(self, size: ModelSize, rate: float) -> float:
        """Time on a processor that does `rate` floating-point operations a second, all threads together."""
        reached = EFFICIENCY * size.width / (size.width + HALF_WIDTH) * rate
        return self.operations / reached + self.passes * (PASS_SECONDS + LAYER_SECONDS * size.layers)

    def __add__(self, other: "Work") -> "Work":
        return Work(self.operations + other.operations, self.passes + other.passes)

    def times(self, count: float) -> "Work":
        return Work(self.operations * count, self.passes * count)


def sampling_work(config: RunConfig, size: ModelSize, prompts: int, group_size: int) -> Work:
    """Prefilling `prompts` and drawing `group_size` completions of each."""
    rows, length = prompts * group_size, config.rollout.max_new_tokens
    batches = math.ceil(prompts / max(1, config.rollout.batch_size // group_size)) if prompts else 0
    return Work(2 * size.parameters * (prompts * longest_prompt(config) + rows * length), batches * length)


def scoring_work(config: RunConfig, size: ModelSize, rows: int, micro_batch_size: int, *, backward: bool) -> Work:
    """Scoring `rows` completions with their prompts, and the gradient of that."""
    factor = 3 if backward else 1
    tokens = rows * (longest_prompt(config) + config.rollout.max_new_tokens)
    return Work(factor * 2 * size.parameters * tokens, factor * math.ceil(rows / micro_batch_size))


def step_work(config: RunConfig, size: ModelSize) -> Work:
    """One step of GRPO without evaluation."""
    grpo = config.grpo
    completions = grpo.prompts_per_step * grpo.group_size
    work = sampling_work(config, size, grpo.prompts_per_step, grpo.group_size)
    asked = (grpo.beta > 0) + (config.model.dtype != "float32")
    work += scoring_work(config, size, completions, grpo.micro_batch_size, backward=False).times(asked)
    minibatch = completions // grpo.minibatches_per_rollout
    update = scoring_work(config, size, minibatch, grpo.micro_batch_size, backward=True)
    return work + update.times(grpo.minibatches_per_rollout * grpo.updates_per_rollout)


def cloning_work(config: RunConfig, size: ModelSize) -> Work:
    """Imitating the demonstrations beside one rollout batch; each as long as rollout.max_new_tokens."""
    grpo = config.grpo
    a_minibatch = math.ceil(grpo.demonstrations_per_step / grpo.minibatches_per_rollout)
    update = scoring_work(config, size, a_minibatch, grpo.micro_batch_size, backward=True)
    return update.times(grpo.minibatches_per_rollout * grpo.updates_per_rollout)


def stage_work(config: RunConfig, size: ModelSize, splits: Mapping[str, int]) -> dict[str, Work]:
    """Stage → its work; `splits` counts the prompts of `select` and `heldout` (all that the configuration asks for where it does not)."""
    grpo, heldout = config.grpo, config.heldout_eval
    evaluations = 1 + grpo.steps // grpo.eval_every if grpo.eval_every else 0
    selected = min(grpo.select_max_prompts, splits.get("select", grpo.select_max_prompts))
    asked = min(heldout.max_prompts, splits.get("heldout", heldout.max_prompts))
    one_model = sampling_work(config, size, asked, 1) + sampling_work(config, size, asked, heldout.samples_per_prompt)
    kl = scoring_work(config, size, asked * heldout.samples_per_prompt, config.rollout.batch_size, backward=False)
    return {
        "sft_checkpoint": scoring_work(config, size, config.sft.batch_size, config.sft.micro_batch_size, backward=True).times(config.sft.steps),
        "grpo_checkpoint": (
            step_work(config, size).times(grpo.steps)
            + cloning_work(config, size).times(grpo.cloning_steps_at_most)
            + sampling_work(config, size, selected, 1).times(evaluations)
        ),
        "heldout_eval": one_model.times(2) + kl,
    }


@dataclass(frozen=True, slots=True)
class LastRun:
    """An earlier training on this machine: what it was asked for, and how long its steps took."""

    config: RunConfig
    size: ModelSize
    seconds_a_step: float
    """Mean, evaluations in training included."""


def expected_seconds(
    config: RunConfig, size: ModelSize, splits: Mapping[str, int], rate: Callable[[ModelConfig], float], last: LastRun | None = None
) -> dict[str, float]:
    """Stage → how long it takes, starting its process included; `rate` says how many operations a second a configuration's threads do.

    With a `last` run the formula only compares the two configurations; the time itself is what that run's steps took.
    """
    scale = 1.0
    if last is not None:
        counted = stage_work(last.config, last.size, splits)["grpo_checkpoint"].seconds(last.size, rate(last.config.model)) / last.config.grpo.steps
        scale = last.seconds_a_step / counted
    works = stage_work(config, size, splits)
    return {stage: START_SECONDS[stage] + scale * work.seconds(size, rate(config.model)) for stage, work in works.items()}


def disk_bytes(config: RunConfig, size: ModelSize, splits: Mapping[str, int]) -> int:
    """Most that a run adds to the disk: three models, the checkpoints that are kept and the one being written, every completion twice."""
    kept = config.grpo.keep_checkpoints + 1 + (config.sft.keep_checkpoints + 1 if config.sft.steps else 0)
    asked = min(config.heldout_eval.max_prompts, splits.get("heldout", config.heldout_eval.max_prompts))
    completions = config.grpo.steps * config.grpo.prompts_per_step * config.grpo.group_size + 2 * asked * (1 + config.heldout_eval.samples_per_prompt)
    return 3 * size.weight_bytes + kept * 3 * size.weight_bytes + 2 * TOKEN_BYTES * completions * config.rollout.max_new_tokens
