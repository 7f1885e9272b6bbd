"""The projection of the journal to the event log: the events of each entry. Pure.

A log that is rebuilt from the journal has the same events, except informational ones such as a scheduled retry or the
division of the prompt's budget, which are only written to the log.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import TypedDict

from msgspec import convert
from msgspec.structs import replace
from pydantic import JsonValue

from metier import events
from metier.approval.rules import SHELL
from metier.decisions import ActionStep, ModelDecision, describe_failure, describe_success, get_owner
from metier.definitions.names import SKILL_PIN, canonical_name, name_capability
from metier.engine.entries.entry import Entry
from metier.engine.entries.limits import LimitsRaised
from metier.engine.entries.model import DecisionMade, DecodeFailed, ModelReplied
from metier.engine.entries.question import ApprovalAsked, ApprovalDecided, InputAsked, InputGiven, UserMessageAdded
from metier.engine.entries.run import (
    ModelChanged,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunPaused,
    RunReopened,
    RunResumed,
    RunStarted,
    SkillCodeAccepted,
)
from metier.engine.entries.skill import CatalogLoaded, ContextDisclosed, HandedOff, SkillsRanked
from metier.engine.entries.step import (
    DoubtResolved,
    HooksRan,
    StepFinished,
    StepInDoubt,
    StepRetried,
    StepStarted,
    UndoFinished,
    UndoStarted,
)
from metier.engine.entries.task import CallPlanned, ChildEnded, ChildRequested, ResultChecked, TaskPlanned
from metier.engine.state.run_state import RunState
from metier.engine.state.steps import Step, describe_plan, read_plan
from metier.events.task import TaskStepState
from metier.messages import ToolCallPart
from metier.providers.facts import find_cost
from metier.telemetry.call_text import reveal_value

# `views.fold` knows this number: a summary of this length may be truncated.
SUMMARY_CHARACTERS = 400
EXPECTATION_CHARACTERS = 200
EXCERPT_LINES = 12
DIFF_LINES = 24
EXCERPT_WIDTH = 160
"""Maximum characters in a line of an excerpt."""


class _Excerpt(TypedDict):
    excerpt: str
    output_lines: int
    diff: str | None
    diff_lines: int


def project(entry: Entry, state: RunState) -> tuple[events.Payload, ...]:
    """Return the events of an entry; `state` is the state after it."""
    return tuple(_project(entry, state))


def _project(entry: Entry, state: RunState) -> Iterable[events.Payload]:
    match entry:
        case RunStarted() | RunPaused() | RunResumed() | RunFinished() | RunFailed():
            return [*_project_last_skill(entry, state), _project_run(entry, state)]
        case CatalogLoaded() | SkillsRanked() | HandedOff():
            return _project_planning(entry, state)
        case ContextDisclosed():
            return _project_disclosure(entry)
        case ModelReplied():
            return []  # the retry policy emits events for all attempts, including failed ones
        case DecisionMade() | DecodeFailed():
            return [_project_decision(entry), *_project_selected(entry, state), *_project_rejected(entry, state)]
        case StepStarted() | StepFinished() | StepRetried() | StepInDoubt() | DoubtResolved():
            return _project_step(entry, state)
        case ApprovalAsked() | ApprovalDecided() | InputAsked() | InputGiven() | UserMessageAdded():
            return [_project_answer(entry, state)]
        case TaskPlanned() | CallPlanned() | ChildRequested() | ChildEnded() | ResultChecked():
            return project_work(entry, state)
        case _:
            change = _project_change(entry)
            return [change] if change is not None else []


def _project_hooks(entry: HooksRan) -> events.Payload:
    failed = [each for each in entry.outcomes if each.status != "ok"]
    return events.HooksRan(
        hook_event=entry.event,
        step_id=entry.step_id,
        commands=tuple(each.command for each in entry.outcomes),
        failures=tuple(f"{each.command}: {each.message}" for each in failed),
        messages=tuple(each.message for each in entry.outcomes if each.status == "ok" and each.message),
        decision=entry.decision,
        reason=entry.reason,
        changed_call=entry.updated_input is not None,
        added_text=bool(entry.context),
    )


def _project_change(entry: Entry) -> events.Payload | None:
    """Project a change of the run itself; None for entries without an event."""
    match entry:
        case UndoStarted() | UndoFinished():
            return _project_undo(entry)
        case HooksRan():
            return _project_hooks(entry)
        case RunAdopted():
            return events.RunAdopted(provider=entry.provider, model=entry.model, profile=entry.profile)
        case LimitsRaised():
            return events.LimitsRaised(
                max_turns=entry.max_turns,
                max_cost_usd=entry.max_cost_usd,
                timeout_seconds=entry.timeout_seconds,
                raised_by=entry.raised_by,
            )
        case RunReopened():
            return events.RunReopened(reason=entry.reason, reopened_by=entry.reopened_by, step_id=entry.step_id)
        case ModelChanged():
            return events.ModelChanged(
                provider=entry.provider, model=entry.model, settings=entry.settings, changed_by=entry.changed_by
            )
        case SkillCodeAccepted():
            skills = tuple(name.partition(":")[2] for name in entry.code)
            return events.SkillCodeAccepted(skills=skills, code=entry.code, accepted_by=entry.accepted_by)
        case _:
            return None


def _project_undo(entry: UndoStarted | UndoFinished) -> events.Payload:
    if isinstance(entry, UndoFinished):
        return events.UndoFinished(undo_id=entry.undo_id, files=entry.files, left_alone=entry.left_alone)
    paths = tuple(change.path for change in entry.changes)
    return events.UndoStarted(undo_id=entry.undo_id, to_step=entry.to_step, files=paths, undone_by=entry.undone_by)


def _project_run(
    entry: RunStarted | RunPaused | RunResumed | RunFinished | RunFailed, state: RunState
) -> events.Payload:
    match entry:
        case RunStarted():
            return events.RunStarted(
                task=entry.task,
                mode=entry.mode,
                agent=entry.agent,
                provider=entry.provider,
                model=entry.model,
                profile=entry.profile,
                sandbox=entry.sandbox,
                reading_sandbox=entry.reading_sandbox or "",
                context_id=entry.context_id,
                parent_run_id=entry.parent_run_id,
                pins=entry.pins,
            )
        case RunPaused():
            return events.RunPaused(kind=entry.pause, reason=entry.reason, resume_with=f"agent resume {state.run_id}")
        case RunResumed():
            return events.RunResumed(reason=entry.reason, driver=entry.driver, at_seq=state.seq)
        case RunFinished():
            return events.RunFinished(
                status=state.status,
                mode=state.started.mode if state.started else "live",
                result_summary=entry.result[:SUMMARY_CHARACTERS],
                turns=state.turn,
                input_tokens=state.input_tokens,
                output_tokens=state.output_tokens,
                cost_usd=find_cost(state.cost_usd, tokens=state.input_tokens + state.output_tokens),
                duration_ms=entry.duration_ms,
            )
        case RunFailed():
            return events.RunFailed(
                reason=entry.reason,
                message=entry.message,
                status=entry.status,
                turns=state.turn,
                duration_ms=entry.duration_ms,
            )


def _project_last_skill(entry: Entry, state: RunState) -> list[events.Payload]:
    """Project the end of the last skill in charge."""
    if not state.skill or not isinstance(entry, RunFinished | RunFailed):
        return []
    status = "succeeded" if isinstance(entry, RunFinished) else "failed"
    return [events.SkillInvocationFinished(skill_name=state.skill, status=status)]


def _project_planning(entry: CatalogLoaded | SkillsRanked | HandedOff, state: RunState) -> list[events.Payload]:
    match entry:
        case CatalogLoaded():
            return [
                events.SkillCatalogLoaded(
                    skills=len(entry.skills),
                    problems=entry.problems,
                    shadowed=entry.shadowed,
                    duration_ms=entry.duration_ms,
                )
            ]
        case SkillsRanked():
            task = state.started.task if state.started else ""
            return [
                events.SkillPrefilterCompleted(
                    query=task[:SUMMARY_CHARACTERS],
                    candidates=entry.candidates,
                    considered=entry.considered,
                    strategy=entry.strategy,
                )
            ]
        case HandedOff():
            has_failed = entry.fallback or entry.from_skill in state.failed_skills
            finished = events.SkillInvocationFinished(
                skill_name=entry.from_skill, status="failed" if has_failed else "succeeded"
            )
            handoff = events.Handoff(from_skill=entry.from_skill, to_skill=entry.to_skill, rationale=entry.rationale)
            started = _begin_skill(entry.rationale, state)
            return [*([finished] if entry.from_skill else []), handoff, started]


def _project_disclosure(entry: ContextDisclosed) -> list[events.Payload]:
    payloads: list[events.Payload] = []
    # In a dict the last value of a key remains: reversed, that is the first piece. The loop restores the order.
    first_of_group = {(piece.skill, piece.stage): piece for piece in reversed(entry.pieces)}
    for first in reversed(first_of_group.values()):
        files = tuple(p.file for p in entry.pieces if (p.skill, p.stage) == (first.skill, first.stage))
        payloads.append(
            events.SkillDisclosureLoaded(
                skill_name=first.skill,
                stage=first.stage,
                files=files,
                total_bytes=sum(file.bytes for file in files),
                total_tokens=sum(file.tokens for file in files),
                refused=entry.refused,
            )
        )
    return payloads


def _project_decision(entry: DecisionMade | DecodeFailed) -> events.Payload:
    if isinstance(entry, DecodeFailed):
        return events.LlmDecisionRejected(
            turn=entry.turn, reason=entry.reason, message=entry.message, repair=entry.repair
        )
    decision = entry.decision
    return events.LlmDecisionDecoded(
        turn=entry.turn,
        selected_skill=decision.selected_skill,
        reasoning_summary=decision.reasoning_summary[:SUMMARY_CHARACTERS],
        required_disclosure_paths=decision.required_disclosure_paths,
        planned_actions=tuple(_with_expectation(step, decision) for step in decision.planned_actions),
        path=entry.path,
    )


def _with_expectation(step: ActionStep, decision: ModelDecision) -> ActionStep:
    """Add the expected output. Native calls have no field for it, so the model's text is used."""
    if step.expected_output:
        return step
    summary = decision.reasoning_summary.strip().partition("\n")[0][:EXPECTATION_CHARACTERS]
    expected = summary or f"The result of {step.params.get('tool') or step.type}"
    return replace(step, expected_output=expected)


