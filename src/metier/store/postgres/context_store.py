"""`store.contexts.ContextStore` on PostgreSQL: each method one transaction."""

import secrets

from metier.store.contexts import (
    MAX_EVENTS_PER_CONTEXT,
    Claim,
    ContextChange,
    ContextEvent,
    ContextState,
    Fact,
    Redemption,
    StoredMessage,
    build_conflict,
    build_duplicate,
    check_change,
    check_names,
)
from metier.store.machine import Machine
from metier.store.postgres import contexts, messages
from metier.store.postgres.database import Database
from metier.store.postgres.schema import Connection
from metier.task_state import TaskState


class PostgresContexts:
    def __init__(self, database: Database, machine: Machine) -> None:
        self._database = database
        self._machine = machine

    async def find_state(self, context_id: str) -> ContextState | None:
        return await self._database.run(lambda connection: contexts.find_state(connection, context_id))

    async def commit(self, context_id: str, change: ContextChange) -> ContextState:
        check_change(context_id, change)
        if change.state is not None and change == ContextChange(
            state=change.state, expected_version=change.expected_version
        ):
            replaced = await self._replace_state(change.state, expected=change.base_version)
            if replaced is not None:
                return replaced

        async def work(connection: Connection) -> ContextState:
            await contexts.commit(connection, context_id, change)
            state = await contexts.find_state(connection, context_id)
            assert state is not None, "it was made in this transaction"
            return state

        return await self._database.once(work)

    async def _replace_state(self, state: ContextState, *, expected: int) -> ContextState | None:
        """None where there is none yet. Raises `VersionConflictError`."""
        commit_id = secrets.token_hex(16)

        async def work(connection: Connection) -> ContextState | None:
            replaced = await contexts.replace_state(connection, state, expected=expected, commit_id=commit_id)
            if replaced is not None:
                return replaced
            found = await contexts.find_state(connection, state.context_id)
            if found is not None and await contexts.is_noted(connection, commit_id):
                return found
            if found is None and not expected:
                return None
            raise build_conflict(state.context_id, expected=expected, found=found.version if found else 0)

        return await self._database.run(work)

    async def list_events(
        self, context_id: str, *, after: int = 0, limit: int = MAX_EVENTS_PER_CONTEXT
    ) -> list[ContextEvent]:
        return await self._database.run(
            lambda connection: contexts.find_events(connection, context_id, after=after, limit=limit)
        )

    async def find_fact(self, context_id: str, bucket: str, key: str) -> Fact | None:
        return await self._database.run(
            lambda connection: contexts.find_fact(connection, context_id, bucket=bucket, key=key)
        )

    async def list_facts(self, context_id: str, *, bucket: str = "") -> list[Fact]:
        return await self._database.run(lambda connection: contexts.find_facts(connection, context_id, bucket=bucket))

    async def claim_message(self, context_id: str, message_id: str, *, owner: str, seconds: float) -> Claim:
        check_names(context_id=context_id, message_id=message_id)
        if not owner or seconds <= 0:
            raise ValueError("A claim needs the name of its owner and a time")
        wanted = Claim(context_id=context_id, message_id=message_id, owner=owner, token=0)
        # Most duplicates come when all is done: for those one look is enough, and no lock.
        known = await self.find_message(context_id, message_id)
        if known is not None and known.is_done:
            raise build_duplicate(known)

        async def work(connection: Connection) -> int:
            await contexts.lock_context(connection, context_id)
            return await messages.claim_message(connection, wanted, seconds=seconds, machine=self._machine)

        token = await self._database.once(work)
        return Claim(context_id=context_id, message_id=message_id, owner=owner, token=token)

    async def renew_claim(self, claim: Claim, *, seconds: float) -> None:
        await self._database.run(lambda connection: messages.renew(connection, claim, seconds=seconds))

    async def release_claim(self, claim: Claim) -> None:
        await self._database.run(lambda connection: messages.release(connection, claim))

    async def find_message(self, context_id: str, message_id: str) -> StoredMessage | None:
        return await self._database.run(
            lambda connection: messages.find_message(connection, context_id, message_id, machine=self._machine)
        )

    async def redeem(self, context_id: str, redemption: Redemption) -> ContextState | None:
        async def work(connection: Connection) -> ContextState | None:
            is_redeemed = await contexts.redeem(connection, context_id, redemption)
            return await contexts.find_state(connection, context_id) if is_redeemed else None

        return await self._database.once(work)

    async def delete_context(self, context_id: str) -> bool:
        return await self._database.once(lambda connection: contexts.delete_context(connection, context_id))

    async def list_contexts(self, *, task_state: TaskState | None = None, limit: int = 100) -> list[ContextState]:
        return await self._database.run(
            lambda connection: contexts.find_states(connection, task_state=task_state or "", limit=limit)
        )
