"""A run that waits for another one: begin it or go on with it, and bring its result home. Drives nothing itself."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from pydantic import JsonValue

from metier.engine import entries as e
from metier.engine.delegation.child import Child
from metier.engine.execution.delegating import find_open_delegation, record_child_end
from metier.engine.execution.past_results import build_results
from metier.engine.journal import RunLog, read_entries
from metier.engine.phases import FINAL
from metier.engine.services import Services
from metier.engine.state import RunState, fold
from metier.engine.stopping import Stopper
from metier.engine.tracing.span_fold import find_context
from metier.errors import UsageError
from metier.event_record import EventRecord
from metier.runtime.delegation.authority import hand_down
from metier.runtime.delegation.child_runs import ChildRunStart
from metier.runtime.prepared_run import RESULTS
from metier.runtime.records.pins import HOST, SETTINGS
from metier.store.base import Store
from metier.telemetry.sinks import Sink


class GoOn(Protocol):
    """Drives the run of this id until it ends or waits; begins it as it is commissioned, where it has not begun."""

    def __call__(self, run_id: str, stopper: Stopper, *, commission: ChildRunStart | None) -> Awaitable[RunState]: ...


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A sink that its owner closes."""

    sink: Sink

    def write(self, record: EventRecord) -> None:
        self.sink.write(record)

    def close(self) -> None:
        return None


async def follow_child(log: RunLog, services: Services, *, stopper: Stopper, go_on: GoOn) -> bool:
    """See the other run through; True when its result is on record, False when it waits or was stopped too."""
    step = find_open_delegation(log.state)
    if step is None or stopper.is_set or log.state.pause is None or log.state.pause.pause != "delegation":
        return False
    delegated, started = step.delegated, log.state.started
    assert delegated is not None
    assert started is not None
    # A reader of the index finds out meanwhile that the run waits, and for which run.
    await log.update_index()
    child = await read_run(services.store, delegated.child_run_id)
    if child.started is not None and child.started.parent_run_id != log.state.run_id:
        raise UsageError(
            f"Run {child.run_id!r} does not work for run {log.state.run_id!r}",
            hint="The journal names a run that it did not order; it cannot go on",
        )
    if not await _is_settled(child, services.store):
        commission = None if child.started else await _commission(delegated, log.state, services.store)
        begin = partial(go_on, commission=commission)
        child = await _go_on(delegated.child_run_id, services, stopper=stopper, go_on=begin)
    if child.phase not in FINAL:
        return False
    await record_child_end(log, services, child)
    return True


async def _is_settled(child: RunState, store: Store) -> bool:
    """It ended, and its events were sent: one that was killed at its last entry still has its event log to complete."""
    row = await store.find_run(child.run_id) if child.phase in FINAL else None
    return row is not None and row.status == child.status


async def read_run(store: Store, run_id: str) -> RunState:
    return fold(run_id, await read_entries(store, run_id))


async def find_waiting(store: Store, state: RunState) -> RunState:
    """The run that is really waited for: the lowest of those that wait for each other."""
    while (step := find_open_delegation(state)) is not None and step.delegated is not None:
        below = await read_run(store, step.delegated.child_run_id)
        if below.started is None or below.phase in FINAL:
            return state
        state = below
    return state


async def _go_on(
    child_id: str, services: Services, *, stopper: Stopper, go_on: Callable[[str, Stopper], Awaitable[RunState]]
) -> RunState:
    own = Stopper(services.runtime.signal_grace_seconds, waits_for_model=stopper.waits_for_model)
    with stopper.followed_by(own):
        try:
            return await go_on(child_id, own)
        except UsageError as error:
            found = await read_run(services.store, child_id)
            if found.started is not None:
                raise
            # It cannot even begin, and will not later: the run that ordered it has to know.
            failure = e.RunFailed(reason="not_started", message=error.sentence)
            return replace(found, phase="ERROR", status="failed", failure=failure)


async def _collect_results(children: Sequence[Child], store: Store) -> dict[str, str]:
    """What the steps so far gave, each as its scripts said it: for a step whose script sums up."""
    results: list[JsonValue] = []
    for child in children:
        if child.status == "completed":
            results += await build_results(await read_entries(store, child.run_id), store)
    return {RESULTS: await store.put_blob(json.dumps(results).encode())} if results else {}


async def _commission(delegated: e.ChildRequested, above: RunState, store: Store) -> ChildRunStart:
    """What the other run is given. It follows from the journal above, so it is the same after a kill."""
    started = above.started
    assert started is not None
    children = above.children if above.plan else []
    return ChildRunStart(
        order=delegated.order,
        parent_run_id=above.run_id,
        mode=started.mode,
        inherited={
            **await hand_down(started, delegated.order, store),
            **await _collect_results(children, store),
        },
        trace_parent=find_context(above.run_id, await read_entries(store, above.run_id), delegated.step_id),
        settings=started.pins.get(HOST) or started.pins.get(SETTINGS, ""),
    )


def lend(sinks: Sequence[Sink]) -> list[Sink]:
    """The same sinks for a run that must not close them."""
    return [sink if isinstance(sink, Borrowed) else Borrowed(sink) for sink in sinks]
