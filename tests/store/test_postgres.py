"""Specifics of PostgreSQL: tables, addresses, errors, and a missing driver."""

import subprocess
import sys
from pathlib import Path
from typing import LiteralString

import anyio
import psycopg
import pytest
from psycopg import errors
from psycopg_pool import PoolTimeout

from metier.errors import StoreError
from metier.store.backend import StoreOptions, open_store
from metier.store.contexts import ContextChange, ContextState
from metier.store.failures import StoreDamaged, StoreFull, StoreUnavailable
from metier.store.postgres.database import Address, build_failure, decode_text, encode_text, is_lost, read_address
from metier.store.postgres.schema import MIGRATIONS, migrate
from metier.store.postgres.store import open_postgres_store
from metier.store.state_store import StateOptions, open_state_store
from metier.telemetry.redaction import build_redactor

SECRET = "-".join(["hunter", "22"])
STEPS: tuple[LiteralString, ...] = (*MIGRATIONS, "CREATE TABLE agent_more (a TEXT); CREATE TABLE agent_most (b TEXT)")


def find_tables(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    return {str(name) for (name,) in rows}


@pytest.mark.anyio
async def test_concurrent_starts_create_the_tables_once(postgres_address: Address, postgres_url: str) -> None:
    async def start() -> None:
        store = await open_postgres_store(postgres_address)
        await store.close()

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(start)

    assert all(name.startswith("agent_") for name in find_tables(postgres_url))
    assert {"agent_context_state", "agent_conversation_events", "agent_pocket_facts"} <= find_tables(postgres_url)
    with psycopg.connect(postgres_url) as connection:
        versions = [version for (version,) in connection.execute("SELECT version FROM agent_schema_version")]
        assert versions == list(range(1, len(MIGRATIONS) + 1))


@pytest.mark.anyio
async def test_older_tables_are_migrated_atomically_and_newer_ones_are_rejected(
    postgres_address: Address, postgres_url: str
) -> None:
    await (await open_postgres_store(postgres_address)).close()
    before = find_tables(postgres_url)
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        with pytest.raises(psycopg.Error):
            await migrate(connection, "here", steps=(*STEPS, "CREATE TABLE agent_more (a TEXT)"))
        assert find_tables(postgres_url) == before
        await migrate(connection, "here", steps=STEPS)
        await migrate(connection, "here", steps=STEPS)
    assert find_tables(postgres_url) == before | {"agent_more", "agent_most"}

    known = len(MIGRATIONS)
    with pytest.raises(StoreUnavailable, match=f"has version {known + 1}, but .* supports versions up to {known}$"):
        await open_postgres_store(postgres_address)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@127.0.0.1:1/runs",
        f"host=127.0.0.1 port=1 user=ann password={SECRET} dbname=runs",
        f"postgresql://ann:{SECRET}@127.0.0.1:1/runs?sslmode=wrong",
        f"postgresql://ann:{SECRET}@[oops/runs",
        f"{SECRET}",
        "",
    ],
)
@pytest.mark.anyio
async def test_a_password_is_not_shown(url: str, tmp_path: Path) -> None:
    options = StoreOptions(backend="postgres")

    with pytest.raises(StoreError) as refused:
        await open_store(options, runs=tmp_path, environ={"DATABASE_URL": url})

    cause: BaseException | None = refused.value
    while cause is not None:
        assert SECRET not in f"{cause} {cause!r}"
        cause = cause.__cause__
    assert SECRET not in refused.value.sentence
    assert SECRET not in repr(read_address("U", {"U": f"postgresql://ann:{SECRET}@host/runs"}))


def test_a_url_is_shown_without_its_password() -> None:
    address = read_address("U", {"U": f"postgresql://ann:{SECRET}@db.example:5433/runs"})

    assert address.shown == "postgresql://ann@db.example:5433/runs"


def test_every_server_error_is_mapped() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, psycopg.Error)} | {
        PoolTimeout
    }

    for kind in kinds:
        failure = build_failure(kind("text of the library"), "here")
        assert failure.hint
        assert failure.message.startswith("The run store 'here' ")
    assert len(kinds) > 200


@pytest.mark.parametrize(
    ("error", "kind", "lost"),
    [
        (errors.DiskFull(), StoreFull, False),
        (errors.TooManyConnections(), StoreUnavailable, False),
        (errors.DataCorrupted(), StoreDamaged, False),
        (errors.UniqueViolation(), StoreDamaged, False),
        (errors.InsufficientPrivilege(), StoreUnavailable, False),
        (errors.InvalidPassword(), StoreUnavailable, False),
        (errors.AdminShutdown(), StoreUnavailable, True),
        (errors.CannotConnectNow(), StoreUnavailable, True),
        (errors.ReadOnlySqlTransaction(), StoreUnavailable, True),
        (errors.DeadlockDetected(), StoreUnavailable, True),
        (psycopg.OperationalError("server closed the connection"), StoreUnavailable, True),
        (PoolTimeout(), StoreUnavailable, True),
        (psycopg.ProgrammingError("odd"), StoreUnavailable, False),
    ],
)
def test_server_errors_map_to_distinct_failures(error: psycopg.Error, kind: type[StoreError], *, lost: bool) -> None:
    assert type(build_failure(error, "here")) is kind
    assert is_lost(error) is lost


@pytest.mark.parametrize("text", ["", "plain", "a\x00b", "\x10", "\x100", "\x00\x10\x00", "多\x10\x10"])
def test_text_unsupported_by_postgres_survives_a_round_trip(text: str) -> None:
    assert decode_text(encode_text(text)) == text
    assert "\x00" not in encode_text(text)
    assert encode_text(text + "more").startswith(encode_text(text))


def test_a_missing_driver_is_named_with_its_install_command() -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "sys.modules['psycopg'] = None\n"
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'psycopg' else find(name)\n"
        "from metier.store.backend import open_store\n"
        "from metier.store.backend import StoreOptions\n"
        "try:\n"
        "    asyncio.run(open_store(StoreOptions(backend='postgres'), runs=Path('.'), environ={}))\n"
        "except Exception as error:\n"
        "    print(error.sentence)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    told = done.stdout.strip()
    assert told.startswith("The PostgreSQL driver is not installed. Install it: "), done.stderr
    assert told.endswith("[postgres]'"), done.stderr


def test_the_state_of_a_conversation_is_stored_on_the_server(postgres_url: str, tmp_path: Path) -> None:
    store = StoreOptions(backend="postgres")
    environ = {"DATABASE_URL": postgres_url}
    options = StateOptions(redactor=build_redactor(), runs=tmp_path / "runs", store=store, environ=environ)

    with open_state_store("ctx", options) as store:
        store.put_state(store.get_state())
        store.put_fact("inputs", "rows", [1, 2])
        for number in range(60):
            store.append_event("note", number)
        token = store.generate_resume_token()
    with open_state_store("ctx", options) as store:
        assert store.redeem_resume_token(token, message_id="m1").version == 2
        assert store.list_facts("inputs") == {"rows": [1, 2]}
        assert "turn 1 note: 49" in store.get_state().summary
        store.commit(ContextChange(state=ContextState(context_id="ctx", version=2)))

    assert not (tmp_path / "runs" / "state.db").exists()
