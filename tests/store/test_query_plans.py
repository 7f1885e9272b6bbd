"""Lists, claims and deletions use indexes on both stores for any number of runs."""

import json
import re
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import TupleRow

from metier.store.base import RunSearch, Store
from metier.store.postgres.database import Address, PostgresSession, read_address
from metier.store.postgres.store import open_postgres_store
from metier.store.queries import approvals, journal, leases, run_index
from metier.store.sqlite.store import open_sqlite_store
from metier.testing.fake_machine import FakeMachine
from metier.testing.store_case import build_entries, build_run

pytestmark = pytest.mark.anyio

RUNS = 20_000
LATER = datetime(2027, 1, 1, tzinfo=UTC)

READS: Mapping[str, Callable[[Store], Awaitable[object]]] = {
    "all": lambda store: store.list_runs(),
    "a page": lambda store: store.list_runs(before=5000),
    "status": lambda store: store.list_runs(status="failed"),
    "status, a page": lambda store: store.list_runs(status="completed", before=5000),
    "status that no run has": lambda store: store.list_runs(status="timeout"),
    "context": lambda store: store.list_runs(context_id="c77"),
    "prefix": lambda store: store.list_runs(prefix="2026", limit=2),
    "queue": lambda store: store.list_runs(queue="agent", status="paused"),
    "one": lambda store: store.find_run("20261101-000077"),
    "stale": lambda store: store.list_stale(queue="agent"),
    "ended": lambda store: store.list_ended(updated_before=LATER),
    "open approvals": lambda store: store.list_approvals(status="open"),
    "approvals of a run": lambda store: store.list_approvals(run_id="20261101-000077", status="open"),
    "approval by id": lambda store: store.find_approvals("a-77"),
    "claim": lambda store: store.claim_run(queue="agent", owner="w", seconds=5),
}


FUNCTIONS = {"time_from_now": 1, "uptime_from_now": 1, "lease_seconds_left": 2, "lease_is_over": 4}


class Recording(sqlite3.Connection):
    """A connection that records every query with its values."""

    seen: list[tuple[str, Sequence[Any]]] = []  # noqa: RUF012 (one list for all connections of a store)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if re.match(r"SELECT|DELETE", sql) and " FROM " in sql:
            self.seen.append((sql, parameters))
        return super().execute(sql, parameters)


def fill_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?)"
            " INSERT INTO runs (run_id, context_id, status, task, agent, model, parent_run_id, created_at, updated_at,"
            " turns, cost_usd, reason, queue) SELECT printf('20261101-%06d', i), printf('c%d', i / 3),"
            " CASE WHEN i % 500 = 0 THEN 'pending' WHEN i % 500 = 1 THEN 'paused' WHEN i % 50 = 2 THEN 'failed'"
            " ELSE 'completed' END, 't', '', '', '', '2026-11-01T00:00:00.000000+00:00',"
            " printf('2026-11-01T%02d:00:00.000000+00:00', i % 24), 1, 0, '',"
            " CASE i % 2 WHEN 0 THEN 'agent' ELSE '' END FROM n",
            (RUNS,),
        )
        connection.execute(
            "INSERT INTO approvals (approval_id, run_id, step_id, payload, created_at, status, decided_by, reason)"
            " SELECT printf('a-%d', number), run_id, 's1', x'7b7d', created_at,"
            " CASE WHEN number % 1000 = 0 THEN 'open' ELSE 'approved' END, '', '' FROM runs"
        )
        connection.execute(
            "INSERT INTO leases (run_id, owner, token, since, boot_id, until, process)"
            " SELECT run_id, '', 0, '', '', 0.0, '' FROM runs"
        )
    connection.close()


async def test_every_read_of_sqlite_uses_an_index(tmp_path: Path, machine: FakeMachine) -> None:
    path = tmp_path / "state.db"
    store = await open_sqlite_store(path, clock=machine, machine=machine, connection_class=Recording)
    fill_sqlite(path)
    walks: dict[str, list[str]] = {}

    with sqlite3.connect(path) as connection:
        for name, count in FUNCTIONS.items():  # a plan needs them to exist
            connection.create_function(name, count, lambda *_: None)
        for name, read in READS.items():
            Recording.seen.clear()
            await read(store)
            assert Recording.seen, name
            walks[name] = _find_walks(connection, Recording.seen)
        Recording.seen.clear()
        await store.delete_runs(["20261101-000003", "20261101-000004"])
        walks["delete"] = _find_walks(connection, Recording.seen)
    connection.close()
    await store.close()

    # The newest runs first is the order of the table itself: a scan that stops at the limit.
    assert walks.pop("all") == ["SCAN run"]
    assert {name: steps for name, steps in walks.items() if steps} == {}


