"""The filter is run here by an interpreter of its own few instructions, on calls whose fate is known."""

import errno
import struct

import pytest

from grpo_core.sandbox.seccomp import DENIED_NUMBERS, MACHINES, filter_program

ALLOWED, KILLED = "allowed", "killed"
CALLS = {  # name → its number on x86-64 and on AArch64
    "read": (0, 63),
    "openat": (257, 56),
    "execve": (59, 221),
    "futex": (202, 98),
    "clone": (56, 220),
    "clone3": (435, 435),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "rt_sigaction": (13, 134),
    "unshare": (272, 97),
}
THREAD_FLAGS, FORK_FLAGS, NAMESPACE_FLAGS = 0x3D0F00, 17, 0x10000000 | 17


def fate(program: bytes, architecture: int, number: int, first_argument: int = 0) -> str:
    """What the kernel would do with a call."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, first_argument, 0, 0, 0, 0, 0)
    loaded, at = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x06:
            return ALLOWED if value == 0x7FFF0000 else KILLED if value == 0x80000000 else errno.errorcode[value & 0xFFFF]
        if code == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            at += if_true if holds else if_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return request.param


def told(machine: str, call: str, argument: int = 0, *, may_fork: bool = False) -> str:
    return fate(filter_program(machine, may_fork=may_fork), MACHINES[machine].audit_architecture, CALLS[call][MACHINES[machine].column], argument)


def test_ordinary_calls_and_threads_are_allowed_and_processes_are_not(machine: str) -> None:
    assert {told(machine, call) for call in ("read", "openat", "execve", "futex")} == {ALLOWED}
    assert told(machine, "clone", THREAD_FLAGS) == ALLOWED
    assert told(machine, "clone", FORK_FLAGS) == "EPERM"
    assert told(machine, "clone3") == "ENOSYS"


def test_one_that_may_fork_may_still_make_no_namespace(machine: str) -> None:
    assert told(machine, "clone", FORK_FLAGS, may_fork=True) == ALLOWED
    assert told(machine, "clone", NAMESPACE_FLAGS, may_fork=True) == "EPERM"
    assert told(machine, "unshare", may_fork=True) == "EPERM"


def test_sockets_are_refused_but_for_pairs_of_unix_ones(machine: str) -> None:
    assert [told(machine, "socket", family) for family in (1, 2, 10, 40)] == ["EPERM"] * 4
    assert [told(machine, "socketpair", family) for family in (1, 2)] == [ALLOWED, "EPERM"]


def test_the_end_by_the_limit_on_processor_time_cannot_be_put_off(machine: str) -> None:
    assert [told(machine, "rt_sigaction", signal) for signal in (2, 15, 24)] == [ALLOWED, ALLOWED, "EPERM"]


def test_every_listed_call_is_refused(machine: str) -> None:
    program, traits = filter_program(machine, may_fork=True), MACHINES[machine]
    numbers = [numbers[traits.column] for numbers in DENIED_NUMBERS.values()]
    assert {fate(program, traits.audit_architecture, number) for number in numbers if number is not None} == {"EPERM"}


def test_calls_of_another_architecture_kill(machine: str) -> None:
    program = filter_program(machine, may_fork=False)
    assert fate(program, 0x40000003, 11) == KILLED  # 32-bit execve
    assert fate(program, MACHINES[machine].audit_architecture, 0x40000000 + 520) == KILLED  # x32 execve


def test_a_processor_without_a_table_is_named() -> None:
    with pytest.raises(ValueError, match=r"can be isolated on x86_64 and aarch64; this processor is 'riscv64'"):
        filter_program("riscv64", may_fork=False)
