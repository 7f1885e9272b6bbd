"""Answers to a waiting run, and their way into the journal.

A run may wait for its children's questions, or because files of a skill changed while it waited.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.engine.entries.entry import Entry
from metier.engine.entries.question import InputGiven
from metier.engine.entries.run import RunPaused, RunResumed, SkillCodeAccepted
from metier.engine.entries.step import DoubtResolved
from metier.engine.journal import RunLog
from metier.engine.services import Services
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.errors import UsageError
from metier.runtime.questions.approval_questions import ApprovalQuestion, Approvals, Asker, Reply
from metier.runtime.questions.resumption import RaisedLimits
from metier.runtime.records.pins import CODE, digest_code
from metier.runtime.status import RunStatus, get_waiting, read_run
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.store.base import Store
from metier.tools.schemas import SchemaCheck
from metier.views.user_question import UserQuestion

ACCEPT = "--accept-changed-skills"


class Answer(Struct, frozen=True, kw_only=True):
    """A user's answer to a waiting run."""

    values: dict[str, JsonValue] | None = None
    doubt: Literal["done", "retry", "skip", "abort"] | None = None
    by: str = ""
    raised: RaisedLimits = field(default_factory=RaisedLimits)
    """Limits to raise."""
    model: str = ""
    """Model for continuing a run that its provider ended; empty for that of the settings."""
    reopens: bool = False
    """Whether the user wants to continue a run that a limit or its provider ended."""
    accepts_changed_skills: bool = False
    """Continue with the current files of skills, although they changed since the run started."""

    @property
    def is_any(self) -> bool:
        """Return True if it answers a question of the run."""
        return self.values is not None or self.doubt is not None


async def take_answer(
    log: RunLog,
    answer: Answer,
    services: Services,
    *,
    approvals: Approvals,
    remembered: frozenset[str] = frozenset(),
    is_told: bool = False,
) -> bool:
    """Record new answers; False if the run still waits, or has ended.

    `is_told` where the journal says already that this driver continues with the run.
    """
    state = log.state
    if state.phase in FINAL:
        return False
    if state.pause is not None and state.pause.pause == "delegation":
        # What is answered is for the run that is waited for; this one continues when that one has ended.
        return True
    entries = await list_answers(state, answer, approvals, remembered=remembered)
    if waits_for_answer(state) and not entries:
        return False
    reason = state.pause.reason if state.pause else _reason_to_go_on(log)
    disabled = tuple(sorted(services.read_access()))
    if is_told and not entries and state.disabled == frozenset(disabled):
        return True
    await log.record(RunResumed(reason=reason, driver=log.lease.owner, disabled_tools=disabled), *entries)
    return True


async def list_answers(
    state: RunState, answer: Answer, approvals: Approvals, *, remembered: frozenset[str] = frozenset()
) -> list[Entry]:
    """Return the answers that the journal does not have yet, as entries."""
    return [*await _list_decided(state, approvals, remembered), *_given(state, answer)]


def waits_for_answer(state: RunState, *kinds: str) -> bool:
    """Return True if only a user's answer lets the run continue; with `kinds`, only for those."""
    return state.pause is not None and state.pause.pause in (kinds or ("approval", "input", "in_doubt"))


async def _list_decided(state: RunState, approvals: Approvals, remembered: frozenset[str]) -> list[Entry]:
    asking = {step.approval_id: step.step_id for step in state.steps if step.phase == "asking"}
    found = await approvals.list_decisions(state.run_id, asking) if asking else []
    return [replace(entry, remember=entry.approval_id in remembered) for entry in found]


def _reason_to_go_on(log: RunLog) -> str:
    """Return the reason for resuming; an unreleased lease means that the last driver was interrupted."""
    state, started = log.state, log.state.started
    if started is not None and started.forked_at == state.seq:
        return f"forked from run {started.parent_run_id} at entry {started.forked_at}"
    return "after an interruption" if log.lease.left_by or state.deaths else "continued"


def _given(state: RunState, answer: Answer) -> list[Entry]:
    if answer.values is not None and state.question is not None:
        return [InputGiven(request_id=state.question.request_id, values=answer.values, answered_by=answer.by)]
    doubtful = next((step for step in state.steps if step.phase == "in_doubt"), None)
    if state.pause is not None and state.pause.pause == "step_failed":
        doubtful = next(step for step in state.steps if step.finished and step.finished.counts_as_failure)
    if answer.doubt is not None and doubtful is not None:
        return [DoubtResolved(step_id=doubtful.step_id, answer=answer.doubt, answered_by=answer.by)]
    return []


def check_answer(status: RunStatus, given: Answer) -> None:
    """Raise `UsageError` for an answer without a question, or with the wrong fields."""
    waiting = status.waiting
    if waiting.phase in FINAL and given.is_any:
        raise UsageError(f"Run {waiting.run_id!r} is {waiting.status}; it asks nothing")
    if given.values is not None and status.question is None:
        raise UsageError(f"Run {waiting.run_id!r} does not ask for input", hint=_hint(waiting))
    if given.values is not None and status.question is not None:
        _check_values(given.values, status.question)
    if given.doubt and not status.is_stopped and not any(step.phase == "in_doubt" for step in waiting.steps):
        raise UsageError(f"Run {waiting.run_id!r} has no step in doubt", hint=_hint(waiting))


