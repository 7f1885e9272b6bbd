"""What a user decides so that a run can continue, and how it gets into the journal.

Answers to questions, higher limits, another model, and acceptance of changed skill files. The run that asks may be a
child of the run that the user answers.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.engine.entries.entry import Entry
from metier.engine.entries.limits import Limit, LimitsRaised
from metier.engine.entries.question import InputGiven
from metier.engine.entries.run import ModelChanged, RunPaused, RunReopened, RunResumed, SkillCodeAccepted
from metier.engine.entries.step import DoubtResolved
from metier.engine.journal import RunLog
from metier.engine.options import RuntimeOptions
from metier.engine.services import Services
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.errors import UsageError
from metier.providers.options import OFFLINE
from metier.runtime.approval_questions import ApprovalQuestion, Approvals, Asker, Reply
from metier.runtime.child_runs import restore_run
from metier.runtime.host import Host
from metier.runtime.records.pins import CODE, HOST, SETTINGS, digest_code, pin_settings
from metier.runtime.status import (
    RunStatus,
    can_change_model,
    can_reopen,
    find_failed_step,
    find_limit,
    get_waiting,
    read_run,
    suggest_limit,
)
from metier.runtime.workspace.agents import choose_model
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.settings.sections import Settings
from metier.store.base import Store
from metier.telemetry.amounts import format_count
from metier.tools.schemas import SchemaCheck
from metier.values import Value
from metier.views.user_question import UserQuestion

ACCEPT = "--accept-changed-skills"
_RETRIES = ("max_llm_retries", "retry_base_delay_seconds", "retry_max_delay_seconds")
FLAGS: dict[Limit, str] = {
    "max_turns": "--max-turns",
    "max_cost_usd": "--max-cost-usd",
    "timeout_seconds": "--timeout",
}


class RaisedLimits(Struct, frozen=True, kw_only=True):
    """Limits that the user raises; None leaves a limit unchanged."""

    max_turns: int | None = None
    max_cost_usd: float | None = None
    timeout_seconds: float | None = None

    @property
    def is_any(self) -> bool:
        return self != RaisedLimits()


class LimitRaise(Struct, frozen=True, kw_only=True):
    """A user's decision to continue past a limit."""

    limits: RaisedLimits
    by: str
    stopper: Stopper
    """Stopper for the continued run, because a timeout has set the previous one."""


type LimitAsker = Callable[[RunState], Awaitable[LimitRaise | None]]
"""Asks whether a run that reached a limit continues with a higher one."""


class Answer(Struct, frozen=True, kw_only=True):
    """A user's answer to a waiting run."""

    values: dict[str, JsonValue] | None = None
    doubt: Literal["done", "retry", "skip", "abort"] | None = None
    by: str = ""
    raised: RaisedLimits = field(default_factory=RaisedLimits)
    """Limits to raise."""
    model: str = ""
    """Model for continuing a run that its provider ended; empty for the one of the settings."""
    reopens: bool = False
    """True if the user wants to continue a run that a limit or its provider ended."""
    accepts_changed_skills: bool = False
    """Continue with the current files of skills, even if they changed since the run started."""

    @property
    def is_any(self) -> bool:
        """Return True if it answers a question or resolves an interrupted step."""
        return self.values is not None or self.doubt is not None


async def take_answer(
    log: RunLog,
    answer: Answer,
    services: Services,
    *,
    approvals: Approvals,
    remembered: frozenset[str] = frozenset(),
    has_resumed: bool = False,
) -> bool:
    """Record new answers. Return False if the run still waits or has ended.

    With `has_resumed`, the journal already records that this driver continues the run.
    """
    state = log.state
    if state.phase in FINAL:
        return False
    if state.pause is not None and state.pause.pause == "delegation":
        # The answer is for the waiting child. This run continues when the child has ended.
        return True
    entries = await list_answers(state, answer, approvals, remembered=remembered)
    if waits_for_answer(state) and not entries:
        return False
    reason = state.pause.reason if state.pause else _get_resume_reason(log)
    # Recorded, so that a replay does not need the file.
    disabled = tuple(sorted(services.read_access()))
    # Each `RunResumed` counts as an attempt of a worker, so a second one is written only if it adds something.
    if has_resumed and not entries and state.disabled == frozenset(disabled):
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


