"""Waiting for new entries of a journal: one connection listens for all waiting tasks of a process.

A run is marked as watched while a task waits for it; only writers of watched runs notify. A notification before the
mark counts, or while the server restarts, is missed; so the waiting task also polls, slowing down to once a second.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import anyio
import psycopg

from metier.store.postgres.database import Database, connect
from metier.store.postgres.journal import CHANNEL
from metier.store.postgres.schema import Connection
from metier.store.postgres.text import decode, encode

LOOK_SECONDS = (0.05, 1.0)
"""How long a task that was told nothing waits before it looks by itself, the first time and later."""
_MARK_SECONDS = 30.0
_RECONNECT_SECONDS = 1.0


class Watcher:
    def __init__(self, database: Database, *, look_seconds: tuple[float, float] = LOOK_SECONDS) -> None:
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
            told = anyio.Event()
            self._waiting.setdefault(run_id, set()).add(told)
            try:
                if anyio.current_time() - marked_at > _MARK_SECONDS / 2:
                    await self._mark(run_id)
                    marked_at = anyio.current_time()
                if await has_come():
                    return
                with anyio.move_on_after(pause):
                    await told.wait()
            finally:
                self._forget(run_id, told)
            pause = min(self._look_seconds[1], pause * 2)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None

    async def _mark(self, run_id: str) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute(
                "UPDATE agent_leases SET watched_until = clock_timestamp() + make_interval(secs => %s)"
                " WHERE run_id = %s",
                (_MARK_SECONDS, encode(run_id)),
            )

        await self._database.run(work)

    def _forget(self, run_id: str, told: anyio.Event) -> None:
        others = self._waiting.get(run_id, set())
        others.discard(told)
        if not others:
            self._waiting.pop(run_id, None)

    async def _listen(self) -> None:
        """For ever: a connection that breaks is made anew."""
        while True:
            with contextlib.suppress(psycopg.Error):
                async with await connect(self._database.address) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    # Closed here: where the server went away, the generator would be left for the collector.
                    async with contextlib.aclosing(connection.notifies()) as notifications:
                        async for notification in notifications:
                            for told in self._waiting.get(decode(notification.payload), ()):
                                told.set()
            await asyncio.sleep(_RECONNECT_SECONDS)
