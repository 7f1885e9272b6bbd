"""Outgoing messages and their receivers: `store.outbox.OutboxStore` in SQL. Each method is one transaction."""

from collections.abc import Sequence
from datetime import datetime

from metier.store.outbox import MAX_SETTLED, OutboxRow, Receiver
from metier.store.queries.session import Database, Session, read_row

_COLUMNS = "key, queue, channel, run_id, seq, payload, created_at, due_at, attempts, state, reason"


class SqlOutbox:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, rows: Sequence[OutboxRow]) -> int:
        async def change(db: Session) -> int:
            count = 0
            for row in rows:
                count += await db.execute(
                    f"INSERT INTO outbox ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                    " ON CONFLICT (key) DO NOTHING",
                    (
                        *(row.key, row.queue, row.channel, row.run_id, row.seq, row.payload),
                        *(row.created_at, row.due_at, row.attempts, row.state, row.reason),
                    ),
                )
            return count

        return await self._database.write(change, durable=True)

    async def claim(self, queue: str, *, now: datetime, until: datetime) -> OutboxRow | None:
        async def change(db: Session) -> OutboxRow | None:
            found = await db.fetch_one(
                # The claim is a later due time: if the sender dies, the message becomes due again by itself.
                "UPDATE outbox SET due_at = ?, attempts = attempts + 1 WHERE key = (SELECT key FROM outbox"
                " WHERE queue = ? AND state = 'open' AND due_at <= ? ORDER BY due_at, key LIMIT 1"
                f" FOR UPDATE SKIP LOCKED) RETURNING {_COLUMNS}",
                (until, queue, now),
            )
            return None if found is None else read_row(OutboxRow, _COLUMNS, found)

        return await self._database.write(change, durable=True)

    async def settle(self, row: OutboxRow) -> bool:
        async def change(db: Session) -> bool:
            # `attempts` identifies the claim: every claim increments it.
            settled = await db.execute(
                "UPDATE outbox SET state = ?, due_at = ?, reason = ? WHERE key = ? AND attempts = ? AND state = 'open'",
                (row.state, row.due_at, row.reason, row.key, row.attempts),
            )
            await db.execute(
                "DELETE FROM outbox WHERE queue = ? AND state <> 'open' AND created_at < (SELECT created_at"
                " FROM outbox WHERE queue = ? AND state <> 'open' ORDER BY created_at DESC LIMIT 1 OFFSET ?)",
                (row.queue, row.queue, MAX_SETTLED),
            )
            return settled == 1

        return await self._database.write(change, durable=True)

    async def list(self, queue: str, *, only_open: bool = False, limit: int = 100) -> list[OutboxRow]:
        async def query(db: Session) -> list[OutboxRow]:
            where = "queue = ? AND state = 'open'" if only_open else "queue = ?"
            found = await db.fetch_all(
                f"SELECT {_COLUMNS} FROM outbox WHERE {where} ORDER BY created_at DESC, key LIMIT ?",
                (queue, limit),
            )
            return [read_row(OutboxRow, _COLUMNS, row) for row in found]

        return await self._database.read(query)

    async def set_receiver(self, receiver: Receiver) -> None:
        async def change(db: Session) -> None:
            await db.execute(
                "INSERT INTO receivers (run_id, name, data) VALUES (?, ?, ?)"
                " ON CONFLICT (run_id, name) DO UPDATE SET data = excluded.data",
                (receiver.run_id, receiver.name, receiver.data),
            )

        await self._database.write(change, durable=True)

    async def list_receivers(self, run_id: str) -> Sequence[Receiver]:
        async def query(db: Session) -> Sequence[Receiver]:
            found = await db.fetch_all("SELECT name, data FROM receivers WHERE run_id = ? ORDER BY name", (run_id,))
            return [Receiver(run_id=run_id, name=name, data=data) for name, data in found]

        return await self._database.read(query)

    async def remove_receiver(self, run_id: str, name: str) -> None:
        async def change(db: Session) -> None:
            await db.execute("DELETE FROM receivers WHERE run_id = ? AND name = ?", (run_id, name))

        await self._database.write(change, durable=True)
