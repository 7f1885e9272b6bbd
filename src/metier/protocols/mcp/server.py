"""The MCP server of a workspace, for both eras of the protocol, over stdio and streamable HTTP."""

import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Protocol, cast

import anyio
import mcp_types as types
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from metier.errors import MetierError, unwrapped
from metier.protocols.driven_runs import DrivenRuns
from metier.protocols.mcp.endpoint import SKILLS_EXTENSION, TASKS_EXTENSION, Context, McpEndpoint
from metier.protocols.mcp.resources import complete, get_prompt, list_all, list_prompts, list_templates, read_resource
from metier.protocols.mcp.skills import DirectoryParams, UriParams, get_skill, list_skills, read_directory
from metier.protocols.mcp.tasks import TaskParams, UpdateParams, cancel_task, get_task, update_task
from metier.protocols.mcp.tool_calls import MAX_ARGUMENT_CHARACTERS, call_tool, list_tools
from metier.runtime.cleaning import build_host_cleaner, build_host_redactor
from metier.runtime.host import Host
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.workspace.plugins import using_plugins
from metier.telemetry.sanitize import sanitize_line
from metier.version import __version__

logger = logging.getLogger("metier.protocols")

INSTRUCTIONS = (
    "Tasks and agents of a Metier workspace. A call starts a durable run. If it needs approval, it waits for a user, "
    "who decides elsewhere; no answer from this client approves anything."
)
PATH = "/mcp"
# Sessions exist in the older protocol only. Each holds memory until it ends or idles out.
MAX_SESSIONS = 200
IDLE_SECONDS = 1800.0
LOOPBACK = ("127.0.0.1:*", "localhost:*", "[::1]:*")


@asynccontextmanager
async def open_endpoint(
    runtime: Runtime, *, link: Callable[[str], str] | None = None, report: Callable[[str], None]
) -> AsyncGenerator[McpEndpoint]:
    """Open the endpoint of a runtime. At the end of the block, the runs driven for clients are released."""
    async with anyio.create_task_group() as group:
        runs = DrivenRuns(runtime, group, report=report)
        host = runtime.host
        try:
            yield McpEndpoint(runs=runs, clean=build_host_cleaner(host), redactor=build_host_redactor(host), link=link)
        finally:
            with anyio.CancelScope(shield=True):
                # Also when canceled: a run that isn't released has no driver until its lease expires.
                await runs.close()


def build_server(endpoint: McpEndpoint) -> Server[Any]:
    server: Server[Any] = Server(
        "metier",
        version=__version__,
        title=f"Metier: {endpoint.host.workspace.name}",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=partial(_find_schema, endpoint),
        on_list_tools=_bind(endpoint, _list_tools),
        on_call_tool=cast("Any", _bind(endpoint, call_tool)),  # the SDK's type lacks tasks as a result
        on_list_resources=_bind(endpoint, list_all),
        on_list_resource_templates=_bind(endpoint, list_templates),
        on_read_resource=_bind(endpoint, read_resource),
        on_list_prompts=_bind(endpoint, list_prompts),
        on_get_prompt=_bind(endpoint, get_prompt),
        on_completion=_bind(endpoint, complete),
    )
    server.extensions = {TASKS_EXTENSION: {}, SKILLS_EXTENSION: {"directoryRead": True}}
    server.add_request_handler("tasks/get", TaskParams, _bind(endpoint, get_task))
    server.add_request_handler("tasks/update", UpdateParams, _bind(endpoint, update_task))
    server.add_request_handler("tasks/cancel", TaskParams, _bind(endpoint, cancel_task))
    server.add_request_handler("skills/list", types.PaginatedRequestParams, _bind(endpoint, list_skills))
    server.add_request_handler("skills/get", UriParams, _bind(endpoint, get_skill))
    server.add_request_handler("resources/directory/read", DirectoryParams, _bind(endpoint, read_directory))
    return server


async def _list_tools(
    endpoint: McpEndpoint, ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    del ctx, params
    return types.ListToolsResult(tools=[tool.spec for tool in list_tools(endpoint)])


def _find_schema(endpoint: McpEndpoint, name: str) -> dict[str, Any] | None:
    return next((tool.spec.input_schema for tool in list_tools(endpoint) if tool.spec.name == name), None)


def _bind[P, R](
    endpoint: McpEndpoint, handler: Callable[[McpEndpoint, Context, P], Awaitable[R]]
) -> Callable[[Any, P], Awaitable[R]]:
    """Wrap a handler: our errors become protocol errors; the SDK answers others without details."""

    async def answer(ctx: Any, params: P) -> R:  # noqa: ANN401 - the context is invariant in types that we do not use
        try:
            return await handler(endpoint, ctx, params)
        except MetierError as error:
            raise MCPError(code=types.INTERNAL_ERROR, message=endpoint.clean.text(error.sentence)) from error

    return answer


def serve_stdio(host: Host) -> int:
    """Serve MCP on stdin and stdout. Everything else goes to stderr, redacted."""
    redact = build_host_redactor(host).redact

    def report(text: str) -> None:
        sys.stderr.write(f"mcp: {sanitize_line(redact(text))}\n")
        sys.stderr.flush()

    # The SDK logs messages of the client, which may contain secrets.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    anyio.run(_serve, host, report)
    return 0


async def _serve(host: Host, report: Callable[[str], None]) -> None:
    with unwrapped(), using_plugins(host, report=report) as extended:
        async with (
            open_runtime(extended) as runtime,
            open_endpoint(runtime, report=report) as endpoint,
            stdio_server() as (received, sent),
        ):
            server = build_server(endpoint)
            await server.run(received, sent, server.create_initialization_options())


@asynccontextmanager
async def open_http(endpoint: McpEndpoint, *, hosts: Sequence[str] | None = LOOPBACK) -> AsyncGenerator[ASGIApp]:
    """Open an ASGI application that serves MCP at the path where it is mounted.

    `hosts` are the allowed host names, as `name:port` or `name:*`. Requests for other hosts or from pages of
    other origins are refused, against DNS rebinding. Pass None if the mounting server checks that; it also
    authenticates callers.
    """
    origins = [f"{scheme}://{host}" for host in hosts or () for scheme in ("http", "https")]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=hosts is not None, allowed_hosts=list(hosts or ()), allowed_origins=origins
    )
    manager = StreamableHTTPSessionManager(
        app=build_server(endpoint),
        security_settings=security,
        session_idle_timeout=IDLE_SECONDS,
        # Escapes in JSON make a text longer than its characters.
        max_request_body_size=2 * MAX_ARGUMENT_CHARACTERS,
        max_sessions=MAX_SESSIONS,
    )
    async with manager.run():
        yield _UserSessions(StreamableHTTPASGIApp(manager))


class _UserSessions:
    """Passes on the user of a request, so that a session serves only the user that opened it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        user = scope.get("state", {}).get("user")
        if user is not None:
            token = AccessToken(token="", client_id=user.name, scopes=[])
            scope = {**scope, "user": AuthenticatedUser(token)}
        await self._app(scope, receive, send)


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
        self._app: ASGIApp | None = None
        self._origin = ""
        """The server's address as the last client sent it, for links that its user opens."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._app is not None, "the server has not started"
        # The guard has checked the host, so a client cannot put a foreign address into the link.
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
