"""The journal on PostgreSQL in daily tables: created on demand, found by run ID, dropped as a whole."""

from datetime import UTC, datetime

import psycopg
import pytest

from metier.ids import CHILD
from metier.protocols.a2a.caller import RUN_PREFIX
from metier.store.base import checksum_of
from metier.store.postgres.database import Address
from metier.store.postgres.schema import MIGRATIONS, migrate
from metier.store.postgres.store import PostgresStore, open_postgres_store
from metier.testing.store_case import build_entries, build_run

pytestmark = pytest.mark.anyio

WITHOUT_DAY = {"agent_journal_child", "agent_journal_a2a"}


def find_tables(url: str) -> set[str]:
    """Return all journal tables except for the default one."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'agent_journal'::regclass"
        ).fetchall()
    return {str(name) for (name,) in rows} - {"agent_journal_rest"}


def count_rest(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM agent_journal_rest").fetchone()
    return int(row[0]) if row else 0


async def _end_runs(store: PostgresStore, *run_ids: str) -> None:
    for run_id in run_ids:
        await store.create_run(build_run(run_id))
        lease = await store.take_lease(run_id, owner="ann", seconds=15)
        await store.append(lease, 1, build_entries(1, 2))
        await store.update_run(lease, {"status": "completed"})
        await store.release_lease(lease)


async def test_the_journal_table_of_a_day_is_dropped_with_its_last_run(
    postgres_address: Address, postgres_url: str
) -> None:
    store = await open_postgres_store(postgres_address)
    first, second, later = "20200101-000000-aa", "20200101-000001-bb", "20200102-000000-cc"
    await _end_runs(store, first, second, later, "child-00")
    before = datetime(2020, 1, 3, tzinfo=UTC)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE agent_runs SET updated_at = '2020-01-02' WHERE run_id <> %s", (later,))

    days = {"agent_journal_20200101", "agent_journal_20200102"}
    assert find_tables(postgres_url) == {*days, *WITHOUT_DAY}
    assert await store.delete_runs([first], updated_before=before) == [first]
    await store.reclaim(updated_before=before)
    assert "agent_journal_20200101" in find_tables(postgres_url)
    assert len(await store.read_journal(second)) == 2

    assert await store.delete_runs([second], updated_before=before) == [second]
    await store.reclaim(updated_before=before)

    assert find_tables(postgres_url) == {"agent_journal_20200102", *WITHOUT_DAY}
    assert len(await store.read_journal(later)) == 2
    assert len(await store.read_journal("child-00")) == 2
    await _end_runs(store, "20200101-000002-dd")  # a day whose table was dropped
    assert len(await store.read_journal("20200101-000002-dd")) == 2
    await store.close()


async def test_a_journal_from_before_daily_tables_stays_complete(postgres_address: Address, postgres_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        await migrate(connection, "here", steps=MIGRATIONS[:3])
        await connection.execute(
            "INSERT INTO agent_runs (run_id, context_id, status, task, agent, model, parent_run_id, created_at,"
            " updated_at, turns, cost_usd, reason, queue) VALUES ('20200101-000000-aa', 'c', 'paused', 't', '', '', '',"
            " now(), now(), 0, 0, '', '')"
        )
        await connection.execute(
            "INSERT INTO agent_leases (run_id, owner, token, boot_id, process)"
            " VALUES ('20200101-000000-aa', '', 0, '', '')"
        )
        entry = build_entries(1)[0]
        await connection.execute(
            "INSERT INTO agent_journal VALUES ('20200101-000000-aa', 1, %s, %s, %s)",
            (entry.kind, entry.data, checksum_of("20200101-000000-aa", entry)),
        )

    store = await open_postgres_store(postgres_address)
    lease = await store.take_lease("20200101-000000-aa", owner="ann", seconds=15)
    await store.append(lease, 2, build_entries(2))
    await _end_runs(store, "20200101-000001-bb")  # of the same day, which cannot have a table any more

    assert [entry.seq for entry in await store.read_journal("20200101-000000-aa")] == [1, 2]
    assert [entry.seq for entry in await store.read_journal("20200101-000001-bb")] == [1, 2]
    await store.close()


async def test_runs_without_a_day_in_their_ids_have_tables_for_older_runs_too(
    postgres_address: Address, postgres_url: str
) -> None:
    older, newer = [f"{CHILD}00aa", f"{RUN_PREFIX}00aa"], [f"{CHILD}ffbb", f"{RUN_PREFIX}ffbb"]
    entry = build_entries(1)[0]
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        await migrate(connection, "here", steps=MIGRATIONS[:10])
        for run_id in older:
            await connection.execute(
                "INSERT INTO agent_journal VALUES (%s, 1, %s, %s, %s)",
                (run_id, entry.kind, entry.data, checksum_of(run_id, entry)),
            )
    assert count_rest(postgres_url) == 2

    store = await open_postgres_store(postgres_address)
    await _end_runs(store, *newer, "20200101-000000-aa")

    assert [len(await store.read_journal(run_id)) for run_id in older] == [1, 1]
    assert [len(await store.read_journal(run_id)) for run_id in newer] == [2, 2]
    assert find_tables(postgres_url) == {*WITHOUT_DAY, "agent_journal_20200101"}
    # Nothing is left in the table that is read whenever a day gets its own.
    assert count_rest(postgres_url) == 0
    await store.close()
