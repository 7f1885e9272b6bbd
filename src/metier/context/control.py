"""The tools by which a model steers the run itself. Their words are sent with every request, so they are short."""

from collections.abc import Iterable

from pydantic import JsonValue

from metier.decisions import ActionType
from metier.messages import ToolSpec

ACTION_OF_TOOL: dict[str, ActionType] = {
    "use_skill": "call_skill",
    "ask_user": "ask_user",
    "delegate": "delegate",
    "finish": "finish",
    "Bash": "run_command",
}
"""Calls that mean an action of their own; every other call is `call_tool`."""


def control_specs(names: Iterable[str]) -> tuple[ToolSpec, ...]:
    """The control tools of these names, in a fixed order; a run offers only those that can do something in it."""
    wanted = set(names)
    return tuple(spec for spec in _ALL if spec.name in wanted)


def _object(required: tuple[str, ...] = (), **properties: dict[str, JsonValue]) -> dict[str, JsonValue]:
    schema: dict[str, JsonValue] = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    return schema


_TEXT: dict[str, JsonValue] = {"type": "string"}
_ANYTHING: dict[str, JsonValue] = {"type": "object"}
_TEXTS: dict[str, JsonValue] = {"type": "array", "items": {"type": "string"}}

_ALL = (
    ToolSpec(
        name="use_skill",
        description="Put a skill in charge: its instructions are loaded next. `inputs`: call its code instead.",
        input_schema=_object(("skill",), skill=_TEXT, reason=_TEXT, inputs=_ANYTHING),
    ),
    ToolSpec(
        name="read_skill_files",
        description="Read files or sections of the skill in charge: `references/x.md`, `SKILL.md#Heading`.",
        input_schema=_object(("paths",), paths=_TEXTS),
    ),
    ToolSpec(
        name="skill_search",
        description="Find skills that are not listed, by words.",
        input_schema=_object(("query",), query=_TEXT),
    ),
    ToolSpec(
        name="ask_user",
        description="Ask the person; the run waits for the answer. `fields`: a JSON Schema of what is needed.",
        input_schema=_object(("question",), question=_TEXT, fields=_ANYTHING),
    ),
    ToolSpec(
        name="delegate",
        description="Give a task to another agent and wait for its result.",
        input_schema=_object(("agent", "task"), agent=_TEXT, task=_TEXT),
    ),
    ToolSpec(
        name="run_task",
        description="Run a defined task with inputs and wait for its result.",
        input_schema=_object(("task",), task=_TEXT, inputs=_ANYTHING),
    ),
    ToolSpec(
        name="finish",
        description="End the run with this result. Call it alone, when the work is done.",
        input_schema=_object(("result",), result=_TEXT),
    ),
)