def _get_resume_reason(log: RunLog) -> str:
    """Return the reason for resuming. An unreleased lease means that the last driver was interrupted."""
    state, started = log.state, log.state.started
    if started is not None and started.forked_at == state.seq:
        return f"forked from run {started.parent_run_id} at entry {started.forked_at}"
    return "after an interruption" if log.lease.left_by or state.deaths else "continued"


def _given(state: RunState, answer: Answer) -> list[Entry]:
    if answer.values is not None and state.question is not None:
        return [InputGiven(request_id=state.question.request_id, values=answer.values, answered_by=answer.by)]
    doubtful = next((step for step in state.steps if step.phase == "in_doubt"), None)
    # A failed step of a task takes the same answers as a step with an unknown outcome.
    if state.pause is not None and state.pause.pause == "step_failed":
        doubtful = next(step for step in state.steps if step.finished and step.finished.counts_as_failure)
    if answer.doubt is not None and doubtful is not None:
        return [DoubtResolved(step_id=doubtful.step_id, answer=answer.doubt, answered_by=answer.by)]
    return []


def check_answer(status: RunStatus, given: Answer) -> None:
    """Raise `UsageError` for an answer without a question or with invalid fields."""
    waiting = status.waiting
    if waiting.phase in FINAL and given.is_any:
        raise UsageError(f"Run {waiting.run_id!r} is {waiting.status}; it has no open question")
    if given.values is not None and status.question is None:
        raise UsageError(f"Run {waiting.run_id!r} does not ask for input", hint=_hint(waiting))
    if given.values is not None and status.question is not None:
        _check_values(given.values, status.question)
    if given.doubt and not status.is_stopped and not any(step.phase == "in_doubt" for step in waiting.steps):
        raise UsageError(f"Run {waiting.run_id!r} has no step in doubt", hint=_hint(waiting))


def _check_values(values: dict[str, JsonValue], question: UserQuestion) -> None:
    """Check the answer to a model's question. A skill validates its answers itself and asks again."""
    known = [field.name for field in question.fields]
    if unknown := [name for name in values if known and name not in known]:
        raise UsageError(
            f"The run does not ask for {', '.join(map(repr, unknown))}", hint=f"It asks for: {', '.join(known)}"
        )
    if question.schema is None:
        return
    try:
        check = SchemaCheck("ask_user", question.schema)
    except UsageError:  # the model's schema is invalid, so nothing can be checked
        return
    if wrong := check.get_error(values):
        raise UsageError(f"The answer cannot be used: {wrong}", hint="Nothing was taken in; answer again")


def _hint(state: RunState) -> str:
    return f"It waits for: {state.pause.reason}" if state.pause else f"Run `agent resume {state.run_id}`"


class Addressed(Struct, frozen=True, kw_only=True):
    """An answer, and the runs on the way from the answered run to the one that asked."""

    answer: Answer | None
    run_ids: frozenset[str] = frozenset()

    def find_for(self, run_id: str) -> Answer | None:
        """Return the answer for a run on the way. For the others, only its author and accepted code remain."""
        if self.answer is None or run_id in self.run_ids:
            return self.answer
        return Answer(by=self.answer.by, accepts_changed_skills=self.answer.accepts_changed_skills)


async def address(answer: Answer | None, state: RunState, store: Store) -> Addressed:
    """Address an answer to the waiting run, which may be below a run that is paused for changed skill files."""
    if answer is None:
        return Addressed(answer=answer)
    waiting = await get_waiting(store, state)
    found: set[str] = set()
    while waiting.run_id != state.run_id and waiting.started is not None:
        found.add(waiting.run_id)
        waiting = await read_run(store, waiting.started.parent_run_id)
    return Addressed(answer=answer, run_ids=frozenset(found))


type QuestionAsker = Callable[[RunStatus], Awaitable[Answer | None]]
"""Asks the user a question or about an interrupted step; None leaves the run waiting."""


