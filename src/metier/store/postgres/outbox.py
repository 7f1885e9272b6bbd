"""`store.outbox.OutboxStore` on PostgreSQL: each method one transaction."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

from psycopg.rows import TupleRow

from metier.store.outbox import MOST_KEPT, OutboxRow, OutboxState, Receiver
from metier.store.postgres.database import Database, decode_text, encode_text, fetch_all, fetch_one
from metier.store.postgres.schema import Connection


class PostgresOutbox:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, rows: Sequence[OutboxRow]) -> int:
        async def work(connection: Connection) -> int:
            count = 0
            for row in rows:
                done = await connection.execute(
                    "INSERT INTO agent_outbox (key, queue, channel, run_id, seq, payload, created_at, due_at, attempts,"
                    " state, reason) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (key) DO NOTHING",
                    (
                        *(row.key, row.queue, row.channel, row.run_id, row.seq, encode_text(row.payload)),
                        *(row.created_at, row.due_at, row.attempts, row.state, encode_text(row.reason)),
                    ),
                )
                count += done.rowcount
            return count

        return await self._database.once(work)

    async def claim(self, queue: str, *, now: datetime, until: datetime) -> OutboxRow | None:
        async def work(connection: Connection) -> OutboxRow | None:
            found = await fetch_one(
                connection,
                "UPDATE agent_outbox SET due_at = %s, attempts = attempts + 1 WHERE key = (SELECT key FROM agent_outbox"
                " WHERE queue = %s AND state = 'open' AND due_at <= %s ORDER BY due_at, key LIMIT 1"
                " FOR UPDATE SKIP LOCKED) RETURNING key, queue, channel, run_id, seq, payload, created_at, due_at,"
                " attempts, state, reason",
                (until, queue, now),
            )
            return None if found is None else _read(found)

        return await self._database.once(work)

    async def settle(self, row: OutboxRow) -> bool:
        async def work(connection: Connection) -> bool:
            settled = await connection.execute(
                "UPDATE agent_outbox SET state = %s, due_at = %s, reason = %s"
                " WHERE key = %s AND attempts = %s AND state = 'open'",
                (row.state, row.due_at, encode_text(row.reason), row.key, row.attempts),
            )
            await connection.execute(
                "DELETE FROM agent_outbox WHERE queue = %s AND state <> 'open' AND created_at < (SELECT created_at"
                " FROM agent_outbox WHERE queue = %s AND state <> 'open' ORDER BY created_at DESC LIMIT 1 OFFSET %s)",
                (row.queue, row.queue, MOST_KEPT),
            )
            return settled.rowcount == 1

        return await self._database.once(work)

    async def list(self, queue: str, *, only_open: bool = False, limit: int = 100) -> list[OutboxRow]:
        async def work(connection: Connection) -> list[OutboxRow]:
            found = await fetch_all(
                connection,
                "SELECT key, queue, channel, run_id, seq, payload, created_at, due_at, attempts, state, reason"
                " FROM agent_outbox WHERE queue = %s AND (state = 'open' OR NOT %s)"
                " ORDER BY created_at DESC, key LIMIT %s",
                (queue, only_open, limit),
            )
            return [_read(row) for row in found]

        return await self._database.run(work)

    async def set_receiver(self, receiver: Receiver) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute(
                "INSERT INTO agent_receivers (run_id, name, data) VALUES (%s, %s, %s)"
                " ON CONFLICT (run_id, name) DO UPDATE SET data = excluded.data",
                (encode_text(receiver.run_id), encode_text(receiver.name), encode_text(receiver.data)),
            )

        await self._database.once(work)

    async def list_receivers(self, run_id: str) -> Sequence[Receiver]:
        async def work(connection: Connection) -> Sequence[Receiver]:
            found = await fetch_all(
                connection,
                "SELECT name, data FROM agent_receivers WHERE run_id = %s ORDER BY name",
                (encode_text(run_id),),
            )
            return [Receiver(run_id=run_id, name=decode_text(name), data=decode_text(data)) for name, data in found]

        return await self._database.run(work)

    async def remove_receiver(self, run_id: str, name: str) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute(
                "DELETE FROM agent_receivers WHERE run_id = %s AND name = %s", (encode_text(run_id), encode_text(name))
            )

        await self._database.once(work)


def _read(row: TupleRow) -> OutboxRow:
    key, queue, channel, run_id, seq, payload, created_at, due_at, attempts, state, reason = row
    return OutboxRow(
        key=key,
        queue=queue,
        channel=channel,
        run_id=run_id,
        seq=seq,
        payload=decode_text(payload),
        created_at=created_at.astimezone(UTC),
        due_at=due_at.astimezone(UTC),
        attempts=attempts,
        state=cast(OutboxState, state),  # only what `OutboxRow` allows was written
        reason=decode_text(reason),
    )
