"""Hooks that are due, and the effect of their answers on a run. Pure."""

import json

from metier.approval.judge import name_call
from metier.engine import actions as a
from metier.engine.entries.step import HooksRan
from metier.engine.state.run_state import RunState
from metier.engine.state.steps import Step, edit_arguments
from metier.tools.hook_definitions import HookCommand, HookEvent, list_names, matches

BLOCKED = "hook_blocked"
"""Failure reason of a run that a hook blocked or ended."""
# The words of Claude Code, whose hooks run unchanged.
_TOLD_PAUSES = {"approval": "permission_prompt", "input": "elicitation_dialog", "in_doubt": "elicitation_dialog"}
_SUBJECTS: dict[HookEvent, tuple[str, ...]] = {"SessionStart": ("startup",), "PreCompact": ("auto",)}
"""Values for the matchers of events without a tool."""


def list_hooks(state: RunState, event: HookEvent, subjects: tuple[str, ...] = ("",)) -> tuple[HookCommand, ...]:
    """List the hooks of the run for this moment."""
    if state.started is None:
        return ()
    return tuple(hook for hook in state.started.hooks if hook.event == event and matches(hook, subjects))


def list_due(state: RunState, action: a.RunHooks) -> tuple[HookCommand, ...]:
    """List the hooks that an action runs, in their order in the settings."""
    return list_hooks(state, action.event, _list_subjects(state, action))


def _list_subjects(state: RunState, action: a.RunHooks) -> tuple[str, ...]:
    if action.step_id:
        return list_names(name_call(state.step(action.step_id).action)[0])
    if action.event == "Notification":
        return (get_notification(state),)
    return _SUBJECTS.get(action.event, ("",))


def get_notification(state: RunState) -> str:
    """Return the notification's type in the hook protocol; empty if there is nothing to report."""
    return _TOLD_PAUSES.get(state.pause.pause, "") if state.pause is not None else ""


def find_due(state: RunState) -> a.RunHooks | a.Fail | None:
    """Return the hooks to run before anything else, or None."""
    if state.started is None or not state.started.hooks or state.phase in ("INIT", "DONE", "ERROR"):
        return None
    if state.pause is not None:
        return _find_notice(state)
    memory = state.hooks
    if memory.blocked is not None:
        return a.Fail(BLOCKED, memory.blocked.reason or "A hook ended the run", "blocked")
    if state.phase == "LOAD_SKILL_CATALOG":
        return _find_opening(state)
    if state.phase in ("EXECUTE_STEP", "VERIFY_PROGRESS"):
        return _find_after(state)
    return None


def _find_notice(state: RunState) -> a.RunHooks | None:
    kind = get_notification(state)
    if not kind or state.hooks.is_notified or not list_hooks(state, "Notification", (kind,)):
        return None
    return a.RunHooks("Notification")


def _find_opening(state: RunState) -> a.RunHooks | None:
    """Return the hooks for the start of a session. Child runs have none: no user started them."""
    assert state.started is not None
    order = state.started.order
    if order is not None and (order.task_id or order.call or state.started.parent_run_id):
        return None
    openings: tuple[HookEvent, ...] = ("PreCompact", "SessionStart", "UserPromptSubmit")
    for event in openings:
        if event not in state.hooks.done and list_hooks(state, event, _SUBJECTS.get(event, ("",))):
            return a.RunHooks(event)
    return None


def _find_after(state: RunState) -> a.RunHooks | None:
    for step in state.steps:
        finished = step.finished
        if finished is None or step.started is None or step.is_hooked_after:
            continue
        event: HookEvent = "PostToolUseFailure" if finished.is_error else "PostToolUse"
        if list_hooks(state, event, list_names(name_call(step.action)[0])):
            return a.RunHooks(event, step.step_id)
    return None


def find_before(state: RunState, step: Step) -> a.RunHooks | a.RefuseStep | None:
    """Return the hooks to run before a call, or the refusal of a hook that denied it."""
    if step.hooked is None:
        due = list_hooks(state, "PreToolUse", list_names(name_call(step.action)[0]))
        return a.RunHooks("PreToolUse", step.step_id) if due else None
    return _refuse(step, step.hooked) if step.hooked.decision == "deny" else None


def find_permission(state: RunState, step: Step) -> a.RunHooks | a.RefuseStep | None:
    """Return the hooks to run before a user is asked, or the refusal of a hook that denied the call."""
    if step.permission is None:
        due = list_hooks(state, "PermissionRequest", list_names(name_call(step.action)[0]))
        return a.RunHooks("PermissionRequest", step.step_id) if due and step.phase != "asking" else None
    return _refuse(step, step.permission) if step.permission.decision == "deny" else None


def _refuse(step: Step, ran: HooksRan) -> a.RefuseStep:
    source = next((each.source for each in ran.outcomes if each.decision == "deny"), "")
    return a.RefuseStep(step.step_id, ran.reason, verdict="deny", rule=f"{ran.event} hook in {source}")


def get_question(step: Step) -> str:
    """Return why a hook wants a user to be asked about the call; empty if none does."""
    if step.is_edited_after_approval:
        return "A hook changed the call after it was approved"
    if step.hooked is None or step.hooked.decision != "ask":
        return ""
    return step.hooked.reason or "A hook asks"


def find_ending(state: RunState) -> a.RunHooks | None:
    """Return the hooks to run before the run finishes; once for every result."""
    assert state.started is not None
    if not state.started.hooks or state.hooks.is_asked_to_stop:
        return None
    event: HookEvent = "SubagentStop" if is_child(state) else "Stop"
    return a.RunHooks(event) if list_hooks(state, event) else None


def is_child(state: RunState) -> bool:
    return state.started is not None and state.started.order is not None and bool(state.started.parent_run_id)


def apply_hooks(state: RunState, entry: HooksRan) -> None:
    """Fold the hooks' answers. A denied `Stop` is folded in `fold`, because it gives the model another turn."""
    memory = state.hooks
    memory.done.add(entry.event)
    if entry.decision == "stop":
        memory.blocked = entry
    match entry.event:
        case "Notification":
            memory.is_notified = True
        case "SessionStart" | "UserPromptSubmit" | "PreCompact":
            memory.context += [entry.context] if entry.context else []
            # `SessionStart` can only add text; that it denies has no effect.
            if entry.decision == "deny" and entry.event != "SessionStart":
                memory.blocked = entry
        case "PreToolUse":
            _apply_before(state.step(entry.step_id), entry)
        case "PermissionRequest":
            state.step(entry.step_id).permission = entry
        case "PostToolUse" | "PostToolUseFailure":
            step = state.step(entry.step_id)
            step.is_hooked_after = True
            _note(step, entry)
        case "Stop" | "SubagentStop":
            memory.is_asked_to_stop = True


def _apply_before(step: Step, entry: HooksRan) -> None:
    step.hooked = entry
    if entry.updated_input is not None:
        # The approved call has changed, so the user is asked again.
        step.is_edited_after_approval = step.phase == "approved" and step.asked is not None
        if step.is_edited_after_approval:
            step.phase = "pending"
        step.action = edit_arguments(step.action, entry.updated_input)
        step.notes.append(f"[A hook changed this call. It was made with {json.dumps(entry.updated_input)}]")
    if entry.context:
        step.notes.append(f"[From a hook] {entry.context}")


def _note(step: Step, entry: HooksRan) -> None:
    texts = [entry.reason if entry.decision == "deny" else "", entry.context]
    step.notes += [f"[From a hook] {text}" for text in texts if text]
