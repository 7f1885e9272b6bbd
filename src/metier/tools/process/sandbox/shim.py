"""Give up rights, then execute the command. Run as a file by the bare interpreter, inside bubblewrap or without it.

    python -I -S shim.py ORDERS COMMAND…

ORDERS is a JSON object, see `Orders`. The shim imports nothing of Metier and little else, because it starts with each
command. It exits if it cannot give up a right: a command never runs with more rights than ordered. `METIER_REPORT` has
three descriptors, `ERRORS:STATUS:ENVIRON`. ERRORS receives the error number if the command cannot be started. If there
is a STATUS, this process stays as the first of its process namespace, reaps children, and writes the command's wait
status there. ENVIRON is a file with the command's environment, which only the command receives.
"""

import ctypes
import errno
import json
import os
import stat
import struct
import sys
from binascii import a2b_base64

REPORT_VARIABLE = "METIER_REPORT"
NOT_STARTED = 127

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 4, 22, 24, 38, 47
SECCOMP_MODE_FILTER, PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""The system calls of Landlock, with the same numbers on all architectures."""
CAPABILITY_VERSION, LAST_CAPABILITY = 0x20080522, 63
CAPSET = {"x86_64": 126, "aarch64": 91}
SOCKET = {"x86_64": 41, "aarch64": 198}
AF_UNIX, SOCK_STREAM = 1, 1
MAX_PROBES = 64
"""Maximum number of a folder's entries to probe before a read-only program starts."""

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
MAKE_DEVICES = 1 << 6 | 1 << 11
"""Creating character devices and block devices."""
REFER, TRUNCATE, IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
ALL_SINCE = (0x1FFF, 0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF)
"""All rights by version of Landlock; later versions use the last."""
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
READING = EXECUTE | READ_FILE | READ_DIR
LIBRARY = ctypes.CDLL(None, use_errno=True)
LIBRARY.syscall.restype = ctypes.c_long
SINCE_SCOPES = 6
ABSTRACT_SOCKETS, SIGNALS = 1, 2


class Grant:
    """A right on everything below a path, except for the exceptions and everything below them.

    The right is `read`, `write` (which includes reading) or `device`.
    """

    def __init__(self, path: str, right: str, exceptions: list[str]) -> None:
        self.path = path
        self.right = right
        self.exceptions = exceptions


class Orders:
    """The parsed orders. `landlock` means that Landlock is required; inside bubblewrap it may be missing."""

    def __init__(self, text: str) -> None:
        orders = json.loads(text)
        self.grants = [Grant(*grant) for grant in orders["grants"]]
        self.landlock = bool(orders["landlock"])
        self.seccomp = a2b_base64(orders["seccomp"])
        self.unwritable = str(orders["unwritable"])


class Refused(Exception):
    """A right could not be given up."""


def main(arguments: list[str]) -> int:
    orders, *command = arguments
    report = take_report()
    if report.status >= 0:
        return stay(Orders(orders), command, report)
    return become(Orders(orders), command, report)


class Report:
    """Descriptors that the command must not inherit, -1 for a missing one, and the command's environment."""

    def __init__(self, errors: int = -1, status: int = -1, environ: dict[str, str] | None = None) -> None:
        self.errors = errors
        self.status = status
        self.environ = environ


def take_report() -> Report:
    words = os.environ.pop(REPORT_VARIABLE, "").split(":")
    if len(words) != 3:
        return Report()
    errors, status, environ = (int(word) for word in words)
    for descriptor in (errors, status):
        if descriptor >= 0:
            # Closing on exec tells the reader of ERRORS that the command was started.
            os.set_inheritable(descriptor, False)  # noqa: FBT003  its second parameter has no name
    return Report(errors, status, read_environ(environ))


