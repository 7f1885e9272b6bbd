"""Cost of the run store: appends against a bare insert of the same size, and reading a long journal."""

import os
import sqlite3
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import anyio

from bench.table import Row
from metier.store.base import Lease, StoredEntry
from metier.store.sqlite.store import SqliteStore, open_sqlite_store
from metier.testing.store_case import build_run

DATA = os.urandom(750).hex().encode()
"""1,500 bytes, a usual entry."""
SYNCED = 500
QUICK = 3_000
LONG = 10_000


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # a real disk; the system's folder may be memory
        return anyio.run(_measure, Path(folder))


async def _measure(folder: Path) -> list[Row]:
    store = await open_sqlite_store(folder / "state.db")
    bare = _open_bare(folder / "bare.db")
    ratio, micros = await _synced(store, bare)
    quick, bare_quick = await _quick(store, bare)
    shared = await _synced_at_once(store)
    load = await _read(store)
    stall = await _stall(store)
    await store.close()
    bare.close()
    return [
        Row(
            "journal append FULL, rate against a bare insert",
            f"{ratio:.2f} ({micros:,.0f} µs)",
            ">= 0.80",
            ratio >= 0.8,
        ),
        Row(
            "100 runs append FULL at once, against one after the other",
            f"{shared / (100 * micros / 1e6):.2f} ({shared * 1000:.0f} ms)",
            "<= 1.00",
            shared <= 100 * micros / 1e6,
        ),
        Row("journal append NORMAL, median", f"{quick:.0f} µs (bare {bare_quick:.0f} µs)", "<= 150 µs", quick <= 150),
        Row("read of a journal of 10,000 entries", f"{load * 1000:.0f} ms", "<= 150 ms", load <= 0.15),
        Row(
            "longest stall of the event loop while 100 MB are put", f"{stall * 1000:.0f} ms", "<= 50 ms", stall <= 0.05
        ),
    ]


def _open_bare(path: Path) -> sqlite3.Connection:
    """The least a program would write by itself: one table, the same mode, one transaction an entry."""
    bare = sqlite3.connect(path, isolation_level=None)
    bare.execute("PRAGMA journal_mode=WAL")
    bare.execute("CREATE TABLE journal (run_id TEXT, seq INTEGER, kind TEXT, data BLOB, PRIMARY KEY (run_id, seq))")
    return bare


def _insert(bare: sqlite3.Connection, seq: int) -> None:
    bare.execute("BEGIN IMMEDIATE")
    bare.execute("INSERT INTO journal VALUES (?, ?, ?, ?)", ("20261101-120000-abcdef", seq, "note", DATA))
    bare.execute("COMMIT")


async def _synced(store: SqliteStore, bare: sqlite3.Connection) -> tuple[float, float]:
    """In pairs, each first half the time, so that both meet the same disk. Returns the ratio of the rates, and ours."""
    await store.create_run(build_run("full"))
    lease = await store.take_lease("full", owner="bench", seconds=600)
    bare.execute("PRAGMA synchronous=FULL")
    ours: list[float] = []
    theirs: list[float] = []
    for seq in range(1, SYNCED + 1):
        if seq % 2:
            theirs.append(_seconds(partial(_insert, bare, seq)))
        started = time.perf_counter()
        await store.append(lease, seq, [StoredEntry(seq, "note", DATA)])
        ours.append(time.perf_counter() - started)
        if not seq % 2:
            theirs.append(_seconds(partial(_insert, bare, seq)))
    ratio = statistics.median(their / our for their, our in zip(theirs, ours, strict=True))
    return ratio, statistics.median(ours) * 1e6


async def _synced_at_once(store: SqliteStore) -> float:
    """Seconds for 100 runs that each sync one entry: they share syncs."""
    leases: list[Lease] = []
    for number in range(100):
        await store.create_run(build_run(f"at-once-{number}"))
        leases.append(await store.take_lease(f"at-once-{number}", owner="bench", seconds=600))
    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for lease in leases:
            tasks.start_soon(store.append, lease, 1, [StoredEntry(1, "note", DATA)])
    return time.perf_counter() - started


async def _quick(store: SqliteStore, bare: sqlite3.Connection) -> tuple[float, float]:
    await store.create_run(build_run("normal"))
    lease = await store.take_lease("normal", owner="bench", seconds=600)
    bare.execute("PRAGMA synchronous=NORMAL")
    ours: list[float] = []
    theirs: list[float] = []
    for seq in range(1, QUICK + 1):
        started = time.perf_counter()
        await store.append(lease, seq, [StoredEntry(seq, "note", DATA)], durable=False)
        ours.append(time.perf_counter() - started)
        theirs.append(_seconds(partial(_insert, bare, SYNCED + seq)))
    return statistics.median(ours) * 1e6, statistics.median(theirs) * 1e6


async def _read(store: SqliteStore) -> float:
    await store.create_run(build_run("long"))
    lease = await store.take_lease("long", owner="bench", seconds=600)
    entries = [StoredEntry(seq, "note", DATA) for seq in range(1, LONG + 1)]
    await store.append(lease, 1, entries, durable=False)
    best = 60.0
    for _ in range(3):
        started = time.perf_counter()
        assert len(await store.read_journal("long")) == LONG
        best = min(best, time.perf_counter() - started)
    return best


async def _stall(store: SqliteStore) -> float:
    """A large blob goes in and comes out while another task only wants its turn."""
    data = os.urandom(100_000_000)
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            started = time.perf_counter()
            await anyio.sleep(0.001)
            longest = max(longest, time.perf_counter() - started - 0.001)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        digest = await store.put_blob(data)
        assert len(await store.get_blob(digest)) == len(data)
        tasks.cancel_scope.cancel()
    return longest


def _seconds(work: partial[None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
