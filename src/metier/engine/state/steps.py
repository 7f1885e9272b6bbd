"""The steps of a turn: their state, the identity of their calls, and their results for the model. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import convert
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import find_running_file, name_call
from metier.approval.rules import SHELL
from metier.context.control import PLAN, join_results
from metier.context.layers import Exchange
from metier.context.outside_text import TOOL_OUTPUT, fence
from metier.context.trimming import READING_TOOL
from metier.decisions import ActionStep, StepExecutionResult, read_failure
from metier.engine.entries.model import Rejection
from metier.engine.entries.question import ApprovalAsked
from metier.engine.entries.step import HooksRan, StepFinished, StepStarted
from metier.engine.entries.task import ChildRequested
from metier.errors import ToolFailed
from metier.events.step import PlanStep
from metier.messages import Message, ModelReply, Part, TextPart, ToolCallPart, ToolResultPart
from metier.tools.web.url import parse_url

_FETCH = "WebFetch"
_ONE_OF_MANY = {
    "script_run": ("skill_name", "script_name"),
    "script_help": ("skill_name", "script_name"),
    "run_task": ("task",),
    "delegate": ("agent",),
}


def build_identity(action: ActionStep) -> str:
    """Return the identity of a call. Equal calls have the same one, whatever output the model expects."""
    return json.dumps([action.type, action.params])


def build_memory_key(action: ActionStep) -> str:
    """Return what "always in this run" covers: the tool, or one target of a tool with many.

    That is one shell command, one script, one task, one agent, one web host, or one file that a program executes.
    """
    name, arguments = name_call(action)
    if name == SHELL:
        # The whole command, because a prefix would also cover commands that the user never saw.
        return f"{name}: {json.dumps(arguments, sort_keys=True)}"
    if name == _FETCH:
        return f"{name}: {_get_host(str(arguments.get('url', '')))}"
    if keys := _ONE_OF_MANY.get(name):
        return f"{name}: {json.dumps([arguments.get(key) for key in keys])}"
    if (running := find_running_file(arguments)) is not None:
        return f"{name}: {running[1]}"
    return name


def _get_host(url: str) -> str:
    """Return the host of an address, or the text itself if it can't be parsed."""
    try:
        parsed = parse_url(url)
    except ToolFailed:
        return url
    # With scheme and port: an answer for one server of a host does not cover the others.
    return f"{parsed.scheme}://{parsed.authority}"


def edit_arguments(action: ActionStep, arguments: dict[str, JsonValue]) -> ActionStep:
    """Return the action with the arguments that the approver edited."""
    if action.type == "call_tool":
        return replace(action, params={**action.params, "arguments": arguments})
    return replace(action, params=arguments)


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
    """The approver's reason for denying it."""
    is_foreign: bool = False
    """True if it was planned in another store: then a user is asked, regardless of the rules."""
    may_be_done: bool = False
    """True if it was started in another store, which the question mentions."""
    failed_once: bool = False
    needs_write: str = ""
    """The error in the read-only sandbox; if set, a user decides whether it gets write access."""
    asked: ApprovalAsked | None = None
    """The latest approval question."""
    times_asked: int = 0
    approved_base: str = ""
    """File state that the approved call must find; see `ApprovalAsked.base`."""
    approved_targets: tuple[str, ...] = ()
    """Link targets at the time of approval, if different from the paths."""
    edited: dict[str, JsonValue] | None = None
    """Arguments that a user edited while approving the call."""
    answers: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Answers to the step's own questions."""
    hooked: HooksRan | None = None
    """Results of hooks before the call, with its current arguments."""
    permission: HooksRan | None = None
    """Results of hooks before the user was asked."""
    is_hooked_after: bool = False
    is_edited_after_approval: bool = False
    """True if a hook edited it after the approval."""
    notes: list[str] = field(default_factory=list[str])
    """Texts that hooks add to the result for the model."""
    delegated: ChildRequested | None = None
    """The request for the child run that carries it out."""