def read_environ(descriptor: int) -> dict[str, str]:
    # `pread`, because the writer shares the file's position, which is at the end.
    content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    os.close(descriptor)
    pairs = (os.fsdecode(item).partition("=") for item in content.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def stay(orders: Orders, command: list[str], report: Report) -> int:
    """Run as the first process of a process namespace: when it ends, the kernel kills the rest."""
    # This process keeps the rights that the command gives up, so the command must not be able to trace it.
    prctl(PR_SET_DUMPABLE, 0)
    child = os.fork()
    if child == 0:
        os.close(report.status)
        os._exit(become(orders, command, report))
    os.close(report.errors)
    while True:
        ended, how = os.wait()
        if ended == child:
            os.write(report.status, str(how).encode())
            return 0


def become(orders: Orders, command: list[str], report: Report) -> int:
    environ = dict(os.environ) if report.environ is None else report.environ
    try:
        restrict(orders)
        os.execvpe(command[0], command, environ)  # noqa: S606  an argument list, and there is no shell
    except Refused as refused:
        sys.stderr.write(f"sandbox: {refused}\n")
        number = errno.EPERM
    except OSError as error:
        number = error.errno or errno.EIO
    if report.errors >= 0:
        os.write(report.errors, str(number).encode())
    return NOT_STARTED


def restrict(orders: Orders) -> None:
    # First, because an unprivileged process may only install Landlock rules and a seccomp filter with this flag. Setuid
    # programs give no rights with it.
    check(prctl(PR_SET_NO_NEW_PRIVS, 1), "privileges of programs")
    drop_capabilities()
    restrict_files(orders)
    install_filter(orders.seccomp)
    # After the filter, which is what keeps the process from creating sockets.
    if orders.unwritable:
        check_read_only(orders.unwritable)


def check_read_only(folder: str) -> None:
    """Raise `Refused` if this process can still write or connect. Each start checks, because no user is asked."""
    with os.scandir(folder) as entries:
        # Probing only the top folder proves little: without mounts, no program can create files there anyway.
        near = [entry.path for entry, _ in zip(entries, range(MAX_PROBES), strict=False) if not entry.is_symlink()]
    for path in (folder, *near):
        if can_write(path):
            raise Refused(f"{path!r} can be written")
    if syscall(SOCKET[os.uname().machine], AF_UNIX, SOCK_STREAM, 0) >= 0:
        raise Refused("sockets can be made")


def can_write(path: str) -> bool:
    """Probe by opening a file without changing it, or by creating and removing a folder."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISREG(mode):
            os.close(os.open(path, os.O_WRONLY | os.O_NOFOLLOW))
            return True
        if not stat.S_ISDIR(mode):
            return False  # a pipe isn't protected by a read-only mount
        probe = f"{path}/.metier-{os.getpid()}"
        os.mkdir(probe)  # noqa: PTH102  pathlib is not worth its import here
    except OSError:
        return False
    os.rmdir(probe)  # noqa: PTH106
    return True


def drop_capabilities() -> None:
    """Drop all capabilities of root. For an ordinary user this has no effect, and dropping from the bound set fails."""
    for capability in range(LAST_CAPABILITY + 1):
        prctl(PR_CAPBSET_DROP, capability)
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    processor = os.uname().machine
    number = CAPSET.get(processor)
    if number is None:
        raise Refused(f"processor {processor!r} is not known")
    header = ctypes.create_string_buffer(struct.pack("=Ii", CAPABILITY_VERSION, 0))
    # Two `struct __user_cap_data_struct` of zeros: no capability in any set.
    check(syscall(number, header, ctypes.create_string_buffer(24)), "capabilities")


def restrict_files(orders: Orders) -> None:
    # With this flag the call creates nothing and returns the version.
    version = syscall(CREATE_RULESET, None, 0, 1)
    if version < 1:
        if orders.landlock:
            raise Refused("the kernel does not offer Landlock")
        return
    # The kernel rejects a ruleset with rights that it does not know.
    known = ALL_SINCE[min(version, len(ALL_SINCE) - 1)]
    attributes = struct.pack("=Q", known)
    # Older kernels reject a larger structure, so the scopes are only passed to those that know them.
    if version >= SINCE_SCOPES:
        attributes += struct.pack("=QQ", 0, ABSTRACT_SOCKETS | SIGNALS)
    ruleset = check(syscall(CREATE_RULESET, ctypes.create_string_buffer(attributes), len(attributes), 0), "Landlock")
    for grant in orders.grants:
        add(ruleset, grant, get_rights(grant.right) & known)
    check(syscall(RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


def get_rights(right: str) -> int:
    if right == "read":
        return READING
    if right == "device":
        return READ_FILE | WRITE_FILE | TRUNCATE
    # A device file would lead from a writable folder to hardware and terminals.
    return ALL_SINCE[-1] & ~MAKE_DEVICES & ~IOCTL_DEVICE


def add(ruleset: int, grant: Grant, rights: int) -> None:
    """Add the rules of a grant. A rule covers everything below its path, so a folder with exceptions is split."""
    path = grant.path
    exceptions = [other for other in grant.exceptions if other == path or other.startswith(f"{path.rstrip('/')}/")]
    if path in exceptions:
        return
    if not exceptions:
        add_rule(ruleset, path, rights)
        return
    # A rule applies to everything below, so exceptions can be listed, but their files can't be opened.
    add_rule(ruleset, path, rights & READ_DIR)
    with os.scandir(path) as entries:
        # A rule for a link would grant its target, wherever that is.
        inner = [entry.path for entry in entries if not entry.is_symlink()]
    for entry in inner:
        add(ruleset, Grant(entry, grant.right, exceptions), rights)


def add_rule(ruleset: int, path: str, rights: int) -> None:
    try:
        # O_PATH needs no right to read the file.
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # removed meanwhile, so there is nothing to grant
    try:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        rights = rights if is_folder else rights & FILE_RIGHTS
        if rights:
            rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor))
            check(syscall(ADD_RULE, ruleset, 1, rule, 0), f"Landlock for {path!r}")
    finally:
        os.close(descriptor)


def install_filter(instructions: bytes) -> None:
    code = ctypes.create_string_buffer(instructions, len(instructions))
    # The kernel's `struct sock_fprog`, with native padding; an instruction has eight bytes.
    program = ctypes.create_string_buffer(struct.pack("@HP", len(instructions) // 8, ctypes.addressof(code)))
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program)), "system calls")


def check(result: int, what: str) -> int:
    if result < 0:
        raise Refused(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def prctl(option: int, value: int, more: int = 0) -> int:
    # The kernel reads unsigned longs and rejects garbage in the upper halves, but ctypes passes plain numbers as ints.
    return int(LIBRARY.prctl(option, *(ctypes.c_ulong(number) for number in (value, more, 0, 0))))


def syscall(number: int, *arguments: object) -> int:
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return int(LIBRARY.syscall(ctypes.c_long(number), *wide))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
