"""A run that waits for others: begin them or go on with them, and bring their results home. Drives nothing itself."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import anyio
from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.engine import entries as e
from metier.engine.execution.delegating import find_open_delegations, record_children_end
from metier.engine.execution.past_results import build_results
from metier.engine.journal import RunLog, read_entries
from metier.engine.phases import FINAL
from metier.engine.services import Services
from metier.engine.state import RunState, fold
from metier.engine.state_parts.child import Child
from metier.engine.stopping import Stopper
from metier.engine.tracing.span_fold import find_context
from metier.engine.unwrapping import unwrapped
from metier.errors import MetierError, UsageError
from metier.event_record import EventRecord
from metier.runtime.children.child_runs import ChildRunStart
from metier.runtime.delegation.authority import hand_down
from metier.runtime.records.pins import HOST, SETTINGS
from metier.runtime.workspace.prepared_run import RESULTS
from metier.store.base import Store
from metier.telemetry.sinks import Sink

_BY_A_PERSON = frozenset({"approval", "input", "in_doubt", "step_failed", "changed_code", "limit"})
"""Pauses that end when a person says or does something."""


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


async def follow_children(log: RunLog, services: Services, *, stopper: Stopper, go_on: GoOn) -> bool:
    """See the other runs through; True when their results are on record, False while one waits or was stopped too.

    A run that waits for a person does not stop the others: they are driven to their end.
    """
    requests = [request for _, request in find_open_delegations(log.state)]
    if not requests or stopper.is_set or log.state.pause is None or log.state.pause.pause != "delegation":
        return False
    # A reader of the index finds out meanwhile that the run waits, and for which runs.
    await log.update_index()
    follow = partial(_follow_one, log.state, services=services, stopper=stopper, go_on=go_on)
    children = await _follow_all(requests, follow, at_once=services.runtime.max_parallel_children)
    if any(child.phase not in FINAL for child in children):
        return False
    await record_children_end(log, services, children)
    return True


async def _follow_all(
    requests: Sequence[e.ChildRequested], follow: Callable[[e.ChildRequested], Awaitable[RunState]], *, at_once: int
) -> list[RunState]:
    """How each of them stands, in this order. What goes wrong with one is raised when the others have come to rest."""
    if len(requests) == 1:
        return [await follow(requests[0])]
    found: dict[str, RunState] = {}
    failures: list[MetierError] = []
    limiter = anyio.CapacityLimiter(at_once)

    async def follow_one(request: e.ChildRequested) -> None:
        async with limiter:
            try:
                found[request.child_run_id] = await follow(request)
            except MetierError as failure:
                failures.append(failure)

    with unwrapped():
        async with anyio.create_task_group() as group:
            for request in requests:
                group.start_soon(follow_one, request)
    if failures:
        raise failures[0]
    return [found[request.child_run_id] for request in requests]


async def _follow_one(
    above: RunState, delegated: e.ChildRequested, *, services: Services, stopper: Stopper, go_on: GoOn
) -> RunState:
    child = await read_run(services.store, delegated.child_run_id)
    if child.started is not None and child.started.parent_run_id != above.run_id:
        raise UsageError(
            f"Run {child.run_id!r} does not work for run {above.run_id!r}",
            hint="The journal names a run that it did not order; it cannot go on",
        )
    if stopper.is_set or await _is_settled(child, services.store):
        return child
    commission = None if child.started else await _commission(delegated, above, services.store)
    begin = partial(go_on, commission=commission)
    return await _go_on(delegated.child_run_id, services, stopper=stopper, go_on=begin)


async def _is_settled(child: RunState, store: Store) -> bool:
    """It ended, and its events were sent: one that was killed at its last entry still has its event log to complete."""
    row = await store.find_run(child.run_id) if child.phase in FINAL else None
    return row is not None and row.status == child.status


async def read_run(store: Store, run_id: str) -> RunState:
    return fold(run_id, await read_entries(store, run_id))


async def find_all_waiting(store: Store, state: RunState) -> list[RunState]:
    """The runs that are really waited for: the lowest of those that wait for each other, in the order asked."""
    found: list[RunState] = []
    is_due = False
    for _, request in find_open_delegations(state):
        below = await read_run(store, request.child_run_id)
        if below.started is None:
            is_due = True
        elif below.phase not in FINAL:
            found += await find_all_waiting(store, below)
    # A run whose children have not all begun, or have all ended, is itself the one to go on with.
    return [*found, state] if is_due or not found else found


async def find_waiting(store: Store, state: RunState) -> RunState:
    """The one of them that is looked at first: one that waits for a person, if there is any."""
    waiting = await find_all_waiting(store, state)
    return next((each for each in waiting if each.pause is not None and each.pause.pause in _BY_A_PERSON), waiting[0])


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
        worktree=started.worktree,
        settings=started.pins.get(HOST) or started.pins.get(SETTINGS, ""),
    )


def lend(sinks: Sequence[Sink]) -> list[Sink]:
    """The same sinks for a run that must not close them."""
    return [sink if isinstance(sink, Borrowed) else Borrowed(sink) for sink in sinks]