def _project_selected(entry: DecisionMade | DecodeFailed, state: RunState) -> list[events.Payload]:
    """Project the selection in a JSON decision, by which the first skill takes charge without a step."""
    if isinstance(entry, DecodeFailed) or not state.is_selected:
        return []
    return [_begin_skill(entry.decision.reasoning_summary[:SUMMARY_CHARACTERS], state)]


def _begin_skill(rationale: str, state: RunState) -> events.SkillInvocationStarted:
    pins = state.started.pins if state.started else {}
    pin = canonical_name(f"{SKILL_PIN}{state.skill}")
    digest = next((digest for name, digest in pins.items() if canonical_name(name) == pin), "")
    return events.SkillInvocationStarted(skill_name=state.skill, rationale=rationale, digest=digest)


def _project_step(
    entry: StepStarted | StepFinished | StepRetried | StepInDoubt | DoubtResolved, state: RunState
) -> list[events.Payload]:
    match entry:
        case StepInDoubt():
            return [events.StepOutcomeUnknown(step_id=entry.step_id, known=entry.known)]
        case DoubtResolved():
            return [*project_work(entry, state), *_project_answered(entry, state)]
        case StepStarted():
            return [
                events.StepStarted(
                    step_id=entry.step_id,
                    action=entry.action.type,
                    tool=tool_of(entry.action.params, entry.action.type),
                    arguments=reveal_value(entry.action.params),
                    effect=entry.effect,
                    idempotency_key=entry.idempotency_key,
                    verdict=entry.verdict,
                    rule=entry.rule,
                    read_only=entry.read_only,
                    skill_name=get_owner(entry.action) or state.skill,
                )
            ]
        case StepRetried():
            reason = f"it needs write access ({entry.reason})" if entry.wants_write else entry.reason
            return [events.StepRetryScheduled(step_id=entry.step_id, retry_count=1, reason=reason)]
        case StepFinished():
            refused = _project_refused(entry, state)
            return [*refused, *_project_finished(entry, state), *project_task_step(entry, state)]