def one_at_a_time(ask: Asker | None, ask_question: QuestionAsker | None) -> tuple[Asker | None, QuestionAsker | None]:
    """Serialize the askers of runs that are driven concurrently, so that the user sees one question at a time."""
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
    """Hash of the current files by pin."""

    @property
    def sentence(self) -> str:
        names = ", ".join(repr(name.removeprefix(CODE)) for name in self.code)
        return f"The files of {'skill' if len(self.code) == 1 else 'skills'} {names} changed since the run began"


type CodeAsker = Callable[[ChangedCode], Awaitable[str | None]]
"""Asks the user whether the run continues with the new files. Returns who accepted, or None."""


# A run stores the bytes of each `SKILL.md`, but only hashes of scripts, `impl.py` and other files. So it can't continue
# with the old files, and must not use new ones without asking.
async def check_changed_code(
    log: RunLog,
    run: PreparedRun,
    answer: Answer,
    *,
    ask: CodeAsker | None,
    accepted: Mapping[str, str],
    park: Callable[[ChangedCode], Awaitable[None]],
) -> dict[str, str] | None:
    """Return the code that the run continues with; None if it pauses because the change was not accepted.

    `accepted` is the changed code accepted for the parent run, which needs no further question. `park` records the
    answers and pauses the run before the user is asked, because the user may never reply.
    """
    started = log.state.started
    if run.is_dry or run.is_foreign or started is None:
        return dict(accepted)
    pins = started.pins
    # Bundled skills change with the version of Metier, so they are trusted like Metier itself.
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
        # A run that waits for other answers would not use the code yet, so ask later. Approvals are asked right after.
        is_early = waits_for_answer(log.state, "input", "in_doubt")
        by = await ask(question) if ask is not None and not is_early else None
    if by is None:
        return None
    await log.record(SkillCodeAccepted(code=changed, accepted_by=by))
    return {**accepted, **now}


async def record_pause(log: RunLog, changed: ChangedCode, answers: Sequence[Entry]) -> None:
    """Record the answers and the pause for changed code. A run that still waits for an answer keeps its pause."""
    pause = log.state.pause
    if waits_for_answer(log.state) and not answers:
        return
    if answers or pause is None or (pause.pause, pause.reason) != ("changed_code", changed.sentence):
        await log.record(*answers, RunPaused(pause="changed_code", reason=changed.sentence))


def build_raise(state: RunState) -> RaisedLimits:
    """Return twice the limit that ended the run; no limits if its provider ended it."""
    limit = find_limit(state)
    if limit is None:
        return RaisedLimits()
    value = suggest_limit(state, limit)
    return replace(RaisedLimits(), **{limit: int(value) if limit == "max_turns" else value})


def render_command(state: RunState, run_id: str) -> str:
    """Render the command that continues the run; empty if it can't continue."""
    limit = find_limit(state)
    if limit is not None:
        return f"agent resume {run_id} {FLAGS[limit]} {suggest_limit(state, limit):g}"
    return f"agent resume {run_id}" if can_reopen(state) else ""


async def list_retried(store: Store, state: RunState) -> list[RunState]:
    """List the runs from this one down to a reopened descendant that its provider ended; empty without one."""
    lowest = await get_waiting(store, state)
    if lowest.phase in FINAL or not can_change_model(lowest):
        return []
    chain = [lowest]
    while chain[0].run_id != state.run_id and chain[0].started is not None:
        chain.insert(0, await read_run(store, chain[0].started.parent_run_id))
    return chain


def check_model_change(state: RunState, model: str) -> None:
    """Raise `UsageError` if a model is given, but the provider did not end the run."""
    if model and not can_change_model(state):
        model_name = state.started.model if state.started is not None else ""
        raise UsageError(
            f"Run {state.run_id!r} keeps its model {model_name!r}: its provider did not end it",
            hint=f'Leave --model out, or start a new run with `agent run --model {model} "…"`',
        )


