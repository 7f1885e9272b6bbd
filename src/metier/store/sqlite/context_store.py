"""`store.contexts.ContextStore` on SQLite: each method one transaction of the file that also holds the runs."""

import sqlite3
from functools import partial

from metier.store.contexts import (
    MAX_EVENTS_PER_CONTEXT,
    Claim,
    ContextChange,
    ContextEvent,
    ContextState,
    Fact,
    Redemption,
    StoredMessage,
    check_change,
    check_names,
)
from metier.store.sqlite import contexts, messages
from metier.store.sqlite.contexts import Times
from metier.store.sqlite.database import Database
from metier.task_state import TaskState


class SqliteContexts:
    def __init__(self, database: Database, times: Times) -> None:
        self._database = database
        self._times = times

    async def find_state(self, context_id: str) -> ContextState | None:
        return await self._database.read(partial(contexts.find_state, context_id=context_id))

    async def commit(self, context_id: str, change: ContextChange) -> ContextState:
        check_change(context_id, change)
        work = partial(contexts.commit, context_id=context_id, change=change, times=self._times)
        return await self._database.write(work, durable=change.is_durable)

    async def list_events(
        self, context_id: str, *, after: int = 0, limit: int = MAX_EVENTS_PER_CONTEXT
    ) -> list[ContextEvent]:
        return await self._database.read(partial(contexts.find_events, context_id=context_id, after=after, limit=limit))

    async def find_fact(self, context_id: str, bucket: str, key: str) -> Fact | None:
        where = {"context_id = ?": context_id, "bucket = ?": bucket, "key = ?": key}
        found = await self._database.read(partial(contexts.find_facts, where=where, now=self._times.now()))
        return found[0] if found else None

    async def list_facts(self, context_id: str, *, bucket: str = "") -> list[Fact]:
        where = {"context_id = ?": context_id} | ({"bucket = ?": bucket} if bucket else {})
        return await self._database.read(partial(contexts.find_facts, where=where, now=self._times.now()))

    async def claim_message(self, context_id: str, message_id: str, *, owner: str, seconds: float) -> Claim:
        check_names(context_id=context_id, message_id=message_id)
        if not owner or seconds <= 0:
            raise ValueError("A claim needs the name of its owner and a time")
        wanted = Claim(context_id=context_id, message_id=message_id, owner=owner, token=0)

        def change(connection: sqlite3.Connection) -> Claim:
            contexts.ensure_context(connection, context_id, self._times)
            return messages.claim_message(connection, wanted, seconds=seconds, machine=self._times.machine)

        return await self._database.write(change, durable=True)

    async def renew_claim(self, claim: Claim, *, seconds: float) -> None:
        await self._database.write(partial(messages.renew, claim=claim, seconds=seconds, machine=self._times.machine))

    async def release_claim(self, claim: Claim) -> None:
        await self._database.write(partial(messages.release, claim=claim))

    async def find_message(self, context_id: str, message_id: str) -> StoredMessage | None:
        return await self._database.read(
            partial(messages.find_message, context_id=context_id, message_id=message_id, machine=self._times.machine)
        )

    async def redeem(self, context_id: str, redemption: Redemption) -> ContextState | None:
        work = partial(contexts.redeem, context_id=context_id, redemption=redemption, times=self._times)
        return await self._database.write(work, durable=True)

    async def delete_context(self, context_id: str) -> bool:
        return await self._database.write(partial(contexts.delete_context, context_id=context_id), slow=True)

    async def list_contexts(self, *, task_state: TaskState | None = None, limit: int = 100) -> list[ContextState]:
        where = {"task_state = ?": str(task_state)} if task_state else {}
        return await self._database.read(partial(contexts.find_states, where=where, limit=limit))
