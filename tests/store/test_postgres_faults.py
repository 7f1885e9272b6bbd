"""PostgreSQL that restarts, drops connections or loses replies: nothing is lost or repeated."""

from collections.abc import AsyncGenerator, Generator
from dataclasses import replace
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import psycopg
import pytest
from fault_proxy import FaultProxy, fault_proxy
from psycopg.rows import TupleRow

from metier.store.contexts import Completion, ContextChange, ContextState, NewEvent
from metier.store.failures import LeaseHeld, RunExists, StoreUnavailable
from metier.store.postgres import database
from metier.store.postgres.database import Address, PoolOptions, read_address
from metier.store.postgres.store import PostgresStore, open_postgres_store
from metier.testing.store_case import build_approval, build_entries, build_run
from services.postgres_server import PostgresServer, find_binaries, run_server

pytestmark = pytest.mark.slow


@pytest.fixture
def own_server() -> Generator[PostgresServer]:
    """A server that the test may restart."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed here")
    with run_server(binaries) as server:
        yield server


@pytest.fixture
async def proxy(postgres_server: PostgresServer) -> AsyncGenerator[FaultProxy]:
    async with fault_proxy(postgres_server.port) as running:
        yield running


@pytest.fixture
async def store(proxy: FaultProxy, postgres_url: str) -> AsyncGenerator[PostgresStore]:
    database = urlsplit(postgres_url).path.strip("/")
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{database}"
    opened = await open_postgres_store(read_address("URL", {"URL": url}))
    yield opened
    await opened.close()


@pytest.mark.anyio
@pytest.mark.parametrize("is_immediate", [False, True])
async def test_a_run_continues_through_restarts_of_the_server(own_server: PostgresServer, is_immediate: bool) -> None:
    store = await open_postgres_store(read_address("URL", {"URL": own_server.url()}))
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=600)
    written = 0

    async def write() -> None:
        nonlocal written
        for seq in range(1, 301):
            await store.append(lease, seq, build_entries(seq))
            await store.update_run(lease, {"turns": seq})
            written = seq

    with anyio.fail_after(100):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            for goal in (50, 150):
                while written < goal:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                await anyio.to_thread.run_sync(lambda: own_server.restart(is_immediate=is_immediate))

    assert await store.read_journal("r1") == build_entries(1, 300)
    run = await store.find_run("r1")
    assert run is not None
    assert (run.turns, run.driver) == (300, "ann")
    await store.close()


@pytest.mark.anyio
async def test_an_outage_is_logged_once_and_so_is_its_end(
    own_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_postgres_store(read_address("URL", {"URL": own_server.url()}))
    await store.create_run(build_run("r1"))
    await anyio.to_thread.run_sync(lambda: own_server.stop(is_immediate=True))

    with anyio.fail_after(100):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(store.find_run, "r1")
            while not caplog.messages:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            await anyio.to_thread.run_sync(own_server.start)
    await store.close()

    shown = [message.partition("'")[0] + message.rpartition("'")[2] for message in caplog.messages]
    assert shown == ["The run store  does not answer; waiting for it", "The run store  answers again"]


@pytest.mark.anyio
async def test_entries_not_flushed_by_a_crashed_server_are_written_again(own_server: PostgresServer) -> None:
    with psycopg.connect(own_server.url(), autocommit=True) as connection:
        # So that the server flushes nothing by itself before it crashes.
        connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    own_server.restart()
    store = await open_postgres_store(read_address("URL", {"URL": own_server.url()}))
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=600)

    await store.append(lease, 1, build_entries(1))
    await store.append(lease, 2, build_entries(2, 2), durable=False)
    await store.append(lease, 4, build_entries(4), durable=False)
    await anyio.to_thread.run_sync(lambda: own_server.restart(is_immediate=True))
    left = await store.read_journal("r1")
    await store.append(lease, 5, build_entries(5), durable=False)

    assert left == build_entries(1)
    assert await store.read_journal("r1") == build_entries(1, 5)
    await store.close()


@pytest.mark.anyio
async def test_a_durable_append_makes_earlier_entries_survive_a_crash(own_server: PostgresServer) -> None:
    with psycopg.connect(own_server.url(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    own_server.restart()
    store = await open_postgres_store(read_address("URL", {"URL": own_server.url()}))
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=600)

    await store.append(lease, 1, build_entries(1), durable=False)
    await store.append(lease, 2, build_entries(2), durable=True)
    await anyio.to_thread.run_sync(lambda: own_server.restart(is_immediate=True))

    assert await store.read_journal("r1") == build_entries(1, 2)
    await store.close()


@pytest.mark.anyio
async def test_an_append_with_a_lost_reply_is_stored_once(store: PostgresStore, proxy: FaultProxy) -> None:
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=600)

    proxy.lose_answer_to(b"INSERT INTO agent_journal")
    await store.append(lease, 1, build_entries(1, 3))
    await store.append(lease, 4, build_entries(4))

    assert proxy.lost == 1
    assert await store.read_journal("r1") == build_entries(1, 4)


@pytest.mark.anyio
async def test_an_operation_committed_before_the_reply_was_lost_is_not_repeated(
    store: PostgresStore, proxy: FaultProxy
) -> None:
    proxy.lose_answer_to(b"COMMIT")
    await store.create_run(build_run("r1"))
    with pytest.raises(RunExists):
        await store.create_run(build_run("r1"))
    proxy.lose_answer_to(b"COMMIT")
    lease = await store.take_lease("r1", owner="ann", seconds=600)
    with pytest.raises(LeaseHeld):
        await store.take_lease("r1", owner="ann", seconds=600)
    await store.append(lease, 1, build_entries(1))
    proxy.lose_answer_to(b"COMMIT")
    await store.put_approval(lease, build_approval("a1"))
    proxy.lose_answer_to(b"COMMIT")
    assert await store.decide_approval("a1", status="approved", decided_by="bob")
    assert len(await store.list_attempts("a1")) == 1
    proxy.lose_answer_to(b"COMMIT")
    await store.release_lease(lease)
    await store.delete_run("r1")

    assert proxy.lost == 5
    assert await store.find_run("r1") is None


@pytest.mark.anyio
async def test_a_turn_committed_before_the_reply_was_lost_is_stored_once(
    store: PostgresStore, proxy: FaultProxy
) -> None:
    proxy.lose_answer_to(b"COMMIT")
    claim = await store.contexts.claim_message("c1", "m1", owner="ann", seconds=600)
    turn = ContextChange(
        state=ContextState(context_id="c1", current_turn=2),
        events=(NewEvent(event_type="said", payload="hello"),),
        completion=Completion(claim=claim, result="done"),
    )
    proxy.lose_answer_to(b"COMMIT")
    state = await store.contexts.commit("c1", turn)
    proxy.lose_answer_to(b"COMMIT")
    again = await store.contexts.commit("c1", ContextChange(state=replace(state, current_turn=3)))

    assert proxy.lost == 3
    assert (state.version, again.version, again.current_turn) == (1, 2, 3)
    assert len(await store.contexts.list_events("c1")) == 1


@pytest.mark.anyio
async def test_waiting_for_entries_survives_a_server_restart(own_server: PostgresServer) -> None:
    address = read_address("URL", {"URL": own_server.url()})
    writer, reader = await open_postgres_store(address), await open_postgres_store(address)
    await writer.create_run(build_run("r1"))
    lease = await writer.take_lease("r1", owner="ann", seconds=600)
    heard: list[bool] = []

    async def listen() -> None:
        heard.append(await reader.wait_for_entries("r1", after=0, seconds=60))

    with anyio.fail_after(100):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            await anyio.to_thread.run_sync(own_server.restart)
            await writer.append(lease, 1, build_entries(1))

    assert heard == [True]
    await writer.close()
    await reader.close()


@pytest.mark.anyio
async def test_an_unavailable_server_is_reported_and_the_run_can_be_resumed_later(
    own_server: PostgresServer,
) -> None:
    address = read_address("URL", {"URL": own_server.url()})
    store = await open_postgres_store(address, pool=PoolOptions(outage_timeout_seconds=0.5))
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=600)
    await anyio.to_thread.run_sync(own_server.stop)

    with anyio.fail_after(100), pytest.raises(StoreUnavailable) as refused:
        await store.append(lease, 1, build_entries(1))
    with pytest.raises(StoreUnavailable):
        await open_postgres_store(address)
    await anyio.to_thread.run_sync(own_server.start)
    await store.append(lease, 1, build_entries(1))

    assert "doesn't answer" in refused.value.message
    assert await store.read_journal("r1") == build_entries(1)
    await store.close()


@pytest.mark.anyio
async def test_dropped_connections_cause_no_errors(postgres_address: Address, postgres_server: PostgresServer) -> None:
    store = await open_postgres_store(postgres_address)
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=600)
    for seq in range(1, 6):
        await store.append(lease, seq, build_entries(seq))
        postgres_server.cut_connections(urlsplit(postgres_address.conninfo).path.strip("/"))

    assert await store.read_journal("r1") == build_entries(1, 5)
    await store.close()


@pytest.mark.anyio
async def test_a_connection_canceled_while_it_is_opened_is_closed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[psycopg.AsyncConnection[TupleRow]] = []
    is_open = anyio.Event()

    async def hang(connection: psycopg.AsyncConnection[TupleRow]) -> None:
        opened.append(connection)
        is_open.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(database, "_configure", hang)
    async with anyio.create_task_group() as group:
        group.start_soon(database.connect, read_address("URL", {"URL": postgres_url}))
        await is_open.wait()
        group.cancel_scope.cancel()

    assert [connection.closed for connection in opened] == [True]
