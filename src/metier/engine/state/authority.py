"""Authority over a run: its current settings, model, code and limits, after adoptions and changes. Pure."""

from collections.abc import Iterable, Sequence
from itertools import takewhile

from msgspec.structs import replace

from metier.engine.entries.entry import Entry
from metier.engine.entries.limits import LimitsRaised
from metier.engine.entries.run import (
    ModelChanged,
    RunAdopted,
    RunReopened,
    RunStarted,
    SkillCodeAccepted,
)
from metier.engine.entries.step import UndoFinished, UndoStarted
from metier.engine.state.phases import IllegalTransition
from metier.engine.state.run_state import RunState
from metier.engine.state.steps import Step
from metier.tools.effects import REPEATABLE

KEPT_PAUSES = frozenset({"input", "delegation", "step_failed"})
"""Pauses that an adopted run keeps: an answer, a child, a decision about a step of its task."""


def find_authority(entries: Sequence[Entry]) -> RunStarted | None:
    """Return the run's start with its current model and settings, since its last adoption or model change."""
    started = find_origin(entries)
    if started is None:
        return None
    changed = takewhile(lambda entry: not isinstance(entry, RunAdopted), reversed(entries))
    last = next((entry for entry in changed if isinstance(entry, ModelChanged)), None)
    return started if last is None else change_model(started, last)


def find_origin(entries: Sequence[Entry]) -> RunStarted | None:
    """Return the run's start, with the settings of its last adoption; None without a start."""
    started = entries[0] if entries else None
    if not isinstance(started, RunStarted):
        return None
    adopted = next((entry for entry in reversed(entries) if isinstance(entry, RunAdopted)), None)
    return started if adopted is None else take_authority(started, adopted)


def change_model(started: RunStarted, entry: ModelChanged) -> RunStarted:
    """Return the start of the run with another model and its settings."""
    pins = {**started.pins, **entry.pins}
    return replace(started, provider=entry.provider, model=entry.model, pins=pins)


def take_authority(started: RunStarted, adopted: RunAdopted) -> RunStarted:
    """Return the run's authority since it was adopted."""
    return replace(
        started,
        provider=adopted.provider,
        model=adopted.model,
        profile=adopted.profile,
        sandbox=adopted.sandbox,
        reading_sandbox=adopted.reading_sandbox,
        workspace=adopted.workspace,
        limits=adopted.limits,
        pins=adopted.pins,
        hooks=adopted.hooks,
        seal=adopted.seal,
    )


def invalidate_progress(steps: Iterable[Step], *, answering: str, tells_begun: bool) -> None:
    """Invalidate approvals and progress from another store: a user is asked before each step runs.

    `answering` is a step with an open question; it stays as it is.
    """
    for step in steps:
        if step.phase != "finished" and step.delegated is None and step.step_id != answering:
            was_begun = step.started is not None and step.started.effect not in REPEATABLE
            step.may_be_done = step.may_be_done or (was_begun and tells_begun)
            step.phase, step.started, step.is_foreign = "pending", None, True


def adopt(state: RunState, entry: RunAdopted) -> None:
    if state.started is None:
        raise IllegalTransition("A run is adopted that never started")
    state.started = take_authority(state.started, entry)
    state.limits = state.started.limits
    # "Always" was said on another host, whose user has no authority here.
    state.remembered.clear()
    state.is_foreign, state.nonce = True, entry.nonce
    answering = state.question.step_id if state.question else ""
    invalidate_progress(state.steps, answering=answering, tells_begun=entry.tells_begun)
    if state.pause is not None and state.pause.pause not in KEPT_PAUSES:
        state.pause, state.status = None, "in_progress"


def _accept_code(state: RunState, entry: SkillCodeAccepted) -> None:
    """Pin the run to the accepted code."""
    if state.started is None:
        raise IllegalTransition("Code is accepted for a run that never started")
    state.started = replace(state.started, pins={**state.started.pins, **entry.code})


def _change_model(state: RunState, entry: ModelChanged) -> None:
    if state.started is None:
        raise IllegalTransition("The model of a run changes that never started")
    state.started = change_model(state.started, entry)
    # Another model has another context window and another tokenizer.
    state.prompt_limit, state.factor = None, 1.0


def reopen(
    state: RunState,
    entry: LimitsRaised | RunReopened | SkillCodeAccepted | ModelChanged | UndoStarted | UndoFinished,
) -> None:
    """Raise limits, change the model, accept changed code, or reopen the run. The history stays as it is.

    An undo does not change the history either: the model only knows that it made the changes.
    """
    if isinstance(entry, UndoStarted | UndoFinished):
        state.undone += isinstance(entry, UndoStarted)
        return
    if isinstance(entry, SkillCodeAccepted):
        _accept_code(state, entry)
        return
    if isinstance(entry, ModelChanged):
        _change_model(state, entry)
        return
    if isinstance(entry, LimitsRaised):
        limits = state.limits
        turns = limits.max_turns if entry.max_turns is None else entry.max_turns
        cost = limits.max_cost_usd if entry.max_cost_usd is None else entry.max_cost_usd
        state.limits = replace(limits, max_turns=turns, max_cost_usd=cost)
        return
    if entry.step_id:
        step = state.step(entry.step_id)
        step.phase, step.finished, state.pause, state.status = "running", None, None, "in_progress"
        return
    if state.phase != "ERROR":
        raise IllegalTransition("Only a run that failed can be reopened")
    state.reopened = state.failure.reason if state.failure is not None else ""
    state.failure, state.status, state.result, state.phase = None, "in_progress", "", state.failed_in
    if state.reply is not None and state.reply.shortfall is not None:
        # The offline provider gave up in this reply, so it is asked again.
        state.reply, state.decision, state.steps, state.phase = None, None, [], "CALL_LLM"