def read_plan(action: ActionStep) -> tuple[PlanStep, ...]:
    """Return the list of a `plan` call; empty for other actions."""
    name, arguments = name_call(action)
    steps = arguments.get("steps")
    return convert(steps, tuple[PlanStep, ...]) if name == PLAN and isinstance(steps, list) else ()


def describe_plan(steps: Sequence[PlanStep]) -> str:
    """Describe the progress in one line."""
    done = sum(each.status == "done" for each in steps)
    now = next((each.step for each in steps if each.status == "in_progress"), "")
    return f"{done} of {len(steps)} done" + (f", now: {now}" if now else "")


def build_exchange(
    reply: ModelReply, steps: Sequence[Step], rejected: Sequence[Rejection], *, number: int = 0, skill: str = ""
) -> Exchange:
    """Build a turn's history: every call has exactly one result, in call order."""
    results = _answer_calls(reply, steps, rejected) or _render_in_words(steps, rejected)
    role: Literal["tool", "user"] = "tool" if any(isinstance(part, ToolResultPart) for part in results) else "user"
    return Exchange(
        reply=Message(role="assistant", parts=reply.parts),
        results=(Message(role=role, parts=tuple(results)),) if results else (),
        steps=tuple(_summarize(step) for step in steps if step.finished is not None),
        number=number,
        skill=skill,
        reads=any(name_call(step.action)[0] == READING_TOOL for step in steps),
        asked=frozenset(asked for step in steps for asked in _list_asked(step.action, skill)),
    )


def _list_asked(action: ActionStep, skill: str) -> list[str]:
    """List the contents that a call reads. A skill's files are separate, so that each is recognized in other calls."""
    name, arguments = name_call(action)
    paths = arguments.get("paths")
    if name == READING_TOOL and isinstance(paths, list):
        return [build_identity(action), *(f"{skill}:{path}" for path in paths)]
    return [build_identity(action)]


def add_candidates(text: str, candidates: Sequence[str]) -> str:
    """Add the skills that could take over to the text of a failed step; JSON stays JSON."""
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
        # Every call gets a result, because vendors reject a history in which one has none.
        text, is_error = NOT_RUN, True
        media = tuple(each for step in own if step.finished is not None for each in step.finished.media)
        # One call with several tasks became several steps.
        if len(own) > 1:
            text, is_error = join_results([(step.action, *_render_end(step)) for step in own])
        elif own:
            text, is_error = _render_end(own[0])
        elif rejection is not None:
            text = rejection.text or rejection.message
        results.append(ToolResultPart(call_id=part.id, name=part.name, text=text, is_error=is_error, media=media))
    return results


def _render_end(step: Step) -> tuple[str, bool]:
    """Return the text of a step's end, and whether it failed."""
    if step.finished is None:
        return NOT_RUN, True
    return _render_text(step, step.finished), step.finished.is_error


def _render_text(step: Step, finished: StepFinished) -> str:
    """Render a step's result with the texts of hooks, and with a note if the approver edited the call."""
    text = "\n".join((finished.text, *step.notes)) if step.notes else finished.text
    if step.edited is None:
        return text
    arguments = json.dumps(step.edited, ensure_ascii=False)
    return f"[A person edited this call before approving it. It was made with {arguments}]\n{text}"


def _render_in_words(steps: Sequence[Step], rejected: Sequence[Rejection]) -> list[Part]:
    """Render the results of a JSON decision, which has no calls to answer, as text parts."""
    lines = [
        f"Result of {name_call(step.action)[0]} ({step.step_id}):\n"
        + fence(_render_text(step, step.finished), tag=TOOL_OUTPUT)
        for step in steps
        if step.finished is not None
    ]
    lines += [f"Not run, {no.tool}: {no.text or no.message}" for no in rejected]
    return [TextPart(text=line) for line in lines]


def _summarize(step: Step) -> StepExecutionResult:
    """Summarize a finished step for later turns."""
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
