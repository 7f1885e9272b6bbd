"""The tools of the door: every task definition of the workspace, `run` for a task in words, `run_result` for later."""

from pathlib import Path
from typing import Literal

import mcp_types as types
from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.definitions.agent import FILE_NAME as AGENT_FILE
from metier.definitions.task import FILE_NAME, TaskDefinition, load_task
from metier.doors.mcp.door import McpDoor
from metier.engine.delegation.orders import read_output_schema
from metier.engine.delegation.partners import InputSpec, read_inputs
from metier.lazy_regex import lazy_regex
from metier.runtime.workspace.listed import list_definitions

RUN, RUN_RESULT = "run", "run_result"
TASK_PREFIX = "task."
"""Before the name of a task that is called like one of the tools above."""
TASK_SUPPORT = "mcp_task"
"""The key in the `metadata` of a task definition that says how it is served, see `Support`."""
MOST_AGENTS = 100

type Support = Literal["required", "optional", "never"]
"""Whether a call is answered with a task: always, if the client knows tasks and it takes long, or not at all."""

_NAME = lazy_regex(r"[^A-Za-z0-9_.-]")
_LONGEST_NAME = 128
_LONGEST_DESCRIPTION = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool:
    """A tool as a client sees it, and what it stands for."""

    spec: types.Tool
    task_id: str = ""
    """The task definition; empty for the tools of the door itself."""
    support: Support = "optional"


def list_tools(door: McpDoor) -> tuple[ServedTool, ...]:
    """As the files of the workspace stand now. A task that cannot be read is left out; `agent check` says why."""
    found: dict[str, ServedTool] = {}
    for each in (_build_run(door), _build_run_result(), *(_build_task(task) for task in _find_tasks(door))):
        found.setdefault(each.spec.name, each)
    return tuple(found.values())


def find_tool(door: McpDoor, name: str) -> ServedTool | None:
    return next((tool for tool in list_tools(door) if tool.spec.name == name), None)


def _find_tasks(door: McpDoor) -> list[TaskDefinition]:
    listed = list_definitions(door.place.workspace, "tasks", FILE_NAME).values()
    readings = [load_task(Path(each.path), id=each.id, within=each.within) for each in listed]
    return sorted((reading.task for reading in readings if reading.task is not None), key=lambda task: task.id)


def _build_task(task: TaskDefinition) -> ServedTool:
    name = _NAME.sub("_", task.id.replace("/", "."))[:_LONGEST_NAME]
    inputs = read_inputs(task)
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {each.name: _build_input(each) for each in inputs},
        "required": [each.name for each in inputs if each.default is None],
        "additionalProperties": False,
    }
    output = read_output_schema(task.steps[-1])
    spec = types.Tool(
        name=f"{TASK_PREFIX}{name}" if name in (RUN, RUN_RESULT) else name,
        title=task.name,
        description=task.description[:_LONGEST_DESCRIPTION] or task.name,
        input_schema=schema,
        # Handshake clients take objects only.
        output_schema=output if output is not None and output.get("type") == "object" else None,
        annotations=_WORKS,
    )
    return ServedTool(spec=spec, task_id=task.id, support=_read_support(task))


def _read_support(task: TaskDefinition) -> Support:
    match task.steps[0].metadata.get(TASK_SUPPORT):
        case "required":
            return "required"
        case "never":
            return "never"
        case _:
            return "optional"


def _build_input(item: InputSpec) -> JsonValue:
    built: dict[str, JsonValue] = dict(item.value_schema or {"type": "string"})
    if item.description:
        built.setdefault("description", item.description)
    if item.default is not None and built.get("type") == "string":
        built.setdefault("default", item.default)
    return built


_WORKS = types.ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)


def _build_run(door: McpDoor) -> ServedTool:
    agents = sorted(each.id for each in list_definitions(door.place.workspace, "agents", AGENT_FILE).values())
    agent: dict[str, JsonValue] = {"type": "string", "description": "The agent that does it; without one, the default."}
    if agents:
        agent["enum"] = [*agents[:MOST_AGENTS]]
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {
            "task": {"type": "string", "minLength": 1, "description": "What to do, in words."},
            "agent": agent,
            "context": {"type": "string", "description": "Text that belongs to the task."},
            "output_schema": {"type": "object", "description": "A JSON Schema that the result must have."},
        },
        "required": ["task"],
        "additionalProperties": False,
    }
    description = (
        "Give a task to an agent of this workspace. The work is a durable run under the rules of the workspace: "
        "what needs an approval waits for a person."
    )
    return ServedTool(
        spec=types.Tool(name=RUN, title="Run a task", description=description, input_schema=schema, annotations=_WORKS)
    )


def _build_run_result() -> ServedTool:
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"run": {"type": "string", "description": "The handle that an earlier call named."}},
        "required": ["run"],
        "additionalProperties": False,
    }
    return ServedTool(
        spec=types.Tool(
            name=RUN_RESULT,
            title="Result of a run",
            description="Go on waiting for a run that was begun here before, and give its result.",
            input_schema=schema,
            annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
        )
    )
