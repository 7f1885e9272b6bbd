"""Fold events into a `RunView`, live or from the log. Pure: all times are those of the events."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace
from pydantic import JsonValue

from metier.decisions import describe_failure
from metier.events.model import (
    LlmRequestFailed,
    LlmRequestSent,
    LlmResponseReceived,
    LlmRetryScheduled,
    PromptBudgetComputed,
)
from metier.events.payload import Payload
from metier.events.record import EventRecord
from metier.events.run import (
    LimitsRaised,
    ModelChanged,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunPaused,
    RunReopened,
    RunResumed,
    RunStarted,
)
from metier.events.step import (
    ApprovalDecided,
    ApprovalRequested,
    ArtifactWritten,
    CallRefused,
    InputReceived,
    InputRequested,
    PlanUpdated,
    SkillStepExecuted,
    StepOutcomeUnknown,
    StepRetryScheduled,
    StepStarted,
)
from metier.events.task import ChildRunFinished, ChildRunStarted, TaskPlanned, TaskStepChanged
from metier.telemetry.sanitize import sanitize
from metier.views.call_line import build_line, get_own_arguments
from metier.views.fold_notes import NOTES, build_note
from metier.views.run_view import (
    CallState,
    CallView,
    ContextUse,
    NoteView,
    RunLimits,
    RunView,
    StepKind,
    StepView,
    TaskStepView,
    TextView,
    Usage,
    Waiting,
)

type Fold = Callable[[RunView, Any, EventRecord], RunView]
"""Folds the payload type under which it is listed."""


def fold(view: RunView, record: EventRecord) -> RunView:
    """Return the view after one more event. A record of another run belongs to a child run, or starts one."""
    # An empty view takes the run of its first event.
    if view.run_id in ("", record.run_id):
        return _fold_own(view, record)
    return _fold_child(view, record)


def fold_all(records: Iterable[EventRecord], view: RunView | None = None) -> RunView:
    folded = view or RunView()
    for record in records:
        folded = fold(folded, record)
    return folded


def add_text(view: RunView, text: str) -> RunView:
    """Append redacted text to the reply that is arriving."""
    return replace(view, draft=view.draft + text) if text else view


def drop_text(view: RunView) -> RunView:
    """Drop the reply of a failed attempt."""
    return replace(view, draft="") if view.draft else view


def with_answer(view: RunView, result: str) -> RunView:
    """Set the whole result; the event log has only its start."""
    return replace(view, answer=result, answer_is_cut=False) if result else view


def _fold_own(view: RunView, record: EventRecord) -> RunView:
    payload = record.payload
    view = replace(
        view,
        run_id=record.run_id,
        seq=record.seq,
        turn=record.turn or view.turn,
        skill=record.skill or view.skill,
        updated_at=record.timestamp,
    )
    folds = FOLDS.get(type(payload))
    if folds is not None:
        view = folds(view, payload, record)
    note = build_note(payload, view) if folds is None or type(payload) in NOTES else None
    return view if note is None else _add(view, note)


def _fold_child(view: RunView, record: EventRecord) -> RunView:
    """Fold a record into the child run it belongs to, or add a new child to its parent."""
    for number, child in enumerate(view.children):
        if child.find_child(record.run_id) is not None:
            return _put_child(view, number, fold(child, record))
    parent = getattr(record.payload, "parent_run_id", "")
    for number, child in enumerate(view.children):
        if parent and child.find_child(parent) is not None:
            return _put_child(view, number, fold(child, record))
    new = replace(RunView(), parent_run_id=view.run_id)
    return replace(view, children=(*view.children, _fold_own(new, record)))


def _put_child(view: RunView, number: int, child: RunView) -> RunView:
    children = (*view.children[:number], child, *view.children[number + 1 :])
    return replace(view, children=children)


def _add(view: RunView, item: TextView | NoteView) -> RunView:
    return replace(view, items=(*view.items, item))


def _start(view: RunView, payload: RunStarted, record: EventRecord) -> RunView:
    return replace(
        view,
        parent_run_id=payload.parent_run_id or view.parent_run_id,
        context_id=payload.context_id,
        task=payload.task,
        agent=payload.agent,
        provider=payload.provider,
        model=payload.model,
        profile=payload.profile,
        sandbox=payload.sandbox,
        mode=payload.mode,
        status="in_progress",
        started_at=record.timestamp,
    )


def _budget(view: RunView, payload: PromptBudgetComputed, _record: EventRecord) -> RunView:
    use = ContextUse(
        tokens=payload.allocated_prompt_tokens,
        limit=payload.max_context_tokens,
        layers=tuple(payload.layers.items()),
        tool_schema_tokens=payload.tool_schema_tokens,
    )
    return replace(view, context=use)


def _send(view: RunView, payload: LlmRequestSent, record: EventRecord) -> RunView:
    meta = payload.meta
    call = CallView(
        turn=payload.turn,
        provider=meta.provider,
        model=meta.model,
        attempt=meta.attempt,
        started_at=record.timestamp,
    )
    # A retry replaces the failed attempt, so that a request is shown as one call.
    is_retry = bool(view.calls) and view.calls[-1].state == "retrying" and view.calls[-1].turn == payload.turn
    calls = (*(view.calls[:-1] if is_retry else view.calls), call)
    waiting = Waiting(kind="model", text=meta.model, since=record.timestamp)
    return replace(view, calls=calls, waiting=waiting, draft="", status="in_progress", message="", reason="")


def _receive(view: RunView, payload: LlmResponseReceived, _record: EventRecord) -> RunView:
    meta = payload.meta
    # Without tokens there is nothing to pay, whatever the price.
    is_priced = meta.cost_usd is not None or not (meta.input_tokens or meta.output_tokens)
    usage = Usage(
        input_tokens=meta.input_tokens or 0,
        cached_tokens=meta.cached_tokens or 0,
        output_tokens=meta.output_tokens or 0,
        cost_usd=meta.cost_usd or 0.0,
        unpriced_calls=0 if is_priced else 1,
    )
    view = _end_call(view, state="replied", latency_ms=meta.latency_ms or 0, usage=usage)
    call = replace(view.calls[-1], stop_reason=payload.stop_reason) if view.calls else None
    calls = (*view.calls[:-1], call) if call else ()
    # A reply without a call is the answer, which the last event has. JSON decisions are not readable.
    said, is_cut = (view.draft, False) if view.draft.strip() else (payload.text_summary, True)
    view = replace(view, calls=calls, usage=view.usage.plus(usage), waiting=None, draft="")
    if not said.strip() or not payload.tool_calls or said.lstrip().startswith("{"):
        return view
    # The text of an event ends with this sign if it was truncated.
    return _add(view, TextView(turn=payload.turn, text=sanitize(said).strip(), is_cut=is_cut and said.endswith("…")))


def _fail_call(view: RunView, payload: LlmRequestFailed, _record: EventRecord) -> RunView:
    view = _end_call(view, state="failed", latency_ms=payload.meta.latency_ms or 0)
    said = view.draft if view.draft.strip() else payload.partial_text
    view = replace(view, waiting=None, draft="")
    return _add(view, TextView(turn=payload.turn, text=sanitize(said).strip())) if said.strip() else view


def _retry_call(view: RunView, payload: LlmRetryScheduled, record: EventRecord) -> RunView:
    view = _end_call(view, state="retrying", latency_ms=payload.meta.latency_ms or 0)
    waiting = Waiting(kind="retry", text=payload.reason, since=record.timestamp, delay_seconds=payload.delay_seconds)
    return replace(view, waiting=waiting, draft="")


def _end_call(view: RunView, *, state: CallState, latency_ms: float, usage: Usage | None = None) -> RunView:
    if not view.calls:
        return view
    call = replace(view.calls[-1], state=state, latency_ms=latency_ms, usage=usage or view.calls[-1].usage)
    return replace(view, calls=(*view.calls[:-1], call))


def _ask(view: RunView, payload: InputRequested, record: EventRecord) -> RunView:
    waiting = Waiting(
        kind="input", id=payload.request_id, text=payload.question, fields=payload.fields, since=record.timestamp
    )
    return replace(view, waiting=waiting)


def _pause(view: RunView, payload: RunPaused, record: EventRecord) -> RunView:
    # The question says more than the pause that follows it.
    waiting = view.waiting if view.waiting is not None and view.waiting.kind in ("approval", "input") else None
    waiting = waiting or Waiting(kind="pause", text=payload.reason, since=record.timestamp)
    status = "input_required" if payload.kind == "input" else "paused"
    waiting = replace(waiting, resume_with=payload.resume_with)
    return replace(view, waiting=waiting, status=status, reason=payload.kind, message=payload.reason, draft="")


def _resume(view: RunView, _payload: Payload, _record: EventRecord) -> RunView:
    return replace(view, waiting=None, status="in_progress", reason="", message="", draft="")


def _finish(view: RunView, payload: RunFinished, _record: EventRecord) -> RunView:
    return replace(
        view,
        status=payload.status,
        turn=payload.turns or view.turn,
        usage=_complete(view, payload),
        answer=payload.result_summary,
        answer_is_cut=len(payload.result_summary) >= _SUMMARY_CHARACTERS,
        duration_ms=payload.duration_ms,
        waiting=None,
        draft="",
    )


# The length to which the event truncates a result.
_SUMMARY_CHARACTERS = 400


def _complete(view: RunView, payload: RunFinished) -> Usage:
    """Correct the usage by the run's own totals: a view that started late has missed calls."""
    usage, total = view.usage, view.total_usage
    has_unknown_cost = payload.cost_usd is None and bool(payload.input_tokens or payload.output_tokens)
    return replace(
        usage,
        input_tokens=usage.input_tokens + max(0, payload.input_tokens - total.input_tokens),
        output_tokens=usage.output_tokens + max(0, payload.output_tokens - total.output_tokens),
        cost_usd=usage.cost_usd + max(0.0, (payload.cost_usd or 0.0) - total.cost_usd),
        unpriced_calls=usage.unpriced_calls + (1 if has_unknown_cost and not total.unpriced_calls else 0),
    )


