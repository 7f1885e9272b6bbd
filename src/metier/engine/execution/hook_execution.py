"""Execution of the user's hooks for one moment, with their merged answers. `state.due_hooks` decides what follows.

Hooks run at least once, like model calls: after a crash before the entry is written, they run again.
"""

from collections.abc import Mapping
from contextlib import suppress

from anyio.to_thread import run_sync
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.engine import actions as a
from metier.engine.entries.step import FileChange, HookOutcome, HooksRan
from metier.engine.execution.file_changes import store_file
from metier.engine.journal import RunLog
from metier.engine.redaction import redact
from metier.engine.services import Services
from metier.engine.state.due_hooks import get_notification, list_due
from metier.engine.state.run_state import RunState
from metier.errors import ToolFailed
from metier.telemetry.jsonl import FILE_NAME
from metier.tools.files.file_state import are_same, read_state
from metier.tools.hook_definitions import HookCommand
from metier.tools.hook_process import (
    HookAnswer,
    HookDecision,
    HookMoment,
    HookRun,
    build_input,
    describe_call,
    describe_result,
    restore_arguments,
)

# Without `allow`: hooks can only narrow what the rules permit.
_STRICTNESS: tuple[HookDecision, ...] = ("", "ask", "deny", "stop")
_MAX_FILES = 20
"""Maximum number of a step's files that are checked for changes by hooks; changes to others block an undo."""
# Otherwise an agent could turn off a guard by editing its file.
_FAILED_CLOSED = frozenset({"changed"})
"""Statuses that deny the call. `changed`: the hook's file is no longer the one that the user wrote."""


async def run_hooks(action: a.RunHooks, log: RunLog, services: Services) -> None:
    """Run the hooks in their order in the settings. Each sees the call as changed by the ones before it."""
    due = list_due(log.state, action)
    arguments = _get_arguments(log.state, action)
    ran = HooksRan(event=action.event, step_id=action.step_id)
    # One after another, because edits made in parallel would depend on timing.
    for hook in due:
        data = build_input(_build_moment(action, log.state, services, arguments=arguments))
        result = redact(await services.hooks.run(hook, data), services) if services.hooks is not None else _refuse()
        ran = _add(ran, hook, result, command=redact(" ".join((hook.command, *(hook.args or ()))), services))
        if result.answer.updated_input is not None and action.event == "PreToolUse":
            # Later hooks see the changed arguments, and the rules are applied to them afterwards.
            tool, _ = name_call(log.state.step(action.step_id).action)
            updated = result.answer.updated_input
            arguments = restore_arguments(tool, updated, before=arguments, workspace=services.workspace)
            ran = replace(ran, updated_input=arguments)
        # The call is not made, so there is nothing to check for later hooks.
        if ran.decision in ("deny", "stop"):
            break
    await log.record(await _add_changes(ran, log.state, services))


async def _add_changes(ran: HooksRan, state: RunState, services: Services) -> HooksRan:
    """Add the hooks' changes to files of the step, so that an undo reverts them with it."""
    finished = state.step(ran.step_id).finished if ran.event == "PostToolUse" else None
    if finished is None or services.snapshots is None:
        return ran
    changes: list[FileChange] = []
    for before in finished.changes[:_MAX_FILES]:
        with suppress(OSError, ToolFailed):
            after = await store_file(await run_sync(read_state, services.workspace, before.path), services.store)
            if not are_same(before.after, after):
                changes.append(FileChange(path=before.path, before=before.after, after=after))
    return replace(ran, changes=tuple(changes))


def _refuse() -> HookRun:
    return HookRun(status="not_started", problem="Hooks cannot be run here")


def _add(ran: HooksRan, hook: HookCommand, result: HookRun, *, command: str) -> HooksRan:
    """Merge one more outcome: the strictest decision wins, and texts are joined."""
    answer = _close(hook, result)
    outcome = HookOutcome(
        command=command,
        source=hook.source,
        status=result.status,
        decision=answer.decision,
        exit_code=result.exit_code,
        message=result.problem or answer.message,
        ignored=answer.ignored,
        duration_ms=round(result.duration_seconds * 1000, 3),
    )
    is_stricter = _STRICTNESS.index(answer.decision) > _STRICTNESS.index(ran.decision)
    return replace(
        ran,
        outcomes=(*ran.outcomes, outcome),
        decision=answer.decision if is_stricter else ran.decision,
        reason=answer.reason if is_stricter else ran.reason,
        context="\n".join(text for text in (ran.context, answer.context) if text),
    )


def _close(hook: HookCommand, result: HookRun) -> HookAnswer:
    """Return a hook's answer. The failure of a required or changed hook denies the call."""
    if result.status == "ok":
        return result.answer
    if hook.required or result.status in _FAILED_CLOSED:
        return HookAnswer(decision="deny", reason=f"A required hook failed. {result.problem}")
    return HookAnswer()


def _get_arguments(state: RunState, action: a.RunHooks) -> Mapping[str, JsonValue]:
    return name_call(state.step(action.step_id).action)[1] if action.step_id else {}


def _build_moment(
    action: a.RunHooks, state: RunState, services: Services, *, arguments: Mapping[str, JsonValue]
) -> HookMoment:
    assert state.started is not None
    return HookMoment(
        event=action.event,
        session_id=state.started.context_id,
        run_id=state.run_id,
        workspace=services.workspace,
        transcript=services.run_folder / FILE_NAME,
        profile=state.started.profile,
        fields=_build_fields(action, state, services, arguments=arguments),
    )


def _build_fields(
    action: a.RunHooks, state: RunState, services: Services, *, arguments: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    assert state.started is not None
    match action.event:
        case "SessionStart":
            return {"source": "startup", "model": state.started.model}
        case "UserPromptSubmit":
            return {"prompt": state.started.task}
        case "Notification":
            reason = state.pause.reason if state.pause is not None else ""
            return {"message": reason, "notification_type": get_notification(state), "title": "agent"}
        case "PreCompact":
            return {"trigger": "auto", "custom_instructions": ""}
        case "Stop":
            return _describe_end(state)
        case "SubagentStop":
            return {**_describe_end(state), "agent_id": state.run_id, "agent_type": state.started.agent}
        case _:
            return _describe_step(action, state, services, arguments=arguments)


def _describe_end(state: RunState) -> dict[str, JsonValue]:
    finish = next((step for step in state.steps if step.action.type == "finish"), None)
    result = str(finish.action.params.get("result", "")) if finish is not None else ""
    return {"stop_hook_active": state.hooks.blocks > 0, "last_assistant_message": result}


def _describe_step(
    action: a.RunHooks, state: RunState, services: Services, *, arguments: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    step = state.step(action.step_id)
    tool, _ = name_call(step.action)
    call = {**describe_call(tool, arguments, services.workspace), "tool_use_id": step.action.call_id or step.step_id}
    finished = step.finished
    if finished is None:
        return call
    if finished.is_error:
        return {**call, "error": finished.text, "is_interrupt": finished.error_type == "interrupted"}
    response = describe_result(tool, arguments, text=finished.text)
    return {**call, "tool_response": response}