def _project_rejected(entry: DecisionMade | DecodeFailed, state: RunState) -> list[events.Payload]:
    """Project the calls of a reply that became no steps."""
    if isinstance(entry, DecodeFailed) or not entry.rejected:
        return []
    parts = state.reply.parts if state.reply is not None else ()
    given = {part.id: part.raw_arguments or part.arguments for part in parts if isinstance(part, ToolCallPart)}
    return [
        events.CallRefused(
            step_id="",
            action="call_tool",
            tool=each.tool,
            arguments=reveal_value(given.get(each.call_id)),
            status="failed",
            error_type=each.code,
            verdict="deny",
            rule=each.code,
            reason=each.message[:SUMMARY_CHARACTERS],
            skill_name=state.skill,
        )
        for each in entry.rejected
    ]


def _project_refused(entry: StepFinished, state: RunState) -> list[events.Payload]:
    """Project a refused call. Calls that started have their arguments and verdict in `step_started`."""
    step = _find_step(state, entry.step_id)
    if step is None or step.started is not None or not entry.is_error or not entry.verdict:
        return []
    return [
        events.CallRefused(
            step_id=entry.step_id,
            action=step.action.type,
            tool=tool_of(step.action.params, step.action.type),
            arguments=reveal_value(step.action.params),
            status=entry.status,
            error_type=entry.error_type,
            verdict=entry.verdict,
            rule=entry.rule,
            # `refuse_step` writes this prefix for the model. The event says by its type that the call was not run.
            reason=describe_failure(entry.text).removeprefix("Not run: ")[:SUMMARY_CHARACTERS],
            skill_name=get_owner(step.action) or state.skill,
        )
    ]


