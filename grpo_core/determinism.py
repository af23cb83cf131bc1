"""What makes a run repeat to the bit, put into force before the libraries that read it, and said in words.

Random numbers are functions of seeds (randomness.py). What is left is the order in which kernels add: fixed by the number of
threads, the libraries and the kind of processor.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

from grpo_core.config import ModelConfig

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What numeric libraries read, when they are imported, for how many threads they may use."""
SWITCHES = {
    # A library that may use fewer threads than it was given adds in another order when the machine is busy.
    "OMP_DYNAMIC": "false",
    "MKL_DYNAMIC": "FALSE",
    # Without it cuBLAS may choose another order of addition each time.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
OVERRULING = ("OMP_THREAD_LIMIT",)
"""Variables by which a user's shell would silently beat model.num_threads: taken away."""
SHOWN = (*THREADS, *SWITCHES, "OMP_WAIT_POLICY", "ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "NVIDIA_TF32_OVERRIDE")
"""Variables that can change a bit, or the speed, of what a run computes; recorded with every output."""


def planned_switches(num_threads: int, given: Mapping[str, str]) -> dict[str, str | None]:
    """The variables of `SHOWN` (None where unset) as `prepare` leaves them in a process that was started with `given`."""
    held = {**dict.fromkeys(THREADS, str(num_threads)), **SWITCHES}
    # Idle OpenMP threads that spin make busy cores 5-9 times slower; waiting changes no bit, so the user's own choice stands.
    return {**{name: given.get(name) for name in SHOWN}, "OMP_WAIT_POLICY": given.get("OMP_WAIT_POLICY", "passive"), **held}


def prepare(model: ModelConfig) -> None:
    """Hold numeric libraries to `model.num_threads` whatever the shell says, and switch off what chooses anew at every run.

    They read this when they are imported. A torch that was imported before is told its number of threads.
    """
    for name in OVERRULING:
        os.environ.pop(name, None)
    os.environ.update({name: value for name, value in planned_switches(model.num_threads, os.environ).items() if value is not None})
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(model.num_threads)


def overruled(model: ModelConfig) -> list[str]:
    """What the shell's environment asks for and `prepare` does not obey, a sentence each."""
    held = planned_switches(model.num_threads, os.environ)
    said = {name: os.environ[name] for name in (*THREADS, *SWITCHES) if name in os.environ and os.environ[name].lower() != str(held[name]).lower()}
    found = [f"{name}={value} in your environment is not obeyed: stages run with {name}={held[name]}" for name, value in said.items()]
    return found + [f"{name}={os.environ[name]} in your environment is not obeyed: stages run without it" for name in OVERRULING if name in os.environ]


def after_torch_import(device: str) -> None:
    """On a GPU (`device` as torch names it), choose deterministic kernels where there are any; a kernel without one warns."""
    import torch

    if device.startswith("cuda"):
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False


def switches_in_force() -> dict[str, Any]:
    """The variables of `SHOWN` (null where unset), and what torch says of itself if it is loaded."""
    switches: dict[str, Any] = {name: os.environ.get(name) for name in SHOWN}
    torch = sys.modules.get("torch")
    if torch is None:
        return switches
    return {
        **switches,
        "torch_num_threads": torch.get_num_threads(),
        "torch_interop_threads": torch.get_num_interop_threads(),
        "torch_deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "cuda_matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
    }


def guarantee(device: str) -> str:
    """What is guaranteed of two runs on `device`, and what is not, as one paragraph."""
    if device.startswith("cuda"):
        return (
            "On a GPU the random numbers, the order of prompts and what is recorded are the same in every run, and deterministic kernels are chosen where "
            "there are any; but kernels without one may add in another order, and another kind of GPU or driver rounds otherwise, so weights may differ in "
            "their last bits, and completions after them. Bit-for-bit reproduction is promised on a CPU only."
        )
    return (
        "On a CPU two runs with the same model.num_threads, library versions and kind of processor (its vector instructions) give the same bytes in every "
        "output that DVC tracks, whether or not they were interrupted. With another number of threads, other libraries or another kind of processor sums are "
        "added in another order: the random numbers and the order of prompts stay, the last bits of weights do not, and completions may follow them."
    )
