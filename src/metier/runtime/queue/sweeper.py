"""Find runs that can go on and that no message names: their worker died, a message was lost, a decision came late."""

from anyio.to_thread import run_sync

from metier.runtime.queue.broker import Broker, name_recovery
from metier.runtime.queue.detached import Stranded, find_stranded, wake_decided
from metier.runtime.runs import Runtime


async def sweep(runtime: Runtime, queue: str, broker: Broker | None) -> None:
    """Once. Raises `BrokerUnavailable` and `StoreError`; the next time may be better."""
    await wake_decided(runtime, queue)
    if broker is None:
        return  # a worker that claims from the store finds the rest
    stranded = await find_stranded(runtime, queue)
    if stranded.orphans or stranded.waiting:
        await run_sync(_send, broker, queue, stranded)


def _send(broker: Broker, queue: str, stranded: Stranded) -> None:
    """A queue that has messages is being worked off, and may name these runs: only an empty one is added to."""
    recovery = name_recovery(queue)
    if stranded.orphans and not broker.count_waiting(recovery):
        broker.wake(stranded.orphans, queue=recovery)
    if stranded.waiting and not broker.count_waiting(queue):
        broker.wake(stranded.waiting, queue=queue)
