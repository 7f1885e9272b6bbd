"""`store.outbox.OutboxStore` on SQLite: each method one transaction of the file that also holds the runs."""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

from metier.store.outbox import MOST_KEPT, OutboxRow, OutboxState, Receiver
from metier.store.sqlite.database import Database

_COLUMNS = "key, queue, channel, run_id, seq, payload, created_at, due_at, attempts, state, reason"

type _Row = tuple[str, str, str, str, int, str, str, str, int, str, str]


class SqliteOutbox:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, rows: Sequence[OutboxRow]) -> int:
        def change(connection: sqlite3.Connection) -> int:
            return sum(
                connection.execute(
                    f"INSERT OR IGNORE INTO outbox ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - a fixed text
                    (
                        *(row.key, row.queue, row.channel, row.run_id, row.seq, row.payload),
                        *(_write_time(row.created_at), _write_time(row.due_at), row.attempts, row.state, row.reason),
                    ),
                ).rowcount
                for row in rows
            )

        return await self._database.write(change, durable=True)

    async def claim(self, queue: str, *, now: datetime, until: datetime) -> OutboxRow | None:
        def change(connection: sqlite3.Connection) -> OutboxRow | None:
            found = connection.execute(
                f"SELECT {_COLUMNS} FROM outbox WHERE queue = ? AND state = 'open' AND due_at <= ?"  # noqa: S608 - as above
                " ORDER BY due_at, key LIMIT 1",
                (queue, _write_time(now)),
            ).fetchone()
            if found is None:
                return None
            row = replace(_read(found), due_at=until)
            connection.execute(
                "UPDATE outbox SET due_at = ?, attempts = attempts + 1 WHERE key = ?", (_write_time(until), row.key)
            )
            return replace(row, attempts=row.attempts + 1)

        return await self._database.write(change, durable=True)

    async def settle(self, row: OutboxRow) -> bool:
        def change(connection: sqlite3.Connection) -> bool:
            settled = connection.execute(
                "UPDATE outbox SET state = ?, due_at = ?, reason = ? WHERE key = ? AND attempts = ? AND state = 'open'",
                (row.state, _write_time(row.due_at), row.reason, row.key, row.attempts),
            )
            connection.execute(
                "DELETE FROM outbox WHERE queue = ? AND state != 'open' AND created_at < coalesce((SELECT created_at"
                " FROM outbox WHERE queue = ? AND state != 'open' ORDER BY created_at DESC LIMIT 1 OFFSET ?), '')",
                (row.queue, row.queue, MOST_KEPT),
            )
            return settled.rowcount == 1

        return await self._database.write(change, durable=True)

    async def list(self, queue: str, *, only_open: bool = False, limit: int = 100) -> list[OutboxRow]:
        where = "AND state = 'open' " if only_open else ""

        def query(connection: sqlite3.Connection) -> list[OutboxRow]:
            found = connection.execute(
                f"SELECT {_COLUMNS} FROM outbox WHERE queue = ? {where}ORDER BY created_at DESC, key LIMIT ?",  # noqa: S608 - as above
                (queue, limit),
            )
            return [_read(row) for row in found]

        return await self._database.read(query)

    async def set_receiver(self, receiver: Receiver) -> None:
        def change(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO receivers (run_id, name, data) VALUES (?, ?, ?)"
                " ON CONFLICT (run_id, name) DO UPDATE SET data = excluded.data",
                (receiver.run_id, receiver.name, receiver.data),
            )

        await self._database.write(change, durable=True)

    async def list_receivers(self, run_id: str) -> Sequence[Receiver]:
        def query(connection: sqlite3.Connection) -> Sequence[Receiver]:
            found = connection.execute("SELECT name, data FROM receivers WHERE run_id = ? ORDER BY name", (run_id,))
            return [Receiver(run_id=run_id, name=str(name), data=str(data)) for name, data in found]

        return await self._database.read(query)

    async def remove_receiver(self, run_id: str, name: str) -> None:
        def change(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM receivers WHERE run_id = ? AND name = ?", (run_id, name))

        await self._database.write(change, durable=True)


def _read(row: _Row) -> OutboxRow:
    key, queue, channel, run_id, seq, payload, created_at, due_at, attempts, state, reason = row
    return OutboxRow(
        key=key,
        queue=queue,
        channel=channel,
        run_id=run_id,
        seq=seq,
        payload=payload,
        created_at=datetime.fromisoformat(created_at),
        due_at=datetime.fromisoformat(due_at),
        attempts=attempts,
        state=cast(OutboxState, state),  # only what `OutboxRow` allows was written
        reason=reason,
    )


def _write_time(moment: datetime) -> str:
    """With microseconds always, so that texts sort as times do."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