def _find_walks(connection: sqlite3.Connection, queries: list[tuple[str, Sequence[Any]]]) -> list[str]:
    """Return plan steps that read a full table or sort results."""
    steps = [
        str(step[3])
        for sql, values in queries
        for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)
        if "fencing" not in sql
    ]
    return [
        step for step in steps if re.match(r"SCAN (?!wanted|json_each)|USE TEMP B-TREE", step) and "INDEX" not in step
    ]


FILL_POSTGRES = """
INSERT INTO agent_runs (run_id, context_id, status, task, agent, model, parent_run_id, created_at, updated_at, turns,
 cost_usd, reason, queue) SELECT '20261101-' || lpad(i::text, 6, '0'), 'c' || i / 3,
 CASE WHEN i %% 500 = 0 THEN 'pending' WHEN i %% 500 = 1 THEN 'paused' WHEN i %% 50 = 2 THEN 'failed'
 ELSE 'completed' END,
 't', '', '', '', '2026-11-01', '2026-11-01'::timestamptz + make_interval(secs => i), 1, 0, '',
 CASE i %% 2 WHEN 0 THEN 'agent' ELSE '' END FROM generate_series(0, %s - 1) AS i;
"""


class RecordingConnection(psycopg.AsyncConnection[TupleRow]):
    """A connection that records the plan of every query."""

    plans: list[str]

    async def execute(self, query: Any, params: Any = None, **options: Any) -> psycopg.AsyncCursor[TupleRow]:
        cursor = await super().execute(b"EXPLAIN (FORMAT JSON) " + query, params)
        row = await cursor.fetchone()
        assert row is not None
        self.plans.append(json.dumps(row[0]))
        return await super().execute(query, params, **options)


