"""The processes of a server: one that serves, or one that keeps several others serving on the same socket."""

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
"""Time that running requests may take when the server stops."""
_LOOK_SECONDS = 0.2
_MAX_RESTARTS = 20
"""Of processes that died, before the server gives up."""

logger = logging.getLogger("metier.server")


def run_server(config: ServerConfig, listening: socket.socket, *, workers: int, announce: Callable[[], None]) -> int:
    """Serve until a signal comes; the exit code."""
    if workers > 1:
        return _Family(config, listening, workers).run(announce)
    return serve_here(config, listening, announce)


def serve_here(config: ServerConfig, listening: socket.socket, announce: Callable[[], None]) -> int:
    """Serve in this process; `announce` is called when it does."""
    _prepare_logging()
    server = _Server(build_uvicorn_config(config), announce)
    server.run(sockets=[listening])
    return 0 if server.started else 1


class _Server(uvicorn.Server):
    """Says when it serves."""

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
        """A signal ends the server, not the process, which has a token file to remove."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def build_uvicorn_config(config: ServerConfig) -> uvicorn.Config:
    # The address of a request may hold a one-time code; `access_log` alone leaves the logger on.
    logging.getLogger("uvicorn.access").disabled = True
    options = config.open().host.settings.server
    return uvicorn.Config(
        create_app(config),
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=bool(options.trusted_proxies),
        forwarded_allow_ips=list(options.trusted_proxies),
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


class Closing(Protocol):
    def close(self) -> None: ...


@dataclass(slots=True)
class _Child:
    process: SpawnProcess
    is_ready: Event
    leash: Closing
    """Held by the parent: when the parent ends in whatever way, the child reads the end of it."""


@dataclass(slots=True)
class _Family:
    """The first process: it serves nothing itself, and starts another where one died."""

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
            return self._keep()
        finally:
            self._end()

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping.set()

    def _start(self) -> _Child:
        is_ready = self.context.Event()
        reading, writing = self.context.Pipe(duplex=False)
        process = self.context.Process(
            target=_serve_child, args=(self.config, self.listening, is_ready, reading), name="metier-server"
        )
        process.start()
        reading.close()
        return _Child(process, is_ready, writing)

    def _wait_until_ready(self) -> bool:
        """False where a process could not begin, or the server is stopped before."""
        for child in self.children:
            while not child.is_ready.wait(_LOOK_SECONDS):
                if self.stopping.is_set() or not child.process.is_alive():
                    return False
        return True

    def _keep(self) -> int:
        restarts = 0
        while not self.stopping.wait(_LOOK_SECONDS):
            for index, child in enumerate(self.children):
                if child.process.is_alive():
                    continue
                if restarts >= _MAX_RESTARTS:
                    logger.error("processes of the server die again and again")
                    return 1
                restarts += 1
                logger.warning("process %s of the server died; another takes its place", child.process.pid)
                self.children[index] = self._start()
        return 0

    def _end(self) -> None:
        for child in self.children:
            child.process.terminate()
        for child in self.children:
            child.process.join(2 * GRACE_SECONDS)
            child.process.kill()
            child.leash.close()


def _serve_child(config: ServerConfig, listening: socket.socket, is_ready: Event, leash: Connection) -> None:
    threading.Thread(target=_end_with_parent, args=(leash,), daemon=True).start()
    serve_here(config, listening, is_ready.set)


def _end_with_parent(leash: Connection) -> None:
    try:
        leash.recv_bytes()
    except EOFError:
        os.kill(os.getpid(), signal.SIGTERM)


def _prepare_logging() -> None:
    """Warnings and worse, on stderr."""
    logging.basicConfig(level=logging.WARNING, format="server: %(message)s")
