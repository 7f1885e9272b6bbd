"""A store with 1.1 million runs: lists beside those of a store with 1,000, and deleting 100,000 old runs."""

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from bench.table import Row
from metier.store.sqlite.store import SqliteStore, open_sqlite_store

FEW, MANY, OLD = 1_000, 1_100_000, 100_000
ENTRIES, ENTRY_BYTES = 20, 300
_ROUNDS = 200

type Read = Callable[[SqliteStore], Awaitable[object]]

READS: dict[str, Read] = {
    "runs list": lambda store: store.list_runs(limit=20),
    "runs list --status failed": lambda store: store.list_runs(status="failed", limit=20),
    "runs list --status paused": lambda store: store.list_runs(status="paused", limit=20),
    "runs of a context": lambda store: store.list_runs(context_id="c7", limit=20),
    "run by the beginning of its id": lambda store: store.list_runs(prefix="20261101-0000007", limit=2),
    "runs to claim": lambda store: store.list_stale(queue="agent", limit=20),
    "approvals list": lambda store: store.list_approvals(status="open", limit=20),
    "approval by id": lambda store: store.find_approvals("a-0000500"),
}


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        few, many = folder / "few" / "runs" / "state.db", folder / "many" / "runs" / "state.db"
        for path, count, old in ((few, FEW, 100), (many, MANY, OLD)):
            anyio.run(_fill, path, count, old)
        compared = anyio.run(_compare_reads, few, many)
        return [*compared, *_measure_gc(many, folder / "bare.db")]


async def _fill(path: Path, count: int, old: int) -> None:
    """Runs that ended, the first `old` of them long ago and with journals; a few that wait, are paused, or failed."""
    await (await open_sqlite_store(path)).close()
    with sqlite3.connect(path) as connection:
        fill(connection, count, old)
    connection.close()


def fill(connection: sqlite3.Connection, count: int, old: int) -> None:
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?)"
        " INSERT INTO runs (run_id, context_id, status, task, agent, model, parent_run_id, created_at, updated_at,"
        " turns, cost_usd, reason, queue) SELECT printf('20261101-%07d-00', i), printf('c%d', i / 10),"
        " CASE WHEN i < ? THEN 'completed' WHEN i % 40 = 20 THEN 'failed' WHEN i > ? - 50 AND i % 2 THEN 'paused'"
        " WHEN i > ? - 50 THEN 'pending' ELSE 'completed' END, 'tidy the notes', '', 'model', '',"
        " '2020-01-01T00:00:00.000000+00:00', CASE WHEN i < ? THEN printf('2020-01-01T00:00:00.%06d+00:00', i)"
        " ELSE '2099-01-01T00:00:00.000000+00:00' END, 3, 0.01, '', 'agent' FROM n",
        (count, old, count, count, old),
    )
    connection.execute(
        f"WITH RECURSIVE s(seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM s WHERE seq < {ENTRIES})"
        " INSERT INTO journal (run_id, seq, kind, data, checksum)"
        f" SELECT run_id, seq, 'note', zeroblob({ENTRY_BYTES}), 0 FROM runs CROSS JOIN s WHERE number <= ?",
        (old,),
    )
    connection.execute(
        "INSERT INTO approvals (approval_id, run_id, step_id, payload, created_at, status, decided_by, reason)"
        " SELECT printf('a-%07d', number), run_id, 's1', x'7b7d', created_at,"
        " CASE WHEN number > ? - 20 THEN 'open' ELSE 'approved' END, 'ann', '' FROM runs WHERE number % 2 = 0",
        (count,),
    )


async def _compare_reads(few: Path, many: Path) -> list[Row]:
    small, large = await open_sqlite_store(few), await open_sqlite_store(many)
    compared: list[Row] = []
    for name, read in READS.items():
        least = [float("inf"), float("inf")]
        for _ in range(_ROUNDS):  # in turns, so that what else the machine does hits both
            for number, store in enumerate((small, large)):
                began = time.process_time()
                await read(store)
                least[number] = min(least[number], time.process_time() - began)
        ratio = least[1] / least[0]
        value = f"{ratio:.2f} ({least[1] * 1e6:.0f} µs)"
        compared.append(Row(f"{name}, 1.1 M runs against 1,000", value, "<= 1.30", ratio <= 1.3))
    await small.close()
    await large.close()
    return compared


def _measure_gc(path: Path, bare: Path) -> list[Row]:
    for number in range(OLD):
        folder = path.parent / f"20261101-{number:07}-00"
        folder.mkdir()
        (folder / "events.jsonl").write_bytes(b"{}\n")
    least = _delete_bare(bare)
    process = subprocess.Popen(
        [Path(sys.executable).parent / "agent", "runs", "gc", "--older-than", "30", "--json"],
        cwd=path.parents[1], env={**os.environ, "AGENT_TRUST": "all"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, megabytes = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    with sqlite3.connect(path) as connection:
        (left,) = connection.execute("SELECT count(*) FROM runs").fetchone()
    connection.close()
    is_done = process.returncode == 0 and left == MANY - OLD and not (path.parent / "20261101-0000000-00").exists()
    return [
        Row(
            "runs gc of 100,000 among 1.1 M, CPU",
            f"{seconds:.1f} s (bare SQL {least:.1f} s)",
            "<= 60 s",
            is_done and seconds <= 60,
        ),
        Row("runs gc of 100,000 among 1.1 M, memory", f"{megabytes:.0f} MB", "<= 150 MB", megabytes <= 150),
    ]


def _delete_bare(path: Path) -> float:
    """CPU seconds of the least a program would do by itself: the same rows, one statement a table, no folders."""
    anyio.run(_fill, path, OLD, OLD)
    with sqlite3.connect(path) as connection:
        began = time.process_time()
        for table in ("journal", "approvals", "runs"):
            connection.execute(f"DELETE FROM {table} WHERE run_id IN (SELECT run_id FROM runs)")
        connection.commit()
        seconds = time.process_time() - began
    connection.close()
    return seconds
