"""Resuming a run that a limit or its provider ended: conditions, raised limits, another model."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from metier.engine.entries.entry import Entry
from metier.engine.entries.limits import Limit, LimitsRaised
from metier.engine.entries.run import ModelChanged, RunReopened
from metier.engine.options import RuntimeOptions
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.errors import UsageError
from metier.providers.options import OFFLINE
from metier.runtime.child_runs import restore_run
from metier.runtime.host import Host
from metier.runtime.records.pins import HOST, SETTINGS, pin_settings
from metier.runtime.status import (
    can_change_model,
    can_reopen,
    find_failed_step,
    find_limit,
    get_waiting,
    read_run,
    suggest_limit,
)
from metier.runtime.workspace.model_choice import choose_model
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.settings.sections import Settings
from metier.store.base import Store
from metier.values import Value

_RETRIES = ("max_llm_retries", "retry_base_delay_seconds", "retry_max_delay_seconds")
FLAGS: dict[Limit, str] = {
    "max_turns": "--max-turns",
    "max_cost_usd": "--max-cost-usd",
    "timeout_seconds": "--timeout",
}


class RaisedLimits(Struct, frozen=True, kw_only=True):
    """Limits that a user raises; None leaves a limit unchanged."""

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
    """Stops the run from now on: a timeout used up the previous one."""


type LimitAsker = Callable[[RunState], Awaitable[LimitRaise | None]]
"""Asks whether a run that reached a limit continues with a higher one."""


def build_raise(state: RunState) -> RaisedLimits:
    """Raise the exceeded limit by its value; None if the provider ended the run."""
    limit = find_limit(state)
    if limit is None:
        return RaisedLimits()
    value = suggest_limit(state, limit)
    return replace(RaisedLimits(), **{limit: int(value) if limit == "max_turns" else value})


def render_command(state: RunState, run_id: str) -> str:
    """Render the command that continues the run; empty if there is none."""
    limit = find_limit(state)
    if limit is not None:
        return f"agent resume {run_id} {FLAGS[limit]} {suggest_limit(state, limit):g}"
    return f"agent resume {run_id}" if can_reopen(state) else ""


async def list_retried(store: Store, state: RunState) -> list[RunState]:
    """List the run and its descendants down to the reopened one that its provider ended; empty without one."""
    lowest = await get_waiting(store, state)
    if lowest.phase in FINAL or not can_change_model(lowest):
        return []
    chain = [lowest]
    while chain[0].run_id != state.run_id and chain[0].started is not None:
        chain.insert(0, await read_run(store, chain[0].started.parent_run_id))
    return chain


def check_model_change(state: RunState, model: str) -> None:
    """Raise `UsageError` for a model given for a run that its provider did not end."""
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

    What the command line or the caller chose for this run alone stays. Raises `UsageError` for a model that may not be
    used.
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
        settings=tuple(_list_changes(run.agent.host.settings, settings)),
        pins={HOST: pins[SETTINGS], **pins},
        changed_by=by,
    )


def _take_settings(host: Host, before: Settings, *, flags: tuple[str, ...] | None) -> Settings:
    """Return the run's settings with the current provider settings."""
    model, runtime = host.settings.model, host.settings.runtime
    # Older versions did not record the flags. A model belongs to the provider that it is named with.
    if flags is None or ("model.provider" in flags and model.provider != before.model.provider):
        model = model.model_copy(update={"provider": before.model.provider, "name": before.model.name})
    retries = {name: getattr(runtime, name) for name in _RETRIES}
    return before.model_copy(update={"model": model, "runtime": before.runtime.model_copy(update=retries)})


def _take_retries(host: Host, run: PreparedRun) -> RuntimeOptions:
    now, before = host.settings.runtime, run.agent.host.settings.runtime
    return before.model_copy(update={name: getattr(now, name) for name in _RETRIES})


def _list_changes(before: Value, after: Value, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of settings with different values."""
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if isinstance(old, Value) and isinstance(new, Value):
            yield from _list_changes(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}"


def check_raise(state: RunState, raised: RaisedLimits, *, run_id: str) -> None:
    """Check that the new limits suffice to continue; `state` is the deepest failed run. Raises `UsageError`."""
    limit = find_limit(state)
    if limit is not None and getattr(raised, limit) is None:
        message = state.failure.message if state.failure else state.pause.reason if state.pause else ""
        raise UsageError(f"{message}; raise the limit to continue", hint=f"Run `{render_command(state, run_id)}`")
    turns = state.turn + state.delegated_turns
    if limit == "max_turns" and raised.max_turns is not None and raised.max_turns <= turns:
        raise UsageError(f"The run took {turns} turns already", hint="Give --max-turns a higher number")
    if limit == "max_cost_usd" and raised.max_cost_usd is not None and raised.max_cost_usd <= state.cost_usd:
        raise UsageError(f"The run cost {state.cost_usd:.4f} USD already", hint="Give --max-cost-usd a higher number")


def build_entries(chain: list[RunState], state: RunState, raised: RaisedLimits, *, by: str) -> list[Entry]:
    """Build the entries for the journal of one run of the chain."""
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
