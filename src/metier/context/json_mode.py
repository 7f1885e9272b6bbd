"""JSON decisions of models without tool calls: their instructions and their schema. Pure."""

import json
from collections.abc import Iterable

from pydantic import JsonValue

from metier.context.control import ACTION_OF_TOOL
from metier.decisions import ActionType
from metier.messages import ToolSpec
from metier.prompts.texts import load_text

_ORDER: tuple[ActionType, ...] = ("call_tool", "run_command", "call_skill", "ask_user", "delegate", "finish")
_SELF_EXPLAINING = frozenset({"read_skill_files"})
"""Tools without an action: a decision lists such files in `required_disclosure_paths`."""


def render_protocol(tools: Iterable[ToolSpec]) -> str:
    """Render the instructions: reply format, actions, tools with their schemas, decision schema, example."""
    offered = list(tools)
    called = [tool for tool in offered if ACTION_OF_TOOL.get(tool.name) is None and tool.name not in _SELF_EXPLAINING]
    steering = [tool for tool in offered if tool.name in ACTION_OF_TOOL]
    pieces = [
        load_text("json_mode"),
        "## Types of actions",
        "\n".join([*([_describe_call()] if called else []), *(_describe_action(tool) for tool in steering)]),
    ]
    if called or steering:
        pieces += ["## Tools", *(_describe_tool(tool) for tool in (*called, *steering))]
    pieces += [
        "## Schema of your reply",
        _write(build_decision_schema(offered)),
        f"Example: {_write(_build_example(called))}",
    ]
    return "\n\n".join(pieces)


def build_decision_schema(tools: Iterable[ToolSpec] | None = None) -> dict[str, JsonValue]:
    """Build the schema of a decision, limited to the offered tools if given."""
    action: dict[str, JsonValue] = {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": list[JsonValue](_ORDER if tools is None else _list_types(tools))},
            "params": {"type": "object"},
            "expected_output": {"type": "string"},
        },
        "required": ["type", "params"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {
            "reasoning_summary": {"type": "string"},
            "selected_skill": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "required_disclosure_paths": {"type": "array", "items": {"type": "string"}},
            "planned_actions": {"type": "array", "items": action},
        },
        "required": ["reasoning_summary", "planned_actions"],
        "additionalProperties": False,
    }


def _list_types(tools: Iterable[ToolSpec]) -> list[ActionType]:
    found = {ACTION_OF_TOOL.get(tool.name, "call_tool") for tool in tools} | {"finish"}
    return [kind for kind in _ORDER if kind in found]


def _describe_call() -> str:
    return '- `call_tool`, params `{"tool": NAME, "arguments": {…}}`: call one of the tools below'


def _describe_action(tool: ToolSpec) -> str:
    return f"- `{ACTION_OF_TOOL[tool.name]}`, params as the arguments of `{tool.name}` below"


def _describe_tool(tool: ToolSpec) -> str:
    return f"### {tool.name}\n{tool.description}\nArguments: {_write(tool.input_schema)}"


def _build_example(called: list[ToolSpec]) -> dict[str, JsonValue]:
    action: JsonValue = {"type": "finish", "params": {"result": "…"}}
    if any(tool.name == "Read" for tool in called):
        action = {"type": "call_tool", "params": {"tool": "Read", "arguments": {"path": "README.md"}}}
    return {"reasoning_summary": "…", "planned_actions": [action]}


def _write(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
