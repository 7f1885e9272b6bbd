"""The MCP server of a workspace, for both eras of the protocol: which handler answers which method."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from metier.errors import MetierError
from metier.protocols.driven_runs import DrivenRuns
from metier.protocols.mcp.endpoint import SKILLS_EXTENSION, TASKS_EXTENSION, Context, McpEndpoint
from metier.protocols.mcp.resources import complete, get_prompt, list_all, list_prompts, list_templates, read_resource
from metier.protocols.mcp.skills import DirectoryParams, UriParams, get_skill, list_skills, read_directory
from metier.protocols.mcp.tasks import TaskParams, UpdateParams, cancel_task, get_task, update_task
from metier.protocols.mcp.tool_calls import call_tool, list_tools
from metier.runtime.cleaning import build_host_cleaner, build_host_redactor
from metier.runtime.runs import Runtime
from metier.version import __version__

logger = logging.getLogger("metier.protocols")

INSTRUCTIONS = (
    "Tasks and agents of a Metier workspace. A call begins a durable run. What needs an approval waits for a person, "
    "who decides it elsewhere: no answer of this client approves anything."
)


@asynccontextmanager
async def opened_door(
    runtime: Runtime, *, link: Callable[[str], str] | None = None, report: Callable[[str], None]
) -> AsyncGenerator[McpEndpoint]:
    """The endpoint of a runtime; when the block ends, the runs that are driven for clients are handed back."""
    async with anyio.create_task_group() as group:
        runs = DrivenRuns(runtime, group, report=report)
        host = runtime.host
        try:
            yield McpEndpoint(runs=runs, clean=build_host_cleaner(host), redactor=build_host_redactor(host), link=link)
        finally:
            with anyio.CancelScope(shield=True):
                await runs.close()


def build_server(endpoint: McpEndpoint) -> Server[Any]:
    server: Server[Any] = Server(
        "metier",
        version=__version__,
        title=f"Metier: {endpoint.host.workspace.name}",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=partial(_find_schema, endpoint),
        on_list_tools=_bind(endpoint, _list_tools),
        on_call_tool=cast(
            "Any", _bind(endpoint, call_tool)
        ),  # a task is a result that the type of the SDK does not name
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
    """A handler whose failures are answers: ours in their own words, others without a word about the inside."""

    async def answer(ctx: Any, params: P) -> R:  # noqa: ANN401 - the context is invariant in types that we do not use
        try:
            return await handler(endpoint, ctx, params)
        except MetierError as error:
            raise MCPError(code=types.INTERNAL_ERROR, message=endpoint.clean.text(error.sentence)) from error

    return answer
