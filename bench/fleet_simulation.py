"""Size of a fleet for a number of runs per day: a simulation with measured times, checked against real workers."""

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import psycopg

from bench.fleet_model import Fleet, Load, Outcome, ServiceTimes, simulate
from bench.table import Row
from metier.runtime.queue.detached import submit
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import WorkerOptions
from services.postgres_server import PostgresServer, find_binaries, run_server
from services.worker_load import Crew, build_host
from services.worker_load import Load as RunLoad

STEPS = 10
REPLY, TOOL = 0.05, 0.005
"""Of the model and of the effect in the check against real workers."""
RUNS = 16
PEAK = 3.0
"""The busiest minute of a day beside its average."""
MAX_BUSY = 0.6
"""Of cores and of the log at the peak: beyond it queues grow quickly, and a lost zone has no room."""
DATABASE_CORES = 16
FLUSH = 0.0005
"""Of a disk for databases; the one measured here is shared with everything else."""
RUNS_OF_A_WORKER = 1000
"""That one process drives at once at most: half of what `bench/many_runs.py` holds."""
CORE_HOUR_USD, GIGABYTE_MONTH_USD = 0.04, 0.10
KEPT_DAYS = 30
LOOKED_AT = 90.0
"""Simulated seconds at the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    runs_per_day: int
    databases: int
    worker_cores: int
    flushes: float
    """Writes of the log a second, for each database at the peak."""
    at_once: int
    gigabytes_per_day: float
    usd_per_day: float
    peak: Outcome
    """Of one database and its workers."""
    lost: Outcome


def rows() -> list[Row]:
    predicted, measured = anyio.run(_check_against_workers)
    error = abs(predicted / measured - 1)
    checked = Row(
        "two workers, simulated against measured",
        f"{error:.0%} ({predicted:.2f} s, {measured:.2f} s)",
        "<= 15 %",
        error <= 0.15,
    )
    binaries = find_binaries()
    if binaries is None:
        return [checked, Row("a fleet for 10 M runs a day", "not measured: no server here", "", holds=False)]
    with run_server(binaries, is_synced=True) as server:
        times = anyio.run(_measure_services, server)
    return [
        checked,
        *_describe_times(times),
        *(row for count in (10**6, 10**7) for row in _describe(size(count, times))),
    ]


def size(runs_per_day: int, times: ServiceTimes) -> Sizing:
    """Enough databases and cores that neither is busier than `MAX_BUSY` at the peak; then that is simulated."""
    turns = STEPS + 1
    per_second = runs_per_day / 86400 * PEAK
    commits = per_second * (times.run_commits + turns * times.turn_commits)
    databases = math.ceil(commits * times.commit_cpu / (DATABASE_CORES * MAX_BUSY))
    cpu = per_second * (times.run_cpu + turns * times.turn_cpu)
    cores = math.ceil(cpu / MAX_BUSY / databases / 3) * 3  # three zones
    fleet = Fleet(workers=cores, concurrency=RUNS_OF_A_WORKER, database_cores=DATABASE_CORES)
    load = Load(runs_per_second=per_second / databases, turns=turns, seconds=LOOKED_AT)
    peak = simulate(fleet, times, load)
    lost = simulate(fleet, times, Load(runs_per_second=load.runs_per_second, turns=turns, seconds=180, lost_at=60))
    gigabytes = runs_per_day * times.log_bytes / 1e9
    all_cores = databases * (cores + DATABASE_CORES)
    usd = all_cores * 24 * CORE_HOUR_USD + gigabytes * KEPT_DAYS * GIGABYTE_MONTH_USD / 30
    return Sizing(
        runs_per_day=runs_per_day,
        databases=databases,
        worker_cores=cores * databases,
        flushes=peak.flushes / load.seconds,
        at_once=peak.most_at_once * databases,
        gigabytes_per_day=gigabytes,
        usd_per_day=usd,
        peak=peak,
        lost=lost,
    )


def _describe_times(times: ServiceTimes) -> list[Row]:
    return [
        Row("worker CPU for a run, and for each of its turns",
            f"{times.run_cpu * 1000:.1f} ms, {times.turn_cpu * 1000:.1f} ms", "", holds=True),
        Row("commits for a run, and for each of its turns",
            f"{times.run_commits:.1f}, {times.turn_commits:.1f}", "", holds=True),
        Row("database CPU for a commit; log for a run",
            f"{times.commit_cpu * 1e6:.0f} µs; {times.log_bytes / 1000:.0f} kB", "", holds=True),
    ]  # fmt: skip


def _describe(sizing: Sizing) -> list[Row]:
    name = f"{sizing.runs_per_day // 10**6} M runs a day"
    waits = sizing.peak.wait(0.99)
    recovery = sizing.lost.recovered_at - 60
    busy = (sizing.peak.database_cpu / DATABASE_CORES, sizing.peak.worker_cpu / sizing.worker_cores * sizing.databases)
    return [
        Row(f"{name}: databases, worker cores", f"{sizing.databases}, {sizing.worker_cores}", "", holds=True),
        Row(f"{name}: runs at once at the peak", f"{sizing.at_once:,}", "", holds=True),
        Row(f"{name}: busy cores of databases, of workers",
            ", ".join(f"{share / LOOKED_AT:.0%}" for share in busy), "<= 70 %", max(busy) / LOOKED_AT <= 0.7),
        Row(f"{name}: log writes a second of each database, commits in one",
            f"{sizing.flushes:,.0f}, {sizing.peak.commits / sizing.peak.flushes:.1f}", "", holds=True),
        Row(f"{name}: log a day, cost a day",
            f"{sizing.gigabytes_per_day:,.0f} GB, {sizing.usd_per_day:,.0f} USD", "", holds=True),
        Row(f"{name}: 99 % wait for a worker, deepest queue",
            f"{waits:.2f} s, {sizing.peak.deepest_queue}", "<= 5 s", waits <= 5),
        Row(f"{name}: a zone is lost, queue empty again", f"{recovery:.0f} s", "<= 60 s", 0 < recovery <= 60),
    ]  # fmt: skip


async def _measure_services(server: PostgresServer) -> ServiceTimes:
    """Two lengths of runs on PostgreSQL, in this process: what they differ in is the cost of a turn."""
    short, long = await _drive(server, "short", 1), await _drive(server, "long", STEPS)
    turns = STEPS - 1
    step = tuple((more - less) / turns for less, more in zip(short, long, strict=True))
    return ServiceTimes(
        run_cpu=max(0.0, short[0] - 2 * step[0]),  # a run of one step has two turns
        turn_cpu=step[0],
        run_commits=max(0.0, short[1] - 2 * step[1]),
        turn_commits=step[1],
        commit_cpu=long[2] / long[1],
        flush=FLUSH,
        tool=0.0,
        log_bytes=long[3],
    )


async def _drive(server: PostgresServer, name: str, steps: int) -> tuple[float, float, float, float]:
    """Worker CPU, commits, CPU of the server and bytes of its log for one run."""
    url = server.url(name) if name in await _create(server, name) else server.url()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        load = RunLoad(folder=folder, steps=steps, reply_seconds=0, database_url=url)
        async with open_runtime(build_host(load)) as runtime:
            await _start(runtime, 3)
        before, bytes_before = await _read_server(url)
        cpu_before = _server_cpu(server)
        async with open_runtime(build_host(load)) as runtime:
            began = time.process_time()
            await _start(runtime, RUNS)
            cpu = time.process_time() - began
        await anyio.sleep(1.5)  # the server counts a connection's commits when it is closed
        after, bytes_after = await _read_server(url)
        server_cpu = _server_cpu(server) - cpu_before
    return cpu / RUNS, (after - before) / RUNS, server_cpu / RUNS, (bytes_after - bytes_before) / RUNS


async def _create(server: PostgresServer, name: str) -> set[str]:
    async with await psycopg.AsyncConnection.connect(server.url(), autocommit=True) as connection:
        await connection.execute(f"CREATE DATABASE {name}".encode())
    return {name}


async def _start(runtime: Runtime, count: int) -> None:
    for _ in range(count):
        state = await runtime.start(RunRequest(task="go"))
        assert state.status == "completed", state.failure


async def _read_server(url: str) -> tuple[float, float]:
    """Commits of the database and bytes of the log so far."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(
            "SELECT xact_commit, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8"
            " FROM pg_stat_database WHERE datname = current_database()"
        )
        row = await cursor.fetchone()
    assert row is not None
    return float(row[0]), float(row[1])


