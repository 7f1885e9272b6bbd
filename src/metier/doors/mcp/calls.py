"""A call of a tool: begin the run, then answer with a task, or wait for it and answer with what it came to."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import JsonValue

from metier.doors.driven_runs import Drive, list_steps
from metier.doors.mcp.door import Client, Context, McpDoor, build_missing_tasks, read_client
from metier.doors.mcp.outcome import Standing, build_error, build_result, describe_waiting, find_standing
from metier.doors.mcp.questions import build_form
from metier.doors.mcp.tasks import answer_question, build_requests, describe_task
from metier.doors.mcp.tools import RUN, RUN_RESULT, ServedTool, find_tool
from metier.errors import MetierError, UsageError
from metier.runtime.children.child_runs import request_task
from metier.runtime.requests import RunRequest
from metier.telemetry.otel.trace_context import HEADER
from metier.tools.schemas import SchemaCheck

LARGEST_ARGUMENTS = 1_000_000
"""Bytes of JSON."""
QUICK_SECONDS = 1.0
"""A run that ends within this time is answered at once, also to a client that knows tasks."""

PROGRESS_SECONDS = 5.0

type CallOutcome = types.CallToolResult | types.InputRequiredResult | dict[str, Any]


async def call_tool(door: McpDoor, ctx: Context, params: types.CallToolRequestParams) -> CallOutcome:
    """Raises `MCPError` for a tool that is not there; what the model did wrong is a result that says so."""
    tool = find_tool(door, params.name)
    if tool is None:
        raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {door.clean.text(params.name[:200])}")
    client = read_client(ctx)
    if tool.support == "required" and not client.has_tasks:
        raise build_missing_tasks()
    try:
        drive = await _open_run(door, tool, params, client=client)
        return await _answer(door, ctx, drive, client=client, tool=tool)
    except MetierError as error:
        problems = [problem.render() for problem in getattr(error, "problems", ())]
        return build_error(door.clean.text("\n".join([error.sentence, *problems])))


async def _open_run(door: McpDoor, tool: ServedTool, params: types.CallToolRequestParams, *, client: Client) -> str:
    """The run that the call is about: a new one, or the one that its request state or its handle names."""
    if params.request_state is not None:
        return await _take_up(door, params.request_state, params.input_responses or {}, client=client)
    arguments = _check_arguments(tool, params.arguments or {})
    if tool.spec.name == RUN_RESULT:
        run_id = door.read_task_id(str(arguments["run"]))
        await door.runs.claim(run_id)
        return run_id
    trace_parent = str(dict(params.meta or {}).get(HEADER, ""))
    request = replace(_build_request(door, tool, arguments), trace_parent=trace_parent)
    return (await door.runs.begin(request)).run_id


async def _take_up(door: McpDoor, state: str, responses: types.InputResponses, *, client: Client) -> str:
    """A call that is sent again with the answers that were asked for: its state is the signed handle of the run."""
    request_id, run_id = door.read_request_state(state)
    standing = await find_standing(door, run_id)
    asked = standing.waiting.question
    if asked is not None and asked.request_id != request_id:
        return run_id  # an answer that came twice; the run asks something else meanwhile
    given = responses.get(asked.request_id) if standing.is_asking and asked is not None else None
    if given is not None:
        await answer_question(door, standing, given.model_dump(by_alias=True), client=client)
    else:
        await door.runs.claim(run_id)
    return run_id


def _check_arguments(tool: ServedTool, arguments: dict[str, Any]) -> dict[str, JsonValue]:
    """Raises `MCPError`, and `UsageError` for what the model can do better."""
    try:
        text = json.dumps(arguments)
    except (ValueError, RecursionError) as error:
        raise MCPError(code=types.INVALID_PARAMS, message="The arguments are not JSON") from error
    if len(text) > LARGEST_ARGUMENTS:
        raise MCPError(code=types.INVALID_PARAMS, message=f"The arguments are larger than {LARGEST_ARGUMENTS} bytes")
    # Inputs of a task may be texts that spell a value; they are checked where they are read.
    if not tool.task_id and (wrong := SchemaCheck(tool.spec.name, tool.spec.input_schema).find_error(arguments)):
        raise UsageError(f"Invalid arguments for {tool.spec.name}: {wrong}")
    return arguments


def _build_request(door: McpDoor, tool: ServedTool, arguments: dict[str, JsonValue]) -> RunRequest:
    if tool.task_id:
        commission = request_task(door.place, tool.task_id, arguments)
        return RunRequest(task=commission.order.task, commission=commission)
    assert tool.spec.name == RUN
    schema = arguments.get("output_schema")
    return RunRequest(
        task=str(arguments["task"]),
        agent=str(arguments.get("agent", "")),
        extra_context=str(arguments.get("context", "")),
        output_schema=schema if isinstance(schema, dict) else None,
    )


async def _answer(door: McpDoor, ctx: Context, run_id: str, *, client: Client, tool: ServedTool) -> CallOutcome:
    is_task = client.has_tasks and tool.support != "never" and tool.spec.name != RUN_RESULT
    if is_task:
        drive = door.runs.find(run_id)
        if tool.support == "optional" and drive is not None:
            with anyio.move_on_after(QUICK_SECONDS):
                await drive.ended.wait()
        standing = await find_standing(door, run_id)
        if not standing.is_over or tool.support == "required":
            row = await door.runtime.find(run_id)
            return {"resultType": "task", **describe_task(door, row, standing, client=client)}
        return build_result(door, standing)
    return await _wait(door, ctx, run_id, client=client)


async def _wait(door: McpDoor, ctx: Context, run_id: str, *, client: Client) -> CallOutcome:
    """Until the run ends or waits; questions are put to the client where it can be asked."""
    while True:
        if (drive := door.runs.find(run_id)) is not None:
            await _report_progress(ctx, drive)
        standing = await find_standing(door, run_id)
        if not standing.is_asking or not client.has_forms:
            return _conclude(door, standing)
        if client.is_modern:
            requests = build_requests(door, standing, client=client)
            state = door.issue_request_state(next(iter(requests)), run_id)
            return types.InputRequiredResult(input_requests=requests, request_state=state)
        if not client.can_be_asked or not await _elicit(door, ctx, standing, client=client):
            return _conclude(door, standing)


def _conclude(door: McpDoor, standing: Standing) -> types.CallToolResult:
    if standing.is_over:
        return build_result(door, standing)
    handle = door.issue_task_id(standing.state.run_id)
    waiting = describe_waiting(door, standing) or "The run goes on elsewhere."
    return build_error(f'{waiting} Afterwards call {RUN_RESULT} with run "{handle}".')


async def _elicit(door: McpDoor, ctx: Context, standing: Standing, *, client: Client) -> bool:
    """Ask over the open connection; False where the client did not answer."""
    asked = standing.waiting.question
    assert asked is not None
    form = build_form(door, asked)
    given = await ctx.session.elicit_form(form.message, form.requested_schema, ctx.request_id)
    if given.action != "accept":
        return False
    await answer_question(door, standing, given.model_dump(by_alias=True), client=client)
    return True


async def _report_progress(ctx: Context, drive: Drive) -> None:
    """Tell of each step while the run is driven, where the client gave a token to tell it under."""
    told = 0
    while not drive.ended.is_set():
        await drive.wait_changed()
        steps = list_steps(drive.view)
        if len(steps) > told:
            told = len(steps)
            # A client that does not read must not keep the run from being waited for.
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError), anyio.move_on_after(PROGRESS_SECONDS):
                await ctx.session.report_progress(told, message=f"{steps[-1].tool} {steps[-1].line}".strip())
