"""Two processes that fire schedules, die at random around due times, and are replaced.

`python schedule_fleet.py FOLDER` loads everything once and forks. The file `clock` is their common clock.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import anyio

from metier.errors import StoreError
from metier.runtime.host import Host
from metier.runtime.queue.scheduler import fire_due
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.store.backend import StoreOptions
from metier.store.base import Lease, RunRow, Store, StoredEntry
from metier.store.schedules import Firing, FiringOutcome, ScheduleMark, ScheduleRow, ScheduleStore
from metier.store.wrapper import StoreWrapper
from metier.testing.scripted import ScriptedProvider

LOOK_SECONDS = 0.05
DEATH = 0.06
"""Probability that a process dies at each of the moments."""


class FileClock:
    """A wall clock controlled by the test and shared by all processes."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def now(self) -> datetime:
        return datetime.fromisoformat(self._file.read_text(encoding="ascii"))

    def monotonic(self) -> float:
        return time.monotonic()


def set_clock(folder: Path, moment: datetime) -> None:
    fresh = folder / "clock.new"
    fresh.write_text(moment.astimezone(UTC).isoformat(), encoding="ascii")
    fresh.replace(folder / "clock")


def build_host(folder: Path) -> Host:
    """Build the host with a store in the folder, or in the database whose URL is in its file `database`."""
    database = folder / "database"
    url = database.read_text(encoding="utf-8") if database.exists() else ""
    return Host(
        settings=Settings(store=StoreOptions(backend="postgres" if url else "sqlite")),
        workspace=folder,
        home=folder / "home",
        trust=MADE_HERE,
        environ={"DATABASE_URL": url},
        clock=FileClock(folder / "clock"),
        provider=ScriptedProvider(),
    )


def maybe_die(folder: Path) -> None:
    if random.random() < DEATH:
        with (folder / "deaths").open("a", encoding="ascii") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)


class MortalSchedules:
    """A scheduler that dies before and after its actions around a due time."""

    def __init__(self, inner: ScheduleStore, folder: Path) -> None:
        self.inner = inner
        self.folder = folder

    async def decide_due(self, mark: ScheduleMark, *, decided_to: datetime, firings: Sequence[Firing]) -> bool:
        maybe_die(self.folder)
        decided = await self.inner.decide_due(mark, decided_to=decided_to, firings=firings)
        maybe_die(self.folder)
        return decided

    async def settle_firing(self, firing: Firing, *, was: FiringOutcome) -> bool:
        maybe_die(self.folder)
        settled = await self.inner.settle_firing(firing, was=was)
        maybe_die(self.folder)
        return settled

    async def open_mark(self, mark: ScheduleMark) -> ScheduleMark:
        return await self.inner.open_mark(mark)

    async def list_schedules(self, queue: str) -> list[ScheduleRow]:
        return await self.inner.list_schedules(queue)

    async def list_firings(
        self, queue: str, *, name: str = "", only_open: bool = False, limit: int = 100
    ) -> list[Firing]:
        return await self.inner.list_firings(queue, name=name, only_open=only_open, limit=limit)

    async def put_schedule(self, row: ScheduleRow, *, replace: bool = False) -> bool:
        return await self.inner.put_schedule(row, replace=replace)

    async def delete_schedule(self, queue: str, name: str) -> bool:
        return await self.inner.delete_schedule(queue, name)

    async def pause_schedule(self, row: ScheduleRow, *, now: datetime) -> None:
        await self.inner.pause_schedule(row, now=now)

    async def put_firing(self, firing: Firing) -> bool:
        return await self.inner.put_firing(firing)


class MortalStore(StoreWrapper):
    def __init__(self, inner: Store, folder: Path) -> None:
        super().__init__(inner)
        self.folder = folder

    @property
    def schedules(self) -> ScheduleStore:
        return MortalSchedules(self.inner.schedules, self.folder)

    async def begin_run(self, row: RunRow, entries: Sequence[StoredEntry], *, owner: str, seconds: float) -> Lease:
        maybe_die(self.folder)
        lease = await super().begin_run(row, entries, owner=owner, seconds=seconds)
        maybe_die(self.folder)
        return lease


async def fire_for_ever(folder: Path) -> None:
    async with open_runtime(build_host(folder)) as opened:
        runtime = Runtime(opened.host, MortalStore(opened.store, folder))
        while True:
            with suppress(StoreError):
                await fire_due(runtime)
            await anyio.sleep(LOOK_SECONDS)


def keep_two(folder: Path) -> None:
    alive: set[int] = set()
    while True:
        while len(alive) < 2:
            child = os.fork()
            if child == 0:
                random.seed(os.getpid() * 7919 + time.monotonic_ns())
                anyio.run(fire_for_ever, folder)
            alive.add(child)
        gone, _ = os.waitpid(-1, 0)
        alive.discard(gone)


if __name__ == "__main__":
    keep_two(Path(sys.argv[1]))
