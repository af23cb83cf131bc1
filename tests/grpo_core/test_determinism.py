"""What makes runs repeat is in force before torch reads it, whatever the shell says, and what was in force is what is recorded."""

import json
import os
import subprocess
import sys

import pytest

from grpo_core.config import ModelConfig
from grpo_core.determinism import OVERRULING, SHOWN, SWITCHES, THREADS, guarantee, overruled, planned_switches, prepare, switches_in_force

PROBE = """
import json, os, sys
from grpo_core.config import ModelConfig
from grpo_core.determinism import after_torch_import, prepare, switches_in_force
prepare(ModelConfig(num_threads=int(sys.argv[1])))
assert "torch" not in sys.modules and "numpy" not in sys.modules
before = switches_in_force()
import torch
on_cpu = switches_in_force()
after_torch_import("cpu")
unchanged = switches_in_force() == on_cpu
after_torch_import("cuda:0")
print(json.dumps([before, on_cpu, unchanged, switches_in_force(), "OMP_THREAD_LIMIT" in os.environ]))
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every variable that is touched here, as it will be put back."""
    for name in (*SHOWN, *OVERRULING):
        value = os.environ.get(name)
        monkeypatch.setenv(name, "x")
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)


def test_the_shells_threads_never_beat_the_configured_ones_and_what_is_used_is_recorded() -> None:
    shell = {"OMP_NUM_THREADS": "7", "MKL_NUM_THREADS": "5", "OPENBLAS_NUM_THREADS": "", "OMP_DYNAMIC": "true", "OMP_THREAD_LIMIT": "1"}
    command = [sys.executable, "-W", "error", "-c", PROBE, "3"]
    result = subprocess.run(command, env={**os.environ, **shell}, capture_output=True, text=True, check=True)
    before, on_cpu, unchanged, on_gpu, limited = json.loads(result.stdout)
    assert {before[name] for name in THREADS} == {"3"}
    assert {name: before[name] for name in SWITCHES} == SWITCHES
    assert "torch_num_threads" not in before, "torch is not asked before it is there"
    assert on_cpu["torch_num_threads"] == 3
    assert on_cpu["torch_deterministic_algorithms"] is False
    assert unchanged, "on a CPU there is nothing to switch"
    assert on_gpu["torch_deterministic_algorithms"] is True
    assert not limited


def test_a_torch_that_is_there_already_is_told_its_threads() -> None:
    import torch

    threads = torch.get_num_threads()
    try:
        for wanted in (3, 2):
            prepare(ModelConfig(num_threads=wanted))
            assert (torch.get_num_threads(), switches_in_force()["torch_num_threads"]) == (wanted, wanted)
            assert os.environ["OMP_NUM_THREADS"] == str(wanted)
    finally:
        torch.set_num_threads(threads)


def test_how_idle_threads_wait_is_the_users_choice_and_passive_without_one() -> None:
    assert planned_switches(2, {})["OMP_WAIT_POLICY"] == "passive"
    assert planned_switches(2, {"OMP_WAIT_POLICY": "active"})["OMP_WAIT_POLICY"] == "active"


def test_what_will_be_in_force_is_what_is() -> None:
    import torch

    planned, threads = planned_switches(2, os.environ), torch.get_num_threads()
    try:
        prepare(ModelConfig(num_threads=2))
        assert switches_in_force().items() >= planned.items()
    finally:
        torch.set_num_threads(threads)


def test_what_is_not_obeyed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SHOWN, *OVERRULING):
        monkeypatch.delenv(name, raising=False)
    assert overruled(ModelConfig()) == []
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    monkeypatch.setenv("MKL_DYNAMIC", "false")
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    assert overruled(ModelConfig(num_threads=2)) == [
        "OMP_NUM_THREADS=8 in your environment is not obeyed: stages run with OMP_NUM_THREADS=2",
        "OMP_THREAD_LIMIT=1 in your environment is not obeyed: stages run without it",
    ]


def test_the_guarantee_says_what_holds_and_what_does_not() -> None:
    on_cpu, on_gpu = guarantee("cpu"), guarantee("cuda:0")
    for word in ("model.num_threads", "library versions", "kind of processor", "same bytes", "interrupted"):
        assert word in on_cpu
    for word in ("random numbers", "may differ", "on a CPU only"):
        assert word in on_gpu
    assert "\n" not in on_cpu + on_gpu
