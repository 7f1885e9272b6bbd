"""Waiting for new journal entries: PostgreSQL notifies, and a waiting task also polls in case a notice was lost."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import anyio
import psycopg

from metier.store.postgres.database import PostgresDatabase, connect, decode_text
from metier.store.queries.session import Session

CHANNEL = "agent_journal"
LOOK_SECONDS = (0.05, 1.0)
"""How long a task that got no notice waits before it polls, the first time and later."""
_MARK_SECONDS = 30.0
_RECONNECT_SECONDS = 1.0


class Watcher:
    def __init__(self, database: PostgresDatabase, *, look_seconds: tuple[float, float] = LOOK_SECONDS) -> None:
        self._database = database
        self._look_seconds = look_seconds
        self._waiting: dict[str, set[anyio.Event]] = {}
        self._listener: asyncio.Task[None] | None = None

    async def wait(self, run_id: str, has_come: Callable[[], Awaitable[bool]]) -> None:
        """Return when `has_come` returns true. The caller bounds the wait by cancelling it."""
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen(), name="listen for journal entries")
        pause, marked_at = self._look_seconds[0], -_MARK_SECONDS
        while True:
            notice = anyio.Event()
            self._waiting.setdefault(run_id, set()).add(notice)
            try:
                if anyio.current_time() - marked_at > _MARK_SECONDS / 2:
                    await self._mark(run_id)
                    marked_at = anyio.current_time()
                if await has_come():
                    return
                with anyio.move_on_after(pause):
                    await notice.wait()
            finally:
                self._forget(run_id, notice)
            pause = min(self._look_seconds[1], pause * 2)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None

    async def _mark(self, run_id: str) -> None:
        async def change(db: Session) -> None:
            await db.execute(
                "UPDATE leases SET watched_until = clock_timestamp() + make_interval(secs => ?) WHERE run_id = ?",
                (_MARK_SECONDS, run_id),
            )

        await self._database.write(change, repeatable=True)

    def _forget(self, run_id: str, notice: anyio.Event) -> None:
        others = self._waiting.get(run_id, set())
        others.discard(notice)
        if not others:
            self._waiting.pop(run_id, None)

    async def _listen(self) -> None:
        """Run until canceled: a broken connection is replaced."""
        while True:
            with contextlib.suppress(psycopg.Error):
                async with await connect(self._database.address) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    # Closed here: if the server went away, the generator would be left to the garbage collector.
                    async with contextlib.aclosing(connection.notifies()) as notifications:
                        async for notification in notifications:
                            for notice in self._waiting.get(decode_text(notification.payload), ()):
                                notice.set()
            await asyncio.sleep(_RECONNECT_SECONDS)
