"""The seccomp filter of confined programs: the system calls that are denied. Pure; `shim.py` installs it.

Denied are calls that lead out of a sandbox or into rarely used parts of the kernel: mounts, namespaces, tracing,
modules, keys, io_uring. File access is left to Landlock and the mounts.
"""

import struct
from collections.abc import Iterable, Mapping

type Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""

ARCHITECTURES: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's identifiers of the processors that the tables below cover."""

REFUSED: Mapping[str, tuple[int, int]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "open_tree": (428, 428),
    "move_mount": (429, 429), "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "syslog": (103, 116),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "vhangup": (153, 58),
}  # fmt: skip
"""By name, the numbers on x86_64 and aarch64."""

REFUSED_X86 = (154, 172, 173, 134, 136, 156, 174, 177, 178, 180, 212)
"""modify_ldt, iopl, ioperm, uselib, ustat, _sysctl and other legacy calls that exist only on x86."""

ABSENT: Mapping[str, tuple[int, int]] = {
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "clone3": (435, 435),
}  # fmt: skip
"""Calls that fail as on a kernel without them (ENOSYS), because programs then fall back to older calls. The operations
of io_uring bypass seccomp, and the flags of clone3 are in memory, which a filter can't read."""

MODES: Mapping[str, tuple[int | None, int | None, int]] = {
    "chmod": (90, None, 1), "fchmod": (91, 52, 1), "fchmodat": (268, 53, 2), "fchmodat2": (452, 452, 2),
    "creat": (85, None, 1), "mknod": (133, None, 1), "mknodat": (259, 33, 2),
}  # fmt: skip
"""By name, the numbers and the position of the mode argument. Modes with the setuid bit are denied: such a file would
give its owner's rights to any user, even outside the sandbox. The setgid bit is allowed, because folders use it."""
OPENING: Mapping[str, tuple[int | None, int | None, int]] = {"open": (2, None, 1), "openat": (257, 56, 2)}
"""The same for calls with flags, at this position, before the mode. The mode counts only if the flags create a file."""

METADATA: Mapping[str, tuple[int | None, int | None]] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "setxattrat": (463, 463), "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}  # fmt: skip
"""System calls that change a file's mode, owner, times or attributes. Landlock does not cover them, so the filter
denies them to read-only programs."""
SHARED_MEMORY: Mapping[str, tuple[int, int]] = {
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
}  # fmt: skip
"""System V and POSIX IPC: the objects may belong to other programs of the user, such as a database."""
TUNING: Mapping[str, tuple[int, int, int]] = {
    "prlimit64": (302, 261, 0), "sched_setparam": (142, 118, 0), "sched_setscheduler": (144, 119, 0),
    "sched_setaffinity": (203, 122, 0),
    "sched_setattr": (314, 274, 0),
}  # fmt: skip
"""By name, the numbers and the position of the process argument. Only 0, the caller itself, is allowed."""
PRIORITIES: Mapping[str, tuple[int, int]] = {"setpriority": (141, 140), "ioprio_set": (251, 30)}
"""Always denied, because 0 can mean all processes of the user here."""
READING_IOCTLS = (
    0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A, 0x80086601, 0xC020660B,
)  # fmt: skip
"""TCGETS, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, TCGETS2, FS_IOC_GETFLAGS and FS_IOC_FIEMAP. The
others are denied to read-only programs: some change a file or create a snapshot through a read-only descriptor."""
_SETUID = 0o4000
# O_CREAT, and the bit of O_TMPFILE that O_DIRECTORY does not have.
_MAKES_FILE = 0x40 | 0x400000

CLONE, IOCTL, SOCKET = (56, 220), (16, 29), (41, 198)
NAMESPACE_FLAGS = 0x7E020000
"""Every `CLONE_NEW…`."""
TERMINAL_INJECTION = (0x5412, 0x541C)
"""`TIOCSTI` and `TIOCLINUX` type into the user's terminal."""
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16

# BPF_LD | BPF_W | BPF_ABS, BPF_JMP with JEQ, JSET and JGE, and BPF_RET, all with constants.
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
# Offsets in `struct seccomp_data`.
_ARCHITECTURE_AT, _NUMBER_AT, _ARGUMENTS_AT = 4, 0, 16
# SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS, and SECCOMP_RET_ERRNO with the error in its low half.
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _EACCES, _ENOTTY, _EROFS, _ENOSYS, _ENETDOWN = 1, 13, 25, 30, 38, 100
_X32_BIT = 0x40000000


