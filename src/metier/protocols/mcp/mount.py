"""The entry in the server's table of mounts. Without the extra `mcp` there is no endpoint, and nothing is imported."""

import importlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from metier.runtime.runs import Runtime

logger = logging.getLogger("metier.protocols")

PATH = "/mcp"

type Scope = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
type Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ServerDoor(Protocol):
    """The server's interface for mounted modules."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def base_path(self) -> str: ...


def mount(app: Starlette, state: ServerDoor) -> Callable[[], AbstractAsyncContextManager[None]] | None:
    """Mount the endpoint. Callers were checked before: the server's guard takes tokens only at this path."""
    if find_spec("mcp") is None:
        return None
    endpoint = _Forward(state)
    app.router.routes.append(Route(PATH, endpoint=endpoint))
    return endpoint.serving


class _Forward:
    """Hands requests to the endpoint, which is open while the server serves."""

    def __init__(self, state: ServerDoor) -> None:
        self._state = state
        self._app: Callable[[Scope, Receive, Send], Awaitable[None]] | None = None
        self._origin = ""
        """As the last client named the server, for links that its user opens."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._app is not None, "the server has not started"
        self._origin = str(Request(scope).base_url).rstrip("/").removesuffix(self._state.base_path)
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        server: Any = importlib.import_module("metier.protocols.mcp.server")
        http: Any = importlib.import_module("metier.protocols.mcp.http")
        async with (
            server.opened_door(self._state.runtime, link=self._link, report=logger.warning) as endpoint,
            http.opened_http(endpoint, hosts=None) as self._app,
        ):
            yield

    def _link(self, approval_id: str) -> str:
        return f"{self._origin}{self._state.base_path}/approvals/{approval_id}"
