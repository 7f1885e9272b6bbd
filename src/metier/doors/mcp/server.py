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

from metier.doors.driven_runs import DrivenRuns
from metier.doors.mcp.door import SKILLS_EXTENSION, TASKS_EXTENSION, Context, McpDoor
from metier.doors.mcp.resources import complete, get_prompt, list_all, list_prompts, list_templates, read_resource
from metier.doors.mcp.skills import DirectoryParams, UriParams, get_skill, list_skills, read_directory
from metier.doors.mcp.tasks import TaskParams, UpdateParams, cancel_task, get_task, update_task
from metier.doors.mcp.tool_calls import call_tool, list_tools
from metier.errors import MetierError
from metier.runtime.cleaning import build_place_cleaner, build_place_redactor
from metier.runtime.runs import Runtime
from metier.version import __version__

logger = logging.getLogger("metier.doors")

INSTRUCTIONS = (
    "Tasks and agents of a Metier workspace. A call begins a durable run. What needs an approval waits for a person, "
    "who decides it elsewhere: no answer of this client approves anything."
)


@asynccontextmanager
async def opened_door(
    runtime: Runtime, *, link: Callable[[str], str] | None = None, report: Callable[[str], None]
) -> AsyncGenerator[McpDoor]:
    """The door of a runtime; when the block ends, the runs that are driven for clients are handed back."""
    async with anyio.create_task_group() as group:
        runs = DrivenRuns(runtime, group, report=report)
        place = runtime.place
        try:
            yield McpDoor(runs=runs, clean=build_place_cleaner(place), redactor=build_place_redactor(place), link=link)
        finally:
            with anyio.CancelScope(shield=True):
                await runs.close()


def build_server(door: McpDoor) -> Server[Any]:
    server: Server[Any] = Server(
        "metier",
        version=__version__,
        title=f"Metier: {door.place.workspace.name}",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=partial(_find_schema, door),
        on_list_tools=_bind(door, _list_tools),
        on_call_tool=cast("Any", _bind(door, call_tool)),  # a task is a result that the type of the SDK does not name
        on_list_resources=_bind(door, list_all),
        on_list_resource_templates=_bind(door, list_templates),
        on_read_resource=_bind(door, read_resource),
        on_list_prompts=_bind(door, list_prompts),
        on_get_prompt=_bind(door, get_prompt),
        on_completion=_bind(door, complete),
    )
    server.extensions = {TASKS_EXTENSION: {}, SKILLS_EXTENSION: {"directoryRead": True}}
    server.add_request_handler("tasks/get", TaskParams, _bind(door, get_task))
    server.add_request_handler("tasks/update", UpdateParams, _bind(door, update_task))
    server.add_request_handler("tasks/cancel", TaskParams, _bind(door, cancel_task))
    server.add_request_handler("skills/list", types.PaginatedRequestParams, _bind(door, list_skills))
    server.add_request_handler("skills/get", UriParams, _bind(door, get_skill))
    server.add_request_handler("resources/directory/read", DirectoryParams, _bind(door, read_directory))
    return server


async def _list_tools(
    door: McpDoor, ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    del ctx, params
    return types.ListToolsResult(tools=[tool.spec for tool in list_tools(door)])


def _find_schema(door: McpDoor, name: str) -> dict[str, Any] | None:
    return next((tool.spec.input_schema for tool in list_tools(door) if tool.spec.name == name), None)


def _bind[P, R](
    door: McpDoor, handler: Callable[[McpDoor, Context, P], Awaitable[R]]
) -> Callable[[Any, P], Awaitable[R]]:
    """A handler whose failures are answers: ours in their own words, others without a word about the inside."""

    async def answer(ctx: Any, params: P) -> R:  # noqa: ANN401 - the context is invariant in types that we do not use
        try:
            return await handler(door, ctx, params)
        except MetierError as error:
            raise MCPError(code=types.INTERNAL_ERROR, message=door.clean.text(error.sentence)) from error

    return answer
