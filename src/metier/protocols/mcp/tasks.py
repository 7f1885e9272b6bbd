"""Runs as Tasks (extension `io.modelcontextprotocol/tasks`, SEP-2663): durable before the client learns their ID.

A task is a run: every reply is computed from the journal, in any process.
"""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import Field
from starlette.requests import HTTPConnection

from metier.errors import MetierError
from metier.protocols.driven_runs import list_steps
from metier.protocols.forms import build_schema, read_values
from metier.protocols.mcp.call_results import build_fault, build_result, describe_fault, describe_waiting, is_host_fault
from metier.protocols.mcp.endpoint import Client, Context, McpEndpoint, build_missing_tasks, read_client
from metier.runtime.answers import Answer, check_answer
from metier.runtime.status import RunStatus
from metier.store.base import RunRow
from metier.store.failures import LeaseHeld, RunUnknown
from metier.views.user_question import UserQuestion

POLL_INTERVAL_MS = 1_000
MAX_INPUT_LENGTH = 100
"""Maximum number of answers in one update."""


def build_form(endpoint: McpEndpoint, asked: UserQuestion) -> types.ElicitRequestFormParams:
    """Build the form of a question, with a field for each value."""
    schema = endpoint.clean.value(build_schema(asked))
    assert isinstance(schema, dict)
    return types.ElicitRequestFormParams(message=endpoint.clean.text(asked.text), requested_schema=schema)


class TaskParams(types.RequestParams):
    task_id: str = Field(alias="taskId", max_length=200)


class UpdateParams(TaskParams):
    input_responses: dict[str, Any] = Field(alias="inputResponses", max_length=MAX_INPUT_LENGTH)


async def get_task(endpoint: McpEndpoint, ctx: Context, params: TaskParams) -> dict[str, Any]:
    """Handle `tasks/get`. A run whose driver died continues here."""
    client = _check_client(ctx, params.task_id)
    run_id = await endpoint.read_task_id(ctx, params.task_id)
    row = await _get_row(endpoint, run_id)
    # Another process drives it, so nothing has to be continued here.
    with suppress(LeaseHeld):
        await endpoint.runs.claim(run_id)
    status = await endpoint.runtime.get_status(run_id)
    return {
        **describe_task(endpoint, row, status, client=client),
        **_describe_detail(endpoint, status, client),
        "resultType": "complete",
    }


async def update_task(endpoint: McpEndpoint, ctx: Context, params: UpdateParams) -> dict[str, Any]:
    """Handle `tasks/update`, an answer to a question. Answers to other questions are ignored."""
    client = _check_client(ctx, params.task_id)
    run_id = await endpoint.read_task_id(ctx, params.task_id)
    await _get_row(endpoint, run_id)
    status = await endpoint.runtime.get_status(run_id)
    asked = status.question
    given = params.input_responses.get(asked.request_id) if status.is_asking and asked is not None else None
    if given is not None:
        await answer_question(endpoint, status, given, client=client)
    return {"resultType": "complete"}


async def cancel_task(endpoint: McpEndpoint, ctx: Context, params: TaskParams) -> dict[str, Any]:
    """Handle `tasks/cancel`. An ended run stays unchanged."""
    client = _check_client(ctx, params.task_id)
    run_id = await endpoint.read_task_id(ctx, params.task_id)
    await _get_row(endpoint, run_id)
    await endpoint.runtime.cancel(run_id, by=client.answered_by)
    return {"resultType": "complete"}


async def answer_question(endpoint: McpEndpoint, status: RunStatus, given: object, *, client: Client) -> None:
    """Record the answer and continue the run. If the client declines, the run keeps waiting. Raises `MCPError`."""
    asked = status.question
    assert asked is not None, "called where a run asks"
    try:
        response = types.ElicitResult.model_validate(given)
    except ValueError as error:
        raise MCPError(code=types.INVALID_PARAMS, message="The answer is not that of an elicitation") from error
    if response.action != "accept":
        return
    answer = Answer(values=read_values(asked, response.content), by=client.answered_by)
    try:
        check_answer(status, answer)
        await endpoint.runs.resume(status.run_id, answer)
    except MetierError as error:
        raise MCPError(code=types.INVALID_PARAMS, message=endpoint.clean.text(error.sentence)) from error