async def _fill_postgres(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(FILL_POSTGRES, (RUNS,))
        await connection.execute(
            "INSERT INTO agent_leases (run_id, owner, token, boot_id, process) "
            " SELECT run_id, '', 0, '', '' FROM agent_runs"
        )
        await connection.execute(
            "INSERT INTO agent_approvals (approval_id, run_id, step_id, payload, created_at, status, decided_by,"
            " reason) SELECT 'a-' || number, run_id, 's1', '', now(),"
            " CASE number % 1000 WHEN 0 THEN 'open' ELSE 'approved' END, '', '' FROM agent_runs"
        )
        await connection.execute("VACUUM ANALYZE")


async def test_every_read_of_postgres_uses_an_index(
    postgres_address: Address, postgres_url: str, machine: FakeMachine
) -> None:
    await (await open_postgres_store(postgres_address)).close()
    await _fill_postgres(postgres_url)
    connection = await RecordingConnection.connect(postgres_url, autocommit=True)
    connection.plans = []

    db = PostgresSession(connection)
    filters: tuple[run_index.Conditions, ...] = (
        {},
        {"number < ?": 5000},
        {"status = ?": "failed"},
        {"status = ?": "timeout"},
        {"status = ?": "completed", "number < ?": 5000},
        {"context_id = ?": "c77"},
        {"run.run_id >= ?": "2026", "run.run_id < ?": "2026\U0010ffff"},
        {"queue = ?": "agent", "status = ?": "paused"},
        {"run.run_id = ?": "20261101-000077"},
    )
    for where in filters:
        await run_index.list_runs(db, where, limit=20, machine=machine)
    await run_index.list_stale(db, queue="agent", limit=20, machine=machine)
    await approvals.list_approvals(db, {"status = ?": "open"}, limit=20)
    prefix: run_index.Conditions = {'approval_id COLLATE "C" >= ?': "a-77", 'approval_id COLLATE "C" < ?': "a-78"}
    await approvals.list_approvals(db, prefix, order='approval_id COLLATE "C"', limit=2)
    await leases.claim(db, queue="agent", owner="w", seconds=5, machine=machine)
    ended = run_index.EndedRuns(updated_before=LATER, after=None, number_below=0, limit=20)
    page = await run_index.list_ended(db, ended, machine=machine)
    ended = run_index.EndedRuns(updated_before=LATER + timedelta(days=1), after=page[-1], number_below=9000, limit=20)
    await run_index.list_ended(db, ended, machine=machine)
    await run_index.delete_runs(db, [row.run_id for row in page], machine=machine)
    await connection.close()

    assert len(page) == 20
    walked = [
        plan for plan in connection.plans if re.search(r'"Seq Scan".{0,200}"agent_(runs|leases|approvals)"', plan)
    ]
    assert walked == []
    assert [plan for plan in connection.plans if '"Sort"' in plan and "agent_leases" not in plan] == []


async def test_a_journal_is_read_and_deleted_by_the_index_of_its_day(
    postgres_address: Address, postgres_url: str, machine: FakeMachine
) -> None:
    store = await open_postgres_store(postgres_address)
    run_ids = [f"{day}-{number:06}-aa" for day in ("20200101", "20200102", "child") for number in range(20)]
    for run_id in run_ids:
        await store.create_run(build_run(run_id), build_entries(1, 60))
    await store.close()
    connection = await RecordingConnection.connect(postgres_url, autocommit=True)
    await psycopg.AsyncConnection.execute(connection, "VACUUM ANALYZE")
    tables = {run_id: f"agent_journal_{run_id.partition('-')[0]}" for run_id in run_ids[::20]}
    others: list[str] = []

    db = PostgresSession(connection)
    for run_id, table in tables.items():
        connection.plans = []
        assert len(await journal.list_entries(db, run_id, after=0, limit=50)) == 50
        assert await journal.get_last_seq(db, run_id) == 60
        assert await run_index.delete_runs(db, [run_id], machine=machine) == [run_id]
        read = [plan for plan in connection.plans if table in plan]
        assert len(read) == 3
        others += [plan for plan in read for other in {*tables.values()} - {table} if other in plan]
        assert [plan for plan in read if "Seq Scan" in plan] == []
    await connection.close()

    assert others == []


async def test_the_run_list_can_be_searched_with_and_without_the_postgres_extension(
    postgres_address: Address, postgres_url: str, machine: FakeMachine
) -> None:
    await (await open_postgres_store(postgres_address)).close()
    await _fill_postgres(postgres_url)
    connection = await RecordingConnection.connect(postgres_url, autocommit=True)
    connection.plans = []
    searches = (
        RunSearch(words=("-000077",)),
        RunSearch(words=("zebra",), not_words=("quagga",)),
        RunSearch(words=("zebra",), statuses=("failed",), without_children=True),
        RunSearch(words=("2026",)),
    )

    db = PostgresSession(connection)
    found = [
        [row.run_id for row in await run_index.search_runs(db, each, before=0, limit=2, machine=machine)]
        for each in searches
    ]
    plans = list(connection.plans)
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as other:
        await other.execute("DROP INDEX agent_run_words_by_part")
    short = await run_index.search_runs(db, searches[0], before=0, limit=2, machine=machine)
    await connection.close()

    assert found == [["20261101-000077"], [], [], ["20261101-019999", "20261101-019998"]]
    assert [plan for plan in plans if '"Seq Scan"' in plan] == []
    assert ["agent_run_words_by_part" in plan for plan in plans] == [True, True, True, False]
    assert [row.run_id for row in short] == found[0]


async def test_a_database_user_without_extension_rights_gets_a_store(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        row = connection.execute("SELECT current_database()").fetchone()
        assert row is not None
        name = f"plain_{row[0]}"
        connection.execute(f'CREATE ROLE "{name}" LOGIN'.encode())
        connection.execute(f'GRANT CREATE, USAGE ON SCHEMA public TO "{name}"'.encode())
    address = read_address("URL", {"URL": re.sub(r"//[^@/]*@", f"//{name}@", postgres_url)})

    store = await open_postgres_store(address)
    await store.create_run(build_run("20261101-000001"))
    found = await store.search_runs(RunSearch(words=("000001",)))
    await store.close()

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        extensions = {str(each) for (each,) in connection.execute("SELECT extname FROM pg_extension")}
    assert [row.run_id for row in found] == ["20261101-000001"]
    assert "pg_trgm" not in extensions
