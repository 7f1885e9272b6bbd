"""The command `agent`, started as a fork of a process that has imported Metier already.

Starting Python and importing Metier is most of what a short command costs. Where a test types in one command after the
other and it does not matter how the process began, `forked_agent` gives it a program that is called like `agent`, takes
the same words, streams, folder and environment, and ends in the same way, in a process of its own.

    python agent_forks.py SOCKET    leaves behind the process that forks; it ends when it has no user any more
"""

import atexit
import contextlib
import fcntl
import functools
import gc
import hashlib
import importlib
import json
import os
import pkgutil
import runpy
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import traceback
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, override

CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
told = os.environ.pop("AGENT_FORK_TOLD", "")
program = os.path.basename(sys.argv[0])
if program == "python" and not (sys.argv[1:] and sys.argv[1].endswith(".py")):
    os.execv({own!r}, [{own!r}, *sys.argv[1:]])
order = {{"program": program, "words": sys.argv[1:], "folder": os.getcwd(), "mask": os.umask(0)}}
order["environment"] = dict(os.environ)
os.umask(order["mask"])
order["leads"] = os.getsid(0) == os.getpid()
body = json.dumps(order).encode("utf-8", "surrogateescape")
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [len(body).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(body)
    answers = server.makefile("r")
    child = int(answers.readline())
    if told:
        os.write(int(told), b"%d\\n" % child)
        os.close(int(told))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: os.kill(child, received))
    code = int(answers.readline() or "1")
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""

MEASURED = "COVERAGE_PROCESS_CONFIG"
"""See `measured_processes`."""
FIRST = "AGENT_FORK_FIRST"
"""The variable with the Python code that a fork executes before its command, for tests that watch it from inside."""
NO_ORDER = bytes(4)
"""What a process says that keeps the connection: it uses forks."""
LEFT_OUT = ("metier.bundled", "metier.testing", "metier.worker")
"""Not imported before the fork: it is not part of the commands, or brings threads and signal handlers of its own."""

REHEARSED = (
    ("run", "--provider", "offline", "inventory the workspace"),
    ("resume", "latest"),
    ("runs", "show", "latest"),
)


@functools.cache
def forked_agent() -> Path:
    """The program `agent`, alone in its folder. One process forks for all processes of a test run."""
    folder = _find_folder()
    address = folder / "socket"
    with locked(folder):
        user = _connect(address)
        if user is None:
            folder.mkdir(exist_ok=True)
            _start_server(address)
            user = _connect(address)
            assert user is not None
    atexit.register(user.close)  # until then the process that forks has a user
    return folder / "bin" / "agent"


def forked_python() -> Path:
    """The program `python`, alone in its folder: a file is run by a fork, anything else by the interpreter itself."""
    return forked_agent().parents[1] / "python" / "python"


