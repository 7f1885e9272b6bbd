"""Steps and child runs in a view. Pure; `fold` calls it."""

from msgspec.structs import replace
from pydantic import JsonValue

from metier.decisions import describe_failure
from metier.events.record import EventRecord
from metier.events.step import (
    ApprovalDecided,
    ApprovalRequested,
    CallRefused,
    SkillStepExecuted,
    StepOutcomeUnknown,
    StepRetryScheduled,
    StepStarted,
)
from metier.events.task import ChildRunFinished, ChildRunStarted
from metier.telemetry.sanitize import sanitize
from metier.views.call_line import build_line, get_own_arguments
from metier.views.run_view import RunLimits, RunView, StepKind, StepView, Waiting

_CONTROL = frozenset({"use_skill", "call_skill", "read_skill_files", "skill_search", "plan", "finish", "script_list"})
_CHILDREN = frozenset({"delegate", "run_task"})


def get_kind(action: str, tool: str) -> StepKind:
    """Return the kind of a step, by its action's type and tool."""
    if action == "ask_user" or tool == "ask_user":
        return "question"
    if action == "delegate" or tool in _CHILDREN:
        return "child"
    if action == "run_command":
        return "command"
    if tool in _CONTROL:
        return "control"
    return "skill" if action == "call_skill" else "tool"


def _start(view: RunView, payload: StepStarted, record: EventRecord) -> RunView:
    asked = _find_asked(view, payload.step_id, tool=payload.tool, arguments=payload.arguments)
    step = StepView(
        step_id=payload.step_id,
        turn=view.turn,
        skill=payload.skill_name or view.skill,
        tool=payload.tool or payload.action,
        line=build_line(payload.tool or payload.action, payload.arguments),
        arguments=get_own_arguments(payload.arguments),
        kind=get_kind(payload.action, payload.tool),
        started_at=record.timestamp,
        rule=payload.rule,
        verdict=payload.verdict,
        effect=payload.effect,
        idempotency_key=payload.idempotency_key,
        approval_id=asked.approval_id if asked else "",
        child_run_id=asked.child_run_id if asked else "",
        attempts=asked.attempts if asked else 1,
    )
    waiting = Waiting(kind="step", id=step.step_id, text=step.line, tool=step.tool, since=record.timestamp)
    return replace(_put(view, step, old=asked), waiting=waiting)


def _refuse(view: RunView, payload: CallRefused, record: EventRecord) -> RunView:
    known = view.find_step(payload.step_id) if payload.step_id else None
    if known is not None and known.state == "denied" and known.approval_id:
        return view  # a user said no to it, and that is shown with their reason
    asked = _find_asked(view, payload.step_id, tool=payload.tool, arguments=payload.arguments)
    step = StepView(
        step_id=payload.step_id,
        turn=view.turn,
        skill=payload.skill_name or view.skill,
        tool=payload.tool or payload.action,
        line=build_line(payload.tool or payload.action, payload.arguments),
        arguments=get_own_arguments(payload.arguments),
        state=payload.status,
        kind=get_kind(payload.action, payload.tool),
        started_at=record.timestamp,
        error=sanitize(payload.reason),
        rule=payload.rule,
        approval_id=asked.approval_id if asked else "",
    )
    return _put(view, step, old=asked)


def _execute(view: RunView, payload: SkillStepExecuted, record: EventRecord) -> RunView:
    old = view.find_step(payload.step_id)
    step = old or StepView(
        step_id=payload.step_id,
        turn=view.turn,
        skill=payload.skill_name or view.skill,
        tool=payload.tool or payload.action,
        line=sanitize(payload.script),
        kind=get_kind(payload.action, payload.tool),
        started_at=record.timestamp,
    )
    output = sanitize(payload.excerpt or payload.stdout_summary or payload.stderr_summary)
    error = sanitize(describe_failure(payload.stderr_summary))
    if step.state == "denied" and step.error:  # the refusal said why, in words
        error = step.error
    ended = replace(
        step,
        state=payload.status,
        duration_ms=payload.duration_ms,
        exit_code=payload.exit_code,
        output=output,
        output_lines=payload.output_lines,
        diff=None if payload.diff is None else sanitize(payload.diff),
        diff_lines=payload.diff_lines,
        error=error if payload.status != "succeeded" else "",
        attempts=payload.retry_count + 1,
    )
    waiting = None if view.waiting is not None and view.waiting.id == step.step_id else view.waiting
    return replace(_put(view, ended, old=old), waiting=waiting)


