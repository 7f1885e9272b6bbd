"""Resources (runs, artifacts, skills) and prompts (agents) of a workspace. Read-only."""

import base64
import json
import re

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import JsonValue

from metier.errors import MetierError, SkillError, UsageError
from metier.protocols.mcp.call_results import (
    describe_waiting,
    get_artifact_uri,
    guess_type,
    list_artifacts,
    read_artifact,
)
from metier.protocols.mcp.endpoint import Context, McpEndpoint, is_readable, readable_prefix
from metier.protocols.mcp.skills import SCHEME, find_file, list_resources, read_cursor
from metier.providers.facts import find_cost
from metier.runtime.workspace.agents import resolve_agent
from metier.runtime.workspace.lookup import list_ids
from metier.store.base import RunRow

RUNS = "metier://runs/"
_RUN = re.compile(r"metier://runs/([A-Za-z0-9-]{1,100})(?:/artifacts/(.{1,500}))?")
_PAGE = 50
_MAX_NAME_LENGTH = 100


async def list_all(
    endpoint: McpEndpoint, ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListResourcesResult:
    """List the skills, then the runs that the caller may read, newest first."""
    before = read_cursor(params.cursor if params is not None else None, most=10**12)
    skills = [] if before else list_resources(endpoint)
    rows = await endpoint.runtime.store.list_runs(prefix=readable_prefix(ctx), before=before, limit=_PAGE)
    listed = [*skills, *(_build_run(endpoint, row) for row in rows)]
    return types.ListResourcesResult(resources=listed, next_cursor=str(rows[-1].number) if len(rows) == _PAGE else None)


async def list_templates(
    endpoint: McpEndpoint, ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    del endpoint, ctx, params
    run = types.ResourceTemplate(uri_template=f"{RUNS}{{run_id}}", name="run", mime_type="application/json")
    file = types.ResourceTemplate(uri_template=f"{RUNS}{{run_id}}/artifacts/{{+path}}", name="artifact")
    skill = types.ResourceTemplate(uri_template=f"{SCHEME}{{+path}}", name="skill file")
    return types.ListResourceTemplatesResult(resource_templates=[run, file, skill])


async def read_resource(
    endpoint: McpEndpoint, ctx: Context, params: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    """Read a resource. Raises `MCPError` if there is none for this caller."""
    uri = str(params.uri)
    if uri.startswith(SCHEME):
        found = find_file(endpoint, uri)
        if found is None:
            raise _build_missing(uri)
        return types.ReadResourceResult(contents=[_build_contents(uri, *found)])
    match = _RUN.fullmatch(uri)
    if match is None or not await is_readable(endpoint, ctx, match[1]):
        raise _build_missing(uri)
    if match[2] is None:
        text = json.dumps(await _describe_run(endpoint, match[1]), ensure_ascii=False, indent=2)
        contents = types.TextResourceContents(uri=uri, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[contents])
    try:
        data = read_artifact(endpoint, match[1], match[2])
    except SkillError as error:
        raise _build_missing(uri) from error
    return types.ReadResourceResult(contents=[_build_contents(uri, _redact(endpoint, data), guess_type(match[2]))])


async def list_prompts(
    endpoint: McpEndpoint, ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListPromptsResult:
    """List the workspace's agents, each as a prompt with its instructions and a task."""
    del ctx, params
    prompts: list[types.Prompt] = []
    for agent_id in _list_agents(endpoint):
        try:
            definition = resolve_agent(endpoint.host, agent_id).definition
        except MetierError:
            continue  # `agent check` reports it
        task = types.PromptArgument(name="task", description="The task for the agent.", required=False)
        described = (definition.description or definition.name) if definition is not None else agent_id
        prompts.append(types.Prompt(name=agent_id, description=described, arguments=[task]))
    return types.ListPromptsResult(prompts=prompts)


async def get_prompt(
    endpoint: McpEndpoint, ctx: Context, params: types.GetPromptRequestParams
) -> types.GetPromptResult:
    del ctx
    if params.name not in _list_agents(endpoint):
        raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown prompt: {endpoint.clean.text(params.name[:200])}")
    try:
        agent = resolve_agent(endpoint.host, params.name)
    except UsageError as error:
        raise MCPError(code=types.INTERNAL_ERROR, message=endpoint.clean.text(error.sentence)) from error
    task = (params.arguments or {}).get("task", "")
    text = "\n\n".join(each for each in (agent.body, task) if each) or params.name
    message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=endpoint.clean.text(text)))
    return types.GetPromptResult(
        description=agent.definition.description if agent.definition is not None else None, messages=[message]
    )


async def complete(endpoint: McpEndpoint, ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    """Complete a run ID. Nothing else has completions."""
    values: list[str] = []
    if isinstance(params.ref, types.ResourceTemplateReference) and params.argument.name == "run_id":
        prefix = params.argument.value
        is_id = prefix.isascii() and len(prefix) < _MAX_NAME_LENGTH
        own = readable_prefix(ctx)
        # Both prefixes must match. If neither continues the other, no run of this caller can.
        longer = prefix if prefix.startswith(own) else own if own.startswith(prefix) else ""
        rows = await endpoint.runtime.store.list_runs(prefix=longer, limit=100) if is_id and (longer or not own) else []
        values = [row.run_id for row in rows]
    return types.CompleteResult(completion=types.Completion(values=values, total=len(values), has_more=False))


def _list_agents(endpoint: McpEndpoint) -> list[str]:
    return list_ids(endpoint.host.workspace, "agent")


def _build_run(endpoint: McpEndpoint, row: RunRow) -> types.Resource:
    name = endpoint.clean.text(" ".join(row.task.split()))[:_MAX_NAME_LENGTH]
    return types.Resource(
        uri=f"{RUNS}{row.run_id}", name=name or row.run_id, description=row.status, mime_type="application/json"
    )


async def _describe_run(endpoint: McpEndpoint, run_id: str) -> JsonValue:
    status = await endpoint.runtime.get_status(run_id)
    state = status.state
    started = state.started
    described: dict[str, JsonValue] = {
        "run": run_id,
        "status": state.status,
        "task": started.task if started is not None else "",
        "agent": started.agent if started is not None else "",
        "model": started.model if started is not None else "",
        "result": state.result,
        "reason": state.failure.reason if state.failure is not None else "",
        "message": state.failure.message if state.failure is not None else describe_waiting(endpoint, status),
        "turns": state.turn,
        "input_tokens": state.input_tokens,
        "output_tokens": state.output_tokens,
        "cost_usd": find_cost(state.cost_usd, tokens=state.input_tokens + state.output_tokens),
        "artifacts": [get_artifact_uri(run_id, name) for name in list_artifacts(endpoint, run_id)],
    }
    return endpoint.clean.value(described)


def _redact(endpoint: McpEndpoint, data: bytes) -> bytes:
    """Redact known secrets in a text file; return other files unchanged."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    return endpoint.redactor.redact(text).encode()


def _build_contents(uri: str, data: bytes, media: str) -> types.TextResourceContents | types.BlobResourceContents:
    try:
        return types.TextResourceContents(uri=uri, mime_type=media, text=data.decode())
    except UnicodeDecodeError:
        return types.BlobResourceContents(uri=uri, mime_type=media, blob=base64.b64encode(data).decode())


def _build_missing(uri: str) -> MCPError:
    return MCPError(code=types.INVALID_PARAMS, message="Unknown resource", data={"uri": uri[:500]})
