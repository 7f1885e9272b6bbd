"""The processes of a server: a single one, or a supervisor of several that serve the same socket."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.synchronize import Event
from types import FrameType
from typing import Protocol, override

import uvicorn

from metier.programs.launcher import SERVER_PROCESS, open_own_processes
from metier.server.app import create_app
from metier.server.server_config import ServerConfig

GRACE_SECONDS = 10
"""Time for open requests to finish when the server stops."""
_POLL_SECONDS = 0.2
# A process that dies at every start must not be restarted forever.
_MAX_RESTARTS = 20
"""Restarts of dead processes before the server gives up."""

logger = logging.getLogger("metier.server")


def run_server(config: ServerConfig, listening: socket.socket, *, workers: int, announce: Callable[[], None]) -> int:
    """Serve until a signal arrives. Returns the exit code."""
    if workers > 1:
        return _Supervisor(config, listening, workers).run(announce)
    return serve_here(config, listening, announce)


def serve_here(config: ServerConfig, listening: socket.socket, announce: Callable[[], None]) -> int:
    """Serve in this process. Calls `announce` as soon as it accepts requests."""
    _prepare_logging()
    server = _Server(build_uvicorn_config(config), announce)
    server.run(sockets=[listening])
    return 0 if server.started else 1


class _Server(uvicorn.Server):
    """Calls `announce` as soon as it accepts requests."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()

    @override
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Don't re-raise the signal afterwards: this process still has to remove its token file."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def build_uvicorn_config(config: ServerConfig) -> uvicorn.Config:
    # Addresses can contain one-time codes, which must not be logged. `access_log=False` alone leaves the logger on.
    logging.getLogger("uvicorn.access").disabled = True
    options = config.open().host.settings.server
    return uvicorn.Config(
        create_app(config),
        # With `auto`, uvicorn takes a failure at startup for an application without a lifespan, and serves anyway.
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        # Anyone can send `X-Forwarded-For`, so it counts only if it comes from a named proxy.
        proxy_headers=bool(options.trusted_proxies),
        forwarded_allow_ips=list(options.trusted_proxies),
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


# A Protocol, because `Pipe` returns another class on Windows.
class Closable(Protocol):
    def close(self) -> None: ...


@dataclass(slots=True)
class _Child:
    process: SpawnProcess
    is_ready: Event
    leash: Closable
    """The parent's end of a pipe. The kernel closes it when the parent dies, even by SIGKILL, and the child stops."""


@dataclass(slots=True)
class _Supervisor:
    """The first process: it serves nothing itself and replaces processes that die."""

    config: ServerConfig
    listening: socket.socket
    size: int
    context: SpawnContext = field(default_factory=lambda: open_own_processes(SERVER_PROCESS))
    stopping: threading.Event = field(default_factory=threading.Event)
    children: list[_Child] = field(default_factory=list[_Child])

    def run(self, announce: Callable[[], None]) -> int:
        _prepare_logging()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        self.children = [self._start() for _ in range(self.size)]
        try:
            if not self._wait_until_ready():
                return 0 if self.stopping.is_set() else 1
            announce()
            return self._supervise()
        finally:
            self._end()

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping.set()

    def _start(self) -> _Child:
        is_ready = self.context.Event()
        reading, writing = self.context.Pipe(duplex=False)
        process = self.context.Process(
            target=_run_child, args=(self.config, self.listening, is_ready, reading), name="metier-server"
        )
        process.start()
        # Only the child may hold this end; otherwise it would never see the end of the pipe.
        reading.close()
        return _Child(process, is_ready, writing)

    def _wait_until_ready(self) -> bool:
        """Return False if a process failed to start or the server was stopped meanwhile."""
        for child in self.children:
            while not child.is_ready.wait(_POLL_SECONDS):
                if self.stopping.is_set() or not child.process.is_alive():
                    return False
        return True

    def _supervise(self) -> int:
        restarts = 0
        while not self.stopping.wait(_POLL_SECONDS):
            for index, child in enumerate(self.children):
                if child.process.is_alive():
                    continue
                if restarts >= _MAX_RESTARTS:
                    logger.error("server processes keep dying")
                    return 1
                restarts += 1
                logger.warning("server process %s died and is replaced", child.process.pid)
                self.children[index] = self._start()
        return 0

    def _end(self) -> None:
        for child in self.children:
            child.process.terminate()
        for child in self.children:
            # uvicorn waits for open requests, then for the lifespan, which releases runs.
            child.process.join(2 * GRACE_SECONDS)
            # For a process that did not end in time; it does nothing to one that did.
            child.process.kill()
            child.leash.close()


def _run_child(config: ServerConfig, listening: socket.socket, is_ready: Event, leash: Connection) -> None:
    # A daemon, because its blocking read must not keep this process from ending.
    threading.Thread(target=_end_with_parent, args=(leash,), daemon=True).start()
    serve_here(config, listening, is_ready.set)


def _end_with_parent(leash: Connection) -> None:
    try:
        leash.recv_bytes()  # nothing is ever sent: it returns when the parent is gone
    except EOFError:
        # Like a stop by the user: uvicorn finishes open requests, and the lifespan releases the runs.
        os.kill(os.getpid(), signal.SIGTERM)


def _prepare_logging() -> None:
    """Log warnings and errors to stderr."""
    logging.basicConfig(level=logging.WARNING, format="server: %(message)s")
