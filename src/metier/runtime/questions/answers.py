"""What a person says to a run that waits, and how it gets into the journal."""

from dataclasses import field
from typing import Literal

from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.engine import entries as e
from metier.engine.journal import RunLog
from metier.engine.phases import FINAL
from metier.engine.services import Services
from metier.engine.state import RunState
from metier.errors import UsageError
from metier.runtime.questions.approvals import Approvals
from metier.runtime.questions.reopening import RaisedLimits
from metier.tools.schemas import SchemaCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a person says to a run that waits."""

    values: dict[str, JsonValue] | None = None
    doubt: Literal["done", "retry", "skip", "abort"] | None = None
    by: str = ""
    raised: RaisedLimits = field(default_factory=RaisedLimits)
    """Limits that are raised."""
    reopens: bool = False
    """A person wants a run that a limit or its provider ended to go on."""
    accepts_changed_skills: bool = False
    """Go on with the files of skills as they are now, though they are not those that the run began with."""


async def take_answer(
    log: RunLog,
    answer: Answer,
    services: Services,
    *,
    approvals: Approvals,
    remembered: frozenset[str] = frozenset(),
    is_told: bool = False,
) -> bool:
    """Record what was answered meanwhile; False when the run still waits, or has ended.

    `is_told` where the journal says already that this driver goes on with the run.
    """
    state = log.state
    if state.phase in FINAL:
        return False
    if state.pause is not None and state.pause.pause == "delegation":
        # What is answered is for the run that is waited for; this one goes on when that one has ended.
        return True
    entries = [*await _find_decided(state, approvals, remembered), *_given(state, answer)]
    waits_for_answer = state.pause is not None and state.pause.pause in ("approval", "input", "in_doubt")
    if waits_for_answer and not entries:
        return False
    reason = state.pause.reason if state.pause else _reason_to_go_on(state)
    disabled = tuple(sorted(services.read_access()))
    if is_told and not entries and state.disabled == frozenset(disabled):
        return True
    await log.record(e.RunResumed(reason=reason, driver=log.lease.owner, disabled_tools=disabled), *entries)
    return True


async def _find_decided(state: RunState, approvals: Approvals, remembered: frozenset[str]) -> list[e.Entry]:
    asking = {step.approval_id: step.step_id for step in state.steps if step.phase == "asking"}
    found = await approvals.find_decisions(state.run_id, asking) if asking else []
    return [entry.model_copy(update={"remember": entry.approval_id in remembered}) for entry in found]


def _reason_to_go_on(state: RunState) -> str:
    started = state.started
    if started is not None and started.forked_at == state.seq:
        return f"forked from run {started.parent_run_id} at entry {started.forked_at}"
    return "after an interruption"


def _given(state: RunState, answer: Answer) -> list[e.Entry]:
    if answer.values is not None and state.question is not None:
        return [e.InputGiven(request_id=state.question.request_id, values=answer.values, answered_by=answer.by)]
    doubtful = next((step for step in state.steps if step.phase == "in_doubt"), None)
    if state.pause is not None and state.pause.pause == "step_failed":
        doubtful = next(step for step in state.steps if step.finished and step.finished.counts_as_failure)
    if answer.doubt is not None and doubtful is not None:
        return [e.DoubtResolved(step_id=doubtful.step_id, answer=answer.doubt, answered_by=answer.by)]
    return []


def check_answer(state: RunState, given: Answer) -> None:
    """An answer without a question is a mistake. Raises `UsageError`."""
    if state.phase in FINAL and (given.values is not None or given.doubt):
        raise UsageError(f"Run {state.run_id!r} is {state.status}; it asks nothing")
    if given.values is not None and state.question is None:
        raise UsageError(f"Run {state.run_id!r} does not ask for input", hint=_hint(state))
    if given.values is not None and state.question is not None:
        _check_values(given.values, state.question)
    is_failed_step = state.pause is not None and state.pause.pause == "step_failed"
    if given.doubt and not is_failed_step and not any(step.phase == "in_doubt" for step in state.steps):
        raise UsageError(f"Run {state.run_id!r} has no step in doubt", hint=_hint(state))


def _check_values(values: dict[str, JsonValue], question: e.InputAsked) -> None:
    """A skill checks its answers itself, and asks again; the answers to a model's question are checked only here."""
    fields = question.fields
    known = list_field_names(fields)
    if unknown := [name for name in values if known and name not in known]:
        raise UsageError(
            f"The run does not ask for {', '.join(map(repr, unknown))}", hint=f"It asks for: {', '.join(known)}"
        )
    if question.resumes or not isinstance(fields, dict) or not isinstance(fields.get("properties"), dict):
        return
    try:
        check = SchemaCheck("ask_user", fields)
    except UsageError:  # the model wrote no schema; then there is nothing to go by
        return
    if wrong := check.find_error(values):
        raise UsageError(f"The answer cannot be used: {wrong}", hint="Nothing was taken in; answer again")


def list_field_names(fields: JsonValue) -> list[str]:
    """The names of what a question asks for; `answer` where it names none."""
    if isinstance(fields, dict):
        properties = fields.get("properties")
        return [str(name) for name in (properties if isinstance(properties, dict) else fields)]
    if isinstance(fields, list) and fields:
        return [str(each.get("name", "answer")) if isinstance(each, dict) else str(each) for each in fields]
    return ["answer"]


def _hint(state: RunState) -> str:
    return f"It waits for: {state.pause.reason}" if state.pause else f"`agent resume {state.run_id}` goes on with it"
