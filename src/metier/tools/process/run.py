"""Run a program with a time limit and bounded output, and kill its whole process tree. No policy, no shell.

The supervisor removes the program's scratch folder, even if the agent dies. If the supervisor is killed too, the folder
stays without a lock; `clear_scratch` finds and removes it later.
"""

import errno
import os
import re
import secrets
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream, ByteSendStream, Process
from msgspec import Struct, field

from metier.definitions.files.quarantine import record_launch, settle
from metier.errors import ToolFailed
from metier.programs import launcher
from metier.programs.launcher import Program, open_command, open_program, run_program_async, use_own_program
from metier.tools.base import ShowOutput
from metier.tools.process.bounded_output import Capture, Output
from metier.tools.process.child_environment import base_interpreter
from metier.tools.process.sandbox.confinement import SCRATCH, Confinement, Launch, locate_scratch
from metier.tools.process.scratch import remove_tree
from metier.tools.process.spool import hold

SUPERVISOR = Path(__file__).with_name("supervisor.py")

TREE_VARIABLE = "METIER_PROCESS_TREE"
"""Marks every process of a tree, so that all can be found even if the supervisor was killed."""

# The capacity of a pipe on Linux: one read empties it.
_CHUNK_BYTES = 65_536
_CROWDED = 2
"""The supervisor's code for too many processes."""
_STOP_SECONDS = 15.0
"""Time for the supervisor to end everything; it gives up on unkillable processes after ten seconds."""
_LAST_WORDS_SECONDS = 2.0
"""Time to keep reading after all processes have ended. Only a stream passed to another process stays open longer."""
_REST_SECONDS = 0.25
"""The same per stream after an interruption. It is shorter because the user is waiting."""


class ProcessLimits(Struct, frozen=True, kw_only=True):
    timeout_seconds: float = 60
    grace_seconds: float = 0.5
    """Time between SIGTERM and SIGKILL."""
    max_stdout_bytes: int = 1_048_576
    max_stderr_bytes: int = 65_536
    resources: Mapping[str, int] = field(default_factory=dict[str, int])
    """`{"cpu": 60, "nofile": 256}`: names of `RLIMIT_…` (see setrlimit), not applied on Windows."""


class Ended(Struct, frozen=True, kw_only=True):
    """The end of a program, with the number of processes that could not be killed."""

    exit_code: int | None
    """None when a signal ended it, or when it was stopped."""
    signal: int | None = None
    left: int = 0
    """Processes that could not be killed because they are stuck in the kernel; normally 0."""
    problem: str = ""
    """The reason why it did not start."""
    crowded: bool = False
    """It was killed because it had too many processes."""
    moved: tuple[str, ...] = ()
    """New locations of the protected paths that it created."""


class Outcome(Struct, frozen=True, kw_only=True):
    exit_code: int | None
    signal: int | None
    timed_out: bool
    stdout: Output
    stderr: Output
    duration_seconds: float
    left: int = 0
    notice: str = ""
    """Notice about the protected paths that it created, if any."""


class Command(Struct, frozen=True, kw_only=True):
    """A command to run: an argument list, a folder, and the whole environment."""

    arguments: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    spool: Path | None = None
    """File in which the supervisor records start and end, for recovery after a crash; see `spool.py`."""
    confinement: Confinement | None = field(default_factory=Confinement)
    """Sandbox and resource limits of the program; None only for programs of the launcher."""
    program: Program | None = None
    """The launcher's program that this command starts, if it runs outside every sandbox."""

    def __post_init__(self) -> None:
        if self.confinement is None and self.program is None:
            raise ValueError(f"{self.arguments[0]!r} would run outside of the sandbox, and not by the launcher")


def build_own_command(program: Program, *arguments: str, folder: Path) -> Command:
    """Build the command of a program that runs without a sandbox: `uv`, a notification, an accepted server."""
    return Command(
        arguments=[*program.command, *arguments],
        folder=folder,
        environment=program.environment,
        confinement=None,
        program=program,
    )


