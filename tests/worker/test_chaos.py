"""Workers, database and broker are killed repeatedly; every run completes, and no effect is repeated.

`METIER_CHAOS_ALL=1` runs the full size: 4 workers and 200 runs with a kill every two seconds.
"""

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from worker_fleet import answer_doubts, find_untidy, leave_runs, wait_for_rows

from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import WorkerOptions
from metier.store.base import RunRow
from services.postgres_server import PostgresServer, find_binaries, run_server
from services.redis_server import RedisServer
from services.worker_load import Crew, Load, build_host, count_sent

pytestmark = pytest.mark.slow

STEPS = 10


@dataclass(frozen=True, slots=True)
class Size:
    workers: int
    runs: int
    kills: int
    """After so many the storm is over, and what is left is worked off."""
    seconds_between: float
    longest_seconds: float


WHOLE = Size(workers=4, runs=200, kills=1000, seconds_between=2.0, longest_seconds=1500)
SMALL = Size(workers=3, runs=12, kills=3, seconds_between=1.0, longest_seconds=400)
SIZE = WHOLE if os.environ.get("METIER_CHAOS_ALL") else SMALL


class Storm:
    """A process that kills a worker at every tick, the database after a third, the broker after two thirds."""

    def __init__(self, crew: Crew, load: Load, servers: tuple[PostgresServer, RedisServer]) -> None:
        self.kills = 0
        self._crew, self._load = crew, load
        self._postgres, self._redis = servers
        self._random = random.Random(7)
        self._started = 0
        self._alive = [self._start() for _ in range(SIZE.workers)]
        self._next = time.monotonic() + 2 * SIZE.seconds_between
        self._restarts = 0

    async def blow(self, ended: int) -> None:
        if self._restarts == 0 and ended * 3 >= SIZE.runs:
            self._restarts = 1
            await anyio.to_thread.run_sync(lambda: self._postgres.restart(is_immediate=True))
        elif self._restarts == 1 and ended * 3 >= SIZE.runs * 2:
            self._restarts = 2
            await anyio.to_thread.run_sync(lambda: self._redis.restart(is_immediate=True))
        if time.monotonic() >= self._next and self.kills < SIZE.kills:
            self._next = time.monotonic() + SIZE.seconds_between
            self._kill()

    @property
    def is_over(self) -> bool:
        return self._restarts == 2 and self.kills > 0

    def _kill(self) -> None:
        """Kill a whole worker, or only its first process, which the others must notice."""
        victim = self._alive.pop(self._random.randrange(len(self._alive)))
        self._crew.signal(victim, signal.SIGKILL, whole_group=bool(self.kills % 3))
        self.kills += 1
        self._alive.append(self._start())

    def _start(self) -> int:
        """Start a worker, in its own folder like on another machine if effects are counted elsewhere."""
        self._started += 1
        if not self._load.effects_folder:
            return self._crew.start(self._load)
        own = self._load.model_copy(update={"folder": f"{self._load.folder}/worker-{self._started}"})
        Path(own.folder).mkdir()
        return self._crew.start(own)


def count_ended(rows: list[RunRow]) -> int:
    return sum(row.status == "completed" for row in rows)


async def describe_unfinished(runtime: Runtime) -> list[str]:
    """Return status, lease and last entries of each unfinished run."""
    lines: list[str] = []
    for row in await runtime.store.list_runs(limit=1000):
        if row.status != "completed":
            entries = await runtime.store.read_journal(row.run_id)
            lines.append(f"{row} {[(entry.kind, entry.data[:300]) for entry in entries[-4:]]}")
    return lines


async def ride_out(runtime: Runtime, load: Load, storm: Storm) -> tuple[int, int]:
    """Wait for the runs and return the numbers of completed runs and interrupted steps."""
    deadline = time.monotonic() + SIZE.longest_seconds
    asked, ended = 0, 0
    while (ended < SIZE.runs or not storm.is_over) and time.monotonic() < deadline:
        asked += await answer_doubts(runtime, load)
        ended = count_ended(await runtime.store.list_runs(limit=1000))
        await storm.blow(ended)
        await anyio.sleep(0.1)
    return ended, asked


@pytest.mark.slow
@pytest.mark.timeout(SIZE.longest_seconds + 600)
@pytest.mark.anyio
@pytest.mark.parametrize("folders", ["shared", "apart"])
async def test_runs_complete_despite_kills_of_workers_database_and_broker(
    tmp_path: Path, crew: Crew, redis_server: RedisServer, folders: str
) -> None:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL")
    with run_server(binaries) as postgres:
        options = WorkerOptions(
            concurrency=2, lease_seconds=8, sweep_seconds=1, turns_per_task=4, max_attempts=50, max_deaths=50
        )
        load = Load(
            folder=str(tmp_path),
            effects_folder=str(tmp_path) if folders == "apart" else "",
            steps=STEPS,
            reply_seconds=0.02,
            database_url=postgres.create_database("chaos"),
            broker_url=redis_server.url,
            worker=options,
        )
        async with open_runtime(build_host(load)) as runtime:
            run_ids = await leave_runs(runtime, load, SIZE.runs)
            storm = Storm(crew, load, (postgres, redis_server))
            began = time.monotonic()

            ended, asked = await ride_out(runtime, load, storm)

            took = time.monotonic() - began
            print(f"{ended} of {SIZE.runs} runs, {storm.kills} kills, {asked} answers, {took:.0f} s")
            assert await describe_unfinished(runtime) == []
            assert ended == SIZE.runs
            assert storm.is_over
            assert storm.kills >= 1
            assert await find_untidy(runtime, run_ids) == []
            sent = count_sent(load)
            assert len(sent) == SIZE.runs * STEPS / 2
            assert {key: count for key, count in sent.items() if count > 1} == {}
            assert len(list((load.effects / "kept").iterdir())) == SIZE.runs * STEPS / 2
            assert not (load.effects / "together").exists()
            for worker in crew.workers:
                crew.signal(worker, signal.SIGTERM, whole_group=False)
            await wait_for_rows(runtime, lambda _rows: crew.count_left() == 0, seconds=300)
            assert crew.count_left() == 0