def _project_finished(entry: StepFinished, state: RunState) -> list[events.Payload]:
    step = _find_step(state, entry.step_id)
    action = step.action.type if step else ""
    payloads: list[events.Payload] = [
        events.SkillStepExecuted(
            step_id=entry.step_id,
            action=action,
            status=entry.status,
            tool=tool_of(step.action.params, action) if step else "",
            skill_name=entry.skill_name or state.skill,
            script=entry.script,
            exit_code=entry.exit_code,
            stdout_summary=entry.stdout_summary,
            stderr_summary=entry.stderr_summary,
            stdout_bytes=entry.stdout_bytes,
            stderr_bytes=entry.stderr_bytes,
            duration_ms=entry.duration_ms,
            retry_count=max(0, step.attempts - 1) if step else 0,
            error_type=entry.error_type,
            truncated=entry.truncated,
            **_excerpt(entry),
        )
    ]
    if step and entry.status == "succeeded" and (noted := read_plan(step.action)):
        payloads.append(events.PlanUpdated(step_id=entry.step_id, steps=noted, summary=describe_plan(noted)))
    # If another skill is in charge, the handoff reports the start.
    if action == "call_skill" and entry.status == "succeeded" and step and not state.next_skill:
        reason = str(step.action.params.get("reason") or "")
        payloads.append(_begin_skill(reason, state))
    payloads.extend(
        convert({**artifact, "step_id": entry.step_id}, events.ArtifactWritten) for artifact in entry.artifacts
    )
    return payloads


def _project_answered(entry: DoubtResolved, state: RunState) -> list[events.Payload]:
    """Project the step's result if the user's answer determines it."""
    step = _find_step(state, entry.step_id)
    # A retried step will have a result of its own.
    is_result = entry.answer in ("done", "skip") and step is not None and step.finished is not None
    return _project_finished(step.finished, state) if is_result and step and step.finished else []


def _excerpt(entry: StepFinished) -> _Excerpt:
    """Return the first lines of output; the last lines of a failure, where its reason is."""
    lines = (describe_failure(entry.text) if entry.is_error else describe_success(entry.text)).splitlines()
    shown = lines[-EXCERPT_LINES:] if entry.is_error else lines[:EXCERPT_LINES]
    text = "\n".join(line[:EXCERPT_WIDTH] for line in shown)
    changed = entry.diff.splitlines() if entry.diff is not None else []
    diff = None if entry.diff is None else "\n".join(line[:EXCERPT_WIDTH] for line in changed[:DIFF_LINES])
    # All lines are counted, so that a view can say how many are not shown.
    return {"excerpt": text, "output_lines": len(lines), "diff": diff, "diff_lines": len(changed)}


def _project_answer(
    entry: ApprovalAsked | ApprovalDecided | InputAsked | InputGiven | UserMessageAdded, state: RunState
) -> events.Payload:
    match entry:
        case UserMessageAdded():
            return events.UserMessageAdded(message_id=entry.message_id, text=entry.text, sent_by=entry.sent_by)
        case ApprovalAsked():
            step = _find_step(state, entry.step_id)
            return events.ApprovalRequested(
                approval_id=entry.approval_id,
                step_id=entry.step_id,
                tool=tool_of(step.action.params, step.action.type) if step else "",
                arguments_hash=entry.arguments_hash,
                arguments=reveal_value(step.action.params) if step else None,
                justification=entry.justification,
                rule=entry.reason,
                expires_at=datetime.fromisoformat(entry.expires_at) if entry.expires_at else None,
            )
        case ApprovalDecided():
            return events.ApprovalDecided(
                approval_id=entry.approval_id,
                decision=entry.decision,
                decided_by=entry.decided_by,
                reason=entry.reason,
                edited=entry.edited_arguments is not None,
            )
        case InputAsked():
            return events.InputRequested(request_id=entry.request_id, question=entry.question, fields=entry.fields)
        case InputGiven():
            return events.InputReceived(
                request_id=entry.request_id, answered_by=entry.answered_by, fields=tuple(entry.values)
            )


