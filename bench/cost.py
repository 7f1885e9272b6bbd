"""The cost page at 100,000 runs: the sums that it reads, on both databases, in milliseconds."""

import sqlite3
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import psycopg

from bench.table import Row
from metier.store.base import Store
from metier.store.postgres.database import read_address
from metier.store.postgres.store import open_postgres_store
from metier.store.sqlite.store import open_sqlite_store
from metier.store.usage import DIMENSIONS, Amounts, TotalKey, UsageRow, build_span, compute_totals
from services.postgres_server import find_binaries, run_server

RUNS = 100_000
MAX_MILLISECONDS = 100
_REPEATS = 5
_CALL = Amounts(calls=4, input_tokens=4_000, cached_tokens=1_000, output_tokens=400, cost_usd=0.01)
_RUN_COLUMNS = (
    "run_id, context_id, status, task, agent, model, parent_run_id, created_at, updated_at, turns, cost_usd, reason,"
    " queue, has_usage"
)


def rows() -> list[Row]:
    measured = [_build_row("SQLite", anyio.run(_measure_sqlite))]
    binaries = find_binaries()
    if binaries is None:
        return [*measured, Row("PostgreSQL: cost page", "not measured: no server here", "", holds=False)]
    with run_server(binaries, is_synced=False) as server:
        return [*measured, _build_row("PostgreSQL", anyio.run(_measure_postgres, server.url()))]


def _build_row(database: str, milliseconds: float) -> Row:
    name = f"{database}: slowest cost page at {RUNS:,} runs in four weeks"
    return Row(name, f"{milliseconds:.0f} ms", f"<= {MAX_MILLISECONDS} ms", milliseconds <= MAX_MILLISECONDS)


async def _measure_sqlite() -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        await (await open_sqlite_store(path)).close()
        with sqlite3.connect(path) as connection:
            connection.executemany(
                f"INSERT INTO runs ({_RUN_COLUMNS})"
                " VALUES (?, '', 'completed', ?, ?, 'a', '', ?, ?, 4, 0.01, '', '', 1)",
                ((*row[:3], row[3].isoformat(), row[3].isoformat()) for row in _list_runs()),
            )
            connection.executemany("INSERT INTO usage_totals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", _list_totals())
        connection.close()
        return await _measure(await open_sqlite_store(path))


async def _measure_postgres(url: str) -> float:
    store = await open_postgres_store(read_address("URL", {"URL": url}))
    async with await psycopg.AsyncConnection.connect(url) as connection, connection.cursor() as cursor:
        async with cursor.copy(f"COPY agent_runs ({_RUN_COLUMNS}) FROM STDIN") as copy:
            for run_id, task, agent, at in _list_runs():
                await copy.write_row((run_id, "", "completed", task, agent, "a", "", at, at, 4, 0.01, "", "", True))
        async with cursor.copy("COPY agent_usage_totals FROM STDIN") as copy:
            for row in _list_totals():
                await copy.write_row(row)
        await connection.commit()
        await connection.set_autocommit(True)
        await connection.execute("ANALYZE")
    return await _measure(store)


async def _measure(store: Store) -> float:
    """The slowest grouping, each as the best of several: the sums of the page, its chart and its counts of runs."""
    since = _get_start()
    span = build_span(since, now=since + timedelta(weeks=4))
    slowest = 0.0
    for dimension in DIMENSIONS:
        best = float("inf")
        for _ in range(_REPEATS):
            began = time.perf_counter()
            await store.usage.sum_by("day", span)
            totals = await store.usage.sum_by(dimension, span)
            await store.usage.sum_by_day(dimension, span, names=[total.name for total in totals[:8]])
            await store.usage.count_created(since=since)
            await store.usage.count_unrecorded()
            best = min(best, time.perf_counter() - began)
        slowest = max(slowest, best)
    await store.close()
    return slowest * 1000


def _get_start() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


def _list_runs() -> Iterator[tuple[str, str, str, datetime]]:
    """ID, task, agent and time of runs compute_totals over four weeks; 300 tasks that come again and again."""
    for number in range(RUNS):
        at = _get_start() + timedelta(weeks=4) * (number / RUNS)
        yield f"{at:%Y%m%d-%H%M%S}-{number:012x}", f"Do task {number % 300}", f"agent-{number % 7}", at


def _list_totals() -> Iterator[tuple[object, ...]]:
    totals: dict[TotalKey, Amounts] = {}
    for number, (_, task, agent, at) in enumerate(_list_runs()):
        row = UsageRow(f"{at:%Y-%m-%dT%H}", f"openai/model-{number % 5}", f"skill-{number % 40}", _CALL)
        for key, amounts in compute_totals([row], agent=agent, task=task).items():
            totals[key] = totals.get(key, Amounts()).plus(amounts)
    return ((*key, *amounts) for key, amounts in totals.items())