def build_filter(machine: str, *, families: Iterable[int], read_only: bool = False) -> bytes:
    """Build the filter for `machine`, a key of `ARCHITECTURES`. `families` are the allowed address families of sockets.

    A `read_only` program can't change metadata, reach other programs, or create any socket.
    """
    column = list(ARCHITECTURES).index(machine)
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        # 32-bit programs use other numbers, so they could bypass the filter: kill them.
        (_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        # Every test below expects the number in the accumulator; `_when` loads it again.
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    refused = [numbers[column] for numbers in REFUSED.values()]
    if machine == "x86_64":
        # The x32 ABI has other numbers for the same calls.
        program += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _ERROR | _EPERM)]
        refused += REFUSED_X86
    for number in refused:
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | _EPERM)]
    for numbers in ABSENT.values():
        program += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ERROR | _ENOSYS)]
    program += _when(CLONE[column], 0, [(_ANY_BIT, 0, 1, NAMESPACE_FLAGS), (_RETURN, 0, 0, _ERROR | _EPERM)])
    allowed = _unless_one_of(READING_IOCTLS, _ENOTTY) if read_only else _unless_none_of(TERMINAL_INJECTION)
    program += _when(IOCTL[column], 1, allowed)
    if read_only:
        program += _refuse_changes(column)
    else:
        program += _when(SOCKET[column], 0, _unless_one_of(tuple(families)))
    program += _refuse_setuid(column)
    program.append((_RETURN, 0, 0, _ALLOW))
    # The kernel's `struct sock_filter`.
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _refuse_changes(column: int) -> list[Instruction]:
    # The errors of a read-only file system and of a network that is down: `tools.shell.bash` recognizes their messages,
    # and users don't mistake them for missing permissions.
    program: list[Instruction] = [(_EQUAL, 0, 1, SOCKET[column]), (_RETURN, 0, 0, _ERROR | _ENETDOWN)]
    for numbers in METADATA.values():
        if (number := numbers[column]) is not None:
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | _EROFS)]
    for shared in SHARED_MEMORY.values():
        program += [(_EQUAL, 0, 1, shared[column]), (_RETURN, 0, 0, _ERROR | _EROFS)]
    for priority in PRIORITIES.values():
        program += [(_EQUAL, 0, 1, priority[column]), (_RETURN, 0, 0, _ERROR | _EPERM)]
    for *tuning, process in TUNING.values():
        program += _when(tuning[column], process, [(_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _ERROR | _EPERM)])
    return program


def _refuse_setuid(column: int) -> list[Instruction]:
    tests: list[Instruction] = [(_ANY_BIT, 0, 1, _SETUID), (_RETURN, 0, 0, _ERROR | _EPERM)]
    program: list[Instruction] = []
    for *numbers, mode in MODES.values():
        if (number := numbers[column]) is not None:
            program += _when(number, mode, tests)
    for *numbers, flags in OPENING.values():
        if (number := numbers[column]) is not None:
            # Arguments are 64 bits wide, and the low half comes first on both processors.
            load: Instruction = (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * (flags + 1))
            program += _when(number, flags, [(_ANY_BIT, 0, 1 + len(tests), _MAKES_FILE), load, *tests])
    return program


def _when(number: int, argument: int, body: list[Instruction]) -> list[Instruction]:
    """Test the low half of an argument of a system call, then load the call's number again."""
    loaded: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument), *body, (_LOAD, 0, 0, _NUMBER_AT)]
    return [(_EQUAL, 0, len(loaded), number), *loaded]


def _unless_none_of(values: tuple[int, ...]) -> list[Instruction]:
    tests: list[Instruction] = []
    for value in values:
        tests += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ERROR | _EPERM)]
    return tests


def _unless_one_of(values: tuple[int, ...], error: int = _EACCES) -> list[Instruction]:
    # Jumps count from the next instruction, so a match skips the remaining tests and the error.
    tests: list[Instruction] = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [*tests, (_RETURN, 0, 0, _ERROR | error)]
