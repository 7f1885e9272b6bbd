"""The JSON that a hook reads on stdin, with the names that the convention has for tools and their arguments. Pure."""

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.tools.hooks.definition import HookEvent, name_tool

_FILE_TOOLS = frozenset({"Read", "Write", "Edit"})
_RENAMED = {"Edit": {"old": "old_string", "new": "new_string"}}
_PATH = "path"
_FILE_PATH = "file_path"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookMoment:
    """Where and for whom a hook runs."""

    event: HookEvent
    session_id: str
    run_id: str
    workspace: Path
    transcript: Path
    profile: str
    fields: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """What the event brings besides."""


def build_input(moment: HookMoment) -> dict[str, JsonValue]:
    return {
        "session_id": moment.session_id,
        "transcript_path": str(moment.transcript),
        "cwd": str(moment.workspace),
        "permission_mode": "bypassPermissions" if moment.profile == "permissive" else "default",
        "hook_event_name": moment.event,
        "run_id": moment.run_id,
        **moment.fields,
    }


def describe_call(tool: str, arguments: Mapping[str, JsonValue], workspace: Path) -> dict[str, JsonValue]:
    """`tool_name` and `tool_input`: the arguments as they are, beside the names that other programs have for them."""
    known = dict(arguments)
    for own, other in _RENAMED.get(tool, {}).items():
        if own in known:
            known.setdefault(other, known[own])
    path = known.get(_PATH)
    if tool in _FILE_TOOLS and isinstance(path, str):
        known[_FILE_PATH] = os.path.normpath(workspace / path)
    return {"tool_name": name_tool(tool), "tool_input": known}


def restore_arguments(
    tool: str, updated: Mapping[str, JsonValue], *, before: Mapping[str, JsonValue], workspace: Path
) -> dict[str, JsonValue]:
    """The arguments of the tool from what a hook made of its `tool_input`.

    A name of the convention counts where the hook changed it; the tool's own name counts otherwise.
    """
    shown = describe_call(tool, before, workspace)["tool_input"]
    assert isinstance(shown, dict)
    pairs = dict(_RENAMED.get(tool, {}))
    if tool in _FILE_TOOLS:
        pairs[_PATH] = _FILE_PATH
    restored = {name: value for name, value in updated.items() if name not in pairs.values()}
    for own, other in pairs.items():
        if other in updated and (updated[other] != shown.get(other) or own not in updated):
            restored[own] = updated[other]
    path = restored.get(_PATH)
    if tool in _FILE_TOOLS and isinstance(path, str) and Path(path).is_relative_to(workspace):
        restored[_PATH] = str(Path(path).relative_to(workspace))
    return restored


def describe_result(tool: str, arguments: Mapping[str, JsonValue], *, text: str, is_error: bool) -> JsonValue:
    """`tool_response`: what came of the call, with the fields that hooks look for."""
    response: dict[str, JsonValue] = {"success": not is_error, "output": text}
    path = arguments.get(_PATH)
    if tool in _FILE_TOOLS and isinstance(path, str):
        response["filePath"] = path
    if tool == "Bash":
        response |= {"stdout": text, "stderr": "", "interrupted": False}
    return response