def _fail(view: RunView, payload: RunFailed, _record: EventRecord) -> RunView:
    return replace(
        view,
        status=payload.status,
        turn=payload.turns or view.turn,
        reason=payload.reason,
        message=payload.message,
        duration_ms=payload.duration_ms,
        waiting=None,
        draft="",
    )


def _raise_limits(view: RunView, payload: LimitsRaised, _record: EventRecord) -> RunView:
    old = view.limits
    limits = RunLimits(
        max_turns=payload.max_turns or old.max_turns,
        max_cost_usd=payload.max_cost_usd or old.max_cost_usd,
        timeout_seconds=payload.timeout_seconds or old.timeout_seconds,
    )
    return replace(view, limits=limits)


def _plan(view: RunView, payload: PlanUpdated, _record: EventRecord) -> RunView:
    return replace(view, plan=payload.steps)


def _write_artifact(view: RunView, payload: ArtifactWritten, _record: EventRecord) -> RunView:
    return replace(view, artifacts=(*view.artifacts, payload.path)) if payload.path not in view.artifacts else view


def _adopt(view: RunView, payload: RunAdopted, _record: EventRecord) -> RunView:
    return replace(view, provider=payload.provider, model=payload.model, profile=payload.profile)


def _change_model(view: RunView, payload: ModelChanged, _record: EventRecord) -> RunView:
    return replace(view, provider=payload.provider, model=payload.model)


