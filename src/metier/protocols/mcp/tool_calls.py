"""Tools over MCP: `run` and every task definition. A call returns a result or a task."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.definitions.task import TaskDefinition, load_task
from metier.engine.delegation import InputSpec, read_inputs, read_output_schema
from metier.errors import MetierError, UsageError
from metier.protocols.driven_runs import Drive, list_steps
from metier.protocols.mcp.call_results import build_error, build_result, describe_waiting
from metier.protocols.mcp.endpoint import (
    Client,
    Context,
    McpEndpoint,
    build_missing_tasks,
    get_user,
    name_prefix,
    read_client,
)
from metier.protocols.mcp.tasks import answer_question, build_form, build_requests, describe_task
from metier.runtime.child_runs import request_task
from metier.runtime.requests import RunRequest
from metier.runtime.status import RunStatus
from metier.runtime.workspace.lookup import list_definitions, list_ids
from metier.telemetry.tracing import HEADER
from metier.tools.schemas import SchemaCheck

RUN, RUN_RESULT = "run", "run_result"
TASK_PREFIX = "task."
"""The prefix for a task definition with the name of a built-in tool."""
TASK_SUPPORT = "mcp_task"
"""The key in the `metadata` of a task definition for its `Support`."""
MAX_AGENTS = 100

type Support = Literal["required", "optional", "never"]
"""Use of tasks: always, never, or if the client supports them and the call takes long."""

# The characters and the length that the specification allows for names of tools.
_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_MAX_NAME_LENGTH = 128
_MAX_DESCRIPTION_LENGTH = 4_000

# Clients decide by these hints whether to ask their user. A run may do anything, so they are the most cautious ones.
_WORKS = types.ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
MAX_ARGUMENT_CHARACTERS = 1_000_000
"""Bytes of JSON."""
QUICK_SECONDS = 1.0
"""A run that ends within this time returns its result, also to a client that supports tasks."""
PROGRESS_SECONDS = 5.0


class ServedTool(Struct, frozen=True, kw_only=True):
    """A tool and the task definition behind it."""

    spec: types.Tool
    task_id: str = ""
    """The task definition; empty for built-in tools."""
    support: Support = "optional"


def list_tools(endpoint: McpEndpoint) -> tuple[ServedTool, ...]:
    """List the tools, from the workspace's current files. Invalid tasks are skipped; `agent check` reports them."""
    found: dict[str, ServedTool] = {}
    for each in (_build_run(endpoint), _build_run_result(), *(_build_task(task) for task in _list_tasks(endpoint))):
        # Names of two tasks can become equal, because slashes become dots and long names are cut. The first one counts.
        found.setdefault(each.spec.name, each)
    return tuple(found.values())


def find_tool(endpoint: McpEndpoint, name: str) -> ServedTool | None:
    return next((tool for tool in list_tools(endpoint) if tool.spec.name == name), None)


def _list_tasks(endpoint: McpEndpoint) -> list[TaskDefinition]:
    listed = list_definitions(endpoint.host.workspace, "task").values()
    readings = [load_task(Path(each.path), id=each.id, within=each.within) for each in listed]
    return sorted((reading.task for reading in readings if reading.task is not None), key=lambda task: task.id)


def _build_task(task: TaskDefinition) -> ServedTool:
    name = _NAME.sub("_", task.id.replace("/", "."))[:_MAX_NAME_LENGTH]
    inputs = read_inputs(task)
    required = [each.name for each in inputs if each.default is None]
    output = read_output_schema(task.steps[-1])
    spec = types.Tool(
        name=f"{TASK_PREFIX}{name}" if name in (RUN, RUN_RESULT) else name,
        title=task.name,
        description=task.description[:_MAX_DESCRIPTION_LENGTH] or task.name,
        input_schema=_build_schema(required, {each.name: _build_input(each) for each in inputs}),
        # Clients of the older protocol accept only objects.
        output_schema=output if output is not None and output.get("type") == "object" else None,
        annotations=_WORKS,
    )
    support = task.steps[0].metadata.get(TASK_SUPPORT)
    return ServedTool(spec=spec, task_id=task.id, support=support if support in ("required", "never") else "optional")


