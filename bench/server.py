"""A server: pages of 100,000 runs with every filter, and 500 watchers of 50 runs that go on in one process."""

import gc
import sqlite3
import statistics
import tempfile
import time
import tracemalloc
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
import psycopg

from bench.table import Row
from metier.events.model import PromptLayerCut
from metier.events.record import EventRecord, render_record
from metier.runtime.opened_host import open_host
from metier.runtime.runs import Runtime, open_runtime
from metier.server.feed import Feed, Watcher
from metier.store.base import RunSearch
from metier.store.postgres.database import read_address
from metier.store.postgres.store import open_postgres_store
from metier.store.sqlite.store import SqliteStore, open_sqlite_store
from metier.telemetry.jsonl import FILE_NAME
from services.postgres_server import find_binaries, run_server

RUNS = 100_000
WATCHERS, WATCHED, EVENTS = 500, 50, 40
_ROUNDS = 20

SEARCHES: dict[str, RunSearch] = {
    "no filter": RunSearch(),
    "a status that few have": RunSearch(statuses=("failed",)),
    "all but one status": RunSearch(not_statuses=("completed",)),
    "an agent": RunSearch(agents=("agent-7",)),
    "a model and a status": RunSearch(models=("model-3",), statuses=("failed",)),
    "a skill": RunSearch(skills=("skill-9",)),
    "a task": RunSearch(tasks=("task-5",)),
    "a word of one run": RunSearch(words=("note 00042",)),
    "a word of no run": RunSearch(words=("zebra",)),
    "a cost that no run has": RunSearch(min_cost=1000.0),
    "the last hour": RunSearch(created_since=datetime(2026, 12, 1, tzinfo=UTC)),
}


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        watched = anyio.run(_measure_watchers, folder / "watch")
        return [*anyio.run(_measure_lists, folder / "lists"), *_measure_postgres(), *watched]


async def _measure_lists(folder: Path) -> list[Row]:
    path = folder / "runs" / "state.db"
    await (await open_sqlite_store(path)).close()
    with sqlite3.connect(path) as connection:
        fill(connection, RUNS)
    connection.close()
    store = await open_sqlite_store(path)
    try:
        return [await _measure_search(store, name, search) for name, search in SEARCHES.items()]
    finally:
        await store.close()


def _measure_postgres() -> list[Row]:
    binaries = find_binaries()
    if binaries is None:
        return [Row("page of runs on PostgreSQL", "not measured: no server here", "≤ 100 ms", holds=False)]
    with run_server(binaries) as server:
        return anyio.run(_measure_postgres_lists, server.url())


async def _measure_postgres_lists(url: str) -> list[Row]:
    """Wall time: the work is the server's."""
    store = await open_postgres_store(read_address("DATABASE_URL", {"DATABASE_URL": url}))
    try:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as bare:
            await bare.execute(_FILL_POSTGRES, (RUNS,))
            await bare.execute("INSERT INTO agent_leases SELECT run_id, '', 0, NULL, NULL, '', '' FROM agent_runs")
            await bare.execute("ANALYZE")
        found: list[Row] = []
        for name, search in SEARCHES.items():
            times: list[float] = []
            for _ in range(_ROUNDS):
                began = time.perf_counter()
                await store.search_runs(search, limit=50)
                times.append(time.perf_counter() - began)
            taken = statistics.median(times) * 1000
            found.append(Row(f"the same on PostgreSQL, {name}", f"{taken:.1f} ms", "≤ 100 ms", holds=taken <= 100))
        return found
    finally:
        await store.close()


_FILL_POSTGRES = (
    "INSERT INTO agent_runs (run_id, context_id, status, task, agent, model, parent_run_id, created_at, updated_at,"
    " turns, cost_usd, reason, queue, skill, task_id) SELECT '20261101-' || lpad(i::text, 7, '0') || '-00',"
    " 'c' || i / 10, CASE WHEN i %% 400 = 20 THEN 'failed' ELSE 'completed' END,"
    " 'tidy the note ' || lpad(i::text, 5, '0'), 'agent-' || i %% 50, 'model-' || i %% 9, '',"
    " '2026-11-01', '2026-11-01',"
    " 3, i %% 100 / 100.0, '', '', 'skill-' || i %% 40, 'task-' || i %% 30 FROM generate_series(1, %s) AS i"
)


async def _measure_search(store: SqliteStore, name: str, search: RunSearch) -> Row:
    await store.search_runs(search, limit=50)
    times: list[float] = []
    for _ in range(_ROUNDS):
        began = time.process_time()
        await store.search_runs(search, limit=50)
        times.append(time.process_time() - began)
    taken = statistics.median(times) * 1000
    return Row(f"page of {RUNS:,} runs, {name}", f"{taken:.1f} ms of processor", "≤ 100 ms", holds=taken <= 100)