def _plan_task(view: RunView, payload: TaskPlanned, _record: EventRecord) -> RunView:
    return replace(view, task_steps=tuple(TaskStepView(file=file) for file in payload.steps))


def _change_step(view: RunView, payload: TaskStepChanged, _record: EventRecord) -> RunView:
    new = TaskStepView(file=payload.file, name=payload.name, state=payload.state, message=payload.message)
    return replace(view, task_steps=tuple(new if step.file == new.file else step for step in view.task_steps))


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


def _build_step(
    view: RunView, payload: StepStarted | CallRefused, record: EventRecord, *, asked: StepView | None
) -> StepView:
    """Build the view of a call that started or was refused. `asked` is the step under which it was asked about."""
    tool = payload.tool or payload.action
    return StepView(
        step_id=payload.step_id,
        turn=view.turn,
        skill=payload.skill_name or view.skill,
        tool=tool,
        line=build_line(tool, payload.arguments),
        arguments=get_own_arguments(payload.arguments),
        kind=get_kind(payload.action, payload.tool),
        started_at=record.timestamp,
        rule=payload.rule,
        approval_id=asked.approval_id if asked else "",
    )


def _start_step(view: RunView, payload: StepStarted, record: EventRecord) -> RunView:
    asked = _find_asked(view, payload.step_id, tool=payload.tool, arguments=payload.arguments)
    step = replace(
        _build_step(view, payload, record, asked=asked),
        verdict=payload.verdict,
        effect=payload.effect,
        idempotency_key=payload.idempotency_key,
        child_run_id=asked.child_run_id if asked else "",
        attempts=asked.attempts if asked else 1,
    )
    waiting = Waiting(kind="step", id=step.step_id, text=step.line, tool=step.tool, since=record.timestamp)
    return replace(_put(view, step, old=asked), waiting=waiting)


