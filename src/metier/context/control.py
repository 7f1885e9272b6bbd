"""The tools by which a model steers the run itself. Their texts are in `prompts/tools`."""

from collections.abc import Iterable
from functools import cache

from pydantic import JsonValue

from metier.context.batches import WORKTREE
from metier.decisions import ActionType
from metier.messages import ToolSpec
from metier.prompts.tool_texts import describe_parameters, load_tool_text

PLAN = "plan"

ACTION_OF_TOOL: dict[str, ActionType] = {
    "use_skill": "call_skill",
    "ask_user": "ask_user",
    "delegate": "delegate",
    "finish": "finish",
    "Bash": "run_command",
}
"""Calls that mean an action of their own; every other call is `call_tool`."""


@cache  # each run is pinned to them, and they are texts of the package
def build_control_specs() -> tuple[ToolSpec, ...]:
    """All of them, in a fixed order. A run offers those that can do something in it, and is pinned to their texts."""
    return tuple(
        ToolSpec(
            name=name, description=load_tool_text(name).description, input_schema=describe_parameters(name, schema)
        )
        for name, schema in _SCHEMAS.items()
    )


def choose_specs(specs: Iterable[ToolSpec], names: Iterable[str]) -> tuple[ToolSpec, ...]:
    wanted = set(names)
    return tuple(spec for spec in specs if spec.name in wanted)


def _object(required: tuple[str, ...] = (), **properties: dict[str, JsonValue]) -> dict[str, JsonValue]:
    schema: dict[str, JsonValue] = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    return schema


_TEXT: dict[str, JsonValue] = {"type": "string"}
_ANYTHING: dict[str, JsonValue] = {"type": "object"}
_TEXTS: dict[str, JsonValue] = {"type": "array", "items": {"type": "string"}}

_PLAN_STATUS: dict[str, JsonValue] = {"type": "string", "enum": ["pending", "in_progress", "done", "dropped"]}
_PLAN_STEPS: dict[str, JsonValue] = {
    "type": "array",
    "items": _object(("step", "status"), step=_TEXT, status=_PLAN_STATUS),
    "minItems": 1,
    "maxItems": 20,
}
_CHILD_TASKS: dict[str, JsonValue] = {
    "type": "array",
    "items": _object(("agent", "task"), agent=_TEXT, task=_TEXT),
    "minItems": 1,
}
_SCHEMAS: dict[str, dict[str, JsonValue]] = {
    "use_skill": _object(("skill",), skill=_TEXT, reason=_TEXT, inputs=_ANYTHING),
    "read_skill_files": _object(("paths",), paths=_TEXTS),
    "skill_search": _object(("query",), query=_TEXT),
    "plan": _object(("steps",), steps=_PLAN_STEPS),
    "ask_user": _object(("question",), question=_TEXT, fields=_ANYTHING),
    "delegate": _object(agent=_TEXT, task=_TEXT, tasks=_CHILD_TASKS, isolation={"type": "string", "enum": [WORKTREE]}),
    "run_task": _object(("task",), task=_TEXT, inputs=_ANYTHING),
    "finish": _object(("result",), result={"type": ["string", "object", "array"]}),
}
CONTROL_NAMES = frozenset(_SCHEMAS)
