"""The usage of a run, from its journal into the totals of the store."""

from metier.engine.state.run_state import RunState
from metier.runtime.records.index_rows import TYPED
from metier.store.base import Store
from metier.store.usage import UsageRow


async def record_usage(store: Store, state: RunState) -> None:
    """Record the model calls of a run that ended or waits; recording them again changes nothing."""
    await store.usage.record(state.run_id, list_usage(state))


def list_usage(state: RunState) -> list[UsageRow]:
    """List the usage rows; a command typed into a chat is a run without model usage."""
    typed = f"{TYPED}/{TYPED}"
    return [UsageRow(*key, amounts) for key, amounts in state.usage.items() if key[1] != typed]
