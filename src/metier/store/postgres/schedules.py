"""`store.schedules.ScheduleStore` on PostgreSQL: each method one transaction."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

from msgspec.structs import replace
from psycopg.rows import TupleRow

from metier.store.postgres.database import Database, decode_text, encode_text, fetch_all, fetch_one
from metier.store.postgres.schema import Connection
from metier.store.schedules import MOST_FIRINGS, Firing, FiringOutcome, ScheduleMark, ScheduleRow


class PostgresSchedules:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_schedule(self, row: ScheduleRow, *, replace: bool = False) -> bool:
        async def work(connection: Connection) -> bool:
            put = await connection.execute(
                "INSERT INTO agent_schedules (queue, name, definition, is_paused, created_at)"
                " VALUES (%s, %s, %s, %s, %s) ON CONFLICT (queue, name) DO UPDATE SET definition = excluded.definition,"
                " is_paused = excluded.is_paused, created_at = excluded.created_at"
                " WHERE agent_schedules.definition = '' OR %s",
                (*_write_row(row), replace),
            )
            return put.rowcount == 1

        return await self._database.once(work)

    async def list_schedules(self, queue: str) -> list[ScheduleRow]:
        async def work(connection: Connection) -> list[ScheduleRow]:
            found = await fetch_all(
                connection,
                "SELECT name, definition, is_paused, created_at FROM agent_schedules WHERE queue = %s ORDER BY name",
                (queue,),
            )
            return [
                ScheduleRow(
                    queue=queue,
                    name=name,
                    definition=decode_text(text),
                    is_paused=paused,
                    created_at=_read_time(created),
                )
                for name, text, paused, created in found
            ]

        return await self._database.run(work)

    async def delete_schedule(self, queue: str, name: str) -> bool:
        async def work(connection: Connection) -> bool:
            await connection.execute("DELETE FROM agent_schedule_marks WHERE queue = %s AND name = %s", (queue, name))
            deleted = await connection.execute(
                "DELETE FROM agent_schedules WHERE queue = %s AND name = %s", (queue, name)
            )
            return deleted.rowcount > 0

        return await self._database.once(work)

    async def pause_schedule(self, row: ScheduleRow, *, now: datetime) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute(
                "INSERT INTO agent_schedules (queue, name, definition, is_paused, created_at)"
                " VALUES (%s, %s, %s, %s, %s) ON CONFLICT (queue, name) DO UPDATE SET is_paused = excluded.is_paused",
                _write_row(row),
            )
            await connection.execute(
                "UPDATE agent_schedule_marks SET decided_to = %s WHERE queue = %s AND name = %s AND decided_to < %s",
                (now, row.queue, row.name, now),
            )

        await self._database.once(work)

    async def open_mark(self, mark: ScheduleMark) -> ScheduleMark:
        async def work(connection: Connection) -> ScheduleMark:
            found = await _find_mark(connection, mark)
            if found is None:
                await connection.execute(
                    "INSERT INTO agent_schedule_marks (queue, name, timing, since, decided_to)"
                    " VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                    (mark.queue, mark.name, mark.timing, mark.since, mark.decided_to),
                )
                found = await _find_mark(connection, mark)
            assert found is not None, "it was there, or was made"
            return found

        return await self._database.run(work)

    async def decide_due(self, mark: ScheduleMark, *, decided_to: datetime, firings: Sequence[Firing]) -> bool:
        async def work(connection: Connection) -> bool:
            moved = await connection.execute(
                "UPDATE agent_schedule_marks SET decided_to = %s"
                " WHERE queue = %s AND name = %s AND timing = %s AND decided_to = %s",
                (decided_to, mark.queue, mark.name, mark.timing, mark.decided_to),
            )
            if moved.rowcount != 1:
                return False
            for firing in firings:
                await _insert(connection, firing)
            await connection.execute(
                "DELETE FROM agent_schedule_firings WHERE queue = %s AND name = %s AND NOT is_open AND due_at < ("
                "SELECT due_at FROM agent_schedule_firings WHERE queue = %s AND name = %s"
                " ORDER BY due_at DESC LIMIT 1 OFFSET %s)",
                (mark.queue, mark.name, mark.queue, mark.name, MOST_FIRINGS),
            )
            return True

        return await self._database.once(work)

    async def put_firing(self, firing: Firing) -> bool:
        return await self._database.once(lambda connection: _insert(connection, firing))

    async def settle_firing(self, firing: Firing, *, was: FiringOutcome) -> bool:
        async def work(connection: Connection) -> bool:
            settled = await connection.execute(
                "UPDATE agent_schedule_firings SET outcome = %s, reason = %s, is_open = %s"
                " WHERE queue = %s AND name = %s AND due_at = %s AND outcome = %s AND is_open",
                (
                    *(firing.outcome, encode_text(firing.reason), firing.is_open),
                    *(firing.queue, firing.name, firing.due_at, was),
                ),
            )
            return settled.rowcount == 1

        return await self._database.once(work)

    async def list_firings(
        self, queue: str, *, name: str = "", only_open: bool = False, limit: int = 100
    ) -> list[Firing]:
        async def work(connection: Connection) -> list[Firing]:
            found = await fetch_all(
                connection,
                "SELECT queue, name, due_at, outcome, run_id, reason, decided_at, is_open FROM agent_schedule_firings"
                " WHERE queue = %s AND (%s OR name = %s) AND (is_open OR NOT %s) ORDER BY due_at DESC LIMIT %s",
                (queue, not name, name, only_open, limit),
            )
            return [_read_firing(row) for row in found]

        return await self._database.run(work)


async def _find_mark(connection: Connection, mark: ScheduleMark) -> ScheduleMark | None:
    row = await fetch_one(
        connection,
        "SELECT since, decided_to FROM agent_schedule_marks WHERE queue = %s AND name = %s AND timing = %s",
        (mark.queue, mark.name, mark.timing),
    )
    return None if row is None else replace(mark, since=_read_time(row[0]), decided_to=_read_time(row[1]))


async def _insert(connection: Connection, firing: Firing) -> bool:
    inserted = await connection.execute(
        "INSERT INTO agent_schedule_firings (queue, name, due_at, outcome, run_id, reason, decided_at, is_open)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
        (
            *(firing.queue, firing.name, firing.due_at, firing.outcome, firing.run_id, encode_text(firing.reason)),
            *(firing.decided_at, firing.is_open),
        ),
    )
    return inserted.rowcount == 1


def _write_row(row: ScheduleRow) -> tuple[str, str, str, bool, datetime]:
    return (row.queue, row.name, encode_text(row.definition), row.is_paused, row.created_at)


def _read_firing(row: TupleRow) -> Firing:
    queue, name, due_at, outcome, run_id, reason, decided_at, is_open = row
    return Firing(
        queue=queue,
        name=name,
        due_at=_read_time(due_at),
        outcome=cast(FiringOutcome, outcome),  # only what `Firing` allows was written
        run_id=run_id,
        reason=decode_text(reason),
        decided_at=_read_time(decided_at),
        is_open=is_open,
    )


def _read_time(moment: datetime) -> datetime:
    """The server answers in the time zone of its session."""
    return moment.astimezone(UTC)
