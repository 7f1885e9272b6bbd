"""The conversations of a replay: what is read comes from the real store, what is written is forgotten."""

from metier.decisions import TaskState
from metier.store.contexts import (
    MAX_EVENTS_PER_CONTEXT,
    Claim,
    ContextChange,
    ContextEvent,
    ContextState,
    ContextStore,
    Fact,
    Redemption,
    StoredMessage,
)


class RecordedContexts:
    """`store.contexts.ContextStore` in front of another one, which it never changes."""

    def __init__(self, contexts: ContextStore) -> None:
        self._contexts = contexts

    async def find_state(self, context_id: str) -> ContextState | None:
        return await self._contexts.find_state(context_id)

    async def commit(self, context_id: str, change: ContextChange) -> ContextState:
        stored = await self.find_state(context_id)
        return change.state or stored or ContextState(context_id=context_id)

    async def list_events(
        self, context_id: str, *, after: int = 0, limit: int = MAX_EVENTS_PER_CONTEXT
    ) -> list[ContextEvent]:
        return await self._contexts.list_events(context_id, after=after, limit=limit)

    async def find_fact(self, context_id: str, bucket: str, key: str) -> Fact | None:
        return await self._contexts.find_fact(context_id, bucket, key)

    async def list_facts(self, context_id: str, *, bucket: str = "") -> list[Fact]:
        return await self._contexts.list_facts(context_id, bucket=bucket)

    async def claim_message(self, context_id: str, message_id: str, *, owner: str, seconds: float) -> Claim:
        del seconds
        return Claim(context_id=context_id, message_id=message_id, owner=owner, token=0)

    async def renew_claim(self, claim: Claim, *, seconds: float) -> None:
        del claim, seconds

    async def release_claim(self, claim: Claim) -> None:
        del claim

    async def find_message(self, context_id: str, message_id: str) -> StoredMessage | None:
        return await self._contexts.find_message(context_id, message_id)

    async def redeem(self, context_id: str, redemption: Redemption) -> ContextState | None:
        del redemption
        return await self.find_state(context_id)

    async def delete_context(self, context_id: str) -> bool:
        return await self.find_state(context_id) is not None

    async def list_contexts(self, *, task_state: TaskState | None = None, limit: int = 100) -> list[ContextState]:
        return await self._contexts.list_contexts(task_state=task_state, limit=limit)