def _check_values(values: dict[str, JsonValue], question: UserQuestion) -> None:
    """Check the answer to a model's question. A skill checks its answers itself and asks again."""
    known = [field.name for field in question.fields]
    if unknown := [name for name in values if known and name not in known]:
        raise UsageError(
            f"The run does not ask for {', '.join(map(repr, unknown))}", hint=f"It asks for: {', '.join(known)}"
        )
    if question.schema is None:
        return
    try:
        check = SchemaCheck("ask_user", question.schema)
    except UsageError:  # the model did not write a valid schema, so nothing can be checked
        return
    if wrong := check.get_error(values):
        raise UsageError(f"The answer cannot be used: {wrong}", hint="Nothing was taken in; answer again")


def _hint(state: RunState) -> str:
    return f"It waits for: {state.pause.reason}" if state.pause else f"Run `agent resume {state.run_id}`"


class Addressed(Struct, frozen=True, kw_only=True):
    """An answer, and the runs between the one it was given to and the one that asked."""

    answer: Answer | None
    run_ids: frozenset[str] = frozenset()

    def find_for(self, run_id: str) -> Answer | None:
        """Return the answer for a run on the way; the others only learn its addressee and the accepted code."""
        if self.answer is None or run_id in self.run_ids:
            return self.answer
        return Answer(by=self.answer.by, accepts_changed_skills=self.answer.accepts_changed_skills)


async def address(answer: Answer | None, state: RunState, store: Store) -> Addressed:
    """Address an answer to the run that `get_waiting` names.

    A run that is parked because files of its skills changed still has runs below it that wait.
    """
    if answer is None:
        return Addressed(answer=answer)
    waiting = await get_waiting(store, state)
    found: set[str] = set()
    while waiting.run_id != state.run_id and waiting.started is not None:
        found.add(waiting.run_id)
        waiting = await read_run(store, waiting.started.parent_run_id)
    return Addressed(answer=answer, run_ids=frozenset(found))


type QuestionAsker = Callable[[RunStatus], Awaitable[Answer | None]]
"""Puts a question, or an interrupted step, to the user; None leaves the run waiting."""


def one_at_a_time(ask: Asker | None, ask_question: QuestionAsker | None) -> tuple[Asker | None, QuestionAsker | None]:
    """Serialize the askers of runs that are driven together: a user reads one question, then the next."""
    lock = anyio.Lock()

    async def ask_in_turn(question: ApprovalQuestion) -> Reply | None:
        assert ask is not None
        async with lock:
            return await ask(question)

    async def ask_question_in_turn(status: RunStatus) -> Answer | None:
        assert ask_question is not None
        async with lock:
            return await ask_question(status)

    return ask_in_turn if ask is not None else None, ask_question_in_turn if ask_question is not None else None


class ChangedCode(Struct, frozen=True, kw_only=True):
    """Skills whose files changed since a run started."""

    run_id: str
    code: Mapping[str, str]
    """Pin → hash of the current tree."""

    @property
    def sentence(self) -> str:
        names = ", ".join(repr(name.removeprefix(CODE)) for name in self.code)
        return f"The files of {'skill' if len(self.code) == 1 else 'skills'} {names} changed since the run began"


type CodeAsker = Callable[[ChangedCode], Awaitable[str | None]]
"""Asks the user whether the run continues with the new files; None without an answer."""


# The run has the bytes of a `SKILL.md`, but only the tree hash of scripts, `impl.py` and other files. So it cannot
# continue with the old ones, and does not use new ones without asking.
async def settle_code(
    log: RunLog,
    run: PreparedRun,
    answer: Answer,
    *,
    ask: CodeAsker | None,
    accepted: Mapping[str, str],
    park: Callable[[ChangedCode], Awaitable[None]],
) -> dict[str, str] | None:
    """Return the code that the run continues with; None if it is paused because the change was not accepted.

    `accepted` is the code that the parent run continues with, which is not asked about again. `park` puts
    the answers on record and pauses the run before a user is asked, who may never reply.
    """
    started = log.state.started
    if run.is_dry or run.is_foreign or started is None:
        return dict(accepted)
    pins = started.pins
    # What came with Metier changes with its version, like Metier itself.
    own = [package for package in run.agent.packages if package.source != "bundled"]
    now = await run_sync(digest_code, own, pins)
    changed = {name: tree for name, tree in now.items() if name in pins and pins[name] != tree}
    if not changed:
        return {**accepted, **now}
    if all(accepted.get(name) == tree for name, tree in changed.items()):
        by = "the parent run"
    elif answer.accepts_changed_skills:
        by = answer.by
    else:
        question = ChangedCode(run_id=log.state.run_id, code=changed)
        await park(question)
        # An approval can be given at the same prompt; without other answers the run would not use the code now.
        is_early = waits_for_answer(log.state, "input", "in_doubt")
        by = await ask(question) if ask is not None and not is_early else None
    if by is None:
        return None
    await log.record(SkillCodeAccepted(code=changed, accepted_by=by), durable=True)
    return {**accepted, **now}


async def record_pause(log: RunLog, changed: ChangedCode, answers: Sequence[Entry]) -> None:
    """Record the answers, then that the run waits for the acceptance. Without an answer it waits for that first."""
    pause = log.state.pause
    if waits_for_answer(log.state) and not answers:
        return
    if answers or pause is None or (pause.pause, pause.reason) != ("changed_code", changed.sentence):
        await log.record(*answers, RunPaused(pause="changed_code", reason=changed.sentence), durable=True)