def _refuse_call(view: RunView, payload: CallRefused, record: EventRecord) -> RunView:
    known = view.find_step(payload.step_id) if payload.step_id else None
    if known is not None and known.state == "denied" and known.approval_id:
        return view  # a user said no to it, and that is shown with their reason
    asked = _find_asked(view, payload.step_id, tool=payload.tool, arguments=payload.arguments)
    step = _build_step(view, payload, record, asked=asked)
    return _put(view, replace(step, state=payload.status, error=sanitize(payload.reason)), old=asked)


def _end_step(view: RunView, payload: SkillStepExecuted, record: EventRecord) -> RunView:
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


def _retry_step(view: RunView, payload: StepRetryScheduled, _record: EventRecord) -> RunView:
    old = view.find_step(payload.step_id)
    return _put(view, replace(old, state="running", attempts=old.attempts + 1), old=old) if old else view


def _lose_outcome(view: RunView, payload: StepOutcomeUnknown, _record: EventRecord) -> RunView:
    old = view.find_step(payload.step_id)
    return _put(view, replace(old, state="in_doubt", error=sanitize(payload.known)), old=old) if old else view


def _ask_approval(view: RunView, payload: ApprovalRequested, record: EventRecord) -> RunView:
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


def _decide_approval(view: RunView, payload: ApprovalDecided, _record: EventRecord) -> RunView:
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


FOLDS: dict[type[Payload], Fold] = {
    RunStarted: _start,
    PromptBudgetComputed: _budget,
    LlmRequestSent: _send,
    LlmResponseReceived: _receive,
    LlmRequestFailed: _fail_call,
    LlmRetryScheduled: _retry_call,
    InputRequested: _ask,
    InputReceived: _resume,
    RunPaused: _pause,
    RunResumed: _resume,
    RunReopened: _resume,
    RunFinished: _finish,
    RunFailed: _fail,
    LimitsRaised: _raise_limits,
    PlanUpdated: _plan,
    ArtifactWritten: _write_artifact,
    RunAdopted: _adopt,
    ModelChanged: _change_model,
    TaskPlanned: _plan_task,
    TaskStepChanged: _change_step,
    StepStarted: _start_step,
    CallRefused: _refuse_call,
    SkillStepExecuted: _end_step,
    StepRetryScheduled: _retry_step,
    StepOutcomeUnknown: _lose_outcome,
    ApprovalRequested: _ask_approval,
    ApprovalDecided: _decide_approval,
    ChildRunStarted: _begin_child,
    ChildRunFinished: _end_child,
}
