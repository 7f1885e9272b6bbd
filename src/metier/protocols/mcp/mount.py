"""The server's mount point for MCP."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from metier.protocols.mcp.server import open_endpoint, open_http
from metier.runtime.runs import Runtime

logger = logging.getLogger("metier.protocols")

PATH = "/mcp"

type Scope = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
type Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class MountingServer(Protocol):
    """The part of a server that mounted protocols use."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def base_path(self) -> str: ...


def mount(app: Starlette, state: MountingServer) -> Callable[[], AbstractAsyncContextManager[None]]:
    """Mount the endpoint. The server's guard checks tokens and host names before it is called."""
    endpoint = _Forward(state)
    app.router.routes.append(Route(PATH, endpoint=endpoint))
    return endpoint.serving


class _Forward:
    """Forwards requests to the endpoint, which is open while the server runs."""

    def __init__(self, state: MountingServer) -> None:
        self._state = state
        self._app: Callable[[Scope, Receive, Send], Awaitable[None]] | None = None
        self._origin = ""
        """The server's address as the last client sent it, for links that its user opens."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._app is not None, "the server has not started"
        self._origin = str(Request(scope).base_url).rstrip("/").removesuffix(self._state.base_path)
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        async with (
            open_endpoint(self._state.runtime, link=self._link, report=logger.warning) as endpoint,
            open_http(endpoint, hosts=None) as self._app,
        ):
            yield

    def _link(self, approval_id: str) -> str:
        return f"{self._origin}{self._state.base_path}/approvals/{approval_id}"
