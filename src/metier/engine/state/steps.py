"""The steps of a turn, and what becomes of them when it closes: results for the model, a line each for later. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import convert
from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.context.control import PLAN, join_results
from metier.context.layers import Exchange
from metier.context.outside_text import TOOL_OUTPUT, fence
from metier.context.trimming import READING_TOOL
from metier.decisions import ActionStep, StepExecutionResult, read_failure
from metier.engine.entries.model import Rejection
from metier.engine.entries.question import ApprovalAsked
from metier.engine.entries.step import HooksRan, StepFinished, StepStarted
from metier.engine.entries.task import ChildRequested
from metier.engine.state.calls import build_identity
from metier.events.step import PlanStep
from metier.messages import Message, ModelReply, Part, TextPart, ToolCallPart, ToolResultPart

NOT_RUN = "Not run: the turn ended before it"

type StepPhase = Literal["pending", "approved", "asking", "running", "in_doubt", "finished"]


@dataclass(slots=True)
class Step:
    """One action of the current turn."""

    step_id: str
    action: ActionStep
    phase: StepPhase = "pending"
    attempts: int = 0
    started: StepStarted | None = None
    finished: StepFinished | None = None
    approval_id: str = ""
    denied: str = ""
    """Why the approver denied it."""
    is_foreign: bool = False
    """It was planned before the run came to this store: a user is asked, whatever the rules say."""
    may_be_done: bool = False
    """It was started before the run came to this store: the person who is asked is told so."""
    failed_once: bool = False
    needs_write: str = ""
    """The message with which it failed in the read-only sandbox; from then on a user decides."""
    asked: ApprovalAsked | None = None
    """What was put before a user last."""
    times_asked: int = 0
    approved_base: str = ""
    """What the call must find as it was when a user said yes to it; see `ApprovalAsked.base`."""
    approved_leads: tuple[str, ...] = ()
    """Where its paths led then, if that was elsewhere than they say."""
    edited: dict[str, JsonValue] | None = None
    """The arguments that a user gave the call while approving it."""
    answers: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """What was given to the questions of the step itself."""
    hooked: HooksRan | None = None
    """What hooks said before the call, with the arguments that it has now."""
    permission: HooksRan | None = None
    """What hooks said before a user was asked."""
    is_hooked_after: bool = False
    is_edited_after_approval: bool = False
    """By a hook."""
    notes: list[str] = field(default_factory=list[str])
    """What hooks add to the result that the model reads."""
    delegated: ChildRequested | None = None
    """The run that does it, while it is under way and after."""


def read_plan(action: ActionStep) -> tuple[PlanStep, ...]:
    """The list that a call of `plan` gives; nothing for other actions."""
    name, arguments = name_call(action)
    steps = arguments.get("steps")
    return convert(steps, tuple[PlanStep, ...]) if name == PLAN and isinstance(steps, list) else ()


def describe_plan(steps: Sequence[PlanStep]) -> str:
    """How far it is, in one line."""
    done = sum(each.status == "done" for each in steps)
    now = next((each.step for each in steps if each.status == "in_progress"), "")
    return f"{done} of {len(steps)} done" + (f", now: {now}" if now else "")


def build_exchange(
    reply: ModelReply, steps: Sequence[Step], rejected: Sequence[Rejection], *, number: int = 0, skill: str = ""
) -> Exchange:
    """A turn as history: every call has exactly one result, in call order."""
    results = _answer_calls(reply, steps, rejected) or _tell_in_words(steps, rejected)
    role: Literal["tool", "user"] = "tool" if any(isinstance(part, ToolResultPart) for part in results) else "user"
    return Exchange(
        reply=Message(role="assistant", parts=reply.parts),
        results=(Message(role=role, parts=tuple(results)),) if results else (),
        steps=tuple(_summarise(step) for step in steps if step.finished is not None),
        number=number,
        skill=skill,
        reads=any(name_call(step.action)[0] == READING_TOOL for step in steps),
        asked=frozenset(asked for step in steps for asked in _list_asked(step.action, skill)),
    )


def _list_asked(action: ActionStep, skill: str) -> list[str]:
    """What a call asks for; of a skill's files each for itself, so that they are known again in other company."""
    name, arguments = name_call(action)
    paths = arguments.get("paths")
    if name == READING_TOOL and isinstance(paths, list):
        return [build_identity(action), *(f"{skill}:{path}" for path in paths)]
    return [build_identity(action)]


def add_candidates(text: str, candidates: Sequence[str]) -> str:
    """The text of a failed step, with the skills that could take over; JSON stays JSON."""
    if not candidates:
        return text
    failure = read_failure(text)
    if failure is None:
        return f"{text}\n\nOther skills for this request: {', '.join(candidates)}"
    return json.dumps({**failure, "other_skills": list(candidates)}, ensure_ascii=False)


def _answer_calls(reply: ModelReply, steps: Sequence[Step], rejected: Sequence[Rejection]) -> list[Part]:
    told = {no.call_id: no for no in rejected}
    results: list[Part] = []
    for part in reply.parts:
        if not isinstance(part, ToolCallPart):
            continue
        own, rejection = [step for step in steps if step.action.call_id == part.id], told.get(part.id)
        text, is_error = NOT_RUN, True
        media = tuple(each for step in own if step.finished is not None for each in step.finished.media)
        if len(own) > 1:
            text, is_error = join_results([(step.action, *_tell_end(step)) for step in own])
        elif own:
            text, is_error = _tell_end(own[0])
        elif rejection is not None:
            text = rejection.text or rejection.message
        results.append(ToolResultPart(call_id=part.id, name=part.name, text=text, is_error=is_error, media=media))
    return results


def _tell_end(step: Step) -> tuple[str, bool]:
    """What came of a step, and whether it failed."""
    if step.finished is None:
        return NOT_RUN, True
    return _render_text(step, step.finished), step.finished.is_error


def _render_text(step: Step, finished: StepFinished) -> str:
    """What came of a step, that it was not the call which the model made, where that is so, and what hooks add."""
    text = "\n".join((finished.text, *step.notes)) if step.notes else finished.text
    if step.edited is None:
        return text
    arguments = json.dumps(step.edited, ensure_ascii=False)
    return f"[A person edited this call before approving it. It was made with {arguments}]\n{text}"


def _tell_in_words(steps: Sequence[Step], rejected: Sequence[Rejection]) -> list[Part]:
    """A decision that was written as JSON has no calls to answer; each result is a part of its own."""
    lines = [
        f"Result of {name_call(step.action)[0]} ({step.step_id}):\n"
        + fence(_render_text(step, step.finished), tag=TOOL_OUTPUT)
        for step in steps
        if step.finished is not None
    ]
    lines += [f"Not run, {no.tool}: {no.text or no.message}" for no in rejected]
    return [TextPart(text=line) for line in lines]


def _summarise(step: Step) -> StepExecutionResult:
    """What later turns are told of a finished step."""
    finished = step.finished
    assert finished is not None
    return StepExecutionResult(
        step_id=step.step_id,
        status=finished.status,
        tool=str(step.action.params.get("tool") or step.action.type),
        exit_code=finished.exit_code,
        stdout_summary=finished.stdout_summary or finished.text[:200],
        stderr_summary=finished.stderr_summary,
        retry_count=max(0, step.attempts - 1),
    )