async def run_process(
    command: Command,
    limits: ProcessLimits | None = None,
    *,
    stdin: bytes | None = None,
    keep_partial: Callable[[Output, Output], None] | None = None,
    show: ShowOutput | None = None,
) -> Outcome:
    """Run a program to its end, time limit or cancellation. All processes that it started are gone afterwards.

    The program may read `stdin`. `keep_partial` receives standard output and standard error if cancellation ended the
    program. Raises `ToolFailed` if the program cannot be started.
    """
    limits = limits or ProcessLimits()
    started = time.monotonic()
    stdout, stderr = Capture(limits.max_stdout_bytes), Capture(limits.max_stderr_bytes)
    tree = await ProcessTree.start(command, limits, with_stdin=stdin is not None)
    async with tree:
        try:
            timed_out = await _follow(tree, stdout, stderr, limits=limits, stdin=stdin, show=show)
        except anyio.get_cancelled_exc_class():
            if keep_partial is not None:
                await _read_rest(tree, stdout, stderr)
                keep_partial(stdout.output(), stderr.output())
            raise
    ended = await tree.wait()
    if ended.problem:
        raise ToolFailed(f"{command.arguments[0]!r} could not be started: {ended.problem}", code="not_started")
    if ended.crowded and command.confinement:
        stderr.add(f"\n[killed: it had more than {command.confinement.processes} processes at once]\n".encode())
    notice = describe_moved(ended.moved)
    if notice:
        stderr.add(f"\n[{notice}]\n".encode())
    return Outcome(
        exit_code=None if timed_out else ended.exit_code,
        signal=ended.signal,
        timed_out=timed_out,
        stdout=stdout.output(),
        stderr=stderr.output(),
        duration_seconds=time.monotonic() - started,
        left=ended.left,
        notice=notice,
    )


async def _follow(
    tree: "ProcessTree",
    stdout: Capture,
    stderr: Capture,
    *,
    limits: ProcessLimits,
    stdin: bytes | None,
    show: ShowOutput | None,
) -> bool:
    """Collect the output until everything has ended. Return True if the time limit ended it."""
    timed_out = False
    async with anyio.create_task_group() as readers:
        readers.start_soon(collect, tree.stdout, stdout.add, partial(show, "stdout") if show else None)
        readers.start_soon(collect, tree.stderr, stderr.add, partial(show, "stderr") if show else None)
        if stdin is not None:
            readers.start_soon(_feed, tree.stdin, stdin)
        with anyio.move_on_after(limits.timeout_seconds) as clock:
            await tree.wait()
        timed_out = clock.cancelled_caught
        await tree.stop()
        readers.cancel_scope.deadline = anyio.current_time() + _LAST_WORDS_SECONDS
    return timed_out


async def _read_rest(tree: "ProcessTree", stdout: Capture, stderr: Capture) -> None:
    """End an interrupted program and read the output that is still in its pipes."""
    with anyio.CancelScope(shield=True):
        await tree.stop()
        for stream, capture in ((tree.stdout, stdout), (tree.stderr, stderr)):
            with anyio.move_on_after(_REST_SECONDS):
                await collect(stream, capture.add)


def describe_moved(places: Sequence[str]) -> str:
    if not places:
        return ""
    return f"protected paths that did not exist were created; they were moved to quarantine: {', '.join(places)}"


