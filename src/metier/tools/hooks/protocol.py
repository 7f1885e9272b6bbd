"""The convention of hooks: the JSON that a hook reads on stdin, and its answer by exit code and output."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

from msgspec import Struct, field

from metier.tools.hooks.definition import HookEvent, name_tool
from metier.values import JsonValue, StoredValue

_FILE_TOOLS = frozenset({"Read", "Write", "Edit"})
_RENAMED = {"Edit": {"old": "old_string", "new": "new_string"}}
_PATH = "path"
_FILE_PATH = "file_path"


class HookMoment(Struct, frozen=True, kw_only=True):
    """The context in which a hook runs."""

    event: HookEvent
    session_id: str
    run_id: str
    workspace: Path
    transcript: Path
    profile: str
    fields: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Additional fields of the event."""


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
    """Return `tool_name` and `tool_input`: the arguments, with the names of the convention added."""
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
    """Convert the `tool_input` that a hook returned back to the tool's arguments.

    If the hook changed a field under its name of the convention, that value is used; otherwise the tool's own field.
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
    """Return `tool_response`: the result of the call, with the fields that hooks expect."""
    response: dict[str, JsonValue] = {"success": not is_error, "output": text}
    path = arguments.get(_PATH)
    if tool in _FILE_TOOLS and isinstance(path, str):
        response["filePath"] = path
    if tool == "Bash":
        response |= {"stdout": text, "stderr": "", "interrupted": False}
    return response


BLOCKED = 2
"""The exit code of a denial; standard error has the reason."""
MAX_CHARACTERS = 10_000
"""Limit of a reason, and of text for the model."""
PLAIN_TEXT_EVENTS: frozenset[HookEvent] = frozenset({"SessionStart", "UserPromptSubmit"})
"""Events whose hooks may print plain text for the model instead of JSON."""

type HookDecision = Literal["", "ask", "deny", "stop"]
type HookStatus = Literal["ok", "failed", "timeout", "not_started", "too_much_output", "changed"]

_DENIALS = frozenset({"deny", "block"})


class HookAnswer(StoredValue, frozen=True, kw_only=True):
    """The answer of one hook."""

    decision: HookDecision = ""
    """`deny` denies the call or the event's action; `stop` ends the run."""
    reason: str = ""
    context: str = ""
    """Text for the model."""
    message: str = ""
    """Text for the user."""
    updated_input: dict[str, JsonValue] | None = None
    """New arguments for the call."""
    ignored: str = ""
    """A requested change that hooks can't make."""
    problem: str = ""
    """Why its output could not be read."""


def read_answer(event: HookEvent, *, exit_code: int, stdout: str, stderr: str) -> HookAnswer:
    """Read the answer of a hook that exited with 0 or 2. Any other exit code is a failure without an answer."""
    if exit_code == BLOCKED:
        return HookAnswer(decision="deny", reason=_cut(stderr.strip() or "Denied by a hook"))
    text = stdout.strip()
    if not text.startswith("{"):
        return HookAnswer(context=_cut(text)) if event in PLAIN_TEXT_EVENTS else HookAnswer()
    try:
        payload: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        return HookAnswer(problem=f"Its output starts like JSON and is invalid: {error}")
    return _read_object(payload) if isinstance(payload, dict) else HookAnswer()


def _read_object(payload: dict[str, JsonValue]) -> HookAnswer:
    specific = payload.get("hookSpecificOutput")
    own: Mapping[str, JsonValue] = specific if isinstance(specific, dict) else {}
    behavior = own.get("decision")
    inner: Mapping[str, JsonValue] = behavior if isinstance(behavior, dict) else {}
    words = {
        str(word).lower()
        for word in (payload.get("decision"), own.get("permissionDecision"), inner.get("behavior"))
        if isinstance(word, str)
    }
    reason = _first_text(
        own.get("permissionDecisionReason"), inner.get("message"), payload.get("reason"), own.get("reason")
    )
    updated = own.get("updatedInput", inner.get("updatedInput", payload.get("updatedInput")))
    decision: HookDecision = "deny" if words & _DENIALS else "ask" if "ask" in words else ""
    if payload.get("continue") is False:
        decision, reason = "stop", _first_text(payload.get("stopReason"), reason) or "A hook stopped the run"
    return HookAnswer(
        decision=decision,
        reason=_cut(reason or ("Denied by a hook" if decision == "deny" else "")),
        context=_cut(_first_text(own.get("additionalContext"), payload.get("additionalContext"))),
        message=_cut(_first_text(payload.get("systemMessage"))),
        updated_input=cast("dict[str, JsonValue]", updated) if isinstance(updated, dict) else None,
        # Hooks only narrow what rules allow; an allow of a hook has no effect.
        ignored="a hook cannot allow" if words & {"allow", "approve"} else "",
    )


def _first_text(*values: JsonValue) -> str:
    return next((value for value in values if isinstance(value, str) and value.strip()), "")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"