def fill(connection: sqlite3.Connection, count: int) -> None:
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?)"
        " INSERT INTO runs (run_id, context_id, status, task, agent, model, parent_run_id, created_at, updated_at,"
        " turns, cost_usd, reason, skill, task_id) SELECT printf('20261101-%07d-00', i), printf('c%d', i / 10),"
        " CASE WHEN i % 400 = 20 THEN 'failed' ELSE 'completed' END, printf('tidy the note %05d', i),"
        " printf('agent-%d', i % 50), printf('model-%d', i % 9), '', '2026-11-01T00:00:00.000000+00:00',"
        " '2026-11-01T00:00:00.000000+00:00', 3, i % 100 / 100.0, '', printf('skill-%d', i % 40),"
        " printf('task-%d', i % 30) FROM n",
        (count,),
    )


async def _measure_watchers(folder: Path) -> list[Row]:
    folder.mkdir()  # noqa: ASYNC240 (nothing else runs yet)
    host = open_host(folder, environ={}, home=folder, config=None).host
    async with open_runtime(host) as runtime, anyio.create_task_group() as group:
        feed = Feed(runtime, group, most=WATCHERS + 1)
        bench = _Watching(runtime, feed)
        result = await bench.measure()
        group.cancel_scope.cancel()
        return result
    raise AssertionError("the block above returns")


class _Watching:
    """Every run gets events as a driver of this process writes them: into its log, then to the feed."""

    def __init__(self, runtime: Runtime, feed: Feed) -> None:
        self.runtime, self.feed = runtime, feed
        self.ids = [f"20261101-{number:06d}-00" for number in range(WATCHED)]
        self.written: dict[tuple[str, int], float] = {}
        self.delays: list[float] = []
        self.got = 0

    async def measure(self) -> list[Row]:
        for run_id in self.ids:
            self.runtime.folder(run_id).mkdir(parents=True)
        each = spent = 0.0
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        async with anyio.create_task_group() as watching:
            for number in range(WATCHERS):
                watching.start_soon(partial(self._watch, self.ids[number % WATCHED], is_slow=number == 0))
            while self.feed.watchers < WATCHERS:  # noqa: ASYNC110 (a count has no event)
                await anyio.sleep(0.01)
            await anyio.sleep(0.5)
            each = (tracemalloc.get_traced_memory()[0] - before) / WATCHERS
            tracemalloc.stop()
            began = time.process_time()
            await self._write_all()
            wanted = (WATCHERS - 1) * EVENTS
            with anyio.fail_after(120):
                while self.got < wanted:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            spent = time.process_time() - began
            watching.cancel_scope.cancel()
        late = statistics.quantiles(self.delays, n=20)[-1]
        what = f"{WATCHERS} watchers of {WATCHED} runs"
        return [
            Row(f"{what}: event to watcher, p95", f"{late * 1000:.0f} ms", "≤ 250 ms", holds=late <= 0.25),
            Row(f"{what}: memory of a watcher", f"{each / 1000:.1f} KB", "≤ 100 KB", holds=each <= 100_000),
            Row(f"{what}: an event for one of them", f"{spent / self.got * 1e6:.0f} µs of processor", "", holds=True),
        ]

    async def _watch(self, run_id: str, *, is_slow: bool) -> None:
        async with self.feed.watch(run_id) as watcher:
            if is_slow:
                await anyio.sleep_forever()
            await self._read(watcher)

    async def _read(self, watcher: Watcher) -> None:
        while (told := await watcher.next(seconds=15)) is not None:
            now = time.perf_counter()
            for each in told:
                self.delays.append(now - self.written[each.record.run_id, each.record.seq])
                self.got += 1

    async def _write_all(self) -> None:
        """All runs at once, 20 events a second each."""
        for number in range(1, EVENTS + 1):
            for run_id in self.ids:
                record = build_event(run_id, number)
                with (self.runtime.folder(run_id) / FILE_NAME).open("ab") as log:
                    log.write(render_record(record) + b"\n")
                self.written[run_id, number] = time.perf_counter()
                self.feed.write(record)
            await anyio.sleep(0.05)


def build_event(run_id: str, number: int) -> EventRecord:
    """One that is read and shown, and that no page waits for."""
    return EventRecord(
        run_id=run_id,
        trace_id="0" * 32,
        span_id="0" * 16,
        timestamp=datetime.now(UTC),
        seq=number,
        event_type=PromptLayerCut.event_type,
        payload=PromptLayerCut(layer="project", source="AGENTS.md", left_out_characters=number),
        entry=0,
    )
