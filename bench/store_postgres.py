"""Cost of the PostgreSQL store: an append against the minimum for a program on the same server."""

import os
import statistics
import time
from datetime import UTC, datetime

import anyio
import psycopg

from bench.table import Row
from metier.store.base import RunRow, StoredEntry
from metier.store.contexts import ContextChange, ContextState
from metier.store.postgres.database import read_address
from metier.store.postgres.store import PostgresStore, open_postgres_store
from services.postgres_server import find_binaries, run_server

DATA = os.urandom(750).hex().encode()
"""1,500 bytes, a usual entry."""
COMMITS = 1000


def rows() -> list[Row]:
    binaries = find_binaries()
    if binaries is None:
        return [Row("journal append on PostgreSQL", "not measured: no server here", ">= 0.60", holds=False)]
    with run_server(binaries, is_synced=True) as server:
        return anyio.run(_measure, server.url())


async def _measure(url: str) -> list[Row]:
    store = await open_postgres_store(read_address("URL", {"URL": url}))
    async with await psycopg.AsyncConnection.connect(url) as bare:
        await bare.execute("CREATE TABLE bare (run_id TEXT, seq BIGINT, data BYTEA, PRIMARY KEY (run_id, seq))")
        await bare.execute("CREATE TABLE bare_state (run_id TEXT PRIMARY KEY, version BIGINT)")
        await bare.execute("INSERT INTO bare_state VALUES ('r1', 0)")
        await bare.commit()
        mine, theirs, states = await _race(store, bare)
    await store.close()
    ratio, state_ratio = theirs / mine, theirs / states
    return [
        Row(
            "PostgreSQL: append, rate against a bare insert and CAS update",
            f"{ratio:.2f} ({mine * 1e6:,.0f} µs)",
            ">= 0.60",
            ratio >= 0.6,
        ),
        Row(
            "PostgreSQL: state replaced, rate against the same",
            f"{state_ratio:.2f} ({states * 1e6:,.0f} µs)",
            ">= 0.60",
            state_ratio >= 0.6,
        ),
    ]


async def _race(store: PostgresStore, bare: psycopg.AsyncConnection) -> tuple[float, float, float]:
    """Seconds a commit of the three, in turns, so that what else the machine does hits all."""
    now = datetime.now(UTC)
    await store.create_run(
        RunRow(run_id="r1", context_id="c1", status="pending", task="tidy", created_at=now, updated_at=now)
    )
    lease = await store.take_lease("r1", owner="bench", seconds=600)
    state = await store.contexts.commit("c1", ContextChange(state=ContextState(context_id="c1")))
    mine, theirs, states = list[float](), list[float](), list[float]()
    for seq in range(1, COMMITS + 1):
        begun = time.perf_counter()
        await store.append(lease, seq, [StoredEntry(seq, "note", DATA)])
        mine.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        async with bare.transaction():
            await bare.execute("INSERT INTO bare VALUES ('r1', %s, %s)", (seq, DATA))
            await bare.execute(
                "UPDATE bare_state SET version = %s WHERE run_id = 'r1' AND version = %s", (seq, seq - 1)
            )
        theirs.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        state = await store.contexts.commit("c1", ContextChange(state=state))
        states.append(time.perf_counter() - begun)
    return statistics.median(mine), statistics.median(theirs), statistics.median(states)