def _find_folder() -> Path:
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return Path(tempfile.mkdtemp(prefix="agent-forks-"))
    # A test may start a test run of its own, of a copy of the project.
    name = hashlib.sha256(f"{run} {sys.executable} {__file__}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"agent-forks-{name}"


@contextlib.contextmanager
def locked(folder: Path) -> Generator[Path]:
    """One process at a time starts what forks, or ends it."""
    lock = folder.with_suffix(".lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield lock


def _connect(address: Path) -> socket.socket | None:
    """Say that this process may want forks; nothing if there is no process that forks."""
    user = socket.socket(socket.AF_UNIX)
    try:
        user.connect(str(address))
        user.sendall(NO_ORDER)
    except OSError:
        user.close()
        return None
    return user


def _start_server(address: Path) -> None:
    # The forks inherit its state, so nothing of the test that happens to be the first may be in it.
    # A fork measures itself, where its test is one whose processes do.
    environment = {name: value for name, value in os.environ.items() if name != MEASURED}
    address.unlink(missing_ok=True)
    client = CLIENT.format(python=Path(sys.executable).resolve(), own=sys.executable, address=str(address))
    for name in ("bin/agent", "python/python"):
        program = address.parent / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(client, encoding="utf-8")
        program.chmod(0o755)
    # It ends when the process that forks, a child of it, is ready.
    subprocess.run(
        [sys.executable, __file__, str(address)], cwd=address.parent, env=environment, stdin=subprocess.DEVNULL,
        check=True,
    )  # fmt: skip


class ForkedAgent(subprocess.Popen[Any]):
    """`agent` as a fork: signals reach the fork itself, and when this has ended, the fork has.

    With `start_new_session` the fork leads a session of its own, and a terminal that is its input is that session's.
    """

    def __init__(self, words: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any) -> None:
        reading, writing = os.pipe()
        environment = {**(os.environ if env is None else env), "AGENT_FORK_TOLD": str(writing)}
        with os.fdopen(reading, "rb") as told:
            try:
                super().__init__([forked_agent(), *words], env=environment, pass_fds=[writing], **options)
            finally:
                os.close(writing)
            self.agent_pid: int = int(told.readline())
            """Of the process of the command; `pid` is that of the program which waits for it."""

    @override
    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.agent_pid, sig)


class Forks:
    """Forks for each connection, and tells it how the fork ended."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.selector = selectors.DefaultSelector()
        self.running: dict[int, socket.socket] = {}
        self.users: set[socket.socket] = set()

    def serve(self) -> dict[str, Any] | None:
        """What the command of this fork is; nothing in the process that forks, when no more are wanted."""
        woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(waker)
        self.selector.register(woken, selectors.EVENT_READ, "ended")
        self.selector.register(self.listening, selectors.EVENT_READ, "asked")
        while True:
            for key, _ in self.selector.select():
                if key.data == "ended":
                    os.read(woken, 4096)
                    self.tell_ends()
                elif key.data == "asked":
                    order = self.fork()
                    if order is not None:
                        os.close(woken)
                        os.close(waker)
                        return order
                elif isinstance(key.data, int):
                    self.leave(key.data)
                elif self.is_last(key.data):
                    return None

    def fork(self) -> dict[str, Any] | None:
        connection, _ = self.listening.accept()
        length, streams, _, _ = socket.recv_fds(connection, 4, 3)
        if length == NO_ORDER:
            self.users.add(connection)
            self.selector.register(connection, selectors.EVENT_READ, connection)
            return None
        with connection.makefile("rb") as reader:
            body = reader.read(int.from_bytes(length, "big"))
        try:
            order: dict[str, Any] = json.loads(body)
        except ValueError:  # the program was killed before it had said all
            connection.close()
            for stream in streams:
                os.close(stream)
            return None
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            self.close()
            connection.close()
            return order
        for stream in streams:
            os.close(stream)
        with contextlib.suppress(OSError):
            connection.sendall(f"{child}\n".encode())
        self.running[child] = connection
        self.selector.register(connection, selectors.EVENT_READ, child)
        return None

    def tell_ends(self) -> None:
        for child in list(self.running):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                connection = self.running.pop(child)
                self.selector.unregister(connection)
                with contextlib.suppress(OSError):
                    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                connection.close()

    def leave(self, child: int) -> None:
        """The program that asked for it is gone, so its fork goes the same way."""
        if child not in self.running:  # it ended at the same moment
            return
        self.selector.unregister(self.running[child])
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        self.running.pop(child).close()

    def is_last(self, user: socket.socket) -> bool:
        """One is gone: whether there is none any more, and none on the way. Then it is over."""
        self.selector.unregister(user)
        self.users.remove(user)
        user.close()
        if self.users:
            return False
        folder = Path(self.listening.getsockname()).parent
        with locked(folder) as lock:
            if select.select([self.listening], [], [], 0)[0]:
                return False
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink()
        return True

    def close(self) -> None:
        self.selector.close()
        self.listening.close()
        for connection in (*self.running.values(), *self.users):
            connection.close()


def prepare() -> None:
    """Import what commands import."""
    for name in ("anyio._backends._asyncio", "asyncio", "coverage", "jsonschema", "rich.console", "rich.table", "yaml"):
        importlib.import_module(name)
    metier = importlib.import_module("metier")
    for module in pkgutil.walk_packages(metier.__path__, "metier."):
        if not module.name.startswith(LEFT_OUT):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)


def rehearse() -> None:
    """Call commands once in this process, so that no fork fills the caches of Metier and its libraries again."""
    run = importlib.import_module("metier.cli.main").run
    began, environment, streams = Path.cwd(), dict(os.environ), (sys.stdin, sys.stdout, sys.stderr)
    with tempfile.TemporaryDirectory() as scratch, open(os.devnull, "r+", encoding="utf-8") as nothing:
        os.chdir(scratch)
        os.environ.clear()
        os.environ.update({"HOME": scratch, "PATH": environment.get("PATH", os.defpath), "AGENT_SKILLS": "all"})
        sys.stdin = sys.stdout = sys.stderr = nothing
        try:
            for words in REHEARSED:
                run(list(words))
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams
            os.chdir(began)
            os.environ.clear()
            os.environ.update(environment)
    tempfile.tempdir = None  # a command finds its own
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(60)
    assert threading.active_count() == 1, "a thread would be missing in the forks"


def become(order: dict[str, Any]) -> int:
    """The command itself."""
    os.environ.clear()
    os.environ.update(order["environment"])
    if FIRST in os.environ:
        exec(os.environ.pop(FIRST), {})
    os.chdir(order["folder"])
    os.umask(order["mask"])
    if order["leads"]:
        os.setsid()
        with contextlib.suppress(OSError):  # no terminal, or one of another session
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if MEASURED in os.environ:
        importlib.import_module("coverage").process_startup()
    sys.argv = [str(Path(sys.executable).with_name("agent")), *order["words"]]
    # Whatever the tests were started with: a shell starts a background job to ignore two of them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    try:
        if order["program"] == "python":
            return run_file(order["words"])
        importlib.import_module("metier.cli.main").main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


def run_file(words: list[str]) -> int:
    """As `python FILE …` does."""
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    try:
        runpy.run_path(words[0], run_name="__main__")
    except Exception:  # noqa: BLE001  a program may raise anything
        traceback.print_exc()
        return 1
    return 0


def end(code: int) -> NoReturn:
    """End as a process does, but for taking all modules apart: that would copy every page of memory first."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()
    atexit._run_exitfuncs()  # what is measured is saved here  # pyright: ignore[reportPrivateUsage]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, AttributeError):
            stream.flush()
    os._exit(code)


def main(address: str) -> None:
    prepare()
    importlib.import_module("metier.testing.warm_process").warm_process()
    rehearse()
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        if os.fork():
            os._exit(0)  # the user can connect now
        order = Forks(listening).serve()
    if order is not None:
        end(become(order))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
