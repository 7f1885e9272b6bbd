"""`store.schedules.ScheduleStore` on SQLite: each method one transaction of the file that also holds the runs."""

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import cast

from msgspec.structs import replace

from metier.store.schedules import MOST_FIRINGS, Firing, FiringOutcome, ScheduleMark, ScheduleRow
from metier.store.sqlite.database import Database

_FIRINGS = "queue, name, due_at, outcome, run_id, reason, decided_at, is_open"


class SqliteSchedules:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_schedule(self, row: ScheduleRow, *, replace: bool = False) -> bool:
        def change(connection: sqlite3.Connection) -> bool:
            found = connection.execute(
                "SELECT definition FROM schedules WHERE queue = ? AND name = ?", (row.queue, row.name)
            ).fetchone()
            if found is not None and found[0] and not replace:
                return False
            connection.execute(
                "INSERT OR REPLACE INTO schedules (queue, name, definition, is_paused, created_at)"
                " VALUES (?, ?, ?, ?, ?)",
                (row.queue, row.name, row.definition, int(row.is_paused), _write_time(row.created_at)),
            )
            return True

        return await self._database.write(change, durable=True)

    async def list_schedules(self, queue: str) -> list[ScheduleRow]:
        def query(connection: sqlite3.Connection) -> list[ScheduleRow]:
            found = connection.execute(
                "SELECT name, definition, is_paused, created_at FROM schedules WHERE queue = ? ORDER BY name", (queue,)
            )
            return [
                ScheduleRow(
                    queue=queue, name=name, definition=text, is_paused=bool(paused), created_at=_read_time(created)
                )
                for name, text, paused, created in found
            ]

        return await self._database.read(query)

    async def delete_schedule(self, queue: str, name: str) -> bool:
        def change(connection: sqlite3.Connection) -> bool:
            connection.execute("DELETE FROM schedule_marks WHERE queue = ? AND name = ?", (queue, name))
            deleted = connection.execute("DELETE FROM schedules WHERE queue = ? AND name = ?", (queue, name))
            return deleted.rowcount > 0

        return await self._database.write(change, durable=True)

    async def pause_schedule(self, row: ScheduleRow, *, now: datetime) -> None:
        def change(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO schedules (queue, name, definition, is_paused, created_at) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (queue, name) DO UPDATE SET is_paused = excluded.is_paused",
                (row.queue, row.name, row.definition, int(row.is_paused), _write_time(row.created_at)),
            )
            connection.execute(
                "UPDATE schedule_marks SET decided_to = ? WHERE queue = ? AND name = ? AND decided_to < ?",
                (_write_time(now), row.queue, row.name, _write_time(now)),
            )

        await self._database.write(change, durable=True)

    async def open_mark(self, mark: ScheduleMark) -> ScheduleMark:
        found = await self._database.read(partial(_find_mark, mark=mark))
        if found is not None:
            return found

        def change(connection: sqlite3.Connection) -> ScheduleMark:
            connection.execute(
                "INSERT OR IGNORE INTO schedule_marks (queue, name, timing, since, decided_to) VALUES (?, ?, ?, ?, ?)",
                (mark.queue, mark.name, mark.timing, _write_time(mark.since), _write_time(mark.decided_to)),
            )
            opened = _find_mark(connection, mark)
            assert opened is not None, "it was made in this transaction"
            return opened

        return await self._database.write(change, durable=True)

    async def decide_due(self, mark: ScheduleMark, *, decided_to: datetime, firings: Sequence[Firing]) -> bool:
        def change(connection: sqlite3.Connection) -> bool:
            moved = connection.execute(
                "UPDATE schedule_marks SET decided_to = ?"
                " WHERE queue = ? AND name = ? AND timing = ? AND decided_to = ?",
                (_write_time(decided_to), mark.queue, mark.name, mark.timing, _write_time(mark.decided_to)),
            )
            if moved.rowcount != 1:
                return False
            for firing in firings:
                _insert(connection, firing)
            _trim(connection, mark.queue, mark.name)
            return True

        return await self._database.write(change, durable=True)

    async def put_firing(self, firing: Firing) -> bool:
        return await self._database.write(partial(_insert, firing=firing), durable=True)

    async def settle_firing(self, firing: Firing, *, was: FiringOutcome) -> bool:
        def change(connection: sqlite3.Connection) -> bool:
            settled = connection.execute(
                "UPDATE schedule_firings SET outcome = ?, reason = ?, is_open = ?"
                " WHERE queue = ? AND name = ? AND due_at = ? AND outcome = ? AND is_open = 1",
                (
                    *(firing.outcome, firing.reason, int(firing.is_open)),
                    *(firing.queue, firing.name, _write_time(firing.due_at), was),
                ),
            )
            return settled.rowcount == 1

        return await self._database.write(change, durable=True)

    async def list_firings(
        self, queue: str, *, name: str = "", only_open: bool = False, limit: int = 100
    ) -> list[Firing]:
        where = {"queue = ?": queue} | ({"name = ?": name} if name else {}) | ({"is_open = ?": 1} if only_open else {})

        def query(connection: sqlite3.Connection) -> list[Firing]:
            found = connection.execute(
                f"SELECT {_FIRINGS} FROM schedule_firings WHERE {' AND '.join(where)} ORDER BY due_at DESC LIMIT ?",  # noqa: S608 - fixed texts
                (*where.values(), limit),
            )
            return [_read_firing(row) for row in found]

        return await self._database.read(query)


def _find_mark(connection: sqlite3.Connection, mark: ScheduleMark) -> ScheduleMark | None:
    row = connection.execute(
        "SELECT since, decided_to FROM schedule_marks WHERE queue = ? AND name = ? AND timing = ?",
        (mark.queue, mark.name, mark.timing),
    ).fetchone()
    return None if row is None else replace(mark, since=_read_time(row[0]), decided_to=_read_time(row[1]))


def _insert(connection: sqlite3.Connection, firing: Firing) -> bool:
    inserted = connection.execute(
        f"INSERT OR IGNORE INTO schedule_firings ({_FIRINGS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - as above
        (
            *(firing.queue, firing.name, _write_time(firing.due_at), firing.outcome, firing.run_id, firing.reason),
            *(_write_time(firing.decided_at), int(firing.is_open)),
        ),
    )
    return inserted.rowcount == 1


def _trim(connection: sqlite3.Connection, queue: str, name: str) -> None:
    connection.execute(
        "DELETE FROM schedule_firings WHERE queue = ? AND name = ? AND is_open = 0 AND due_at < coalesce(("
        "SELECT due_at FROM schedule_firings WHERE queue = ? AND name = ? ORDER BY due_at DESC LIMIT 1 OFFSET ?), '')",
        (queue, name, queue, name, MOST_FIRINGS),
    )


def _read_firing(row: tuple[str, str, str, str, str, str, str, int]) -> Firing:
    queue, name, due_at, outcome, run_id, reason, decided_at, is_open = row
    return Firing(
        queue=queue,
        name=name,
        due_at=_read_time(due_at),
        outcome=cast(FiringOutcome, outcome),  # only what `Firing` allows was written
        run_id=run_id,
        reason=reason,
        decided_at=_read_time(decided_at),
        is_open=bool(is_open),
    )


def _write_time(moment: datetime) -> str:
    """With microseconds always, so that texts sort as times do."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _read_time(text: str) -> datetime:
    return datetime.fromisoformat(text)
