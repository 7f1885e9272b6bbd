"""The parts of the server beside the API: each a module with `mount`, imported when a server starts and not before.

    def mount(app: FastAPI, state: ServerState) -> Callable[[], AbstractAsyncContextManager[None]] | None: ...

`mount` adds routers or mounts sub-applications. What it returns, if anything, is entered while the server serves.
"""

import importlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from fastapi import FastAPI

from metier.server.state import ServerState

MOUNTS: tuple[str, ...] = (
    "metier.server.api.routes",
    "metier.server.login",
    "metier.server.decision_pages",
    "metier.server.console.pages",
    "metier.protocols.a2a.mount",
    "metier.protocols.mcp.mount",
)
"""In this order: of two routes for one path the first answers."""

type Lifespan = Callable[[], AbstractAsyncContextManager[None]]


def mount_all(app: FastAPI, state: ServerState) -> list[Lifespan]:
    lifespans = [importlib.import_module(name).mount(app, state) for name in MOUNTS]
    return [lifespan for lifespan in lifespans if lifespan is not None]