class ProcessTree:
    """A running program with all processes that it started. Leaving the `async with` block ends them."""

    def __init__(self, process: Process, *, control: int, status: int, mark: str, record: str = "") -> None:
        self._process = process
        self._control = control
        self._status = status
        self._mark = mark
        self._record = record
        self._ended: Ended | None = None

    @classmethod
    async def start(cls, command: Command, limits: ProcessLimits, *, with_stdin: bool = False) -> Self:
        """Start a program. Raises `ToolFailed` if its folder is missing; if the program is, `Ended.problem` says so."""
        mark = secrets.token_hex(8)
        environment = {**command.environment, TREE_VARIABLE: mark}
        stdin = subprocess.PIPE if with_stdin else subprocess.DEVNULL
        try:
            if sys.platform == "win32":
                process = await open_command(
                    command.arguments, folder=command.folder, environment=environment, stdin=stdin
                )
                return cls(process, control=-1, status=-1, mark=mark)
            launch = await _prepare(command, mark)
            environment |= launch.variables
            with _open_environ(environment) as environ:
                return await cls._start_supervised(command, limits, launch, environ=environ, stdin=stdin)
        except OSError as error:
            raise _not_started(command, error) from error

    @classmethod
    async def _start_supervised(
        cls, command: Command, limits: ProcessLimits, launch: Launch, *, environ: int, stdin: int
    ) -> Self:
        # Before the supervisor starts, so that recovery never sees the step running without its lock.
        lock = hold(command.spool) if command.spool else -1
        # Before the program exists: protected paths that it creates are ignored from its first write on.
        watch, record = _record_launch(launch)
        # Closing `control` stops the program. The kernel does that too if the agent dies, so none outlives it.
        their_control, control = os.pipe()
        status, their_status = os.pipe()
        spool = str(command.spool) if command.spool else ""
        orders = [str(their_control), str(their_status), str(environ)]
        orders += [str(limits.grace_seconds), _render_limits(command, limits)]
        orders += [spool, str(lock), *_render_launch(command, launch), record, str(watch)]
        # Not the command's environment: its LD_PRELOAD must not affect the supervisor, which runs outside the sandbox.
        start = (base_interpreter(), "-I", "-S", str(SUPERVISOR))
        supervisor = use_own_program(launcher.SUPERVISOR, *start, environment={TREE_VARIABLE: launch.mark})
        try:
            process = await open_program(
                supervisor,
                *orders,
                *launch.prefix,
                *command.arguments,
                folder=command.folder,
                stdin=stdin,
                pass_fds=[number for number in (their_control, their_status, environ, lock, watch) if number >= 0],
            )
        except BaseException:
            os.close(control)
            os.close(status)
            # No program runs, so files that appear at protected paths are the user's again.
            settle(record)
            raise
        finally:
            # The supervisor has its own copies. Ours would keep the pipes open and the locks held after its end.
            for descriptor in (their_control, their_status, lock, watch):
                if descriptor >= 0:
                    os.close(descriptor)
        return cls(process, control=control, status=status, mark=launch.mark, record=record)

    @property
    def stdin(self) -> ByteSendStream:
        return _opened(self._process.stdin)

    @property
    def stdout(self) -> ByteReceiveStream:
        return _opened(self._process.stdout)

    @property
    def stderr(self) -> ByteReceiveStream:
        return _opened(self._process.stderr)

    async def wait(self) -> Ended:
        """Wait until the program and all processes that it started have ended."""
        code = await self._process.wait()
        if self._ended is None:
            self._ended = await self._read_status(code)
        return self._ended

    async def stop(self) -> None:
        """End all processes now. Shielded from cancellation, because a half-stopped tree would leak processes."""
        with anyio.CancelScope(shield=True):
            if sys.platform == "win32":
                if self._process.returncode is None:
                    taskkill = use_own_program(launcher.TASKKILL, _get_taskkill(), environment={})
                    await run_program_async(taskkill, "/T", "/F", "/PID", str(self._process.pid))
            else:
                self._order_stop()
            with anyio.move_on_after(_STOP_SECONDS):
                await self.wait()
                return
            # The supervisor does not react: kill it, and find its processes by their mark.
            self._signal_supervisor(signal.SIGKILL)
            await self.wait()

    def _order_stop(self) -> None:
        if self._control < 0:
            return
        os.close(self._control)
        self._control = -1
        if self._process.returncode is None:
            # A program may have stopped its supervisor with SIGSTOP to outlive its time limit.
            self._signal_supervisor(signal.SIGCONT)

    def _signal_supervisor(self, number: int) -> None:
        # `Popen.send_signal` would poll first, and so take the exit status away from the event loop.
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self.stop()
            finally:
                await self._process.aclose()
                if self._status >= 0:
                    os.close(self._status)
                    self._status = -1

    async def _read_status(self, code: int) -> Ended:
        if self._status < 0:
            return Ended(exit_code=code)
        # The supervisor has ended, so its whole report is in the pipe.
        line, *moved = os.fsdecode(os.read(self._status, _CHUNK_BYTES)).removesuffix("\n").split("\0")
        words = line.split()
        if words[:1] == ["!"]:
            return Ended(exit_code=None, problem=os.strerror(int(words[1])))
        # Without a complete report, the supervisor was killed, and its processes may still run.
        if len(words) != 4:
            left = await _kill_marked(self._mark)
            return Ended(exit_code=None, signal=signal.SIGKILL, left=left, moved=tuple(settle(self._record)))
        exit_code, number, stopped, left = (int(word) for word in words)
        return Ended(
            exit_code=None if number or stopped else exit_code,
            signal=number or None,
            left=left,
            crowded=stopped == _CROWDED,
            moved=tuple(moved),
        )


async def _prepare(command: Command, mark: str) -> Launch:
    """Prepare the launch in a thread, because finding the protected paths scans the workspace."""
    confinement = command.confinement
    if confinement is None or confinement.level == "none":
        return Launch(mark=mark, scratch=locate_scratch(mark))
    return await anyio.to_thread.run_sync(lambda: confinement.prepare(command.folder, mark=mark))


def _get_taskkill() -> str:
    return str(Path(os.environ.get("SYSTEMROOT", "C:\\Windows")) / "System32" / "taskkill.exe")