async def build_model_change(
    host: Host, store: Store, state: RunState, *, folder: Path, model: str, by: str
) -> ModelChanged | None:
    """Build the change to the current model settings, or to `model`; None if the run already has them.

    A model that the command line or the caller chose for this run stays. Raises `UsageError` for a model that is not
    allowed.
    """
    assert state.started is not None
    run = await restore_run(host, store, folder=folder, started=state.started)
    assert run.host is not None
    before, own_before, definition = run.host.settings, run.agent.model, run.agent.definition
    settings_now = _take_settings(host, before, flags=state.started.flags)
    if model and run.is_planned:
        settings_now = settings_now.model_copy(update={"model": choose_model(settings_now.model, None, wanted=model)})
    own = choose_model(settings_now.model, definition, wanted=model)
    usual = choose_model(before.model, definition)
    if not model and (usual.provider, usual.name) != (own_before.provider, own_before.name):
        own = own.model_copy(update={"provider": own_before.provider, "name": own_before.name})
    settings = run.agent.host.settings.model_copy(update={"model": own, "runtime": _take_retries(host, run)})
    if settings == run.agent.host.settings and settings_now == before:
        return None
    is_same = host.provider is not None or own.provider == own_before.provider
    provider = state.started.provider if is_same else own.provider
    pins = await pin_settings(settings, settings_now, store)
    return ModelChanged(
        provider=provider,
        model=OFFLINE if provider == OFFLINE else own.name,
        options=own.model_copy(update={"structured_output_mode": "native"}) if provider == OFFLINE else own,
        settings=tuple(_list_changed_settings(run.agent.host.settings, settings)),
        # Always with `HOST`: these pins are merged into those of the run, whose old `HOST` must not stay.
        pins={HOST: pins[SETTINGS], **pins},
        changed_by=by,
    )


def _take_settings(host: Host, before: Settings, *, flags: tuple[str, ...] | None) -> Settings:
    """Return the settings of the run with the current model and retry settings."""
    model, runtime = host.settings.model, host.settings.runtime
    # Older versions did not record the flags. If a flag chose another provider, the current model doesn't fit it.
    if flags is None or ("model.provider" in flags and model.provider != before.model.provider):
        model = model.model_copy(update={"provider": before.model.provider, "name": before.model.name})
    retries = {name: getattr(runtime, name) for name in _RETRIES}
    return before.model_copy(update={"model": model, "runtime": before.runtime.model_copy(update=retries)})


def _take_retries(host: Host, run: PreparedRun) -> RuntimeOptions:
    now, before = host.settings.runtime, run.agent.host.settings.runtime
    return before.model_copy(update={name: getattr(now, name) for name in _RETRIES})


def _list_changed_settings(before: Value, after: Value, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of settings with different values."""
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if isinstance(old, Value) and isinstance(new, Value):
            yield from _list_changed_settings(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}"


def check_raise(state: RunState, raised: RaisedLimits, *, run_id: str) -> None:
    """Raise `UsageError` if the new limits don't suffice to continue; `state` is the deepest failed run."""
    limit = find_limit(state)
    if limit is not None and getattr(raised, limit) is None:
        message = state.failure.message if state.failure else state.pause.reason if state.pause else ""
        raise UsageError(f"{message}; raise the limit to continue", hint=f"Run `{render_command(state, run_id)}`")
    turns = state.turn + state.delegated_turns
    if limit == "max_turns" and raised.max_turns is not None and raised.max_turns <= turns:
        raise UsageError(f"The run took {format_count(turns, 'turn')} already", hint="Give --max-turns a higher number")
    if limit == "max_cost_usd" and raised.max_cost_usd is not None and raised.max_cost_usd <= state.cost_usd:
        raise UsageError(f"The run cost {state.cost_usd:.4f} USD already", hint="Give --max-cost-usd a higher number")


def build_entries(chain: list[RunState], state: RunState, raised: RaisedLimits, *, by: str) -> list[Entry]:
    """Build the entries that reopen one run of the chain."""
    entries: list[Entry] = []
    if raised.is_any:
        entries.append(
            LimitsRaised(
                max_turns=raised.max_turns,
                max_cost_usd=raised.max_cost_usd,
                timeout_seconds=raised.timeout_seconds,
                raised_by=by,
            )
        )
    lowest = chain[-1]
    if state is lowest:
        if state.failure is not None:
            entries.append(RunReopened(reason=state.failure.reason, reopened_by=by))
        return entries
    if (step := find_failed_step(state)) is None:
        return entries
    reason = f"Run {chain[chain.index(state) + 1].run_id} goes on"
    return [*entries, RunReopened(reason=reason, reopened_by=by, step_id=step.step_id)]
