"""Common parts of MCP requests: the runs of one workspace, and redaction of their texts."""

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
    """For text that people and models read: no secrets, nothing that a terminal obeys."""
    redactor: Redactor
    """For files, which keep their bytes but for secrets."""
    link: Callable[[str], str] | None = None
    """The address at which a user decides an approval, by its id; nothing where no page is served."""

    @property
    def runtime(self) -> Runtime:
        return self.runs.runtime

    @property
    def host(self) -> Host:
        return self.runtime.host

    def issue_task_id(self, run_id: str) -> str:
        return issue_handle(self.host, run_id, protocol=PROTOCOL)

    def issue_request_state(self, request_id: str, run_id: str) -> str:
        """Issue the state of a call that is repeated with an answer: the run, and the answered question."""
        return f"{request_id}:{issue_handle(self.host, run_id, protocol=f'{PROTOCOL} {request_id}')}"

    async def read_request_state(self, ctx: Context, state: str) -> tuple[str, str]:
        """The question and the run. Raises `MCPError` as `read_task_id` does."""
        request_id, _, handle = state.rpartition(":")
        run_id = read_handle(self.host, handle, protocol=f"{PROTOCOL} {request_id}")
        if run_id is None or not await is_readable(self, ctx, run_id):
            raise MCPError(code=types.INVALID_PARAMS, message="The request state was not issued here")
        return request_id, run_id

    async def read_task_id(self, ctx: Context, task_id: str) -> str:
        """The run behind it. Raises `MCPError` for one that was not issued here, or that the caller may not read."""
        run_id = read_handle(self.host, task_id, protocol=PROTOCOL)
        if run_id is None or not await is_readable(self, ctx, run_id):
            raise MCPError(code=types.INVALID_PARAMS, message="There is no such task")
        return run_id


class HttpUser(Protocol):
    """The user that the server found for a request."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> str: ...

    def has(self, grant: Literal["read"]) -> bool: ...


def get_user(ctx: Context) -> HttpUser | None:
    """The user of an HTTP request; None over stdio, where the client is a program of the local user."""
    request: object = ctx.request
    if not isinstance(request, HTTPConnection):
        return None
    return cast("HttpUser | None", getattr(cast("Any", request).state, "user", None))  # set by the guard


def name_prefix(user: HttpUser) -> str:
    """The prefix of the ids of all runs that this user started over MCP."""
    return f"{PROTOCOL}-{hashlib.sha256(user.name.encode()).hexdigest()[:12]}-"


def readable_prefix(ctx: Context) -> str:
    """The prefix of the runs that the caller may read: a peer without the grant `read` sees only its own."""
    user = get_user(ctx)
    return "" if user is None or user.role != "peer" or user.has("read") else name_prefix(user)


async def is_readable(endpoint: McpEndpoint, ctx: Context, run_id: str) -> bool:
    """Return True if the caller may read a run: one of its own, or a child of one."""
    prefix = readable_prefix(ctx)
    row = await endpoint.runtime.store.find_run(run_id)
    while row is not None and not row.run_id.startswith(prefix) and row.parent_run_id:
        row = await endpoint.runtime.store.find_run(row.parent_run_id)
    return row is not None and row.run_id.startswith(prefix)


class Client(Struct, frozen=True, kw_only=True):
    """Capabilities that the client of one request declared."""

    is_modern: bool
    """The era without sessions: nothing can be asked of it but in a result."""
    has_tasks: bool
    has_forms: bool
    has_links: bool
    can_be_asked: bool
    """A request can be sent to it while its own one is open."""
    name: str

    @property
    def answered_by(self) -> str:
        """Name the author of an answer: the client program, not the user, who may not have seen the question."""
        return f"mcp client {self.name}".strip()


def read_client(ctx: Context) -> Client:
    """From the handshake, or from the envelope of the request."""
    declared = ctx.session.client_capabilities or types.ClientCapabilities()
    elicitation = declared.elicitation
    params = ctx.session.client_params
    is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    return Client(
        is_modern=is_modern,
        has_tasks=is_modern and TASKS_EXTENSION in (declared.extensions or {}),
        # An empty object means forms, as clients wrote it before there were modes.
        has_forms=elicitation is not None and (elicitation.form is not None or elicitation.url is None),
        has_links=elicitation is not None and elicitation.url is not None,
        can_be_asked=not is_modern and ctx.session.can_send_request,
        name=params.client_info.name[:60] if params is not None else "",
    )


def build_missing_tasks() -> MCPError:
    """For a client that did not declare the tasks extension."""
    return MCPError(
        code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
        message="Missing required client capability",
        data={"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}},
    )