@contextmanager
def _open_environ(environment: Mapping[str, str]) -> Generator[int]:
    """Open a file with the command's environment. Passed as arguments, its secrets would be visible to every user."""
    items = [f"{name}={value}" for name, value in environment.items()]
    if any("\0" in item for item in items):
        raise OSError(errno.EINVAL, "A variable of its environment holds a zero byte")
    with ExitStack() as opened:
        if sys.platform == "linux":
            # In memory, so that secrets never reach a disk.
            descriptor = os.memfd_create("environ")
            opened.callback(os.close, descriptor)
        else:
            descriptor = opened.enter_context(tempfile.TemporaryFile()).fileno()
        os.write(descriptor, b"\0".join(os.fsencode(item) for item in items))
        yield descriptor


def _render_limits(command: Command, limits: ProcessLimits) -> str:
    resources = dict(command.confinement.resources) if command.confinement else {}
    # The stricter one of the sandbox's and the caller's limit applies.
    for name, value in limits.resources.items():
        resources[name] = min(value, resources.get(name, value))
    return ",".join(f"{name}={value}" for name, value in resources.items())


def _render_launch(command: Command, launch: Launch) -> list[str]:
    processes = command.confinement.processes if command.confinement else 0
    return [str(processes), launch.level, str(launch.scratch or "")]


def _record_launch(launch: Launch) -> tuple[int, str]:
    """Record a confined launch. Returns the locking descriptor and the record's path; -1 and "" if it needs none."""
    if not launch.absent:
        return -1, ""
    quarantine = str(launch.quarantine or "")
    return record_launch(
        launch.mark, workspace=str(launch.workspace), missing=list(launch.absent), quarantine=quarantine
    )


def _opened[Stream](stream: Stream | None) -> Stream:
    if stream is None:
        raise ToolFailed("The stream was not opened for this process")
    return stream


async def collect(
    stream: ByteReceiveStream, add: Callable[[bytes], None], show: Callable[[bytes], None] | None = None
) -> None:
    """Pass on everything that arrives in a stream, until it ends."""
    try:
        while True:
            chunk = await stream.receive(_CHUNK_BYTES)
            add(chunk)
            if show is not None:
                show(chunk)
    except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
        return


async def _feed(stream: ByteSendStream, data: bytes) -> None:
    """Write the standard input. A program may end without reading all of it."""
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        await stream.send(data)
        await stream.aclose()


async def _kill_marked(mark: str) -> int:
    """Kill the processes of a dead supervisor by their mark. Returns the number that remain after three seconds."""
    with anyio.move_on_after(3):
        # Repeated, because a process may fork between the listing and the kill.
        while marked := list_marked(mark):
            for process in marked:
                try:
                    os.kill(process, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue
            await anyio.sleep(0.01)
    return len(list_marked(mark))


def list_marked(mark: str) -> list[int]:
    """List the processes of a tree that still have its variable in their environment."""
    wanted = f"{TREE_VARIABLE}={mark}".encode()
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The environment at the start of the process: a program may change its own later, but not this file.
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _not_started(command: Command, error: OSError) -> ToolFailed:
    if not command.folder.is_dir():
        return ToolFailed(f"Folder {str(command.folder)!r} does not exist", code="not_started")
    return ToolFailed(f"{command.arguments[0]!r} could not be started: {error.strerror}", code="not_started")


_NAME = re.compile(rf"{SCRATCH}([0-9a-f]{{16}})(\.removed)?")
YOUNG_SECONDS = 60


def clear_scratch() -> int:
    """Remove abandoned scratch folders and return their number. Those that can't be removed are left for later."""
    return sum(_clear(Path(tempfile.gettempdir()) / name) for name in _list_scratch())


def _list_scratch() -> list[str]:
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(SCRATCH)]
        return [name for name in names if _NAME.fullmatch(name)]
    return []


def _clear(folder: Path) -> bool:
    """Remove a scratch folder if it belongs to this user and no process has locked it."""
    import fcntl  # noqa: PLC0415  not on every platform

    found = _NAME.fullmatch(folder.name)
    assert found is not None, "listed by this pattern"
    try:
        state = folder.lstat()
        # A supervisor takes a moment between creating and locking its folder, so young folders are left alone.
        is_own = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
        if not is_own or time.time() - state.st_mtime < YOUNG_SECONDS:
            return False
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # A living supervisor holds this lock, so the one who gets it may remove the folder.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _kill(found[1])
        remove_tree(str(folder).removesuffix(".removed"))
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _kill(mark: str) -> None:
    """Kill the processes that the kernel did not end together with the supervisor."""
    for process in list_marked(mark):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)
