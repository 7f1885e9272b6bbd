"""The `store:` section of `agent.yaml`, and the function that opens the configured store."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from metier.definitions.names import PLUGIN, PluginName
from metier.extras import hint_extra
from metier.ids import Clock
from metier.store.base import MAX_UNFLUSHED, ServerHealth, Store
from metier.store.failures import StoreUnavailable
from metier.store.sqlite.store import open_sqlite_store
from metier.values import Value

type StoreBackend = Literal["sqlite", "postgres"]


class StoreOptions(Value):
    """Database of the runs."""

    backend: StoreBackend | PluginName = Field(
        default="sqlite",
        description="Database of the runs: a SQLite file on this machine, a PostgreSQL server, or `plugin/<name>`.",
    )
    # Only the variable's name: `agent.yaml` is committed, and the address contains the password.
    database_url_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="DATABASE_URL",
        description="Environment variable with the address of the server, including the password.",
    )


DATABASE = "state.db"


def get_max_unflushed(options: StoreOptions) -> int:
    """Return how many entries of a run may be lost if the database server and the run's driver both crash."""
    return MAX_UNFLUSHED if options.backend == "postgres" else 0


async def open_store(
    options: StoreOptions, *, runs: Path, environ: Mapping[str, str], clock: Clock | None = None
) -> Store:
    """Open the configured store. Raises `StoreUnavailable`, `StoreDamaged` or `StoreFull`."""
    if options.backend == "sqlite":
        return await open_sqlite_store(runs / DATABASE, clock=clock)
    if options.backend.startswith(PLUGIN):
        raise StoreUnavailable(
            f"The store {options.backend!r} belongs to a plugin, and plugins are only loaded for runs",
            hint="Use `sqlite` or `postgres` here",
        )
    if not _has_driver():
        raise StoreUnavailable("The PostgreSQL driver is not installed", hint=hint_extra("postgres"))
    # Imported here because the driver takes three times as long to load as the rest of a short command.
    from metier.store.postgres.database import read_address
    from metier.store.postgres.store import open_postgres_store

    return await open_postgres_store(read_address(options.database_url_env, environ))


def examine_server(options: StoreOptions, environ: Mapping[str, str], run_ids: Sequence[str]) -> ServerHealth | None:
    """Check the server's clock, and which of these runs it has. Return None if there is no server to check."""
    if options.backend != "postgres" or not _has_driver() or not environ.get(options.database_url_env, "").strip():
        return None
    from metier.store.postgres.database import check_server

    return check_server(options.database_url_env, environ, run_ids)


def _has_driver() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("psycopg", "psycopg_pool"))