def _server_cpu(server: PostgresServer) -> float:
    """Of the server with those of its processes that have ended."""
    assert server.process is not None
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


async def _check_against_workers() -> tuple[float, float]:
    """Seconds that two workers take for 16 runs, simulated from what one run at a time takes, and measured."""
    before = await _work(workers=1, concurrency=1, runs=4)
    measured = await _work(workers=2, concurrency=2, runs=RUNS)
    after = await _work(workers=1, concurrency=1, runs=4)
    wall = statistics.mean((before, after)) / 4
    # What is neither model nor effect keeps the worker from its other runs: it computes, or it syncs on the spot.
    busy = (wall - (STEPS + 1) * REPLY - STEPS * TOOL) / (STEPS + 1)
    times = ServiceTimes(
        run_cpu=0.0, turn_cpu=max(0.0, busy), run_commits=0, turn_commits=0, commit_cpu=0.0, flush=0.0, tool=TOOL
    )
    fleet = Fleet(workers=2, concurrency=2, database_cores=1)
    constant: Callable[[object], float] = lambda _chance: REPLY  # noqa: E731
    return simulate(fleet, times, Load(at_once=RUNS, turns=STEPS + 1, latency=constant)).ended_at, measured


async def _work(*, workers: int, concurrency: int, runs: int) -> float:
    """Seconds of real workers, from the first run that is taken to the last that ends."""
    options = WorkerOptions(concurrency=concurrency, turns_per_task=100)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, Crew() as crew:
        load = RunLoad(folder=folder, steps=STEPS, reply_seconds=REPLY, worker=options)
        async with open_runtime(build_host(load)) as runtime:
            for _ in range(runs):
                await submit(runtime, RunRequest(task="go"), queue=options.queue)
            for _ in range(workers):
                crew.start(load)
            while not any(row.driver for row in await runtime.store.list_runs(limit=runs)):  # noqa: ASYNC110
                await anyio.sleep(0.005)
            began = time.perf_counter()
            while len(await runtime.store.list_runs(status="completed", limit=runs)) < runs:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            return time.perf_counter() - began
