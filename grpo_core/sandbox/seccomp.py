"""The system calls that an isolated process may not make, as a BPF program for `bwrap --seccomp`."""

import errno
import platform
import signal
import struct
from typing import NamedTuple

ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
"""Offsets in the kernel's `struct seccomp_data`; of an argument the low half (both machines are little-endian)."""

CLONE_THREAD = 0x00010000
CLONE_NEW_ANYTHING = 0x7E020080
"""Every flag of clone that makes a namespace."""
AF_UNIX = 1

DENIED_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    # other processes' memory, and kernel interfaces with a record of holes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "vmsplice": (278, 75),
    "modify_ldt": (154, None),
    "personality": (135, 92),
    # keys are not in a namespace
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # sockets: AF_VSOCK reaches the host whatever the network namespace
    "socket": (41, 198),
    # namespaces and file systems
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    # memory that the limit on address space does not see
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semctl": (66, 191),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "mq_open": (240, 180),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # the machine itself
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "create_module": (174, None),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "vhangup": (153, 58),
}
"""System call → its number on x86-64 and on AArch64 (None: not there). All of them fail with EPERM."""
FORKING_NUMBERS: dict[str, tuple[int | None, int | None]] = {"fork": (57, None), "vfork": (58, None)}


class Machine(NamedTuple):
    """What the filter must know of a kind of processor; `column` is its place in the tables of numbers."""

    audit_architecture: int
    column: int
    clone: int
    clone3: int
    socketpair: int
    rt_sigaction: int


MACHINES = {"x86_64": Machine(0xC000003E, 0, 56, 435, 53, 13), "aarch64": Machine(0xC00000B7, 1, 220, 435, 199, 134)}
X32 = 0x40000000
"""System calls of the x32 convention: numbers that the table above does not hold, for the same calls."""


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One `struct sock_filter`; jumps count the instructions that are skipped."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def refuse(number: int, error: int) -> bytes:
    """The call with this number fails with `error`; any other one goes on (its number stays loaded)."""
    return instruction(JUMP_EQUAL, number, 0, 1) + instruction(RETURN, ERRNO | error)


def denied_numbers(machine: Machine, *, may_fork: bool) -> list[int]:
    """Numbers of the calls that fail whatever their arguments."""
    tables = DENIED_NUMBERS | ({} if may_fork else FORKING_NUMBERS)
    return sorted(number for numbers in tables.values() if (number := numbers[machine.column]) is not None)


def refuse_by_argument(number: int, *test: bytes) -> bytes:
    """The call with this number is decided by its first argument: `test` skips one instruction if it may go on."""
    decide = [instruction(LOAD, FIRST_ARGUMENT), *test, instruction(RETURN, ERRNO | errno.EPERM), instruction(RETURN, ALLOW)]
    return instruction(JUMP_EQUAL, number, 0, len(decide)) + b"".join(decide)


def argument_rules(machine: Machine, *, may_fork: bool) -> list[bytes]:
    """`clone` may make threads and, if `may_fork`, processes, but no namespaces (`clone3`, whose flags a filter cannot see, is "not there").

    `socketpair` may make Unix sockets, through which event loops wake themselves. What SIGXCPU does, the end, may not be changed.
    """
    clone = instruction(JUMP_SET, CLONE_NEW_ANYTHING, 0, 1) if may_fork else instruction(JUMP_SET, CLONE_THREAD, 1, 0)
    return [
        refuse(machine.clone3, errno.ENOSYS),
        refuse_by_argument(machine.clone, clone),
        refuse_by_argument(machine.socketpair, instruction(JUMP_EQUAL, AF_UNIX, 1, 0)),
        refuse_by_argument(machine.rt_sigaction, instruction(JUMP_EQUAL, signal.SIGXCPU, 0, 1)),
    ]


def filter_program(machine_name: str | None = None, *, may_fork: bool) -> bytes:
    """The filter for this processor (or `machine_name`). ValueError where no table of numbers is known: no filter, no isolation.

    Calls of a foreign architecture (32-bit, x32) kill the process. A process may not make others unless `may_fork`: then one limit
    on address space bounds all of its memory.
    """
    name = machine_name or platform.machine()
    if name not in MACHINES:
        raise ValueError(f"model-written programs can be isolated on {' and '.join(MACHINES)}; this processor is {name!r}")
    machine = MACHINES[name]
    parts = [
        instruction(LOAD, ARCHITECTURE),
        instruction(JUMP_EQUAL, machine.audit_architecture, 1, 0),
        instruction(RETURN, KILL_PROCESS),
        instruction(LOAD, NUMBER),
        instruction(JUMP_AT_LEAST, X32, 0, 1),
        instruction(RETURN, KILL_PROCESS),
        *(refuse(number, errno.EPERM) for number in denied_numbers(machine, may_fork=may_fork)),
        *argument_rules(machine, may_fork=may_fork),
        instruction(RETURN, ALLOW),
    ]
    return b"".join(parts)
