"""A private RabbitMQ node for tests, on loopback ports, ended with its user. Not for production.

It is started without the wrapper of the distributions, which requires root, switches to its own user and writes below
`/var`. The node has its own port mapper (`epmd`), which would otherwise outlive the tests.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from metier.errors import MetierError
from services.ports import find_free_ports

_PACKAGED = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Folders in which Debian and Fedora keep the program that their wrapper calls."""
_START_SECONDS = 120.0
_GREETING = b"AMQP\x00\x00\x09\x01"


def find_rabbitmq() -> Path | None:
    """Return this machine's program if Erlang's port mapper is available too."""
    found = str(_PACKAGED) if _PACKAGED.exists() else shutil.which("rabbitmq-server")
    return Path(found) if found and shutil.which("epmd") else None


@dataclass(slots=True)
class RabbitServer:
    """A node started by `run_rabbitmq`, which a test can restart and stop."""

    program: Path
    folder: Path
    port: int
    distribution_port: int
    mapper_port: int
    settings: Mapping[str, int]
    """Of the Erlang application `rabbit`."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def start(self) -> None:
        """Start the server. Raise `MetierError` with its output if that fails."""
        terms = ", ".join(f"{{{name}, {value}}}" for name, value in self.settings.items())
        (self.folder / "advanced.config").write_text(f"[{{rabbit, [{terms}]}}].\n", encoding="utf-8")
        (self.folder / "rabbitmq.conf").touch()
        (self.folder / "plugins").write_text("[].\n", encoding="utf-8")
        mapper = shutil.which("epmd") or "epmd"
        self._spawn(mapper, "-port", str(self.mapper_port), "-address", "127.0.0.1")
        self._spawn(str(self.program))
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self.processes[-1].poll() is not None or time.monotonic() > deadline:
                said = (self.folder / "out").read_text(encoding="utf-8", errors="replace")[-2000:]
                self.stop(is_immediate=True)
                raise MetierError(f"RabbitMQ did not start: {said}", hint="Look at the log above")
            time.sleep(0.05)

    def stop(self, *, is_immediate: bool = False) -> None:
        """Stop the node gracefully, or like a power failure. The port mapper ends last."""
        while self.processes:
            process = self.processes.pop()
            process.send_signal(signal.SIGKILL if is_immediate else signal.SIGTERM)
            process.wait()

    def restart(self, *, is_immediate: bool = False) -> None:
        self.stop(is_immediate=is_immediate)
        self.start()

    def _spawn(self, *command: str) -> None:
        setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
        with (self.folder / "out").open("ab") as written:
            process = subprocess.Popen(
                [*([setpriv, "--pdeathsig", "KILL"] if setpriv else []), *command],
                cwd=self.folder,
                env=self._build_environment(),
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
            )
        self.processes.append(process)

    def _build_environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),  # of the cookie
            "ERL_EPMD_PORT": str(self.mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"metier{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "environment"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # The shell becomes the node instead of waiting for it: a signal that ends the one ends the other.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(_GREETING)
                return connection.recv(1) == b"\x01"
        except OSError:
            return False


@contextlib.contextmanager
def run_rabbitmq(settings: Mapping[str, int] | None = None) -> Generator[RabbitServer]:
    """Run a fresh node during the block. Raise `MetierError` if RabbitMQ is missing."""
    program = find_rabbitmq()
    if program is None:
        raise MetierError("RabbitMQ is not installed here", hint="Install the package rabbitmq-server")
    with tempfile.TemporaryDirectory(prefix="rabbitmq-", ignore_cleanup_errors=True) as folder:
        port, distribution_port, mapper_port = find_free_ports(3)
        server = RabbitServer(
            program=program,
            folder=Path(folder),
            port=port,
            distribution_port=distribution_port,
            mapper_port=mapper_port,
            settings=settings or {},
        )
        try:
            server.start()
            yield server
        finally:
            server.stop(is_immediate=True)