def _retry(view: RunView, payload: StepRetryScheduled, _record: EventRecord) -> RunView:
    old = view.find_step(payload.step_id)
    return _put(view, replace(old, state="running", attempts=old.attempts + 1), old=old) if old else view


def _lose(view: RunView, payload: StepOutcomeUnknown, _record: EventRecord) -> RunView:
    old = view.find_step(payload.step_id)
    return _put(view, replace(old, state="in_doubt", error=sanitize(payload.known)), old=old) if old else view


def _ask(view: RunView, payload: ApprovalRequested, record: EventRecord) -> RunView:
    old = view.find_step(payload.step_id) if payload.step_id else None
    step = StepView(
        step_id=payload.step_id or payload.approval_id,
        turn=view.turn,
        skill=view.skill,
        tool=payload.tool,
        line=build_line(payload.tool, payload.arguments),
        arguments=get_own_arguments(payload.arguments),
        state="waiting",
        kind=get_kind("", payload.tool),
        started_at=record.timestamp,
        rule=payload.rule,
        approval_id=payload.approval_id,
    )
    waiting = Waiting(
        kind="approval",
        id=payload.approval_id,
        text=payload.justification,
        tool=payload.tool,
        arguments=get_own_arguments(payload.arguments),
        rule=payload.rule,
        expires_at=payload.expires_at,
        since=record.timestamp,
    )
    return replace(_put(view, step, old=old), waiting=waiting)


def _decide(view: RunView, payload: ApprovalDecided, _record: EventRecord) -> RunView:
    asked = next((step for step in view.walk_back() if step.approval_id == payload.approval_id), None)
    waiting = None if view.waiting is not None and view.waiting.id == payload.approval_id else view.waiting
    view = replace(view, waiting=waiting)
    if asked is None or payload.decision == "approved":
        return view
    outcome = f"denied by {payload.decided_by or 'a user'}" if payload.decision == "denied" else "no answer in time"
    reason = f"{outcome}: {payload.reason}" if payload.reason else outcome
    return _put(view, replace(asked, state="denied", error=sanitize(reason)), old=asked)


def _begin_child(view: RunView, payload: ChildRunStarted, record: EventRecord) -> RunView:
    old = view.find_step(payload.step_id)
    step = old or StepView(step_id=payload.step_id, turn=view.turn, kind="child", started_at=record.timestamp)
    line = build_line("delegate", {"agent": payload.agent, "task": payload.task})
    started = replace(
        step, kind="child", tool=step.tool or "delegate", line=line, child_run_id=payload.child_run_id, state="running"
    )
    child = view.find_child(payload.child_run_id) or RunView(
        run_id=payload.child_run_id,
        parent_run_id=view.run_id,
        agent=payload.agent,
        task=payload.task,
        limits=RunLimits(max_turns=payload.max_turns or None, max_cost_usd=payload.max_cost_usd),
    )
    others = tuple(run for run in view.children if run.run_id != child.run_id)
    return replace(_put(view, started, old=old), children=(*others, child))


def _end_child(view: RunView, payload: ChildRunFinished, _record: EventRecord) -> RunView:
    """Set the status of a child that another process runs: its own events aren't in this log."""
    children = tuple(
        replace(run, status=payload.status, turn=payload.turns or run.turn)
        if run.run_id == payload.child_run_id and not run.status
        else run
        for run in view.children
    )
    return replace(view, children=children)


def _find_asked(view: RunView, step_id: str, *, tool: str, arguments: JsonValue) -> StepView | None:
    """Find the step that an approval was about: by its ID, or by its call in logs of older versions."""
    if (known := view.find_step(step_id)) is not None and not known.is_over:
        return known
    own = get_own_arguments(arguments)
    return next(
        (
            step
            for step in view.walk_back()
            if step.state == "waiting" and step.tool == tool and (step.arguments == own or step.step_id == step_id)
        ),
        None,
    )


def _put(view: RunView, step: StepView, *, old: StepView | None) -> RunView:
    """Replace the old step, or append the new one."""
    if old is None:
        return replace(view, items=(*view.items, step))
    # Search from the end: usually one of the last steps changes.
    number = next(i for i in range(len(view.items) - 1, -1, -1) if view.items[i] is old)
    return replace(view, items=(*view.items[:number], step, *view.items[number + 1 :]))


STEP_FOLDS = {
    StepStarted: _start,
    CallRefused: _refuse,
    SkillStepExecuted: _execute,
    StepRetryScheduled: _retry,
    StepOutcomeUnknown: _lose,
    ApprovalRequested: _ask,
    ApprovalDecided: _decide,
    ChildRunStarted: _begin_child,
    ChildRunFinished: _end_child,
}
