"""The MCP server of a workspace over streamable HTTP, both eras at one address. A page of a server mounts it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp, Receive, Scope, Send

from metier.protocols.mcp.endpoint import McpEndpoint
from metier.protocols.mcp.server import build_server
from metier.protocols.mcp.tool_calls import MAX_ARGUMENT_CHARACTERS

MAX_SESSIONS = 200
IDLE_SECONDS = 1800.0
LOOPBACK = ("127.0.0.1:*", "localhost:*", "[::1]:*")


@asynccontextmanager
async def opened_http(endpoint: McpEndpoint, *, hosts: Sequence[str] | None = LOOPBACK) -> AsyncGenerator[ASGIApp]:
    """An ASGI application that answers at the path it is mounted at, for as long as the block lasts.

    `hosts` are the names it may be called by, `name:port` or `name:*`; a request for another one, or from a page of
    another origin, is refused. None where the server that mounts it has checked that. Who may call it at all is
    decided by that server.
    """
    origins = [f"{scheme}://{host}" for host in hosts or () for scheme in ("http", "https")]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=hosts is not None, allowed_hosts=list(hosts or ()), allowed_origins=origins
    )
    manager = StreamableHTTPSessionManager(
        app=build_server(endpoint),
        security_settings=security,
        session_idle_timeout=IDLE_SECONDS,
        max_request_body_size=2 * MAX_ARGUMENT_CHARACTERS,
        max_sessions=MAX_SESSIONS,
    )
    async with manager.run():
        yield _UserSessions(StreamableHTTPASGIApp(manager))


class _UserSessions:
    """Names the user of a request, so that the session manager serves a session only to the user that opened it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        user = scope.get("state", {}).get("user")
        if user is not None:
            token = AccessToken(token="", client_id=user.name, scopes=[])
            scope = {**scope, "user": AuthenticatedUser(token)}
        await self._app(scope, receive, send)