def describe_task(endpoint: McpEndpoint, row: RunRow, status: RunStatus, *, client: Client) -> dict[str, Any]:
    """Build the fields that every reply about a task has."""
    described: dict[str, Any] = {
        "taskId": endpoint.issue_task_id(row.run_id),
        "status": _find_status(endpoint, status, client),
        "createdAt": _format_time(row.created_at),
        "lastUpdatedAt": _format_time(row.updated_at),
        # No expiry: a run stays until its owner deletes it.
        "ttlMs": None,
        "pollIntervalMs": POLL_INTERVAL_MS,
    }
    if message := _describe(endpoint, status):
        described["statusMessage"] = message
    return described


def _find_status(endpoint: McpEndpoint, status: RunStatus, client: Client) -> str:
    if status.is_over:
        # A failed task carries a protocol error. A run that failed by itself has a result, which the model can act on.
        if is_host_fault(status):
            return "failed"
        return "cancelled" if status.status == "canceled" else "completed"
    has_link = bool(status.approval_ids) and endpoint.link is not None and client.has_links
    return "input_required" if status.is_asking or has_link else "working"


def _describe(endpoint: McpEndpoint, status: RunStatus) -> str:
    if status.is_over:
        return endpoint.clean.text(describe_fault(status)) if status.status != "completed" else ""
    drive = endpoint.runs.find(status.run_id)
    steps = list_steps(drive.view) if drive is not None else []
    doing = f"{steps[-1].tool} {steps[-1].line}".strip() if steps else ""
    return describe_waiting(endpoint, status) or doing


def _describe_detail(endpoint: McpEndpoint, status: RunStatus, client: Client) -> dict[str, Any]:
    match _find_status(endpoint, status, client):
        case "completed":
            result = build_result(endpoint, status)
            return {"result": result.model_dump(by_alias=True, mode="json", exclude_none=True)}
        case "failed":
            error = build_fault(endpoint, status).error
            return {"error": error.model_dump(by_alias=True, mode="json", exclude_none=True)}
        case "input_required":
            requests = build_requests(endpoint, status, client=client)
            dumped = {
                key: each.model_dump(by_alias=True, mode="json", exclude_none=True) for key, each in requests.items()
            }
            return {"inputRequests": dumped}
        case _:
            return {}


def build_requests(endpoint: McpEndpoint, status: RunStatus, *, client: Client) -> types.InputRequests:
    """Build the client's input requests: questions as forms, approvals as the address of the page to decide them."""
    asked = status.question
    if status.is_asking and asked is not None:
        return {asked.request_id: types.ElicitRequest(params=build_form(endpoint, asked))}
    if endpoint.link is None or not client.has_links:
        return {}
    message = describe_waiting(endpoint, status)
    return {
        each: types.ElicitRequest(params=types.ElicitRequestURLParams(message=message, url=endpoint.link(each)))
        for each in status.approval_ids
    }


def _check_client(ctx: Context, task_id: str) -> Client:
    """Raise `MCPError` for a client without the extension, or a header that names another task."""
    client = read_client(ctx)
    if not client.has_tasks:
        raise build_missing_tasks()
    # Proxies route by the header, so it must match. Other transports have none.
    request: object = ctx.request
    if isinstance(request, HTTPConnection) and request.headers.get("mcp-name") != task_id:
        raise MCPError(code=types.HEADER_MISMATCH, message="Mcp-Name header does not match the task")
    return client


async def _get_row(endpoint: McpEndpoint, run_id: str) -> RunRow:
    try:
        return await endpoint.runtime.find(run_id)
    except RunUnknown as error:
        raise MCPError(code=types.INVALID_PARAMS, message="The task no longer exists") from error


def _format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