def tool_of(params: dict[str, JsonValue], action: str) -> str:
    if action == "call_skill" and isinstance(params.get("inputs"), dict):
        return name_capability(str(params.get("skill", "")))
    if action == "run_command":
        return SHELL
    return str(params.get("tool") or action)


def _find_step(state: RunState, step_id: str) -> Step | None:
    return next((step for step in state.steps if step.step_id == step_id), None)


def project_work(
    entry: TaskPlanned | CallPlanned | ChildRequested | ChildEnded | ResultChecked | DoubtResolved,
    state: RunState,
) -> list[events.Payload]:
    match entry:
        case TaskPlanned():
            order = state.started.order if state.started else None
            return [
                events.TaskPlanned(task_id=order.task_id if order else "", steps=tuple(s.file for s in entry.steps))
            ]
        case CallPlanned():
            return []  # the events of the step show the call
        case ChildRequested():
            order = entry.order
            started = events.ChildRunStarted(
                step_id=entry.step_id,
                child_run_id=entry.child_run_id,
                agent=order.agent,
                task=(order.task_id or order.task)[:SUMMARY_CHARACTERS],
                max_turns=order.limits.max_turns,
                max_cost_usd=order.limits.max_cost_usd,
            )
            return [started, *_change(entry.step_id, state, "running")]
        case ChildEnded():
            cost = find_cost(entry.cost_usd, tokens=entry.input_tokens + entry.output_tokens)
            ended = events.ChildRunFinished(
                step_id=entry.step_id,
                child_run_id=entry.child_run_id,
                status=entry.status,
                turns=entry.turns,
                cost_usd=cost,
            )
            return [ended]
        case ResultChecked():
            return [events.ResultChecked(accepted=not entry.failures, failures=entry.failures)]
        case DoubtResolved():
            answered = events.StepOutcomeAnswered(
                step_id=entry.step_id, answer=entry.answer, answered_by=entry.answered_by
            )
            if entry.answer == "skip":
                return [answered, *_change(entry.step_id, state, "skipped", message="A person skipped it")]
            return [answered, *(_change(entry.step_id, state, "succeeded") if entry.answer == "done" else [])]


def project_task_step(entry: StepFinished, state: RunState) -> list[events.Payload]:
    """Project the end of a task's step; empty for steps of other runs."""
    if entry.status == "succeeded":
        return _change(entry.step_id, state, "succeeded")
    return _change(entry.step_id, state, "failed", message=describe_failure(entry.text)[:SUMMARY_CHARACTERS])


def list_task_steps(state: RunState) -> list[events.TaskStepChanged]:
    """List the status of every step of a task, in order; empty if no task plans the run."""
    if not state.plan:
        return []
    return [
        events.TaskStepChanged(
            step_id=step.step_id,
            file=planned.file,
            name=planned.name,
            state=_find_state(step.phase, step.finished),
            message=_describe(step.finished),
        )
        for planned, step in zip(state.plan, state.steps, strict=True)
    ]


def _describe(finished: StepFinished | None) -> str:
    return describe_failure(finished.text)[:SUMMARY_CHARACTERS] if finished is not None and finished.is_error else ""


def _find_state(phase: str, finished: StepFinished | None) -> TaskStepState:
    if finished is None:
        return "running" if phase == "running" else "pending"
    if finished.status == "succeeded":
        return "succeeded"
    return "skipped" if finished.status == "skipped" else "failed"


def _change(step_id: str, state: RunState, now: TaskStepState, *, message: str = "") -> list[events.Payload]:
    number = next((i for i, step in enumerate(state.steps) if step.step_id == step_id), None)
    if not state.plan or number is None:
        return []
    planned = state.plan[number]
    changed = events.TaskStepChanged(step_id=step_id, file=planned.file, name=planned.name, state=now, message=message)
    return [changed]
