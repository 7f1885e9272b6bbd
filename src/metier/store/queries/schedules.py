"""Schedules and their due times: `store.schedules.ScheduleStore` in SQL. Each method is one transaction."""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace as replace_fields

from metier.store.queries.session import Database, Session, parse_time, read_row
from metier.store.schedules import MAX_FIRINGS, Firing, FiringOutcome, ScheduleMark, ScheduleRow

_SCHEDULES = "queue, name, definition, is_paused, created_at"
_FIRINGS = "queue, name, due_at, outcome, run_id, reason, decided_at, is_open"
_INSERT_SCHEDULE = (
    f"INSERT INTO schedules AS known ({_SCHEDULES}) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (queue, name) DO UPDATE SET is_paused = excluded.is_paused"
)


class SqlSchedules:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_schedule(self, row: ScheduleRow, *, replace: bool = False) -> bool:
        async def change(db: Session) -> bool:
            put = await db.execute(
                f"{_INSERT_SCHEDULE}, definition = excluded.definition, created_at = excluded.created_at"
                " WHERE known.definition = '' OR ?",
                (row.queue, row.name, row.definition, row.is_paused, row.created_at, replace),
            )
            return put == 1

        return await self._database.write(change, durable=True)

    async def list_schedules(self, queue: str) -> list[ScheduleRow]:
        async def query(db: Session) -> list[ScheduleRow]:
            found = await db.fetch_all(f"SELECT {_SCHEDULES} FROM schedules WHERE queue = ? ORDER BY name", (queue,))
            return [read_row(ScheduleRow, _SCHEDULES, row) for row in found]

        return await self._database.read(query)

    async def delete_schedule(self, queue: str, name: str) -> bool:
        async def change(db: Session) -> bool:
            await db.execute("DELETE FROM schedule_marks WHERE queue = ? AND name = ?", (queue, name))
            return await db.execute("DELETE FROM schedules WHERE queue = ? AND name = ?", (queue, name)) > 0

        return await self._database.write(change, durable=True)

    async def pause_schedule(self, row: ScheduleRow, *, now: datetime) -> None:
        async def change(db: Session) -> None:
            await db.execute(_INSERT_SCHEDULE, (row.queue, row.name, row.definition, row.is_paused, row.created_at))
            await db.execute(
                # Due times that passed during a pause are not made up when it ends.
                "UPDATE schedule_marks SET decided_to = ? WHERE queue = ? AND name = ? AND decided_to < ?",
                (now, row.queue, row.name, now),
            )

        await self._database.write(change, durable=True)

    async def open_mark(self, mark: ScheduleMark) -> ScheduleMark:
        # Read first: workers check every schedule every few seconds, and a read takes no lock.
        found = await self._database.read(lambda db: _find_mark(db, mark))
        if found is not None:
            return found

        async def change(db: Session) -> ScheduleMark:
            await db.execute(
                "INSERT INTO schedule_marks (queue, name, timing, since, decided_to) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                (mark.queue, mark.name, mark.timing, mark.since, mark.decided_to),
            )
            opened = await _find_mark(db, mark)
            assert opened is not None, "it exists, or was created in this transaction"
            return opened

        return await self._database.write(change, durable=True, repeatable=True)

    async def decide_due(self, mark: ScheduleMark, *, decided_to: datetime, firings: Sequence[Firing]) -> bool:
        async def change(db: Session) -> bool:
            # Compare and set: the mark only moves from the position that the caller read, so one process decides.
            moved = await db.execute(
                "UPDATE schedule_marks SET decided_to = ?"
                " WHERE queue = ? AND name = ? AND timing = ? AND decided_to = ?",
                (decided_to, mark.queue, mark.name, mark.timing, mark.decided_to),
            )
            if not moved:
                return False
            for firing in firings:
                await _insert_firing(db, firing)
            await db.execute(
                f"DELETE FROM schedule_firings WHERE queue = ? AND name = ? AND is_open {db.dialect.is_false}"
                " AND due_at < (SELECT due_at FROM schedule_firings WHERE queue = ? AND name = ?"
                " ORDER BY due_at DESC LIMIT 1 OFFSET ?)",
                (mark.queue, mark.name, mark.queue, mark.name, MAX_FIRINGS),
            )
            return True

        return await self._database.write(change, durable=True)

    async def put_firing(self, firing: Firing) -> bool:
        return await self._database.write(lambda db: _insert_firing(db, firing), durable=True)

    async def settle_firing(self, firing: Firing, *, was: FiringOutcome) -> bool:
        async def change(db: Session) -> bool:
            # Compare and set: several workers may see the same open firing.
            settled = await db.execute(
                "UPDATE schedule_firings SET outcome = ?, reason = ?, is_open = ?"
                f" WHERE queue = ? AND name = ? AND due_at = ? AND outcome = ? AND is_open {db.dialect.is_true}",
                (
                    *(firing.outcome, firing.reason, firing.is_open),
                    *(firing.queue, firing.name, firing.due_at, was),
                ),
            )
            return settled == 1

        return await self._database.write(change, durable=True)

    async def list_firings(
        self, queue: str, *, name: str = "", only_open: bool = False, limit: int = 100
    ) -> list[Firing]:
        async def query(db: Session) -> list[Firing]:
            where = "queue = ?" + (" AND name = ?" if name else "")
            where += f" AND is_open {db.dialect.is_true}" if only_open else ""
            found = await db.fetch_all(
                f"SELECT {_FIRINGS} FROM schedule_firings WHERE {where} ORDER BY due_at DESC LIMIT ?",
                (queue, *([name] if name else []), limit),
            )
            return [read_row(Firing, _FIRINGS, row) for row in found]

        return await self._database.read(query)


async def _find_mark(db: Session, mark: ScheduleMark) -> ScheduleMark | None:
    row = await db.fetch_one(
        "SELECT since, decided_to FROM schedule_marks WHERE queue = ? AND name = ? AND timing = ?",
        (mark.queue, mark.name, mark.timing),
    )
    return None if row is None else replace_fields(mark, since=parse_time(row[0]), decided_to=parse_time(row[1]))


async def _insert_firing(db: Session, firing: Firing) -> bool:
    inserted = await db.execute(
        f"INSERT INTO schedule_firings ({_FIRINGS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            *(firing.queue, firing.name, firing.due_at, firing.outcome, firing.run_id, firing.reason),
            *(firing.decided_at, firing.is_open),
        ),
    )
    return inserted == 1