def _build_schema(required: list[str], properties: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def _build_input(item: InputSpec) -> JsonValue:
    built: dict[str, JsonValue] = dict(item.value_schema or {"type": "string"})
    if item.description:
        built.setdefault("description", item.description)
    # The default is text, which would contradict a schema of another type.
    if item.default is not None and built.get("type") == "string":
        built.setdefault("default", item.default)
    return built


def _build_run(endpoint: McpEndpoint) -> ServedTool:
    agents = list_ids(endpoint.host.workspace, "agent")
    agent: dict[str, JsonValue] = {"type": "string", "description": "The agent that does it; without one, the default."}
    if agents:
        agent["enum"] = [*agents[:MAX_AGENTS]]
    properties: dict[str, JsonValue] = {
        "task": {"type": "string", "minLength": 1, "description": "What to do, in words."},
        "agent": agent,
        "context": {"type": "string", "description": "Text that belongs to the task."},
        "output_schema": {"type": "object", "description": "A JSON Schema that the result must have."},
    }
    description = (
        "Give a task to an agent of this workspace. The work is a durable run under the rules of the workspace; "
        "calls that need approval wait for a user."
    )
    return ServedTool(
        spec=types.Tool(
            name=RUN,
            title="Run a task",
            description=description,
            input_schema=_build_schema(["task"], properties),
            annotations=_WORKS,
        )
    )


def _build_run_result() -> ServedTool:
    run: JsonValue = {"type": "string", "description": "The handle that an earlier call named."}
    return ServedTool(
        spec=types.Tool(
            name=RUN_RESULT,
            title="Result of a run",
            description="Wait for a run that was started here before and return its result.",
            input_schema=_build_schema(["run"], {"run": run}),
            annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
        )
    )


type CallOutcome = types.CallToolResult | types.InputRequiredResult | dict[str, Any]


async def call_tool(endpoint: McpEndpoint, ctx: Context, params: types.CallToolRequestParams) -> CallOutcome:
    """Call a tool. Raises `MCPError` for an unknown tool; mistakes of the model are error results."""
    tool = find_tool(endpoint, params.name)
    if tool is None:
        raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {endpoint.clean.text(params.name[:200])}")
    client = read_client(ctx)
    if tool.support == "required" and not client.has_tasks:
        raise build_missing_tasks()
    try:
        run_id = await _open_run(endpoint, ctx, params, tool=tool, client=client)
        return await _answer(endpoint, ctx, run_id, client=client, tool=tool)
    except MetierError as error:
        problems = [problem.render() for problem in getattr(error, "problems", ())]
        return build_error(endpoint.clean.text("\n".join([error.sentence, *problems])))


async def _open_run(
    endpoint: McpEndpoint, ctx: Context, params: types.CallToolRequestParams, *, tool: ServedTool, client: Client
) -> str:
    """Return the run of a call: a new one, or the one that its request state or handle names."""
    if params.request_state is not None:
        return await _resume_call(
            endpoint, ctx, params.request_state, responses=params.input_responses or {}, client=client
        )
    arguments = _check_arguments(tool, params.arguments or {})
    if tool.spec.name == RUN_RESULT:
        # Its driver may have died since the call that started it, so it continues here.
        run_id = await endpoint.read_task_id(ctx, str(arguments["run"]))
        await endpoint.runs.claim(run_id)
        return run_id
    trace_parent = str(dict(params.meta or {}).get(HEADER, ""))
    request = replace(
        _build_request(endpoint, tool, arguments), trace_parent=trace_parent, run_id=_build_run_id(endpoint, ctx)
    )
    return (await endpoint.runs.start(request)).run_id


def _build_run_id(endpoint: McpEndpoint, ctx: Context) -> str:
    """Build a run ID with the user's prefix; empty over stdio, where the runtime chooses it."""
    user = get_user(ctx)
    host = endpoint.host
    return f"{name_prefix(user)}{host.ids.run_id(host.clock.now())}" if user is not None else ""


async def _resume_call(
    endpoint: McpEndpoint, ctx: Context, state: str, *, responses: types.InputResponses, client: Client
) -> str:
    """Resume the run of a repeated call that carries answers: its state is the run's signed handle."""
    request_id, run_id = await endpoint.read_request_state(ctx, state)
    status = await endpoint.runtime.get_status(run_id)
    asked = status.question
    if asked is not None and asked.request_id != request_id:
        return run_id  # a duplicate answer: the run has moved on to another question
    given = responses.get(asked.request_id) if status.is_asking and asked is not None else None
    if given is not None:
        await answer_question(endpoint, status, given.model_dump(by_alias=True), client=client)
    else:
        await endpoint.runs.claim(run_id)
    return run_id


def _check_arguments(tool: ServedTool, arguments: dict[str, Any]) -> dict[str, JsonValue]:
    """Check the arguments. Raises `MCPError`, `UsageError` for mistakes that the model can correct."""
    try:
        text = json.dumps(arguments)
    except (ValueError, RecursionError) as error:
        raise MCPError(code=types.INVALID_PARAMS, message="The arguments are not JSON") from error
    if len(text) > MAX_ARGUMENT_CHARACTERS:
        raise MCPError(
            code=types.INVALID_PARAMS, message=f"The arguments are larger than {MAX_ARGUMENT_CHARACTERS} bytes"
        )
    # Inputs of a task may be values written as text; they are checked when they are read.
    if not tool.task_id and (wrong := SchemaCheck(tool.spec.name, tool.spec.input_schema).get_error(arguments)):
        raise UsageError(f"Invalid arguments for {tool.spec.name}: {wrong}")
    return arguments


def _build_request(endpoint: McpEndpoint, tool: ServedTool, arguments: dict[str, JsonValue]) -> RunRequest:
    if tool.task_id:
        return request_task(endpoint.host, tool.task_id, arguments)
    assert tool.spec.name == RUN
    schema = arguments.get("output_schema")
    return RunRequest(
        task=str(arguments["task"]),
        agent=str(arguments.get("agent", "")),
        extra_context=str(arguments.get("context", "")),
        output_schema=schema if isinstance(schema, dict) else None,
    )


async def _answer(endpoint: McpEndpoint, ctx: Context, run_id: str, *, client: Client, tool: ServedTool) -> CallOutcome:
    is_task = client.has_tasks and tool.support != "never" and tool.spec.name != RUN_RESULT
    if is_task:
        drive = endpoint.runs.find(run_id)
        if tool.support == "optional" and drive is not None:
            with anyio.move_on_after(QUICK_SECONDS):
                await drive.ended.wait()
        status = await endpoint.runtime.get_status(run_id)
        if not status.is_over or tool.support == "required":
            row = await endpoint.runtime.find(run_id)
            return {"resultType": "task", **describe_task(endpoint, row, status, client=client)}
        return build_result(endpoint, status)
    return await _wait(endpoint, ctx, run_id, client=client)


async def _wait(endpoint: McpEndpoint, ctx: Context, run_id: str, *, client: Client) -> CallOutcome:
    """Wait until the run ends or waits. Questions go to the client if it supports that."""
    while True:
        if (drive := endpoint.runs.find(run_id)) is not None:
            await _report_progress(ctx, drive)
        status = await endpoint.runtime.get_status(run_id)
        if not status.is_asking or not client.has_forms:
            return _conclude(endpoint, status)
        if client.is_modern:
            requests = build_requests(endpoint, status, client=client)
            state = endpoint.issue_request_state(next(iter(requests)), run_id)
            return types.InputRequiredResult(input_requests=requests, request_state=state)
        if not client.can_be_asked or not await _elicit(endpoint, ctx, status, client=client):
            return _conclude(endpoint, status)


def _conclude(endpoint: McpEndpoint, status: RunStatus) -> types.CallToolResult:
    if status.is_over:
        return build_result(endpoint, status)
    handle = endpoint.issue_task_id(status.run_id)
    waiting = describe_waiting(endpoint, status) or "The run continues in another process."
    return build_error(f'{waiting} Afterwards call {RUN_RESULT} with run "{handle}".')


async def _elicit(endpoint: McpEndpoint, ctx: Context, status: RunStatus, *, client: Client) -> bool:
    """Ask over the open connection. Return False if the client doesn't answer."""
    asked = status.question
    assert asked is not None
    form = build_form(endpoint, asked)
    given = await ctx.session.elicit_form(form.message, form.requested_schema, ctx.request_id)
    if given.action != "accept":
        return False
    await answer_question(endpoint, status, given.model_dump(by_alias=True), client=client)
    return True


async def _report_progress(ctx: Context, drive: Drive) -> None:
    """Report each step if the client gave a progress token."""
    reported = 0
    while not drive.ended.is_set():
        await drive.wait_changed()
        steps = list_steps(drive.view)
        if len(steps) > reported:
            reported = len(steps)
            # A client that doesn't read must not block waiting for the run.
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError), anyio.move_on_after(PROGRESS_SECONDS):
                await ctx.session.report_progress(reported, message=f"{steps[-1].tool} {steps[-1].line}".strip())
