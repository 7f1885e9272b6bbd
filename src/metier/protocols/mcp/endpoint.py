"""The context of MCP requests: the runs of a workspace, redaction, users and client capabilities."""

import hashlib
from collections.abc import Callable
from typing import Any, Literal, Protocol, cast

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct
from starlette.requests import HTTPConnection

from metier.protocols.driven_runs import DrivenRuns
from metier.runtime.host import Host
from metier.runtime.records.signatures import issue_handle, read_handle
from metier.runtime.runs import Runtime
from metier.telemetry.redaction import Redactor
from metier.telemetry.sinks import Cleaner

PROTOCOL = "mcp"
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
SKILLS_EXTENSION = "io.modelcontextprotocol/skills"

type Context = ServerRequestContext[object, object]


class McpEndpoint(Struct, frozen=True, kw_only=True):
    runs: DrivenRuns
    clean: Cleaner
    """For text that people and models read: removes secrets and control characters."""
    redactor: Redactor
    """For files: removes secrets and keeps all other bytes."""
    link: Callable[[str], str] | None = None
    """Maps an approval ID to the page where a user decides it; None without a server."""

    @property
    def runtime(self) -> Runtime:
        return self.runs.runtime

    @property
    def host(self) -> Host:
        return self.runtime.host

    def issue_task_id(self, run_id: str) -> str:
        return issue_handle(self.host, run_id, protocol=PROTOCOL)

    def issue_request_state(self, request_id: str, run_id: str) -> str:
        """Return the signed state that the client sends back with an answer: the run and its question."""
        return f"{request_id}:{issue_handle(self.host, run_id, protocol=f'{PROTOCOL} {request_id}')}"

    async def read_request_state(self, ctx: Context, state: str) -> tuple[str, str]:
        """Return the run and the question. Raises `MCPError` like `read_task_id`."""
        request_id, _, handle = state.rpartition(":")
        run_id = read_handle(self.host, handle, protocol=f"{PROTOCOL} {request_id}")
        if run_id is None or not await is_readable(self, ctx, run_id):
            raise MCPError(code=types.INVALID_PARAMS, message="The request state was not issued here")
        return request_id, run_id

    async def read_task_id(self, ctx: Context, task_id: str) -> str:
        """Return the run of a task ID. Raises `MCPError` for a forged ID or a run that the caller may not read."""
        run_id = read_handle(self.host, task_id, protocol=PROTOCOL)
        if run_id is None or not await is_readable(self, ctx, run_id):
            raise MCPError(code=types.INVALID_PARAMS, message="Unknown task")
        return run_id


class HttpUser(Protocol):
    """The authenticated user of a request."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> str: ...

    def has(self, grant: Literal["read"]) -> bool: ...


def get_user(ctx: Context) -> HttpUser | None:
    """Return the user of an HTTP request; None over stdio, where the client is the local user's program."""
    request: object = ctx.request
    if not isinstance(request, HTTPConnection):
        return None
    return cast("HttpUser | None", getattr(cast("Any", request).state, "user", None))  # set by the guard


def name_prefix(user: HttpUser) -> str:
    """Return the ID prefix of the runs that this user started over MCP."""
    return f"{PROTOCOL}-{hashlib.sha256(user.name.encode()).hexdigest()[:12]}-"


def readable_prefix(ctx: Context) -> str:
    """Return the ID prefix of the runs that the caller may read: without the grant `read`, only its own."""
    user = get_user(ctx)
    return "" if user is None or user.role != "peer" or user.has("read") else name_prefix(user)


async def is_readable(endpoint: McpEndpoint, ctx: Context, run_id: str) -> bool:
    """Return whether the caller may read a run: its own, or a child of one."""
    # Child runs have IDs of their own, so the prefix is looked for in their parents too.
    prefix = readable_prefix(ctx)
    row = await endpoint.runtime.store.find_run(run_id)
    while row is not None and not row.run_id.startswith(prefix) and row.parent_run_id:
        row = await endpoint.runtime.store.find_run(row.parent_run_id)
    return row is not None and row.run_id.startswith(prefix)


class Client(Struct, frozen=True, kw_only=True):
    """A client's declared capabilities."""

    is_modern: bool
    """The protocol without sessions, in which questions are part of a result."""
    has_tasks: bool
    has_forms: bool
    has_links: bool
    can_be_asked: bool
    """True if the server can send it a request while its own is open."""
    name: str

    @property
    def answered_by(self) -> str:
        """The recorded author of an answer: the client program, because the user may not have seen the question."""
        return f"mcp client {self.name}".strip()


def read_client(ctx: Context) -> Client:
    """Read the capabilities from the handshake or the request's envelope."""
    declared = ctx.session.client_capabilities or types.ClientCapabilities()
    elicitation = declared.elicitation
    params = ctx.session.client_params
    is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    return Client(
        is_modern=is_modern,
        has_tasks=is_modern and TASKS_EXTENSION in (declared.extensions or {}),
        # An empty object means forms: clients wrote that before there were modes.
        has_forms=elicitation is not None and (elicitation.form is not None or elicitation.url is None),
        has_links=elicitation is not None and elicitation.url is not None,
        can_be_asked=not is_modern and ctx.session.can_send_request,
        name=params.client_info.name[:60] if params is not None else "",
    )


def build_missing_tasks() -> MCPError:
    """Build the error for a client that did not declare the tasks extension."""
    return MCPError(
        code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
        message="Missing required client capability",
        data={"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}},
    )
