"""Find runs that can go on and that no message names: their worker died, a message was lost, a decision came late.

Before that, schedules that are due start theirs.
"""

from collections.abc import Callable
from math import inf

from anyio.to_thread import run_sync

from metier.errors import MetierError, StoreError
from metier.runtime.notify.delivery import deliver_due
from metier.runtime.queue.broker import Broker, name_recovery
from metier.runtime.queue.detached import Stranded, find_stranded, wake_decided
from metier.runtime.queue.firing import fire_due
from metier.runtime.runs import Runtime


async def sweep(
    runtime: Runtime, queue: str, broker: Broker | None, *, report: Callable[[str], None], fires: bool = True
) -> float:
    """Once; in how many seconds a schedule is due. Raises `BrokerUnavailable` and `StoreError`."""
    seconds = await fire_schedules(runtime, report=report) if fires else inf
    await wake_decided(runtime, queue, report=report)
    await deliver_due(runtime.place, runtime.store)
    if broker is None:
        return seconds  # a worker that claims from the store finds the rest
    stranded = await find_stranded(runtime, queue)
    if stranded.orphans or stranded.waiting:
        await run_sync(_send, broker, queue, stranded)
    return seconds


async def fire_schedules(runtime: Runtime, *, report: Callable[[str], None]) -> float:
    """Start what is due; in how many seconds the next one is, infinity where there is none."""
    try:
        fired = await fire_due(runtime)
    except StoreError:
        raise
    except (MetierError, OSError) as error:  # a full disk or a missing package: what is due stays due
        told = error.sentence if isinstance(error, MetierError) else error.strerror or error
        report(f"schedules: {told}; they are looked at again")
        return inf
    for firing in fired.started:
        report(f"schedule {firing.name}: started run {firing.run_id}")
    for firing in fired.failed:
        report(f"schedule {firing.name}: no run was started: {firing.reason}")
    if fired.next_due is None:
        return inf
    return max(0.0, (fired.next_due - runtime.place.clock.now()).total_seconds())


def _send(broker: Broker, queue: str, stranded: Stranded) -> None:
    """A queue that has messages is being worked off, and may name these runs: only an empty one is added to."""
    recovery = name_recovery(queue)
    if stranded.orphans and not broker.count_waiting(recovery):
        broker.wake(stranded.orphans, queue=recovery)
    if stranded.waiting and not broker.count_waiting(queue):
        broker.wake(stranded.waiting, queue=queue)
