"""Run a hook: the JSON on its standard input, its process, and its answer by exit code and output.

A hook has its own process tree, with a time limit, bounded output and a minimal environment. The workspace files that
it names must still have their pinned content.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import anyio.to_thread
from msgspec import Struct, field

from metier.errors import ToolFailed
from metier.tools.hook_definitions import (
    FOLDER_VARIABLES,
    HookCommand,
    HookDecision,
    HookEvent,
    HookStatus,
    expand_folder,
    get_changed_file,
    name_tool,
)
from metier.tools.process.child_environment import build_environment
from metier.tools.process.run import Command, Outcome, ProcessLimits, run_process
from metier.tools.process.sandbox.confinement import Confinement
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
        # Words of the convention that existing hooks compare with.
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
            # Both names, so that hooks written for either program find the field.
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


def describe_result(tool: str, arguments: Mapping[str, JsonValue], *, text: str) -> JsonValue:
    """Return `tool_response`: the result of a call that succeeded, with the fields that hooks expect."""
    response: dict[str, JsonValue] = {"success": True, "output": text}
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


MAX_OUTPUT_BYTES = 1_048_576
# By path: a confined program may have written the first `bash` on PATH.
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
_STDERR_CHARACTERS = 500


class HookRun(Struct, frozen=True, kw_only=True):
    """The outcome of one hook, and its answer."""

    status: HookStatus
    answer: HookAnswer = field(default_factory=HookAnswer)
    exit_code: int | None = None
    problem: str = ""
    duration_seconds: float = 0.0


class HookRunner(Struct, frozen=True, kw_only=True):
    workspace: Path
    environ: Mapping[str, str]
    """The agent's environment; a hook gets only its ordinary variables."""
    confinement: Confinement = field(default_factory=Confinement)

    async def run(self, hook: HookCommand, data: Mapping[str, JsonValue]) -> HookRun:
        """Run a hook. Its failure is an outcome and never raises."""
        if changed := await anyio.to_thread.run_sync(get_changed_file, hook, self.workspace):
            return HookRun(status="changed", problem=f"{changed!r} changed since the run began")
        command = Command(
            arguments=self._build_arguments(hook),
            folder=self.workspace,
            environment=self._build_environment(),
            confinement=self.confinement,
        )
        limits = ProcessLimits(timeout_seconds=hook.timeout_seconds, max_stdout_bytes=MAX_OUTPUT_BYTES)
        try:
            outcome = await run_process(command, limits, stdin=json.dumps(dict(data)).encode())
        except ToolFailed as failure:
            return HookRun(status="not_started", problem=failure.message)
        return judge_outcome(hook, outcome)

    def _build_arguments(self, hook: HookCommand) -> list[str]:
        if hook.args is not None:
            return [expand_folder(word, self.workspace) for word in (hook.command, *hook.args)]
        shell = next((shell for shell in _SHELLS if Path(shell).exists()), "sh")
        return [shell, "-c", hook.command]

    def _build_environment(self) -> dict[str, str]:
        return build_environment(self.environ) | dict.fromkeys(FOLDER_VARIABLES, str(self.workspace))


def judge_outcome(hook: HookCommand, outcome: Outcome) -> HookRun:
    """Read the answer of a hook. One that timed out, failed or printed too much has none."""
    duration = outcome.duration_seconds
    if outcome.timed_out:
        problem = f"It did not end within {hook.timeout_seconds:g} s"
        return HookRun(status="timeout", problem=problem, duration_seconds=duration)
    if outcome.stdout.is_truncated or outcome.stderr.is_truncated:
        total = outcome.stdout.total_bytes + outcome.stderr.total_bytes
        problem = f"It printed {total:,} bytes, more than is read"
        return HookRun(
            status="too_much_output", exit_code=outcome.exit_code, problem=problem, duration_seconds=duration
        )
    if outcome.exit_code not in (0, BLOCKED):
        how = f"signal {outcome.signal}" if outcome.exit_code is None else f"exit code {outcome.exit_code}"
        stderr_end = outcome.stderr.last(_STDERR_CHARACTERS).strip()
        problem = f"It ended with {how}" + (f": {stderr_end}" if stderr_end else "")
        return HookRun(status="failed", exit_code=outcome.exit_code, problem=problem, duration_seconds=duration)
    answer = read_answer(
        hook.event, exit_code=outcome.exit_code, stdout=outcome.stdout.text, stderr=outcome.stderr.text
    )
    status: HookStatus = "failed" if answer.problem else "ok"
    return HookRun(
        status=status, answer=answer, exit_code=outcome.exit_code, problem=answer.problem, duration_seconds=duration
    )
